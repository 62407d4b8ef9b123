"""Elastic jobs whose GPUs others have a right to: workers are told, and nobody is evicted in time.

What the scheduler says of a gang that is to end is in its Gang object; first by itself, then with
the scheduler and the controller at work together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aliquot.kubernetes.api.names import NOTICE
from aliquot.kubernetes.cluster import elastic
from aliquot.kubernetes.gangs import state
from aliquot.kubernetes.jobs import run as jobs_run
from aliquot.kubernetes.jobs.run import Options
from aliquot.kubernetes.jobs.run import Replica as Controller
from aliquot.placement.elastic.resize import Rules
from kubernetes.fake_api import until
from kubernetes.gangs.world import SOON as GANGS_SOON
from kubernetes.gangs.world import World as GangWorld
from kubernetes.jobs.test_jobs import scenario, started
from kubernetes.jobs.world import NODE, World
from kubernetes.scheduler.replica import OFTEN, replica


def notices(world: World) -> dict[str, dict[str, Any]]:
    found = {
        name: one["metadata"].get("annotations", {}).get(NOTICE)
        for name, one in world.pods().items()
    }
    return {name: json.loads(text) for name, text in found.items() if text}


@scenario
async def test_all_workers_are_told_and_it_starts_again_at_no_cost() -> None:
    world = await started(least=2, backoffLimit=0, resizeSeconds=60)
    until_then = world.now + 30
    world.claim("train-1", 30)
    world.place()
    await world.round(1)
    told = notices(world)
    assert set(told) == {"train-0", "train-1"}
    assert {one["kind"] for one in told.values()} == {"suspend"}
    assert all(until_then - 1 <= one["deadline"] <= until_then for one in told.values())
    assert world.phase() == "Suspending"
    assert "asked to save: preempted for ns/other: queue" in world.status().reason
    await world.go(10)
    assert world.running() == {"train-0": 2, "train-1": 2}
    assert world.status().restarts == 0
    words = [one.reason for one in world.status().history if one.phase == "Suspended"]
    assert [text.partition(":")[0] for text in words] == ["asked to save"]


@scenario
async def test_who_heeds_nothing_is_stopped_when_the_scheduler_would_evict() -> None:
    world = await started(least=2, resizeSeconds=60)
    world.cooperative = False
    world.claim("train-1", 10)
    await world.go(8)
    assert len(world.running()) == 2
    await world.go(12)
    assert set(world.running().values()) == {2}
    assert world.status().restarts == 0


@scenario
async def test_a_live_job_goes_on_without_the_workers_that_end() -> None:
    world = World()
    world.submit(least=1, most=2, live=True)
    await world.go(4)
    world.change(workers={"min": 1, "max": 4})
    await world.go(20)
    assert world.running() == {"train-0": 1, "train-1": 1, "train-2": 2, "train-3": 2}
    world.claim("train-2", 30)
    world.gang("other", 2)
    await world.go(10)
    assert world.running() == {"train-0": 1, "train-1": 1}
    assert len(world.running("other")) == 2
    assert [one.phase for one in world.status().history][-2:] == ["Shrinking", "Running"]


@scenario
async def test_who_is_told_while_another_is_being_stopped_has_its_notice() -> None:
    world = World()
    world.submit(least=1, most=4, live=True, resizeSeconds=5)
    await world.go(4)
    world.cooperative = False
    world.change(workers={"min": 1, "max": 3})
    while not (stopped := being_stopped(world)):
        await world.round(1)
    world.claim("train-1", 30)
    world.place()
    await world.round(1)
    await world.round(1)
    assert being_stopped(world) == stopped == {"train-3"}
    world.run_pods()
    await world.round(1)
    await world.round(1)
    told = notices(world)
    assert [told[f"train-{rank}"]["kind"] for rank in range(3)] == ["suspend"] * 3
    assert being_stopped(world) == stopped


def being_stopped(world: World) -> set[str]:
    pods = world.pods().items()
    return {name for name, one in pods if one["metadata"].get("deletionTimestamp")}


@scenario
async def test_a_suspension_that_people_want_stays_one() -> None:
    world = await started(least=2)
    world.change(suspend=True)
    world.claim("train-1", 30)
    await world.go(10)
    assert world.phase() == "Suspended"
    assert world.status().reason == "suspended: asked to save"


# --- with the scheduler ---------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_run, "DECIDE_SECONDS", 0.1)
    monkeypatch.setattr(jobs_run, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(elastic, "MARGIN", 5.0)
    monkeypatch.setattr(state, "LATE", 5.0)


@asynccontextmanager
async def both(world: World) -> AsyncIterator[None]:
    """The scheduler, kube-scheduler, the controller and the kubelet, over one API server."""
    gangs = GangWorld(api=world.api)
    gangs.offered = {NODE}
    often = Rules(resize_seconds=0.2, settle_seconds=0.2)
    async with world.api.serving(), world.api.client() as client:
        controller = Controller(client, Options(namespace="ns", times=OFTEN, rules=often))
        async with replica(world.api, gangs=GANGS_SOON) as one:
            await one.ready()
            async with gangs.scheduling(one):
                running = asyncio.create_task(controller.run())
                try:
                    yield
                finally:
                    running.cancel()
                    await asyncio.wait([running])


async def comes(world: World, so: Callable[[], object]) -> None:
    """The kubelet acts until it is so."""

    def acted() -> object:
        world.run_pods()
        return so()

    await until(acted)


def evictions(world: World) -> list[str]:
    return [path for _, path in world.api.requests if path.endswith("/eviction")]


def queue(world: World, name: str, gpus: int) -> None:
    spec = {"quota": {"gpus": gpus}}
    world.api.put("queues", {"metadata": {"name": name}, "spec": spec})


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("least", "size", "left", "phases"),
    [
        (1, 2, 2, ["Shrinking", "Starting", "Running"]),
        (2, 4, 0, ["Suspending", "Suspended", "Pending", "Starting"]),
    ],
    ids=["it gives back", "it is in the way"],
)
def test_who_has_a_quota_gets_it_back_with_notice_and_without_an_eviction(
    least: int, size: int, left: int, phases: list[str]
) -> None:
    async def run() -> None:
        world = World(4)
        queue(world, "own", 4)
        queue(world, "guest", 0)
        async with both(world):
            world.submit(least=least, most=4, queue="guest", resizeSeconds=10)
            await comes(world, lambda: len(world.running()) == 4)
            await comes(world, lambda: world.phase() == "Running")
            before = len(world.status().history)
            world.gang("claimant", size, queue="own")
            await comes(world, lambda: len(world.running("claimant")) == size)
            await comes(world, lambda: len(world.running()) == left)
            await comes(world, lambda: world.phase() == phases[-1])
            assert [one.phase for one in world.status().history][before:] == phases
            assert not evictions(world)
            assert world.status().restarts == 0

    asyncio.run(run())
