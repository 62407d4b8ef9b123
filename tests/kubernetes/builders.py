"""Builders of Kubernetes objects for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu, NodeGrant, NodeLink
from aliquot.kubernetes.api.names import GROUP, MEMORY_UNIT
from aliquot.kubernetes.api.objects import (
    Container,
    ContainerResources,
    GpuNode,
    Meta,
    Pod,
    PodSpec,
    PodStatus,
)

GIB = 1 << 30
GPU_BYTES = 80 * GIB


def container(name: str = "main", *, sidecar: bool = False, **asked: Any) -> Container:
    """A container by what it asks for: container(gpu=1), container(memory=8, core=20).

    A name with a slash or a dot is a resource's own.
    """
    short = {"memory": "vcuda-memory", "core": "vcuda-core"}
    limits: dict[str, str | int] = {
        key if "/" in key else f"{GROUP}/{short.get(key, key)}": str(value)
        for key, value in asked.items()
    }
    return Container(
        name=name,
        resources=ContainerResources(limits=limits),
        restart_policy="Always" if sidecar else None,
    )


def make_pod(
    name: str = "p",
    *containers: Container,
    init: tuple[Container, ...] = (),
    node: str = "",
    phase: str = "",
    uid: str = "",
    annotations: dict[str, str] | None = None,
    **asked: Any,
) -> Pod:
    """A pod of these containers, or of one that asks for this."""
    return Pod(
        metadata=Meta(
            name=name, namespace="ns", uid=uid or f"uid-{name}", annotations=annotations or {}
        ),
        spec=PodSpec(
            node_name=node,
            containers=containers or (container(**asked),),
            init_containers=init,
        ),
        status=PodStatus(phase=phase),
    )


def pod_of(manifest: dict[str, Any]) -> Pod:
    """A pod as the API server has it: quantities are strings."""
    return msgspec.convert(manifest, Pod, strict=False)


def gpu_uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def make_gpu(node: str, index: int, **changes: Any) -> NodeGpu:
    one = NodeGpu(index=index, uuid=gpu_uuid(node, index), model="H100 80GB HBM3", memory=GPU_BYTES)
    return msgspec.structs.replace(one, **changes)


def make_node(
    name: str = "n1", gpus: int = 4, *, shares: int = 2, linked: bool = False, **changes: Any
) -> GpuNode:
    """A node of equal GPUs; `linked`: neighbours 0-1, 2-3... by NVLink."""
    made = [make_gpu(name, index, **changes) for index in range(gpus)]
    if linked:
        made = [msgspec.structs.replace(one, links=_links(one.index, gpus)) for one in made]
    return GpuNode(Meta(name=name), GpuNodeStatus(shares=shares, gpus=tuple(made)))


def node_json(name: str, gpus: int = 8, **more: Any) -> dict[str, Any]:
    """A Node whose kubelet has GPU devices; `labels` and `spec` are its own."""
    labels = more.pop("labels", {})
    counts = {f"{GROUP}/gpu": str(gpus)}
    status = {"capacity": counts, "allocatable": counts}
    return {"metadata": {"name": name, "labels": labels}, "status": status, **more}


def _links(index: int, gpus: int) -> tuple[NodeLink, ...]:
    others = (other for other in range(gpus) if other != index)
    return tuple(NodeLink(o, "NV12" if o // 2 == index // 2 else "SYS") for o in others)


def held(pod: Pod, container_name: str = "main", *, memory: int, compute: int = 0) -> NodeGrant:
    meta = pod.metadata
    return NodeGrant(
        pod_uid=meta.uid,
        namespace=meta.namespace,
        pod=meta.name,
        container=container_name,
        memory=memory,
        compute=compute,
    )


def units(count: int) -> int:
    """So many units of memory, in bytes."""
    return count * MEMORY_UNIT
