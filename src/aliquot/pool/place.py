"""Where a pool keeps what must outlive it, and how it is found.

DIR/pool.lock         held by the one pool that serves this directory
DIR/pool.json         where that pool listens, and the token that opens it; its user's alone
DIR/pool.sqlite       jobs and what became of them
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
class Place:
    """The folder of one pool, of this machine or of a simulated one."""

    directory: Path
    state: StateDirectory

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.directory / "pool.sqlite"

    @property
    def door(self) -> Path:
        """The file that says where the pool listens."""
        return self.directory / "pool.json"

    def job(self, number: int) -> Path:
        """A job's folder."""
        return self.directory / "jobs" / str(number)

    def log(self, number: int, rank: int) -> Path:
        """What the workers of that rank have written."""
        return self.job(number) / f"rank-{rank}.log"

    def __str__(self) -> str:
        return f"simulated {self.state.shape}" if self.state.shape else "this machine"


def place_of(state: StateDirectory) -> Place:
    """The pool's folder for that machine; it need not exist."""
    home = _home()
    if state.shape is None:
        return Place(home / "pool", state)
    return Place(home / "pool" / "simulated" / f"{state.shape.model}-{state.shape.count}", state)


def known() -> list[Place]:
    """Every pool's folder that there is: this machine's, then those of simulated ones."""
    places = [place_of(state) for state in state_directory.all_directories()]
    return [place for place in dict.fromkeys(places) if place.door.exists()]


def prepare(place: Place) -> None:
    """Make the folder, for its user's eyes alone: environments are kept in it."""
    top = _home()
    inner = [place.directory, *place.directory.parents]
    for folder in reversed([one for one in inner if one == top or one.is_relative_to(top)]):
        state_directory.make_directory(folder)
    place.directory.chmod(0o700)
    state_directory.make_directory(place.directory / "jobs")


def lock(place: Place) -> int:
    """Be the one pool of this folder; an open file, to be kept."""
    handle = os.open(place.directory / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StateError(
            f"a pool of {place} is up already, in {place.directory}",
            "See its jobs with: aliquot jobs",
        ) from error
    return handle


def _home() -> Path:
    """A folder that outlives a restart of the machine."""
    if named := state_directory.override():
        return Path(named).absolute()
    if os.geteuid() == 0:
        return _SYSTEM
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aliquot"
