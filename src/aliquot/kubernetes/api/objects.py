"""Objects of the API server: only the fields that we read or write.

Decoding skips all others, so a list of pods costs what we look at. What a type is called and where
it is found is in its `Resource`; `apiVersion` and `kind` are written from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from aliquot.kubernetes.api import gpunode, queue

Quantity = str | int


class Owner(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object that another belongs to; one of them may be its `controller`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The name of an object and what is written on it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[Owner, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class Resources(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a container asks for."""

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class Container(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container; an init container with the restart policy `Always` runs beside the others."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None


class Gate(msgspec.Struct, frozen=True, rename="camel"):
    """Keeps a pod from kube-scheduler until it is taken away."""

    name: str


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Keeps pods from a node that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Lets a pod go where a taint would keep it away; no key is every key."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Expression(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a label, or a field, of a node must be."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Expressions that must all hold."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()


class NodeTerms(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which nodes a pod must go to."""

    required: NodeTerms | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a pod wants to be."""

    node_affinity: NodeAffinity | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a pod runs, may run and must not yet run, and of what it consists."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[Gate, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    priority: int | None = None
    active_deadline_seconds: int | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How far a pod is."""

    phase: str = ""
    start_time: str | None = None


class Pod(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """Its namespace and name, for people."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        """It holds nothing any more, by its own word: its containers have ended for good."""
        return self.status.phase in {"Succeeded", "Failed"}


class NodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a node has, and what of it pods can have."""

    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}


class NodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who may go to a node."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class Node(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node."""

    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Target(msgspec.Struct, frozen=True, rename="camel"):
    """What a binding binds to."""

    name: str
    kind: str = "Node"


class Binding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Gives a pod its node; its annotations are added to the pod's in the same step."""

    metadata: Meta
    target: Target


class Reference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which object is meant."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class EventSource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who says so."""

    component: str
    host: str = ""


class Event(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What happened to an object, for people."""

    metadata: Meta
    involved_object: Reference
    reason: str
    message: str
    source: EventSource
    type: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who holds a lease, since when, and when it said so last."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A lease."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class GpuNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node's GPUs, by its agent's word."""

    metadata: Meta = Meta()
    status: gpunode.GpuNodeStatus = gpunode.GpuNodeStatus()


class Namespace(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A namespace."""

    metadata: Meta = Meta()


class Queue(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A queue, as people want it, and what it has."""

    metadata: Meta = Meta()
    spec: queue.QueueSpec = queue.QueueSpec()
    status: queue.QueueStatus = queue.QueueStatus()


class Preconditions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which object is meant, of all that had the name."""

    uid: str = ""


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How an object is to go; without seconds, with as many as it has itself."""

    grace_period_seconds: int | None = None
    preconditions: Preconditions = Preconditions()


class Eviction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Asks a pod to go, if its disruption budgets allow it."""

    metadata: Meta
    delete_options: DeleteOptions = DeleteOptions()


class ApiObject(Protocol):
    """Every object of the API server has these."""

    @property
    def metadata(self) -> Meta:
        """Its name and what is written on it."""


T = TypeVar("T", bound=ApiObject)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object: what it is called, where it is found, and its type here."""

    type: type[T]
    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Where one of them, or all (of a namespace, or of all), are found."""
        root = "api" if "/" not in self.api_version else "apis"
        parts = [root, self.api_version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        return "/" + "/".join(filter(None, [*parts, self.plural, name, sub]))

    def reference(self, one: T) -> Reference:
        """This object, as events name it."""
        meta = one.metadata
        return Reference(
            api_version=self.api_version,
            kind=self.kind,
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )


PODS = Resource(Pod, "v1", "Pod", "pods")
NODES = Resource(Node, "v1", "Node", "nodes", namespaced=False)
BINDINGS = Resource(Binding, "v1", "Binding", "pods")
EVENTS = Resource(Event, "v1", "Event", "events")
LEASES = Resource(Lease, "coordination.k8s.io/v1", "Lease", "leases")
NAMESPACES = Resource(Namespace, "v1", "Namespace", "namespaces", namespaced=False)
EVICTIONS = Resource(Eviction, "policy/v1", "Eviction", "pods")
QUEUES = Resource(Queue, queue.API_VERSION, "Queue", queue.PLURAL, namespaced=False)
GPU_NODES = Resource(GpuNode, gpunode.API_VERSION, "GPUNode", gpunode.PLURAL, namespaced=False)

LIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"  # a field selector
