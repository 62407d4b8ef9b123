"""The node's GPUNode object: written on change, at most once a second, after the kubelet was told.

In this order the kubelet knows of what came back before the scheduler sends a pod for it. Once a
minute it is written without a change: someone may have deleted it (a CRD that was installed again,
a backup that was restored). Where it is there, the API server finds nothing new and tells nobody.
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
from aliquot.kubernetes.api.objects import GPU_NODES, GpuNode, Meta
from aliquot.kubernetes.gpunode import GpuNodeStatus, HeldPart, NodeGpu, NodeLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aliquot.devices.device_location import DeviceLocation
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.node.books import Books
    from aliquot.kubernetes.node.held import Held, Part
    from aliquot.kubernetes.node.units import Card
    from aliquot.model import Gpu

SECONDS = 1.0
AGAIN_SECONDS = 60.0
TOLD_SECONDS = 1.0  # for the kubelet; one that is away does not keep the scheduler waiting

_log = structlog.get_logger(__name__)


def status_of(
    books: Books,
    gpus: Mapping[str, Gpu],
    attached: Mapping[str, DeviceLocation],
    driver_version: str,
) -> GpuNodeStatus:
    """What there is to tell."""
    return GpuNodeStatus(
        driver_version=driver_version,
        shares=books.shares,
        gpus=tuple(
            _gpu(books, card, gpus.get(card.uuid), attached.get(card.uuid))
            for card in books.cards.values()
        ),
    )


def _gpu(books: Books, card: Card, gpu: Gpu | None, attached: DeviceLocation | None) -> NodeGpu:
    return NodeGpu(
        index=card.index,
        uuid=card.uuid,
        model=gpu.model if gpu else "?",
        memory=card.memory,
        healthy=card.healthy,
        why=card.why,
        numa=attached.numa if attached else None,
        links=tuple(NodeLink(link.index, link.kind) for link in (gpu.links if gpu else ())),
        kind=books.kind(card.uuid),
        grants=tuple(
            _part(held, part)
            for held in books.held.values()
            for part in held.parts
            if part.gpu == card.uuid
        ),
    )


def _part(held: Held, part: Part) -> HeldPart:
    """What a container holds of a card; init containers too: by the plan one knows them."""
    return HeldPart(
        pod_uid=held.owner.uid,
        namespace=held.owner.namespace,
        pod=held.owner.pod,
        container=held.owner.container,
        memory=part.memory,
        compute=max(held.asked.compute, held.now.compute),
        policy=str(held.now.policy),
        priority=str(held.now.priority),
    )


class Publisher:
    """Writes what `status` gives whenever `change` was called, and every `again` seconds."""

    def __init__(
        self,
        client: Client,
        node: str,
        status: Callable[[], GpuNodeStatus],
        told: Callable[[], Awaitable[None]],
        *,
        again: float = AGAIN_SECONDS,
    ) -> None:
        self._client = client
        self._node = node
        self._status = status
        self._told = told
        self._again = again
        self._due = 0.0  # when it is written without a change
        self._changed = asyncio.Event()
        self._changed.set()
        self.written: GpuNodeStatus | None = None

    def change(self) -> None:
        """There may be something new."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(most=5.0)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._due - time.monotonic())):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._publish()
            except ApiError as error:
                _log.warning("GPUNode is not written", why=error.message)
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
            async with asyncio.timeout(TOLD_SECONDS):
                await self._told()
        except TimeoutError:
            _log.warning("the kubelet takes its time")
        await self._write(status)
        self.written = status
        self._due = time.monotonic() + self._again

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
    """Also those that have their default: a field that is left out would stay as it was."""
    return {
        "driverVersion": status.driver_version,
        "shares": status.shares,
        "gpus": msgspec.to_builtins(status.gpus),
    }
