"""The cluster's GPUs and who has them, as the controller follows them. No input or output.

The allocations are the scheduler's, kept by the same code from the same objects; the controller
only looks. What is reserved for gangs on their way is in their Gang objects.
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


class JobRoster(Workloads):
    """A roster in which each worker of an elastic job is known by itself, and not as its gang."""

    def name_of(self, uid: str) -> str:
        """What the work is called whose GPUs those of a UID are."""
        pod = self.pods.get(uid)
        if pod is not None and JOB in pod.metadata.labels:
            return single_name(pod)
        return super().name_of(uid)

    def work(self, uid: str, now: float) -> Work:
        """Whose GPUs those of a UID are."""
        return replace(super().work(uid, now), name=self.name_of(uid))


@dataclass
class Ledger:
    """All of it, changed by what the API server tells."""

    presets: Sequence[Preset] = (ALIQUOT,)
    queues: Queues = field(default_factory=Queues)

    def __post_init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.cluster = Cluster(presets=self.presets)
        self.roster = JobRoster(
            self.queues.queue_of, lambda pod: asks(pod, self.presets), ASSUMED_SECONDS
        )
        self.holdings = WorkloadAllocations(self.cluster, self.roster, self.queues)
        self.ground = Topology(self.cluster, lambda: self.nodes, Labels())
        self._reserved: set[str] = set()

    def set_pod(self, uid: str, pod: Pod | None) -> None:
        """A pod is now so; None: it is gone."""
        self.cluster.set_pod(uid, pod)
        self.roster.change(uid, pod, time.time())

    def set_gpus(self, name: str, node: GpuNode | None) -> None:
        """A node's GPUs are now so."""
        self.cluster.set_node(name, node)
        every = self.cluster.nodes.values()
        sizes = (gpu.memory for one in every for gpu in one.status.gpus)
        self.queues.set_largest_gpu(max(sizes, default=0))

    def set_node(self, name: str, node: Node | None) -> None:
        """A node is now so."""
        if node is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node

    def count_reserved(self, gangs: Iterable[GangObject]) -> None:
        """Count what is reserved for members that have no node yet, and nothing else."""
        now: set[str] = set()
        for one in gangs:
            for member in one.status.members if one.status.phase == Phase.RESERVED else ():
                pod = self.roster.pods.get(member.uid)
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
