"""Which driver is installed now: the versions of its libraries and of the kernel module.

A driver is updated in two steps. The package replaces the libraries; the kernel has the new module
when the old one could be unloaded, which no process must use, or after a restart of the machine. In
between, programs that use a GPU go on, and none can begin to: libraries and module must be of one
version. A process that has loaded the old libraries keeps them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aliquot.devices.driver import Driver

MODULE = Path("/sys/module/nvidia/version")
NOT_LOADED = "none"  # a simulated module

_VERSION = re.compile(r"\.so\.(?P<version>\d+(\.\d+)+)$")


@dataclass(frozen=True, slots=True)
class InstalledDriver:
    """Versions, empty if unknown. `files` identifies the two libraries; empty: one is missing."""

    library: str
    module: str
    files: tuple[object, ...]

    @property
    def problem(self) -> str:
        """Why no program can begin to use it; empty if nothing is known to be wrong."""
        if not self.files:
            return "the driver's libraries are missing"
        if self.module == NOT_LOADED:
            return "the driver's kernel module is not loaded"
        if self.library and self.module and self.library != self.module:
            return (
                f"the driver's libraries have version {self.library} and its kernel module has"
                f" {self.module}: no program can start to use a GPU until the module is loaded"
                " anew, or the node is restarted"
            )
        return ""

    def __str__(self) -> str:
        return f"version {self.library}" if self.library else "another"


def read_installed(driver: Driver) -> InstalledDriver:
    """The driver that is now where this one was found."""
    if driver.shape is not None:
        return _read_simulated(Path(driver.variables["ALIQUOT_SIMULATE_STATE"]) / "driver")
    module = ""
    with suppress(OSError):
        module = MODULE.read_text("ascii", "replace").strip()
    try:
        paths = [path.resolve(strict=True) for path in (driver.cuda, driver.nvml)]
        files = tuple(_identity(path) for path in paths)
    except OSError:
        return InstalledDriver("", module, ())
    found = _VERSION.search(paths[1].name)
    return InstalledDriver(found["version"] if found else "", module, files)


def _identity(path: Path) -> tuple[object, ...]:
    found = path.stat()
    return (str(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read_simulated(file: Path) -> InstalledDriver:
    """The versions of a simulated driver (native/sim/machine/driver.h)."""
    try:
        lines = file.read_text("ascii", "replace").splitlines()
    except OSError:
        return InstalledDriver("", "", ("simulated",))
    versions = dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)
    return InstalledDriver(
        versions.get("library", ""), versions.get("module", ""), ("simulated", *lines)
    )
