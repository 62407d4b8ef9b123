"""The parts of a node's GPUs that a pod's containers have or will have.

The kubelet asks the agent for devices resource by resource, by a count only. So the agent can
confuse two containers of different pods that ask for the same count. This does no harm if the
containers are alike: each gets what the other would have got. If they differ, it does harm if their
GPUs differ, or if all their counts are the same: then one must wait until the node has reported the
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import CORE_UNITS, PLAN
from aliquot.kubernetes.api.plan import ContainerPlan, Plan, decode_plan, possible_overcommit
from aliquot.kubernetes.api.requests import InvalidRequestError, container_asks, requests_of
from aliquot.model import MAX_SLICES, Priority

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.gpunode import GpuNodeStatus
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.placement.core.wishes import Wishes


MOST_BYTES = 1 << 48  # no GPU has more memory


@dataclass(frozen=True, slots=True)
class Part:
    """A container's part of each of some GPUs.

    `reserved` is the percentage of compute that no other container can have. `init`: the container
    ends before those after it start. `units` is what the kubelet asks for: resource and count.
    `wishes` are about GPUs by UUID and about neighbours; if `alone`, nothing else is on its GPUs.
    `overcommit` as in the plan; `fixed` bytes of its memory cannot leave the GPU.
    """

    container: str
    kind: Kind
    gpus: tuple[str, ...]
    memory: int
    compute: int = 0
    reserved: int = 0
    init: bool = False
    units: tuple[tuple[str, int], ...] = ()
    wishes: Wishes | None = None
    alone: bool = False
    overcommit: float | None = None
    fixed: int = 0


Parts = tuple[Part, ...]  # of one pod, in the order in which the kubelet starts its containers


def planned_parts(pod: Pod, presets: Sequence[Preset]) -> Parts:
    """What a pod has by its plan; nothing without a valid plan.

    Anybody who may write the pod may have written the plan: entries for containers that ask for
    nothing, or for something else, do not count.
    """
    plan = decode_plan(pod.metadata.annotations.get(PLAN, ""))
    if plan is None:
        return ()
    try:
        asked = requests_of(pod, presets)
    except InvalidRequestError:  # an annotation was changed after it was planned
        return _unchecked_parts(pod, plan, presets)
    return tuple(
        _part(one, plan.containers[one.container])
        for one in asked
        if one.container in plan.containers and _is_for(one, plan.containers[one.container])
    )


def _unchecked_parts(pod: Pod, plan: Plan, presets: Sequence[Preset]) -> Parts:
    """The planned parts of all containers that ask for GPUs, as far as amounts are possible."""
    stages = {one.name: one.restart_policy != "Always" for one in pod.spec.init_containers}
    return tuple(
        Part(
            container=one.name,
            kind=planned.kind,
            gpus=planned.gpus,
            memory=_within(planned.memory, MOST_BYTES),
            compute=_within(planned.compute, CORE_UNITS),
            reserved=_within(planned.compute, CORE_UNITS),
            init=stages.get(one.name, False),
        )
        for one in (*pod.spec.init_containers, *pod.spec.containers)
        if container_asks(one, presets)
        and (planned := plan.containers.get(one.name)) is not None
        and 0 < len(planned.gpus) <= MAX_SLICES
    )


def _is_for(request: ContainerRequest, plan: ContainerPlan) -> bool:
    return (plan.kind, len(plan.gpus)) == (request.kind, request.gpus)


def _part(request: ContainerRequest, plan: ContainerPlan) -> Part:
    exact = request.kind == "sliced" and not request.memory_percent
    compute = _within(plan.compute, CORE_UNITS)
    return Part(
        container=request.container,
        kind=plan.kind,
        gpus=plan.gpus,
        memory=request.memory if exact else _within(plan.memory, MOST_BYTES),
        compute=compute,
        reserved=0 if request.priority is Priority.BACKGROUND else compute,
        init=request.init,
        units=request.units,
        wishes=request.wishes,
        alone=request.alone,
        overcommit=None
        if request.alone or not request.swap
        else possible_overcommit(plan.overcommit),
    )


def _within(value: int, most: int) -> int:
    return max(0, min(value, most))


def part_of(request: ContainerRequest, columns: Sequence[int], status: GpuNodeStatus) -> Part:
    """What a container gets on these GPUs of a node."""
    gpus = [status.gpus[column] for column in columns]
    return Part(
        container=request.container,
        kind=request.kind,
        gpus=tuple(gpu.uuid for gpu in gpus),
        memory=min(request.memory_of(gpu.memory, status.shares) for gpu in gpus),
        compute=request.compute,
        reserved=request.reserved,
        init=request.init,
        units=request.units,
        wishes=request.wishes,
        alone=request.alone,
        overcommit=request.overcommit,
    )


def plan_of(parts: Parts) -> Plan:
    """The plan for these parts."""
    return Plan(
        {
            one.container: ContainerPlan(
                kind=one.kind,
                gpus=one.gpus,
                memory=one.memory,
                compute=one.compute,
                overcommit=one.overcommit,
            )
            for one in parts
        }
    )


def confusable(ours: Iterable[Part], theirs: Iterable[Part]) -> tuple[Part, Part] | None:
    """A container of each of two pods that the agent could confuse, with harm; None without."""
    others = tuple(theirs)
    for one in ours:
        for other in others:
            if _are_confusable(one, other):
                return one, other
    return None


def _are_confusable(one: Part, other: Part) -> bool:
    if one.units == other.units:
        return bool(one.units) and _shape(one) != _shape(other)
    return not set(one.units).isdisjoint(other.units) and set(one.gpus) != set(other.gpus)


def _shape(one: Part) -> tuple[object, ...]:
    turns = one.overcommit
    return one.kind, len(one.gpus), one.memory, one.compute, one.wishes, one.alone, turns
