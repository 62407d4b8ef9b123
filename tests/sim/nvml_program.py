"""The program of test_nvml.py: nvidia-ml-py on the simulated NVML, one call a line."""

from __future__ import annotations

import ctypes
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


def of(index: int, name: str, *arguments: Any) -> Any:
    """The same for a device; "#INDEX" as an argument is another device."""
    handles = [_device(a) if isinstance(a, str) and a.startswith("#") else a for a in arguments]
    return call(name, _device(f"#{index}"), *handles)


def memory(index: int) -> list[int]:
    """Total, reserved, used and free MiB, from nvmlDeviceGetMemoryInfo_v2."""
    info = pynvml.nvmlDeviceGetMemoryInfo(_device(f"#{index}"), version=pynvml.nvmlMemory_v2)
    return [figure // MIB for figure in (info.total, info.reserved, info.used, info.free)]


def processes(index: int) -> dict[str, int]:
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
    return pynvml.nvmlDeviceGetHandleByIndex(int(name[1:]))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "_fields_"):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    return value if isinstance(value, (int, float, str, type(None))) else str(value)


CALLS = (call, of, memory, processes, busy_ms, links, watch, wait, action)

if __name__ == "__main__":
    serve({function.__name__: function for function in CALLS})
