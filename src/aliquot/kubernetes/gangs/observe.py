"""Whether a gang may be planned yet, and all that a step or a decision needs to know about it.

`Observer.observe` says what `lifecycle.advance` needs to know about one gang. `Observer.ready` and
`Observer.snapshot` collect all gangs that can be planned, together with all that runs and all
planned starts; a gang that cannot be planned is told why. No input or output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.admission import admitted_queue
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import PLAN, QUEUE
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.elastic import surpluses
from aliquot.kubernetes.cluster.queue_tree import NAMED
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot, bare
from aliquot.kubernetes.gangs.lifecycle import GangUids, Observation, gather, report
from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.decide import DecisionInput, ElasticSurplus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.budgets import Budgets
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.topology import Topology
    from aliquot.kubernetes.cluster.workloads import GangPods, Workloads
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.evictions import Evictor
    from aliquot.kubernetes.gangs.lifecycle import Step
    from aliquot.kubernetes.gangs.preempting import OfferedToSingles
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.kubernetes.gangs.sizes import MemberCount
    from aliquot.kubernetes.gangs.state import GangState, MemberPlace, PlannedStart

NOT_OFFERED = "kube-scheduler is asked which nodes it may go to"


@dataclass(frozen=True, slots=True)
class Ready:
    """A gang, or its missing members, that can be planned: the pods, and what each requests."""

    gang: GangPods
    pods: list[Pod]
    requests: list[tuple[ContainerRequest, ...]]
    limits: list[NodeConstraints]


@dataclass(frozen=True, slots=True)
class DecisionSnapshot:
    """The input of a decision, and what it was made from.

    `holders` are the UIDs of all pods that hold GPUs, by the name of their work.
    """

    question: DecisionInput
    nodes: ClusterSnapshot
    ready: Mapping[str, Ready]
    holders: Mapping[str, frozenset[str]]

    def fingerprint(self) -> object:
        """What a decision depends on, but for the time."""
        question = self.question
        return (
            question.allocations.fingerprint,
            frozenset(one.gang.name for one in question.running),
            tuple(question.waiting),
            tuple(gang for gang, _ in question.incomplete),
            question.queues,
            frozenset(question.ending.items()),
            tuple(question.budgets),
        )


class Observer:
    """Observes all gangs of a registry. `counts` are their sizes in this pass.

    `by_resource_claims` is the phase of a gang whose pods ask for GPUs by resource claims, and why;
    None for all others.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all that is observed
        self,
        workloads: Workloads,
        registry: GangRegistry,
        planner: Planner,
        queues: Queues,
        topology: Topology,
        allocations: WorkloadAllocations,
        *,
        evictor: Evictor,
        offered: OfferedToSingles,
        budgets: Budgets,
        by_resource_claims: Callable[[GangKey], tuple[Phase, str] | None] = lambda _: None,
    ) -> None:
        self._by_resource_claims = by_resource_claims
        self._workloads = workloads
        self._registry = registry
        self._planner = planner
        self._cluster = planner.cluster
        self._queues = queues
        self._topology = topology
        self._allocations = allocations
        self._evictor = evictor
        self._offered = offered
        self._budgets = budgets
        self._considered: dict[str, int] = {}
        self._decisions = 0
        self.counts: Mapping[GangKey, MemberCount] = {}
        self.now = 0.0

    # --- one gang ---------------------------------------------------------------------------------

    @property
    def gangs(self) -> Mapping[GangKey, GangState]:
        """The state of each gang."""
        return self._registry.gangs

    def apply(self, step: Step) -> None:
        """Make a step true."""
        self._registry.apply(step)

    def uids(self, key: GangKey) -> GangUids:
        """The pods of a gang."""
        pods = self._workloads.gangs[key]
        return GangUids(frozenset(pods.pods), _uids(pods.active))

    def observe(self, gang: GangState) -> Observation:
        """What is seen of a gang."""
        pods, count = self._workloads.gangs[gang.key], self.counts.get(gang.key)
        bound, unbound = _uids(pods.bound), _uids(pods.unbound)
        victims = gang.reservation.victims
        if victims:
            victims = self._allocations.still_held(self._registry.preemption(gang), self.now)
        moved = self._registry.moved(gang.key)
        places = gang.reservation.places.items()
        faults = {
            uid: fault
            for uid, place in places
            if uid in unbound and (fault := moved or self._fault(uid, place, victims))
        }
        return Observation(
            bound=bound,
            active=_uids(pods.active),
            unbound=unbound,
            wanted=None if count is None else count.wanted,
            leads_alone=count is not None and count.leads_alone,
            held=victims,
            faults=faults,
            unplanned=sum(PLAN not in one.metadata.annotations for one in pods.active),
            arrived=str(self._registry.permit(gang.key)),
        )

    def _fault(self, uid: str, place: MemberPlace, victims: frozenset[str]) -> str:
        """Why a place cannot be used any more; empty if it can."""
        unusable = self._cluster.why_unusable(place.node)
        if unusable is not None:
            return f"node {place.node} is unusable: {unusable}"
        status = self._cluster.nodes[place.node].status
        columns = {gpu.uuid: column for column, gpu in enumerate(status.gpus) if gpu.healthy}
        for part in place.parts:
            missing = [gpu for gpu in part.gpus if gpu not in columns]
            if missing:
                return f"GPU {missing[0]} of node {place.node} went away"
            if part.kind != "whole" and not part.alone:
                continue
            mine = {columns[gpu] for gpu in part.gpus}
            for other, held in self._cluster.usage_by_pod(place.node).items():
                if other != uid and other not in victims and not mine.isdisjoint(held):
                    return f"a GPU of node {place.node} that was reserved for it is in use"
        return ""

    # --- all gangs that can be planned ------------------------------------------------------------

    def ready(self) -> dict[str, Ready]:
        """All gangs that can be planned, by name; the others are told why they cannot."""
        return {
            str(key): one
            for key in list(self.gangs)
            if (one := self._ready(self.gangs[key], self._workloads.gangs[key])) is not None
        }

    def snapshot(self, ready: Mapping[str, Ready]) -> DecisionSnapshot | None:
        """The input of a decision over these; None if none of them can be planned after all."""
        limits = [each for one in ready.values() for each in one.limits]
        nodes = ClusterSnapshot(self._topology, limits)
        gangs = {name: self._gang(one, nodes) for name, one in ready.items()}
        asked = {name: gang for name, gang in gangs.items() if gang is not None}
        if not asked:
            return None
        question = self._question(nodes, ready, asked)
        return DecisionSnapshot(question, nodes, ready, self._allocations.holders(self.now))

    def considered(self, names: tuple[str, ...]) -> None:
        """The last decision looked for victims for these gangs."""
        self._decisions += 1
        existing = {str(key) for key in self.gangs}
        self._considered = {name: at for name, at in self._considered.items() if name in existing}
        self._considered |= dict.fromkeys(names, self._decisions)

    def _ready(self, gang: GangState, pods: GangPods) -> Ready | None:
        now, count = self.now, self.counts.get(gang.key)
        gang = replace(gang, retry=gang.retry.expire(now))
        self._registry.update(gang)
        started, unbound = bool(gang.progress.had_nodes), pods.unbound
        if gang.has_places or gang.eviction is not None or (started and not unbound):
            return None
        why = self._by_resource_claims(gang.key)
        if why is None and count is not None:
            why = count.not_ready(started=started)
        closed = self._closed(pods)
        if closed is None and why is None:
            why = Phase.GATHERING, NOT_OFFERED
        if why is not None:
            self._report(gang, *why)
            return None
        gang = gather(gang, now)
        self._registry.update(gang)
        problem = queue_refusal(self._queues, pods)
        if problem:
            self._report(gang, Phase.REFUSED, problem)
            return None
        if now < gang.retry.not_before:
            return None
        try:
            requests = [self._planner.requests(one) for one in unbound]
        except InvalidRequestError as error:
            self._report(gang, Phase.REFUSED, str(error))
            return None
        barred = (closed or frozenset()).union(gang.retry.barred)
        limits = [NodeConstraints.of(one, barred) for one in unbound]
        return Ready(pods, unbound, requests, limits)

    def _closed(self, pods: GangPods) -> frozenset[str] | None:
        """The nodes that kube-scheduler does not offer; None if it must be asked first.

        A gang waits behind its gates, so kube-scheduler knows nothing about it yet.
        """
        if not pods.is_single or not pods.unbound:
            return frozenset()
        return self._offered.closed(pods.unbound[0].metadata.uid)

    def _report(self, gang: GangState, phase: Phase, why: str) -> None:
        self._registry.update(report(gang, phase, why))

    # --- the input of a decision ------------------------------------------------------------------

    def _gang(self, one: Ready, nodes: ClusterSnapshot) -> Gang | None:
        state = self.gangs[one.gang.key]
        pairs = zip(one.requests, one.limits, strict=True)
        try:
            demands = tuple(nodes.demand(asked, limits) for asked, limits in pairs)
        except InvalidRequestError as error:
            self._report(state, Phase.REFUSED, str(error))
            return None
        work = self._workloads.work_of(one.gang, self.now)
        return Gang(
            name=work.name,
            members=demands,
            seconds=self._workloads.waiting_seconds(one.gang.key.namespace, work.seconds, self.now),
            queue=work.queue,
            priority=work.priority,
            submitted=state.progress.since,
        )

    def _question(
        self, nodes: ClusterSnapshot, ready: Mapping[str, Ready], asked: Mapping[str, Gang]
    ) -> DecisionInput:
        now, states = self.now, self.gangs.values()
        rests, waiting, planned = [], [], []
        for name, gang in asked.items():
            pods, state = ready[name].gang, self.gangs[ready[name].gang.key]
            if state.progress.had_nodes:
                rows = (nodes.row(one.spec.node_name) for one in pods.bound)
                rests.append((gang, sorted({row for row in rows if row is not None})))
                continue
            waiting.append(gang)
            start = _planned(gang, state.planned, nodes)
            if start is not None:
                planned.append(start)
        victims, preemptions = self._registry.victims, self._registry.preemptions()
        spared = {str(one.key) for one in states if one.reservation.victims}
        spared |= {name for one in states for name in one.retry.spared}  # protected from all gangs
        elastic = {name: self.gangs[one.gang.key].elastic for name, one in ready.items()}
        asking = {name for name, one in elastic.items() if one.jobs}
        return DecisionInput(
            allocations=nodes.allocations,
            running=self._allocations.running(now, victims),
            releasing=self._leftovers(victims),
            ending=self._allocations.charged_besides(now, preemptions),
            planned=planned,
            waiting=waiting,
            incomplete=rests,
            queues=self._queues.queues(),
            now=now,
            by=nodes.by,
            protected=spared,
            searched_at={name: at for name, at in self._considered.items() if name not in asking},
            surpluses=self._elastic_surpluses(victims),
            waited={name for name, one in elastic.items() if one.has_expired(now)},
            budgets=self._budgets.of_workloads(self._workloads, self._holding(), victims),
        )

    def _holding(self) -> Iterator[str]:
        """The UIDs of all pods that hold something."""
        return (uid for uids in self._allocations.holders(self.now).values() for uid in uids)

    def _leftovers(self, victims: set[str]) -> list[Running]:
        """What victims hold and no gang was given; not what protected victims hold."""
        ends = dict.fromkeys(victims - self._evictor.refusals.keys(), self.now)
        for gang in self.gangs.values():
            if gang.eviction is not None:
                mine = self._workloads.gangs[gang.key].pods.keys() & ends.keys()
                ends |= dict.fromkeys(mine, max(self.now, gang.eviction.ends_at))
        heirs = [uid for gang in self.gangs.values() for uid in gang.reservation.places]
        return self._allocations.leftovers(ends, heirs, self.now)

    def _elastic_surpluses(self, victims: Collection[str]) -> list[ElasticSurplus]:
        """What elastic jobs could give back, but for jobs that are evicted already."""
        pods = (
            pod
            for key, gang in self.gangs.items()
            if gang.eviction is None
            for pod in self._workloads.gangs[key].active
            if pod.metadata.uid not in victims
        )
        return [
            ElasticSurplus(one.job, one.seconds, parts)
            for one in surpluses(pods)
            if (parts := tuple(self._allocations.each_of(one.uids, self.now)))
        ]


def queue_refusal(queues: Queues, pods: GangPods) -> str:
    """Why a gang cannot start in its queue; empty if it can.

    Members that join a running gang are in its queue, whatever they name.
    """
    lead = pods.lead
    admitted = admitted_queue(lead)
    if admitted:
        return queues.refusal_of(lead, admitted)
    named = sorted({queues.named_by(one) for one in pods.members})
    if len(named) > 1:
        return (
            f"its pods name several queues: {', '.join(named[:NAMED])}. Give all of them the"
            f" same label {QUEUE}"
        )
    return queues.refusal_of(lead)


def _uids(pods: Collection[Pod]) -> frozenset[str]:
    return frozenset(one.metadata.uid for one in pods)


def _planned(gang: Gang, planned: PlannedStart | None, nodes: ClusterSnapshot) -> Running | None:
    """A planned start in the rows of a snapshot; None if the gang requests something else now."""
    if planned is None or planned.shape != tuple(map(bare, gang.members)):
        return None
    places = [nodes.placement(node, gpus) for node, gpus in planned.places]
    found = tuple(one for one in places if one is not None)
    if len(found) < len(places):
        return None
    return Running(gang, found, planned.start, planned.start + gang.seconds)
