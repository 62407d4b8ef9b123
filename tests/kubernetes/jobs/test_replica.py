"""Two replicas of the controller with one API server: one leads, the other follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from aliquot.kubernetes.api.leader import LeaseTimes
from aliquot.kubernetes.jobs.run import ControllerOptions, Replica
from kubernetes.fake_api import until
from kubernetes.handler_transport import HandlerTransport
from kubernetes.jobs.job_cluster import SOON, JobCluster

OFTEN = LeaseTimes(retry=0.05)


@asynccontextmanager
async def replica(cluster: JobCluster) -> AsyncIterator[Replica]:
    async with cluster.api.client() as client:
        one = Replica(client, ControllerOptions(namespace="ns", times=OFTEN, rules=SOON))
        running = asyncio.create_task(one.run())
        try:
            yield one
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()


async def page(one: Replica, path: str) -> str:
    transport = HandlerTransport(one.pages())
    async with httpx2.AsyncClient(transport=transport, base_url="http://controller") as http:
        return (await http.get(path)).text


async def until_page(one: Replica, path: str, text: str) -> None:
    """Wait until a page has the text: the replica's watch may be behind the API server."""
    async with asyncio.timeout(20.0):
        while text not in await page(one, path):
            await asyncio.sleep(0.002)


async def play(cluster: JobCluster, so: Callable[[], object]) -> None:
    """Let the scheduler and the kubelet act until the condition holds."""

    def acted() -> object:
        cluster.place()
        cluster.run_pods()
        return so()

    await until(acted)


def test_a_job_continues_under_a_new_leader() -> None:
    async def run() -> None:
        cluster = JobCluster()
        async with cluster.api.serving(), replica(cluster) as second:
            async with replica(cluster) as first:
                cluster.submit(most=2)
                await play(cluster, lambda: cluster.phase() == "Running")
                assert len(cluster.running()) == 2
                pages = [await page(one, "/readyz") for one in (first, second)]
                assert sorted(pages) == ["follows", "leads"]
            await until(lambda: second._elector.leading)
            cluster.change(suspend=True)
            await play(cluster, lambda: cluster.phase() == "Suspended")
            assert not cluster.running()
            await until_page(second, "/metrics", 'aliquot_controller_jobs{phase="Suspended"} 1.0')
            await until(lambda: {"Starting", "Running", "Suspending"} <= {*told(cluster)})

    asyncio.run(run())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"queue": "nowhere"}, "queue 'nowhere' does not exist"),
        ({"workers": {"min": 3, "max": 2}}, "workers.max is 2, below workers.min, 3"),
    ],
)
def test_an_invalid_job_gets_one_warning_event(spec: dict[str, Any], why: str) -> None:
    async def run() -> None:
        cluster = JobCluster()
        async with cluster.api.serving(), replica(cluster):
            cluster.submit(**spec)
            await until(lambda: cluster.api.all("events"))
            await until(lambda: ("Accepted", "False", "InvalidSpec") in cluster.conditions())
            cluster.change(workers={"min": 1, "max": 1}, queue="")
            await play(cluster, lambda: told(cluster)[-1:] == ["Running"])
            first, *later = cluster.api.all("events")
            assert (first["type"], first["reason"]) == ("Warning", "Refused")
            assert why in first["message"]
            assert "Refused" not in {one["reason"] for one in later}

    asyncio.run(run())


def test_pods_that_the_api_server_refuses_get_a_warning_event() -> None:
    async def run() -> None:
        cluster = JobCluster()
        cluster.api.faults.refuse = lambda method, path: (
            403 if method == "POST" and path.endswith("/pods") else None
        )
        async with cluster.api.serving(), replica(cluster):
            cluster.submit(most=1)
            await until(lambda: "Refused" in told(cluster))
            assert told(cluster) == ["Pending", "Starting", "Refused"]

    asyncio.run(run())


def told(cluster: JobCluster) -> list[str]:
    """The reasons of the events, in their order."""
    return [one["reason"] for one in cluster.api.all("events")]
