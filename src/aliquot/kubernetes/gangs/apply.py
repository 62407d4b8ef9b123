"""Applies a decision to gangs: who starts, who is preempted, what all others are told.

The decision was made from a snapshot that is older by now. So each start and each preemption is
checked again on the allocations as they are: what does not fit any more, or would pass a queue's
limit, is not done and decided anew. Nor is a preemption with a victim that has changed: another pod
of that name must not be evicted in its place.

No input or output. What is applied counts in the allocations at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.times import clock
from aliquot.kubernetes.cluster.elastic import told_ahead
from aliquot.kubernetes.cluster.neighbours import why_unwelcome
from aliquot.kubernetes.cluster.snapshot import bare
from aliquot.kubernetes.gangs.events import PreemptionNotice, closeness, why_later
from aliquot.kubernetes.gangs.lifecycle import (
    ask_elastic,
    drop_plan,
    evict,
    give_up,
    report,
    reserve,
    wait,
)
from aliquot.kubernetes.gangs.state import MemberPlace, PlannedStart
from aliquot.placement.core.demand import Running
from aliquot.placement.core.snapshot import CHANGING
from aliquot.placement.gangs.plan import may_hold, plan_gang
from aliquot.placement.queues.preempt import may_preempt
from aliquot.placement.queues.quota import Resources, Tree, add_all, needs, usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.observe import DecisionSnapshot, Ready
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang
    from aliquot.placement.decide import Decision
    from aliquot.placement.queues.preempt import Preemption
    from aliquot.placement.queues.quota import Sums

NAMED = 3  # nodes that a sentence names
PROTECTED = "disruption budgets protect {} from eviction"


@dataclass(slots=True)
class Applied:
    """What came of a decision: planned starts that others must not delay, and preemptions.

    `impossible` is how many starts and preemptions were not possible any more.
    """

    planned: tuple[Running, ...] = ()
    preemptions: list[PreemptionNotice] = field(default_factory=list)
    impossible: int = 0


class DecisionApplier:
    """Applies decisions as far as they are still possible.

    `may_grow`: an autoscaler is asked for nodes, so that a gang larger than the cluster waits.
    """

    def __init__(  # noqa: PLR0913 - what a decision changes
        self,
        workloads: Workloads,
        registry: GangRegistry,
        cluster: Cluster,
        queues: Queues,
        allocations: WorkloadAllocations,
        *,
        may_grow: bool = False,
    ) -> None:
        self._workloads = workloads
        self._registry = registry
        self._cluster = cluster
        self._queues = queues
        self._allocations = allocations
        self._may_grow = may_grow

    def apply(self, decision: Decision, snapshot: DecisionSnapshot, now: float) -> Applied:
        """Apply a decision."""
        applied = Applied()
        unchanged = self._unchanged(snapshot.ready)
        capacity = self._capacity(snapshot, now)
        # 1. Starts: reserve places.
        for one in decision.starts:
            ready = snapshot.ready[one.gang.name]
            if one.gang.name in unchanged and capacity.take(one):
                self._start(ready, one, snapshot.nodes, now)
            else:
                self._drop_plan(ready.gang.key)
                applied.impossible += 1
        # 2. Preemptions: reserve the places of victims, and decide their eviction.
        for gang, preemption in decision.preemptions:
            may = gang.name in unchanged
            if may and self._may_preempt(gang, preemption, snapshot, capacity, now):
                applied.preemptions.append(self._preempt(gang, preemption, snapshot, now))
            else:
                applied.impossible += 1
        # 3. Requests to elastic jobs.
        for name, jobs in decision.shrink_requests.items():
            state = self._registry.gangs.get(snapshot.ready[name].gang.key)
            if state is not None:
                self._registry.update(ask_elastic(state, jobs, now))
        # 4. Planned starts, and why each gang waits.
        preempting = {str(one.preemptor) for one in applied.preemptions}
        applied.planned = tuple(one for one in decision.planned if one.gang.name not in preempting)
        self._report(decision, snapshot, unchanged, applied.planned, capacity)
        return applied

    # --- what is still possible -------------------------------------------------------------------

    def _unchanged(self, ready: Mapping[str, Ready]) -> set[str]:
        """The gangs whose pods are those that the decision was made for."""
        return {
            name
            for name, one in ready.items()
            if (now := self._workloads.gangs.get(one.gang.key)) is not None
            and now.version == one.gang.version
            and not self._registry.gangs[one.gang.key].has_places
        }

    def _capacity(self, snapshot: DecisionSnapshot, now: float) -> _Capacity:
        tree = Tree(self._queues.queues())
        charged = self._allocations.charged(now, self._registry.preemptions())
        return _Capacity(self._cluster, snapshot.nodes, tree, charged)

    def _may_preempt(
        self,
        gang: Gang,
        preemption: Preemption,
        snapshot: DecisionSnapshot,
        capacity: _Capacity,
        now: float,
    ) -> bool:
        """Whether the victims are unchanged, and the gang still may and must preempt them."""
        staying = self._allocations.running(now, self._registry.victims)
        running = {one.gang.name: one for one in staying}
        holders = self._allocations.holders(now)
        for then in preemption.victims:
            name, one = then.gang.name, running.get(then.gang.name)
            if one is None or _standing(one) != _standing(then):
                return False
            if holders[name] != snapshot.holders[name]:
                return False
        if capacity.has_changed and preemption.victims:
            queues, hardware = self._queues.queues(), capacity.allocations.hardware
            if not may_preempt([gang], staying, queues, hardware) or capacity.is_enough_for(gang):
                return False
        start = Running(gang, preemption.placements, now, now + gang.seconds)
        return capacity.take(start, preemption.victims)

    # --- changes ----------------------------------------------------------------------------------

    def _start(  # noqa: PLR0913 - all that a reservation consists of
        self,
        one: Ready,
        start: Running,
        nodes: ClusterSnapshot,
        now: float,
        *,
        reason: str = "",
        victims: Collection[str] = (),
        victim_gangs: Collection[GangKey] = (),
    ) -> None:
        rows = zip(one.pods, one.requests, start.placements, strict=True)
        places = {
            pod.metadata.uid: MemberPlace(nodes.node(place.node), nodes.parts(requests, place))
            for pod, requests, place in rows
        }
        state = self._registry.gangs[one.gang.key]
        topology = closeness(nodes.hardware, start.placements)
        usual = f"{len(places)} pods have their places: {topology}{state.why_blocked}"
        self._registry.apply(
            reserve(
                state,
                places,
                now,
                reason=reason or usual,
                topology=topology,
                victims=victims,
                victim_gangs=victim_gangs,
            )
        )

    def _drop_plan(self, key: GangKey) -> None:
        state = self._registry.gangs.get(key)
        if state is not None:
            self._registry.update(drop_plan(state))

    def _preempt(
        self, gang: Gang, preemption: Preemption, snapshot: DecisionSnapshot, now: float
    ) -> PreemptionNotice:
        """Give a gang the places of its victims, and decide their eviction."""
        one = snapshot.ready[gang.name]
        told: dict[str, str] = {}
        victim_gangs: set[GangKey] = set()
        for victim in preemption.victims:
            uids = snapshot.holders[victim.gang.name]
            pods = [self._workloads.pods[uid] for uid in uids if uid in self._workloads.pods]
            why = preemption.to_victims[victim.gang.name]
            theirs, evicted = self._evict(pods, why, one.gang.key, now)
            told |= theirs
            if evicted is not None:
                victim_gangs.add(evicted)
        every = {uid for one in preemption.victims for uid in snapshot.holders[one.gang.name]}
        gone = {uid for uid in every if uid not in self._workloads.pods}  # and a node names them
        start = Running(gang, preemption.placements, now, now + gang.seconds)
        self._start(
            one,
            start,
            snapshot.nodes,
            now,
            reason=preemption.to_gang,
            victims=gone | told.keys(),
            victim_gangs=victim_gangs,
        )
        return PreemptionNotice(one.gang.key, preemption.to_gang, told)

    def _evict(
        self, pods: Sequence[Pod], why: str, preemptor: GangKey, now: float
    ) -> tuple[dict[str, str], GangKey | None]:
        """Decide to evict a victim: what each of its pods is told, and its gang, if it is one."""
        gang = next((self._workloads.gang_of(one) for one in pods), None)
        if gang is not None:
            state = self._registry.gangs[gang.key]
            self._registry.apply(give_up(state, why, now, pause=False))
        notice = told_ahead(gang.active) if gang is not None else 0.0
        after = f"; it is told, and has {notice:.0f} s" if notice else ""
        told = {one.metadata.uid: why + after for one in pods if self._has_node(one)}
        for one in pods:  # a pod that only waits is told when it is scheduled again
            if one.metadata.uid not in told:
                self._cluster.release(one.metadata.uid)
        if gang is None or not told:
            return told, None
        state = self._registry.gangs[gang.key]
        active = len(gang.active)
        self._registry.update(evict(state, why, now, active, notice=notice, preemptor=preemptor))
        return told, gang.key

    def _has_node(self, pod: Pod) -> bool:
        """Whether a pod has its node, or is being bound at this moment."""
        reserved = self._cluster.reserved(pod.metadata.uid)
        return bool(pod.spec.node_name) or (reserved is not None and reserved.binding)

    def _report(
        self,
        decision: Decision,
        snapshot: DecisionSnapshot,
        unchanged: Collection[str],
        planned: Sequence[Running],
        capacity: _Capacity,
    ) -> None:
        """Tell each gang that does not start why, and when it is expected to."""
        question, now = snapshot.question, snapshot.question.now
        starts = {one.gang.name: one for one in planned}
        started = (one for one in decision.starts if self._has_places(snapshot, one))
        running = [*question.running, *question.releasing, *started]
        for gang in (*question.waiting, *(one for one, _ in question.incomplete)):
            if gang.name not in unchanged:
                continue
            state = self._registry.gangs[snapshot.ready[gang.name].gang.key]
            if state.has_places:
                continue
            if gang.name in decision.above_limit:
                why = decision.above_limit[gang.name]
                self._registry.update(report(state, Phase.REFUSED, why))
                continue
            if gang.name in decision.never:
                taints = snapshot.nodes.untolerated_taints(snapshot.ready[gang.name].limits)
                why = decision.never[gang.name] + untolerated(taints)
                self._registry.update(self._larger_than_the_cluster(state, why))
                continue
            start = starts.get(gang.name)
            text = why_later(gang, capacity.allocations, start, running, now)
            why = "" if start else f"; {decision.reasons.get(gang.name, '')}".rstrip("; ")
            clash = self._clash(snapshot.ready[gang.name].requests)
            why += f"; {clash}" if clash else ""
            kept = decision.disruption_protected.get(gang.name, ())
            why += f"; {PROTECTED.format(_some(kept))}" if kept else ""
            plan = None if start is None else _planned_start(start, snapshot.nodes)
            self._registry.update(wait(state, text + why + _obstacles(state, now), plan))

    def _clash(self, members: Sequence[tuple[ContainerRequest, ...]]) -> str:
        """Why neighbours or a choice by UUID keep a member from GPUs; empty if they do not."""
        found = (why_unwelcome(self._cluster, one) for one in dict.fromkeys(members))
        return next(filter(None, found), "")

    def _larger_than_the_cluster(self, gang: GangState, why: str) -> GangState:
        if self._may_grow:
            return wait(gang, f"{why}; the autoscaler is asked for more", None)
        return report(gang, Phase.REFUSED, why)

    def _has_places(self, snapshot: DecisionSnapshot, one: Running) -> bool:
        state = self._registry.gangs.get(snapshot.ready[one.gang.name].gang.key)
        return state is not None and state.has_places


class _Capacity:
    """The allocations and the use of limits as they are now, with all that was applied."""

    def __init__(self, cluster: Cluster, nodes: ClusterSnapshot, tree: Tree, charged: Sums) -> None:
        self.allocations = cluster.chooser.allocations.copy()
        self.has_changed = not self._equals(nodes.allocations)
        self._nodes = nodes
        self._tree = tree
        self._charged = charged
        self.allocations.hardware = nodes.hardware

    def take(self, start: Running, victims: Sequence[Running] = ()) -> bool:
        """Count a start in the place of victims, if it fits and is within all limits."""
        gang, hardware = start.gang, self._nodes.hardware
        if not self._nodes.is_current({place.node for place in start.placements}):
            return False
        before, after = usage(victims, hardware), usage([start], hardware)
        charged = self._charged.copy()
        for queue, part in before.items():
            self._tree.add(charged, queue, Resources() - part)
        if not self._is_within_limits(gang, charged):
            return False
        if not self.allocations.exchange_gangs(victims, start):
            return False
        self._tree.add(charged, gang.queue, after[gang.queue])
        self._charged = add_all(charged, self._tree.excess(before, after))
        return True

    def is_enough_for(self, gang: Gang) -> bool:
        """Whether a gang could start without victims."""
        may = self._is_within_limits(gang, self._charged) and may_hold(self.allocations, gang)
        return may and plan_gang(self.allocations, gang) is not None

    def _is_within_limits(self, gang: Gang, charged: Sums) -> bool:
        more = needs(gang, self._nodes.hardware)
        return self._tree.over(gang.queue, more, charged) is None

    def _equals(self, then: Allocations) -> bool:
        same = self.allocations.marks == then.marks
        return same and all(
            np.array_equal(getattr(self.allocations, name), getattr(then, name))
            for name in CHANGING
        )


def _standing(one: Running) -> object:
    """What the right to preempt a workload depends on."""
    return one.placements, one.gang.members, one.gang.queue, one.gang.priority


def _obstacles(gang: GangState, now: float) -> str:
    text = gang.why_blocked
    if gang.elastic.until > now:
        until = clock(gang.elastic.until, now)
        text += f"; {_some(gang.elastic.jobs)} can shrink for it, and has until {until}"
    if gang.retry.barred:
        text += f"; kube-scheduler did not accept {_some(gang.retry.barred)}"
    if gang.retry.spared:
        text += f"; {PROTECTED.format(_some(gang.retry.spared))}"
    return text


def untolerated(taints: Sequence[str]) -> str:
    """That nodes are left out for these taints, as sentences to append; empty without taints."""
    if not taints:
        return ""
    return (
        f". Nodes are left out for taints that its pods do not tolerate: {_some(taints)}."
        " Where they are meant for such nodes, write that into their spec.tolerations."
    )


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def _planned_start(one: Running, nodes: ClusterSnapshot) -> PlannedStart:
    return PlannedStart(
        start=one.start,
        places=tuple((nodes.node(place.node), place.gpus) for place in one.placements),
        shape=tuple(map(bare, one.gang.members)),
    )
