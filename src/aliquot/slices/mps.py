"""MPS servers for the grants of this user: joining one, ending a client, and what went wrong.

There is one server for each GPU and user, so programs of different users never share one. A watcher
(`mps_watcher`) starts, watches and ends it. The folder of a server, which only its user can enter:

    pipe/, log/   of NVIDIA's daemon: what clients get as CUDA_MPS_PIPE_DIRECTORY, and its logs
    record.json   what the watcher last saw, and failures with the clients that they hit
    watcher        locked by the watcher while it lives
    join          locked by who joins, and by the watcher while it decides to end
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.devices import parse_shape
from aliquot.model import Priority
from aliquot.model.errors import AliquotError, MpsError
from aliquot.slices import state_directory
from aliquot.slices.mps_control import LOGS, PIPES, Control, control_program
from aliquot.slices.mps_state import MpsPhase
from aliquot.slices.state_directory import StateDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.devices import Driver

RECORD, WATCHER, JOIN, WATCHER_LOG = "record.json", "watcher", "join", "watcher.log"
LOW_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
CLIENT_VARIABLES = frozenset({PIPES, LOGS, LOW_PRIORITY})
INSTEAD = "Or use --isolation soft."

_REFUSING = {MpsPhase.DRAINING, MpsPhase.SILENT}
_LONGEST_SOCKET = 107 - len("/control_privileged")
_WAIT_SECONDS = 60.0  # until the clients of before are gone
_START_SECONDS = 150.0
_POLL_SECONDS = 0.05
_TERMINATE_SECONDS = 10.0
_END_SECONDS = 30.0  # for all clients of a grant together


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """The folder of one server."""

    path: Path
    gpu: str

    def control(self, program: Sequence[str]) -> Control:
        """The control daemon of this folder."""
        return Control(program, self.path / "pipe", self.path / "log")

    def record(self) -> dict[str, Any]:
        """What the watcher has written; empty if there was none."""
        try:
            return dict(json.loads((self.path / RECORD).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    def is_watched(self) -> bool:
        """Whether its watcher lives."""
        try:
            with locked(self.path / WATCHER, seconds=0.0, shared=True):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False


def base_folder(state: StateDirectory) -> Path:
    """Where this user's servers of a machine are: the same for all of the user's commands."""
    if state.shape is not None:
        return state.directory / "mps"
    own = state_directory.own_directory()
    if (state_directory.override() and not state_directory.belongs_to_root(own)) or (
        os.geteuid() == 0
    ):
        return own / "mps"
    return Path(f"/tmp/aliquot-mps-{os.geteuid()}")  # noqa: S108 - checked to be ours


def server_folder(state: StateDirectory, gpu: str) -> ServerFolder:
    """The folder of this user's server of a GPU; it may not exist yet."""
    return ServerFolder(base_folder(state) / gpu, gpu)


def server_folders(state: StateDirectory) -> list[ServerFolder]:
    """Those that exist. A folder with their name that another user has made has none."""
    base = base_folder(state)
    try:
        if not state_directory.is_private(base.lstat()):
            return []
        found = sorted(base.iterdir())
    except OSError:
        return []
    return [ServerFolder(path, path.name) for path in found if (path / RECORD).exists()]


def make_folder(folder: ServerFolder, *, simulated: bool) -> None:
    """Create a server's folder, which only this user can enter."""
    if not simulated and len(str(folder.path / "pipe")) > _LONGEST_SOCKET:
        raise MpsError(
            f"the path {folder.path} is too long for the sockets of MPS",
            f"Name a shorter folder with {state_directory.OVERRIDE}. {INSTEAD}",
        )
    for path in (folder.path.parent, folder.path, folder.path / "pipe", folder.path / "log"):
        state_directory.make_directory(path)
        path.chmod(0o700)


@contextmanager
def locked(path: Path, *, seconds: float, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a file; BlockingIOError if another process has it for so long."""
    deadline = time.monotonic() + seconds
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(handle)


def client_variables(control: Control, priority: Priority) -> dict[str, str]:
    """The variables of a client: where its server is, and for background work a lower priority.

    The GPU begins blocks of the others' kernels before those of a client of lower priority.
    """
    low = {LOW_PRIORITY: "1"} if priority is Priority.BACKGROUND else {}
    return {**control.variables, **low}


def join(
    state: StateDirectory, driver: Driver, gpu: str, priority: Priority = Priority.NORMAL
) -> dict[str, str]:
    """The variables with which a program is a client of this user's server of a GPU.

    The server is started if there is none. The caller's grant exists already, so it does not end
    before the caller uses it. MpsError if there is no server, and why.
    """
    folder = server_folder(state, gpu)
    control = folder.control(control_program(driver))
    make_folder(folder, simulated=state.shape is not None)
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        with _joining(folder):
            if not folder.is_watched():
                _start_watcher(state, folder)
            record = folder.record()
            if record.get("phase") == MpsPhase.READY:
                return client_variables(control, priority)
        if time.monotonic() > deadline:
            raise MpsError(
                f"the MPS server of {gpu} accepts no client: {_obstacle(folder, record)}", INSTEAD
            )
        time.sleep(_POLL_SECONDS)


@contextmanager
def _joining(folder: ServerFolder) -> Iterator[None]:
    """Hold the lock of those that join; MpsError if one of them has it for too long."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder.path / JOIN, seconds=_START_SECONDS))
        except BlockingIOError as error:
            raise MpsError(
                f"another command has been joining the MPS server of {folder.gpu} for"
                f" {_START_SECONDS:g} s",
                f"It may be stopped: see who has {folder.path / JOIN} open. {INSTEAD}",
            ) from error
        yield


def _obstacle(folder: ServerFolder, record: dict[str, Any]) -> str:
    old = record.get("old") or []
    if old:
        pids = ", ".join(map(str, old))
        return f"{record.get('why')}; it waits until the programs of before have ended: {pids}"
    nothing = f"its watcher has written no {folder.path / RECORD}: the disk may be full"
    return str(record.get("why") or record.get("phase") or nothing)


def _start_watcher(state: StateDirectory, folder: ServerFolder) -> None:
    """Start the watcher, which goes into the background by itself when its server is ready."""
    shape = [] if state.shape is None else ["--simulate", str(state.shape)]
    module = [sys.executable, "-P", "-m", "aliquot.slices.mps_watcher"]
    try:
        done = subprocess.run(
            [*module, str(state.directory), str(folder.path), folder.gpu, *shape],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(
            f"the MPS server of {folder.gpu} does not start: {error}", INSTEAD
        ) from error
    if done.returncode:
        why = done.stderr.strip() or f"its watcher ended with {done.returncode}"
        raise MpsError(
            f"the MPS server of {folder.gpu} does not start: {why}",
            f"Its logs are in {folder.path}. {INSTEAD}",
        )


def end_clients(pids: Sequence[int], driver: Driver) -> None:
    """End the GPU work of those that are clients, so that killing them harms no other client.

    It takes 30 s at most: a tenant's daemon that does not answer keeps nobody alive.
    """
    deadline = time.monotonic() + _END_SECONDS
    with suppress(AliquotError):
        program = control_program(driver)
        for control, asked in _daemons_of(pids, program).items():
            with suppress(AliquotError):
                _end_clients(control, asked, deadline)


def _daemons_of(pids: Sequence[int], program: Sequence[str]) -> dict[Control, set[int]]:
    """The daemons that processes say they are clients of, with the processes of each."""
    found: dict[Control, set[int]] = {}
    for pid in pids:
        with suppress(OSError, ValueError):
            process = Path(f"/proc/{pid}").stat()
            if (pipes := _pipes_of(pid)) is not None:
                owner = None if process.st_uid == os.geteuid() else (process.st_uid, process.st_gid)
                control = Control(tuple(program), pipes, pipes.parent / "log", owner)
                found.setdefault(control, set()).add(pid)
    return found


def _end_clients(control: Control, asked: set[int], deadline: float) -> None:
    def left() -> float:
        return deadline - time.monotonic()

    for server in control.servers(left()):
        for pid in asked.intersection(control.clients(server, left())):
            with suppress(MpsError):
                control.terminate(server, pid, min(_TERMINATE_SECONDS, left()))


def _pipes_of(pid: int) -> Path | None:
    """The pipe directory that a process was started with."""
    content = Path(f"/proc/{pid}/environ").read_bytes()
    for variable in content.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == PIPES.encode() and value:
            pipes = Path(os.fsdecode(value))
            return pipes if pipes.is_absolute() else None
    return None


def failures(state: StateDirectory) -> Iterator[str]:
    """A sentence for each server of this user that accepts no clients though it has started."""
    for folder in server_folders(state):
        record = folder.record()
        if record.get("phase") in _REFUSING and folder.is_watched():
            yield f"the MPS server of {folder.gpu} accepts no client: {_obstacle(folder, record)}"


def main(arguments: Sequence[str]) -> int:
    """`STATE GPU PRIORITY [--simulate SHAPE]`: print what `join` returns, or why it does not."""
    directory, gpu, priority, *rest = arguments
    try:
        state = StateDirectory(Path(directory), parse_shape(rest[1]) if rest else None)
        sys.stdout.write(json.dumps(join(state, state.driver(), gpu, Priority(priority))))
    except AliquotError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
