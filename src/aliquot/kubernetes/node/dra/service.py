"""The DRA driver of a node, as the agent uses it: another way to grants than the device plugins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.dra_devices import device_names
from aliquot.kubernetes.node.dra.devices import (
    OCCUPIED,
    SCHEDULED,
    UNAVAILABLE,
    UNHEALTHY,
    DeviceGpu,
    specs_of,
)
from aliquot.kubernetes.node.dra.plugin import DraPlugin
from aliquot.kubernetes.node.dra.prepare import ClaimGrants
from aliquot.kubernetes.node.dra.publish import SlicePublisher
from aliquot.kubernetes.node.dra.status import ClaimStatusWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.grants.injection import Injection
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
    from aliquot.kubernetes.node.machine import NodeMachine
    from aliquot.kubernetes.node.metrics import CallMetrics
    from aliquot.kubernetes.node.pods import ContainerRef, NodeEvents, NodePods
    from aliquot.model import Gpu
    from aliquot.slices.arbiter_status import Status


class DraDriver:
    """The driver. `problem` says why the agent can make no grants now; empty: it can.

    `scheduled`: Aliquot's scheduler allocates the devices, and a taint keeps others from it.

    It answers about owners of grants as the device plugins do: those of claims are known, and those
    of containers that got theirs from a device plugin before stay as they are.
    """

    NAME = "DRA driver"
    UNREGISTERED = "the kubelet has not registered it"
    ids = None

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        client: Client,
        node: str,
        kubelet: Path,
        *,
        machine: NodeMachine,
        saved: SavedAllocations,
        pods: NodePods,
        arbiter: ArbiterGrants,
        injection: Injection,
        events: NodeEvents,
        gpus: Callable[[], Mapping[str, Gpu]],
        problem: Callable[[], str],
        metrics: CallMetrics,
        scheduled: bool = False,
        reads_pods: bool = True,
    ) -> None:
        self._node = node
        self._scheduled = scheduled
        self._machine = machine
        self._saved = saved
        self._gpus = gpus
        self._problem = problem
        self._grants = ClaimGrants(
            client,
            node,
            saved=saved,
            pods=pods,
            arbiter=arbiter,
            injection=injection,
            events=events,
            reads_pods=reads_pods,
        )
        timed, grants = metrics.timed, self._grants
        self._plugin = DraPlugin(
            kubelet,
            lambda space, name, uid: timed("Prepare", grants.prepare(space, name, uid)),
            lambda uid: timed("Unprepare", grants.unprepare(uid)),
            self._health,
        )
        self._slices = SlicePublisher(client, node, self._specs)
        self._status = ClaimStatusWriter(client, saved)

    async def run(self) -> None:
        """Run the driver until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slices.watch.run())
            group.create_task(self._slices.run())
            group.create_task(self._status.run())
            group.create_task(self._plugin.run())

    async def close(self) -> None:
        """Nothing stays open."""

    def notify(self) -> None:
        """The allocations, or the health of a GPU, have changed."""
        self._slices.change()
        self._status.change()
        self._plugin.notify()

    async def wait_sent(self) -> None:
        """The kubelet keeps no counts of devices: nothing is sent to it."""

    async def keep(self, status: Status) -> None:
        """Make again the grants that the arbiter has lost by this status."""
        await self._grants.keep(status)

    # --- owners -----------------------------------------------------------------------------------

    async def confirm(self, name: str) -> ContainerGrant | None:
        """The grant as it is; None if it is gone."""
        return self._saved.allocations.grants.get(name)

    def may_be_confirmed(self, grant: ContainerGrant) -> bool:  # noqa: ARG002 - see OwnerCheck
        """No call of the kubelet leaves an owner open."""
        return False

    def set_pod(self, name: str, pod: ContainerRef) -> None:
        """The kubelet names the claim, so no process has to tell whose a grant is."""

    async def confirm_started(self) -> None:
        """Release the grants of claims that are gone though nobody unprepared them."""
        await self._grants.release_forgotten()

    # --- for metrics and readiness ----------------------------------------------------------------

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered the driver."""
        return self._plugin.registered

    @property
    def registrations(self) -> int:
        """How often a kubelet has registered the driver."""
        return self._plugin.registrations

    @property
    def corrections(self) -> int:
        """No owner is ever guessed."""
        return 0

    @property
    def problem(self) -> str:
        """Why the node's ResourceSlices may not be as they should; empty: they are."""
        return self._slices.problem

    def _health(self) -> list[tuple[str, str, str]]:
        """Pool, name and problem of each device."""
        allocations = self._saved.allocations
        return [
            (self._node, name, host.problem)
            for host in allocations.gpus.values()
            for name in device_names(host.uuid, allocations.shares)
        ]

    def _specs(self) -> list[dict[str, Any]]:
        gpus = [
            DeviceGpu(
                host,
                self._gpus().get(host.uuid),
                self._machine.attached.get(host.uuid),
                tuple(self._taints(host.uuid, host.problem)),
            )
            for host in self._saved.allocations.gpus.values()
        ]
        shares = self._saved.allocations.shares
        return specs_of(self._node, gpus, shares, self._machine.inventory.driver_version)

    def _taints(self, uuid: str, problem: str) -> Iterator[str]:
        if problem:
            yield UNHEALTHY
        if self._problem():
            yield UNAVAILABLE
        if any(
            grant.claim is None and any(part.gpu == uuid for part in grant.allocated)
            for grant in self._saved.allocations.saved()
        ):
            yield OCCUPIED
        if self._scheduled:
            yield SCHEDULED
