"""Objects of the API server: only the fields that Aliquot reads or writes.

Decoding skips all other fields, so a list of pods is cheap. The `Resource` of a type has its path,
`apiVersion` and `kind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from aliquot.kubernetes.api import gpunode, queue

if TYPE_CHECKING:
    from collections.abc import Mapping

Quantity = str | int


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An owner reference; one owner may be the `controller`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The metadata of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generate_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class ContainerResources(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The resources of a container."""

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class Container(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container; an init container with the restart policy `Always` is a sidecar."""

    name: str = ""
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None


class Gate(msgspec.Struct, frozen=True, rename="camel"):
    """A scheduling gate: kube-scheduler ignores a pod that has one."""

    name: str


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A toleration of a pod; without a key it tolerates every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Expression(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A requirement on a label or field of an object."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels or fields fulfils it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        try:
            ours, theirs = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return ours > theirs if self.operator == "Gt" else ours < theirs


class NodeTerm(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Expressions that must all hold."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()


class NodeTerms(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The nodes that a pod requires."""

    required: NodeTerms | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The affinity of a pod."""

    node_affinity: NodeAffinity | None = None


class PodResourceClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A resource claim of a pod, by the name that its containers have for it."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The node of a pod, its scheduling constraints and its containers."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[Gate, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    priority: int | None = None
    preemption_policy: str = ""
    active_deadline_seconds: int | None = None


class RuntimeContainer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container of a pod as its runtime has it: `containerID` is RUNTIME://ID, or empty."""

    name: str = ""
    containerID: str = ""  # noqa: N815 - the API's own spelling


class PodResourceClaimStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The claim that was made for a pod from a template, by the pod's name for it."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The phase of a pod, when it started, its containers and its resource claims."""

    phase: str = ""
    start_time: str | None = None
    container_statuses: tuple[RuntimeContainer, ...] = ()
    init_container_statuses: tuple[RuntimeContainer, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class Pod(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """Namespace and name, for messages."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended for good."""
        return self.status.phase in {"Succeeded", "Failed"}


class NodeInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The versions of a node's programs; that of the runtime is RUNTIME://VERSION."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The capacity of a node, how much of it pods can have, and its programs."""

    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    node_info: NodeInfo = NodeInfo()


class NodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The taints of a node, and whether it is cordoned."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class Node(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node."""

    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Target(msgspec.Struct, frozen=True, rename="camel"):
    """The target of a binding."""

    name: str
    kind: str = "Node"


class Binding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Binds a pod to a node; the API server adds its annotations to the pod in the same step."""

    metadata: Meta
    target: Target


class Reference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A reference to an object."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class EventSource(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The component that reports an event."""

    component: str
    host: str = ""


class Event(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event on an object."""

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
    """The holder of a lease, since when it holds it, and when it last renewed it."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A lease."""

    metadata: Meta
    spec: LeaseSpec = LeaseSpec()


class Secret(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A secret; its values are in base64."""

    metadata: Meta
    data: dict[str, str] = {}


class EndpointConditions(msgspec.Struct, frozen=True, rename="camel"):
    """Whether an endpoint gets connections."""

    ready: bool = True


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """Addresses of one pod of a Service."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()


class EndpointPort(msgspec.Struct, frozen=True, rename="camel"):
    """A port of a Service's pods, by the name that the Service has for it."""

    name: str
    port: int
    protocol: str = "TCP"


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where connections to a Service go; a label names the Service."""

    metadata: Meta
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[EndpointPort, ...] = ()


class Endpoints(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The same in the form before EndpointSlices; what it says does not matter here."""

    metadata: Meta


class GpuNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A node's GPUs, as its agent reports them."""

    metadata: Meta = Meta()
    status: gpunode.GpuNodeStatus = gpunode.GpuNodeStatus()
    spec: gpunode.GpuNodeSpec = gpunode.GpuNodeSpec()


class Namespace(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A namespace."""

    metadata: Meta = Meta()


class QueueObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A queue: what people specified, and what it uses."""

    metadata: Meta = Meta()
    spec: queue.QueueSpec = queue.QueueSpec()
    status: queue.QueueStatus = queue.QueueStatus()


class Preconditions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The UID that an object must have, of all that had its name."""

    uid: str = ""


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How to delete an object; without seconds, with its own grace period."""

    grace_period_seconds: int | None = None
    preconditions: Preconditions = Preconditions()


class Eviction(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Evicts a pod, if its PodDisruptionBudgets allow it."""

    metadata: Meta
    delete_options: DeleteOptions = DeleteOptions()


class ApiObject(Protocol):
    """Any object of the API server."""

    @property
    def metadata(self) -> Meta:
        """Its metadata."""


T = TypeVar("T", bound=ApiObject)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object: its names in the API, its path, and its Python type."""

    type: type[T]
    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path of one object, or of all objects (of a namespace, or of all namespaces)."""
        root = "api" if "/" not in self.api_version else "apis"
        parts = [root, self.api_version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        return "/" + "/".join(filter(None, [*parts, self.plural, name, sub]))

    def reference(self, one: T) -> Reference:
        """A reference to an object, for events."""
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
SECRETS = Resource(Secret, "v1", "Secret", "secrets")
ENDPOINTS = Resource(Endpoints, "v1", "Endpoints", "endpoints")
ENDPOINT_SLICES = Resource(EndpointSlice, "discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
NAMESPACES = Resource(Namespace, "v1", "Namespace", "namespaces", namespaced=False)
EVICTIONS = Resource(Eviction, "policy/v1", "Eviction", "pods")
QUEUES = Resource(QueueObject, queue.API_VERSION, "Queue", queue.PLURAL, namespaced=False)
GPU_NODES = Resource(GpuNode, gpunode.API_VERSION, "GPUNode", gpunode.PLURAL, namespaced=False)

LIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"  # a field selector
