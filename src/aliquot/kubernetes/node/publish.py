"""The node's GPUNode object: the agent writes it on change, at most once a second.

The agent first tells the kubelet, then writes the object: so the kubelet knows about freed GPUs
before the scheduler sends a pod for them. Once a minute the agent writes it without a change,
because somebody may have deleted it (a CRD that was installed again, a backup that was restored).
If the object is as it should be, such a write changes nothing and no watch reports it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu, NodeGrant, NodeLink
from aliquot.kubernetes.api.objects import GPU_NODES, GpuNode, Meta

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aliquot.devices.device_location import DeviceLocation
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation
    from aliquot.model import Gpu

SECONDS = 1.0
REPEAT_SECONDS = 60.0
KUBELET_SECONDS = 1.0  # a kubelet that is down does not keep the scheduler waiting

_log = structlog.get_logger(__name__)


def status_of(
    allocations: NodeAllocations,
    gpus: Mapping[str, Gpu],
    attached: Mapping[str, DeviceLocation],
    driver_version: str,
) -> GpuNodeStatus:
    """The status of the GPUNode object."""
    return GpuNodeStatus(
        driver_version=driver_version,
        shares=allocations.shares,
        gpus=tuple(
            _gpu(allocations, gpu, gpus.get(gpu.uuid), attached.get(gpu.uuid))
            for gpu in allocations.gpus.values()
        ),
    )


def _gpu(
    allocations: NodeAllocations, host: HostGpu, gpu: Gpu | None, attached: DeviceLocation | None
) -> NodeGpu:
    return NodeGpu(
        index=host.index,
        uuid=host.uuid,
        model=gpu.model if gpu else "?",
        memory=host.memory,
        healthy=host.healthy,
        why=host.problem,
        numa=attached.numa if attached else None,
        links=tuple(NodeLink(link.index, link.kind) for link in (gpu.links if gpu else ())),
        kind=allocations.kind(host.uuid),
        grants=tuple(
            _granted(grant, part)
            for grant in allocations.grants.values()
            for part in grant.allocated
            if part.gpu == host.uuid
        ),
    )


def _granted(grant: ContainerGrant, part: GpuAllocation) -> NodeGrant:
    """What a container has of a GPU; init containers too, which the scheduler knows by the plan."""
    return NodeGrant(
        pod_uid=grant.owner.uid,
        namespace=grant.owner.namespace,
        pod=grant.owner.pod,
        container=grant.owner.container,
        memory=part.memory,
        compute=max(grant.requested.compute, grant.current.compute),
        policy=str(grant.current.policy),
        priority=str(grant.current.priority),
    )


class Publisher:
    """Writes the status after each call of `change`, and every `repeat` seconds.

    `kubelet_told` waits until the kubelet has been sent the changes so far.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        status: Callable[[], GpuNodeStatus],
        kubelet_told: Callable[[], Awaitable[None]],
        *,
        repeat: float = REPEAT_SECONDS,
    ) -> None:
        self._client = client
        self._node = node
        self._status = status
        self._kubelet_told = kubelet_told
        self._repeat = repeat
        self._due = 0.0  # when to write without a change
        self._changed = asyncio.Event()
        self._changed.set()
        self.written: GpuNodeStatus | None = None

    def change(self) -> None:
        """Note that the status may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        backoff = Backoff(most=5.0)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._due - time.monotonic())):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._publish()
            except ApiError as error:
                _log.warning("cannot write the GPUNode object", why=error.message)
                self._changed.set()
                await asyncio.sleep(backoff.wait())
            else:
                backoff.reset()
                await asyncio.sleep(SECONDS)

    async def _publish(self) -> None:
        status = self._status()
        if status == self.written and time.monotonic() < self._due:
            return
        try:
            async with asyncio.timeout(KUBELET_SECONDS):
                await self._kubelet_told()
        except TimeoutError:
            _log.warning("the kubelet is slow to read the device ids")
        await self._write(status)
        self.written = status
        self._due = time.monotonic() + self._repeat

    async def _write(self, status: GpuNodeStatus) -> None:
        patch = {"status": _every_field(status)}
        try:
            await self._client.patch(GPU_NODES, self._node, patch, sub="status")
        except ApiError as error:
            if not error.not_found:
                raise
            await self._client.create(GPU_NODES, GpuNode(Meta(name=self._node)))
            await self._client.patch(GPU_NODES, self._node, patch, sub="status")


def _every_field(status: GpuNodeStatus) -> dict[str, Any]:
    """With the fields that have their default: a field that is left out would stay as it was."""
    return {
        "driverVersion": status.driver_version,
        "shares": status.shares,
        "gpus": msgspec.to_builtins(status.gpus),
    }
