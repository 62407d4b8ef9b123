"""GPUs of a node and grants of containers, for tests."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import support
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds, resources_of
from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation, SliceSettings
from aliquot.kubernetes.node.pods import ContainerRef

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.plan import Kind

GPU, SGPU = "aliquot.io/gpu", "aliquot.io/sgpu"
MEMORY, CORE = "aliquot.io/vcuda-memory", "aliquot.io/vcuda-core"

_names = itertools.count()


def make_host_gpu(index: int, units: int = 86, *, more: int = 0) -> HostGpu:
    """A GPU of so many memory units, and some bytes that are less than a unit."""
    return HostGpu(support.uuid_of(index), index, units * MEMORY_UNIT + more)


def make_ids(
    gpus: Iterable[HostGpu], shares: int = 2, grants: Iterable[ContainerGrant] = ()
) -> DeviceIds:
    """The device ids of our own resources, with allocations of these GPUs."""
    return DeviceIds(NodeAllocations(gpus, shares, grants), resources_of([ALIQUOT]))


def make_owner(uid: str, container: str = "") -> ContainerRef:
    return ContainerRef(uid, "default", f"pod-{uid}", container)


def make_grant(
    kind: Kind,
    gpus: list[HostGpu],
    owner: str = "a",
    *,
    units: dict[str, list[str]],
    memory: int = 0,
    core: int = 0,
    shares: int = 2,
    container: str = "main",
    reuses: tuple[ContainerGrant, ...] = (),
) -> ContainerGrant:
    """`memory` and `core` are units on each GPU."""
    allocated = tuple(
        GpuAllocation(
            gpu.uuid,
            {"whole": gpu.memory, "shared": gpu.memory // shares}.get(kind, memory * MEMORY_UNIT),
            core,
        )
        for gpu in gpus
    )
    settings = SliceSettings(tuple(part.memory for part in allocated), core)
    return ContainerGrant(
        name=f"grant-{next(_names)}",
        owner=make_owner(owner, container),
        kind=kind,
        allocated=allocated,
        requested=settings,
        current=settings,
        device_ids={name: tuple(sorted(ids)) for name, ids in units.items() if ids},
        reuses=tuple(one.name for one in reuses),
        carrier=next((name for name in (MEMORY, GPU, SGPU) if name in units), ""),
    )
