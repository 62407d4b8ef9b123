"""The NUMA node and the device node of each GPU.

The kernel reports the NUMA node of a PCI device. A simulated GPU has no PCI device; its NVML
reports a NUMA node instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.devices.inventory import nvml_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.devices.driver import Driver
    from aliquot.model import Gpu

PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """The NUMA node of a GPU, if it has one, and the N of its /dev/nvidiaN."""

    numa: int | None
    minor: int


def read_locations(driver: Driver, gpus: Sequence[Gpu]) -> dict[str, DeviceLocation]:
    """The locations of these GPUs, by UUID."""
    with nvml_session(driver) as nvml:
        handles = {gpu.uuid: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus}
        by_nvml = driver.shape is not None
        return {
            gpu.uuid: DeviceLocation(
                numa=_by_nvml(nvml, handles[gpu.uuid]) if by_nvml else _by_kernel(gpu),
                minor=int(nvml.nvmlDeviceGetMinorNumber(handles[gpu.uuid])),
            )
            for gpu in gpus
        }


def _by_nvml(nvml: Any, handle: Any) -> int | None:
    try:
        (nodes,) = nvml.nvmlDeviceGetMemoryAffinity(handle, 1, nvml.NVML_AFFINITY_SCOPE_NODE)
    except nvml.NVMLError:
        return None
    return int(nodes).bit_length() - 1 if nodes else None


def _by_kernel(gpu: Gpu) -> int | None:
    domain, _, rest = gpu.pci_bus_id.lower().partition(":")
    try:
        node = int((PCI / f"{domain[-4:]}:{rest}" / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
