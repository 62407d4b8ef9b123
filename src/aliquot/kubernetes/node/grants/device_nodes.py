"""The device nodes of NVIDIA's driver, made where they are missing.

The driver's installer leaves them to `nvidia-modprobe`, which some program must have called: on
nodes where only containers use the GPUs nobody has, and `nvidia-uvm`, whose major number is another
after each boot, is missing. The kernel says in /proc/devices which numbers its modules have.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import structlog

from aliquot.model.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Names in /proc/devices: the first that is there.
_DRIVER, _UVM = ("nvidia", "nvidia-frontend"), ("nvidia-uvm",)
_CONTROL = {"nvidiactl": (_DRIVER, 255), "nvidia-uvm": (_UVM, 0)}
# For debuggers and for graphics; some nodes do not have them.
_MORE = {"nvidia-uvm-tools": (_UVM, 1), "nvidia-modeset": (("nvidia-modeset",), 254)}
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)

_log = structlog.get_logger(__name__)


def provide_control_nodes(devices: Path, proc: Path) -> tuple[PurePosixPath, ...]:
    """The device nodes that every container gets besides those of its GPUs, made if missing.

    DriverError if one is missing and the kernel does not say its number.
    """
    majors = _majors(proc)
    for name, (modules, minor) in (_CONTROL | _MORE).items():
        _provide(devices / name, majors, modules, minor)
    for name, (modules, _) in _CONTROL.items():
        if not (devices / name).exists():
            raise DriverError(
                f"the device node {devices / name} is missing, and /proc/devices does not have its"
                f" module {modules[0]}",
                "Load the module and make the node with: nvidia-modprobe -c 0 -u",
            )
    names = (*_CONTROL, *(name for name in _MORE if (devices / name).exists()))
    return tuple(PurePosixPath("/dev") / name for name in names)


def provide_gpu_nodes(devices: Path, proc: Path) -> None:
    """Make the missing nodes of the GPUs that the kernel's module has found."""
    majors = _majors(proc)
    for minor in _minors(proc):
        _provide(devices / f"nvidia{minor}", majors, _DRIVER, minor)
    for name, (modules, minor) in _CONTROL.items():
        _provide(devices / name, majors, modules, minor)


def _provide(path: Path, majors: dict[str, int], modules: tuple[str, ...], minor: int) -> None:
    """Make a node, or make it anew if it has the number of another boot."""
    major = next((majors[name] for name in modules if name in majors), None)
    if major is None:
        return
    number = os.makedev(major, minor)
    try:
        if path.exists():
            found = path.stat()
            if not stat.S_ISCHR(found.st_mode) or found.st_rdev == number:
                return
            path.unlink()
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.chmod(0o666)  # independent of the umask
    except FileExistsError:
        return  # somebody else was faster
    except OSError as error:
        _log.warning("cannot make a device node", path=str(path), why=error.strerror)
    else:
        _log.info("made a device node", path=str(path), major=major, minor=minor)


def _majors(proc: Path) -> dict[str, int]:
    """The numbers of character devices, by module."""
    try:
        text = (proc / "devices").read_text("ascii", "replace")
    except OSError:
        return {}
    characters = text.partition("Block devices:")[0]
    found = re.findall(r"^\s*(\d+) (\S+)$", characters, re.MULTILINE)
    return {name: int(major) for major, name in found}


def _minors(proc: Path) -> Iterator[int]:
    for file in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        try:
            match = _MINOR.search(file.read_text("ascii", "replace"))
        except OSError:  # a GPU that falls off the bus
            continue
        if match:
            yield int(match[1])
