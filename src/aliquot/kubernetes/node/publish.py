"""The node's GPUNode object: the agent writes it on change, at most once a second.

The agent first tells the kubelet, then writes the object: so the kubelet knows about freed GPUs
before the scheduler sends a pod for them. Once a minute the agent writes it without a change: the
time of the last report tells people whether the agent lives, and somebody may have deleted the
object (a CRD that was installed again, a backup that was restored).

The object belongs to its Node: the garbage collector deletes it when the Node is gone. If a Node of
the same name is made later, the agent makes the object anew, as that Node's.
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
from aliquot.kubernetes.api.gpunode import (
    GpuNodeStatus,
    NodeGpu,
    NodeGrant,
    NodeLink,
    summary_of,
)
from aliquot.kubernetes.api.objects import GPU_NODES, NODES, GpuNode, Meta, OwnerReference
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.node.turns import NO_TURNS
from aliquot.model.strength import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aliquot.devices.device_location import DeviceLocation
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation
    from aliquot.kubernetes.node.turns import TurnsReport
    from aliquot.model import Gpu

SECONDS = 1.0
REPEAT_SECONDS = 60.0
KUBELET_SECONDS = 1.0  # a kubelet that is down does not keep the scheduler waiting
LATE_SECONDS = 10.0

_log = structlog.get_logger(__name__)


def status_of(  # noqa: PLR0913 - all that it says
    allocations: NodeAllocations,
    gpus: Mapping[str, Gpu],
    attached: Mapping[str, DeviceLocation],
    driver_version: str,
    injection: str,
    *,
    busy: Mapping[tuple[str, str], int],
    turns: TurnsReport = NO_TURNS,
) -> GpuNodeStatus:
    """The status of the GPUNode object; `busy` as `BusyMonitor.steps` has it."""
    found = tuple(
        _gpu(allocations, gpu, gpus.get(gpu.uuid), attached.get(gpu.uuid), busy, turns)
        for gpu in allocations.gpus.values()
    )
    return GpuNodeStatus(
        driver_version=driver_version,
        injection=injection,
        shares=allocations.shares,
        summary=summary_of(found),
        gpus=found,
        overcommit=turns.overcommit,
    )


def _gpu(  # noqa: PLR0913, PLR0917 - all that it says
    allocations: NodeAllocations,
    host: HostGpu,
    gpu: Gpu | None,
    attached: DeviceLocation | None,
    busy: Mapping[tuple[str, str], int],
    turns: TurnsReport,
) -> NodeGpu:
    return NodeGpu(
        index=host.index,
        uuid=host.uuid,
        model=gpu.model if gpu else "?",
        memory=host.memory,
        strength=gpu.strength if gpu else UNKNOWN,
        healthy=host.healthy,
        why=host.problem,
        numa=attached.numa if attached else None,
        links=tuple(NodeLink(link.index, link.kind) for link in (gpu.links if gpu else ())),
        kind=allocations.kind(host.uuid),
        grants=tuple(
            _granted(grant, part, busy.get((grant.name, host.uuid), 0), turns)
            for grant in allocations.grants.values()
            for part in grant.allocated
            if part.gpu == host.uuid
        ),
    )


def _granted(
    grant: ContainerGrant, part: GpuAllocation, busy: int, turns: TurnsReport
) -> NodeGrant:
    """What a container has of a GPU; init containers too, which the scheduler knows by the plan."""
    return NodeGrant(
        pod_uid=grant.owner.uid,
        namespace=grant.owner.namespace,
        pod=grant.owner.pod,
        container=grant.owner.container,
        claim=grant.owner.claim,
        claim_uid=grant.claim.uid if grant.claim else "",
        memory=part.memory,
        compute=max(grant.requested.compute, grant.current.compute),
        policy=str(grant.current.policy),
        priority=str(grant.current.priority),
        busy=busy,
        overcommit=grant.overcommit,
        fixed=turns.fixed.get(grant.name, 0) if grant.overcommit is not None else 0,
        away=turns.away.get(grant.name, 0),
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
        self._due = time.monotonic()  # when to write without a change
        self._failing_since: float | None = None
        self._failure = ""
        self._changed = asyncio.Event()
        self._changed.set()
        self.written: GpuNodeStatus | None = None

    def change(self) -> None:
        """Note that the status may have changed."""
        self._changed.set()

    @property
    def problem(self) -> str:
        """Why the object may not be as it should; empty: it was written when it was due."""
        now = time.monotonic()
        if self._failing_since is not None and now - self._failing_since > LATE_SECONDS:
            late = now - self._failing_since
            return f"it cannot be written for {late:.0f} s: {self._failure}"
        if now - self._due > LATE_SECONDS:
            return f"its write is {now - self._due:.0f} s late"
        return ""

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
                self._failing_since = self._failing_since or time.monotonic()
                self._failure = error.message
                self._changed.set()
                await asyncio.sleep(backoff.wait())
            else:
                self._failing_since = None
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
            written = await self._client.patch(GPU_NODES, self._node, patch, sub="status")
        except ApiError as error:
            if not error.not_found:
                raise
            meta = Meta(name=self._node, owner_references=(await self._owner(),))
            await self._client.create(GPU_NODES, GpuNode(meta))
            await self._client.patch(GPU_NODES, self._node, patch, sub="status")
            return
        if not written.metadata.owner_references:  # an earlier version wrote it, or people did
            owned = {"metadata": {"ownerReferences": [msgspec.to_builtins(await self._owner())]}}
            await self._client.patch(GPU_NODES, self._node, owned)

    async def _owner(self) -> OwnerReference:
        """The Node as the object's owner; ApiError if there is no such Node."""
        node = await self._client.get(NODES, self._node)
        return OwnerReference(NODES.api_version, NODES.kind, self._node, node.metadata.uid)


def _every_field(status: GpuNodeStatus) -> dict[str, Any]:
    """With the fields that have their default: a field that is left out would stay as it was."""
    return {
        "driverVersion": status.driver_version,
        "injection": status.injection,
        "shares": status.shares,
        "allocator": status.allocator,
        "problem": status.problem,
        "reported": stamp(time.time()),
        "summary": msgspec.to_builtins(status.summary),
        "overcommit": msgspec.to_builtins(status.overcommit),
        "gpus": msgspec.to_builtins(status.gpus),
    }
