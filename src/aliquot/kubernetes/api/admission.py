"""What the scheduler has admitted a pod to: its queue, and its size. Both are annotations.

A value has the pod's UID, which nobody knows before the pod exists, and an admission policy lets
nobody but the scheduler write it afterwards. So a copied annotation is worth nothing.

`aliquot.io/admitted-queue` comes with the pod's node, and never changes: the pod counts in that
queue, whatever its labels say later.

`aliquot.io/admitted-size` lets a running pod grow. The annotations `aliquot.io/memory`,
`aliquot.io/compute` and `aliquot.io/priority` say what its slices should have. The node's agent
knows what is free on its GPUs, and no queue; so growth needs a permission of the scheduler. It is
for exactly these annotations, and until a time: the scheduler counts the growth until then, or
until the node reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.decode import decode_json
from aliquot.kubernetes.api.names import (
    ADMITTED_QUEUE,
    ADMITTED_SIZE,
    COMPUTE,
    MEMORY,
    PRIORITY,
)

if TYPE_CHECKING:
    from aliquot.kubernetes.api.objects import Pod

RESIZING = (MEMORY, COMPUTE, PRIORITY)


def queue_record(queue: str, uid: str) -> str:
    """The annotation of a pod that is admitted under a queue."""
    return f"{queue}/{uid}"


def admitted_queue(pod: Pod) -> str:
    """The queue that a pod was admitted under; empty if it has no node, or no valid record."""
    if not pod.spec.node_name:
        return ""
    name, _, uid = pod.metadata.annotations.get(ADMITTED_QUEUE, "").partition("/")
    return name if uid == pod.metadata.uid else ""


class AdmittedSize(msgspec.Struct, frozen=True):
    """A permission: the annotations that it is for, without those that the pod does not have."""

    uid: str
    until: float
    sizes: dict[str, str] = {}

    def encode(self) -> str:
        """The annotation's text."""
        return msgspec.json.encode(self).decode()

    def allows(self, pod: Pod, now: float) -> bool:
        """Whether the pod may grow to what its annotations say."""
        return now < self.until and (self.uid, self.sizes) == (pod.metadata.uid, sizes_of(pod))


def sizes_of(pod: Pod) -> dict[str, str]:
    """The annotations that resize a pod."""
    notes = pod.metadata.annotations
    return {name: notes[name] for name in RESIZING if name in notes}


def admitted_size(pod: Pod) -> AdmittedSize | None:
    """The permission that a pod has; None without a valid one."""
    text = pod.metadata.annotations.get(ADMITTED_SIZE, "")
    try:
        found = decode_json(text, AdmittedSize)
    except msgspec.DecodeError:
        return None
    return found if found.uid == pod.metadata.uid else None
