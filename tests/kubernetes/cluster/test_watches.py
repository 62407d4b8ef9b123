"""What the watches of a cluster make of what an API server reports."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from aliquot.kubernetes.api.objects import GPU_NODES
from aliquot.kubernetes.cluster.view import ClusterView
from aliquot.kubernetes.cluster.watches import ClusterWatches
from kubernetes.builders import held, make_node, make_pod, node_json
from kubernetes.fake_api import FakeApi, as_json, until


def test_a_report_without_news_plans_nothing_anew() -> None:
    pod = make_pod("p")

    def report(api: FakeApi, *, busy: int = 0, **status: Any) -> None:
        part = msgspec.structs.replace(held(pod, memory=1 << 30), busy=busy)
        body = as_json(GPU_NODES, make_node("n1", 1, kind="sliced", grants=(part,)))
        body["status"] |= status
        api.put("gpunodes", body)

    async def go() -> None:
        changes = 0

        def changed() -> None:
            nonlocal changes
            changes += 1

        async with FakeApi().serving() as api, api.client() as client:
            report(api, reported="2026-11-16T12:00:00Z")
            api.put("nodes", node_json("n1", 1))
            view = ClusterView()
            watches = ClusterWatches(client, view, changed)
            running = asyncio.create_task(watches.run())
            await watches.wait_synced()
            before = changes
            report(api, reported="2026-11-16T12:01:00Z")
            report(api, reported="2026-11-16T12:02:00Z", busy=6)
            await until(lambda: any(view.cluster.chooser.allocations.busy.flat))
            assert changes == before, "how busy a GPU is only decides between equal places"
            report(api, reported="2026-11-16T12:03:00Z", problem="none answers", busy=6)
            await until(lambda: changes > before)
            assert changes == before + 1
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(go())
