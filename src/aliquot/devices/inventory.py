"""The GPUs of a machine, as NVML reports them: identity, memory, links, processes.

nvidia-ml-py loads its library by name. The driver's own file is loaded first by its path, and the
linker then uses it for that name. So one process can use only one driver: the first.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from aliquot.devices.driver import TRY_SIMULATED
from aliquot.devices.links import read_links
from aliquot.model import Gpu, GpuProcess, Link
from aliquot.model.errors import DriverError, InstallationError, NoGpuError
from aliquot.model.strength import UNKNOWN, Throughput, strength_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aliquot.devices.driver import Driver


_WIDE_LISTS, _WIDE_LISTS_END = (535, 43), (535, 98)
INSTANCES = 100  # indexes of the instances of one GPU; native/arbiter/nvml.h has the same


@dataclass(frozen=True, slots=True)
class Inventory:
    """A machine's GPUs with their instances (MIG), and the versions of its driver."""

    driver_version: str
    cuda_version: tuple[int, int]
    gpus: tuple[Gpu, ...]


def read_inventory(driver: Driver, *, skip_lost: bool = False) -> Inventory:
    """Read all GPUs; one that does not answer is an error, or left out with `skip_lost`."""
    with nvml_session(driver) as nvml:
        handles = dict(_handles(nvml, skip_lost=skip_lost))
        if not handles:
            raise NoGpuError("the driver is installed, but there is no GPU", TRY_SIMULATED)
        links = _links(nvml, handles)
        gpus = [_gpu(nvml, index, handle, links=links[index]) for index, handle in handles.items()]
        parts = [
            part for gpu in gpus if gpu.mig for part in _instances(nvml, gpu, handles[gpu.index])
        ]
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        return Inventory(
            driver_version=text_of(nvml.nvmlSystemGetDriverVersion()),
            cuda_version=(cuda // 1000, cuda % 1000 // 10),
            gpus=(*gpus, *parts),
        )


def _handles(nvml: Any, *, skip_lost: bool) -> Iterator[tuple[int, Any]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:
            if not skip_lost:
                raise
        else:
            yield index, handle


def _links(nvml: Any, handles: dict[int, Any]) -> dict[int, tuple[Link, ...]]:
    """The links of each GPU, by index, without links to GPUs that are left out."""
    indexes = list(handles)
    found = read_links(nvml, list(handles.values()))
    return {
        index: tuple(Link(indexes[link.index], link.kind) for link in links)
        for index, links in zip(indexes, found, strict=True)
    }


@contextmanager
def nvml_session(driver: Driver) -> Iterator[Any]:
    """The pynvml module, with NVML of that driver; DriverError if NVML does not answer."""
    os.environ.update(driver.variables)
    try:
        ctypes.CDLL(str(driver.nvml))
    except OSError as error:
        raise DriverError(f"{driver.nvml} cannot be used: {error}", TRY_SIMULATED) from error
    try:
        import pynvml  # noqa: PLC0415 - imported when needed
    except ImportError as error:
        raise InstallationError(
            "nvidia-ml-py is not installed", "Install it with: pip install nvidia-ml-py"
        ) from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise DriverError(
            f"the driver does not answer ({driver.nvml}): {error}",
            f"Check the driver with: nvidia-smi. {TRY_SIMULATED}",
        ) from error


def _gpu(nvml: Any, index: int, handle: Any, **known: Any) -> Gpu:
    total, used = _memory(nvml, handle)
    name = text_of(nvml.nvmlDeviceGetName(handle))
    return Gpu(
        index=index,
        uuid=text_of(nvml.nvmlDeviceGetUUID(handle)),
        name=name,
        pci_bus_id=_bus_id(nvml, handle),
        memory_bytes=total,
        used_bytes=used,
        processes=tuple(_processes(nvml, handle)),
        mig=_is_mig(nvml, handle),
        exclusive=_is_exclusive(nvml, handle),
        strength=strength_of(name) or _strength(nvml, handle),
        **known,
    )


def instance_handles(nvml: Any, parent: Any) -> Iterator[tuple[int, Any]]:
    """The MIG devices of a GPU: NVML's number of the GPU instance, and the handle."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            yield nvml.nvmlDeviceGetGpuInstanceId(handle), handle
        except nvml.NVMLError:
            continue  # none at this index, or it is just being destroyed


def _instances(nvml: Any, parent: Gpu, parent_handle: Any) -> Iterator[Gpu]:
    """The instances that are GPUs for Aliquot: not those that share the memory of another one."""
    found = list(instance_handles(nvml, parent_handle))
    counts = Counter(number for number, _ in found)
    for number, handle in sorted(found, key=lambda one: one[0]):
        if counts[number] == 1:
            index = INSTANCES * (parent.index + 1) + number
            with suppress(nvml.NVMLError):
                yield _gpu(nvml, index, handle, instance_of=parent.index)


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """The memory that programs can use, and what is in use, without the driver's reserve."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    except nvml.NVMLError:  # before R510
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total, memory.used
    return memory.total - memory.reserved, memory.used


def _lists(nvml: Any) -> tuple[Any, Any]:
    """The functions that list compute and graphics processes.

    R535.43 to R535.86 write longer entries in version 3 of the lists than NVML's header says.
    """
    version = text_of(nvml.nvmlSystemGetDriverVersion()).split(".")
    numbers = tuple(int(part) for part in version if part.isdecimal())
    suffix = "_v2" if _WIDE_LISTS <= numbers < _WIDE_LISTS_END else ""
    compute, graphics = (
        getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{suffix}")
        for kind in ("Compute", "Graphics")
    )
    return compute, graphics


def _processes(nvml: Any, handle: Any) -> Iterator[GpuProcess]:
    found: dict[int, int | None] = {}
    for listing in _lists(nvml):
        try:
            found.update((entry.pid, entry.usedGpuMemory) for entry in listing(handle))
        except nvml.NVMLError:
            continue
    for pid, used in sorted(found.items()):
        yield GpuProcess(pid=pid, name=_process_name(nvml, pid), bytes=used)


def _bus_id(nvml: Any, handle: Any) -> str:
    """The PCI address; an instance has that of its GPU."""
    try:
        return text_of(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except nvml.NVMLError:
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return text_of(nvml.nvmlDeviceGetPciInfo(parent).busId)


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def _is_exclusive(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetComputeMode(handle) != nvml.NVML_COMPUTEMODE_DEFAULT)
    except nvml.NVMLError:
        return False


def _strength(nvml: Any, handle: Any) -> float:
    """The strength of a GPU whose model is not well known, by what it reports."""
    try:
        return Throughput.of_device(
            cores=nvml.nvmlDeviceGetNumGpuCores(handle),
            clock_mhz=nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
            bus=nvml.nvmlDeviceGetMemoryBusWidth(handle),
            memory_mhz=nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        ).strength
    except nvml.NVMLError:
        return UNKNOWN


def _process_name(nvml: Any, pid: int) -> str:
    try:
        return PurePath(text_of(nvml.nvmlSystemGetProcessName(pid))).name
    except nvml.NVMLError:
        return "?"


def text_of(value: str | bytes) -> str:
    """A text of NVML's, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
