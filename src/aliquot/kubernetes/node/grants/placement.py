"""On which GPUs a container's grant goes: the GPUs of its plan, else a choice made here.

A plan is a hint. If the agent cannot follow it (another container of the same size came first, or a
GPU turned unhealthy), the agent chooses GPUs itself, and `GPUNode` shows what it chose.

A pod that was bound with a plan, and that the kubelet has not admitted yet, has no grant.
`with_planned_pods` counts such pods: each for what it requests, on the GPUs of its plan, if they
have that much free. So a forged plan reserves nothing that the agent would not allocate anyway.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from aliquot.kubernetes.node.grants.allocations import NodeAllocations
from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation, SliceSettings
from aliquot.kubernetes.node.grants.swap import overcommit_asked
from aliquot.kubernetes.node.pods import PodContainer
from aliquot.model import Amount, Request, format_bytes
from aliquot.model.errors import NoCapacityError
from aliquot.placement.choose.machine import GpuCapacity as Candidate
from aliquot.placement.choose.machine import choose_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aliquot.kubernetes.api.plan import ContainerPlan
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.grants.allocations import HostGpu
    from aliquot.kubernetes.node.pods import GpuPod
    from aliquot.model import Gpu


def allocated_on(
    allocations: NodeAllocations, request: ContainerRequest, gpus: tuple[str, ...]
) -> tuple[GpuAllocation, ...]:
    """What a request takes on these GPUs."""
    return tuple(
        GpuAllocation(
            gpu,
            request.memory_of(allocations.gpus[gpu].memory, allocations.shares),
            request.reserved,
        )
        for gpu in gpus
    )


def planned_gpus(
    allocations: NodeAllocations, request: ContainerRequest, plan: ContainerPlan | None
) -> tuple[str, ...]:
    """The GPUs of a plan; none if the plan does not match this request or this node."""
    if plan is None or plan.kind != request.kind or len(plan.gpus) != request.gpus:
        return ()
    return plan.gpus if all(gpu in allocations.gpus for gpu in plan.gpus) else ()


def choose(
    allocations: NodeAllocations,
    gpus: Mapping[str, Gpu],
    grant: ContainerGrant,
    request: ContainerRequest,
) -> tuple[str, ...]:
    """The best GPUs for a grant that has none yet; NoCapacityError says what each GPU has free.

    The GPUs of init containers whose device ids it reuses come first.
    """
    asked = _model_request(request, allocations.shares)
    usable = [
        gpu
        for gpu in allocations.gpus.values()
        if _is_usable(allocations, gpus, grant, request, gpu)
    ]
    own = {part.gpu for other in allocations.never_together(grant) for part in other.allocated}
    for some in ([gpu for gpu in usable if gpu.uuid in own], usable):
        found = choose_gpus(
            asked, [_candidate(allocations, gpus, grant, request, gpu) for gpu in some]
        )
        if found is not None:
            return tuple(gpu.uuid for gpu in found)
    figures = "; ".join(_free_text(allocations, gpu) for gpu in allocations.gpus.values())
    raise NoCapacityError(f"no GPU has enough free for {request} ({figures})")


def with_planned_pods(allocations: NodeAllocations, pods: Iterable[GpuPod]) -> NodeAllocations:
    """A copy of the allocations, with what the plans of pods that have not started say."""
    after = NodeAllocations(allocations.gpus.values(), allocations.shares, allocations.saved())
    after.set_turns(allocations.turns, allocations.fixed)
    for pod in pods:
        if pod.live and pod.pending:
            for grant in _planned_grants(after, pod):
                if after.why_not(grant) is None:
                    after.add(grant)
    return after


def _planned_grants(allocations: NodeAllocations, pod: GpuPod) -> Iterator[ContainerGrant]:
    """The grants that a pod's containers will get by their plans, in their order."""
    granted = {grant.owner.container: grant for grant in allocations.of_pod(pod.uid)}
    inits: list[tuple[str, frozenset[str]]] = []  # grant and resources of each init container
    for request in pod.requests:
        resources = frozenset(dict(request.units))
        grant = granted.get(request.container)
        if grant is None:
            container = PodContainer(pod, request)
            gpus = planned_gpus(allocations, request, container.plan)
            reuses = tuple(name for name, others in inits if resources & others)
            grant = _planned_grant(allocations, container, gpus, reuses)
            if gpus:
                yield grant
        if request.init:
            inits.append((grant.name, resources))


def _planned_grant(
    allocations: NodeAllocations,
    container: PodContainer,
    gpus: tuple[str, ...],
    reuses: tuple[str, ...],
) -> ContainerGrant:
    request = container.request
    allocated = allocated_on(allocations, request, gpus)
    settings = SliceSettings(tuple(part.memory for part in allocated), request.compute)
    return ContainerGrant(
        name=f"planned-{container.pod.uid}-{request.container}",
        owner=container.owner,
        kind=request.kind,
        allocated=allocated,
        requested=settings,
        current=settings,
        device_ids={},
        carrier="",
        reuses=reuses,
        overcommit=overcommit_asked(request, container.plan),
    )


def _model_request(request: ContainerRequest, shares: int) -> Request:
    least = request.min_strength
    if request.kind == "whole":
        return Request(gpus=request.gpus, min_strength=least)
    if request.kind == "shared":
        each = Amount(percent=Fraction(100, shares))
        return Request(gpus=request.gpus, memory=each, min_strength=least)
    percent = Fraction(request.memory_percent) if request.memory_percent else None
    memory = Amount(percent=percent) if percent else Amount(bytes=request.memory)
    return Request(
        gpus=request.gpus,
        memory=memory,
        compute_percent=request.compute,
        priority=request.priority,
        min_strength=least,
    )


def _is_usable(
    allocations: NodeAllocations,
    gpus: Mapping[str, Gpu],
    grant: ContainerGrant,
    request: ContainerRequest,
    gpu: HostGpu,
) -> bool:
    model = gpus[gpu.uuid].model if gpu.uuid in gpus else ""
    is_named = request.wishes is None or request.wishes.selects(gpu.uuid)
    is_right = request.accepts(model) and is_named
    return gpu.healthy and is_right and allocations.fits_kind(grant, gpu.uuid)


def _candidate(
    allocations: NodeAllocations,
    gpus: Mapping[str, Gpu],
    grant: ContainerGrant,
    request: ContainerRequest,
    host: HostGpu,
) -> Candidate:
    free = allocations.free_for(grant, host.uuid)
    gpu = gpus[host.uuid]
    beside = max(0, host.memory - allocations.used(host.uuid).memory)
    asked = request.memory_of(host.memory, allocations.shares)
    return Candidate(
        gpu=gpu,
        bytes_free=free.memory,
        percent_free=free.reserved,
        unused_bytes=max(0, gpu.memory_bytes - gpu.used_bytes),
        holders=allocations.shares - free.containers,
        excess_bytes=0 if grant.overcommit is None else max(0, asked - beside),
    )


def _free_text(allocations: NodeAllocations, gpu: HostGpu) -> str:
    if gpu.problem:
        return f"{gpu}: unhealthy"
    used, kind = allocations.used(gpu.uuid), allocations.kind(gpu.uuid)
    if kind is None:
        return f"{gpu}: free"
    return (
        f"{gpu}: {kind}, {format_bytes(gpu.memory - used.memory)} and {100 - used.reserved}% free"
    )
