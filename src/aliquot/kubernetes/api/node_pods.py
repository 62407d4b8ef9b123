"""The pods of a node as its agent needs them: from the API server, or from the node's GPUNode.

The scheduler can write the pods that are bound to a node and ask for GPUs into the `spec` of the
node's GPUNode; then the agent needs no right to read pods. A `PodRecord` has only what the agent
uses: names, amounts of GPU resources, annotations of Aliquot, phase and ids of containers. Images,
commands, volumes, and variables but NVIDIA_DRIVER_CAPABILITIES, are not in it.

An object is limited to 1.5 MiB. So a record has at most `MOST_BYTES`. A pod that needs more is
written abridged, without containers and annotations, and so are the largest ones if the object has
no room for all: no pod can take the room of smaller ones. The agent then knows that they are there,
starts no new container of them, and leaves running ones as they are.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api import gpunode, names
from aliquot.kubernetes.api.objects import (
    Container,
    ContainerResources,
    Meta,
    Pod,
    PodResourceClaim,
    PodSpec,
    PodStatus,
    Quantity,
    Resource,
    RuntimeContainer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.presets import Preset

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
MOST_BYTES = 4 << 10
MOST_BYTES_OF_ALL = 768 << 10
READ = (  # the annotations that the agent reads, beside those that the presets name
    *(names.POLICY, names.PRIORITY, names.COMPUTE, names.MEMORY, names.ADMITTED_SIZE),
    *(names.GPUS, names.MODELS, names.NOT_MODELS, names.MIN_STRENGTH),
    *(names.GPU_UUIDS, names.NOT_GPU_UUIDS),
    *(names.LABEL, names.WITH, names.APART_FROM, names.ALONE),
    *(names.SWAP, names.PARK_AFTER, names.TOGETHER, names.PLAN),
)


class Variable(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A variable of a container. The API server leaves out an empty value."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class NodeContainer(Container, frozen=True, rename="camel", omit_defaults=True):
    """A container, with its variables."""

    env: tuple[Variable, ...] = ()

    @property
    def capabilities(self) -> str | None:
        """The value of NVIDIA_DRIVER_CAPABILITIES; None if there is none, or it is not known."""
        said = [variable for variable in self.env if variable.name == CAPABILITIES]
        if not said or said[-1].value_from is not None or "$(" in said[-1].value:
            return None
        return said[-1].value


class NodePodSpec(PodSpec, frozen=True, rename="camel", omit_defaults=True):
    """The specification of a pod, with its containers' variables."""

    containers: tuple[NodeContainer, ...] = ()
    init_containers: tuple[NodeContainer, ...] = ()


class NodePod(Pod, frozen=True, rename="camel", omit_defaults=True):
    """A pod as the agent reads it. `abridged`: only that it is there is known, no pod says so."""

    spec: NodePodSpec = NodePodSpec()
    abridged: bool = False


NODE_PODS = Resource(NodePod, "v1", "Pod", "pods")


class ContainerRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container that asks for GPUs. `resources` are the amounts; `id` is RUNTIME://ID."""

    name: str
    init: bool = False
    restart_policy: str | None = None
    resources: dict[str, Quantity] = {}
    capabilities: str | None = None
    id: str = ""


class PodRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod. `resource_claims`: it has some. `abridged`: it has no room for the rest."""

    uid: str
    namespace: str
    name: str
    phase: str = ""
    annotations: dict[str, str] = {}
    resource_claims: bool = False
    containers: tuple[ContainerRecord, ...] = ()
    abridged: bool = False

    def shortened(self) -> PodRecord:
        """The record without what has no bound."""
        return msgspec.structs.replace(self, annotations={}, containers=(), abridged=True)


class NodePodsSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The `spec` of a GPUNode. An empty digest: no scheduler has written it.

    Pods are in the order in which the scheduler heard of them.
    """

    pods_digest: str = ""
    pods: tuple[PodRecord, ...] = ()


class GpuNodePodsObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A GPUNode as the agent reads it."""

    metadata: Meta = Meta()
    spec: NodePodsSpec = NodePodsSpec()


GPU_NODE_PODS = Resource(
    GpuNodePodsObject, gpunode.API_VERSION, "GPUNode", gpunode.PLURAL, namespaced=False
)


def record_of(pod: NodePod, presets: Sequence[Preset]) -> PodRecord:
    """The record of a pod; abridged if it is too large."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    ids = {
        one.name: one.containerID
        for one in (*status.init_container_statuses, *status.container_statuses)
    }
    resources = {name for preset in presets for name in preset.resources}
    containers = (
        *(_container(one, resources, ids, init=True) for one in spec.init_containers),
        *(_container(one, resources, ids, init=False) for one in spec.containers),
    )
    record = PodRecord(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        phase=status.phase,
        annotations={
            name: meta.annotations[name] for name in _read(presets) if name in meta.annotations
        },
        resource_claims=bool(spec.resource_claims),
        containers=tuple(one for one in containers if one.resources),
    )
    return record if len(msgspec.json.encode(record)) <= MOST_BYTES else record.shortened()


def spec_of(records: Iterable[PodRecord]) -> NodePodsSpec:
    """The `spec` with these pods; the largest ones are abridged until there is room."""
    written = list(records)
    sizes = [len(msgspec.json.encode(one)) for one in written]
    size = sum(sizes)
    for at in sorted(range(len(written)), key=lambda at: (-sizes[at], written[at].uid)):
        if size <= MOST_BYTES_OF_ALL:
            break
        written[at] = written[at].shortened()
        size -= sizes[at] - len(msgspec.json.encode(written[at]))
    in_order = sorted(written, key=lambda one: one.uid)
    text = msgspec.json.encode(in_order, order="deterministic")
    return NodePodsSpec(hashlib.sha256(text).hexdigest()[:32], tuple(written))


def pod_of(record: PodRecord, node: str) -> NodePod:
    """A pod of a node, as far as its record says it."""
    return NodePod(
        metadata=Meta(
            name=record.name,
            namespace=record.namespace,
            uid=record.uid,
            annotations=record.annotations,
        ),
        spec=NodePodSpec(
            node_name=node,
            containers=tuple(_restored(one) for one in record.containers if not one.init),
            init_containers=tuple(_restored(one) for one in record.containers if one.init),
            resource_claims=(PodResourceClaim(),) if record.resource_claims else (),
        ),
        abridged=record.abridged,
        status=PodStatus(
            phase=record.phase,
            container_statuses=tuple(
                RuntimeContainer(one.name, one.id) for one in record.containers if one.id
            ),
        ),
    )


def _read(presets: Sequence[Preset]) -> dict[str, None]:
    """The names of the annotations that the agent reads."""
    named = [
        (one.models, one.not_models, one.gpus, one.not_gpus, *(other.name for other in one.foreign))
        for one in presets
    ]
    return dict.fromkeys((*READ, *(name for some in named for name in some)))


def _container(
    one: NodeContainer, resources: set[str], ids: dict[str, str], *, init: bool
) -> ContainerRecord:
    asked = {**one.resources.requests, **one.resources.limits}
    return ContainerRecord(
        name=one.name,
        init=init,
        restart_policy=one.restart_policy,
        resources={name: value for name, value in asked.items() if name in resources},
        capabilities=one.capabilities,
        id=ids.get(one.name, ""),
    )


def _restored(one: ContainerRecord) -> NodeContainer:
    said = one.capabilities
    return NodeContainer(
        name=one.name,
        resources=ContainerResources(limits=one.resources),
        restart_policy=one.restart_policy,
        env=() if said is None else (Variable(CAPABILITIES, said),),
    )
