"""All queues, as watches tell of them: which queue a pod is in, and what is wrong with one.

A pod is in the queue that its label names, else in that of its namespace's label, else in the queue
whose `spec.namespaces` names its namespace, else in `default`, which need not be written. What
comes from all objects together is made anew after a change, so nothing depends on the order in
which they came. No input or output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import QUEUE
from aliquot.kubernetes.api.queue import DEFAULT
from aliquot.kubernetes.cluster.queue_tree import NAMED, picture_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.objects import Namespace, Pod, Queue
    from aliquot.kubernetes.cluster.queue_tree import Picture, Trouble
    from aliquot.placement.queues import quota as brain


class Queues:
    """All queues that there are, and the namespaces that are labelled with one.

    `version` counts the changes after which pods may be in other queues, or queues have others.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Queue] = {}
        self._labels: dict[str, str] = {}
        self._largest_gpu = 0
        self._known: Picture | None = None
        self.version = 0

    # --- what the API server tells ----------------------------------------------------------------

    def set_queue(self, name: str, queue: Queue | None) -> None:
        """A queue is now so; None: it is gone."""
        before = self._objects.pop(name, None)
        if queue is not None:
            self._objects[name] = queue
        if before is None or queue is None or _written(before) != _written(queue):
            self._forget()

    def set_namespace(self, name: str, namespace: Namespace | None) -> None:
        """A namespace is now so; None: it is gone."""
        label = namespace.metadata.labels.get(QUEUE, "") if namespace else ""
        if label == self._labels.get(name, ""):
            return
        self.version += 1
        if label:
            self._labels[name] = label
        else:
            del self._labels[name]

    def set_largest_gpu(self, memory: int) -> None:
        """The bytes of the cluster's largest GPU: bounds in GPUs are in its memory too."""
        if memory != self._largest_gpu:
            self._largest_gpu = memory
            self._forget()

    # --- what is so -------------------------------------------------------------------------------

    def queue_of(self, pod: Pod) -> str:
        """The queue that a pod is in; it need not exist."""
        meta = pod.metadata
        return (
            meta.labels.get(QUEUE)
            or self._labels.get(meta.namespace)
            or self._picture().namespaces.get(meta.namespace)
            or DEFAULT
        )

    def problem_of(self, name: str) -> str:
        """Why nothing can start in a queue, with the way out; nothing where it can."""
        if name not in self._objects:
            return "" if name == DEFAULT else self._missing(name)
        trouble = self.trouble_of(name)
        return trouble.of(name) if trouble else ""

    def trouble_of(self, name: str) -> Trouble | None:
        """The same of a queue that exists, as it is found."""
        return self._picture().troubles.get(name)

    def doubts_of(self, name: str) -> tuple[str, ...]:
        """What of a queue is hardly what is meant; it works all the same."""
        return tuple(self._picture().doubts.get(name, ()))

    def queues(self) -> Mapping[str, brain.Queue]:
        """All queues as the brain knows them: a tree, whatever was written."""
        return self._picture().queues

    @property
    def objects(self) -> Mapping[str, Queue]:
        """All queues as they were told."""
        return self._objects

    @property
    def largest_gpu(self) -> int:
        """Bytes of the cluster's largest GPU, 0 while there is none."""
        return self._largest_gpu

    def _forget(self) -> None:
        self._known = None
        self.version += 1

    def _missing(self, name: str) -> str:
        there = sorted({*self._objects, DEFAULT})
        names = ", ".join(there[:NAMED]) + (", …" if len(there) > NAMED else "")
        return (
            f"queue {name!r} does not exist. Create it, or change the label {QUEUE} of the pod or"
            f" of its namespace; there are: {names}"
        )

    def _picture(self) -> Picture:
        if self._known is None:
            specs = {name: one.spec for name, one in self._objects.items()}
            ages = {
                name: one.metadata.creation_timestamp or "" for name, one in self._objects.items()
            }
            self._known = picture_of(specs, ages, self._largest_gpu)
        return self._known


def _written(queue: Queue) -> tuple[object, ...]:
    """What people wrote; the rest is the scheduler's own."""
    return queue.spec, queue.metadata.creation_timestamp
