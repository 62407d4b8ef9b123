"""The driver that the stand-in forwards to: the machine's own, or a simulated one.

A driver is two libraries (CUDA and NVML). A simulated driver also has environment variables that
choose the machine. A stand-in is never taken for a driver, whatever the environment says.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.devices import elf, linker
from aliquot.devices.native import CUDA, NVML, native_file
from aliquot.model.errors import DriverError, InvalidValueError, NoGpuError

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST_CUDA = (11, 7)
OLDEST_RELEASE = 515
MAX_SIMULATED = 16
STAND_IN_MARK = "aliquot_absent"  # the stand-ins export this symbol, no driver does
TRY_SIMULATED = "To try Aliquot without a GPU, add: --simulate h100:1"

# The machine's own, the one in a container of NVIDIA's GPU Operator, and that of GKE's nodes.
DRIVER_ROOTS = (Path("/"), Path("/run/nvidia/driver"), Path("/home/kubernetes/bin/nvidia"))

_SIMULATE = re.compile(r"(?P<model>[a-z0-9]+)(?::(?P<count>[1-9][0-9]?))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shape:
    """A simulated machine: `count` GPUs of `model`."""

    model: str
    count: int

    def __str__(self) -> str:
        return f"{self.model}:{self.count}"


@dataclass(frozen=True, slots=True)
class Driver:
    """The libraries of a driver; `variables` must be in the environment of its processes."""

    cuda: Path
    nvml: Path
    shape: Shape | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_compat(self) -> bool:
        """Whether CUDA's library is from one of NVIDIA's forward-compatibility packages."""
        return any("compat" in part for part in self.cuda.parent.parts)


def parse_shape(text: str) -> Shape:
    """Parse `h100:8`, or `h100` for one GPU."""
    match = _SIMULATE.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidValueError(
            f"{text!r} is not a simulated machine",
            f"Write MODEL:COUNT, for example h100:8. Models: {', '.join(models())}.",
        )
    count = int(match["count"] or 1)
    if count > MAX_SIMULATED:
        raise InvalidValueError(
            f"{text!r}: a simulated machine has at most {MAX_SIMULATED} GPUs",
            f"Write for example {match['model']}:8.",
        )
    if match["model"] not in models():
        raise InvalidValueError(
            f"{text!r}: unknown model {match['model']!r}",
            f"Models: {', '.join(models())}.",
        )
    return Shape(match["model"], count)


def models() -> tuple[str, ...]:
    """The models that can be simulated."""
    lines = native_file("sim", "shapes.conf").read_text("utf-8").splitlines()
    return tuple(line[1:].partition("]")[0] for line in lines if line.startswith("["))


def simulated_driver(shape: Shape, meeting_place: Path) -> Driver:
    """A simulated driver; all processes with the same `meeting_place` share its GPUs."""
    return Driver(
        cuda=native_file("sim", CUDA),
        nvml=native_file("sim", NVML),
        shape=shape,
        variables={"ALIQUOT_SIMULATE": str(shape), "ALIQUOT_SIMULATE_STATE": str(meeting_place)},
    )


def find_driver(environment: Mapping[str, str] | None = None) -> Driver:
    """The driver that a program started in this environment would find."""
    environment = os.environ if environment is None else environment
    cuda, nvml = (_first_real(name, environment) for name in (CUDA, NVML))
    if cuda is None and nvml is None:
        raise NoGpuError(
            f"no GPU driver found: there is no {CUDA} on this machine",
            f"Install NVIDIA's driver, R{OLDEST_RELEASE} or newer. {TRY_SIMULATED}",
        )
    if cuda is None or nvml is None:
        present, missing = (nvml, CUDA) if cuda is None else (cuda, NVML)
        raise DriverError(
            f"the driver is incomplete: {present} is here and {missing} is not",
            "Install both of the same release; in a container, start it with the capabilities"
            " compute and utility (NVIDIA_DRIVER_CAPABILITIES=compute,utility).",
        )
    return Driver(cuda=cuda, nvml=nvml)


def find_driver_root(host: Path, named: Path | None = None) -> Path:
    """Where a machine has its driver: in the folder `named`, or else in a well-known one.

    `host` is where its file system is seen.
    """
    places = DRIVER_ROOTS if named is None else (named,)
    for place in (host / place.relative_to("/") for place in places):
        if all(_first_in(place, name) for name in (CUDA, NVML)):
            return place
    raise NoGpuError(
        f"no GPU driver found in {' or '.join(map(str, places))} of {host}",
        f"Install NVIDIA's driver there, R{OLDEST_RELEASE} or newer, or say where it is."
        f" {TRY_SIMULATED}",
    )


def find_driver_in(root: Path) -> Driver:
    """The driver in a root file system, or in a folder like one (`find_driver_root`)."""
    cuda, nvml = (_first_in(root, name) for name in (CUDA, NVML))
    if cuda is None or nvml is None:
        raise NoGpuError(
            f"no GPU driver found in {root}",
            f"Install NVIDIA's driver there, R{OLDEST_RELEASE} or newer. {TRY_SIMULATED}",
        )
    return Driver(cuda=cuda, nvml=nvml)


def with_compat(driver: Driver, folder: Path) -> Driver:
    """The driver with the CUDA library of a forward-compatibility package, which is in `folder`."""
    library = folder / CUDA
    if not linker.is_for_this_machine(library) or is_stand_in(library):
        raise DriverError(
            f"{library} is not a driver library for this machine",
            "Install NVIDIA's package cuda-compat and name its folder, for example"
            " /usr/local/cuda/compat.",
        )
    return replace(driver, cuda=library)


def ambient_driver() -> Driver:
    """What a program in this environment finds, even if it is a stand-in."""
    cuda, nvml = (next(linker.find(name, os.environ), None) for name in (CUDA, NVML))
    if cuda is None or nvml is None:
        raise NoGpuError("no GPU driver found in this environment")
    return Driver(cuda=cuda, nvml=nvml)


def cuda_version(driver: Driver) -> tuple[int, int]:
    """The newest CUDA version that the driver supports, as it reports."""
    number = ctypes.c_int(0)
    try:
        code = ctypes.CDLL(str(driver.cuda)).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        raise DriverError(f"{driver.cuda} cannot be used: {error}", TRY_SIMULATED) from error
    if code != 0:
        raise DriverError(f"{driver.cuda} does not report its version: CUDA error {code}")
    return number.value // 1000, number.value % 1000 // 10


def check_version(driver: Driver) -> tuple[int, int]:
    """The CUDA version; DriverError if it is too old for Aliquot."""
    version = cuda_version(driver)
    if version < OLDEST_CUDA:
        raise DriverError(
            f"the driver is too old: {driver.cuda.resolve()} supports CUDA {_dotted(version)},"
            f" and Aliquot needs {_dotted(OLDEST_CUDA)}",
            f"Install release R{OLDEST_RELEASE} or newer.",
        )
    return version


def is_stand_in(path: Path) -> bool:
    """Whether a library is one of Aliquot's stand-ins."""
    try:
        return STAND_IN_MARK in elf.read_file(path).exported()
    except (OSError, elf.ElfError):
        return False


def _first_real(name: str, environment: Mapping[str, str]) -> Path | None:
    found = (path for path in linker.find(name, environment) if not is_stand_in(path))
    return next(found, None)


def _first_in(root: Path, name: str) -> Path | None:
    return next((path for path in linker.find_in(root, name) if not is_stand_in(path)), None)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
