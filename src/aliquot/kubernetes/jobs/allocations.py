"""The cluster's GPUs and which workload has them, as the controller follows them. No I/O.

The controller computes the same allocations as the scheduler, with the same code and from the same
objects, and never changes them. Reservations for gangs that are about to start are read from their
Gang objects.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import JOB, PLAN
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
from aliquot.kubernetes.cluster.cluster import Cluster, Reserved
from aliquot.kubernetes.cluster.parts import planned_parts
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.cluster.topology import Labels, Topology
from aliquot.kubernetes.cluster.workloads import Workloads, single_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.api.objects import GpuNode, Node, Pod
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.cluster.workloads import Work

ASSUMED_SECONDS = 3600.0  # nothing here depends on how long pods run


class JobWorkloads(Workloads):
    """Workloads in which each worker of an elastic job has its own name, not that of its gang."""

    def name_of(self, uid: str) -> str:
        """The name of the workload that a pod belongs to, by the pod's UID."""
        pod = self.pods.get(uid)
        if pod is not None and JOB in pod.metadata.labels:
            return single_name(pod)
        return super().name_of(uid)

    def work(self, uid: str, now: float) -> Work:
        """The workload that a pod belongs to, by the pod's UID."""
        return replace(super().work(uid, now), name=self.name_of(uid))


@dataclass
class JobAllocations:
    """The allocations, kept up to date by the watches."""

    presets: Sequence[Preset] = (ALIQUOT,)
    queues: Queues = field(default_factory=Queues)

    def __post_init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.cluster = Cluster(presets=self.presets)
        self.workloads = JobWorkloads(
            self.queues.queue_of, lambda pod: asks(pod, self.presets), ASSUMED_SECONDS
        )
        self.by_workload = WorkloadAllocations(self.cluster, self.workloads, self.queues)
        self.topology = Topology(self.cluster, lambda: self.nodes, Labels())
        self._reserved: set[str] = set()

    def set_pod(self, uid: str, pod: Pod | None) -> None:
        """A pod has changed; None if it was deleted."""
        self.cluster.set_pod(uid, pod)
        gang = self.workloads.change(uid, pod, time.time())
        if gang is not None and not (gang.pods or gang.others):
            self.workloads.gangs.pop(gang.key, None)

    def set_gpus(self, name: str, node: GpuNode | None) -> None:
        """A node's GPUs have changed; None if they are gone."""
        self.cluster.set_node(name, node)
        every = self.cluster.nodes.values()
        sizes = (gpu.memory for one in every for gpu in one.status.gpus)
        self.queues.set_largest_gpu(max(sizes, default=0))

    def set_node(self, name: str, node: Node | None) -> None:
        """A node has changed; None if it was deleted."""
        if node is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node

    def count_reserved(self, gangs: Iterable[GangObject]) -> None:
        """Count the reservations of gang members that have no node yet, and no others."""
        now: set[str] = set()
        for one in gangs:
            for member in one.status.members if one.status.phase == Phase.RESERVED else ():
                pod = self.workloads.pods.get(member.uid)
                if pod is None or pod.spec.node_name or not member.plan:
                    continue
                notes = {**pod.metadata.annotations, PLAN: member.plan}
                meta = msgspec.structs.replace(pod.metadata, annotations=notes)
                parts = planned_parts(msgspec.structs.replace(pod, metadata=meta), self.presets)
                self.cluster.reserve(member.uid, Reserved(pod.key, member.node, parts, math.inf))
                now.add(member.uid)
        for uid in self._reserved - now:
            self.cluster.forget(uid)
        self._reserved = now
