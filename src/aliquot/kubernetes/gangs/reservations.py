"""The places of gangs on their way: counted in the books, given up, and read again.

A place is given up with all others of its gang while none of them is bound: when a pod of the gang,
the node or a GPU goes away, when kube-scheduler does not offer the node, and when for `grace`
seconds no member has arrived. Once one is bound, the others have twice that time to follow; then
those that have nodes are to end (`leaving`), so that no half of a gang keeps its GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.gangs.objects import Phase
from aliquot.kubernetes.gangs.permit import Permit
from aliquot.kubernetes.gangs.state import Place
from aliquot.kubernetes.gangs.words import seconds_at
from aliquot.kubernetes.names import PLAN
from aliquot.kubernetes.scheduler.cluster import Reserved
from aliquot.kubernetes.scheduler.parts import planned_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.gangs.members import Key
    from aliquot.kubernetes.gangs.objects import GangMember, GangStatus
    from aliquot.kubernetes.gangs.state import Known
    from aliquot.kubernetes.presets import Preset
    from aliquot.kubernetes.scheduler.cluster import Cluster
    from aliquot.kubernetes.scheduler.parts import Parts

ENDING_SECONDS = 600.0  # others that end for a gang are waited for so long


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: for members to arrive and follow, and for others to begin to end."""

    grace: float = 30.0
    room: float = 60.0


class Reservations:
    """All places of all gangs, in the books of one cluster."""

    def __init__(self, cluster: Cluster, presets: Sequence[Preset], times: Times) -> None:
        self._cluster = cluster
        self._presets = presets
        self._times = times
        self._permits: dict[Key, Permit] = {}

    def take(
        self, gang: Known, places: Mapping[str, Place], now: float, making_room: frozenset[str]
    ) -> None:
        """These are the places of a gang's members from now on."""
        gang.reserve(places, now)
        gang.making_room = making_room
        self._count(gang)

    def give_up(self, gang: Known, why: str, now: float, *, node: str = "") -> None:
        """Take a gang's places back."""
        for uid in gang.give_up(why, now, node=node):
            self._cluster.release(uid)
        permit = self._permits.pop(gang.key, None)
        if permit is not None:
            permit.refuse(f"gang {gang.key}: {why}")

    def permit(self, gang: Known) -> Permit:
        """The permit of a gang that has places."""
        return self._permits[gang.key]

    def reserved(self, gang: Known, uid: str) -> Reserved:
        """A member's place, as the books count it."""
        place = gang.reserved[uid]
        return Reserved(gang.pods[uid].key, place.node, place.parts, math.inf)

    def restore(self, gang: Known, status: GangStatus, now: float) -> None:
        """What was reserved when another led is so again."""
        gang.since = seconds_at(status.since) or now
        gang.whole_once = status.whole_once
        gang.grown = gang.moved = now
        if status.phase != Phase.RESERVED:
            return
        gang.making_room = frozenset(status.making_room)
        gang.topology = status.topology
        if gang.staying:  # then all were there, and who is gone has ended
            gang.had_nodes |= {one.uid for one in status.members if one.uid not in gang.pods}
        unbound = {one.metadata.uid: one for one in gang.unbound}
        for one in status.members:
            if one.uid in unbound and one.plan:
                gang.reserved[one.uid] = Place(one.node, self._parts(unbound[one.uid], one))
        gang.persisted = dict(gang.reserved)
        if gang.reserved:
            gang.phase, gang.reason = Phase.RESERVED, status.reason
            self._count(gang)

    def forget_all(self, why: str) -> None:
        """Another leads: whoever waits for a permit is told."""
        for permit in self._permits.values():
            permit.refuse(why)
        self._permits.clear()

    def settle(self, gang: Known, size: int | None, now: float) -> None:
        """What follows from pods that were bound or went, from nodes, and from time."""
        for pod in gang.bound:
            gang.reserved.pop(pod.metadata.uid, None)
        for pod in gang.staying:
            if pod.metadata.uid not in gang.had_nodes:
                gang.had_nodes.add(pod.metadata.uid)
                gang.moved = gang.grown = now
        if gang.making_room:
            self._look_for_room(gang, now)
        if gang.reserved:
            self._look_at_places(gang, size, now)
        wanted = None if size is None else size - len(gang.others)
        if wanted is not None and len(gang.had_nodes) >= wanted:
            gang.whole_once = True
        if gang.staying and not gang.whole_once and now - gang.grown > 2 * self._times.grace:
            self._leave(gang, wanted, now)
        if not gang.staying and (not gang.reserved or gang.leaving):
            gang.had_nodes.clear()  # who comes now is another gang of that name
            gang.whole_once, gang.leaving = False, ""
        if gang.staying and not gang.unbound and not gang.leaving:
            gang.phase = Phase.BOUND if gang.whole_once else Phase.RESERVED
            gang.reason, gang.planned = "", None
            self._permits.pop(gang.key, None)

    # --- inside -----------------------------------------------------------------------------------

    def _count(self, gang: Known) -> None:
        for uid in gang.reserved:
            self._cluster.reserve(uid, self.reserved(gang, uid))
        self._permits[gang.key] = Permit(gang.reserved, is_open=bool(gang.had_nodes))

    def _parts(self, pod: Pod, one: GangMember) -> Parts:
        notes = {**pod.metadata.annotations, PLAN: one.plan}
        meta = msgspec.structs.replace(pod.metadata, annotations=notes)
        return planned_parts(msgspec.structs.replace(pod, metadata=meta), self._presets)

    def _look_for_room(self, gang: Known, now: float) -> None:
        """Whether those that make room for a gang are gone from its nodes."""
        nodes = {place.node for place in gang.reserved.values()}
        here = {uid for node in nodes if node in self._cluster.rows for uid in self._held(node)}
        gang.making_room &= here
        if not gang.making_room:
            gang.moved = now

    def _look_at_places(self, gang: Known, size: int | None, now: float) -> None:
        unbound = {one.metadata.uid for one in gang.unbound}
        gone = [uid for uid in gang.reserved if uid not in unbound]
        if gone and not gang.had_nodes:
            self.give_up(gang, "a pod of it went away", now)
            gang.not_before = now
            return
        for uid in gone:
            del gang.reserved[uid]
            self._cluster.forget(uid)
        have = len(gang.reserved) + len(gang.had_nodes) + len(gang.others)
        if size is not None and have < size and not gang.had_nodes:
            self.give_up(gang, "its size has changed", now)
            return
        for uid, place in gang.reserved.items():
            fault = self._fault(uid, place, gang.making_room)
            if fault:
                self.give_up(gang, fault, now)
                gang.not_before = now
                return
        waits = ENDING_SECONDS if gang.making_room else self._times.grace
        if gang.reserved and now - gang.moved > waits:
            permit = self._permits.get(gang.key)
            self.give_up(gang, f"its members did not arrive in time: {permit}", now)

    def _fault(self, uid: str, place: Place, ending: frozenset[str]) -> str:
        """What keeps a place from being taken; nothing where nothing does."""
        if place.node not in self._cluster.rows:
            return f"node {place.node} has no GPUs to give any more"
        status = self._cluster.nodes[place.node].status
        columns = {gpu.uuid: column for column, gpu in enumerate(status.gpus) if gpu.healthy}
        for part in place.parts:
            missing = [gpu for gpu in part.gpus if gpu not in columns]
            if missing:
                return f"GPU {missing[0]} of node {place.node} went away"
            if part.kind != "whole":
                continue
            mine = {columns[gpu] for gpu in part.gpus}
            for other, held in self._held(place.node).items():
                if other != uid and other not in ending and not mine.isdisjoint(held):
                    return f"a GPU of node {place.node} that it was to have is in use"
        return ""

    def _held(self, node: str) -> Mapping[str, Mapping[int, object]]:
        return self._cluster.held(node)

    def _leave(self, gang: Known, wanted: int | None, now: float) -> None:
        if not gang.leaving:
            count = f"{len(gang.had_nodes)} of {wanted}" if wanted else str(len(gang.had_nodes))
            gang.leaving = f"only {count} of its pods got their nodes: it starts again"
            self.give_up(gang, gang.leaving, now)
