"""The cluster as the API server describes it: nodes, GPUs, queues, and who has what of them.

`aliquot scheduler` and `aliquot controller` each keep one `ClusterView`, fed by the same watches
(`watches`). So both give the same answer to what is free, which nodes are usable and which queue a
pod is in. GPUs of pods that have no node yet are reserved in `cluster`. No input or output.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
from aliquot.kubernetes.cluster.budgets import Budgets
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.dra import ResourceClaims
from aliquot.kubernetes.cluster.membership import is_placeholder, membership_of
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.cluster.topology import Labels, Topology
from aliquot.kubernetes.cluster.usable import why_unusable
from aliquot.kubernetes.cluster.workloads import Workloads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aliquot.kubernetes.api.objects import GpuNode, Node, Pod
    from aliquot.kubernetes.api.presets import Preset

ASSUMED_SECONDS = 3600.0
USUAL_LABELS = Labels()


class ClusterView:
    """Everything that decisions about GPUs are made from.

    - `cluster`: the GPUs of all nodes, and what is allocated or reserved on them
    - `queues`: all queues, and which queue a pod is in
    - `workloads`: all live pods that ask for GPUs, and the gangs that they form
    - `by_workload`: what each workload and each queue has
    - `budgets`: which pods disruption budgets protect
    - `topology`: racks and blocks, and which pods a node accepts
    - `resource_claims`: they, and the nodes whose GPUs they get; None if they are not followed

    `assumed` is how many seconds a pod runs that does not say it.
    """

    def __init__(  # noqa: PLR0913 - how pods and nodes are read
        self,
        presets: Sequence[Preset] = (ALIQUOT,),
        *,
        by: str = "fragmentation",
        labels: Labels = USUAL_LABELS,
        assumed: float = ASSUMED_SECONDS,
        workloads: type[Workloads] = Workloads,
        with_resource_claims: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.presets = presets
        self._resources = tuple(name for one in presets for name in one.roles)
        self._now = now
        self._nodes: dict[str, Node] = {}
        self._gpu_nodes: dict[str, GpuNode] = {}
        self._largest_gpus: Counter[int] = Counter()  # how many nodes have a largest GPU of a size
        self.cluster = Cluster(presets=presets, by=by)
        self.queues = Queues()
        self.budgets = Budgets()
        self.workloads = workloads(self.queues.queue_of, self.asks, assumed)
        self.by_workload = WorkloadAllocations(self.cluster, self.workloads, self.queues)
        self.topology = Topology(self.cluster, lambda: self._nodes, labels)
        self.resource_claims = (
            ResourceClaims(self.cluster, presets, by, now) if with_resource_claims else None
        )

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All Node objects, by name."""
        return self._nodes

    def asks(self, pod: Pod) -> bool:
        """Whether a pod asks for GPUs."""
        return asks(pod, self.presets)

    def follows(self, pod: Pod) -> bool:
        """Whether a pod matters here: it asks for GPUs to run, or belongs to a gang.

        Or it has resource claims, whatever they ask for.
        """
        if is_placeholder(pod):
            return False
        if self.resource_claims is not None and pod.spec.resource_claims:
            return True
        return self.asks(pod) or membership_of(pod) is not None

    # --- what watches report ----------------------------------------------------------------------

    def set_pod(self, uid: str, pod: Pod | None) -> None:
        """A pod was created or changed; None: it is gone."""
        self.cluster.set_pod(uid, pod)
        self.workloads.change(uid, pod, self._now())
        if self.resource_claims is not None:
            self.resource_claims.set_pod(uid, pod)

    def set_node(self, name: str, node: Node | None) -> None:
        """A Node was created or changed; None: it is gone."""
        existed = name in self._nodes
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        if existed != (node is not None):
            self._count_gpus(name)
        self._judge(name)

    def set_gpu_node(self, name: str, gpu_node: GpuNode | None) -> None:
        """A GPUNode was created or changed; None: it is gone."""
        if gpu_node is None:
            self._gpu_nodes.pop(name, None)
        else:
            self._gpu_nodes[name] = gpu_node
        self._count_gpus(name)
        self._judge(name)

    def _count_gpus(self, name: str) -> None:
        """Count a node's GPUs, if the node exists."""
        before = self.cluster.nodes.get(name)
        now = self._gpu_nodes.get(name) if name in self._nodes else None
        self._count_largest(before, now)
        self.cluster.set_node(name, now)

    def _judge(self, name: str) -> None:
        node, gpu_node = self._nodes.get(name), self._gpu_nodes.get(name)
        self.cluster.set_unusable(name, why_unusable(node, gpu_node, self._resources))
        if self.resource_claims is not None:
            self.resource_claims.set_node(name, node, gpu_node)

    def _count_largest(self, before: GpuNode | None, now: GpuNode | None) -> None:
        old, new = _largest(before), _largest(now)
        if old == new:
            return
        self._largest_gpus[old] -= 1
        self._largest_gpus[new] += 1
        self._largest_gpus = +self._largest_gpus
        self.queues.set_largest_gpu(max(self._largest_gpus, default=0))


def _largest(node: GpuNode | None) -> int:
    return max((gpu.memory for gpu in node.status.gpus), default=0) if node is not None else 0
