"""The client of a pool's socket `runs`: `aliquot run` asks there for a grant, or waits for one."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aliquot.model import errors
from aliquot.model.errors import AliquotError
from aliquot.pool.directory import directory_of, folder_of
from aliquot.pool.encoding import encode_request
from aliquot.pool.peers import peer_of
from aliquot.pool.runs import Waiting
from aliquot.slices import silence
from aliquot.slices.visible_devices import VISIBLE

if TYPE_CHECKING:
    from aliquot.model import Request
    from aliquot.slices import StateDirectory

_SECONDS = 10.0  # for the pool to accept
_LONGEST_POLL_SECONDS = 86400.0  # poll(2) counts milliseconds with 31 bits


class PoolGoneError(AliquotError):
    """The pool ended while a command waited."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The grant that the pool made for this process."""

    marked: str
    name: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WouldStart:
    """The GPUs that the pool would give this process now, and --swap and such as would hold."""

    gpus: tuple[str, ...]
    swap: str = ""


@dataclass
class RunConnection:
    """A connection to a pool. The place in the queue ends with it."""

    shared: bool
    pool: str  # as messages name it
    _socket: socket.socket
    _content: bytearray = field(default_factory=bytearray)
    _answered: bool = False

    def ask(  # noqa: PLR0913 - one for each field
        self,
        request: Request,
        *,
        name: str | None = None,
        command: str = "",
        queue: str | None = None,
        wait: bool = False,
        preview: bool = False,
    ) -> None:
        """Ask for a grant of this process, of the GPUs that it may use.

        `wait`: in the queue, if it cannot be made at once. `preview`: only what would happen.
        """
        fields = {
            "name": name,
            "command": command,
            "visible": os.environ.get(VISIBLE),
            "queue": queue,
            "wait": wait,
            "preview": preview,
        }
        line = json.dumps({"request": encode_request(request), **fields}).encode() + b"\n"
        try:
            self._socket.sendall(line)
        except OSError as error:
            raise PoolGoneError(f"the pool does not answer: {error}") from error

    def news(self, seconds: float | None) -> Waiting | Granted | WouldStart | None:
        """What the pool says next; None if it says nothing within `seconds`. Raises its refusal.

        It answers soon, and then only when something changes.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        if not self._answered:
            silence.await_reply(self._socket, self.pool, seconds)
            self._answered = True
        while b"\n" not in self._content:
            if not self._is_readable(deadline):
                return None
            with suppress(OSError):
                if content := self._socket.recv(1 << 16):
                    self._content += content
                    continue
            raise PoolGoneError("the pool has ended", "Start it again with: aliquot up")
        line, _, rest = bytes(self._content).partition(b"\n")
        self._content = bytearray(rest)
        return _decoded(json.loads(line))

    def _is_readable(self, deadline: float | None) -> bool:
        """Wait until there is something to read; False at the deadline."""
        news = select.poll()  # select(2) refuses descriptors from 1024 on
        news.register(self._socket, select.POLLIN)
        while True:
            left = _LONGEST_POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if news.poll(min(max(0.0, left), _LONGEST_POLL_SECONDS) * 1000):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def leave(self, seconds: float) -> Granted | None:
        """Give the place in the queue up; the grant, if the pool has made it already.

        A pool that does not answer within `seconds` is not waited for.
        """
        deadline = time.monotonic() + seconds
        try:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            while (news := self.news(max(0.0, deadline - time.monotonic()))) is not None:
                if isinstance(news, Granted):
                    return news
        except AliquotError:  # it refuses, or the connection has ended
            pass
        return None

    def close(self) -> None:
        """End the connection. A grant that is on its way is lost until this process ends."""
        self._socket.close()


def open_runs(state: StateDirectory) -> RunConnection | None:
    """A connection to the pool of that machine, of root or of this user; None if none is up."""
    directory = directory_of(state)
    path = directory.runs
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(_SECONDS)
    try:
        with folder_of(path) as folder:
            connection.connect(f"{folder}/{path.name}")
        uid = peer_of(connection).owner.uid
    except OSError:
        connection.close()
        return None
    if uid not in {0, os.geteuid()}:
        connection.close()
        return None
    return RunConnection(uid == 0, f"the pool of {directory}", connection)


def ask_preview(
    state: StateDirectory, request: Request, queue: str | None = None, *, shared: bool = False
) -> WouldStart | Waiting | None:
    """What the pool of that machine would answer; None if none is up, or `shared` and not root's.

    Raises the pool's refusal.
    """
    connection = open_runs(state)
    if connection is None:
        return None
    try:
        if shared and not connection.shared:
            return None
        connection.ask(request, queue=queue, preview=True)
        news = connection.news(_SECONDS)
    except PoolGoneError:
        return None
    finally:
        connection.close()
    return None if isinstance(news, Granted) else news


def _decoded(fields: dict[str, Any]) -> Waiting | Granted | WouldStart:
    if "error" in fields:
        kind = getattr(errors, fields["kind"], AliquotError)
        raise kind(fields["error"], fields["hint"])
    if "grant" in fields:
        return Granted(fields["grant"], fields["name"], tuple(fields["gpus"]))
    if "gpus" in fields:
        return WouldStart(tuple(fields["gpus"]), fields.get("swap", ""))
    return Waiting(fields["waiting"], fields["place"], fields["of"], fields["expected"])
