"""Every way that small gangs can go: an explicit-state search over `lifecycle` and `resume`.

A point of the search is the cluster (pods and the Gang objects that are written), the memory of the
leader if there is one, and the requests that are left of its pass. From each point everything that
can happen does: the leader takes a pass before or after all deadlines, or makes its next request;
the API server refuses a request; the leader dies, and another one begins; kube-scheduler binds a
pod or rejects a node; a pod terminates, is deleted or created again; a GPU breaks; a disruption
budget protects a pod or stops doing so.

The decision over all gangs is a small one of its own here: what `placement` decides is not the
subject. Times count only as before and after a deadline, so the search ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.gang import GangStatus, Phase
from aliquot.kubernetes.cluster.membership import GangKey
from aliquot.kubernetes.cluster.workloads import GangPods
from aliquot.kubernetes.gangs import lifecycle, resume
from aliquot.kubernetes.gangs.lifecycle import (
    CountPlaces,
    Deadlines,
    ForgetPlaces,
    ForgetRefusals,
    GangUids,
    Observation,
    RefusedEviction,
    ReleasePlaces,
    Step,
)
from aliquot.kubernetes.gangs.state import GangState, MemberPlace, PendingEviction
from aliquot.kubernetes.gangs.store import status_of
from kubernetes.builders import make_pod

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from aliquot.kubernetes.api.objects import Pod

BEFORE, DEADLINE, AFTER = 0.0, 1.0, 1e9
TIMES = Deadlines(grace=DEADLINE, eviction=DEADLINE)
ROUNDS = 40  # more than any gang needs to come to rest

Request = tuple[str, GangKey | str]


class BrokenRuleError(AssertionError):
    """A rule that must hold at every point does not."""


def must(truth: object, rule: str) -> None:
    if not truth:
        raise BrokenRuleError(rule)


@dataclass(frozen=True, slots=True)
class Shape:
    """A gang of the model: `size` pods of one GPU each. `notice`: its workers are notified."""

    size: int
    priority: int = 0
    notice: float = 0.0
    shrinks: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How often what may go wrong does: it bounds the search."""

    crashes: int = 0
    failures: int = 0  # requests that the API server refuses
    rejections: int = 0  # of nodes, by kube-scheduler
    deletions: int = 0
    creations: int = 0
    breaks: int = 0
    protections: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """What the search begins with.

    Another scheduler gave nodes to the gangs of `running`; those of `late` come later.
    """

    gpus: tuple[str, ...]
    shapes: Mapping[GangKey, Shape]
    budget: Budget
    running: tuple[GangKey, ...] = ()
    late: tuple[GangKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """A pod of the model."""

    uid: str
    gang: GangKey
    gpu: str = ""
    gated: bool = True
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """The truth: pods, written Gang objects, budgets, broken GPUs.

    `reduced` are gangs that have lost pods by eviction, and still have others; `had` are all pods
    that had GPUs.
    """

    units: Mapping[str, Unit]
    written: Mapping[GangKey, GangStatus] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    absent: frozenset[GangKey] = frozenset()
    reduced: frozenset[GangKey] = frozenset()
    had: frozenset[tuple[GangKey, str]] = frozenset()
    made: int = 0

    def of(self, key: GangKey) -> list[Unit]:
        return [one for one in self.units.values() if one.gang == key]

    def active(self, key: GangKey) -> list[Unit]:
        return [one for one in self.of(key) if one.gpu and not one.terminating]

    def unbound(self, key: GangKey) -> list[Unit]:
        return [one for one in self.of(key) if not one.gpu and not one.terminating]

    def put(self, unit: Unit) -> Cluster:
        return replace(self, units={**self.units, unit.uid: unit})._counted(unit.gang)

    def without(self, uid: str) -> Cluster:
        left = {other: one for other, one in self.units.items() if other != uid}
        return replace(self, units=left)._counted(self.units[uid].gang)

    def evict(self, unit: Unit) -> Cluster:
        after = replace(self, reduced=self.reduced | {unit.gang})
        return after.put(replace(unit, terminating=True))

    def _counted(self, key: GangKey) -> Cluster:
        """A gang that has no active pod any more is not reduced: it begins again."""
        if self.active(key):
            return self
        return replace(self, reduced=self.reduced - {key})

    def holder(self, gpu: str) -> Unit | None:
        return next((one for one in self.units.values() if one.gpu == gpu), None)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the leader knows: states, the places it counts, refusals, and when its pass began."""

    gangs: Mapping[GangKey, GangState]
    counted: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    now: float = BEFORE


@dataclass(frozen=True, slots=True)
class Point:
    """One state of the search."""

    cluster: Cluster
    memory: Memory | None
    left: tuple[Request, ...] = ()
    budget: Budget = field(default_factory=Budget)


class Leader:
    """A leader at work: what `lifecycle` and `resume` ask of the world, on the model."""

    def __init__(self, case: Case, cluster: Cluster, memory: Memory) -> None:
        self.case = case
        self.cluster = cluster
        self.gangs: dict[GangKey, GangState] = dict(memory.gangs)
        self.counted = dict(memory.counted)
        self.refused = set(memory.refused)
        self.now = memory.now

    def memory(self) -> Memory:
        gangs = {key: timeless(gang) for key, gang in self.gangs.items()}
        return Memory(gangs, dict(self.counted), frozenset(self.refused), self.now)

    # --- what the state machine asks --------------------------------------------------------------

    def uids(self, key: GangKey) -> GangUids:
        every = frozenset(one.uid for one in self.cluster.of(key))
        return GangUids(every, frozenset(one.uid for one in self.cluster.active(key)))

    def observe(self, gang: GangState) -> Observation:
        units = self.cluster.of(gang.key)
        unbound = frozenset(one.uid for one in self.cluster.unbound(gang.key))
        nodes = {place.node for uid, place in gang.reservation.places.items() if uid in unbound}
        held = frozenset(
            uid
            for uid in gang.reservation.victims
            if (unit := self.cluster.units.get(uid)) is not None and unit.gpu in nodes
        )
        faults = {
            uid: fault
            for uid, place in gang.reservation.places.items()
            if uid in unbound and (fault := self._fault(uid, place.node, held))
        }
        return Observation(
            bound=frozenset(one.uid for one in units if one.gpu),
            active=self.uids(gang.key).active,
            unbound=unbound,
            wanted=self.case.shapes[gang.key].size,
            held=held,
            faults=faults,
            unplanned=len(self.cluster.active(gang.key)) * (gang.key in self.case.running),
        )

    def _fault(self, uid: str, gpu: str, held: Collection[str]) -> str:
        holder = self.cluster.holder(gpu)
        if gpu in self.cluster.broken:
            return "broken"
        return "in use" if holder and holder.uid != uid and holder.uid not in held else ""

    def apply(self, step: Step) -> None:
        if step.gang.key in self.gangs:
            self.gangs[step.gang.key] = step.gang
        for action in step.actions:
            match action:
                case CountPlaces():
                    places = step.gang.reservation.places
                    self.counted |= {uid: place.node for uid, place in places.items()}
                case ReleasePlaces(uids, _) | ForgetPlaces(uids):
                    for uid in uids:
                        self.counted.pop(uid, None)
                case ForgetRefusals(uids):
                    self.refused -= set(uids)
                case _:
                    pass

    # --- a new leader -----------------------------------------------------------------------------

    def notice(self, key: GangKey) -> float:
        return self.case.shapes[key].notice

    def since(self, *_: object) -> float:
        return BEFORE

    def was_whole(self, _: GangKey, status: GangStatus) -> bool:
        return status.whole_once

    def gangs_of(self, uids: Collection[str]) -> list[GangKey]:
        units = self.cluster.units
        return sorted({units[uid].gang for uid in uids if uid in units}, key=str)

    def places(self, key: GangKey, status: GangStatus) -> Mapping[str, MemberPlace] | None:
        """As `store.Restorer` confirms them: free GPUs that exist, and victims it still needs."""
        unbound = {one.uid for one in self.cluster.unbound(key)}
        members = [one for one in status.members if one.uid in unbound and one.node]
        gpus = [one.node for one in members]
        victims = set(status.victims)
        live = [
            uid
            for uid in victims
            if (unit := self.cluster.units.get(uid)) is not None
            and not unit.terminating
            and self.gangs[unit.gang].eviction is None
        ]
        if live and self._are_free(gpus, set()):
            return None
        if not self._are_free(gpus, victims):
            return None
        return {one.uid: MemberPlace(one.node, ()) for one in members}

    def _are_free(self, gpus: list[str], victims: set[str]) -> bool:
        holders = (self.cluster.holder(gpu) for gpu in gpus)
        taken = any(one is not None and one.uid not in victims for one in holders)
        reserved = set(gpus) & set(self.counted.values())
        return not taken and not reserved and not self.cluster.broken.intersection(gpus)

    # --- a pass -----------------------------------------------------------------------------------

    def take_pass(self, now: float) -> tuple[Request, ...]:
        """Advance all gangs and decide; the requests that this pass begins with."""
        self.now = now
        refused = {
            uid: RefusedEviction("protected", BEFORE, str(self.cluster.units[uid].gang))
            for uid in self.refused
            if uid in self.cluster.units
        }
        lifecycle.advance_all(self, refused, TIMES, now)
        for key in sorted(self.gangs, key=lambda one: (-self.case.shapes[one].priority, str(one))):
            self._decide(key)
        first = sorted((key for key in self.gangs if self.gangs[key].reservation.victims), key=str)
        others = sorted((key for key in self.gangs if key not in first), key=str)
        writes: list[Request] = [("write", key) for key in (*first, *others)]
        return (*writes, ("open gates", ""), ("evict", ""))

    def _decide(self, key: GangKey) -> None:
        now, shape = self.now, self.case.shapes[key]
        gang = self.gangs[key]
        gang = self.gangs[key] = replace(gang, retry=gang.retry.expire(now))
        units = sorted(self.cluster.unbound(key), key=lambda one: one.uid)
        started = bool(gang.progress.had_nodes)
        if gang.has_places or gang.eviction is not None or not units:
            return
        if not started and len(units) < shape.size:
            self.gangs[key] = lifecycle.report(gang, Phase.GATHERING, "")
            return
        gang = self.gangs[key] = lifecycle.gather(gang, now)
        if now < gang.retry.not_before:
            return
        free = [gpu for gpu in self._usable(gang) if self.cluster.holder(gpu) is None]
        if len(free) >= len(units):
            self._reserve(gang, units, free)
            return
        victims = self._victims(gang)
        theirs = [one.gpu for other in victims for one in self.cluster.of(other) if one.gpu]
        both = free + [gpu for gpu in theirs if gpu in self._usable(gang)]
        if not victims or len(both) < len(units):
            self.gangs[key] = lifecycle.wait(lifecycle.drop_plan(gang), "", None)
            return
        shrink = any(self.case.shapes[one].shrinks for one in victims)
        if shrink and not gang.elastic.has_expired(now):
            self.gangs[key] = lifecycle.ask_elastic(gang, {"job": DEADLINE}, now)
            return
        self._preempt(key, units, both, victims)

    def _usable(self, gang: GangState) -> list[str]:
        out = {*self.cluster.broken, *self.counted.values(), *gang.retry.barred}
        return [gpu for gpu in self.case.gpus if gpu not in out]

    def _victims(self, gang: GangState) -> list[GangKey]:
        shapes = self.case.shapes
        spared = {name for one in self.gangs.values() for name in one.retry.spared}
        return [
            key
            for key, other in sorted(self.gangs.items(), key=lambda one: str(one[0]))
            if shapes[key].priority < shapes[gang.key].priority
            and self.cluster.active(key)
            and other.eviction is None
            and str(key) not in spared
        ]

    def _reserve(self, gang: GangState, units: list[Unit], gpus: list[str], **more: Any) -> None:
        places = {unit.uid: MemberPlace(gpu, ()) for unit, gpu in zip(units, gpus, strict=False)}
        step = lifecycle.reserve(gang, places, self.now, reason="", topology="", **more)
        self.apply(step)

    def _preempt(
        self, key: GangKey, units: list[Unit], gpus: list[str], victims: list[GangKey]
    ) -> None:
        uids = frozenset(one.uid for other in victims for one in self.cluster.of(other) if one.gpu)
        for other in victims:
            why, active = f"ended for {key}", len(self.cluster.active(other))
            self.apply(lifecycle.give_up(self.gangs[other], why, self.now, pause=False))
            notice = self.case.shapes[other].notice
            self.gangs[other] = lifecycle.evict(
                self.gangs[other], why, self.now, active, notice=notice, preemptor=key
            )
        self._reserve(self.gangs[key], units, gpus, victims=uids, victim_gangs=frozenset(victims))

    # --- requests ---------------------------------------------------------------------------------

    def write(self, key: GangKey) -> None:
        gang, pods = self.gangs[key], self._pods(key)
        status = status_of(gang, pods)
        status = msgspec.structs.replace(status, reason="", planned_start=None, since=None)
        self._must_follow(gang.eviction)
        self.cluster = replace(self.cluster, written={**self.cluster.written, key: status})
        self.gangs[key] = lifecycle.record_write(gang, gang.reservation.places, gang.eviction)

    def _must_follow(self, eviction: PendingEviction | None) -> None:
        """The reservation that an eviction is for is written before the eviction."""
        preemptor = self.gangs.get(eviction.preemptor) if eviction and eviction.preemptor else None
        if preemptor is None or not preemptor.reservation.victims:
            return
        status = self.cluster.written.get(preemptor.key)
        must(
            status is not None and status.phase == Phase.RESERVED,
            "an eviction is written before the reservation that it is for",
        )

    def _pods(self, key: GangKey) -> GangPods:
        return GangPods(key, {one.uid: _pod(one) for one in self.cluster.of(key)}, {}, 0)

    def open_gates(self) -> tuple[Request, ...]:
        due = [uid for gang in self.gangs.values() for uid in lifecycle.gates_due(gang)]
        units = self.cluster.units
        return tuple(("open", uid) for uid in sorted(due) if uid in units and units[uid].gated)

    def evictions(self) -> tuple[Request, ...]:
        uids = {key: self.uids(key) for key in self.gangs}
        due = lifecycle.evictions_due(self.gangs, uids, self.now)
        units = self.cluster.units
        live = [uid for uid in due if uid in units and not units[uid].terminating]
        for uid in live:
            self._must_be_wanted(units[uid])
        return tuple(("evict pod", uid) for uid in sorted(live))

    def open(self, uid: str) -> None:
        unit = self.cluster.units.get(uid)
        if unit is None or unit.gpu:
            return
        self._must_be_written(unit)
        self.cluster = self.cluster.put(replace(unit, gated=False))

    def _must_be_written(self, unit: Unit) -> str:
        """A place is written, and no other pod holds it: where."""
        status = self.cluster.written.get(unit.gang)
        must(status is not None and status.phase == Phase.RESERVED, "acted, but nothing is written")
        assert status is not None
        nodes = {one.uid: one.node for one in status.members}
        place = self.gangs[unit.gang].reservation.places[unit.uid].node
        must(nodes.get(unit.uid) == place, "acted on a place that is not written")
        must(self.cluster.holder(place) is None, "acted on a place that another pod holds")
        return place

    def evict(self, uid: str) -> None:
        unit = self.cluster.units.get(uid)
        if unit is None or unit.terminating:
            return
        self._must_be_evictable(unit)
        if uid in self.cluster.protected:
            self.refused.add(uid)
        else:
            self.refused.discard(uid)
            self.cluster = self.cluster.evict(unit)

    def _must_be_evictable(self, unit: Unit) -> None:
        status, gang = self.cluster.written.get(unit.gang), self.gangs[unit.gang]
        must(status is not None and status.eviction_reason, "evicted, but that is not written")
        eviction = gang.eviction
        must(eviction is not None, "evicted without a decision")
        assert eviction is not None
        must(self.now >= AFTER or not eviction.notified, "evicted before the notice is over")

    def _must_be_wanted(self, unit: Unit) -> None:
        eviction = self.gangs[unit.gang].eviction
        must(eviction is not None, "evicted without a decision")
        assert eviction is not None
        if eviction.preemptor is None:
            return
        preemptor = self.gangs.get(eviction.preemptor)
        whole = len(self.cluster.active(unit.gang)) >= eviction.pods
        wanted = preemptor is not None and unit.gang in preemptor.reservation.victim_gangs
        must(not whole or wanted, "evicted for a preemption that was abandoned")
        if whole and preemptor is not None and preemptor.has_places:
            reserved = self.cluster.written.get(preemptor.key)
            must(
                reserved is not None and reserved.phase == Phase.RESERVED,
                "evicted for a reservation that is not written",
            )
            for other in preemptor.reservation.victim_gangs & self.gangs.keys():
                later = self.gangs[other].eviction
                must(
                    later is None or self.now >= AFTER or not later.notified,
                    "evicted while another victim cannot be evicted yet",
                )


@cache
def _pod(unit: Unit) -> Pod:
    pod = make_pod(unit.uid, uid=unit.uid, node=unit.gpu, gpu=1)
    if not unit.terminating:
        return pod
    meta = msgspec.structs.replace(pod.metadata, deletion_timestamp="now")
    return msgspec.structs.replace(pod, metadata=meta)


# --- the search -----------------------------------------------------------------------------------


def first(case: Case) -> Point:
    units: dict[str, Unit] = {}
    gpus = list(case.gpus)
    for key in case.shapes:
        for unit in _units(case, key) if key not in case.late else ():
            gpu = gpus.pop(0) if key in case.running else ""
            units[unit.uid] = replace(unit, gpu=gpu, gated=not gpu)
    had = frozenset((one.gang, one.uid) for one in units.values() if one.gpu)
    return Point(Cluster(units, absent=frozenset(case.late), had=had), None, budget=case.budget)


def _units(case: Case, key: GangKey) -> list[Unit]:
    return [Unit(f"{key.name}{number}", key) for number in range(case.shapes[key].size)]


def explore(case: Case) -> dict[object, Point]:
    """Every point that can be reached, by its key; the rules hold at each."""
    start = first(case)
    seen: dict[object, Point] = {key_of(start): start}
    waiting = deque([start])
    while waiting:
        point = waiting.popleft()
        for after in follow(case, point):
            check(case, after)
            key = key_of(after)
            if key not in seen:
                seen[key] = after
                waiting.append(after)
    return seen


def follow(case: Case, point: Point) -> Iterator[Point]:
    """All that can happen next."""
    yield from _controller(case, point)
    yield from _pods(case, point)
    yield from _trouble(case, point)


def _controller(case: Case, point: Point) -> Iterator[Point]:
    if point.memory is None:
        yield begin(case, point)
        return
    if not point.left:
        for now in (BEFORE, AFTER):
            yield take_pass(case, point, now)
        return
    yield request(case, point)
    budget = point.budget
    if budget.failures and point.left[0][0] in {"write", "open", "evict pod"}:
        less = replace(budget, failures=budget.failures - 1)
        yield replace(point, left=point.left[1:], budget=less)


def begin(case: Case, point: Point) -> Point:
    """Another replica leads, and goes on from what is written."""
    cluster = point.cluster
    keys = sorted({one.gang for one in cluster.units.values()}, key=str)
    leader = Leader(case, cluster, Memory({key: lifecycle.forget(GangState(key)) for key in keys}))
    found = {key: cluster.written[key] for key in keys if key in cluster.written}
    resume.resume_all(leader, found, BEFORE)
    cluster = replace(cluster, written=found, had=cluster.had | _assumed(cluster, found))
    return replace(point, cluster=cluster, memory=leader.memory(), left=())


def _assumed(
    cluster: Cluster, found: Mapping[GangKey, GangStatus]
) -> frozenset[tuple[GangKey, str]]:
    """A new leader takes members that are gone, of a gang that runs, to have had their nodes."""
    return frozenset(
        (key, one.uid)
        for key, status in found.items()
        for one in status.members
        if status.phase == Phase.RESERVED and cluster.active(key) and one.uid not in cluster.units
    )


def take_pass(case: Case, point: Point, now: float) -> Point:
    assert point.memory is not None
    leader = Leader(case, point.cluster, point.memory)
    left = leader.take_pass(now)
    gangs = leader.gangs.values()
    places = {uid: at.node for one in gangs for uid, at in one.reservation.places.items()}
    must(leader.counted == places, "places are counted that no gang has, or the other way round")
    return replace(point, memory=leader.memory(), left=left)


def request(case: Case, point: Point) -> Point:
    """The leader makes its next request, and the API server does it."""
    assert point.memory is not None
    (what, about), left = point.left[0], point.left[1:]
    leader = Leader(case, point.cluster, point.memory)
    match what, about:
        case "write", GangKey() if about in leader.gangs:
            if lifecycle.may_be_written(leader.gangs[about], leader.uids(about), leader.gangs):
                leader.write(about)
        case "open gates", _:
            left = (*leader.open_gates(), *left)
        case "evict", _:
            left = (*leader.evictions(), *left)
        case "open", str():
            leader.open(about)
        case "evict pod", str():
            leader.evict(about)
    return replace(point, cluster=leader.cluster, memory=leader.memory(), left=left)


def come(case: Case, point: Point, key: GangKey) -> Point:
    """People create a gang."""
    cluster, memory = point.cluster, point.memory
    units = {**cluster.units, **{one.uid: one for one in _units(case, key)}}
    if memory is not None:
        memory = replace(memory, gangs={**memory.gangs, key: GangState(key)})
    cluster = replace(cluster, units=units, absent=cluster.absent - {key})
    return replace(point, cluster=cluster, memory=memory)


def _pods(case: Case, point: Point) -> Iterator[Point]:
    for key in point.cluster.absent:
        yield come(case, point, key)
    for unit in point.cluster.units.values():
        if unit.terminating:
            yield without(case, point, unit.uid)
        elif (bound := bind(case, point, unit)) is not None:
            yield bound


def bind(case: Case, point: Point, unit: Unit) -> Point | None:
    """kube-scheduler binds a pod, if the leader lets it: all members have arrived."""
    if point.memory is None or unit.gpu or unit.gated or unit.terminating:
        return None
    leader = Leader(case, point.cluster, point.memory)
    gang = leader.gangs[unit.gang]
    reservation = gang.reservation
    units = point.cluster.units
    arrived = all(uid in units and not units[uid].gated for uid in reservation.places)
    if not reservation.is_open(unit.uid) or not (arrived or gang.progress.had_nodes):
        return None
    gpu = leader._must_be_written(unit)
    if all(key != unit.gang for key, _ in point.cluster.had):  # the first pod of the gang
        size = case.shapes[unit.gang].size
        status = point.cluster.written[unit.gang]
        placed = [one for one in status.members if one.node and one.uid in units]
        must(len(placed) >= size, "a part of a gang is bound")
    leader.gangs[unit.gang] = lifecycle.arrive(gang, BEFORE)
    leader.counted.pop(unit.uid, None)
    cluster = point.cluster.put(replace(unit, gpu=gpu))
    cluster = replace(cluster, had=cluster.had | {(unit.gang, unit.uid)})
    return replace(point, cluster=cluster, memory=leader.memory())


def without(case: Case, point: Point, uid: str) -> Point:
    """A pod is gone; with the last one, its gang."""
    gang = point.cluster.units[uid].gang
    cluster = point.cluster.without(uid)
    if point.memory is None:
        return replace(point, cluster=cluster)
    leader = Leader(case, cluster, point.memory)
    leader.refused.discard(uid)
    if not cluster.of(gang):
        leader.apply(lifecycle.give_up(leader.gangs[gang], "gone", BEFORE))
        del leader.gangs[gang]
        written = {key: one for key, one in cluster.written.items() if key != gang}
        cluster = replace(cluster, written=written)
    return replace(point, cluster=cluster, memory=leader.memory())


def _trouble(case: Case, point: Point) -> Iterator[Point]:
    """What may go wrong, as often as the budget says."""
    yield from _leader_trouble(case, point)
    cluster, budget = point.cluster, point.budget
    if budget.deletions:
        less = replace(budget, deletions=budget.deletions - 1)
        for uid in cluster.units:
            yield without(case, replace(point, budget=less), uid)
    if budget.creations:
        yield from _creations(case, point)
    if budget.breaks:
        less = replace(budget, breaks=budget.breaks - 1)
        for gpu in case.gpus:
            broken = replace(cluster, broken=cluster.broken | {gpu})
            yield replace(point, cluster=broken, budget=less)
    if budget.protections:
        less = replace(budget, protections=budget.protections - 1)
        for uid, unit in cluster.units.items():
            if unit.gpu:
                changed = replace(cluster, protected=cluster.protected ^ {uid})
                yield replace(point, cluster=changed, budget=less)


def _leader_trouble(case: Case, point: Point) -> Iterator[Point]:
    budget = point.budget
    if budget.crashes and point.memory is not None:
        less = replace(budget, crashes=budget.crashes - 1)
        yield replace(point, memory=None, left=(), budget=less)
    if budget.rejections and point.memory is not None:
        less = replace(budget, rejections=budget.rejections - 1)
        for unit in point.cluster.units.values():
            if bind(case, point, unit) is not None:
                yield reject(case, replace(point, budget=less), unit)


def _creations(case: Case, point: Point) -> Iterator[Point]:
    cluster = point.cluster
    less = replace(point.budget, creations=point.budget.creations - 1)
    for key, shape in case.shapes.items():
        if len([one for one in cluster.of(key) if not one.terminating]) < shape.size:
            unit = Unit(f"{key.name}-new{cluster.made}", key)
            more = replace(cluster.put(unit), made=cluster.made + 1)
            memory = point.memory
            if memory is not None and key not in memory.gangs:
                memory = replace(memory, gangs={**memory.gangs, key: GangState(key)})
            yield replace(point, cluster=more, memory=memory, budget=less)


def reject(case: Case, point: Point, unit: Unit) -> Point:
    assert point.memory is not None
    leader = Leader(case, point.cluster, point.memory)
    gang = leader.gangs[unit.gang]
    node = gang.reservation.places[unit.uid].node
    leader.apply(lifecycle.give_up(gang, "rejected", BEFORE, node=node))
    return replace(point, memory=leader.memory())


# --- what must hold -------------------------------------------------------------------------------


def check(case: Case, point: Point) -> None:
    """What holds at every point."""
    gpus = [one.gpu for one in point.cluster.units.values() if one.gpu]
    must(len(gpus) == len(set(gpus)), "a GPU has two pods")
    memory = point.memory
    if memory is None:
        return
    places = {
        uid: place.node
        for gang in memory.gangs.values()
        for uid, place in gang.reservation.places.items()
    }
    nodes = list(places.values())
    must(len(nodes) == len(set(nodes)), "a GPU is reserved twice")
    for key, gang in memory.gangs.items():
        must(gang.retry.not_before <= DEADLINE, "a pause does not end")
        if point.left or gang.eviction is None:
            continue
        must(case.shapes[key].notice or not gang.eviction.notified, "notified without a notice")


def rests(case: Case, point: Point, known: dict[object, object]) -> object:
    """Where a point comes to rest if nothing more goes wrong: the active pods of each gang."""
    way: list[object] = []
    point = replace(
        point, cluster=replace(point.cluster, protected=frozenset(), broken=frozenset())
    )
    end: object = None
    while end is None:
        key = key_of(point)
        if key in known:
            end = known[key]
            break
        must(len(way) < ROUNDS, "a gang does not come to rest")
        way.append(key)
        after = fair(case, point)
        if key_of(after) == key:
            end = _summary(case, after)
        point = after
    known.update(dict.fromkeys(way, end))
    return end


def fair(case: Case, point: Point) -> Point:
    """One round in which all requests arrive, and all pods do what they may."""
    for key in point.cluster.absent:
        point = come(case, point, key)
    if point.memory is None:
        point = begin(case, point)
    while point.left:
        point = request(case, point)
    for unit in list(point.cluster.units.values()):
        if unit.terminating:
            point = without(case, point, unit.uid)
    for unit in list(point.cluster.units.values()):
        bound = bind(case, point, unit)
        point = bound if bound is not None else point
    check(case, point)
    return take_pass(case, point, AFTER)


def _summary(case: Case, point: Point) -> object:
    """The active pods of each gang, when all rests: no gang is incomplete, none waits in vain."""
    cluster, memory = point.cluster, point.memory
    assert memory is not None
    free = len(case.gpus) - sum(bool(one.gpu) for one in cluster.units.values())
    for key, gang in memory.gangs.items():
        size, units, active = case.shapes[key].size, cluster.of(key), cluster.active(key)
        must(gang.eviction is None, "an eviction does not end")
        must(not gang.has_places, "a reservation is not used")
        must(not active or len(active) == len(units), "members do not follow")
        whole = len(units) == size or sum(one == key for one, _ in cluster.had) >= size
        must(not active or whole, "an incomplete gang keeps its GPUs")
        must(key not in cluster.reduced or len(active) == size, "a half of a victim keeps running")
        must(active or len(units) < size or free < size, "a gang waits though GPUs are free")
        must(gang.phase != Phase.BOUND or len(active) == len(units), "bound without nodes")
    return frozenset((key, len(cluster.of(key)), len(cluster.active(key))) for key in case.shapes)


# --- keys -----------------------------------------------------------------------------------------


def timeless(gang: GangState) -> GangState:
    """The same with times as before or after a deadline, and without texts for people."""
    progress = replace(gang.progress, since=0.0, moved=0.0, grown=0.0)
    retry = replace(
        gang.retry,
        not_before=DEADLINE if gang.retry.not_before not in {BEFORE, AFTER} else BEFORE,
        tries=min(gang.retry.tries, 1),
        barred=dict.fromkeys(gang.retry.barred, DEADLINE),
        spared=dict.fromkeys(gang.retry.spared, DEADLINE),
    )
    eviction = gang.eviction
    if eviction is not None:
        eviction = replace(eviction, at=DEADLINE if eviction.notified else BEFORE)
    elastic = replace(gang.elastic, until=DEADLINE if gang.elastic.until else 0.0)
    return replace(
        gang,
        reason="",
        topology="",
        progress=progress,
        retry=retry,
        eviction=eviction,
        elastic=elastic,
        planned=None,
    )


def key_of(point: Point) -> object:
    """What tells points apart."""
    cluster, memory = point.cluster, point.memory
    return (
        frozenset(cluster.units.values()),
        frozenset(cluster.written.items()),
        cluster.protected,
        cluster.broken,
        cluster.absent,
        cluster.reduced,
        cluster.had,
        None if memory is None else _memory_key(memory),
        point.left,
        memory.now if memory is not None and point.left else None,
        point.budget,
    )


def _memory_key(memory: Memory) -> object:
    gangs = frozenset(map(_gang_key, memory.gangs.values()))
    return gangs, frozenset(memory.counted.items()), memory.refused


def _gang_key(gang: GangState) -> object:
    reservation, retry = gang.reservation, gang.retry
    return (
        gang.key,
        gang.phase,
        gang.progress,
        frozenset(reservation.places.items()),
        frozenset(reservation.written.items()),
        reservation.victims,
        reservation.victim_gangs,
        gang.eviction,
        gang.blocked_by,
        retry.not_before,
        retry.tries,
        frozenset(retry.barred),
        frozenset(retry.spared),
        gang.elastic,
    )
