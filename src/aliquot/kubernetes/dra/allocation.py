"""What a claim got, as its status says it. Pure.

The form is that of kube-scheduler: for each GPU a device for one of the claim's requests. A slice
has an identity of its own (`shareID`), because many claims have a part of that device, and says how
much it takes. The node selector keeps the claim's pods on the node.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.dra import (
    DRIVER,
    FINALIZER,
    AllocatedDevices,
    Allocation,
    DeviceResult,
    ResourceClaim,
)
from aliquot.kubernetes.api.dra_devices import COMPUTE, MEMORY, device_name, memory_units
from aliquot.kubernetes.api.objects import Expression, NodeTerm, NodeTerms
from aliquot.kubernetes.api.times import stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from aliquot.kubernetes.api.gpunode import GpuNodeStatus
    from aliquot.kubernetes.cluster.parts import Part
    from aliquot.kubernetes.dra.demand import ClaimDemand


class NoDeviceError(Exception):
    """A GPU has a free part, and no device that is free; the message names the GPU."""


def allocated(  # noqa: PLR0913, PLR0917 - all that an allocation consists of
    claim: ResourceClaim,
    demand: ClaimDemand,
    part: Part,
    node: str,
    status: GpuNodeStatus,
    taken: Collection[str],
    now: float,
) -> ResourceClaim:
    """A claim with this part of a node's GPUs. `taken` are devices that other claims have."""
    results = tuple(_results(demand, part, node, status, taken))
    on_node = Expression("metadata.name", "In", (node,))
    allocation = Allocation(
        devices=AllocatedDevices(results, demand.config),
        node_selector=NodeTerms((NodeTerm(match_fields=(on_node,)),)),
        allocation_timestamp=stamp(now),
    )
    replace = msgspec.structs.replace
    meta = replace(claim.metadata, finalizers=with_finalizer(claim))
    return replace(claim, metadata=meta, status=replace(claim.status, allocation=allocation))


def with_finalizer(claim: ResourceClaim) -> tuple[str, ...]:
    """The finalizers of a claim that is allocated."""
    return tuple(dict.fromkeys((*claim.metadata.finalizers, FINALIZER)))


def devices_of(claims: Collection[ResourceClaim]) -> set[str]:
    """The devices of ours that these claims have."""
    return {
        one.device
        for claim in claims
        if claim.status.allocation is not None
        for one in claim.status.allocation.devices.results
        if one.driver == DRIVER
    }


def _results(
    demand: ClaimDemand, part: Part, node: str, status: GpuNodeStatus, taken: Collection[str]
) -> Iterator[DeviceResult]:
    sizes = {one.uuid: one.memory for one in status.gpus}
    for request, gpu in zip(demand.requests, part.gpus, strict=True):
        if part.kind == "sliced":
            memory = min(part.memory, memory_units(sizes[gpu]))
            yield DeviceResult(
                request=request,
                driver=DRIVER,
                pool=node,
                device=device_name(gpu, "sliced"),
                share_id=str(uuid.uuid4()),
                consumed_capacity={MEMORY: str(memory), COMPUTE: str(part.compute)},
            )
            continue
        numbers = range(status.shares if part.kind == "shared" else 1)
        names = (device_name(gpu, part.kind, number) for number in numbers)
        free = next((name for name in names if name not in taken), None)
        if free is None:
            raise NoDeviceError(f"GPU {gpu} of node {node} has no free {part.kind} device")
        yield DeviceResult(request=request, driver=DRIVER, pool=node, device=free)
