"""The directory of a pool: everything that outlives it, and how commands find it.

DIR/pool.lock         locked by the one pool that serves this directory
DIR/pool.json         the port and the token of that pool's API, readable by its user only
DIR/pool.sqlite       jobs and their history
DIR/jobs/NUMBER/      a job's slots (`slots`) and the output of its workers, rank-N.log
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from aliquot.model.errors import StateError
from aliquot.slices import StateDirectory, state_directory

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
    def endpoint(self) -> Path:
        """The file with the port and the token of the pool's API."""
        return self.path / "pool.json"

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
    home = _home()
    if state.shape is None:
        return PoolDirectory(home / "pool", state)
    return PoolDirectory(
        home / "pool" / "simulated" / f"{state.shape.model}-{state.shape.count}", state
    )


def existing() -> list[PoolDirectory]:
    """The directories of all pools that are up: this machine's first, then simulated ones."""
    found = [directory_of(state) for state in state_directory.all_directories()]
    return [one for one in dict.fromkeys(found) if one.endpoint.exists()]


def prepare(pool: PoolDirectory) -> None:
    """Create the directory, readable by its user only: it contains environments of jobs."""
    top = _home()
    inner = [pool.path, *pool.path.parents]
    for folder in reversed([one for one in inner if one == top or one.is_relative_to(top)]):
        state_directory.make_directory(folder)
    pool.path.chmod(0o700)
    state_directory.make_directory(pool.path / "jobs")


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


def _home() -> Path:
    """A directory that survives a reboot."""
    if named := state_directory.override():
        return Path(named).absolute()
    if os.geteuid() == 0:
        return _SYSTEM
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aliquot"
