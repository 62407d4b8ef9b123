"""Commands of `aliquot run` that ask the pool for a grant, and those that wait in its queue.

Each has a connection to the pool's socket `runs`, and its place in the queue ends with the
connection. The client sends one line, and gets lines until its place ends; every line is a JSON
object:

    client: {"request": ..., "name": NAME or null, "command": ..., "visible": ..., "wait": true,
             "queue": NAME or null, "preview": false}
    pool:   {"waiting": why, "place": 2, "of": 3, "expected": 1700000000.0 or null}
    pool:   {"grant": DIRECTORY#MARK, "name": NAME, "gpus": [UUID, ...]}        the last line, or
    pool:   {"error": ..., "hint": ..., "kind": ...}                            the last line

A client that gives its place up shuts its side down, and reads to the end: if its grant is being
made, the grant still comes, and the client uses or ends it.

With "preview" nothing is made. The only line says what would be: {"gpus": [UUID, ...], "swap":
OPTIONS} if it would start now, and otherwise its place if it waited.

The kernel says which process asks. The grant belongs to that process, which becomes the command.
One thread serves all connections: those that wait cost nothing. A user but root has at most
`MOST_OF_A_USER` of them, and opens at most `user_load.REQUESTS_PER_SECOND`.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from aliquot.model import check_name
from aliquot.model.errors import AliquotError, CancelledError, InvalidValueError
from aliquot.model.job import DEFAULT_QUEUE
from aliquot.pool.directory import bind_socket
from aliquot.pool.encoding import decode_request
from aliquot.pool.peers import peer_of
from aliquot.pool.user_load import PAUSE_SECONDS, UserLoad
from aliquot.slices import procfs
from aliquot.slices.grant_creation import grant_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aliquot.model import Request
    from aliquot.model.owner import Owner
    from aliquot.pool.peers import Peer

MOST_OF_A_USER = 64
MOST = 1024
LONGEST_LINE = 1 << 16
LONGEST_NAME = 100  # of a queue that a user names
SECONDS_TO_ASK = 10.0
SECONDS_TO_GRANT = 10.0  # then a request to cancel is refused


class RunMode(Enum):
    """If it cannot start at once, it is refused or it waits. A preview starts nothing."""

    NOW = auto()
    WAIT = auto()
    PREVIEW = auto()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a process asks for.

    `visible` is its CUDA_VISIBLE_DEVICES. `started` is when the process started: a later process
    with the same pid gets nothing.
    """

    number: int
    owner: Owner
    pid: int
    started: int
    request: Request
    name: str | None
    command: str
    visible: str | None
    mode: RunMode
    submitted: float
    queue: str = DEFAULT_QUEUE
    free_name: str | None = None  # that no other command of its process waits under
    accepted: bool = False  # its request has the GPUs that its words named when it asked

    @property
    def shown_name(self) -> str:
        """How its user names it: as its grant will be named, unless that name is taken by then."""
        return next(self.grant_names())

    def is_beside(self, other: RunRequest) -> bool:
        """Whether both are requests of one process."""
        return (self.pid, self.started) == (other.pid, other.started)

    def grant_names(self) -> Iterator[str]:
        """The names that its grant can have, best first."""
        if self.name is not None:
            yield self.name
            return
        if self.free_name is not None:
            yield self.free_name
        names = grant_names(self.command, self.pid)
        yield from (name for name in names if name != self.free_name)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A place in the queue; `expected` is the latest start, if time limits say so."""

    why: str
    place: int
    of: int
    expected: float | None = None


@dataclass(eq=False)
class _Client:
    """A connection, and what has come of its request.

    While it is `held`, its grant is being made. If it `left` meanwhile, it still gets the grant.
    """

    connection: socket.socket
    peer: Peer
    since: float
    line: bytearray = field(default_factory=bytearray)
    run: RunRequest | None = None
    told: Waiting | None = None
    held: bool = False
    left: bool = False


class RunDesk:
    """Serves the socket; the controller reads `requests` and answers them. Thread-safe."""

    def __init__(
        self, path: Path, mode: int, admit: Callable[[Peer, str], object], wake: Callable[[], None]
    ) -> None:
        """Serve at a path; `admit` raises if a peer may not ask, or not in a queue."""
        self._admit, self._wake = admit, wake
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)  # a client is not held any more
        self._clients: set[_Client] = set()
        self._loads: dict[int, UserLoad] = {}
        self._numbers = 0
        self._path = path
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        bind_socket(self._server, path, mode)
        self._server.listen(128)
        self._server.settimeout(0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ, None)
        self._closed = False

    def serve(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self._serve, name="pool-runs", daemon=True).start()

    def close(self) -> None:
        """End all connections: clients that wait look for the next pool."""
        self._path.unlink(missing_ok=True)
        with self._lock:
            self._closed = True
            for client in list(self._clients):
                self._drop(client)

    # --- for the controller ---

    def requests(self) -> list[RunRequest]:
        """All requests that have no answer yet, in the order they came."""
        with self._lock:
            found = [client.run for client in self._clients if client.run is not None]
        return sorted(found, key=lambda run: run.number)

    def accept(self, run: RunRequest) -> None:
        """Keep a request as it was accepted."""
        if (client := self._find(run)) is not None:
            with self._lock:
                client.run = run

    def tell(self, run: RunRequest, place: Waiting) -> None:
        """Tell a client its place; it is told only what has changed."""
        client = self._find(run)
        if client is None or client.told == place:
            return
        client.told = place
        self._send(client, _encoded(place))

    @contextmanager
    def hold(self, run: RunRequest) -> Iterator[bool]:
        """Keep a client's connection while its grant is made; False if it has left already.

        A client that leaves meanwhile gets the answer, so no grant is made that nobody knows of.
        """
        client = self._find(run)
        if client is None:
            yield False
            return
        with self._lock:
            client.held = client in self._clients
        try:
            yield client.held
        finally:
            with self._lock:
                client.held = False
                self._released.notify_all()
                if client.left:
                    self._drop(client)

    def grant(self, run: RunRequest, marked: str, name: str, gpus: list[str]) -> None:
        """Answer with the grant that was made."""
        self._finish(run, {"grant": marked, "name": name, "gpus": gpus})

    def preview(self, run: RunRequest, found: list[str] | Waiting) -> None:
        """Answer with what it would get: GPUs, or a place in the queue."""
        if isinstance(found, Waiting):
            self._finish(run, _encoded(found))
        else:
            self._finish(run, {"gpus": found, "swap": run.request.swap_options})

    def refuse(self, run: RunRequest, error: AliquotError) -> None:
        """Answer with a refusal."""
        self._finish(run, _refusal(error))

    def cancel(self, run: RunRequest, by: str) -> bool:
        """End the wait of a command; False if it has left or has got its grant.

        While its grant is being made, this waits for what comes of that.
        """
        client = self._find(run)
        if client is None:
            return False
        answer = _refusal(CancelledError(f"cancelled by {by} while it waited for GPUs"))
        with self._lock:
            self._released.wait_for(lambda: not client.held, SECONDS_TO_GRANT)
            if client.held or client not in self._clients:
                return False
            with suppress(OSError):
                client.connection.send(_line(answer))
            self._drop(client)
        self._wake()
        return True

    # --- the thread ---

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(1.0):
                try:
                    if key.data is None:
                        self._accept()
                    else:
                        self._read(key.data)
                except Exception as error:  # noqa: BLE001 - the thread serves all users
                    if key.data is not None:
                        self._end(key.data, _refusal(AliquotError(f"a defect: {error!r}")))
            self._drop_slow()
        self._selector.close()
        self._server.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: it stays in the queue
            time.sleep(PAUSE_SECONDS)
            return
        try:
            connection.settimeout(0)
            peer = peer_of(connection)
        except OSError:
            connection.close()
            return
        client = _Client(connection, peer, time.monotonic())
        with self._lock:
            uid = peer.counted_uid
            refusal = None if uid == 0 else self._too_many(uid)
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)
        if refusal is not None:
            self._end(client, _refusal(refusal))

    def _too_many(self, uid: int) -> AliquotError | None:
        """Why a user may not have one more connection."""
        now = time.monotonic()
        load = self._loads.get(uid, UserLoad(now)).after(now).plus(requests=1)
        if load.too_much:
            return AliquotError(
                "you start commands faster than the pool admits them", "Try again in a second."
            )
        self._loads = {
            **{key: one for key, one in self._loads.items() if one.after(now).requests},
            uid: load,
        }
        mine = sum(one.peer.counted_uid == uid for one in self._clients)
        if mine < MOST_OF_A_USER and len(self._clients) < MOST:
            return None
        return AliquotError(
            f"too many commands wait: {mine} are yours, and {MOST_OF_A_USER} may wait",
            "Submit jobs instead, which nobody has to wait for: aliquot submit",
        )

    def _read(self, client: _Client) -> None:
        try:
            content = client.connection.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content or client.run is not None:  # it has gone, or does not follow the protocol
            self._leave(client)
            return
        client.line += content
        if b"\n" not in content:
            if len(client.line) > LONGEST_LINE:
                self._leave(client)
            return
        try:
            run = self._decoded(client)
            self._admit(client.peer, run.queue)
        except AliquotError as error:
            self._end(client, _refusal(error))
            return
        with self._lock:
            waiting = [one.run for one in self._clients if one.run is not None]
            others = {one.shown_name for one in waiting if one.is_beside(run)}
            names = (name for name in run.grant_names() if name not in others)
            client.run = replace(run, free_name=next(names, None))
        self._wake()

    def _decoded(self, client: _Client) -> RunRequest:
        with self._lock:
            self._numbers += 1
            number = self._numbers
        return decode_run(bytes(client.line), client.peer, number)

    def _leave(self, client: _Client) -> None:
        with self._lock:
            if client.held:
                client.left = True
                self._selector.unregister(client.connection)
            else:
                self._drop(client)
        self._wake()

    def _drop_slow(self) -> None:
        now = time.monotonic()
        with self._lock:
            for client in list(self._clients):
                if client.run is None and now - client.since > SECONDS_TO_ASK:
                    self._drop(client)

    # --- parts ---

    def _find(self, run: RunRequest) -> _Client | None:
        with self._lock:
            return next(
                (
                    one
                    for one in self._clients
                    if one.run is not None and one.run.number == run.number
                ),
                None,
            )

    def _finish(self, run: RunRequest, answer: dict[str, Any]) -> None:
        if (client := self._find(run)) is not None:
            self._end(client, answer)

    def _end(self, client: _Client, answer: dict[str, Any]) -> None:
        self._send(client, answer)
        with self._lock:
            self._drop(client)

    def _send(self, client: _Client, answer: dict[str, Any]) -> None:
        content = _line(answer)
        try:
            sent = client.connection.send(content)
        except OSError:
            sent = 0
        if sent < len(content):  # it does not read: its place ends
            with self._lock:
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            with suppress(KeyError, ValueError):
                self._selector.unregister(client.connection)
            client.connection.close()


def _checked_name(name: str) -> str:
    """The name, unchanged; InvalidValueError if it is not valid for a command that may wait."""
    if name.isdecimal():
        raise InvalidValueError(
            f"--name {name} is a number, and in a pool numbers are those of jobs",
            f"Use another name, for example run-{name}.",
        )
    return check_name(name)


def decode_run(line: bytes, peer: Peer, number: int) -> RunRequest:
    """The request of a process; InvalidValueError if the line is invalid."""
    started = procfs.started_at(peer.pid) if peer.pid > 0 else None
    if started is None:
        raise InvalidValueError("the process that asks cannot be seen from here")
    try:
        fields = json.loads(line)
        name, visible = fields["name"], fields["visible"]
        queue = fields.get("queue")
        return RunRequest(
            number=number,
            owner=peer.owner,
            pid=peer.pid,
            started=started,
            request=decode_request(fields["request"]),
            name=None if name is None else _checked_name(str(name)),
            command=_shown(str(fields["command"])),
            visible=None if visible is None else str(visible),
            mode=_mode(wait=bool(fields["wait"]), preview=bool(fields.get("preview"))),
            submitted=time.time(),
            queue=DEFAULT_QUEUE if queue is None else str(queue)[:LONGEST_NAME],
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"invalid request of aliquot run: {error!r}") from error


def _shown(command: str) -> str:
    """A command for people: Linux takes file names that are no text, screens do not."""
    return command.encode("utf-8", "replace").decode("utf-8")


def _mode(*, wait: bool, preview: bool) -> RunMode:
    if preview:
        return RunMode.PREVIEW
    return RunMode.WAIT if wait else RunMode.NOW


def _encoded(place: Waiting) -> dict[str, Any]:
    fields = {"place": place.place, "of": place.of, "expected": place.expected}
    return {"waiting": place.why, **fields}


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _refusal(error: AliquotError) -> dict[str, Any]:
    known = (one for one in type(error).__mro__ if one.__module__ == AliquotError.__module__)
    return {"error": error.message, "hint": error.hint, "kind": next(known).__name__}
