"""The process that starts supervisors and freezers for a pool: small, and without threads.

The pool has threads and serves users. It forks no process that runs with a user's rights: it asks
the spawner, over a pair of sockets. A request is one JSON object, {"module", "folder", "log",
"uid"}: start that module for that slot, with its errors in that log of that user. The answer is
{} with a pidfd of the process, or {"error"}. An empty request ends the spawner.

What the spawner has started outlives it and the pool. If the pool dies, the spawner lets the next
one in (`pool_cgroup`) and ends. If the spawner dies, the pool notices at its next request and
starts another one.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import StateError
from aliquot.pool.logs import open_log
from aliquot.pool.pool_cgroup import release
from aliquot.pool.processes import python_module

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from aliquot.pool.pool_cgroup import WorkerCgroups

_LARGEST = 1 << 16
_ANSWER_SECONDS = 30.0
_RETRY_SECONDS = 2.0  # before a process that ended without doing its work is started again


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that a spawner started for this pool."""

    pidfd: int
    started: float

    @property
    def busy(self) -> bool:
        """Whether it runs, or ended so recently that it is too early to start another."""
        if time.monotonic() - self.started < _RETRY_SECONDS:
            return True
        ends = select.poll()  # select(2) refuses descriptors from 1024 on
        ends.register(self.pidfd, select.POLLIN)
        return not ends.poll(0)

    def close(self) -> None:
        """Forget the process."""
        os.close(self.pidfd)


class Spawner:
    """The pool's side: starts the spawner, and another one if it has died."""

    def __init__(self, environment: Mapping[str, str], cgroups: WorkerCgroups) -> None:
        self._environment, self._cgroups = dict(environment), cgroups
        self._files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # before the pool raises it
        self._process, self._socket = self._start()

    @property
    def pid(self) -> int:
        """The spawner's process."""
        return self._process.pid

    def spawn(self, module: ModuleType, folder: Path, log: Path, uid: int) -> Spawned:
        """Start a module for a slot. It outlives the pool, and its errors are in the user's log."""
        request = {"module": module.__name__, "folder": str(folder), "log": str(log), "uid": uid}
        try:
            return self._ask(request)
        except OSError:  # it has died; a slot has one worker, however often one is started
            self.close()
            self._process, self._socket = self._start()
        try:
            return self._ask(request)
        except OSError as error:
            raise StateError(f"the process that starts workers does not answer: {error}") from error

    def close(self) -> None:
        """End the spawner; what it started keeps running."""
        with suppress(OSError):
            self._socket.send(b"{}")
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_RETRY_SECONDS)
        self._process.kill()
        self._process.wait()

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_SECONDS)
        blocked = str(self._cgroups.above) if self._cgroups.blocked else ""
        with theirs:
            process = subprocess.Popen(
                python_module(__name__, str(theirs.fileno()), str(self._files), blocked),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=self._environment,
                pass_fds=[theirs.fileno()],
            )
        return process, ours

    def _ask(self, request: dict[str, Any]) -> Spawned:
        self._socket.send(json.dumps(request).encode())
        content, handles, _, _ = socket.recv_fds(self._socket, _LARGEST, 1)
        if not content:
            raise ConnectionResetError("it has ended")
        answer = json.loads(content)
        if not handles:
            raise StateError(
                f"no process could be started for {request['folder']}", answer["error"]
            )
        return Spawned(handles[0], time.monotonic())


def main(connection: socket.socket, blocked: str) -> None:
    """Start processes on request until the pool is gone.

    `blocked` is the cgroup that the next pool must be able to enter, if this one was killed.
    """
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    with suppress(ConnectionError):  # the pool died as it was answered
        while content := connection.recv(_LARGEST):
            if not (request := json.loads(content)):
                return
            _answer(connection, request)
    if blocked:
        release(Path(blocked))


def _answer(connection: socket.socket, request: dict[str, Any]) -> None:
    try:
        handle = _spawn(request)
    except OSError as error:
        connection.send(json.dumps({"error": str(error)}).encode())
        return
    try:
        socket.send_fds(connection, [b"{}"], [handle])
    finally:
        os.close(handle)


def _spawn(request: dict[str, Any]) -> int:
    """Start a process; its pidfd."""
    log = open_log(Path(request["log"]), request["uid"])
    try:
        process = subprocess.Popen(
            python_module(request["module"], request["folder"]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
        _children[process.pid] = process
        return os.pidfd_open(process.pid)
    finally:
        os.close(log)


_children: dict[int, subprocess.Popen[bytes]] = {}


def _reap() -> None:
    for pid, process in list(_children.items()):
        if process.poll() is not None:
            del _children[pid]


def _limit_files(soft: int) -> None:
    """Workers get the limit of open files that the pool was started with: some poll them all."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


if __name__ == "__main__":
    _limit_files(int(sys.argv[2]))
    with suppress(KeyboardInterrupt), socket.socket(fileno=int(sys.argv[1])) as pair:
        main(pair, sys.argv[3])
