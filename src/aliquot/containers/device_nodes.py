"""The device nodes of NVIDIA's driver, made where they are missing.

The driver's installer leaves them to `nvidia-modprobe`, which some program must have called: on
nodes where only containers use the GPUs nobody has, and `nvidia-uvm`, whose major number is another
after each boot, is missing. The kernel says in /proc/devices which numbers its modules have, and in
/proc/driver/nvidia/params which owner and mode nodes get, and whether to make any: options of the
module, which `nvidia-modprobe` obeys too.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from aliquot.model.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Names in /proc/devices: the first that is there.
_DRIVER, _UVM = ("nvidia", "nvidia-frontend"), ("nvidia-uvm",)
_CONTROL = {"nvidiactl": (_DRIVER, 255), "nvidia-uvm": (_UVM, 0)}
# For debuggers and for graphics; some nodes do not have them.
_MORE = {"nvidia-uvm-tools": (_UVM, 1), "nvidia-modeset": (("nvidia-modeset",), 254)}
_PARAM = re.compile(r"^(\w+): (\d+)$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What the options of the kernel's module say about device nodes; else its defaults.

    `make`: programs may make nodes. An administrator who makes them by other rules says no.
    """

    owner: int = 0
    group: int = 0
    mode: int = 0o666
    make: bool = True

    @classmethod
    def read(cls, proc: Path) -> _Rules:
        try:
            text = (proc / "driver/nvidia/params").read_text("ascii", "replace")
        except OSError:
            return cls()
        found = {name: int(value) for name, value in _PARAM.findall(text)}
        return cls(
            found.get("DeviceFileUID", cls().owner),
            found.get("DeviceFileGID", cls().group),
            found.get("DeviceFileMode", cls().mode) & 0o777,
            found.get("ModifyDeviceFiles", 1) == 1,
        )


def provide_control_nodes(devices: Path, proc: Path) -> tuple[PurePosixPath, ...]:
    """The device nodes that every container gets besides those of its GPUs, made if missing.

    DriverError if one is missing and cannot be made.
    """
    majors, rules = _majors(proc), _Rules.read(proc)
    for name, (modules, minor) in (_CONTROL | _MORE).items():
        _provide(devices / name, majors, modules, minor, rules)
    for name, (modules, _) in _CONTROL.items():
        if (devices / name).exists():
            continue
        if not rules.make and any(module in majors for module in modules):
            raise DriverError(
                f"the device node {devices / name} is missing, and the driver's option"
                " ModifyDeviceFiles=0 forbids to make it",
                "Make the node where the node's other device nodes are made, or load the driver"
                " without that option.",
            )
        raise DriverError(
            f"the device node {devices / name} is missing, and /proc/devices does not have its"
            f" module {modules[0]}",
            "Load the module and make the node with: nvidia-modprobe -c 0 -u",
        )
    names = (*_CONTROL, *(name for name in _MORE if (devices / name).exists()))
    return tuple(PurePosixPath("/dev") / name for name in names)


def provide_gpu_nodes(devices: Path, proc: Path) -> None:
    """Make the missing nodes of the GPUs that the kernel's module has found."""
    majors, rules = _majors(proc), _Rules.read(proc)
    for minor in _minors(proc):
        _provide(devices / f"nvidia{minor}", majors, _DRIVER, minor, rules)
    for name, (modules, minor) in _CONTROL.items():
        _provide(devices / name, majors, modules, minor, rules)


def _provide(
    path: Path, majors: dict[str, int], modules: tuple[str, ...], minor: int, rules: _Rules
) -> None:
    """Make a node, or make it anew if it has the number of another boot."""
    major = next((majors[name] for name in modules if name in majors), None)
    if major is None or not rules.make:
        return
    number = os.makedev(major, minor)
    try:
        if path.exists():
            found = path.stat()
            if not stat.S_ISCHR(found.st_mode) or found.st_rdev == number:
                return
        # It appears with its mode: an agent that is killed leaves no node that nobody may open.
        new = path.with_name(f".{path.name}.aliquot")
        new.unlink(missing_ok=True)
        os.mknod(new, stat.S_IFCHR, number)
        os.chown(new, rules.owner, rules.group)
        new.chmod(rules.mode)
        new.rename(path)
    except OSError as error:
        _log.warning("cannot make the device node %s: %s", path, error.strerror)
    else:
        _log.info("made the device node %s (%d, %d)", path, major, minor)


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
