"""All queues, as watches report them: which queue a pod is in, and whether a queue is valid.

A pod names the queue of its label, else of its namespace's label, else the queue whose
`spec.namespaces` has its namespace, else `default`, whose object may be missing. A queue with such
a list accepts only the namespaces in it, and so do the queues below it that have no list of their
own. A pod that names a queue which does not accept it cannot start, and never counts there.

A pod that has a node is in the queue that it was admitted under, whatever its labels say now.

Everything is derived from all objects after a change, so the order of changes does not matter. No
input or output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.admission import admitted_queue
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
        self._forget()
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
        """The queue that a pod counts in; it need not exist.

        A pod that names a queue which does not accept it counts in the queue of its namespace.
        """
        admitted = admitted_queue(pod)
        if admitted:
            return admitted
        namespace = pod.metadata.namespace
        for name in (self.named_by(pod), self._queue_of_namespace(namespace)):
            if self.accepts(name, namespace):
                return name
        return self._derived().namespaces.get(namespace, DEFAULT)

    def named_by(self, pod: Pod) -> str:
        """The queue that a pod asks to be in; it need not exist, nor accept the pod."""
        meta = pod.metadata
        return meta.labels.get(QUEUE) or self._queue_of_namespace(meta.namespace)

    def accepts(self, name: str, namespace: str) -> bool:
        """Whether pods of a namespace may be in a queue."""
        bounding = self._derived().lists.get(name)
        return bounding is None or namespace in self._objects[bounding].spec.namespaces

    def refusal_of(self, pod: Pod, name: str = "") -> str:
        """Why a pod cannot start in a queue, and what to do; empty if it can.

        Without a name, in the queue that the pod names.
        """
        name = name or self.named_by(pod)
        problem = self.problem_of(name)
        if problem or self.accepts(name, pod.metadata.namespace):
            return problem
        bounding = self._derived().lists[name]
        whose = "its" if bounding == name else f"queue {bounding!r} is above it, and its"
        return (
            f"queue {name!r} does not accept pods of namespace {pod.metadata.namespace!r}: {whose}"
            f" spec.namespaces has only others. Name another queue with the label {QUEUE} of the"
            f" pod, or let an administrator add the namespace to queue {bounding!r}"
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

    def overcommit_of(self, name: str) -> float:
        """How many times a GPU's memory slices may have beside one of this queue that takes turns.

        The least of the queue and those above it; 0 if none of them says it.
        """
        tree, found = self.queues(), []
        while name:
            spec = self._objects[name].spec if name in self._objects else None
            if spec is not None and spec.overcommit is not None:
                found.append(max(1.0, spec.overcommit))
            name = tree[name].parent if name in tree else ""
        return min(found, default=0.0)

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

    def _queue_of_namespace(self, namespace: str) -> str:
        return self._labels.get(namespace) or self._derived().namespaces.get(namespace) or DEFAULT

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
            self._tree = queue_tree_of(specs, ages, self._largest_gpu, self._labels.keys())
        return self._tree


def _spec_of(queue: QueueObject) -> tuple[object, ...]:
    """The part of a Queue that people write; the scheduler writes the rest."""
    return queue.spec, queue.metadata.creation_timestamp
