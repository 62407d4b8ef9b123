"""What a pod's containers have, or will have, of a node's GPUs.

A container's device ids are asked of the agent resource by resource, with a count and nothing else.
So two containers of different pods can be confused where a count is the same. That does no harm
where the containers are alike: each gets what the other would have had. Where they differ, it does
harm if their GPUs differ, or if nothing the kubelet asks for tells them apart at all: then one must
wait until the other is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.names import PLAN
from aliquot.kubernetes.plan import ContainerPlan, Plan, decode_plan
from aliquot.kubernetes.pods import BadRequestError, requests_of
from aliquot.model import Priority

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.plan import Kind
    from aliquot.kubernetes.pods import ContainerRequest
    from aliquot.kubernetes.presets import Preset


@dataclass(frozen=True, slots=True)
class Part:
    """A container's part of each of some GPUs.

    `reserved` is percent of compute that no other can have. `init`: it ends before the containers
    after it begin. `units` is what the kubelet asks for: resource and count.
    """

    container: str
    kind: Kind
    gpus: tuple[str, ...]
    memory: int
    compute: int = 0
    reserved: int = 0
    init: bool = False
    units: tuple[tuple[str, int], ...] = ()


Parts = tuple[Part, ...]  # of one pod, in the order in which the kubelet starts its containers


def planned_parts(pod: Pod, presets: Sequence[Preset]) -> Parts:
    """What a pod has by its plan; nothing where it has none that makes sense."""
    plan = decode_plan(pod.metadata.annotations.get(PLAN, ""))
    if plan is None:
        return ()
    try:
        asked = {one.container: one for one in requests_of(pod, presets)}
    except BadRequestError:  # an annotation has changed since it was planned
        asked = {}
    stages = {one.name: one.restart_policy != "Always" for one in pod.spec.init_containers}
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return tuple(
        _part(one.name, plan.containers[one.name], asked, init=stages.get(one.name, False))
        for one in every
        if one.name in plan.containers
    )


def _part(
    name: str, plan: ContainerPlan, asked: Mapping[str, ContainerRequest], *, init: bool
) -> Part:
    request = asked.get(name)
    background = request is not None and request.priority is Priority.BACKGROUND
    return Part(
        container=name,
        kind=plan.kind,
        gpus=plan.gpus,
        memory=plan.memory,
        compute=plan.compute,
        reserved=0 if background else plan.compute,
        init=init,
        units=request.units if request else (),
    )


def plan_of(parts: Parts) -> Plan:
    """The plan that says so."""
    return Plan(
        {
            one.container: ContainerPlan(
                kind=one.kind, gpus=one.gpus, memory=one.memory, compute=one.compute
            )
            for one in parts
        }
    )


def confused(ours: Iterable[Part], theirs: Iterable[Part]) -> tuple[Part, Part] | None:
    """Two containers of two pods of which the agent could take one for the other, to harm."""
    others = tuple(theirs)
    for one in ours:
        for other in others:
            if _confusable(one, other):
                return one, other
    return None


def _confusable(one: Part, other: Part) -> bool:
    if one.units == other.units:
        return bool(one.units) and _shape(one) != _shape(other)
    return not set(one.units).isdisjoint(other.units) and set(one.gpus) != set(other.gpus)


def _shape(one: Part) -> tuple[Kind, int, int, int]:
    return one.kind, len(one.gpus), one.memory, one.compute
