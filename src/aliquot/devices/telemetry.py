"""What a GPU does now: utilisation, power, temperature and clock, as NVML reports them.

NVML is called through ctypes here, since nvidia-ml-py serves only one driver in a process, and one
command may show this machine and a simulated one; of further simulated machines there are no
figures. A figure that NVML does not have is None.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aliquot.devices.driver import Driver

_UUID_SIZE = 96
_SM_CLOCK = 1
_GPU_SENSOR = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The figures of one GPU; None: the driver does not say."""

    busy_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    celsius: int | None = None
    clock_mhz: int | None = None


@dataclass(slots=True)
class Sensors:
    """Reads the GPUs of drivers. A session with a driver stays open for the next reading."""

    _open: dict[Path, tuple[ctypes.CDLL, dict[str, str]]] = field(default_factory=dict)

    def read(self, driver: Driver) -> dict[str, Telemetry]:
        """The figures of each GPU, by UUID; empty if the driver does not answer."""
        try:
            nvml = self._session(driver)
            return {} if nvml is None else dict(_read_all(nvml))
        except (OSError, AttributeError):  # no such library, or an older one
            return {}

    def _session(self, driver: Driver) -> ctypes.CDLL | None:
        """None: the driver does not answer, or serves another simulated machine here already."""
        variables = dict(driver.variables)
        if driver.nvml in self._open:
            nvml, given = self._open[driver.nvml]
            return nvml if given == variables else None
        os.environ.update(variables)
        nvml = ctypes.CDLL(str(driver.nvml))
        if nvml.nvmlInit_v2() != 0:
            return None
        self._open[driver.nvml] = nvml, variables
        return nvml


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _read_all(nvml: ctypes.CDLL) -> Iterator[tuple[str, Telemetry]]:
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return
    for index in range(count.value):
        device = ctypes.c_void_p()
        uuid = ctypes.create_string_buffer(_UUID_SIZE)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
            continue
        if nvml.nvmlDeviceGetUUID(device, uuid, _UUID_SIZE) == 0:
            yield uuid.value.decode("ascii", "replace"), _read(nvml, device)


def _read(nvml: ctypes.CDLL, device: ctypes.c_void_p) -> Telemetry:
    use = _Utilization()
    is_known = nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use)) == 0
    power = _number(nvml, "nvmlDeviceGetPowerUsage", device)
    limit = _number(nvml, "nvmlDeviceGetEnforcedPowerLimit", device)
    return Telemetry(
        busy_ratio=use.gpu / 100 if is_known else None,
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        celsius=_number(nvml, "nvmlDeviceGetTemperature", device, _GPU_SENSOR),
        clock_mhz=_number(nvml, "nvmlDeviceGetClockInfo", device, _SM_CLOCK),
    )


def _number(nvml: ctypes.CDLL, function: str, device: ctypes.c_void_p, *which: int) -> int | None:
    value = ctypes.c_uint()
    failed = getattr(nvml, function)(device, *which, ctypes.byref(value))
    return None if failed else value.value
