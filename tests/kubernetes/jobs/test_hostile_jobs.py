"""What one tenant's worker writes stops no other job."""

from __future__ import annotations

import asyncio

from kubernetes.jobs.job_cluster import JobCluster


def test_a_termination_message_that_is_nested_deep_stops_no_other_job() -> None:
    async def play() -> None:
        cluster = JobCluster()
        for name in ("liar", "train"):
            cluster.submit(name, most=1)
        await cluster.go(4)
        cluster.exit("liar-0", 1, said='{"report":' * 2_000)
        cluster.exit("train-0", 0)
        await cluster.go(4)
        assert cluster.phase("train") == "Succeeded"

    asyncio.run(play())
