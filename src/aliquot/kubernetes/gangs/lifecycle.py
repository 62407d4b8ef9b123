"""What a gang does next: when it gives up, opens gates and evicts. A pure state machine.

The controller repeats four steps: it observes, advances each gang, applies the decision over all
gangs that wait, and does what is due: it writes Gang objects, opens gates and evicts pods. It may
die between any two writes, and another replica goes on from the Gang objects (`resume`). These
guards make that safe:

- *Write, then act.* A place that is not written opens no gate (`gates_due`). A gang whose eviction
  is not written loses no pod, and the eviction is written after the reservation of the gang that it
  is for (`may_be_written`, `evictions_due`).
- *Whole or not at all.* While no member has a node, all places are given up together. Once one has,
  the missing members get places again; if they do not follow in time, all are evicted (`advance`).
- *All victims, or none yet.* No pod is evicted for a gang while another of its victims cannot be
  evicted yet. A gang is evicted as a whole.
- *Abandoned preemptions.* If a preemption is abandoned, victims that have not lost a pod keep
  running (`cancel_eviction`).
- *Levels, not edges.* What is due depends only on the state and on what is observed. What was lost
  is done again.

So no GPU has two gangs, no incomplete gang keeps GPUs, and no pod is evicted for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import SCHEDULER
from aliquot.kubernetes.gangs.state import (
    ElasticRequest,
    PendingEviction,
    Reservation,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.gangs.state import GangState, MemberPlace, PlannedStart

VICTIM_SECONDS = 600.0  # a gang waits so long for its victims to terminate
SPARED = 5  # times the eviction deadline for which a protected victim is not chosen again


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: for members to arrive and follow, and for refused evictions to be accepted."""

    grace: float = 30.0
    eviction: float = 60.0


@dataclass(frozen=True, slots=True)
class Observation:
    """What the controller sees of a gang, by the UIDs of its pods.

    `bound` have a node, `active` are those of them that are not terminating, `unbound` have no node
    and are not terminating. `wanted` is how many members there must be; None if that is unknown.
    `leads_alone`: the one that is active is a leader, which runs before the others.
    `held` are the victims that still hold what the gang waits for. `faults` say why places cannot
    be used any more. `unplanned` is how many active pods another scheduler bound. `arrived` says
    how many members wait at their bind.
    """

    bound: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    unbound: frozenset[str] = frozenset()
    wanted: int | None = None
    leads_alone: bool = False
    held: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)
    unplanned: int = 0
    arrived: str = ""


@dataclass(frozen=True, slots=True)
class RefusedEviction:
    """A disruption budget refuses to evict a pod: why, since when, and the pod's work."""

    why: str
    since: float
    work: str


@dataclass(frozen=True, slots=True)
class GangUids:
    """All pods of a gang that request GPUs, and those of them that are active; by UID."""

    every: frozenset[str]
    active: frozenset[str]


# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountPlaces:
    """Count the reserved places in the allocations, and let members wait for each other."""


@dataclass(frozen=True, slots=True)
class ReleasePlaces:
    """Stop counting these places, except for pods that are being bound; refuse waiting members."""

    uids: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class ForgetPlaces:
    """Stop counting these places: their pods are gone."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClosePermit:
    """Members need not wait for each other any more: all have nodes."""


@dataclass(frozen=True, slots=True)
class ForgetRefusals:
    """Find out again whether these pods may be evicted."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell people with an event."""

    reason: str
    message: str


Action = CountPlaces | ReleasePlaces | ForgetPlaces | ClosePermit | ForgetRefusals | Warn


@dataclass(frozen=True, slots=True)
class Step:
    """The next state of a gang, and what the controller does to make it true."""

    gang: GangState
    actions: tuple[Action, ...] = ()

    def then(self, other: Step) -> Step:
        """This step, and one from its state."""
        return Step(other.gang, (*self.actions, *other.actions))


# --- transitions that a decision causes -----------------------------------------------------------


def report(gang: GangState, phase: Phase, reason: str) -> GangState:
    """Say why a gang is not planned."""
    return replace(gang, phase=phase, reason=reason, planned=None)


def wait(gang: GangState, reason: str, planned: PlannedStart | None) -> GangState:
    """Say why a gang waits, and when it is expected to start."""
    return replace(gang, phase=Phase.WAITING, reason=reason, planned=planned)


def drop_plan(gang: GangState) -> GangState:
    """A start was not possible any more: the gang is planned like one that has just come."""
    return replace(gang, planned=None)


def gather(gang: GangState, now: float) -> GangState:
    """All members exist: the gang waits since now, if it did not before."""
    if gang.progress.since:
        return gang
    return replace(gang, progress=replace(gang.progress, since=now))


def arrive(gang: GangState, now: float) -> GangState:
    """A member arrived at its bind, or was bound: the others have their time again."""
    return replace(gang, progress=replace(gang.progress, moved=now))


def reserve(  # noqa: PLR0913 - all that a reservation consists of
    gang: GangState,
    places: Mapping[str, MemberPlace],
    now: float,
    *,
    reason: str,
    topology: str,
    victims: Collection[str] = (),
    victim_gangs: Collection[GangKey] = (),
) -> Step:
    """Reserve places for the members without a node; the victims are evicted for it."""
    old = gang.reservation
    reservation = Reservation(
        places={**old.places, **places},
        written=old.written,
        victims=frozenset(victims),
        victim_gangs=old.victim_gangs.union(victim_gangs),
    )
    after = replace(
        gang,
        phase=Phase.RESERVED,
        reason=reason,
        topology=gang.topology if gang.progress.had_nodes else topology,
        reservation=reservation,
        progress=replace(gang.progress, moved=now),
        elastic=ElasticRequest(),
        planned=None,
    )
    return Step(after, (CountPlaces(),))


def give_up(gang: GangState, why: str, now: float, *, node: str = "", pause: bool = True) -> Step:
    """Give up all places; `node` is the one that kube-scheduler did not accept.

    The gang is planned again at once if a node was at fault or without a pause, else after one.
    """
    retry = gang.retry.bar(node, now) if node else gang.retry.at_once(now)
    if pause and not node:
        retry = gang.retry.back_off(now)
    after = replace(
        gang,
        phase=Phase.WAITING,
        reason=why,
        topology="",
        reservation=Reservation(),
        progress=replace(gang.progress, moved=now),
        retry=retry,
    )
    return Step(after, (ReleasePlaces(tuple(gang.reservation.places), why),))


def evict(  # noqa: PLR0913 - all that an eviction consists of
    gang: GangState,
    why: str,
    now: float,
    active: int,
    *,
    notice: float = 0.0,
    preemptor: GangKey | None = None,
) -> GangState:
    """Decide to evict the `active` pods with nodes; an eviction that is decided stays as it is."""
    if gang.eviction is not None:
        return gang
    eviction = PendingEviction(why, now + notice, active, preemptor, notified=notice > 0)
    return replace(gang, eviction=eviction)


def ask_elastic(gang: GangState, jobs: Mapping[str, float], now: float) -> GangState:
    """Ask elastic jobs to shrink for a gang."""
    return replace(gang, elastic=gang.elastic.ask(jobs, now))


# --- one step -------------------------------------------------------------------------------------


def advance(gang: GangState, seen: Observation, times: Deadlines, now: float) -> Step:
    """The next state of a gang, by its pods, its nodes and the time."""
    # 1. Members that were bound need no place; remember that they had nodes.
    gang = _record_bound(gang, seen, now)
    # 2. Victims that are gone are not waited for.
    gang = _record_freed(gang, seen, now)
    # 3. Places that cannot be used are given up.
    step = _check_places(gang, seen, times, now)
    # 4. A gang whose members all had nodes has started.
    gang = replace(step.gang, progress=step.gang.progress.complete(seen.wanted))
    step = Step(gang, step.actions)
    # 5. A gang that is not completed in time is evicted, so that no half of it keeps GPUs.
    if _is_overdue(gang, seen, times, now):
        why = f"only {_count(gang, seen)} got their nodes: it starts again{gang.why_blocked}"
        gang = evict(gang, why, now, len(seen.active))
        step = step.then(give_up(gang, why, now))
    # 6. A gang without active pods begins again.
    if not seen.active and (not step.gang.has_places or step.gang.eviction is not None):
        step = Step(_restart(step.gang), step.actions)
    # 7. A gang of which all pods have nodes runs.
    if seen.active and not seen.unbound and step.gang.eviction is None:
        step = step.then(_come_to_rest(step.gang, seen))
    return step


def _record_bound(gang: GangState, seen: Observation, now: float) -> GangState:
    progress = gang.progress.bind(seen.active, now)
    eviction = gang.eviction
    if eviction is not None and progress is not gang.progress:
        eviction = replace(eviction, pods=max(eviction.pods, len(seen.active)))
    reservation = gang.reservation.without(seen.bound)
    return replace(gang, progress=progress, eviction=eviction, reservation=reservation)


def _record_freed(gang: GangState, seen: Observation, now: float) -> GangState:
    if not gang.reservation.victims:
        return gang
    left = gang.reservation.victims & seen.held
    progress = gang.progress if left else replace(gang.progress, moved=now)
    return replace(gang, reservation=replace(gang.reservation, victims=left), progress=progress)


def _check_places(gang: GangState, seen: Observation, times: Deadlines, now: float) -> Step:
    if not gang.has_places:
        return Step(gang)
    started = bool(gang.progress.had_nodes)
    gone = tuple(uid for uid in gang.reservation.places if uid not in seen.unbound)
    if gone and not started:
        return give_up(gang, "one of its pods was deleted", now, pause=False)
    step = Step(gang)
    if gone:
        gang = replace(gang, reservation=gang.reservation.without(gone))
        step = Step(gang, (ForgetPlaces(gone),))
    places, victims = gang.reservation.places, gang.reservation.victims
    if seen.wanted is not None and len(places) < seen.wanted and not started:
        return step.then(give_up(gang, "its size has changed", now))
    fault = next((seen.faults[uid] for uid in places if uid in seen.faults), "")
    if fault:
        return step.then(give_up(gang, fault, now, pause=False))
    limit = VICTIM_SECONDS if victims else times.grace
    if places and now - gang.progress.moved > limit:
        return step.then(give_up(gang, f"its members did not arrive in time: {seen.arrived}", now))
    return step


def _is_overdue(gang: GangState, seen: Observation, times: Deadlines, now: float) -> bool:
    """Whether some members have nodes, and the others have not followed in time."""
    incomplete = bool(seen.active) and not (gang.progress.whole_once or seen.leads_alone)
    late = now - gang.progress.grown > 2 * times.grace
    return incomplete and late and gang.eviction is None


def _restart(gang: GangState) -> GangState:
    return replace(gang, progress=gang.progress.restart(), eviction=None, blocked_by="")


def _come_to_rest(gang: GangState, seen: Observation) -> Step:
    if gang.progress.whole_once or seen.leads_alone:
        reason = _unplanned(seen)
        after = replace(gang, phase=Phase.BOUND, reason=reason, planned=None, blocked_by="")
        return Step(replace(after, retry=gang.retry.reset()), (ClosePermit(),))
    reason = f"{_count(gang, seen)} have nodes, and the others do not exist{gang.why_blocked}"
    return Step(replace(gang, phase=Phase.RESERVED, reason=reason, planned=None), (ClosePermit(),))


def _count(gang: GangState, seen: Observation) -> str:
    count = len(gang.progress.had_nodes)
    return f"{count} of {seen.wanted} of its pods" if seen.wanted else f"{count} of its pods"


def _unplanned(seen: Observation) -> str:
    """That another scheduler bound pods of it; nothing if all have a plan."""
    if not seen.unplanned:
        return ""
    return (
        f"{seen.unplanned} of its {len(seen.active)} pods have nodes that were not planned: a"
        f" scheduler bound them that does not ask Aliquot. Write schedulerName: {SCHEDULER}, or"
        " another profile of its kube-scheduler"
    )


# --- evictions that are refused or not needed any more --------------------------------------------


def abandon_preemption(
    gang: GangState, refused: Mapping[str, RefusedEviction], times: Deadlines, now: float
) -> Step | None:
    """Give up the places of a gang whose victims are protected; None if it goes on waiting.

    The protected victims are spared for a while, so that the gang looks for another way.
    """
    mine = {uid: refused[uid] for uid in sorted(gang.reservation.victims) if uid in refused}
    if not mine:
        return None
    since = min(one.since for one in mine.values())
    if now - max(gang.progress.moved, since) <= times.eviction:
        return None
    names = {one.work for one in mine.values() if one.work}
    until = now + SPARED * times.eviction
    spared = replace(gang, retry=gang.retry.spare(names, until))
    why = next(iter(mine.values())).why
    forget = Step(spared, (ForgetRefusals(tuple(mine)),))
    return forget.then(give_up(spared, why, now, pause=False))


def keep_running(  # noqa: PLR0913, PLR0917 - all that it depends on
    gang: GangState,
    pods: GangUids,
    victims: Collection[str],
    refused: Mapping[str, RefusedEviction],
    times: Deadlines,
    now: float,
) -> Step | None:
    """Abandon the eviction of a gang whose pods are protected; None if it goes on.

    Its missing members are placed when there are GPUs for them. `victims` are the pods that gangs
    wait for: those are not kept, their preemption is abandoned first.
    """
    eviction = gang.eviction
    mine = [refused[uid] for uid in sorted(pods.active) if uid in refused]
    if eviction is None or not mine or not pods.every.isdisjoint(victims):
        return None
    if now - eviction.ends_at <= times.eviction and not gang.blocked_by:
        return None
    progress = replace(gang.progress, grown=now)
    if eviction.has_begun(len(pods.active)):
        progress = progress.shrink(pods.active, now)
    after = replace(gang, eviction=None, blocked_by=mine[0].why, progress=progress)
    actions: tuple[Action, ...] = (ForgetRefusals(tuple(sorted(pods.active))),)
    if not gang.blocked_by:
        text = f"{after.blocked_by}: its other pods are placed as soon as there are GPUs"
        actions = (*actions, Warn("EvictionBlocked", text))
    return Step(after, actions)


def cancel_eviction(
    gang: GangState,
    pods: GangUids,
    victims: Collection[str],
    gangs: Mapping[GangKey, GangState],
) -> GangState:
    """Cancel an eviction whose preemption was abandoned, if the gang has not lost a pod yet.

    `victims` are the pods that gangs wait for.
    """
    eviction = gang.eviction
    if eviction is None or eviction.preemptor is None or eviction.has_begun(len(pods.active)):
        return gang
    preemptor = gangs.get(eviction.preemptor)
    is_wanted = preemptor is not None and gang.key in preemptor.reservation.victim_gangs
    if is_wanted or not pods.every.isdisjoint(victims):
        return gang
    return replace(gang, eviction=None)


# --- all gangs ------------------------------------------------------------------------------------


def victims_of(gangs: Iterable[GangState]) -> set[str]:
    """The UIDs of all pods that are evicted for gangs and still hold what those wait for."""
    return {uid for one in gangs for uid in one.reservation.victims}


class GangWorld(Protocol):
    """The gangs as they are at each moment, and what can be observed of them."""

    @property
    def gangs(self) -> Mapping[GangKey, GangState]:
        """The state of each gang, with all steps so far."""
        ...

    def observe(self, gang: GangState) -> Observation:
        """What is seen of a gang."""
        ...

    def uids(self, key: GangKey) -> GangUids:
        """The pods of a gang."""
        ...

    def apply(self, step: Step) -> None:
        """Make a step true."""
        ...


def advance_all(
    world: GangWorld, refused: Mapping[str, RefusedEviction], times: Deadlines, now: float
) -> None:
    """Advance all gangs, one after the other."""
    gangs = world.gangs
    # 1. Abandon preemptions whose victims are protected.
    for key in list(gangs):
        if (step := abandon_preemption(gangs[key], refused, times, now)) is not None:
            world.apply(step)
    # 2. Abandon evictions of gangs that are protected and that nobody waits for.
    victims = victims_of(gangs.values())
    for key in list(gangs):
        step = keep_running(gangs[key], world.uids(key), victims, refused, times, now)
        if step is not None:
            world.apply(step)
    # 3. Advance each gang by what is observed.
    for key in list(gangs):
        world.apply(advance(gangs[key], world.observe(gangs[key]), times, now))
    # 4. Cancel evictions whose preemption was abandoned.
    victims = victims_of(gangs.values())
    for key in list(gangs):
        after = cancel_eviction(gangs[key], world.uids(key), victims, gangs)
        if after is not gangs[key]:
            world.apply(Step(after))


# --- what is due ----------------------------------------------------------------------------------


def may_be_written(gang: GangState, pods: GangUids, gangs: Mapping[GangKey, GangState]) -> bool:
    """Whether the present state may be written to the Gang object.

    No if a member with a reserved place was deleted and no pod is active: the next leader would
    take the other places for the whole reservation. No if the gang is evicted for another one whose
    reservation is not written yet.
    """
    if not pods.active and not pods.every.issuperset(gang.reservation.places):
        return False
    eviction = gang.eviction
    if eviction is None or eviction.preemptor is None:
        return True
    preemptor = gangs.get(eviction.preemptor)
    return preemptor is None or preemptor.reservation.is_written


def record_write(
    gang: GangState, places: Mapping[str, MemberPlace], eviction: PendingEviction | None
) -> GangState:
    """The API server has these places and this eviction, which may be older than the state."""
    after = replace(gang, reservation=replace(gang.reservation, written=dict(places)))
    now = gang.eviction
    if now is None or eviction is None or now.why != eviction.why:
        return after
    return replace(after, eviction=replace(now, written=True))


def gates_due(gang: GangState) -> list[str]:
    """The UIDs of members that may go to kube-scheduler."""
    return [uid for uid in gang.reservation.places if gang.reservation.is_open(uid)]


def evictions_due(
    gangs: Mapping[GangKey, GangState], pods: Mapping[GangKey, GangUids], now: float
) -> set[str]:
    """The UIDs of all pods that are evicted now."""
    every = gangs.values()
    not_yet = victims_of(one for one in every if not one.reservation.is_written)
    victims = victims_of(every)
    for gang in every:
        if gang.eviction is None:
            continue
        abandoned = cancel_eviction(gang, pods[gang.key], victims, gangs) is not gang
        if abandoned or not gang.eviction.is_due(now):
            not_yet |= pods[gang.key].every
    for gang in every:  # no pod is evicted for a gang while another of its victims has to wait
        if not not_yet.isdisjoint(gang.reservation.victims):
            not_yet |= gang.reservation.victims
    due = victims - not_yet
    for gang in every:
        if gang.eviction is not None and not_yet.isdisjoint(pods[gang.key].every):
            due |= pods[gang.key].active
    return due


# --- another replica leads ------------------------------------------------------------------------


def forget(gang: GangState) -> GangState:
    """This replica stops leading: it forgets what the next leader decides."""
    return replace(
        _restart(gang),
        phase=Phase.GATHERING,
        reservation=Reservation(),
        elastic=ElasticRequest(),
        planned=None,
    )
