"""Single pods that may preempt others: the pods of a Deployment or StatefulSet, and of any other.

A single pod that finds no GPUs waits for kube-scheduler to try it again. If its queue's quota
covers it, or it has a higher priority than others in its queue, it becomes a gang of one: the
scheduler writes the annotation `aliquot.io/preempts`. From then on the same decision, reservation
and evictions as for gangs are for it, and nobody else evicts for its GPUs.

kube-scheduler offers a single pod the nodes that have the CPU and memory for it, and that its
affinity, its spread constraints and its volumes allow. Such a pod preempts on these nodes only, so
that nobody is evicted where it could not start.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import PREEMPTS
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.membership import foreign_gates, membership_of
from aliquot.kubernetes.cluster.snapshot import as_one, largest_demand
from aliquot.kubernetes.cluster.workloads import work_name
from aliquot.placement.core.demand import Gang
from aliquot.placement.queues.preempt import may_preempt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.registry import GangRegistry

AT_ONCE = 32  # pods of one queue that wait as gangs of one
AGAIN = 10.0  # seconds until an annotation that did not arrive is written again
NEVER = "Never"  # a preemptionPolicy

_log = structlog.get_logger(__name__)


class OfferedToSingles:
    """The nodes that kube-scheduler did not offer at its last try, for each pod that preempts.

    `offered` are the nodes that a waiting pod was offered before it preempts.
    """

    def __init__(self, cluster: Cluster, offered: Callable[[str], Sequence[str]]) -> None:
        self._cluster = cluster
        self._offered = offered
        self._closed: dict[str, frozenset[str]] = {}
        self._same: dict[frozenset[str], frozenset[str]] = {}
        self._asked: set[str] = set()

    def begin(self, uid: str) -> None:
        """A waiting pod preempts from now on."""
        self.record(uid, self._offered(uid))

    def record(self, uid: str, names: Collection[str]) -> bool:
        """kube-scheduler offers a pod these nodes; whether that is something new."""
        closed = frozenset(self._cluster.rows.keys() - set(names))
        if len(self._same) > AT_ONCE:
            self._same.clear()
        before = self._closed.get(uid)
        self._closed[uid] = self._same.setdefault(closed, closed)
        return before != closed

    def add(self, uid: str, names: Collection[str]) -> bool:
        """A pod may go to these nodes too; whether that is something new."""
        closed = self._closed.get(uid)
        every = self._cluster.rows.keys()
        return self.record(uid, (every - closed if closed is not None else set()) | set(names))

    def closed(self, uid: str) -> frozenset[str] | None:
        """The nodes that a pod cannot go to; None if kube-scheduler has not tried it yet."""
        return self._closed.get(uid)

    def must_ask(self, uid: str) -> bool:
        """Whether kube-scheduler must be made to try a pod: once, and only if it has not yet."""
        if uid in self._closed or uid in self._asked:
            return False
        self._asked.add(uid)
        return True

    def forget(self, uid: str) -> None:
        """A pod has its node, or is gone."""
        self._closed.pop(uid, None)
        self._asked.discard(uid)


class PreemptingPods:
    """Makes waiting single pods gangs of one. `waiting` are these pods, and since when."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that it works with
        self,
        client: Client,
        planner: Planner,
        view: ClusterView,
        registry: GangRegistry,
        waiting: Callable[[], Iterable[tuple[Pod, float]]],
        offered: OfferedToSingles,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._planner = planner
        self._view = view
        self._registry = registry
        self._waiting = waiting
        self._offered = offered
        self._now = now
        self._written: dict[str, float] = {}

    async def look(self, lasts: Callable[[], bool]) -> None:
        """Let all waiting single pods preempt that may, as far as they are not too many."""
        now = self._now()
        self._written = {uid: at for uid, at in self._written.items() if now - at < AGAIN}
        asking = self._asking()
        if not asking:
            return
        victims, hardware = self._registry.victims, self._view.cluster.chooser.allocations.hardware
        running = self._view.by_workload.running(now, victims)
        gangs = {uid: gang for uid, (_, gang) in asking.items()}
        queues = self._view.queues.queues()
        found = await asyncio.to_thread(may_preempt, gangs.values(), running, queues, hardware)
        may = {one.name for one in found}
        pods = [asking[uid][0] for uid, gang in gangs.items() if gang.name in may]
        if lasts():
            await asyncio.gather(*(self._write(one, now) for one in self._first(pods, gangs)))

    def _asking(self) -> dict[str, tuple[Pod, Gang]]:
        """The waiting pods that could be gangs of one, by UID; the most urgent first."""
        found = {}
        for known, since in self._waiting():
            uid = known.metadata.uid
            pod = self._view.workloads.pods.get(uid)
            if pod is None or uid in self._written or membership_of(pod) is not None:
                continue
            gang = as_gang(self._view, self._planner, pod, since)
            if gang is not None:
                found[uid] = pod, gang
        return dict(sorted(found.items(), key=lambda one: _urgency(one[1][1])))

    def _first(self, pods: Iterable[Pod], gangs: Mapping[str, Gang]) -> list[Pod]:
        """As many as their queues may have at once."""
        workloads = self._view.workloads.gangs
        waits = Counter(
            self._registry.queue_of(key)
            for key, one in workloads.items()
            if one.is_single and one.unbound
        )
        found = []
        for pod in pods:
            queue = gangs[pod.metadata.uid].queue
            waits[queue] += 1
            if waits[queue] <= AT_ONCE:
                found.append(pod)
        return found

    async def _write(self, pod: Pod, now: float) -> None:
        meta = pod.metadata
        self._written[meta.uid] = now
        self._offered.begin(meta.uid)
        patch = {"metadata": {"uid": meta.uid, "annotations": {PREEMPTS: meta.uid}}}
        try:
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.info("cannot let a pod preempt", pod=pod.key, why=error.message)


def as_gang(view: ClusterView, planner: Planner, pod: Pod, since: float) -> Gang | None:
    """A waiting single pod as a gang of one that may preempt; None if it cannot be one."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp or foreign_gates(pod):
        return None
    cluster, queues = view.cluster, view.queues
    try:
        requests = planner.requests(pod)
        if not requests or why_never(pod, requests) or queues.refusal_of(pod):
            return None
        demand = largest_demand(cluster, as_one(requests), cluster.chooser.allocations.hardware)
    except InvalidRequestError:
        return None
    return Gang(
        name=work_name(pod),
        members=(demand,),
        queue=queues.queue_of(pod),
        priority=pod.spec.priority or 0,
        submitted=since,
    )


def why_never(pod: Pod, requests: Sequence[ContainerRequest]) -> str:
    """Why a single pod never preempts; empty if it may."""
    if pod.spec.preemption_policy == NEVER:
        return f"its preemptionPolicy is {NEVER}"
    if len(requests) > 1 and any(one.kind != "whole" for one in requests):
        return "several of its containers ask for GPUs, and not all for whole ones"
    return ""


def _urgency(gang: Gang) -> tuple[int, float, str]:
    return -gang.priority, gang.submitted, gang.name
