"""The folder that a tenant's linker finds first: stand-ins under every name a program uses.

One folder per driver file and stand-in build, made once and then only read; each is made beside its
place and renamed into it, so that no one sees half of one. Where a stand-in fits the driver as it
is, the folder has a link to it.
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
from aliquot.slices import state
from aliquot.slices.fit import Fitted, fit

if TYPE_CHECKING:
    from aliquot.devices import Driver

_FORM = b"1"  # of the folder; another one is another folder
_DRIVER = "driver"
_NAMES = {CUDA: "libcuda.so", NVML: "libnvidia-ml.so"}


def prepare_library(driver: Driver) -> Path:
    """The folder of stand-ins for that driver."""
    folder = home() / _key(driver)
    if any(character in str(folder) for character in " :;"):
        raise StateError(
            f"the dynamic linker cannot be pointed to {folder}",
            f"Set {state.OVERRIDE} to a folder of your own, without spaces or colons.",
        )
    if not _is_whole(folder):
        _make(folder, driver)
    return folder


def driver_directory(folder: Path, driver: Driver) -> Path:
    """A folder with the driver's own two libraries: theirs, or links beside the stand-ins."""
    together = driver.cuda.parent == driver.nvml.parent
    return driver.cuda.parent if together else folder / _DRIVER


def fit_to(driver: Driver) -> dict[str, Fitted]:
    """Each stand-in, fitted to that driver."""
    return {name: _fit_one(name, path) for name, path in ((CUDA, driver.cuda), (NVML, driver.nvml))}


def home() -> Path:
    """Where the folders are kept.

    In our state directory; or, if nothing may run from there (Debian mounts /run so), our cache.
    """
    for directory in (state.own_directory(), _cache()):
        with suppress(StateError):
            state.make_directory(directory)
            folder = directory / "library"
            state.make_directory(folder)
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                return folder
    raise StateError("no folder to keep a library in", state.choose_another())


def _cache() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/aliquot")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aliquot"


def _key(driver: Driver) -> str:
    digest = hashlib.sha256(_FORM)
    for path in (driver.cuda, driver.nvml):
        found = path.stat()
        identity = (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        digest.update(repr(identity).encode())
    for name in _NAMES:
        stand_in = native_file("lib", name)
        digest.update(str(stand_in).encode() + stand_in.read_bytes())
    return digest.hexdigest()[:16]


def _is_whole(folder: Path) -> bool:
    names = [*_NAMES, *_NAMES.values(), *(f"{_DRIVER}/{name}" for name in _NAMES)]
    return all((folder / name).is_file() for name in names)


def _make(folder: Path, driver: Driver) -> None:
    fitted = fit_to(driver)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as name:
            new = Path(name) / folder.name
            new.mkdir(mode=0o755)
            _fill(new, driver, fitted)
            if folder.exists() and not _is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(FileExistsError):
                _rename(new, folder)
    except OSError as error:
        raise StateError(
            f"the folder {folder} cannot be made: {error.strerror}", state.choose_another()
        ) from error


def _fill(new: Path, driver: Driver, fitted: dict[str, Fitted]) -> None:
    for name, short_name in _NAMES.items():
        data = fitted[name].data
        if data is None:
            (new / name).symlink_to(native_file("lib", name))
        else:
            (new / name).write_bytes(data)
            (new / name).chmod(0o755)
        (new / short_name).symlink_to(name)
    (new / _DRIVER).mkdir()
    (new / _DRIVER / CUDA).symlink_to(driver.cuda)
    (new / _DRIVER / NVML).symlink_to(driver.nvml)


def _rename(new: Path, folder: Path) -> None:
    try:
        new.rename(folder)
    except OSError:
        if not _is_whole(folder):
            raise
        # Someone was quicker: theirs is the same.


def _fit_one(name: str, driver_library: Path) -> Fitted:
    try:
        return fit(native_file("lib", name).read_bytes(), elf.read_file(driver_library))
    except elf.ElfError as error:
        raise DriverError(f"{driver_library} cannot be read: {error}") from error
