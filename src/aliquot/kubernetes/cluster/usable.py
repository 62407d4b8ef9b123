"""Which nodes can get new pods with GPUs. Pure.

The extender, the gang planner and the job controller all decide by `why_unusable`. A node is usable
if its Node exists, its agent reports GPUs in a GPUNode, and its kubelet has GPU devices to give.

Pods on an unusable node keep their GPUs, and these still count for quotas. Only if the Node itself
is gone does nothing count there any more: its GPUNode may outlive it.

Whether one particular pod may go to a usable node also depends on the pod: on taints (a cordoned
node has one, and so has one that is not ready), selectors and affinity. kube-scheduler checks these
for every pod, and the planners of gangs and jobs check them beforehand (`constraints`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.requests import quantity

if TYPE_CHECKING:
    from collections.abc import Collection

    from aliquot.kubernetes.api.objects import GpuNode, Node

NO_NODE = "the node does not exist"
NO_AGENT = "no agent reports its GPUs: is `aliquot node` running there?"
NO_GPUS = "its agent reports no GPUs"
NO_DEVICES = "its kubelet has no GPU devices to give: is `aliquot node` running there?"


def why_unusable(
    node: Node | None, gpu_node: GpuNode | None, resources: Collection[str]
) -> str | None:
    """Why a node can get no new pods with GPUs; None if it can.

    `resources` are the names under which kubelets count GPU devices.
    """
    if node is None:
        return NO_NODE
    if gpu_node is None:
        return NO_AGENT
    if not gpu_node.status.gpus:
        return NO_GPUS
    return None if _has_devices(node, resources) else NO_DEVICES


def _has_devices(node: Node, resources: Collection[str]) -> bool:
    """Whether a kubelet has GPU devices to give.

    A kubelet that lost its agent still counts the devices as capacity, and none as allocatable. One
    that never had any counts no capacity: its agent may have come a moment ago.
    """
    capacity, allocatable = node.status.capacity, node.status.allocatable
    offered = [name for name in resources if quantity(capacity.get(name, 0))]
    return not offered or any(quantity(allocatable.get(name, 0)) for name in offered)
