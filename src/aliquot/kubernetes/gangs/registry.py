"""The gangs of a cluster: the one place that changes their state.

Everybody else reads states and applies steps (`lifecycle`). A step's places are counted in the
cluster's allocations at the same moment, and members that wait at their bind hear of it.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.allocations import PendingPreemption
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.extender.bind import NotBoundError
from aliquot.kubernetes.gangs.lifecycle import (
    ClosePermit,
    CountPlaces,
    ForgetPlaces,
    ReleasePlaces,
    forget,
    give_up,
    victims_of,
)
from aliquot.kubernetes.gangs.state import GangState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.lifecycle import Action, Step


class Permit:
    """Lets the members of one reservation be bound when all of them have arrived.

    It stays open then: a member whose bind failed, or whose call ended while it waited for many
    others, comes again and passes at once. If the places are given up, all who wait are refused.
    """

    def __init__(self, wanted: Collection[str], *, is_open: bool = False) -> None:
        self._wanted = frozenset(wanted)
        self._arrived: set[str] = set()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if is_open:
            self._answer.set_result("")

    def __str__(self) -> str:
        return f"{len(self._arrived)} of {len(self._wanted)} have arrived"

    def refuse(self, why: str) -> None:
        """Refuse all who wait, unless the permit is open."""
        if not self._answer.done():
            self._answer.set_result(why)

    async def arrive(self, uid: str, seconds: float) -> None:
        """Return when all have arrived; NotBoundError if they do not, or are refused."""
        self._arrived.add(uid)
        if self._arrived >= self._wanted and not self._answer.done():
            self._answer.set_result("")
        try:
            async with asyncio.timeout(seconds):
                why = await asyncio.shield(self._answer)
        except TimeoutError:
            raise NotBoundError(f"the other members have not arrived yet: {self}") from None
        if why:
            raise NotBoundError(why)


class GangRegistry:
    """The state of each gang, by key. `outbox` gets the actions that are not about places."""

    def __init__(
        self,
        cluster: Cluster,
        workloads: Workloads,
        queue_of: Callable[[Pod], str],
        outbox: Callable[[GangState, Action], None],
    ) -> None:
        self._cluster = cluster
        self._workloads = workloads
        self._queue_of = queue_of
        self._outbox = outbox
        self._gangs: dict[GangKey, GangState] = {}
        self._permits: dict[GangKey, Permit] = {}
        self._reserved_in: dict[GangKey, str] = {}

    # --- answers ----------------------------------------------------------------------------------

    @property
    def gangs(self) -> Mapping[GangKey, GangState]:
        """All gangs."""
        return self._gangs

    @property
    def victims(self) -> set[str]:
        """The UIDs of all pods that are evicted for gangs, and still hold what those wait for."""
        return victims_of(self._gangs.values())

    def preemptions(self) -> list[PendingPreemption]:
        """The GPUs that change hands."""
        found = (self.preemption(one) for one in self._gangs.values() if one.reservation.victims)
        return list(found)

    def preemption(self, gang: GangState) -> PendingPreemption:
        """The GPUs that victims leave to a gang, as far as its members have no nodes yet."""
        pods = self._workloads.gangs[gang.key]
        bound = {one.metadata.uid for one in pods.bound}
        places = gang.reservation.places
        return PendingPreemption(
            victims=gang.reservation.victims,
            heirs=frozenset(places),
            nodes=frozenset(place.node for uid, place in places.items() if uid not in bound),
            queue=self.queue_of(gang.key),
        )

    def permit(self, key: GangKey) -> Permit | None:
        """What the members of a reservation wait for."""
        return self._permits.get(key)

    def queue_of(self, key: GangKey) -> str:
        """The queue that a gang is in now, by its pods."""
        return self._queue_of(self._workloads.gangs[key].lead)

    def reserved_in(self, key: GangKey) -> str:
        """The queue in which the places of a gang were reserved; without places, its queue now."""
        return self._reserved_in.get(key) or self.queue_of(key)

    def moved(self, key: GangKey) -> str:
        """That a gang is in another queue than its places were reserved in; empty if it is not."""
        before, now = self.reserved_in(key), self.queue_of(key)
        return (
            "" if before == now else f"it was reserved in queue {before!r}, and is in {now!r} now"
        )

    def place_of(self, gang: GangState, uid: str) -> Reserved:
        """A member's place, as the cluster counts it."""
        place = gang.reservation.places[uid]
        return Reserved(self._workloads.pods[uid].key, place.node, place.parts, math.inf)

    # --- changes ----------------------------------------------------------------------------------

    def add(self, key: GangKey) -> None:
        """A gang has pods; nothing changes if it is registered already."""
        self._gangs.setdefault(key, GangState(key))

    def remove(self, key: GangKey, now: float) -> bool:
        """A gang has no pods any more; whether it was registered."""
        gang = self._gangs.get(key)
        if gang is None:
            return False
        self.apply(give_up(gang, "all its pods are gone", now))
        del self._gangs[key]
        return True

    def update(self, gang: GangState) -> None:
        """The next state of a gang; nothing if the gang is gone."""
        if gang.key in self._gangs:
            self._gangs[gang.key] = gang

    def apply(self, step: Step) -> None:
        """The next state of a gang, with all that follows from it."""
        self.update(step.gang)
        for action in step.actions:
            self._do(step.gang, action)

    def forget_all(self) -> None:
        """Another replica leads: forget all decisions, and refuse members at their bind."""
        for permit in self._permits.values():
            permit.refuse("another replica leads now")
        self._permits.clear()
        self._reserved_in.clear()
        for gang in self._gangs.values():
            self.update(forget(gang))

    def _do(self, gang: GangState, action: Action) -> None:
        match action:
            case CountPlaces():
                for uid in gang.reservation.places:
                    self._cluster.reserve(uid, self.place_of(gang, uid))
                is_open = bool(gang.progress.had_nodes)
                self._permits[gang.key] = Permit(gang.reservation.places, is_open=is_open)
                self._reserved_in[gang.key] = self.queue_of(gang.key)
            case ReleasePlaces(uids, why):
                for uid in uids:
                    self._cluster.release(uid)
                self._reserved_in.pop(gang.key, None)
                permit = self._permits.pop(gang.key, None)
                if permit is not None:
                    permit.refuse(f"gang {gang.key}: {why}")
            case ForgetPlaces(uids):
                for uid in uids:
                    self._cluster.forget(uid)
            case ClosePermit():
                self._permits.pop(gang.key, None)
                self._reserved_in.pop(gang.key, None)
            case _:
                self._outbox(gang, action)
