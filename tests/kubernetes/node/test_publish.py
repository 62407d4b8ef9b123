"""The node's GPUNode object, written to a fake API server."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gpunode import (
    GpuNodeStatus,
    NodeGpu,
    NodeGrant,
    NodeSummary,
    summary_of,
)
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.node.publish import Publisher
from kubernetes.fake_api import FakeApi, until
from kubernetes.node.rig import NODE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aliquot.kubernetes.api.plan import Kind

KEY = ("gpunodes", "", NODE)
STATUS = GpuNodeStatus(driver_version="580.1")


class Publishing:
    """A publisher of a status that never changes; `asked` counts how often it asked for it."""

    def __init__(self, api: FakeApi, repeat: float) -> None:
        self.api = api
        api.put_if_absent("nodes", {"metadata": {"name": NODE}})
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

    def owner(self) -> str:
        """The UID of the Node that owns the object."""
        (owner,) = self.api.objects[KEY]["metadata"].get("ownerReferences") or [{}]
        assert not owner or (owner["kind"], owner["name"]) == ("Node", NODE)
        return str(owner.get("uid", ""))

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


def test_the_time_of_the_last_report_tells_whether_the_agent_lives() -> None:
    async def go() -> None:
        async with FakeApi().serving() as api:
            node = Publishing(api, repeat=0.05)
            async with node.running():
                first = seconds_at(api.objects[KEY]["status"]["reported"])
                assert first is not None
                assert abs(time.time() - first) < 10
                await until(lambda: seconds_at(api.objects[KEY]["status"]["reported"]) != first)

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


def test_the_object_belongs_to_its_node() -> None:
    async def go() -> None:
        async with FakeApi().serving() as api:
            node = Publishing(api, repeat=0.05)
            async with node.running():
                assert node.owner() == api.objects["nodes", "", NODE]["metadata"]["uid"]

    asyncio.run(go())


def test_a_node_that_was_added_again_gets_an_object_of_its_own() -> None:
    async def go() -> None:
        async with FakeApi().serving() as api:
            node = Publishing(api, repeat=0.05)
            async with node.running():
                first = node.owner()
                api.delete("nodes", NODE)
                api.delete("gpunodes", NODE)  # the garbage collector
                tries = len(api.requests)
                await until(lambda: ("GET", f"/api/v1/nodes/{NODE}") in api.requests[tries:])
                assert KEY not in api.objects, "no Node, no GPUs"
                api.put("nodes", {"metadata": {"name": NODE}})
                await until(node.written)
                assert node.owner() == api.objects["nodes", "", NODE]["metadata"]["uid"] != first

    asyncio.run(go())


def test_an_object_without_an_owner_gets_one() -> None:
    async def go() -> None:
        async with FakeApi().serving() as api:
            api.put("gpunodes", {"metadata": {"name": NODE}})
            node = Publishing(api, repeat=60.0)
            async with node.running():
                await until(node.owner)

    asyncio.run(go())


def test_the_summary_counts_what_is_free_and_used() -> None:
    gib = 1 << 30

    def gpu(index: int, *memory: int, kind: Kind | None = None, healthy: bool = True) -> NodeGpu:
        grants = tuple(NodeGrant("u", "ns", "pod", f"c{one}", one * gib) for one in memory)
        return NodeGpu(index, f"GPU-{index}", "H100", 80 * gib, healthy, kind=kind, grants=grants)

    assert summary_of([]) == NodeSummary(0, 0, "0/0 GiB", "")
    several = [
        gpu(0, 80, kind="whole"),
        gpu(1, 40, kind="shared"),
        gpu(2, 40, 39, kind="shared"),
        gpu(3, 70, 70, kind="sliced"),  # an init container and the container after it
        gpu(4),
        gpu(5, healthy=False),
    ]
    assert summary_of(several) == NodeSummary(
        6, 1, "279/480 GiB", "1 whole, 2 shared, 1 sliced, 1 unhealthy"
    )
