"""The pods of this node that ask for GPUs, as the API server reports them, and their events.

They come from a watch of pods, or from the node's GPUNode (`gpunode_pods`). Until that has synced,
no pod counts as gone. A pod with an invalid request is kept too, with the error.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.containers.driver_files import parse_capabilities
from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.changes import Changes
from aliquot.kubernetes.api.node_pods import NodeContainer, NodePod
from aliquot.kubernetes.api.objects import NODES, PODS, Meta, Node, Pod
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.api.requests import InvalidRequestError, asks, requests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.kubernetes.api.events import Recorder, Type
    from aliquot.kubernetes.api.plan import ContainerPlan
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest

TOO_LARGE = InvalidRequestError(
    "PodTooLarge",
    "its containers with GPUs and their annotations need more room than its node's GPUNode has for"
    " it, so its node does not know what it asks for",
    "Shorten its annotations of Aliquot, or split the pod.",
)

_log = structlog.get_logger(__name__)


class ContainerRef(msgspec.Struct, frozen=True):
    """A container of a pod, or a resource claim that it uses. Unknown fields are empty."""

    uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""

    @property
    def within(self) -> str:
        """What it is, for an event on its pod."""
        return f"resource claim {self.claim!r}" if self.claim else f"container {self.container!r}"

    def __str__(self) -> str:
        if not self.pod and not self.claim:
            return "a container that is not identified yet"
        return f"{self.within} of {self.namespace}/{self.pod or '-'}"


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod that asks for GPUs; `invalid` says why its request is invalid.

    `arrival` orders pods by when the agent first heard of them.
    """

    object: Pod
    requests: tuple[ContainerRequest, ...] = ()
    invalid: InvalidRequestError | None = None
    arrival: int = 0

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.object.metadata.uid

    @property
    def annotations(self) -> dict[str, str]:
        """The pod's annotations."""
        return self.object.metadata.annotations

    @property
    def together(self) -> str | None:
        """The name under which its grants hold GPUs together with those of other pods, or None.

        It differs between namespaces: no pod can join a group of another one.
        """
        value = self.annotations.get(names.TOGETHER)
        if not value:
            return None
        group = f"{self.object.metadata.namespace}/{value}"
        return f"pods-{hashlib.sha256(group.encode()).hexdigest()[:32]}"

    @property
    def owner(self) -> ContainerRef:
        """The pod as the owner of a grant, without a container."""
        meta = self.object.metadata
        return ContainerRef(meta.uid, meta.namespace, meta.name)

    @property
    def is_known(self) -> bool:
        """Whether the API server has reported it."""
        return bool(self.object.metadata.name)

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return not self.object.ended

    @property
    def abridged(self) -> bool:
        """Whether only that it is there is known: it was too large for the GPUNode."""
        return isinstance(self.object, NodePod) and self.object.abridged

    @property
    def pending(self) -> bool:
        """Whether it has not started, as far as is known."""
        return self.object.status.phase in {"", "Pending"}

    def container_id(self, container: str) -> str:
        """The runtime's id of a container; empty if there is none yet."""
        status = self.object.status
        for one in (*status.container_statuses, *status.init_container_statuses):
            if one.name == container:
                return one.containerID.rpartition("/")[2]
        return ""

    def capabilities(self, container: str) -> frozenset[str] | None:
        """The driver's capabilities that a container wants; None: all, or its pod does not say it.

        An image may say it too, which nobody here sees.
        """
        spec = self.object.spec
        for one in (*spec.init_containers, *spec.containers):
            if one.name == container and isinstance(one, NodeContainer):
                said = one.capabilities
                return None if said is None else parse_capabilities(said)
        return None

    def request(self, container: str) -> ContainerRequest | None:
        """What a container asks for."""
        return next((one for one in self.requests if one.container == container), None)


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod, and what it asks for."""

    pod: GpuPod
    request: ContainerRequest

    @property
    def units(self) -> dict[str, int]:
        """How many units of each resource it asks for."""
        return dict(self.request.units)

    @property
    def is_known(self) -> bool:
        """Whether the API server has reported its pod."""
        return self.pod.is_known

    @property
    def owner(self) -> ContainerRef:
        """The container as the owner of a grant."""
        return msgspec.structs.replace(self.pod.owner, container=self.request.container)

    @property
    def plan(self) -> ContainerPlan | None:
        """The scheduler's plan for it; None if there is none, or an invalid one."""
        text = self.pod.annotations.get(names.PLAN)
        plan = decode_plan(text) if text else None
        return plan.containers.get(self.request.container) if plan else None


class NodePods:
    """The pods that are reported, by UID; perhaps those with ResourceClaims too, or all.

    `behind_seconds`: by how much more than a watch of pods the reports may lag behind the kubelet.
    """

    def __init__(
        self,
        presets: Sequence[Preset],
        synced: Callable[[], bool],
        *,
        with_resource_claims: bool = False,
        keep_all: bool = False,
        behind_seconds: float = 0.0,
    ) -> None:
        self._presets = presets
        self._synced = synced
        self._keep_all = keep_all
        self.behind_seconds = behind_seconds
        self._with_resource_claims = with_resource_claims
        self._pods: dict[str, GpuPod] = {}
        self._arrivals = itertools.count()
        self._changes = Changes()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function after every change of a pod that asks for GPUs."""
        self._listeners.append(listener)

    def observe(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a change, as a watch reports it."""
        before = self._pods.pop(old.metadata.uid, None) if old else None
        arrival = before.arrival if before else next(self._arrivals)
        after = self._gpu_pod(new, arrival) if new and self._is_kept(new) else None
        if after:
            self._pods[after.uid] = after
        if before or after:
            for listener in self._listeners:
                listener()
        self._changes.notify()

    def get(self, uid: str) -> GpuPod | None:
        """A pod."""
        return self._pods.get(uid)

    def live(self) -> list[GpuPod]:
        """The pods that have not ended, in the order in which they came to the node.

        The kubelet watches the same pods and nearly always admits them in this order.
        """
        return sorted((pod for pod in self._pods.values() if pod.live), key=lambda pod: pod.arrival)

    def is_gone(self, uid: str) -> bool:
        """Whether a pod has ended or is deleted."""
        pod = self._pods.get(uid)
        return self._synced() and (pod is None or not pod.live)

    def has_ended(self, owner: ContainerRef) -> bool:
        """Whether the owner's pod is gone; the pod of an unknown owner is not."""
        return bool(owner.pod) and self.is_gone(owner.uid)

    async def wait_change(self, seconds: float) -> bool:
        """Wait for the next change; False if none comes in time."""
        return await self._changes.wait(seconds)

    def _is_kept(self, pod: Pod) -> bool:
        has_resource_claims = self._with_resource_claims and bool(pod.spec.resource_claims)
        return self._keep_all or has_resource_claims or asks(pod, self._presets)

    def _gpu_pod(self, pod: Pod, arrival: int) -> GpuPod:
        if isinstance(pod, NodePod) and pod.abridged:
            return GpuPod(pod, invalid=TOO_LARGE, arrival=arrival)
        try:
            return GpuPod(pod, requests_of(pod, self._presets), arrival=arrival)
        except InvalidRequestError as error:
            return GpuPod(pod, invalid=error, arrival=arrival)


class NodeEvents:
    """Records events on this node's pods and on the node itself, and logs them."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder = recorder
        self._node = Node(Meta(name=node, uid=node))  # the kubelet refers to its node like this

    def pod_event(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        """Record an event on a pod; a pod that is not known has no object to record it on."""
        _log.info(message, reason=reason, pod=pod.object.key)
        if pod.is_known:
            self._recorder.record(PODS, pod.object, _type(warning=warning), reason, message)

    def node_event(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Record an event on the node."""
        _log.info(message, reason=reason)
        self._recorder.record(NODES, self._node, _type(warning=warning), reason, message)


def _type(*, warning: bool) -> Type:
    return "Warning" if warning else "Normal"
