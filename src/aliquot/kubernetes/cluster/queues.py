"""All queues, as watches report them: which queue a pod is in, and whether a queue is valid.

A pod is in the queue that its label names, else in the queue that its namespace's label names, else
in the queue whose `spec.namespaces` has its namespace, else in `default`, whose object may be
missing. Everything is derived from all objects after a change, so the order of changes does not
matter. No input or output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import QUEUE
from aliquot.kubernetes.api.queue import DEFAULT
from aliquot.kubernetes.cluster.queue_tree import NAMED, queue_tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.objects import Namespace, Pod, QueueObject
    from aliquot.kubernetes.cluster.queue_tree import QueueFault, QueueTree
    from aliquot.placement.queues import quota


class Queues:
    """All queues, and the namespaces that are labelled with one.

    `version` counts the changes after which pods may be in other queues, or bounds may differ.
    """

    def __init__(self) -> None:
        self._objects: dict[str, QueueObject] = {}
        self._labels: dict[str, str] = {}
        self._largest_gpu = 0
        self._tree: QueueTree | None = None
        self.version = 0

    # --- what watches report ----------------------------------------------------------------------

    def set_queue(self, name: str, queue: QueueObject | None) -> None:
        """A Queue was created or changed; None: it is gone."""
        before = self._objects.pop(name, None)
        if queue is not None:
            self._objects[name] = queue
        if before is None or queue is None or _spec_of(before) != _spec_of(queue):
            self._forget()

    def set_namespace(self, name: str, namespace: Namespace | None) -> None:
        """A namespace was created or changed; None: it is gone."""
        label = namespace.metadata.labels.get(QUEUE, "") if namespace else ""
        if label == self._labels.get(name, ""):
            return
        self.version += 1
        if label:
            self._labels[name] = label
        else:
            del self._labels[name]

    def set_largest_gpu(self, memory: int) -> None:
        """The bytes of the cluster's largest GPU: bounds in GPUs also bound memory by it."""
        if memory != self._largest_gpu:
            self._largest_gpu = memory
            self._forget()

    # --- questions --------------------------------------------------------------------------------

    def queue_of(self, pod: Pod) -> str:
        """The queue that a pod is in; it need not exist."""
        meta = pod.metadata
        return (
            meta.labels.get(QUEUE)
            or self._labels.get(meta.namespace)
            or self._derived().namespaces.get(meta.namespace)
            or DEFAULT
        )

    def problem_of(self, name: str) -> str:
        """Why nothing can start in a queue, and what to do; empty if it can."""
        if name not in self._objects:
            return "" if name == DEFAULT else self._missing(name)
        fault = self.fault_of(name)
        return fault.message_for(name) if fault else ""

    def fault_of(self, name: str) -> QueueFault | None:
        """Why nothing can start in an existing queue; None if it can."""
        return self._derived().faults.get(name)

    def warnings_of(self, name: str) -> tuple[str, ...]:
        """What is probably wrong with a queue that works nevertheless."""
        return tuple(self._derived().warnings.get(name, ()))

    def queues(self) -> Mapping[str, quota.Queue]:
        """All queues as `placement` knows them: always a tree, even if a spec is invalid."""
        return self._derived().queues

    @property
    def objects(self) -> Mapping[str, QueueObject]:
        """All Queue objects, by name."""
        return self._objects

    @property
    def largest_gpu(self) -> int:
        """Bytes of the cluster's largest GPU, 0 while there is none."""
        return self._largest_gpu

    def _forget(self) -> None:
        self._tree = None
        self.version += 1

    def _missing(self, name: str) -> str:
        there = sorted({*self._objects, DEFAULT})
        names = ", ".join(there[:NAMED]) + (", …" if len(there) > NAMED else "")
        return (
            f"queue {name!r} does not exist. Create it, or change the label {QUEUE} of the pod or"
            f" of its namespace; there are: {names}"
        )

    def _derived(self) -> QueueTree:
        if self._tree is None:
            specs = {name: one.spec for name, one in self._objects.items()}
            ages = {
                name: one.metadata.creation_timestamp or "" for name, one in self._objects.items()
            }
            self._tree = queue_tree_of(specs, ages, self._largest_gpu)
        return self._tree


def _spec_of(queue: QueueObject) -> tuple[object, ...]:
    """The part of a Queue that people write; the scheduler writes the rest."""
    return queue.spec, queue.metadata.creation_timestamp
