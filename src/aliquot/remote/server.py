"""The server beside the GPUs: gives each launcher a session in a grant, for as long as it is there.

A session is a process that `aliquot run` has put in a grant. It lives exactly as long as the
connection of the launcher that opened it: when the connection ends, the server kills the session's
processes, and the arbiter gives the slice back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from aliquot.model.errors import AliquotError
from aliquot.remote import greeting, session

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_CONNECTIONS = 1024
SECONDS_TO_GREET = 10.0
PAUSE_SECONDS = 0.05
_TAIL = 4000


@dataclass(frozen=True)
class ExecutorSettings:
    """What a server needs to start sessions."""

    python: str  # with PyTorch
    device: str  # of the executors: cuda, or cpu as a stand-in
    simulate: str | None  # a simulated machine's shape


class RemoteServer:
    """The sessions of one user, and the socket over which they are opened."""

    def __init__(self, path: Path, settings: ExecutorSettings) -> None:
        self._path = path
        self._settings = settings
        self._controls: dict[str, socket.socket] = {}
        self._children: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._rooms = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._is_closed = False
        self._listener = _listen(path)

    def serve(self) -> None:
        """Serve until `close`, or until SIGTERM or Ctrl-C: they are raised as KeyboardInterrupt."""
        try:
            while not self._is_closed:
                try:
                    end, _ = self._listener.accept()
                except OSError:  # closed, or no descriptor is left: then the client waits
                    time.sleep(PAUSE_SECONDS)
                    continue
                self._rooms.acquire()
                threading.Thread(target=self._greet, args=(end,), daemon=True).start()
        finally:
            self.close()
            self._listener.close()

    def close(self) -> None:
        """End all sessions and remove the socket; `serve` returns.

        Only `serve` closes the listener: its accept() would go on with the next socket that gets
        the same descriptor, and take that one's clients.
        """
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._path.unlink(missing_ok=True)
        with self._lock:
            children = list(self._children)
        for child in children:
            self._end(child)

    def _greet(self, end: socket.socket) -> None:
        try:
            with end:
                self._answer(end)
        except OSError:
            pass  # the client has gone
        finally:
            self._rooms.release()

    def _answer(self, end: socket.socket) -> None:
        try:
            _, uid = greeting.peer(end)
            if uid != os.getuid():
                raise greeting.RemoteError(
                    f"this server is of user {os.getuid()}, and you are user {uid}",
                    "Start a server of your own: aliquot remote serve --socket PATH",
                )
            end.settimeout(SECONDS_TO_GREET)
            asked = greeting.read(greeting.read_line(end))
            end.settimeout(None)
            if isinstance(asked, greeting.Attach):
                self._attach(asked.session, end)
                return
            with self._session(asked) as token:
                greeting.reply(end, {"session": token})
                while end.recv(greeting.MOST):
                    pass
        except AliquotError as error:
            greeting.reply(end, {"error": error.message, "hint": error.hint})
        except ValueError as error:
            greeting.reply(end, {"error": f"the greeting is invalid: {error}"})

    def _attach(self, token: str, end: socket.socket) -> None:
        control = self._controls.get(token)
        if control is None:
            raise greeting.RemoteError(
                "the session of this program is over, and its slice was given back",
                "A slice lives as long as the command of `aliquot run --remote`.",
            )
        greeting.reply(end, {"session": token})
        socket.send_fds(control, [b"a"], [end.fileno()])

    @contextlib.contextmanager
    def _session(self, asked: greeting.Open) -> Iterator[str]:
        """A session in a grant of its own, for the time of the block."""
        ours, theirs = socket.socketpair()
        with ours, tempfile.TemporaryFile() as log:
            with theirs:
                child = self._start(asked, theirs.fileno(), log)
            token = secrets.token_hex(16)
            try:
                ours.settimeout(greeting.SECONDS)
                if _first_byte(ours) != session.READY:
                    self._end(child)
                    raise _refusal(log)
                ours.settimeout(None)
                self._controls[token] = ours
                yield token
            finally:
                self._controls.pop(token, None)
                self._end(child)
                _show(log)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Kill a session, once: afterwards its number may be another process's."""
        with self._lock:
            lives = child in self._children
            self._children.discard(child)
        if lives:
            _kill(child)

    def _start(self, asked: greeting.Open, control: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        settings = self._settings
        options = [] if asked.memory is None else [f"--memory={asked.memory}"]
        options += [f"--compute={asked.percent}"] if asked.percent else []
        options += [f"--simulate={settings.simulate}"] if settings.simulate else []
        inside = session.command(settings.python, "session", str(control), settings.device)
        command = [sys.executable, "-m", "aliquot", "run", *options, "--", *inside]
        with self._lock:
            child = subprocess.Popen(
                command,
                pass_fds=(control,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._children.add(child)
        return child


def _listen(path: Path) -> socket.socket:
    """A listening socket that only this user can connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise greeting.RemoteError(
            f"cannot listen at {path}: {error.strerror or error}",
            "Name another --socket, in a folder of yours; its path has at most 107 bytes.",
        ) from error
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _first_byte(end: socket.socket) -> bytes:
    try:
        return end.recv(1)
    except OSError:
        return b""


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a session: all of its processes are in one process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _written(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL))
    return log.read().decode("utf-8", "replace").strip()


def _refusal(log: IO[bytes]) -> greeting.RemoteError:
    """Why there is no session, as `aliquot run` has said it."""
    text = _written(log).removeprefix("aliquot: ") or "the session did not start"
    log.truncate(0)
    message, _, hint = text.partition("\n  ")
    return greeting.RemoteError(message, hint or None)


def _show(log: IO[bytes]) -> None:
    """What the processes of a session have written, for the person who looks after the server."""
    if text := _written(log):
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def torch_of(python: str) -> str:
    """The version of PyTorch of a Python. Raises RemoteError if it has none."""
    probe = [python, "-c", "from importlib.metadata import version; print(version('torch'))"]
    hint = "Name a Python that has PyTorch: --python PATH."
    try:
        made = subprocess.run(probe, capture_output=True, text=True, check=False)
    except OSError as error:
        raise greeting.RemoteError(f"{python}: {error.strerror}", hint) from error
    if made.returncode:
        last = (made.stderr.strip().splitlines() or ["it says nothing"])[-1]
        why = "" if "PackageNotFoundError" in last else f": {last}"
        raise greeting.RemoteError(f"{python} has no PyTorch{why}", hint)
    return made.stdout.strip().splitlines()[-1]
