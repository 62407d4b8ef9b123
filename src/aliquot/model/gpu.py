"""A GPU of this machine, its links and the processes on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver lists on a GPU; `bytes` is None if the driver does not say."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Link:
    """The link from a GPU to another one.

    `kind` is what `nvidia-smi topo` prints: `NV18` is 18 NVLinks; PIX, PXB, PHB, NODE and SYS are
    longer and longer paths over PCIe.
    """

    index: int
    kind: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical device, or an instance of one (MIG).

    `used_bytes` is the driver's figure for all of it. `mig`: it is in MIG mode, so programs use
    its instances. `instance_of` is the index of the GPU that an instance is a part of. `gone`: it
    is an instance that was destroyed while grants had it. `exclusive`: its compute mode allows one
    process at a time, or none. `strength` is what `model.strength`
    says; 0 if it is unknown.
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
    strength: float = 0.0
    instance_of: int | None = None
    gone: bool = False

    def __str__(self) -> str:
        return f"GPU {self.index}"

    @property
    def model(self) -> str:
        """The name without the vendor: `H100 80GB HBM3` of `NVIDIA H100 80GB HBM3`."""
        return self.name.removeprefix("NVIDIA ")
