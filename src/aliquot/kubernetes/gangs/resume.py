"""How a new leader goes on from the Gang objects that the leader before has written. Pure.

A Gang's status is a reservation while its phase is `Reserved`, and an eviction while it has an
`evictionReason`. `RestorableWorld` says what pods, nodes and allocations confirm of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.gangs.lifecycle import CountPlaces, Step, evict, report
from aliquot.kubernetes.gangs.state import PendingEviction, Reservation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.kubernetes.api.gang import GangStatus
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.gangs.lifecycle import GangUids
    from aliquot.kubernetes.gangs.state import GangState, MemberPlace

NOT_CONFIRMED = "its pods and nodes do not confirm its reservation: it is planned again"


class RestorableWorld(Protocol):
    """The gangs of a new leader, and what pods and nodes confirm of what was written."""

    @property
    def gangs(self) -> Mapping[GangKey, GangState]:
        """The state of each gang, with all steps so far."""
        ...

    def uids(self, key: GangKey) -> GangUids:
        """The pods of a gang."""
        ...

    def apply(self, step: Step) -> None:
        """Make a step true."""
        ...

    def notice(self, key: GangKey) -> float:
        """How long before their eviction the pods of a gang ask to be notified."""
        ...

    def since(self, key: GangKey, status: GangStatus) -> float:
        """Since when all members of a gang exist."""
        ...

    def was_whole(self, key: GangKey, status: GangStatus) -> bool:
        """Whether all members of a gang had nodes."""
        ...

    def places(self, key: GangKey, status: GangStatus) -> Mapping[str, MemberPlace] | None:
        """The places of members without a node; None if they are not confirmed."""
        ...

    def gangs_of(self, uids: Collection[str]) -> list[GangKey]:
        """The gangs of these pods."""
        ...


def resume_all(world: RestorableWorld, found: Mapping[GangKey, GangStatus], now: float) -> None:
    """Go on from what the leader before has written; each gang counts for the next."""
    # 1. Evictions that have begun go on, whether they are still needed or not.
    for key, status in found.items():
        begun = 0 < len(world.uids(key).active) < status.eviction_pods
        if begun and status.eviction_reason:
            _resume_eviction(world, key, status, None, now)
    for key, status in found.items():
        # 2. What is remembered about pods.
        since, whole = world.since(key, status), world.was_whole(key, status)
        gang = world.gangs[key]
        gang = resume_progress(
            gang, status, world.uids(key), since=since, whole_once=whole, now=now
        )
        world.apply(Step(gang))
        if status.phase != Phase.RESERVED:
            continue
        # 3. The reservation, if pods and nodes confirm it, and the eviction of its victims.
        places = world.places(key, status)
        if places is None or _lacks_members(status, places, world.uids(key)):
            world.apply(Step(report(gang, Phase.WAITING, NOT_CONFIRMED)))
        elif places:
            victims = world.gangs_of(status.victims)
            world.apply(resume_reservation(gang, status, places, victims))
            for other in victims:
                _resume_eviction(world, other, found.get(other), key, now)


def _lacks_members(status: GangStatus, places: Mapping[str, MemberPlace], pods: GangUids) -> bool:
    """Whether a gang that has not started has lost a member: the others must not start alone."""
    return not pods.active and len(places) < sum(bool(one.node) for one in status.members)


def _resume_eviction(
    world: RestorableWorld,
    key: GangKey,
    status: GangStatus | None,
    preemptor: GangKey | None,
    now: float,
) -> None:
    """Go on with an eviction as it was written, or decide it again if it was not."""
    gang, active, notice = world.gangs[key], len(world.uids(key).active), world.notice(key)
    if status is not None and status.eviction_reason:
        after = resume_eviction(gang, status, active, now, notice=notice, preemptor=preemptor)
    else:
        why = f"preempted for {preemptor}"
        after = evict(gang, why, now, active, notice=notice, preemptor=preemptor)
    world.apply(Step(after))


# --- transitions ----------------------------------------------------------------------------------


def resume_progress(  # noqa: PLR0913 - all that bears out a status
    gang: GangState,
    status: GangStatus,
    pods: GangUids,
    *,
    since: float,
    whole_once: bool,
    now: float,
) -> GangState:
    """Remember what a Gang object says about a gang's pods, as far as it was confirmed."""
    progress = replace(gang.progress, since=since, whole_once=whole_once, grown=now, moved=now)
    if status.phase == Phase.RESERVED and pods.active:  # all members existed: the others are gone
        gone = {one.uid for one in status.members if one.uid not in pods.every}
        progress = replace(progress, had_nodes=progress.had_nodes | gone)
    topology = status.topology if status.phase == Phase.RESERVED else gang.topology
    return replace(gang, progress=progress, topology=topology)


def resume_reservation(
    gang: GangState,
    status: GangStatus,
    places: Mapping[str, MemberPlace],
    victim_gangs: Collection[GangKey],
) -> Step:
    """Go on with a reservation that the leader before has written, and that was confirmed."""
    reservation = Reservation(
        places=dict(places),
        written=dict(places),
        victims=frozenset(status.victims),
        victim_gangs=frozenset(victim_gangs),
    )
    after = replace(
        gang,
        phase=Phase.RESERVED,
        reason=status.reason,
        reservation=reservation,
    )
    return Step(after, (CountPlaces(),))


def resume_eviction(  # noqa: PLR0913 - all that an eviction consists of
    gang: GangState,
    status: GangStatus,
    active: int,
    now: float,
    *,
    notice: float,
    preemptor: GangKey | None = None,
) -> GangState:
    """Go on with an eviction that the leader before has written; its time does not begin again.

    `notice` is what the pods asked for. They get no more than that, nor than was written.
    """
    if gang.eviction is not None:
        return gang
    until = seconds_at(status.eviction_time)
    notice = 0.0 if until is None else notice
    at = now + notice if until is None else min(now + notice, until)
    eviction = PendingEviction(
        why=status.eviction_reason,
        at=at,
        pods=max(active, status.eviction_pods),
        preemptor=preemptor,
        notified=notice > 0,
        written=True,
    )
    return replace(gang, eviction=eviction)
