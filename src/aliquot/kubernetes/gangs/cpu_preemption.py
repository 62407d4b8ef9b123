"""What kube-scheduler may evict for a pod with GPUs: others in the way of its CPU, never its GPUs.

kube-scheduler preempts by CPU, memory and the like, and knows neither quotas nor GPUs. It looks
only at nodes that it did not offer to the extender: those that the extender refuses are final. For
these it asks the extender (`preempt`), which lets it evict only if

- the pod's GPUs on the node are free, and gangs and queues let the pod start there; or they are
  reserved for it;
- no victim is a part of a gang;
- the pod may preempt each victim that has GPUs, by quotas and priorities, as this scheduler would;
- no disruption budget is violated, if a victim has GPUs.

If only the GPUs are missing, the node counts as offered: the pod may preempt there by the usual
decision, and kube-scheduler frees CPU afterwards if it must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.membership import is_placeholder, membership_of
from aliquot.kubernetes.cluster.offered import OfferedNodes
from aliquot.kubernetes.extender.server import CpuPreemption
from aliquot.kubernetes.gangs.preempting import as_gang
from aliquot.placement.queues.preempt import preemptible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.extender.server import Victims
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.kubernetes.gangs.single_pods import SinglePods


class CpuPreemptions:
    """Answers kube-scheduler for one pod after the other."""

    def __init__(
        self,
        planner: Planner,
        view: ClusterView,
        registry: GangRegistry,
        single_pods: SinglePods,
    ) -> None:
        self._planner = planner
        self._view = view
        self._registry = registry
        self._single_pods = single_pods

    def answer(self, pod: Pod, proposed: Mapping[str, Victims], now: float) -> CpuPreemption:
        """On which of these nodes kube-scheduler may evict the victims that it proposes."""
        membership = membership_of(pod)
        if is_placeholder(pod) or (membership is not None and not membership.single):
            return CpuPreemption()
        uids = {uid for one in proposed.values() for uid in one.uids}
        with_gpus = {uid for uid in uids if uid in self._view.workloads.pods}
        protected = self._protected(pod, with_gpus, now)
        possible = [
            node
            for node, one in proposed.items()
            if protected.isdisjoint(one.uids)
            and not (one.violates_budgets and not with_gpus.isdisjoint(one.uids))
        ]
        allowed = tuple(node for node in possible if self._has_gpus(pod, node, now))
        return CpuPreemption(allowed, tuple(one for one in possible if one not in allowed))

    def _protected(self, pod: Pod, uids: Collection[str], now: float) -> set[str]:
        """Those of these pods with GPUs that may not be evicted for it."""
        if not uids:
            return set()
        workloads, queues = self._view.workloads, self._view.queues.queues()
        gang = as_gang(self._view, self._planner, pod, now)
        if gang is None:
            return set(uids)
        allocations = self._view.cluster.chooser.allocations
        apart = {*self._registry.victims, pod.metadata.uid}
        running = self._view.by_workload.running(now, apart)
        over = preemptible(allocations, gang, running, queues, now)
        found = {uid: membership_of(workloads.pods[uid]) for uid in uids}
        return {
            uid
            for uid, one in found.items()
            if (one is not None and not one.single) or workloads.name_of(uid) not in over
        }

    def _has_gpus(self, pod: Pod, node: str, now: float) -> bool:
        """Whether the pod's GPUs on a node are free or reserved for it."""
        uid, membership = pod.metadata.uid, membership_of(pod)
        if membership is not None:
            gang = self._registry.gangs.get(membership.key)
            is_open = gang is not None and gang.reservation.is_open(uid)
            return is_open and gang is not None and gang.reservation.places[uid].node == node
        try:
            requests = self._planner.requests(pod)
        except InvalidRequestError:
            return False
        if requests and self._planner.plan(requests, node, {uid}) is None:
            return False
        offered = OfferedNodes.of(self._view.cluster, [node])
        return self._single_pods.lets(pod, offered, now)
