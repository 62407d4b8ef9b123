"""Where everything that is shared between the programs of one machine lies.

One state directory belongs to one arbiter. Root's is /run/aliquot, and everybody uses it while an
arbiter answers there; otherwise each user has one of their own. A simulated machine has one of its
own inside the user's, and the folder where its processes meet inside that:

    DIR/                          the machine's own GPUs
    DIR/library/KEY/              stand-ins fitted to a driver (library.py)
    DIR/simulated/MODEL-COUNT/    a simulated machine's

A directory is used only if it belongs to its user and nobody else may write to it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import Driver, Shape, find_driver, simulated_driver
from aliquot.model.errors import StateError
from aliquot.slices import control

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM = Path("/run/aliquot")
OVERRIDE = "ALIQUOT_STATE"
_GRANTS = "grants"
_SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class State:
    """A state directory, of this machine or of a simulated one."""

    directory: Path
    shape: Shape | None = None

    @property
    def meeting_place(self) -> Path:
        """Where the processes of a simulated machine meet."""
        return self.directory / "machine"

    @property
    def grants(self) -> list[str]:
        """The names of the grants on disk, whether or not an arbiter runs."""
        try:
            found = [folder.name for folder in (self.directory / _GRANTS).iterdir()]
        except OSError:
            return []
        return sorted(name for name in found if not name.startswith("."))  # those are half made

    def driver(self) -> Driver:
        """The driver whose GPUs this state is about."""
        if self.shape is None:
            return find_driver()
        return simulated_driver(self.shape, self.meeting_place)


def locate(shape: Shape | None) -> State:
    """The state directory to use now; it need not exist."""
    if shape is not None:
        name = f"{shape.model}-{shape.count}"
        return State(own_directory() / _SIMULATED / name, shape)
    if not override() and control.answers(SYSTEM):
        return State(SYSTEM)
    return State(own_directory())


def override() -> str | None:
    """The state directory that the environment names, if it does."""
    return os.environ.get(OVERRIDE) or None


def choose_another() -> str:
    """The way out of a state directory that is no good."""
    if named := override():
        return f"{OVERRIDE} is {named}: set it to a folder of your own."
    return f"Set {OVERRIDE} to a folder of your own."


def own_directory() -> Path:
    """This user's own state directory."""
    if named := override():
        return Path(named).absolute()
    if os.geteuid() == 0:
        return SYSTEM
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "aliquot"
    return Path(f"/tmp/aliquot-{os.geteuid()}")  # noqa: S108 - checked by prepare to be ours


def known() -> Iterator[State]:
    """Every state directory that we can see, of this machine and of simulated ones."""
    own = own_directory()
    if override():
        make_directory(own)  # a name that somebody wrote is checked before nothing is found there
    for directory in dict.fromkeys((own,) if override() else (SYSTEM, own)):
        yield from _below(directory)


def prepare(state: State) -> None:
    """Make the directory, if it is not there, and check that it is ours alone."""
    own = own_directory()
    if state.directory == SYSTEM != own:
        return  # root's, and its arbiter answers
    inner = [state.directory.parent, state.directory, state.meeting_place]
    for directory in [own, *(inner if state.shape else [])]:
        make_directory(directory)


def make_directory(directory: Path) -> None:
    """Make one folder that only its user can change."""
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        if not directory.parent.is_dir():
            directory.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=mode)
            directory.chmod(mode)  # whatever the umask says
        found = directory.lstat()
    except OSError as error:
        raise StateError(
            f"the folder {directory} cannot be made: {error.strerror}", choose_another()
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StateError(f"{directory} is not a folder of this user", choose_another())
    if found.st_mode & 0o022:
        raise StateError(
            f"others may write to {directory}",
            f"Mend it with: chmod go-w {directory}\n  Or: {choose_another()}",
        )


def _below(directory: Path) -> Iterator[State]:
    yield State(directory)
    try:
        found = sorted((directory / _SIMULATED).iterdir())
    except OSError:
        return
    for folder in found:
        model, _, count = folder.name.rpartition("-")
        if model and count.isdecimal():
            yield State(folder, Shape(model, int(count)))
