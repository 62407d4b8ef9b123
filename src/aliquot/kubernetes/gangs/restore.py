"""What the leader before has reserved, as its Gang objects say it, checked before it counts.

Others than the scheduler may have written a Gang's status. So nothing is believed of it that pods,
nodes and the allocations do not bear out:

- A place is a member's where the plan is what the pod asks for, on GPUs that are there and free,
  and within the limits of its queue. Where one of a gang's is not, none counts, and it is planned
  anew.
- Others end for a gang where it has a right to that by what runs now, and they are in its way.
  Otherwise its claim is given up, and decided anew.
- A gang has not waited for longer than its oldest pod is there.
- One that was whole is not ended. One that says that it was not, and has run for long, was.
- One that was being ended when the leader before ended is ended where some of it have gone: so no
  half stays of those that made room, though what is left of them is in nobody's way. How many there
  were is believed. Where none has gone, nothing was done yet, and the claim is looked at as above.
- Whoever was told when it ends has no more time than was written, and no more than it asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.demands import demand_of
from aliquot.kubernetes.cluster.elastic import told_ahead
from aliquot.kubernetes.cluster.parts import planned_parts
from aliquot.kubernetes.cluster.snapshot import as_one, parts_on
from aliquot.kubernetes.gangs.messages import seconds_at
from aliquot.kubernetes.gangs.state import MemberPlace
from aliquot.placement.core.demand import Gang, Placement, Running
from aliquot.placement.queues.preempt import preemptible
from aliquot.placement.queues.quota import Tree, needs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aliquot.kubernetes.api.gang import GangMember, GangStatus
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.membership import Key
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.reservations import Reservations
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.demand import Demand

LONG = 10  # times the grace in which a half is ended
NOT_BORNE_OUT = "its reservation is not borne out by its pods and nodes: it is planned anew"


@dataclass(frozen=True, slots=True)
class _Start:
    """The places of a gang's members, by UID, and all of them as something that runs."""

    places: Mapping[str, MemberPlace] = field(default_factory=dict)
    running: Running | None = None


class Restorer:
    """Reads what was reserved; one gang after the other, each counts for the next."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that bears it out
        self,
        planner: Planner,
        presets: Sequence[Preset],
        roster: Workloads,
        queues: Queues,
        holdings: WorkloadAllocations,
        reservations: Reservations,
        grace: float,
    ) -> None:
        self._planner = planner
        self._cluster = planner.cluster
        self._presets = presets
        self._roster = roster
        self._queues = queues
        self._holdings = holdings
        self._reservations = reservations
        self._grace = grace
        self._before: Mapping[Key, GangStatus] = {}

    def restore(self, found: Sequence[tuple[GangState, GangStatus]], now: float) -> None:
        """What is true of the status of gangs is so again; first of all, who was being ended."""
        self._before = {gang.key: status for gang, status in found}
        for gang, status in found:
            gang.leaving_known = status.leaving
            if status.leaving and 0 < len(gang.staying) < status.leavers:
                gang.leave_on(status, now)
        for gang, status in found:
            self._restore(gang, status, now)

    def _restore(self, gang: GangState, status: GangStatus, now: float) -> None:
        gang.since = _since(gang, status, now)
        gang.whole_once = status.whole_once or self._has_run_long(gang, now)
        gang.grown = gang.moved = now
        if status.phase != Phase.RESERVED:
            return
        gang.topology = status.topology
        if gang.staying:  # then all were there, and who is gone has ended
            gang.had_nodes |= {one.uid for one in status.members if one.uid not in gang.pods}
        ending = frozenset(status.making_room)
        start = self._start(gang, status, now)
        if start is None or not self._may_have(start, ending, now):
            gang.tell(Phase.WAITING, NOT_BORNE_OUT)
        elif start.places:
            gang.reason = status.reason
            self._reservations.restore(gang, start.places, ending)
            self._end_whole(gang, ending, now)

    def _end_whole(self, gang: GangState, ending: frozenset[str], now: float) -> None:
        """Gangs that make room end as a whole."""
        pods = [self._roster.pods[uid] for uid in ending if uid in self._roster.pods]
        for other in filter(None, map(self._roster.gang_of, pods)):
            gang.claimed.add(other.key)
            before = self._before.get(other.key)
            if before is not None and before.leaving:
                other.leave_on(before, now, gang.key)
            else:
                other.leave(f"preempted for {gang.key}", now, told_ahead(other.staying), gang.key)

    def _has_run_long(self, gang: GangState, now: float) -> bool:
        """Whether those with nodes have had them for longer than a half would."""
        starts = [seconds_at(one.status.start_time) for one in gang.staying]
        long_ago = now - LONG * 2 * self._grace
        return bool(starts) and all(at is not None and at < long_ago for at in starts)

    def _start(self, gang: GangState, status: GangStatus, now: float) -> _Start | None:
        """The places of members on their way; None where one of them is not borne out."""
        unbound = {one.metadata.uid: one for one in gang.unbound}
        places: dict[str, MemberPlace] = {}
        placements: list[Placement] = []
        demands: list[Demand] = []
        for member in status.members:
            if member.uid not in unbound or not member.plan:
                continue
            found = self._place(unbound[member.uid], member)
            if found is None:
                return None
            places[member.uid], placement, demand = found
            placements.append(placement)
            demands.append(demand)
        if not places:
            return _Start()
        work = self._roster.work_of(gang, now)
        one = Gang(work.name, tuple(demands), work.seconds, work.queue, work.priority)
        return _Start(places, Running(one, tuple(placements), now, now + work.seconds))

    def _place(self, pod: Pod, member: GangMember) -> tuple[MemberPlace, Placement, Demand] | None:
        """A member's place, where it is what its pod asks for, and on GPUs that are there."""
        row, node = self._cluster.rows.get(member.node), self._cluster.nodes.get(member.node)
        notes = {**pod.metadata.annotations, PLAN: member.plan}
        meta = msgspec.structs.replace(pod.metadata, annotations=notes)
        parts = planned_parts(msgspec.structs.replace(pod, metadata=meta), self._presets)
        if row is None or node is None or not parts:
            return None
        beside = [one for one in parts if not one.init] or list(parts)
        columns = {gpu.uuid: column for column, gpu in enumerate(node.status.gpus)}
        wanted = [gpu for one in beside for gpu in one.gpus]
        if not all(gpu in columns for gpu in wanted):
            return None
        placement = Placement(row, tuple(columns[gpu] for gpu in wanted))
        try:
            requests = self._planner.requests(pod)
            request = as_one(requests)
            if parts_on(node, requests, placement) != parts:
                return None
        except (InvalidRequestError, ValueError):
            return None
        hardware = self._cluster.chooser.allocations.hardware
        size = int(hardware.gpu_bytes[row])
        demand = demand_of(request, size, node.status.shares, hardware.models)
        return MemberPlace(member.node, parts), placement, demand

    def _may_have(self, start: _Start, ending: frozenset[str], now: float) -> bool:
        """Whether its places are free, or will be when those have ended that it has a right over.

        And whether they are within its queues' limits.
        """
        one = start.running
        if one is None:
            return True
        live = [uid for uid in ending if uid in self._roster.pods and not self._is_ending(uid)]
        if live and (self._fits(one, (), now) or not self._has_right(one.gang, live, now)):
            return False
        return self._fits(one, ending, now)

    def _fits(self, one: Running, ended: Collection[str], now: float) -> bool:
        """Whether its places are free, and within limits, when these have ended."""
        allocations, tree = self._cluster.chooser.allocations.copy(), Tree(self._queues.queues())
        for other in self._holdings.parts_of(ended, now):
            allocations.give_gang(other)
        used = self._holdings.charged(now, ended)
        full = tree.over(one.gang.queue, needs(one.gang, allocations.hardware), used)
        return full is None and allocations.take_gang_if_it_fits(one)

    def _is_ending(self, uid: str) -> bool:
        pod = self._roster.pods[uid]
        gang = self._roster.gang_of(pod)
        return bool(pod.metadata.deletion_timestamp or (gang is not None and gang.leaving))

    def _has_right(self, gang: Gang, uids: Collection[str], now: float) -> bool:
        """Whether a gang may ask all of these to end."""
        allocations, queues = self._cluster.chooser.allocations, self._queues.queues()
        staying = self._holdings.running(now, self._roster.ending)
        over = preemptible(allocations, gang, staying, queues, now)
        return all(self._roster.name_of(uid) in over for uid in uids)


def _since(gang: GangState, status: GangStatus, now: float) -> float:
    """Since when it waits: not for longer than its oldest pod is there."""
    made = (seconds_at(one.metadata.creation_timestamp) for one in gang.members)
    oldest = min((at for at in made if at is not None), default=0.0)
    return min(now, max(seconds_at(status.since) or now, oldest))
