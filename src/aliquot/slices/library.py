"""The folder that a tenant's linker finds first: stand-ins under every name that programs use.

There is one folder per driver and build of the stand-ins. It is made once and then only read. It is
made under another name and renamed when complete, so that nobody sees an incomplete one.

    KEY/lib/      the stand-ins, fitted to the driver: files, and links from one name to another
    KEY/driver/   the driver's own two libraries: links to them, or a simulated driver's files

`lib` can be mounted into a container: it has no links to the outside. So can a simulated `driver`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import CUDA, NVML, elf, native_file
from aliquot.model.errors import DriverError, StateError
from aliquot.slices import state_directory
from aliquot.slices.stand_in_symbols import FittedStandIn, fit_symbols

if TYPE_CHECKING:
    from aliquot.devices import Driver

_FORMAT = b"2"  # of the folder; part of its key
_LIBRARY, _DRIVER = "lib", "driver"
_SHAPES = "shapes.conf"  # a simulated driver reads it from its own folder
_NAMES = {CUDA: "libcuda.so", NVML: "libnvidia-ml.so"}


def prepare_library(driver: Driver, where: Path | None = None) -> Path:
    """The folder of stand-ins for that driver, in `where` or else in `home()`."""
    folder = (where or home()) / _key(driver)
    if any(character in str(folder) for character in " :;"):
        raise StateError(
            f"the dynamic linker cannot use the path {folder}",
            f"Set {state_directory.OVERRIDE} to a path without space, colon or semicolon.",
        )
    if not _is_complete(folder):
        _make(folder, driver)
    return folder / _LIBRARY


def driver_directory(library: Path, driver: Driver) -> Path:
    """A folder with both libraries of the driver: its own, or the one next to the stand-ins."""
    together = driver.cuda.parent == driver.nvml.parent
    return driver.cuda.parent if together else prepared_driver(library)


def prepared_driver(library: Path) -> Path:
    """The folder with both libraries of the driver that `prepare_library` has made."""
    return library.parent / _DRIVER


def fit_to(driver: Driver) -> dict[str, FittedStandIn]:
    """Both stand-ins, fitted to that driver."""
    return {name: _fit_one(name, path) for name, path in ((CUDA, driver.cuda), (NVML, driver.nvml))}


def home() -> Path:
    """Where the folders are: in this user's state directory.

    If that is mounted noexec, as Debian mounts /run, they are in this user's cache.
    """
    for directory in (state_directory.own_directory(), _cache()):
        with suppress(StateError):
            state_directory.make_directory(directory)
            folder = directory / "library"
            state_directory.make_directory(folder)
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                return folder
    raise StateError(
        "no folder for the stand-in libraries can be used", state_directory.choose_another()
    )


def _cache() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/aliquot")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aliquot"


def _key(driver: Driver) -> str:
    digest = hashlib.sha256(_FORMAT)
    for path in (driver.cuda, driver.nvml):
        found = path.stat()
        identity = (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        digest.update(repr(identity).encode())
    for name in _NAMES:
        stand_in = native_file("lib", name)
        digest.update(str(stand_in).encode() + stand_in.read_bytes())
    return digest.hexdigest()[:16]


def _is_complete(folder: Path) -> bool:
    stand_ins = (folder / _LIBRARY / name for name in [*_NAMES, *_NAMES.values()])
    return all(_has_data(path) for path in [*stand_ins, *(folder / _DRIVER / n for n in _NAMES)])


def _has_data(file: Path) -> bool:
    """Whether it is a file with content: a power failure can leave an empty one."""
    return file.is_file() and file.stat().st_size > 0


def _make(folder: Path, driver: Driver) -> None:
    fitted = fit_to(driver)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as name:
            new = Path(name) / folder.name
            _fill(new, driver, fitted)
            if folder.exists() and not _is_complete(folder):
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(FileExistsError):
                _rename(new, folder)
    except OSError as error:
        raise StateError(
            f"the folder {folder} cannot be created: {error.strerror}",
            state_directory.choose_another(),
        ) from error


def _fill(new: Path, driver: Driver, fitted: dict[str, FittedStandIn]) -> None:
    for folder in (new, new / _LIBRARY, new / _DRIVER):
        folder.mkdir()
        folder.chmod(0o755)  # independent of the umask
    for name, short_name in _NAMES.items():
        file = new / _LIBRARY / name
        file.write_bytes(fitted[name].data or native_file("lib", name).read_bytes())
        file.chmod(0o755)
        with file.open("rb") as data:
            os.fsync(data.fileno())  # before the folder has its name, and counts as complete
        file.with_name(short_name).symlink_to(name)
    if driver.shape is None:
        (new / _DRIVER / CUDA).symlink_to(driver.cuda)
        (new / _DRIVER / NVML).symlink_to(driver.nvml)
    else:
        for source in (driver.cuda, driver.nvml, driver.cuda.with_name(_SHAPES)):
            shutil.copyfile(source, new / _DRIVER / source.name)
            (new / _DRIVER / source.name).chmod(0o755)


def _rename(new: Path, folder: Path) -> None:
    try:
        new.rename(folder)
    except OSError:
        if not _is_complete(folder):
            raise
        # Another process was faster: its folder is the same.


def _fit_one(name: str, driver_library: Path) -> FittedStandIn:
    try:
        return fit_symbols(native_file("lib", name).read_bytes(), elf.read_file(driver_library))
    except elf.ElfError as error:
        raise DriverError(f"{driver_library} cannot be read: {error}") from error
