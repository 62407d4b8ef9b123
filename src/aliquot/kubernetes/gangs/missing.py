"""Which members of waiting gangs would need GPUs that the cluster does not have. Pure.

A cluster autoscaler does not see pods with a gate, and could not judge a gang: so `scaleup` asks it
for what is missing here. Members are placed one by one on what is free after a decision; those that
fit nowhere are missing. A gang for which all members fit waits for something else, and lacks
nothing. New nodes do not help a gang that a queue's limit blocks, one that starts soon anyway, nor
one that asks for certain GPUs, or to be with pods that are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.gangs.plan import plan_gang

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.gangs.observe import DecisionSnapshot
    from aliquot.placement.core.demand import Demand
    from aliquot.placement.decide import Decision


@dataclass(frozen=True, slots=True)
class MissingPod:
    """A pod that fits nowhere, and what it asks for."""

    pod: Pod
    demand: Demand


@dataclass(frozen=True, slots=True)
class MissingWork:
    """The pods of a gang or single pod that fit nowhere, and all that it asks for."""

    gang: Gang
    pods: tuple[MissingPod, ...]


@dataclass(frozen=True, slots=True)
class Shortage:
    """All that is missing, judged with these nodes, by name."""

    work: tuple[MissingWork, ...] = ()
    nodes: frozenset[str] = frozenset()


NO_SHORTAGE = Shortage()


def shortage(snapshot: DecisionSnapshot, decision: Decision, patience: float) -> Shortage:
    """What gangs lack that do not start within `patience` seconds of this decision."""
    question, free = snapshot.question, snapshot.question.allocations.copy()
    for one in decision.starts:
        free.take_gang(one, known_to_fit=True)
    lacking: set[Demand] = set()
    found = []
    for gang in _that_wait(snapshot, decision, patience):
        ready = snapshot.ready[gang.name]
        missing = []
        for pod, demand in zip(ready.pods, gang.members, strict=True):
            alone = Gang(gang.name, (demand,))
            places = None if demand in lacking else plan_gang(free, alone, question.by)
            if places is None:
                lacking.add(demand)  # nothing becomes free in this loop
                missing.append(MissingPod(pod, demand))
            else:
                free.take_gang(
                    Running(alone, places, question.now, question.now), known_to_fit=True
                )
        wishes = (one.demand.wishes for one in missing)
        if missing and not any(one is not None and one.needs_existing for one in wishes):
            found.append(MissingWork(gang, tuple(missing)))
    hardware = snapshot.nodes.hardware
    counted = frozenset(
        name
        for name, present in zip(hardware.names, hardware.present, strict=True)
        if present.any()
    )
    return Shortage(tuple(found), counted)


def _that_wait(snapshot: DecisionSnapshot, decision: Decision, patience: float) -> Iterable[Gang]:
    question = snapshot.question
    soon = question.now + patience
    served = {one.gang.name for one in decision.starts}
    served |= {gang.name for gang, _ in decision.preemptions}
    served |= {one.gang.name for one in decision.planned if one.start <= soon}
    served |= decision.limited | decision.shrink_requests.keys()
    waiting = (*(gang for gang, _ in question.incomplete), *question.waiting)
    left = (one for one in waiting if one.name not in served)
    return sorted(left, key=lambda one: (-one.priority, one.submitted, one.name))
