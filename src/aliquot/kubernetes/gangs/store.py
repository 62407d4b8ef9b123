"""Gang objects: written for people and for the next leader, and read back by it.

A change of a gang's phase, of its members' places or of its size is written at once. A new reason
or planned start alone is written at most every `REASON_SECONDS`, since they change with everything
around a gang. Before each write this replica checks that it still leads.

Others than the scheduler may have written a Gang's status. So a new leader believes nothing that
pods, nodes and allocations do not confirm (`Restorer`):

- A place is a member's if the plan is what the pod requests, on GPUs that exist and are free, and
  within the limits of its queue. If one place of a gang is not, none counts, and the gang is
  planned again.
- Victims are evicted for a gang if it may preempt them by what runs now, and they are in its way.
  Otherwise its preemption is abandoned, and decided again.
- A gang has not waited for longer than its oldest pod exists.
- A gang that was whole is not evicted for being incomplete. A gang that has run for long was whole,
  whatever its status says.
- An eviction that was written goes on if some of the pods are gone: so no half of a victim stays,
  though what is left of it is in nobody's way. How many pods there were is believed. If none is
  gone, nothing was done yet, and the preemption is checked as above.
- A gang that was notified of its eviction gets no more time than was written, nor more than it
  asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.gang import (
    GANGS,
    GangMember,
    GangObject,
    GangSpec,
    GangStatus,
)
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.objects import Meta
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.api.times import seconds_at, stamp
from aliquot.kubernetes.cluster.demands import demand_of
from aliquot.kubernetes.cluster.elastic import told_ahead
from aliquot.kubernetes.cluster.parts import plan_of, planned_parts
from aliquot.kubernetes.cluster.snapshot import as_one, parts_on
from aliquot.kubernetes.gangs.lifecycle import GangUids
from aliquot.kubernetes.gangs.resume import resume_all
from aliquot.kubernetes.gangs.state import MemberPlace
from aliquot.placement.core.demand import Gang, Placement, Running
from aliquot.placement.queues.preempt import preemptible
from aliquot.placement.queues.quota import Tree, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import OwnerReference, Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import GangPods, Workloads
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.lifecycle import Step
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.demand import Demand

REASON_SECONDS = 10.0
LONG = 10  # times the deadline of an incomplete gang
_EMPTY: dict[str, Any] = {
    "reason": "",
    "plannedStart": None,
    "topology": "",
    "victims": [],
    "wholeOnce": False,
    "evictionReason": "",
    "evictionPods": 0,
    "evictionTime": None,
    "members": [],
}

_log = structlog.get_logger(__name__)


def status_of(gang: GangState, pods: GangPods) -> GangStatus:
    """The status of a gang: for people, and for the next leader."""
    eviction, progress = gang.eviction, gang.progress
    members = (_member(gang, one) for one in pods.members)
    return GangStatus(
        phase=gang.phase,
        reason=gang.reason,
        planned_start=None if gang.planned is None else stamp(gang.planned.start),
        since=stamp(progress.since) if progress.since else None,
        topology=gang.topology,
        victims=tuple(sorted(gang.reservation.victims)),
        whole_once=progress.whole_once,
        eviction_reason="" if eviction is None else eviction.why,
        eviction_pods=0 if eviction is None else eviction.pods,
        eviction_time=stamp(eviction.at) if eviction is not None and eviction.notified else None,
        members=tuple(members) if gang.has_places or progress.had_nodes else (),
    )


def _member(gang: GangState, pod: Pod) -> GangMember:
    meta = pod.metadata
    if pod.spec.node_name:
        return GangMember(meta.name, meta.uid, pod.spec.node_name, meta.annotations.get(PLAN, ""))
    place = gang.reservation.places.get(meta.uid)
    if place is None:
        return GangMember(meta.name, meta.uid)
    return GangMember(meta.name, meta.uid, place.node, plan_of(place.parts).encode())


# --- write and read -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Written:
    spec: GangSpec
    status: GangStatus
    at: float


class GangStore:
    """What was last written of each gang."""

    def __init__(self, client: Client, now: Callable[[], float], leads: Callable[[], bool]) -> None:
        self._client = client
        self._now = now
        self._leads = leads
        self._written: dict[GangKey, _Written] = {}
        self._uids: dict[GangKey, str] = {}

    async def read(self) -> list[GangObject]:
        """Read all Gang objects, and forget what was written before."""
        self._written.clear()
        self._uids.clear()
        found = await self._client.list(GANGS)
        return found.items

    def found(self, key: GangKey, one: GangObject) -> None:
        """Remember what the API server has."""
        self._written[key] = _Written(one.spec, one.status, self._now())
        self._uids[key] = one.metadata.uid

    def object(self, key: GangKey) -> GangObject:
        """The object that events are about."""
        uid = self._uids.get(key, "")
        return GangObject(Meta(name=key.name, namespace=key.namespace, uid=uid))

    def differs(self, key: GangKey, spec: GangSpec, status: GangStatus) -> bool:
        """Whether this must be written now."""
        before = self._written.get(key)
        if before is None or before.spec != spec or _bare(before.status) != _bare(status):
            return True
        return before.status != status and self._now() - before.at >= REASON_SECONDS

    async def write(
        self, key: GangKey, spec: GangSpec, status: GangStatus, owners: tuple[OwnerReference, ...]
    ) -> bool:
        """Write an object; whether the API server has it now."""
        if not self._leads():
            return False
        try:
            await self._write(key, spec, status, owners)
        except ApiError as error:
            _log.warning("cannot write a gang", gang=str(key), why=error.message)
            self._written.pop(key, None)
            return False
        self._written[key] = _Written(spec, status, self._now())
        return True

    async def delete(self, key: GangKey) -> bool:
        """Delete an object; whether it is gone."""
        if not self._leads():
            return False
        try:
            await self._client.delete(GANGS, key.name, key.namespace)
        except ApiError as error:
            _log.warning("cannot delete a gang", gang=str(key), why=error.message)
            return False
        self._written.pop(key, None)
        self._uids.pop(key, None)
        return True

    async def _write(
        self, key: GangKey, spec: GangSpec, status: GangStatus, owners: tuple[OwnerReference, ...]
    ) -> None:
        before = self._written.get(key)
        if before is None:
            await self._make(key, spec, owners)
        elif before.spec != spec:
            await self._respecify(key, spec, owners)
        body = {"status": {**_EMPTY, **msgspec.to_builtins(status)}}
        await self._client.patch(GANGS, key.name, body, namespace=key.namespace, sub="status")

    async def _make(self, key: GangKey, spec: GangSpec, owners: tuple[OwnerReference, ...]) -> None:
        meta = Meta(name=key.name, namespace=key.namespace, owner_references=owners)
        try:
            made = await self._client.create(GANGS, GangObject(meta, spec))
        except ApiError as error:
            if not error.conflict:
                raise
            made = await self._respecify(key, spec, owners)
        self._uids[key] = made.metadata.uid

    async def _respecify(
        self, key: GangKey, spec: GangSpec, owners: tuple[OwnerReference, ...]
    ) -> GangObject:
        body = {
            "metadata": {"ownerReferences": msgspec.to_builtins(owners)},
            "spec": msgspec.to_builtins(spec),
        }
        return await self._client.patch(GANGS, key.name, body, namespace=key.namespace)


def _bare(status: GangStatus) -> GangStatus:
    """Without what changes all the time."""
    return msgspec.structs.replace(status, reason="", planned_start=None)


# --- a new leader ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Start:
    """The places of a gang's members, by UID, and all of them as something that runs."""

    places: Mapping[str, MemberPlace] = field(default_factory=dict)
    running: Running | None = None


class Restorer:
    """Resumes what the leader before has written; each restored gang counts for the next."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that confirms it
        self,
        planner: Planner,
        presets: Sequence[Preset],
        workloads: Workloads,
        registry: GangRegistry,
        queues: Queues,
        allocations: WorkloadAllocations,
        grace: float,
    ) -> None:
        self._planner = planner
        self._cluster = planner.cluster
        self._presets = presets
        self._workloads = workloads
        self._registry = registry
        self._queues = queues
        self._allocations = allocations
        self._grace = grace
        self._now = 0.0

    def restore(self, found: Mapping[GangKey, GangStatus], now: float) -> None:
        """Resume what these objects say."""
        self._now = now
        _ = self._cluster.chooser  # rows are up to date: places are compared by row
        resume_all(self, found, now)

    # --- what the state machine asks --------------------------------------------------------------

    @property
    def gangs(self) -> Mapping[GangKey, GangState]:
        """The state of each gang."""
        return self._registry.gangs

    def uids(self, key: GangKey) -> GangUids:
        """The pods of a gang."""
        pods = self._workloads.gangs[key]
        return GangUids(frozenset(pods.pods), frozenset(one.metadata.uid for one in pods.active))

    def apply(self, step: Step) -> None:
        """Make a step true."""
        self._registry.apply(step)

    def notice(self, key: GangKey) -> float:
        """How long before their eviction the pods of a gang ask to be notified."""
        return told_ahead(self._workloads.gangs[key].active)

    def since(self, key: GangKey, status: GangStatus) -> float:
        """Since when all members exist: not for longer than the oldest pod does."""
        members, now = self._workloads.gangs[key].members, self._now
        made = (seconds_at(one.metadata.creation_timestamp) for one in members)
        oldest = min((at for at in made if at is not None), default=0.0)
        return min(now, max(seconds_at(status.since) or now, oldest))

    def was_whole(self, key: GangKey, status: GangStatus) -> bool:
        """Whether all members had nodes: by the status, or since they have run for long."""
        return status.whole_once or self._has_run_long(self._workloads.gangs[key])

    def places(self, key: GangKey, status: GangStatus) -> Mapping[str, MemberPlace] | None:
        """The places of members without a node; None if they are not confirmed."""
        start = self._start(self._workloads.gangs[key], status, self._now)
        if start is None or not self._is_confirmed(start, frozenset(status.victims), self._now):
            return None
        return start.places

    def gangs_of(self, uids: Collection[str]) -> list[GangKey]:
        """The gangs of these pods."""
        pods = (self._workloads.pods[uid] for uid in uids if uid in self._workloads.pods)
        gangs = (one for pod in pods if (one := self._workloads.gang_of(pod)) is not None)
        return list({one.key: None for one in gangs})

    # --- confirmation -----------------------------------------------------------------------------

    def _has_run_long(self, pods: GangPods) -> bool:
        """Whether active pods have run for longer than an incomplete gang would.

        A leader runs alone for as long as the others of its group wait.
        """
        if pods.only_leader_is_active:
            return False
        starts = [seconds_at(one.status.start_time) for one in pods.active]
        long_ago = self._now - LONG * 2 * self._grace
        return bool(starts) and all(at is not None and at < long_ago for at in starts)

    def _start(self, pods: GangPods, status: GangStatus, now: float) -> _Start | None:
        """The places of members without a node; None if one of them is not confirmed."""
        unbound = {one.metadata.uid: one for one in pods.unbound}
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
        work = self._workloads.work_of(pods, now)
        one = Gang(work.name, tuple(demands), work.seconds, work.queue, work.priority)
        return _Start(places, Running(one, tuple(placements), now, now + work.seconds))

    def _place(self, pod: Pod, member: GangMember) -> tuple[MemberPlace, Placement, Demand] | None:
        """A member's place; None unless it is what the pod requests, on GPUs that exist."""
        row, node = self._cluster.rows.get(member.node), self._cluster.nodes.get(member.node)
        notes = {**pod.metadata.annotations, PLAN: member.plan}
        meta = msgspec.structs.replace(pod.metadata, annotations=notes)
        parts = planned_parts(msgspec.structs.replace(pod, metadata=meta), self._presets)
        if row is None or node is None or not parts:
            return None
        main = [one for one in parts if not one.init] or list(parts)
        columns = {gpu.uuid: column for column, gpu in enumerate(node.status.gpus)}
        wanted = [gpu for one in main for gpu in one.gpus]
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

    def _is_confirmed(self, start: _Start, victims: frozenset[str], now: float) -> bool:
        """Whether its places are within limits, and free when the victims are gone.

        And whether it needs those victims, and may preempt them.
        """
        one = start.running
        if one is None:
            return True
        live = [uid for uid in victims if uid in self._workloads.pods and not self._is_ending(uid)]
        if live and (self._fits(one, (), now) or not self._may_preempt(one.gang, live, now)):
            return False
        return self._fits(one, victims, now)

    def _fits(self, one: Running, victims: Collection[str], now: float) -> bool:
        """Whether its places are free and within limits when these pods are gone."""
        allocations, tree = self._cluster.chooser.allocations.copy(), Tree(self._queues.queues())
        for other in self._allocations.parts_of(victims, now):
            allocations.give_gang(other)
        used = self._allocations.charged(now, self._registry.preemptions(), victims)
        full = tree.over(one.gang.queue, needs(one.gang, allocations.hardware), used)
        return full is None and allocations.take_gang_if_it_fits(one)

    def _is_ending(self, uid: str) -> bool:
        pod = self._workloads.pods[uid]
        pods = self._workloads.gang_of(pod)
        evicted = pods is not None and self._registry.gangs[pods.key].eviction is not None
        return bool(pod.metadata.deletion_timestamp) or evicted

    def _may_preempt(self, gang: Gang, uids: Collection[str], now: float) -> bool:
        """Whether a gang may preempt all of these pods."""
        allocations, queues = self._cluster.chooser.allocations, self._queues.queues()
        staying = self._allocations.running(now, self._registry.victims)
        over = preemptible(allocations, gang, staying, queues, now)
        return all(self._workloads.name_of(uid) in over for uid in uids)
