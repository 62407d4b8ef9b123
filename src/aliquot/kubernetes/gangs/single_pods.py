"""Single pods: where they delay no planned start, and within their queue's limit.

Without planned starts and queues nothing is restricted: a single pod goes its usual way. A pod that
may go is counted at once, and the count is checked again when the pod is bound. So no limit is
passed, however long the pod takes from the one to the other. If a gang waits for a limit, single
pods that came after it wait behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import DURATION
from aliquot.kubernetes.api.queue import DEFAULT
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.cluster.snapshot import largest_demand
from aliquot.kubernetes.cluster.workloads import single_name
from aliquot.kubernetes.extender.bind import NotBoundError
from aliquot.kubernetes.extender.planner import RESERVED_SECONDS, Answer
from aliquot.kubernetes.gangs.missing import MissingPod, MissingWork
from aliquot.kubernetes.gangs.observe import queue_refusal
from aliquot.kubernetes.gangs.preempting import why_never
from aliquot.placement.core.demand import Demand, Gang
from aliquot.placement.queues.quota import Tree, needs, prefixes, within_quota

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.offered import OfferedNodes
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import GangPods, Workloads
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.backfill import BackfillWindow
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.placement.queues.quota import Path, Queue, Sums

PLANNED = (
    "what is free is kept for the planned starts of gangs (kubectl get gangs -A); a pod that"
    f" declares a short {DURATION} may start before them"
)
WITH_THIS = "with this pod it would have"
RECLAIMS = "so it preempts what other queues borrow, if that is enough for it to start"


@dataclass(frozen=True, slots=True)
class GangLimits:
    """What limits a gang that is decided elsewhere: all queues, and what counts for their limits.

    `problem` is why it cannot start in its queue, `behind` which gang comes before it; both may be
    empty.
    """

    queues: Mapping[str, Queue]
    charged: Sums
    problem: str = ""
    behind: str = ""


class SinglePods:
    """Answers for single pods.

    `backfill` is the window that the planned starts of gangs leave; None if there are none.
    `stopped` are the gangs that wait for a limit, by the queue whose limit it is.
    """

    def __init__(
        self,
        planner: Planner,
        workloads: Workloads,
        registry: GangRegistry,
        queues: Queues,
        allocations: WorkloadAllocations,
    ) -> None:
        self._planner = planner
        self._cluster = planner.cluster
        self._workloads = workloads
        self._registry = registry
        self._queues = queues
        self._allocations = allocations
        self.backfill: BackfillWindow | None = None
        self.stopped: Mapping[Path, Gang] = {}

    def answer(self, pod: Pod, names: Sequence[str], now: float) -> Answer | None:
        """Where gangs and queues let a pod go; None if that is anywhere."""
        queue = self._queue(pod)
        if self.backfill is None and not queue:
            return None
        try:
            requests = self._planner.requests(pod)
        except InvalidRequestError:
            return None
        if not requests:
            return None
        refused = self._beyond_limits(pod, requests, names, now, {pod.metadata.uid})
        return refused or self._place(pod, requests, names, now)

    def beyond_limits(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str], now: float
    ) -> Answer | None:
        """Why the queue of a pod does not let it have this too; None if it does."""
        return self._beyond_limits(pod, requests, names, now, ())

    def _beyond_limits(
        self,
        pod: Pod,
        requests: Sequence[ContainerRequest],
        names: Sequence[str],
        now: float,
        without: Collection[str],
    ) -> Answer | None:
        queue = self._queue(pod)
        problem = self._queues.refusal_of(pod) if queue else ""
        if problem:
            return _refusal(names, "InvalidQueue", problem)
        full = self._behind(pod, queue) or self._full(pod, queue, requests, now, without)
        return _refusal(names, "QueueFull", full) if full else None

    def gang_limits(self, pods: GangPods, now: float) -> GangLimits:
        """What limits a gang that is decided elsewhere."""
        queue = self._queue(pods.lead)
        return GangLimits(
            queues=self._queues.queues(),
            charged=self._allocations.charged(now, self._registry.preemptions()),
            problem=queue_refusal(self._queues, pods) if queue else "",
            behind=self._behind(pods.lead, queue),
        )

    def advised(self, pod: Pod, answer: Answer, now: float) -> Answer:
        """The same; a pod that its queue's quota covers is told whether it may reclaim that."""
        queue = self._queue(pod)
        if answer.reason != "InsufficientGPUs" or not queue or self._queues.refusal_of(pod):
            return answer
        gang = self._as_gang(pod, queue, self._planner.requests(pod))
        hardware = self._cluster.chooser.allocations.hardware
        queues, used = self._queues.queues(), self._allocations.used(now, {pod.metadata.uid})
        if not within_quota([gang], queues, used, hardware):
            return answer
        why_not = why_never(pod, self._planner.requests(pod))
        hint = f"but it does not preempt: {why_not}" if why_not else RECLAIMS
        covered = f"The quota of queue {queue} covers it, {hint}."
        return replace(answer, message=f"{answer.message} {covered}")

    def may_bind(self, pod: Pod, now: float) -> None:
        """Check a pod that is about to be bound again; NotBoundError if it may not be.

        If its queue has a limit, the pod must still be counted, and stays so while it is bound.
        """
        queue = self._queue(pod)
        refusal = self._queues.refusal_of(pod) if queue else ""
        if refusal:
            self._cluster.forget(pod.metadata.uid)
            raise NotBoundError(f"pod {pod.key}: {refusal}")
        if not queue or not Tree(self._queues.queues()).is_limited(queue):
            return
        uid = pod.metadata.uid
        try:
            requests = self._planner.requests(pod)
        except InvalidRequestError as error:
            raise NotBoundError(str(error)) from error
        if not requests:
            return
        reserved = self._cluster.reserved(uid)
        if reserved is None:
            raise NotBoundError(f"pod {pod.key} took too long: it must be scheduled again")
        full = self._full(pod, queue, requests, now, {uid})
        if full:
            self._cluster.forget(uid)
            raise NotBoundError(f"pod {pod.key}: {full}")
        until = self._cluster.now() + RESERVED_SECONDS
        self._cluster.reserve(uid, replace(reserved, until=max(until, reserved.until)))

    def lets(self, pod: Pod, offered: OfferedNodes, now: float) -> bool:
        """Whether gangs and queues would let a pod that waits start on one of these nodes now."""
        try:
            requests = self._planner.requests(pod)
        except InvalidRequestError:
            return False
        if not self._is_within_limits(pod, requests, now):
            return False
        if self.backfill is None or not self.backfill.holds:
            return True
        try:
            return self.backfill.has_place(requests, offered, self._seconds(pod, now), now)
        except InvalidRequestError:
            return self._planner.fits(pod, offered, self.backfill.planned_nodes)

    def short_of_gpus(
        self, pods: Iterable[Pod], gangs: Iterable[Gang], now: float
    ) -> Iterator[MissingWork]:
        """Those pods that fit nowhere, though their queues would let them start.

        Limits hold for all of them together with these gangs, which wait for GPUs too.
        """
        tree, hardware = Tree(self._queues.queues()), self._cluster.chooser.allocations.hardware
        charged = self._allocations.charged(now, self._registry.preemptions())
        for gang in gangs:
            tree.add(charged, gang.queue, needs(gang, hardware))
        fit: dict[tuple[ContainerRequest, ...], bool] = {}
        for pod in pods:
            queue = self._queue(pod)
            try:
                requests = self._planner.requests(pod)
            except InvalidRequestError:
                continue
            if (queue and self._queues.refusal_of(pod)) or self._behind(pod, queue):
                continue
            gang = self._as_gang(pod, queue, requests)
            if queue:
                more = needs(gang, hardware)
                if tree.over(queue, more, charged) is not None:
                    continue
                tree.add(charged, queue, more)
            if requests not in fit:
                fit[requests] = self._planner.fits(pod)
            if any(one.wishes is not None and one.wishes.needs_existing for one in requests):
                continue
            if gang.members and not fit[requests]:
                yield MissingWork(gang, (MissingPod(pod, _as_demand(gang)),))

    # --- queues -----------------------------------------------------------------------------------

    def _is_within_limits(self, pod: Pod, requests: Sequence[ContainerRequest], now: float) -> bool:
        queue = self._queue(pod)
        if queue and self._queues.refusal_of(pod):
            return False
        own = {pod.metadata.uid}
        return not (self._behind(pod, queue) or self._full(pod, queue, requests, now, own))

    def _queue(self, pod: Pod) -> str:
        """The queue of a pod; empty if there are no queues and the pod names none."""
        names_none = self._queues.named_by(pod) == DEFAULT
        return "" if names_none and not self._queues.objects else self._queues.queue_of(pod)

    def _full(
        self,
        pod: Pod,
        queue: str,
        requests: Sequence[ContainerRequest],
        now: float,
        without: Collection[str],
    ) -> str:
        """The message that this pod would exceed a limit of its queue; empty if it would not.

        What the pods of the UIDs `without` have does not count.
        """
        tree = Tree(self._queues.queues())
        if not queue or not tree.is_limited(queue):
            return ""
        gang = self._as_gang(pod, queue, requests)
        if not gang.members:
            return ""
        more = needs(gang, self._cluster.chooser.allocations.hardware)
        used = self._allocations.charged(now, self._registry.preemptions(), without)
        over = tree.over(queue, more, used)
        return (
            ""
            if over is None
            else tree.limit_message(over, gang.queue, used[over] + more, WITH_THIS)
        )

    def _as_gang(self, pod: Pod, queue: str, requests: Sequence[ContainerRequest]) -> Gang:
        """A pod as a gang, with a member for each container that is not an init container."""
        hardware = self._cluster.chooser.allocations.hardware
        main = (one for one in requests if not one.init)
        members = tuple(largest_demand(self._cluster, one, hardware) for one in main)
        return Gang(single_name(pod), members, queue=queue)

    def _behind(self, pod: Pod, queue: str) -> str:
        """The message that an earlier gang waits for a limit of this queue; empty if none does.

        Earlier is as among gangs: a higher priority, or the same priority and older.
        """
        if not queue or not self.stopped:
            return ""
        made = (seconds_at(pod.metadata.creation_timestamp) or math.inf) + 1  # in whole seconds
        for path in prefixes(Tree(self._queues.queues()).path(queue)):
            gang = self.stopped.get(path)
            mine = -(pod.spec.priority or 0), made
            if gang is not None and (-gang.priority, gang.submitted) < mine:
                return f"{gang.name} comes before it, and waits for the limit of queue {path[-1]}"
        return ""

    # --- planned starts ---------------------------------------------------------------------------

    def _place(
        self, pod: Pod, requests: Sequence[ContainerRequest], names: Sequence[str], now: float
    ) -> Answer | None:
        """Reserve a place that delays no planned start, or refuse; None if there is no backfill."""
        window, uid = self.backfill, pod.metadata.uid
        if window is None:
            return None
        self._cluster.forget(uid)
        if not window.holds:
            return self._elsewhere(window, pod, names)
        try:
            found = window.find(uid, requests, names, self._seconds(pod, now), now)
        except InvalidRequestError:
            return self._elsewhere(window, pod, names)
        if found is None:
            usual = self._planner.filter(pod, names)
            self._cluster.forget(uid)
            if usual.names:
                why = PLANNED + self._disbelief(pod, now)
                return _refusal(names, "KeptForGangs", why)
            return usual
        until, version = (
            self._cluster.now() + RESERVED_SECONDS,
            self._cluster.node_version(found.node),
        )
        place = Reserved(
            pod.key, found.node, found.parts, until, requests=tuple(requests), node_version=version
        )
        self._cluster.reserve(uid, place)
        window.take(uid, found)
        return Answer((found.node,))

    def _seconds(self, pod: Pod, now: float) -> float:
        """How long a pod runs that waits."""
        declared = self._workloads.seconds_of(pod)
        return self._workloads.waiting_seconds(pod.metadata.namespace, declared, now)

    def _disbelief(self, pod: Pod, now: float) -> str:
        """Why the pod's duration does not count; empty if it does."""
        declared = pod.metadata.annotations.get(DURATION)
        namespace = pod.metadata.namespace
        if declared is None or not self._workloads.disbelieves(namespace, now):
            return ""
        return (
            f". Its {DURATION} of {declared} does not count: pods of namespace {namespace} ran more"
            " than twice as long as they declared"
        )

    def _elsewhere(self, window: BackfillWindow, pod: Pod, names: Sequence[str]) -> Answer:
        """A place on nodes without planned starts: for pods that are more than one demand."""
        taken = window.planned_nodes
        left = [name for name in names if name not in taken]
        usual = self._planner.filter(pod, left)
        if usual.names:
            return usual
        why = {**dict(usual.refused), **dict.fromkeys(taken.intersection(names), PLANNED)}
        return Answer((), why, "KeptForGangs", PLANNED)


def _as_demand(gang: Gang) -> Demand:
    """The containers of a pod as one demand; of different kinds, as many whole GPUs are enough."""
    if len(gang.members) == 1:
        return gang.members[0]
    return Demand(
        gpus=sum(one.gpus for one in gang.members),
        min_strength=max(one.min_strength for one in gang.members),
    )


def _refusal(names: Sequence[str], reason: str, text: str) -> Answer:
    return Answer((), dict.fromkeys(names, text), reason, text)
