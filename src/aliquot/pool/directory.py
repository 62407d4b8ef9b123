"""The directory of a pool: everything that outlives it, and how commands find it.

DIR/pool.lock         locked by the one pool that serves this directory
DIR/pool.sqlite       jobs and their history
DIR/jobs/NUMBER/      a job's slots (`slots`) and the output of its workers, rank-N.log
DIR/index/UID         which jobs a user has, for reading their output without the pool (`index`)
STATE/pool/runs       where `aliquot run` asks for grants and waits for them (`runs`)
STATE/pool/socket     the pool's API; STATE is the arbiter's state directory

Root's pool is shared: it is in /var/lib/aliquot/pool, all users reach its socket, which is
/run/aliquot/pool/socket, and their commands find it while it serves. Every other user's pool is
that user's own: nobody else reaches its directory or its socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model.errors import StateError
from aliquot.slices import StateDirectory, state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSTEM = Path("/var/lib/aliquot")


@dataclass(frozen=True, slots=True)
class PoolDirectory:
    """The directory of one pool, of this machine or of a simulated one."""

    path: Path
    state: StateDirectory

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "pool.sqlite"

    @property
    def shared(self) -> bool:
        """Whether the pool is root's, and so for all users."""
        return os.geteuid() == 0 or state_directory.belongs_to_root(self.state.directory)

    @property
    def is_system(self) -> bool:
        """Whether the pool is root's, of this machine itself."""
        return self.state == StateDirectory(state_directory.SYSTEM)

    @property
    def socket(self) -> Path:
        """The socket of the pool's API."""
        return self.state.directory / "pool" / "socket"

    @property
    def runs(self) -> Path:
        """The socket for `aliquot run` (`runs`)."""
        return self.state.directory / "pool" / "runs"

    def job(self, number: int) -> Path:
        """A job's folder."""
        return self.path / "jobs" / str(number)

    def log(self, number: int, rank: int) -> Path:
        """The output of the workers of a rank."""
        return self.job(number) / f"rank-{rank}.log"

    def __str__(self) -> str:
        return f"simulated {self.state.shape}" if self.state.shape else "this machine"


def directory_of(state: StateDirectory) -> PoolDirectory:
    """The directory of that machine's pool; it need not exist."""
    home = _home(state)
    if state.shape is None:
        return PoolDirectory(home / "pool", state)
    return PoolDirectory(
        home / "pool" / "simulated" / f"{state.shape.model}-{state.shape.count}", state
    )


def on_disk() -> list[PoolDirectory]:
    """The directories of all pools that have been up, also before a reboot: root's first."""
    own = state_directory.own_directory()
    machines = [own] if state_directory.override() else [state_directory.SYSTEM, own]
    found = []
    for machine in dict.fromkeys(machines):
        top = directory_of(StateDirectory(machine)).path
        for one in state_directory.with_simulated(top):  # pools are in such folders too
            inner = machine / one.directory.relative_to(top)
            found.append(PoolDirectory(one.directory, StateDirectory(inner, one.shape)))
    return [one for one in found if _is_trusted(one.path)]


def _is_trusted(folder: Path) -> bool:
    """Whether only root or this user can write to a folder."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
    return private and found.st_uid in {0, os.geteuid()}


def with_socket() -> list[PoolDirectory]:
    """The directories of all pools that are or were up: root's first, then this user's."""
    found = [directory_of(state) for state in state_directory.all_directories()]
    return [one for one in dict.fromkeys(found) if one.socket.exists()]


def prepare(pool: PoolDirectory) -> None:
    """Create the directory. Only its user can list it: it contains environments of jobs.

    Users of a shared pool pass through it, to the files of their own jobs.
    """
    top = _home(pool.state)
    inner = [pool.path, *pool.path.parents]
    for folder in reversed([one for one in inner if one == top or one.is_relative_to(top)]):
        state_directory.make_directory(folder)
    state_directory.make_directory(pool.path / "jobs")
    state_directory.prepare(pool.state)
    state_directory.make_directory(pool.socket.parent)
    for folder in (pool.path, pool.path / "jobs"):
        folder.chmod(0o711 if pool.shared else 0o700)


@contextmanager
def folder_of(path: Path) -> Iterator[str]:
    """A short path of a socket's folder: a socket path has only 107 bytes."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def bind_socket(server: socket.socket, path: Path, mode: int) -> None:
    """Bind to a name of this process, and rename it when its mode is right."""
    with folder_of(path) as folder:
        temporary = Path(folder) / f".{path.name}-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        server.bind(str(temporary))
        temporary.chmod(mode)
        temporary.rename(temporary.with_name(path.name))


def lock_directory(pool: PoolDirectory) -> int:
    """Lock the directory for this process; returns the open file, which must stay open."""
    handle = os.open(pool.path / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StateError(
            f"a pool of {pool} is already up, in {pool.path}",
            "See its jobs with: aliquot jobs",
        ) from error
    return handle


def _home(state: StateDirectory) -> Path:
    """A directory that survives a reboot: root's for root's pools, else this user's."""
    own = state_directory.own_directory()
    if state_directory.override() and own != state_directory.SYSTEM:
        return own
    if os.geteuid() == 0 or state.directory.is_relative_to(state_directory.SYSTEM):
        return _SYSTEM
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aliquot"
