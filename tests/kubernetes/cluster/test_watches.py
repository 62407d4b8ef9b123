"""What the watches of a cluster make of what an API server reports."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from aliquot.kubernetes.api.objects import GPU_NODES
from aliquot.kubernetes.cluster.view import ClusterView
from aliquot.kubernetes.cluster.watches import ClusterWatches
from kubernetes.builders import make_node
from kubernetes.fake_api import FakeApi, as_json, until


def test_a_report_without_news_plans_nothing_anew() -> None:
    def report(api: FakeApi, **status: Any) -> None:
        body = as_json(GPU_NODES, make_node("n1", 1))
        body["status"] |= status
        api.put("gpunodes", body)

    async def go() -> None:
        changes = 0

        def changed() -> None:
            nonlocal changes
            changes += 1

        async with FakeApi().serving() as api, api.client() as client:
            report(api, reported="2026-11-16T12:00:00Z")
            watches = ClusterWatches(client, ClusterView(), changed)
            running = asyncio.create_task(watches.run())
            await watches.wait_synced()
            before = changes
            report(api, reported="2026-11-16T12:01:00Z")
            report(api, reported="2026-11-16T12:02:00Z", problem="none answers")
            await until(lambda: changes > before)
            assert changes == before + 1
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(go())
