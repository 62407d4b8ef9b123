"""Builders of queues for tests."""

from __future__ import annotations

from typing import Any

from aliquot.kubernetes.api.names import QUEUE
from aliquot.kubernetes.api.objects import Meta, Namespace, Pod, QueueObject
from aliquot.kubernetes.api.queue import Amounts, QueueSpec
from aliquot.kubernetes.cluster.queues import Queues

GIB = 1 << 30
GPU_BYTES = 80 * GIB


def amounts(given: int | dict[str, Any] | None) -> Amounts | None:
    """Amounts from a number of GPUs, or from their fields."""
    if given is None:
        return None
    return Amounts(**given) if isinstance(given, dict) else Amounts(gpus=given)


def make_queue(
    name: str,
    parent: str = "",
    *,
    quota: Any = None,
    limit: Any = None,
    made: str = "",
    **more: Any,
) -> QueueObject:
    """A queue: make_queue("a", quota=4, limit={"memory": "80Gi"}, weight=2)."""
    spec = QueueSpec(parent=parent, quota=amounts(quota), limit=amounts(limit), **more)
    return QueueObject(Meta(name=name, uid=f"uid-{name}", creation_timestamp=made or None), spec)


def know(*queues: QueueObject, largest_gpu: int = GPU_BYTES) -> Queues:
    """All of them, as if they were told in this order."""
    known = Queues()
    known.set_largest_gpu(largest_gpu)
    for one in queues:
        known.set_queue(one.metadata.name, one)
    return known


def make_namespace(name: str, queue: str | None = None) -> Namespace:
    return Namespace(Meta(name=name, labels={} if queue is None else {QUEUE: queue}))


def pod_in(namespace: str, queue: str = "") -> Pod:
    return Pod(Meta(name="p", namespace=namespace, labels={QUEUE: queue} if queue else {}))
