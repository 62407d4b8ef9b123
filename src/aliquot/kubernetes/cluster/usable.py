"""Which nodes can get new pods with GPUs. Pure.

The extender, the gang planner and the job controller all decide by `why_unusable`. A node is usable
if its Node exists, its agent reports GPUs in a GPUNode and no problem, its kubelet has GPU devices
to give, and NVIDIA's GPU Operator neither replaces its driver nor gives out its GPUs
(`gpu_operator`).

Pods on an unusable node keep their GPUs, and these still count for quotas. Only if the Node itself
is gone does nothing count there any more: its GPUNode may outlive it.

Whether one particular pod may go to a usable node also depends on the pod: on taints (a cordoned
node has one, and so has one that is not ready), selectors and affinity. kube-scheduler checks these
for every pod, and the planners of gangs and jobs check them beforehand (`constraints`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.requests import quantity
from aliquot.kubernetes.cluster.gpu_operator import why_driver_is_away, why_not_ours

if TYPE_CHECKING:
    from collections.abc import Collection

    from aliquot.kubernetes.api.objects import GpuNode, Node

NO_NODE = "the node does not exist"
NO_AGENT = "no agent reports its GPUs: has the node an aliquot-node pod, and is it ready?"
NO_GPUS = "its agent reports no GPUs"
NO_DEVICES = "its kubelet has no GPU devices to give: is the node's aliquot-node pod ready?"


def why_unusable(
    node: Node | None, gpu_node: GpuNode | None, resources: Collection[str]
) -> str | None:
    """Why a node can get no new pods with GPUs; None if it can.

    `resources` are the names under which kubelets count GPU devices.
    """
    why = _why_away(node, gpu_node)
    if why is not None or node is None:
        return why
    if not _has_devices(node, resources):
        return NO_DEVICES
    why = why_driver_is_away(node.metadata.labels)
    return why or why_not_ours(node.status.allocatable, resources)


def why_no_resource_claims(node: Node | None, gpu_node: GpuNode | None) -> str | None:
    """Why a node whose GPUs are for resource claims can get no new ones; None if it can."""
    why = _why_away(node, gpu_node)
    return why or (why_driver_is_away(node.metadata.labels) if node is not None else None)


def _why_away(node: Node | None, gpu_node: GpuNode | None) -> str | None:
    """Why a node has no GPUs to give to anybody; None if it has."""
    if node is None:
        return NO_NODE
    if gpu_node is None:
        return NO_AGENT
    if not gpu_node.status.gpus:
        return NO_GPUS
    if gpu_node.status.problem:
        return f"its agent can give no GPUs: {gpu_node.status.problem}"
    return None


def _has_devices(node: Node, resources: Collection[str]) -> bool:
    """Whether a kubelet has GPU devices to give.

    A kubelet that lost its agent counts none as allocatable at once, and none as capacity after
    five minutes. A new Node, or a kubelet that was restarted, has no count until the agent has
    registered. Until then the kubelet fails pods that ask for GPUs, or starts them without any.
    """
    return any(quantity(node.status.allocatable.get(name, 0)) for name in resources)
