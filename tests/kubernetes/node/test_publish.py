"""The node's GPUNode object, written to a fake API server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gpunode import GpuNodeStatus
from aliquot.kubernetes.node.publish import Publisher
from kubernetes.fake_api import FakeApi, until
from kubernetes.node.rig import NODE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = ("gpunodes", "", NODE)
STATUS = GpuNodeStatus(driver_version="580.1")


class Publishing:
    """A publisher of a status that never changes; `asked` counts how often it asked for it."""

    def __init__(self, api: FakeApi, repeat: float) -> None:
        self.api = api
        self.asked = 0
        self._client = api.client()
        self.publisher = Publisher(
            self._client, NODE, self._status, self._kubelet_told, repeat=repeat
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._client:
            task = asyncio.create_task(self.publisher.run())
            await until(self.written)
            yield
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def written(self) -> bool:
        return bool(self.api.objects.get(KEY, {}).get("status"))

    def _status(self) -> GpuNodeStatus:
        self.asked += 1
        return STATUS

    async def _kubelet_told(self) -> None:
        pass


def test_a_deleted_object_is_written_again() -> None:
    async def go() -> None:
        async with FakeApi().serving() as api:
            node = Publishing(api, repeat=0.05)
            async with node.running():
                api.delete("gpunodes", NODE)
                await until(node.written)
                assert api.objects[KEY]["status"]["driverVersion"] == "580.1"

    asyncio.run(go())


def test_an_unchanged_status_is_not_written() -> None:
    async def go() -> None:
        async with FakeApi().serving() as api:
            node = Publishing(api, repeat=60.0)
            async with node.running():
                writes = len(api.requests)
                node.publisher.change()
                await until(lambda: node.asked > 1)
                assert len(api.requests) == writes

    asyncio.run(go())
