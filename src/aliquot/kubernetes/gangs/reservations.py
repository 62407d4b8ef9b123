"""The places of gangs on their way: counted in the allocations, and given up.

A place is given up with all others of its gang while none of them is bound: when a pod of the gang,
the node or a GPU goes away, when kube-scheduler does not offer the node, and when for `grace`
seconds no member has arrived. Once one is bound, the others have twice that time to follow; then
those that have nodes are to end (`leaving`), so that no half of a gang keeps its GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import PLAN, SCHEDULER
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.gangs.permit import Permit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.membership import Key
    from aliquot.kubernetes.gangs.sources import Found
    from aliquot.kubernetes.gangs.state import GangState, MemberPlace

ENDING_SECONDS = 600.0  # others that end for a gang are waited for so long


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: for members to arrive and follow, and for others to begin to end."""

    grace: float = 30.0
    room: float = 60.0


class Reservations:
    """All places of all gangs, in the allocations of one cluster."""

    def __init__(self, cluster: Cluster, holdings: WorkloadAllocations, times: Times) -> None:
        self._cluster = cluster
        self._holdings = holdings
        self._times = times
        self._permits: dict[Key, Permit] = {}

    def take(
        self,
        gang: GangState,
        places: Mapping[str, MemberPlace],
        now: float,
        making_room: frozenset[str],
    ) -> None:
        """These are the places of a gang's members from now on."""
        gang.reserve(places, now)
        gang.making_room = making_room
        self._count(gang)

    def give_up(
        self, gang: GangState, why: str, now: float, *, node: str = "", pause: bool = True
    ) -> None:
        """Take a gang's places back."""
        for uid in gang.give_up(why, now, node=node, pause=pause):
            self._cluster.release(uid)
        permit = self._permits.pop(gang.key, None)
        if permit is not None:
            permit.refuse(f"gang {gang.key}: {why}")

    def permit(self, gang: GangState) -> Permit:
        """The permit of a gang that has places."""
        return self._permits[gang.key]

    def reserved(self, gang: GangState, uid: str) -> Reserved:
        """A member's place, as the allocations count it."""
        place = gang.reserved[uid]
        return Reserved(gang.pods[uid].key, place.node, place.parts, math.inf)

    def restore(
        self, gang: GangState, places: Mapping[str, MemberPlace], ending: frozenset[str]
    ) -> None:
        """These were a gang's places when another led, and the API server has them."""
        gang.reserved.update(places)
        gang.persisted = dict(gang.reserved)
        gang.making_room = ending
        gang.phase = Phase.RESERVED
        self._count(gang)

    def forget_all(self, why: str) -> None:
        """Another leads: whoever waits for a permit is told."""
        for permit in self._permits.values():
            permit.refuse(why)
        self._permits.clear()

    def settle(self, gang: GangState, found: Found | None, now: float) -> None:
        """What follows from pods that were bound or went, from nodes, and from time."""
        for pod in gang.bound:
            gang.reserved.pop(pod.metadata.uid, None)
        for pod in gang.staying:
            if pod.metadata.uid not in gang.had_nodes:
                gang.had_nodes.add(pod.metadata.uid)
                gang.moved = gang.grown = now
                gang.leavers = max(gang.leavers, len(gang.staying))
        wanted = gang.wanted(found)
        if gang.making_room:
            self._look_for_room(gang, now)
        if gang.reserved:
            self._look_at_places(gang, wanted, now)
        if wanted is not None and len(gang.had_nodes) >= wanted:
            gang.whole_once = True
        if gang.staying and not gang.whole_once and now - gang.grown > 2 * self._times.grace:
            self._leave(gang, wanted, now)
        if not gang.staying and (not gang.reserved or gang.leaving):
            gang.begin_anew()
        if gang.staying and not gang.unbound and not gang.leaving:
            self._come_to_rest(gang, wanted)

    # --- inside -----------------------------------------------------------------------------------

    def _count(self, gang: GangState) -> None:
        for uid in gang.reserved:
            self._cluster.reserve(uid, self.reserved(gang, uid))
        self._permits[gang.key] = Permit(gang.reserved, is_open=bool(gang.had_nodes))

    def _look_for_room(self, gang: GangState, now: float) -> None:
        """Whether those that make room for a gang are gone."""
        gang.making_room = self._holdings.in_the_way(gang, now)
        if not gang.making_room:
            gang.moved = now

    def _come_to_rest(self, gang: GangState, wanted: int | None) -> None:
        """All that are there have nodes."""
        gang.phase, gang.reason, gang.planned = Phase.BOUND, _past_us(gang), None
        if gang.whole_once:
            gang.tries, gang.not_before, gang.kept = 0, 0.0, ""
        else:
            gang.phase = Phase.RESERVED
            some = _so_many(gang, wanted)
            gang.reason = f"{some} have nodes, and the others are not there{gang.why_kept}"
        self._permits.pop(gang.key, None)

    def _look_at_places(self, gang: GangState, wanted: int | None, now: float) -> None:
        unbound = {one.metadata.uid for one in gang.unbound}
        gone = [uid for uid in gang.reserved if uid not in unbound]
        if gone and not gang.had_nodes:
            self.give_up(gang, "a pod of it went away", now, pause=False)
            return
        for uid in gone:
            del gang.reserved[uid]
            self._cluster.forget(uid)
        if wanted is not None and len(gang.reserved) < wanted and not gang.had_nodes:
            self.give_up(gang, "its size has changed", now)
            return
        for uid, place in gang.reserved.items():
            fault = self._fault(uid, place, gang.making_room)
            if fault:
                self.give_up(gang, fault, now, pause=False)
                return
        waits = ENDING_SECONDS if gang.making_room else self._times.grace
        if gang.reserved and now - gang.moved > waits:
            permit = self._permits.get(gang.key)
            self.give_up(gang, f"its members did not arrive in time: {permit}", now)

    def _fault(self, uid: str, place: MemberPlace, ending: frozenset[str]) -> str:
        """What keeps a place from being taken; nothing where nothing does."""
        unusable = self._cluster.why_unusable(place.node)
        if unusable is not None:
            return f"node {place.node} is unusable: {unusable}"
        status = self._cluster.nodes[place.node].status
        columns = {gpu.uuid: column for column, gpu in enumerate(status.gpus) if gpu.healthy}
        for part in place.parts:
            missing = [gpu for gpu in part.gpus if gpu not in columns]
            if missing:
                return f"GPU {missing[0]} of node {place.node} went away"
            if part.kind != "whole":
                continue
            mine = {columns[gpu] for gpu in part.gpus}
            for other, held in self._cluster.usage_by_pod(place.node).items():
                if other != uid and other not in ending and not mine.isdisjoint(held):
                    return f"a GPU of node {place.node} that it was to have is in use"
        return ""

    def _leave(self, gang: GangState, wanted: int | None, now: float) -> None:
        if not gang.leaving:
            why = f"only {_so_many(gang, wanted)} got their nodes: it starts again{gang.why_kept}"
            gang.leave(why, now)
            self.give_up(gang, gang.leaving, now)


def _so_many(gang: GangState, wanted: int | None) -> str:
    count = len(gang.had_nodes)
    return f"{count} of {wanted} of its pods" if wanted else f"{count} of its pods"


def _past_us(gang: GangState) -> str:
    """That pods of it have nodes without a plan; nothing where all have one."""
    pods = gang.staying
    count = sum(PLAN not in one.metadata.annotations for one in pods)
    if not count:
        return ""
    return (
        f"{count} of its {len(pods)} pods have nodes that were not planned: a scheduler bound them"
        f" that does not ask Aliquot. Write schedulerName: {SCHEDULER}, or another profile of its"
        " kube-scheduler"
    )
