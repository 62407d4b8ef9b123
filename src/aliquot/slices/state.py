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
CHOOSE_ANOTHER = f"Set {OVERRIDE} to a folder of your own."

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
    if OVERRIDE not in os.environ and control.answers(SYSTEM):
        return State(SYSTEM)
    return State(own_directory())


def own_directory() -> Path:
    """This user's own state directory."""
    if override := os.environ.get(OVERRIDE):
        return Path(override).absolute()
    if os.geteuid() == 0:
        return SYSTEM
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "aliquot"
    return Path(f"/tmp/aliquot-{os.geteuid()}")  # noqa: S108 - checked by prepare to be ours


def with_arbiter() -> Iterator[State]:
    """Every state directory of this machine that we can see and in which an arbiter answers."""
    own = own_directory()
    for directory in dict.fromkeys((own,) if OVERRIDE in os.environ else (SYSTEM, own)):
        yield from (state for state in _below(directory) if control.answers(state.directory))


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
            f"the folder {directory} cannot be made: {error.strerror}", CHOOSE_ANOTHER
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StateError(f"{directory} is not a folder of this user", CHOOSE_ANOTHER)
    if found.st_mode & 0o022:
        raise StateError(
            f"others may write to {directory}", f"Mend it with: chmod go-w {directory}"
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
