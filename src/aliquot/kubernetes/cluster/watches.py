"""The watches that keep a `ClusterView` up to date: pods, Nodes, GPUNodes, Queues, namespaces.

And, if the view has them, resource claims and device classes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aliquot.kubernetes.api.budget import BUDGETS
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import DEVICE_CLASSES, RESOURCE_CLAIMS
from aliquot.kubernetes.api.gpunode import says_the_same, says_the_same_but_for_use
from aliquot.kubernetes.api.objects import (
    GPU_NODES,
    LIVE_PODS,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    ApiObject,
)
from aliquot.kubernetes.api.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.budget import PodDisruptionBudget
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.dra import DeviceClass, ResourceClaim
    from aliquot.kubernetes.api.objects import GpuNode, Node, Pod
    from aliquot.kubernetes.api.watch import OnChange
    from aliquot.kubernetes.cluster.dra import ResourceClaims
    from aliquot.kubernetes.cluster.view import ClusterView

T = TypeVar("T", bound=ApiObject)

QUEUE_SECONDS = 2.0  # between two looks whether the cluster has Queues at all


class ClusterWatches:
    """Watches that feed a view. `changed` is called after each change that may matter.

    `pod_changed` is called with a pod before and after a change, when the view has it already.
    `with_budgets`: PodDisruptionBudgets are watched too, by those who evict.
    `resource_claim_changed` is called with a resource claim as `pod_changed` with a pod, and
    `gpu_node_changed` with the name of a GPUNode, whatever has changed of it.
    """

    def __init__(  # noqa: PLR0913 - what it feeds
        self,
        client: Client,
        view: ClusterView,
        changed: Callable[[], None],
        pod_changed: OnChange[Pod] = lambda _before, _now: None,
        *,
        with_budgets: bool = False,
        resource_claim_changed: OnChange[ResourceClaim] = lambda _before, _now: None,
        gpu_node_changed: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._client = client
        self._view = view
        self._changed = changed
        self._pod_changed = pod_changed
        self._gpu_node_changed = gpu_node_changed
        self.pods = Watch(client, PODS, self._on_pod, fields=LIVE_PODS, keep=view.follows)
        self.nodes = Watch(client, NODES, self._on_node)
        self.gpu_nodes = Watch(client, GPU_NODES, self._on_gpu_node)
        self.queues = Watch(client, QUEUES, self._feeding(view.queues.set_queue))
        self.namespaces = Watch(client, NAMESPACES, self._feeding(view.queues.set_namespace))
        self.budgets = Watch(client, BUDGETS, self._on_budget) if with_budgets else None
        self._resource_claim_changed = resource_claim_changed
        self._dra_watches: tuple[Watch[ResourceClaim], Watch[DeviceClass]] | None = None
        if view.resource_claims is not None:
            self._dra_watches = (
                Watch(
                    client, RESOURCE_CLAIMS, partial(self._on_resource_claim, view.resource_claims)
                ),
                Watch(client, DEVICE_CLASSES, self._feeding(view.resource_claims.set_class)),
            )

    @property
    def _all(self) -> list[Watch[Any]]:
        every: list[Watch[Any]] = [self.pods, self.nodes, self.gpu_nodes]
        every += [self.queues, self.namespaces, *(self._dra_watches or ())]
        return every if self.budgets is None else [*every, self.budgets]

    @property
    def _needed(self) -> list[Watch[Any]]:
        return [self.pods, self.nodes, self.gpu_nodes, *(self._dra_watches or ())]

    async def run(self) -> None:
        """Keep the view up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._all:
                tasks.create_task(one.run())

    @property
    def synced(self) -> bool:
        """Whether pods, Nodes, GPUNodes and resource claims have been read once."""
        return all(one.synced for one in self._needed)

    async def wait_synced(self) -> None:
        """Wait until pods, Nodes, GPUNodes and resource claims have been read once."""
        for one in self._needed:
            await one.wait_synced()

    async def wait_queues(self) -> None:
        """Wait until Queues and namespaces have been read once.

        A Queue that was not read yet must not be taken for one that does not exist. A cluster
        without the CustomResourceDefinition has no Queues.
        """
        await self.namespaces.wait_synced()
        while not (self.queues.synced or await self._has_no_queues()):
            with suppress(TimeoutError):
                async with asyncio.timeout(QUEUE_SECONDS):
                    await self.queues.wait_synced()

    async def refresh(self) -> None:
        """List pods and GPUNodes again: a leader before may have bound pods not yet seen here.

        And resource claims, which it may have allocated.
        """
        await self.pods.refresh()
        await self.gpu_nodes.refresh()
        if self._dra_watches is not None:
            await self._dra_watches[0].refresh()

    @property
    def silence(self) -> float:
        """Seconds since the API server last sent anything, by the quieter of pods and GPUNodes."""
        return max(self.pods.silence, self.gpu_nodes.silence)

    async def _has_no_queues(self) -> bool:
        try:
            await self._client.list(QUEUES)
        except ApiError as error:
            return error.not_found
        return False

    # --- what watches report ----------------------------------------------------------------------

    def _on_pod(self, before: Pod | None, now: Pod | None) -> None:
        one = now or before
        if one is not None:
            self._view.set_pod(one.metadata.uid, now)
            self._pod_changed(before, now)
            self._changed()

    def _on_node(self, before: Node | None, now: Node | None) -> None:
        one = now or before
        if one is not None:
            self._view.set_node(one.metadata.name, now)
            if before is None or now is None or _matters(before) != _matters(now):
                self._changed()

    def _on_gpu_node(self, before: GpuNode | None, now: GpuNode | None) -> None:
        if either := now or before:
            self._gpu_node_changed(either.metadata.name)
        if before and now and says_the_same(before.status, now.status):
            return  # its agent lives, and nothing has changed
        if one := now or before:
            self._view.set_gpu_node(one.metadata.name, now)
            if not (before and now and says_the_same_but_for_use(before.status, now.status)):
                self._changed()  # use decides between equal places only: it is no reason to decide

    def _on_resource_claim(
        self, found: ResourceClaims, before: ResourceClaim | None, now: ResourceClaim | None
    ) -> None:
        found.set_claim(before, now)
        self._resource_claim_changed(before, now)
        self._changed()

    def _on_budget(
        self, before: PodDisruptionBudget | None, now: PodDisruptionBudget | None
    ) -> None:
        if one := now or before:
            self._view.budgets.set(one.metadata.namespace, one.metadata.name, now)
            self._changed()

    def _feeding(self, feed: Callable[[str, T | None], None]) -> OnChange[T]:
        def on_change(before: T | None, now: T | None) -> None:
            one = now or before
            if one is not None:
                feed(one.metadata.name, now)
                self._changed()

        return on_change


def _matters(node: Node) -> object:
    """The part of a Node that decides which pods may go there; the rest changes all the time."""
    return node.metadata.labels, node.spec, node.status
