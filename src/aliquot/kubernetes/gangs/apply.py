"""What a decision means for gangs: who starts, who makes room, what all others are told.

The brain thought about a picture of the cluster that is older by now. So each start, and each claim
to the places of others, is looked at again on the allocations as they are: what does not fit any
more, or would pass a queue's limit, is left undone and decided anew. A claim is also left undone
where one who was to end is not what it was: another pod of that name must not end in its place.

No input or output. What is done is counted in the allocations as soon as it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.cluster.elastic import told_ahead
from aliquot.kubernetes.cluster.snapshot import bare
from aliquot.kubernetes.gangs import messages as words
from aliquot.kubernetes.gangs.state import MemberPlace, PlannedStart
from aliquot.placement.core.demand import Running
from aliquot.placement.core.snapshot import CHANGING
from aliquot.placement.gangs.plan import may_hold, plan_gang
from aliquot.placement.queues.preempt import may_preempt
from aliquot.placement.queues.quota import Resources, Tree, add_all, needs, usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.observe import Observed, Ready
    from aliquot.kubernetes.gangs.reservations import Reservations
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang
    from aliquot.placement.decide import Decision
    from aliquot.placement.queues.preempt import Preemption
    from aliquot.placement.queues.quota import Sums

NAMED = 3  # nodes that a sentence names


@dataclass(slots=True)
class Done:
    """What came of a decision: promises that others must keep to, and who makes room for whom.

    `undone` is how many starts and claims were not possible any more.
    """

    promises: tuple[Running, ...] = ()
    claims: list[tuple[GangState, str, Mapping[str, str]]] = field(default_factory=list)
    undone: int = 0


class Applier:
    """Does what was decided, as far as it still can be done."""

    def __init__(
        self,
        roster: Workloads,
        cluster: Cluster,
        reservations: Reservations,
        queues: Queues,
        holdings: WorkloadAllocations,
    ) -> None:
        self._roster = roster
        self._cluster = cluster
        self._reservations = reservations
        self._queues = queues
        self._holdings = holdings

    def do(self, decision: Decision, asked: Observed, now: float) -> Done:
        """All of it."""
        done = Done()
        still = self._as_they_were(asked.ready)
        room = self._room(asked, now)
        for one in decision.starts:
            ready = asked.ready[one.gang.name]
            if one.gang.name in still and room.take(one):
                self._start(ready, one, asked.picture, now)
            else:
                ready.gang.promise = None  # it is as one that comes: a limit may keep it
                done.undone += 1
        for gang, claim in decision.preemptions:
            if gang.name in still and self._may_claim(gang, claim, asked, room, now):
                done.claims.append(self._claim(gang, claim, asked, now))
            else:
                done.undone += 1
        for name, jobs in decision.shrink_requests.items():
            asked.ready[name].gang.ask(jobs, now)
        claimed = {str(known.key) for known, _, _ in done.claims}
        done.promises = tuple(one for one in decision.planned if one.gang.name not in claimed)
        self._tell(decision, asked, still, done.promises, room)
        return done

    # --- what is still so -------------------------------------------------------------------------

    def _as_they_were(self, ready: Mapping[str, Ready]) -> set[str]:
        """The gangs that can be dealt with as it was decided."""
        return {
            name
            for name, one in ready.items()
            if self._roster.gangs.get(one.gang.key) is one.gang
            and one.gang.version == one.version
            and not one.gang.reserved
        }

    def _room(self, asked: Observed, now: float) -> _Room:
        tree, charged = Tree(self._queues.queues()), self._holdings.charged(now)
        return _Room(self._cluster, asked.picture, tree, charged)

    def _may_claim(
        self, gang: Gang, claim: Preemption, asked: Observed, room: _Room, now: float
    ) -> bool:
        """Whether those who are to end are as they were, and there is a right and a need still."""
        staying = self._holdings.running(now, self._roster.ending)
        running = {one.gang.name: one for one in staying}
        parties = self._holdings.parties(now)
        for then in claim.victims:
            name, one = then.gang.name, running.get(then.gang.name)
            if one is None or _standing(one) != _standing(then):
                return False
            if parties[name] != asked.parties[name]:
                return False
        if room.has_changed and claim.victims:  # is it its right, and its need?
            queues, hardware = self._queues.queues(), room.allocations.hardware
            if not may_preempt([gang], staying, queues, hardware) or room.is_there_for(gang):
                return False
        start = Running(gang, claim.placements, now, now + gang.seconds)
        return room.take(start, claim.victims)

    # --- what is done -----------------------------------------------------------------------------

    def _start(
        self,
        one: Ready,
        start: Running,
        picture: ClusterSnapshot,
        now: float,
        ending: Collection[str] = (),
    ) -> None:
        rows = zip(one.pods, one.requests, start.placements, strict=True)
        places = {
            pod.metadata.uid: MemberPlace(picture.node(place.node), picture.parts(asked, place))
            for pod, asked, place in rows
        }
        rest = bool(one.gang.had_nodes)
        self._reservations.take(one.gang, places, now, frozenset(ending))
        near = words.nearness(picture.hardware, start.placements)
        one.gang.topology = one.gang.topology if rest else near
        one.gang.reason = f"{len(places)} pods have their places: {near}{one.gang.why_kept}"

    def _claim(
        self, gang: Gang, claim: Preemption, asked: Observed, now: float
    ) -> tuple[GangState, str, Mapping[str, str]]:
        """Give a gang the places of others: who has them, and what all sides are told."""
        one = asked.ready[gang.name]
        told = self._make_room(one.gang, claim, asked, now)
        every = {uid for victim in claim.victims for uid in asked.parties[victim.gang.name]}
        gone = {uid for uid in every if uid not in self._roster.pods}  # and still named by a node
        start = Running(gang, claim.placements, now, now + gang.seconds)
        self._start(one, start, asked.picture, now, gone | told.keys())
        one.gang.reason = claim.to_gang
        return one.gang, claim.to_gang, told

    def _make_room(
        self, claimant: GangState, claim: Preemption, asked: Observed, now: float
    ) -> dict[str, str]:
        """What each pod that is to end is told, by UID."""
        told: dict[str, str] = {}
        for victim in claim.victims:
            why = claim.to_victims[victim.gang.name]
            found = (self._roster.pods.get(uid) for uid in asked.parties[victim.gang.name])
            pods = [one for one in found if one is not None]
            gang = next((self._roster.gang_of(one) for one in pods), None)
            if gang is not None:
                self._reservations.give_up(gang, why, now, pause=False)
            seconds = told_ahead(gang.staying) if gang is not None else 0.0
            after = f"; it is told, and has {seconds:.0f} s" if seconds else ""
            theirs = {one.metadata.uid: why + after for one in pods if self._holds_it(one)}
            for one in pods:  # who only waits is told so when it asks again
                if one.metadata.uid not in theirs:
                    self._cluster.release(one.metadata.uid)
            if gang is not None and theirs:
                claimant.claimed.add(gang.key)
                # all of it, on whatever nodes its members are
                gang.leave(why, now, seconds, claimant.key)
            told |= theirs
        return told

    def _holds_it(self, pod: Pod) -> bool:
        """Whether a pod has its node, or is being given it at this moment."""
        reserved = self._cluster.reserved(pod.metadata.uid)
        return bool(pod.spec.node_name) or (reserved is not None and reserved.binding)

    def _tell(
        self,
        decision: Decision,
        asked: Observed,
        still: Collection[str],
        promises: Sequence[Running],
        room: _Room,
    ) -> None:
        """Who does not start is told why, and until when."""
        question, now = asked.question, asked.question.now
        started = (one for one in decision.starts if asked.ready[one.gang.name].gang.reserved)
        running = [*question.running, *question.releasing, *started]
        promised = {one.gang.name: one for one in promises}
        for gang in (*question.waiting, *(one for one, _ in question.incomplete)):
            known = asked.ready[gang.name].gang
            if known.reserved or gang.name not in still:
                continue
            promise = promised.get(gang.name)
            known.promise = None if promise is None else _promise(promise, asked.picture)
            known.planned = promise.start if promise else None
            if gang.name in decision.never:
                taints = asked.picture.untolerated_taints(asked.ready[gang.name].limits)
                known.tell(Phase.REFUSED, decision.never[gang.name] + _taints(taints))
                continue
            if gang.name in decision.above_limit:
                known.tell(Phase.REFUSED, decision.above_limit[gang.name])
                continue
            text = words.why_later(gang, room.allocations, promise, running, now)
            why = "" if promise else f"; {decision.reasons.get(gang.name, '')}".rstrip("; ")
            known.phase, known.reason = Phase.WAITING, text + why + _bars(known, now)


class _Room:
    """The allocations as they are now, and what counts for limits, with all that is done."""

    def __init__(
        self,
        cluster: Cluster,
        picture: ClusterSnapshot,
        tree: Tree,
        charged: Sums,
    ) -> None:
        self.allocations = cluster.chooser.allocations.copy()
        self.has_changed = not self._is_as_in(picture.allocations)
        self._picture = picture
        self._tree = tree
        self._charged = charged
        self.allocations.hardware = picture.hardware

    def take(self, start: Running, ended: Sequence[Running] = ()) -> bool:
        """Count a start, with others ended for it, where that fits and is within all limits."""
        gang, hardware = start.gang, self._picture.hardware
        if not self._picture.is_current({place.node for place in start.placements}):
            return False
        before, after = usage(ended, hardware), usage([start], hardware)
        left = self._charged.copy()
        for queue, part in before.items():
            self._tree.add(left, queue, Resources() - part)
        if not self._is_within_limits(gang, left):
            return False
        if not self.allocations.exchange_gangs(ended, start):
            return False
        self._tree.add(left, gang.queue, after[gang.queue])
        self._charged = add_all(left, self._tree.excess(before, after))
        return True

    def is_there_for(self, gang: Gang) -> bool:
        """Whether a gang could start as it is, and nobody has to end for it."""
        may = self._is_within_limits(gang, self._charged) and may_hold(self.allocations, gang)
        return may and plan_gang(self.allocations, gang) is not None

    def _is_within_limits(self, gang: Gang, charged: Sums) -> bool:
        more = needs(gang, self._picture.hardware)
        return self._tree.over(gang.queue, more, charged) is None

    def _is_as_in(self, then: Allocations) -> bool:
        return all(
            np.array_equal(getattr(self.allocations, name), getattr(then, name))
            for name in CHANGING
        )


def _standing(one: Running) -> object:
    """What a right over others depends on, and the way that was found."""
    return one.placements, one.gang.members, one.gang.queue, one.gang.priority


def _bars(gang: GangState, now: float) -> str:
    text = gang.why_kept
    if gang.asked_until > now:
        until = words.clock(gang.asked_until, now)
        text += f"; {_some(gang.asked)} can give back enough, and is waited for until {until}"
    if gang.barred:
        text += f"; kube-scheduler did not let it go to {_some(gang.barred)}"
    if gang.spared:
        text += f"; their disruption budgets kept {_some(gang.spared)} from ending for it"
    return text


def _taints(taints: Sequence[str]) -> str:
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


def _promise(one: Running, picture: ClusterSnapshot) -> PlannedStart:
    return PlannedStart(
        start=one.start,
        places=tuple((picture.node(place.node), place.gpus) for place in one.placements),
        shape=tuple(map(bare, one.gang.members)),
    )
