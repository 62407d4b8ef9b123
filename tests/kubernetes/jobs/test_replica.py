"""Two replicas of the controller over an API server: one acts, the other follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from aliquot.kubernetes.api.leader import LeaseTimes
from aliquot.kubernetes.jobs.run import Options, Replica
from kubernetes.fake_api import until
from kubernetes.jobs.world import SOON, World

OFTEN = LeaseTimes(retry=0.05)


@asynccontextmanager
async def replica(world: World) -> AsyncIterator[Replica]:
    async with world.api.client() as client:
        one = Replica(client, Options(namespace="ns", times=OFTEN, rules=SOON))
        running = asyncio.create_task(one.run())
        try:
            yield one
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()


async def page(one: Replica, path: str) -> str:
    transport = httpx2.ASGITransport(app=one.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://controller") as http:
        return (await http.get(path)).text


async def play(world: World, so: Callable[[], object]) -> None:
    """The scheduler and the kubelet act until it is so."""

    def acted() -> object:
        world.place()
        world.run_pods()
        return so()

    await until(acted)


def test_a_job_goes_on_when_another_replica_leads() -> None:
    async def run() -> None:
        world = World()
        async with world.api.serving(), replica(world) as second:
            async with replica(world) as first:
                world.submit(most=2)
                await play(world, lambda: world.phase() == "Running")
                assert len(world.running()) == 2
                pages = [await page(one, "/readyz") for one in (first, second)]
                assert sorted(pages) == ["follows", "leads"]
            await until(lambda: second._elector.leading)
            world.change(suspend=True)
            await play(world, lambda: world.phase() == "Suspended")
            assert not world.running()
            assert 'aliquot_controller_jobs{phase="Suspended"} 1.0' in await page(
                second, "/metrics"
            )
            told = {one["reason"] for one in world.api.all("events")}
            assert {"Starting", "Running", "Suspending"} <= told

    asyncio.run(run())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"queue": "nowhere"}, "queue 'nowhere' does not exist"),
        ({"workers": {"min": 3, "max": 2}}, "workers.max is 2, below workers.min, 3"),
    ],
)
def test_what_is_not_accepted_is_told_once_as_a_warning(spec: dict[str, Any], why: str) -> None:
    async def run() -> None:
        world = World()
        async with world.api.serving(), replica(world):
            world.submit(**spec)
            await until(lambda: world.api.all("events"))
            await until(lambda: ("Accepted", "False", "InvalidSpec") in world.conditions())
            world.change(workers={"min": 1, "max": 1}, queue="")
            await play(world, lambda: told(world)[-1:] == ["Running"])
            first, *later = world.api.all("events")
            assert (first["type"], first["reason"]) == ("Warning", "Refused")
            assert why in first["message"]
            assert "Refused" not in {one["reason"] for one in later}

    asyncio.run(run())


def test_what_the_api_server_does_not_take_is_told_as_a_warning() -> None:
    async def run() -> None:
        world = World()
        world.api.faults.refuse = lambda method, path: (
            403 if method == "POST" and path.endswith("/pods") else None
        )
        async with world.api.serving(), replica(world):
            world.submit(most=1)
            await until(lambda: "Refused" in told(world))
            assert told(world) == ["Pending", "Starting", "Refused"]

    asyncio.run(run())


def told(world: World) -> list[str]:
    """The reasons of the events, in their order."""
    return [one["reason"] for one in world.api.all("events")]
