"""The gang controller: observe, step, write, act, again and again, in the replica that leads.

A crash between any two requests loses nothing. What was not written did not happen, and the next
leader goes on from what was (`store.Restorer`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.gang import GangSpec, Phase
from aliquot.kubernetes.api.passes import repeat
from aliquot.kubernetes.cluster.membership import GangKey, membership_of
from aliquot.kubernetes.cluster.topology import Labels
from aliquot.kubernetes.gangs.answers import Answers
from aliquot.kubernetes.gangs.apply import DecisionApplier
from aliquot.kubernetes.gangs.cpu_preemption import CpuPreemptions
from aliquot.kubernetes.gangs.events import GangEvents
from aliquot.kubernetes.gangs.evictions import Evictor
from aliquot.kubernetes.gangs.growth import Growth
from aliquot.kubernetes.gangs.lifecycle import (
    Deadlines,
    ForgetRefusals,
    Warn,
    advance_all,
    evictions_due,
    gates_due,
    may_be_written,
    record_write,
)
from aliquot.kubernetes.gangs.missing import NO_SHORTAGE
from aliquot.kubernetes.gangs.observe import Observer
from aliquot.kubernetes.gangs.planning import Planning
from aliquot.kubernetes.gangs.preempting import OfferedToSingles, PreemptingPods
from aliquot.kubernetes.gangs.registry import GangRegistry
from aliquot.kubernetes.gangs.single_pods import SinglePods
from aliquot.kubernetes.gangs.sizes import FinishedMembers, MemberCount, SourceSizes, owners_of
from aliquot.kubernetes.gangs.store import GangStore, Restorer, status_of
from aliquot.kubernetes.gangs.term import Term
from aliquot.kubernetes.queues.usage import GangUse, queue_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.gang import GangObject, GangStatus
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.lifecycle import Action
    from aliquot.kubernetes.gangs.planning import PlanningResult
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.kubernetes.queues.status import QueueUsage

AT_ONCE = 16  # gangs that are written
NOT_INSTALLED = "the CustomResourceDefinition gangs.aliquot.io is not installed"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GangOptions:
    """`assumed` is how long work runs that does not say it, in seconds.

    `patience`: `shortage` has what gangs lack that do not start within so many seconds; None if
    nobody reads it.
    """

    times: Deadlines = field(default_factory=Deadlines)
    assumed: float = 3600.0
    labels: Labels = field(default_factory=Labels)
    patience: float | None = None


def gang_options(grace: float, assumed: float, labels: Labels) -> GangOptions:
    """Options in which refused evictions have twice the time that members have to arrive."""
    return GangOptions(Deadlines(grace=grace, eviction=2 * grace), assumed, labels)


class Gangs:
    """All gangs of a cluster; `looked` is called after each pass.

    `leading` says whether this replica holds the lease at this moment. `waiting` are the single
    pods that wait, and since when; `offered` are the nodes that each was offered. `answers` are
    what kube-scheduler is told. `queue_usage` is what each queue uses, and what waits in it.
    `by_resource_claims` is the phase of a gang that asks by resource claims, and why.
    `shortage` is what gangs lack by the last decision.
    """

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        client: Client,
        planner: Planner,
        *,
        view: ClusterView,
        recorder: Recorder,
        changes: Changes,
        options: GangOptions,
        leading: Callable[[], bool] = lambda: True,
        looked: Callable[[], None] = lambda: None,
        waiting: Callable[[], Iterable[tuple[Pod, float]]] = tuple,
        offered: Callable[[str], Sequence[str]] = lambda _: (),
        by_resource_claims: Callable[[GangKey], tuple[Phase, str] | None] = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        cluster, queues = view.cluster, view.queues
        workloads, allocations = view.workloads, view.by_workload
        term = self._term = Term(leading)
        self._now = now
        self._looked = looked
        self._waiting = waiting
        self._changes = changes
        self._options = options
        self._queues = queues
        self._workloads, self._allocations = workloads, allocations
        registry = self._registry = GangRegistry(cluster, workloads, queues.queue_of, self._act)
        self._evictor = Evictor(client, now, lambda: term.is_on)
        self._store = GangStore(client, now, lambda: term.is_on)
        self._events = GangEvents(recorder, workloads, self._store.object)
        offers = self._offered = OfferedToSingles(cluster, offered)
        self._preempting = PreemptingPods(client, planner, view, registry, waiting, offers, now)
        self._observer = Observer(
            workloads,
            registry,
            planner,
            queues,
            view.topology,
            allocations,
            evictor=self._evictor,
            offered=offers,
            budgets=view.budgets,
            by_resource_claims=by_resource_claims,
        )
        may_grow = options.patience is not None
        applier = DecisionApplier(
            workloads, registry, cluster, queues, allocations, may_grow=may_grow
        )
        self._planning = Planning(cluster, self._observer, applier, options.patience)
        self._restorer = Restorer(
            planner, view.presets, workloads, registry, queues, allocations, options.times.grace
        )
        self._single_pods = SinglePods(planner, workloads, registry, queues, allocations)
        self.answers = Answers(
            workloads,
            registry,
            self._single_pods,
            queues,
            cluster,
            changes,
            term,
            now,
            offers,
            CpuPreemptions(planner, view, registry, self._single_pods),
        )
        self._growth = Growth(client, view, registry, recorder, now)
        self._sizes = SourceSizes(client, view.asks, now)
        self._finished = FinishedMembers(client, view.asks, now)
        self._gone: set[GangKey] = set()
        self._missing = False
        self.queue_usage: Mapping[str, QueueUsage] = {}
        self.shortage = NO_SHORTAGE

    # --- what the API server reports --------------------------------------------------------------

    def pod_changed(self, before: Pod | None, pod: Pod | None) -> None:
        """A pod was created, changed or deleted, and the cluster view has it already."""
        belongs = (membership_of(one) for one in (before, pod) if one is not None)
        for key in {one.key for one in belongs if one is not None}:
            if key in self._workloads.gangs:
                self._registry.add(key)
                self._gone.discard(key)
            elif self._registry.remove(key, self._now()):
                self._gone.add(key)
            if pod is None and before is not None:
                self._finished.pod_gone(before)
        if pod is not None:
            self._growth.pod_changed(before, pod)
        one = pod or before
        if one is not None and (pod is None or pod.spec.node_name):
            self.answers.pod_started(one.metadata.uid)

    def count(self, phase: Phase) -> int:
        """How many gangs are in a phase."""
        return sum(one.phase is phase for one in self._registry.gangs.values())

    # --- who leads --------------------------------------------------------------------------------

    async def load(self) -> bool:
        """Begin to lead, when all pods are known: read what the leader before has written.

        Whether that was possible.
        """
        number = self._term.number
        objects: list[GangObject] = []
        try:
            objects = await self._store.read()
        except ApiError as error:
            if not error.not_found:
                _log.warning("cannot read gangs", why=error.message)
                return False
            if not self._missing:
                _log.warning("cannot start gangs", why=NOT_INSTALLED)
            self._missing = True
        else:
            self._missing = False
        if self._term.number != number:
            return False
        self.answers.trouble = NOT_INSTALLED if self._missing else ""
        self._restorer.restore(self._found(objects), self._now())
        self._growth.load(self._workloads.pods.values())
        self._term.begin()
        return True

    def stop(self) -> None:
        """This replica does not lead any more, or leads again."""
        self._term.end()
        self._registry.forget_all()
        self._growth.forget_all()
        self._single_pods.backfill, self._single_pods.stopped = None, {}
        self.shortage = NO_SHORTAGE
        self._gone.clear()

    def _found(self, objects: Sequence[GangObject]) -> dict[GangKey, GangStatus]:
        found: dict[GangKey, GangStatus] = {}
        for one in objects:
            key = GangKey(one.metadata.namespace, one.metadata.name)
            self._store.found(key, one)
            if key in self._registry.gangs:
                found[key] = one.status
            else:
                self._gone.add(key)
        return found

    # --- again and again --------------------------------------------------------------------------

    async def run(self) -> None:
        """Pass over all gangs whenever something has changed, until cancelled."""
        await repeat(self._pass, self._changes, lambda: self._term.is_on, "the gangs")

    async def _pass(self) -> None:
        if self._missing:
            await self.load()
        if not self._missing:
            await self.look()

    async def look(self) -> None:
        """One pass. It ends early if this replica does not lead any more."""
        number = self._term.number
        # 1. Read what is not watched: the sizes of gangs, and members that have finished.
        await self._read()
        if not self._term.lasts(number):
            return
        # 2. Advance each gang by what is observed: its pods, its nodes, refused evictions, time.
        now = self._now()
        before = {key: gang.reservation.places for key, gang in self._registry.gangs.items()}
        self._advance(now)
        # 3. Decide which gangs start and which are preempted, and reserve their places.
        result = await self._planning.decide(now, lambda: self._term.lasts(number))
        if not self._term.lasts(number):
            return
        self._remember(result, before, now)
        # 4. Write the Gang objects, reservations with victims first.
        self._events.report_preemptions(result.preemptions)
        await self._write(number)
        # 5. Open the gates of members whose places are written and free.
        if self._term.lasts(number):
            await self._open_gates()
        # 6. Evict the pods whose eviction is written and due.
        if self._term.lasts(number):
            await self._evict()
        # 7. Let running pods grow that their queues allow it.
        if self._term.lasts(number):
            await self._growth.answer(lambda: self._term.lasts(number))
        # 8. Let waiting single pods preempt that may: the next pass decides for them.
        if self._term.lasts(number):
            await self._preempting.look(lambda: self._term.lasts(number))
        # 9. Delete the Gang objects of gangs that are gone.
        if self._term.lasts(number):
            await self._delete()
        self._looked()

    # --- 1. and 2. observe ------------------------------------------------------------------------

    async def _read(self) -> None:
        pods = self._workloads.gangs
        gathering = [pods[one.key] for one in self._incomplete()]
        await self._sizes.read(pods.values(), gathering)
        short = [one.key for one in self._incomplete() if self._count(one).is_short]
        await self._finished.read({one.namespace for one in short})

    def _incomplete(self) -> list[GangState]:
        return [one for one in self._registry.gangs.values() if not one.progress.whole_once]

    def _count(self, gang: GangState) -> MemberCount:
        """The members of a gang; its source is not read again once the gang was whole."""
        pods = self._workloads.gangs[gang.key]
        count = MemberCount(pods, self._sizes.of(pods))
        if gang.progress.whole_once or not count.is_short:
            return count
        return replace(count, finished=self._finished.of(pods))

    def _advance(self, now: float) -> None:
        self._observer.now = now
        self._observer.counts = {
            key: self._count(gang) for key, gang in self._registry.gangs.items()
        }
        refused = self._evictor.refused(self._work_of)
        advance_all(self._observer, refused, self._options.times, now)

    def _work_of(self, uid: str) -> str:
        return self._workloads.name_of(uid) if uid in self._workloads.pods else ""

    def _act(self, gang: GangState, action: Action) -> None:
        """Do what a step asks for, but for places, which the registry has counted."""
        match action:
            case ForgetRefusals(uids):
                self._evictor.forget(uids)
            case Warn(reason, message):
                self._events.warn(gang.key, reason, message)

    # --- 3. decide --------------------------------------------------------------------------------

    def _remember(
        self, result: PlanningResult, before: Mapping[GangKey, Mapping[str, object]], now: float
    ) -> None:
        """Keep what single pods and queues need to know of a decision."""
        gangs = self._registry.gangs
        self._single_pods.backfill = result.backfill
        self._single_pods.stopped = self._growth.stopped = result.stopped
        self.shortage = result.shortage
        if result.again:
            self._changes.notify()
        for key, gang in gangs.items():
            self._evictor.open_again(gang.reservation.places.keys() - before.get(key, {}).keys())
        if self._queues.objects:
            uses = (self._use(one) for one in gangs.values())
            waiting = self._waiting()
            self.queue_usage = queue_usage(self._allocations, uses, waiting, self._queues, now)

    def _use(self, gang: GangState) -> GangUse:
        started = gang.has_places or bool(gang.progress.had_nodes)
        return GangUse(self._workloads.gangs[gang.key], started, gang.progress.since or None)

    # --- 4. write ---------------------------------------------------------------------------------

    async def _write(self, number: int) -> None:
        free, gangs = asyncio.Semaphore(AT_ONCE), self._registry.gangs

        async def write(key: GangKey) -> None:
            async with free:
                if not self._term.lasts(number) or key not in gangs:
                    return
                if may_be_written(gangs[key], self._observer.uids(key), gangs):
                    await self._write_one(key)

        # A preemption is written before any victim's eviction is: a new leader goes on with it.
        preempting = {one.key for one in gangs.values() if one.reservation.victims}
        others = [key for key in gangs if key not in preempting]
        await asyncio.gather(*(write(key) for key in preempting))
        await asyncio.gather(*(write(key) for key in others))

    async def _write_one(self, key: GangKey) -> None:
        gang, pods = self._registry.gangs[key], self._workloads.gangs[key]
        source = self._sizes.of(pods)
        spec = GangSpec(
            size=MemberCount(pods, source).size[0] or 0,
            queue=self._queues.queue_of(pods.lead),
            priority=pods.priority,
            seconds=pods.seconds(self._options.assumed),
        )
        status = status_of(gang, pods)
        self._events.report(gang)
        if self._store.differs(key, spec, status) and not await self._store.write(
            key, spec, status, owners_of(pods, source)
        ):
            return
        self._events.written(key)
        after = self._registry.gangs.get(key)
        if after is not None:
            written = record_write(after, gang.reservation.places, gang.eviction)
            self._registry.update(written)

    # --- 5. to 9. act ------------------------------------------------------------------------

    async def _open_gates(self) -> None:
        pods: list[Pod] = []
        for key, gang in self._registry.gangs.items():
            mine, due = self._workloads.gangs[key], gates_due(gang)
            members = [mine.pods[uid] for uid in due if uid in mine.pods]
            if members or gang.progress.whole_once:
                pods += [one for one in mine.others.values() if not one.spec.node_name]
            else:
                pods += self._count(gang).first
            if mine.is_single:
                members += [one for one in mine.unbound if self._offered.must_ask(one.metadata.uid)]
            pods += members
        await self._evictor.open(pods)

    async def _evict(self) -> None:
        gangs = self._registry.gangs
        uids = {key: self._observer.uids(key) for key in gangs}
        due = evictions_due(gangs, uids, self._now())
        pods = self._workloads.pods
        await self._evictor.evict([pods[uid] for uid in due if uid in pods])

    async def _delete(self) -> None:
        free = asyncio.Semaphore(AT_ONCE)

        async def delete(key: GangKey) -> None:
            async with free:
                if key in self._registry.gangs or await self._store.delete(key):
                    self._gone.discard(key)
                    self._events.forget(key)

        await asyncio.gather(*(delete(key) for key in list(self._gone)))
        self._evictor.keep(self._workloads.pods.keys())
