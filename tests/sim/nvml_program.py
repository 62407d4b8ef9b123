"""The program of test_nvml.py: nvidia-ml-py on the simulated NVML, one call a line."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from sim.program import serve

MIB = 1 << 20

kept: dict[str, Any] = {}
watched: dict[int, int] = {}  # indexes by handle


def call(name: str, *arguments: Any) -> Any:
    """An NVML function by its name; its result, or "error CODE"."""
    try:
        return _plain(getattr(pynvml, name)(*arguments))
    except pynvml.NVMLError as error:
        return f"error {error.value}"


def of(index: int | str, name: str, *arguments: Any) -> Any:
    """The same for a device, by its index or UUID; "#INDEX" as an argument is another device."""
    handles = [_device(a) if isinstance(a, str) and a.startswith("#") else a for a in arguments]
    return call(name, _device(f"#{index}"), *handles)


def make(name: str, index: int, profile: int, start: int | None = None) -> Any:
    """Make a GPU instance, known by this name from then on; its id and memory slices."""
    device = _device(f"#{index}")
    size = {19: 1, 20: 1, 15: 2, 14: 2, 9: 4, 5: 4, 0: 8}[profile]
    try:
        if start is None:
            kept[name] = pynvml.nvmlDeviceCreateGpuInstance(device, profile)
        else:
            place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
            kept[name] = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                device, profile, ctypes.byref(place)
            )
    except pynvml.NVMLError as error:
        return f"error {error.value}"
    info = pynvml.nvmlGpuInstanceGetInfo(kept[name])
    return [info.id, info.placement.start, info.placement.size]


def divide(name: str, compute: str, slices: int) -> Any:
    """Make a compute instance of so many slices in an instance; the UUID of its MIG device."""
    profile = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]
    try:
        kept[compute] = pynvml.nvmlGpuInstanceCreateComputeInstance(kept[name], profile)
    except pynvml.NVMLError as error:
        return f"error {error.value}"
    made = pynvml.nvmlComputeInstanceGetInfo(kept[compute])
    parent = pynvml.nvmlGpuInstanceGetInfo(made.gpuInstance)
    for device in _instances(made.device):
        ids = (
            pynvml.nvmlDeviceGetGpuInstanceId(device),
            pynvml.nvmlDeviceGetComputeInstanceId(device),
        )
        if ids == (parent.id, made.id):
            return _plain(pynvml.nvmlDeviceGetUUID(device))
    return None


def destroy(function: str, name: str) -> Any:
    """Destroy an instance by NVML's function for it; 0 or "error CODE"."""
    return call(function, kept[name])


def instances(index: int) -> list[str]:
    """The UUIDs of a GPU's MIG devices."""
    return [_plain(pynvml.nvmlDeviceGetUUID(one)) for one in _instances(_device(f"#{index}"))]


def _instances(parent: Any) -> list[Any]:
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        with suppress(pynvml.NVMLError):
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index))
    return found


def memory(index: int | str) -> list[int]:
    """Total, reserved, used and free MiB, from nvmlDeviceGetMemoryInfo_v2."""
    info = pynvml.nvmlDeviceGetMemoryInfo(_device(f"#{index}"), version=pynvml.nvmlMemory_v2)
    return [figure // MIB for figure in (info.total, info.reserved, info.used, info.free)]


def processes(index: int | str) -> dict[str, int]:
    """MiB by pid."""
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(_device(f"#{index}"))
    return {str(process.pid): process.usedGpuMemory // MIB for process in running}


def busy_ms(index: int, pid: int) -> int:
    """The GPU time of the process's kernels."""
    return int(pynvml.nvmlDeviceGetAccountingStats(_device(f"#{index}"), pid).time)


def links(index: int) -> list[str]:
    """The PCI bus id at the other end of each NVLink of the device."""
    found = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        remote = of(index, "nvmlDeviceGetNvLinkRemotePciInfo", link)
        if isinstance(remote, dict):
            found.append(remote["busId"])
    return found


def watch(*indexes: int) -> None:
    """Register an event set for these devices."""
    kept["set"] = pynvml.nvmlEventSetCreate()
    types = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
    for index in indexes:
        device = _device(f"#{index}")
        pynvml.nvmlDeviceRegisterEvents(device, types, kept["set"])
        watched[ctypes.addressof(device.contents)] = index


def wait(milliseconds: int) -> list[int] | str:
    """The next event: device, type, number; or "error CODE"."""
    try:
        event = pynvml.nvmlEventSetWait_v2(kept["set"], milliseconds)
    except pynvml.NVMLError as error:
        return f"error {error.value}"
    # By its handle: every query about a lost device fails.
    return [watched[ctypes.addressof(event.device.contents)], event.eventType, event.eventData]


def action(index: int) -> int | None:
    """The recovery action that the driver asks for; None: it cannot say."""
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (value,) = pynvml.nvmlDeviceGetFieldValues(_device(f"#{index}"), [field])
    return value.value.uiVal if value.nvmlReturn == pynvml.NVML_SUCCESS else None


def _device(name: str) -> Any:
    if not name[1:].isdecimal():
        return pynvml.nvmlDeviceGetHandleByUUID(name[1:])
    return pynvml.nvmlDeviceGetHandleByIndex(int(name[1:]))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, ctypes.c_uint):
        return value.value
    if hasattr(value, "_fields_"):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    return value if isinstance(value, (int, float, str, type(None))) else str(value)


CALLS: tuple[Callable[..., Any], ...] = (
    *(call, of, memory, processes, busy_ms, links, watch, wait, action),
    *(make, divide, destroy, instances),
)

if __name__ == "__main__":
    serve({function.__name__: function for function in CALLS})
