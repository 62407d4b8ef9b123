"""What gangs and queues answer kube-scheduler: where a pod may go, and when it may be bound.

A member of a gang goes to the place that is reserved for it, when that is written and free, and is
bound when all members have arrived. `single_pods` answers for pods that are in no gang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.membership import is_placeholder, membership_of
from aliquot.kubernetes.extender.bind import NotBoundError
from aliquot.kubernetes.extender.planner import Answer
from aliquot.kubernetes.gangs.lifecycle import arrive, give_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster, Reserved
    from aliquot.kubernetes.cluster.offered import OfferedNodes
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import GangPods, Workloads
    from aliquot.kubernetes.extender.server import CpuPreemption, Victims
    from aliquot.kubernetes.gangs.cpu_preemption import CpuPreemptions
    from aliquot.kubernetes.gangs.missing import MissingWork
    from aliquot.kubernetes.gangs.preempting import OfferedToSingles
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.kubernetes.gangs.single_pods import GangLimits, SinglePods
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.kubernetes.gangs.term import Term
    from aliquot.placement.core.demand import Gang

NEVER_RUNS = "this pod only asks an autoscaler for nodes, and never runs"
PERMIT_SECONDS = 45.0  # kube-scheduler waits 60 s for a bind, and the request takes up to 10


class Answers:
    """Answers for members and single pods. `trouble` is why no gang can start at all."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that the answers come from
        self,
        workloads: Workloads,
        registry: GangRegistry,
        single_pods: SinglePods,
        queues: Queues,
        cluster: Cluster,
        changes: Changes,
        term: Term,
        now: Callable[[], float],
        offered: OfferedToSingles,
        cpu_preemptions: CpuPreemptions,
    ) -> None:
        self._workloads = workloads
        self._registry = registry
        self._single_pods = single_pods
        self._queues = queues
        self._cluster = cluster
        self._changes = changes
        self._term = term
        self._now = now
        self._offered = offered
        self._cpu_preemptions = cpu_preemptions
        self.trouble = ""

    # --- filter -----------------------------------------------------------------------------------

    def answer(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        """Where gangs and queues let a pod go; None if that is anywhere."""
        membership, uid = membership_of(pod), pod.metadata.uid
        if membership is None:
            return self._answer_single(pod, names)
        gang, pods = self._gang_of(pod), self._workloads.gangs.get(membership.key)
        if gang is None or pods is None or uid not in pods.pods:
            if pods is not None and uid in pods.others:
                return None
            return _refusal(names, f"gang {membership.key}: this pod was not seen yet")
        if membership.single and self._offered.record(uid, names):
            self._changes.notify()
        if not gang.reservation.is_open(uid):
            why = self.trouble or gang.reason or "it was not planned yet"
            who = f"pod {pod.key}" if membership.single else f"gang {gang.key}"
            return _refusal(names, f"{who} is {gang.phase.lower()}: {why}")
        place = gang.reservation.places[uid]
        if place.node in names:
            return Answer((place.node,))
        why = f"kube-scheduler did not accept node {place.node} for pod {pod.key}"
        self._registry.apply(give_up(gang, why, self._now(), node=place.node))
        self._changes.notify()
        return _refusal(names, f"gang {gang.key}: {why}")

    def _answer_single(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        if is_placeholder(pod):
            return _refusal(names, NEVER_RUNS)
        return self._single_pods.answer(pod, names, self._now())

    def beyond_limits(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str]
    ) -> Answer | None:
        """Why the queue of a single pod does not let it have this too; None if it does."""
        return self._single_pods.beyond_limits(pod, requests, names, self._now())

    def gang_limits(self, pods: GangPods) -> GangLimits:
        """What limits a gang that asks for GPUs by resource claims."""
        return self._single_pods.gang_limits(pods, self._now())

    def advised(self, pod: Pod, answer: Answer) -> Answer:
        """A refusal, with what the pod's queue has to do with it."""
        return self._single_pods.advised(pod, answer, self._now())

    def pod_started(self, uid: str) -> None:
        """A pod has its node, or is gone."""
        self._offered.forget(uid)

    def lets(self, pod: Pod, offered: OfferedNodes) -> bool:
        """Whether a single pod that waits may go to one of these nodes now."""
        return membership_of(pod) is None and self._single_pods.lets(pod, offered, self._now())

    def short_of_gpus(self, pods: Iterable[Pod], gangs: Iterable[Gang]) -> Iterator[MissingWork]:
        """Those single pods that fit nowhere, though their queues would let them start."""
        return self._single_pods.short_of_gpus(pods, gangs, self._now())

    # --- bind -------------------------------------------------------------------------------------

    async def permit(self, pod: Pod, node: str) -> Reserved | None:
        """A member's place, when all members have arrived; None for a single pod that may go.

        NotBoundError if it may not be bound.
        """
        if is_placeholder(pod):
            raise NotBoundError(f"pod {pod.key}: {NEVER_RUNS}")
        uid, pods = pod.metadata.uid, self._workloads.gang_of(pod)
        gang = self._gang_of(pod)
        if gang is None or pods is None:
            self._single_pods.may_bind(pod, self._now())
            return None
        if uid in pods.others:
            return None
        place = gang.reservation.places.get(uid)
        permit = self._registry.permit(gang.key)
        is_open = uid in pods.pods and gang.reservation.is_open(uid)
        if permit is None or not is_open or place is None or place.node != node:
            raise NotBoundError(
                f"gang {gang.key} has nothing reserved for pod {pod.key} on node {node}"
            )
        self._registry.update(arrive(gang, self._now()))
        reserved = self._registry.place_of(gang, uid)
        await permit.arrive(uid, PERMIT_SECONDS)
        after = self._registry.gangs.get(gang.key)
        if after is None or after.reservation.places.get(uid) is not place:
            raise NotBoundError(f"gang {gang.key} has abandoned its reservation for pod {pod.key}")
        return reserved

    def queue_of(self, pod: Pod) -> str:
        """The queue that a pod is admitted under; empty if there are no queues.

        For a member, the queue whose limits were checked when its place was reserved.
        """
        if not self._queues.objects:
            return ""
        gang = self._gang_of(pod)
        return self._queues.queue_of(pod) if gang is None else self._registry.reserved_in(gang.key)

    def moved(self, pod: Pod) -> str:
        """That a pod has changed its queue or its gang since it was asked about; empty if not."""
        now = self._workloads.pods.get(pod.metadata.uid, pod)
        if membership_of(now) != membership_of(pod):
            return "it belongs to another gang now"
        gang = self._gang_of(pod)
        if gang is not None:
            return self._registry.moved(gang.key)
        queues = self._queues
        before, after = queues.queue_of(pod), queues.queue_of(now)
        return "" if before == after else f"it was in queue {before!r}, and is in {after!r} now"

    def may_bind(self) -> bool:
        """Whether this replica leads at this moment."""
        return self._term.is_on

    def holds(self, pod: Pod, place: Reserved) -> bool:
        """Whether a place is still reserved for a member."""
        gang = self._gang_of(pod)
        mine = gang.reservation.places.get(pod.metadata.uid) if gang is not None else None
        return mine is not None and (mine.node, mine.parts) == (place.node, place.parts)

    def tried(self, pod: Pod, *, bound: bool) -> None:
        """A member was bound or not; if not, a place that was not given up counts again."""
        gang, uid = self._gang_of(pod), pod.metadata.uid
        if gang is None:
            return
        if bound:
            self._registry.update(arrive(gang, self._now()))
        elif uid in gang.reservation.places and uid in self._workloads.pods:
            self._cluster.reserve(uid, self._registry.place_of(gang, uid))

    def _gang_of(self, pod: Pod) -> GangState | None:
        membership = membership_of(pod)
        return None if membership is None else self._registry.gangs.get(membership.key)

    # --- preempt ----------------------------------------------------------------------------------

    def may_evict(self, pod: Pod, proposed: Mapping[str, Victims]) -> CpuPreemption:
        """On which of these nodes kube-scheduler may evict for a pod that finds no CPU.

        A pod that preempts others may do so on those where only GPUs are missing.
        """
        found = self._cpu_preemptions.answer(pod, proposed, self._now())
        short, membership = found.short_of_gpus, membership_of(pod)
        preempts = membership is not None and membership.single
        if short and preempts and self._offered.add(pod.metadata.uid, short):
            self._changes.notify()
        return found


def _refusal(names: Sequence[str], text: str) -> Answer:
    """A refusal that the gang controller tells people about."""
    return Answer((), dict.fromkeys(names, text), message=text, by_gang=True)
