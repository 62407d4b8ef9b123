"""State directories: where the files of an arbiter are.

Each arbiter has one state directory. Root's is /run/aliquot, and all users use it while an arbiter
runs there. Otherwise each user has a separate one. A simulated machine has its own inside the
user's, with a folder that its processes share:

    DIR/                          the machine's own GPUs
    DIR/library/KEY/              stand-ins fitted to a driver (library.py)
    DIR/simulated/MODEL-COUNT/    a simulated machine's

A directory is used only if it belongs to this user or to root, and nobody else can write to it.
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
GRANTS = "grants"
KEPT = "kept"  # grants of containers: nobody else passes through this folder
_SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """The state directory of this machine, or of a simulated one."""

    directory: Path
    shape: Shape | None = None

    @property
    def meeting_place(self) -> Path:
        """The folder that the processes of a simulated machine share."""
        return self.directory / "machine"

    @property
    def grants(self) -> list[str]:
        """The folders of the grants on disk, whether or not an arbiter runs."""
        found = [name for folder in (GRANTS, KEPT) for name in _names(self.directory / folder)]
        return sorted(name for name in found if not name.startswith("."))  # those are incomplete

    def driver(self) -> Driver:
        """The driver of this machine, or of the simulated one."""
        if self.shape is None:
            return find_driver()
        return simulated_driver(self.shape, self.meeting_place)


def _names(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except OSError:
        return []


def locate(shape: Shape | None) -> StateDirectory:
    """The state directory to use now; it may not exist yet."""
    if shape is not None:
        name = f"{shape.model}-{shape.count}"
        return StateDirectory(own_directory() / _SIMULATED / name, shape)
    if not override() and control.answers(SYSTEM):
        return StateDirectory(SYSTEM)
    return StateDirectory(own_directory())


def override() -> str | None:
    """The state directory that the environment names, or None."""
    return os.environ.get(OVERRIDE) or None


def choose_another() -> str:
    """The hint for a state directory that cannot be used."""
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


def all_directories() -> Iterator[StateDirectory]:
    """Every state directory that this user can see, also those of simulated machines."""
    own = own_directory()
    if override() and not belongs_to_root(own):
        make_directory(own)  # an invalid override is an error, not an empty result
    for directory in dict.fromkeys((own,) if override() else (SYSTEM, own)):
        yield from with_simulated(directory)


def belongs_to_root(directory: Path) -> bool:
    """Whether a directory is root's, and this process another user's."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
    return os.geteuid() != 0 == found.st_uid and private


def prepare(state: StateDirectory) -> None:
    """Create the directory if needed, and check that only this user can write to it."""
    own = own_directory()
    if belongs_to_root(state.directory):
        return  # root's arbiter runs there
    inner = [state.directory.parent, state.directory, state.meeting_place]
    for directory in [own, *(inner if state.shape else [])]:
        make_directory(directory)


def make_directory(directory: Path) -> None:
    """Create a folder that only this user can write to."""
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        if not directory.parent.is_dir():
            directory.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=mode)
            directory.chmod(mode)  # independent of the umask
        found = directory.lstat()
    except OSError as error:
        raise StateError(
            f"the folder {directory} cannot be created: {error.strerror}", choose_another()
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StateError(f"{directory} is not a folder that belongs to this user", choose_another())
    if found.st_mode & 0o022:
        raise StateError(
            f"other users can write to {directory}",
            f"Fix it with: chmod go-w {directory}\n  Or: {choose_another()}",
        )


def is_private(found: os.stat_result) -> bool:
    """Whether it is a folder of this user, and nobody else can write to it; of `lstat`."""
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not (found.st_mode & 0o022)
    )


def with_simulated(directory: Path) -> Iterator[StateDirectory]:
    """The state directory of a machine, and those of simulated machines inside it."""
    yield StateDirectory(directory)
    try:
        found = sorted((directory / _SIMULATED).iterdir())
    except OSError:
        return
    for folder in found:
        model, _, count = folder.name.rpartition("-")
        if model and count.isdecimal():
            yield StateDirectory(folder, Shape(model, int(count)))
