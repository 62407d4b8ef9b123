"""A GPU as this machine has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver says uses a GPU; `bytes` is None where it does not say how much."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Link:
    """How a GPU reaches a neighbour.

    `kind` is what `nvidia-smi topo` prints: `NV18` is 18 NVLinks; PIX, PXB, PHB, NODE and SYS are
    ever longer ways over PCIe.
    """

    index: int
    kind: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical device.

    `used_bytes` is the driver's own figure for the whole device. `mig`: it is cut into MIG
    instances; `exclusive`: the driver lets one process in at a time, or none.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    memory_bytes: int
    used_bytes: int
    links: tuple[Link, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    mig: bool = False
    exclusive: bool = False

    def __str__(self) -> str:
        return f"GPU {self.index}"

    @property
    def model(self) -> str:
        """The name without its maker: `NVIDIA H100 80GB HBM3` is an `H100 80GB HBM3`."""
        return self.name.removeprefix("NVIDIA ")
