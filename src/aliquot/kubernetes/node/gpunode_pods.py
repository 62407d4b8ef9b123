"""The node's pods out of its own GPUNode, where the scheduler writes them (`api.node_pods`).

The agent then has no right to read pods. It knows less than the kubelet at times:

- A pod may come after the kubelet's calls for it. They wait for it: without its plan it could get
  a GPU that its neighbours may not share. After `BEHIND_SECONDS` more than they wait for a watch of
  pods, it gets GPUs by the size of the calls.
- While no scheduler leads, nothing changes here. Grants of pods that end meanwhile stay.
- In a GPUNode that no scheduler has written yet, pods are not missing: none counts as gone. That is
  so on a new node, and after somebody has deleted the object.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.node_pods import GPU_NODE_PODS, pod_of
from aliquot.kubernetes.api.watch import Watch

if TYPE_CHECKING:
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.node_pods import GpuNodePodsObject, NodePod
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.watch import OnChange

BEHIND_SECONDS = 4.0
NOT_WRITTEN = (
    "the scheduler has not written the node's pods into its GPUNode: both need --pods-by-gpunode"
)


class GpuNodePods:
    """Reports changes of the pods in a node's GPUNode, as a watch of pods would.

    `synced`: the object is there, and a scheduler has written it.
    """

    def __init__(self, client: Client, node: str, on_change: OnChange[Pod]) -> None:
        self._node = node
        self._on_change = on_change
        self._pods: dict[str, NodePod] = {}
        self._digest = ""
        self._written = asyncio.Event()
        self._watch = Watch(client, GPU_NODE_PODS, self._on_object, fields=f"metadata.name={node}")

    @property
    def synced(self) -> bool:
        """Whether a pod that was not reported is not there."""
        return self._written.is_set()

    async def wait_synced(self) -> None:
        """Wait until `synced`."""
        await self._written.wait()

    async def run(self) -> None:
        """Follow the object, until cancelled."""
        await self._watch.run()

    def _on_object(self, _: GpuNodePodsObject | None, now: GpuNodePodsObject | None) -> None:
        if now is None or not now.spec.pods_digest:
            self._written.clear()
            self._digest = ""
            return
        if now.spec.pods_digest == self._digest:
            return  # the agent's own writes
        self._digest = now.spec.pods_digest
        found = {one.uid: pod_of(one, self._node) for one in now.spec.pods}
        before, self._pods = self._pods, found
        for uid in before.keys() - found.keys():
            self._on_change(before[uid], None)
        for uid, pod in found.items():
            if before.get(uid) != pod:
                self._on_change(before.get(uid), pod)
        self._written.set()
