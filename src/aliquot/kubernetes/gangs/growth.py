"""Growth of running pods: the scheduler lets a pod grow if its queue's limits allow it.

A permission counts for the queue from the moment of the decision, before it is written, until the
pod's node reports the growth, or would have reported it since the permission ended. A new leader
reads the permissions of the one before from the pods. A pod that may not grow now is told why once,
and gets its permission as soon as it may. Growth waits behind gangs that wait for the same limit.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.admission import RESIZING, AdmittedSize, admitted_size, sizes_of
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import ADMITTED_SIZE
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.requests import InvalidRequestError, requests_of, settings_of
from aliquot.model import Priority
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Resources, Tree, prefixes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.gpunode import NodeGpu, NodeGrant
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest, Settings
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.gangs.registry import GangRegistry
    from aliquot.placement.core.demand import Gang
    from aliquot.placement.queues.quota import Path, Sums

VALID_SECONDS = 30.0  # within which an agent uses a permission
RENEW_SECONDS = 600.0  # after which one that was not used is given again
SETTLE_SECONDS = 30.0  # within which a node reports what a change of annotations has done
AT_ONCE = 16  # permissions in one pass
WITH_THIS = "with this growth it would have"
NOTHING = Resources()

_log = structlog.get_logger(__name__)


class Growth:
    """Answers pods that want to grow. `stopped` are the gangs that wait for a limit, by queue."""

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        registry: GangRegistry,
        recorder: Recorder,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._registry = registry
        self._recorder = recorder
        self._now = now
        self._changed: dict[str, float] = {}  # pods that may want to grow: when they last changed
        self._given: dict[str, _Given] = {}
        self._told: dict[str, dict[str, str]] = {}  # the sizes that were refused
        self.stopped: Mapping[Path, Gang] = {}

    def pod_changed(self, before: Pod | None, pod: Pod) -> None:
        """A pod was created or changed."""
        if not self._view.asks(pod):
            return  # a resource claim never grows
        if pod.spec.node_name and (sizes_of(pod) or (before is not None and sizes_of(before))):
            self._changed[pod.metadata.uid] = self._now()

    def load(self, pods: Iterable[Pod]) -> None:
        """Begin to lead: count the permissions that the leader before has given."""
        self.forget_all()
        for pod in filter(self._view.asks, pods):
            if sizes_of(pod) or (self._more(pod) or NOTHING) != NOTHING:
                self._changed[pod.metadata.uid] = self._now()
            size = admitted_size(pod)
            if size is not None:
                self._given[pod.metadata.uid] = _Given(size, NOTHING)
        self._count(self._now())

    def forget_all(self) -> None:
        """This replica does not lead any more."""
        self._given.clear()
        self._told.clear()
        self._view.by_workload.growing = {}

    async def answer(self, lasts: Callable[[], bool]) -> None:
        """Give permissions to pods that may grow now, while this replica leads; some in a pass."""
        now = self._now()
        self._count(now)
        asking = [(pod, more) for pod, more in self._wanting(now) if self._may_ask(pod, now)]
        if not asking:
            return
        tree = Tree(self._view.queues.queues())
        charged = self._view.by_workload.charged(now, self._registry.preemptions())
        given: list[tuple[Pod, AdmittedSize]] = []
        for pod, more in asking:
            queue = self._queue_of(pod)
            why = self._refusal(queue, more, tree, charged)
            if why:
                self._tell(pod, why)
                continue
            tree.add(charged, queue, more)
            size = AdmittedSize(pod.metadata.uid, now + VALID_SECONDS, sizes_of(pod))
            self._given[size.uid] = _Given(size, more)
            given.append((pod, size))
            if len(given) == AT_ONCE:
                break
        self._count(now)
        if lasts():
            await asyncio.gather(*(self._write(pod, size) for pod, size in given))

    def _wanting(self, now: float) -> Iterator[tuple[Pod, Resources]]:
        """The pods that want more than they have, and how much."""
        for uid, since in list(self._changed.items()):
            pod = self._view.workloads.pods.get(uid)
            more = None if pod is None else self._more(pod)
            if pod is not None and more is not None and more != NOTHING:
                yield pod, more
                continue
            self._told.pop(uid, None)
            if pod is None or now - since > SETTLE_SECONDS:
                del self._changed[uid]

    def _may_ask(self, pod: Pod, now: float) -> bool:
        """Whether a pod has no permission now, nor had one for the same a short time ago."""
        if pod.metadata.uid in self._given:
            return False
        size = admitted_size(pod)
        return size is None or size.sizes != sizes_of(pod) or now >= size.until + RENEW_SECONDS

    def _refusal(self, queue: str, more: Resources, tree: Tree, charged: Sums) -> str:
        """Why a queue does not let a pod grow; empty if it does."""
        for path in prefixes(tree.path(queue)):
            first = self.stopped.get(path)
            if first is not None:
                return f"{first.name} comes before it, and waits for the limit of queue {path[-1]}"
        over = tree.over(queue, more, charged)
        if over is None:
            return ""
        return tree.limit_message(over, queue, charged[over] + more, WITH_THIS)

    def _tell(self, pod: Pod, why: str) -> None:
        """Tell a pod once why it may not grow to these sizes."""
        uid, sizes = pod.metadata.uid, sizes_of(pod)
        if self._told.get(uid) != sizes:
            self._told[uid] = sizes
            text = f"it stays as it is: {why}. It grows as soon as its queue allows it"
            self._recorder.record(PODS, pod, "Warning", "ResizeRefused", text)

    async def _write(self, pod: Pod, size: AdmittedSize) -> None:
        patch = {"metadata": {"uid": size.uid, "annotations": {ADMITTED_SIZE: size.encode()}}}
        meta = pod.metadata
        try:
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:  # it may be written: it counts until it ends
            _log.info("a permission to grow was not written", pod=pod.key, why=error.message)

    def _count(self, now: float) -> None:
        """Count what was allowed and is not reported yet."""
        growing: defaultdict[str, Resources] = defaultdict(Resources)
        for uid, given in list(self._given.items()):
            pod = self._view.workloads.pods.get(uid)
            more = self._more(_with_sizes(pod, given.size.sizes)) if pod is not None else NOTHING
            more = given.more if more is None else more
            if pod is None or now >= given.counts_until or more == NOTHING:
                del self._given[uid]
            else:
                growing[self._queue_of(pod)] += more
        self._view.by_workload.growing = dict(growing)

    def _queue_of(self, pod: Pod) -> str:
        gang = self._view.workloads.gang_of(pod)
        return self._view.queues.queue_of(pod if gang is None else gang.lead)

    def _more(self, pod: Pod) -> Resources | None:
        """What a pod wants above what its node reports; None if that is unknown."""
        node = self._view.cluster.nodes.get(pod.spec.node_name)
        if node is None:
            return None
        try:
            settings = settings_of(pod)
            requests = {one.container: one for one in requests_of(pod, self._view.presets)}
        except InvalidRequestError:
            return None
        found = NOTHING
        for gpu in node.status.gpus:
            for grant in gpu.grants if gpu.kind == "sliced" else ():
                request = requests.get(grant.container)
                if grant.pod_uid == pod.metadata.uid and request is not None:
                    found += _growth_of(grant, gpu, request, settings)
        return found


@dataclass(frozen=True, slots=True)
class _Given:
    """A permission, and what it was worth when it was given."""

    size: AdmittedSize
    more: Resources

    @property
    def counts_until(self) -> float:
        """When it counts no longer: its node would have reported the growth by then."""
        return self.size.until + SETTLE_SECONDS


def _growth_of(
    grant: NodeGrant, gpu: NodeGpu, request: ContainerRequest, settings: Settings
) -> Resources:
    """What a container wants of a GPU above what it has: as the agent would allocate it."""
    memory = 0 if settings.memory is None else settings.memory.of(gpu.memory) - grant.memory
    compute = max(request.compute, settings.compute or 0)
    wants = 0 if settings.priority is Priority.BACKGROUND else compute
    has = 0 if grant.priority == Priority.BACKGROUND else grant.compute
    return Resources(WHOLE_MILLI // 100 * max(0, wants - has), max(0, memory))


def _with_sizes(pod: Pod, sizes: Mapping[str, str]) -> Pod:
    """The pod as if its annotations were these."""
    notes = {name: text for name, text in pod.metadata.annotations.items() if name not in RESIZING}
    meta = msgspec.structs.replace(pod.metadata, annotations={**notes, **sizes})
    return msgspec.structs.replace(pod, metadata=meta)
