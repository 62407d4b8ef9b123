"""All device plugins of a node together: the way by which the kubelet asks for grants.

The agent gives it the allocations and the arbiter's grants, and asks it nothing about device ids.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aliquot.kubernetes.node.deviceplugin.allocate import Allocator, Starter
from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds, resources_of
from aliquot.kubernetes.node.deviceplugin.matching.confirm import (
    OwnerConfirmation,
    PodResourcesClient,
)
from aliquot.kubernetes.node.deviceplugin.matching.guess import Matcher
from aliquot.kubernetes.node.deviceplugin.plugin import Plugin
from aliquot.kubernetes.node.deviceplugin.registration import Registrar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.grants.injection import Injection
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
    from aliquot.kubernetes.node.grants.resize import Resizer
    from aliquot.kubernetes.node.grants.swap import NodeSwap
    from aliquot.kubernetes.node.metrics import CallMetrics
    from aliquot.kubernetes.node.pods import ContainerRef, NodeEvents, NodePods
    from aliquot.model import Gpu
    from aliquot.slices.arbiter_status import Status


class DevicePlugins:
    """One plugin for each resource of the presets, registered with the kubelet in `folder`.

    It can confirm the owners of grants (`grants.lifecycle.OwnerCheck`).
    """

    NAME = "device plugins"
    UNREGISTERED = "the kubelet does not follow all device plugins"

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        folder: Path,
        presets: Sequence[Preset],
        *,
        saved: SavedAllocations,
        pods: NodePods,
        arbiter: ArbiterGrants,
        resizer: Resizer,
        events: NodeEvents,
        gpus: Callable[[], Mapping[str, Gpu]],
        injection: Injection,
        swap: NodeSwap,
        metrics: CallMetrics,
    ) -> None:
        self.ids = DeviceIds(saved.allocations, resources_of(presets))
        self._saved = saved
        self._pods = pods
        self._sockets = folder / "device-plugins"
        self._kubelet = PodResourcesClient(folder / "pod-resources" / "kubelet.sock")
        self._owners = OwnerConfirmation(saved, self.ids, pods, self._kubelet)
        matcher = Matcher(self.ids, pods, self._owners)
        self._allocator = Allocator(
            saved,
            self.ids,
            pods,
            matcher,
            gpus,
            events.pod_event,
            lambda: injection.uses_cdi,
            injection.minors,
            swap,
        )
        self._starter = Starter(
            saved,
            self.ids,
            pods,
            self._owners,
            arbiter,
            resizer,
            self._allocator,
            events,
            injection,
            swap,
        )
        self._injection = injection
        self._metrics = metrics
        self._plugins = [self._plugin(resource) for resource in self.ids.resources]
        self._registrar = Registrar(self._sockets, self._plugins)

    async def run(self) -> None:
        """Keep all plugins registered, until cancelled."""
        await self._registrar.run()

    async def close(self) -> None:
        """Close the connection to the kubelet."""
        await self._kubelet.close()

    def notify(self) -> None:
        """Send the kubelet all ids that have changed."""
        for plugin in self._plugins:
            plugin.notify()

    async def wait_sent(self) -> None:
        """Wait until the kubelet has been sent all ids as they are now, if it follows them."""
        await asyncio.gather(*(plugin.wait_sent() for plugin in self._plugins))

    async def keep(self, status: Status) -> None:
        """Nothing: a container's grant is made when it starts."""

    # --- owners -----------------------------------------------------------------------------------

    async def confirm(self, name: str) -> ContainerGrant | None:
        """The grant with its owner confirmed, if the kubelet reports it; None if it is gone."""
        return await self._owners.confirm(name)

    def may_be_confirmed(self, grant: ContainerGrant) -> bool:
        """Whether a grant is so new that the kubelet may not report it yet."""
        return self._allocator.is_recent(grant)

    def set_pod(self, name: str, pod: ContainerRef) -> None:
        """Confirm the pod of a grant, because a process of that pod has joined it."""
        self._owners.set_pod(name, pod)

    async def confirm_started(self) -> None:
        """Confirm the owners of grants whose pods have started, or are unknown."""
        for grant in self._saved.allocations.saved():
            pod = self._pods.get(grant.owner.uid)
            started = pod is not None and not pod.pending
            if not grant.confirmed and (started or not grant.owner.pod):
                await self._owners.confirm(grant.name)

    # --- for metrics and readiness ----------------------------------------------------------------

    @property
    def registered(self) -> bool:
        """Whether the kubelet follows all plugins."""
        return self._registrar.registered

    @property
    def problem(self) -> str:
        """What else keeps it from work: nothing."""
        return ""

    @property
    def registrations(self) -> int:
        """How often all plugins were registered with a kubelet."""
        return self._registrar.registrations

    @property
    def corrections(self) -> int:
        """How many grants had the wrong owner."""
        return self._owners.corrections

    def _plugin(self, resource: str) -> Plugin:
        timed, allocate, start = self._metrics.timed, self._allocator.allocate, self._starter.start
        return Plugin(
            resource,
            self._sockets,
            lambda: self.ids.ids(resource),
            allocate=lambda name, ids: timed("Allocate", allocate(name, ids)),
            start=lambda name, ids: timed("PreStart", start(name, ids)),
            injection=self._injection,
        )
