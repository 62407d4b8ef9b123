"""Elastic jobs that the scheduler preempts: workers get a notice and stop before the eviction.

The scheduler announces an eviction in the Gang's status. The last test runs the real scheduler,
controller and gangs against one API server.
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
from aliquot.kubernetes.jobs.run import ControllerOptions
from aliquot.kubernetes.jobs.run import Replica as Controller
from aliquot.placement.elastic.resize import Rules
from kubernetes.extender.replica import OFTEN, replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import SOON as GANGS_SOON
from kubernetes.gangs.world import World as GangWorld
from kubernetes.jobs.job_cluster import NODE, JobCluster
from kubernetes.jobs.test_jobs import scenario, started


def notices(cluster: JobCluster) -> dict[str, dict[str, Any]]:
    found = {
        name: one["metadata"].get("annotations", {}).get(NOTICE)
        for name, one in cluster.pods().items()
    }
    return {name: json.loads(text) for name, text in found.items() if text}


@scenario
async def test_preempted_workers_get_a_notice_and_restart_at_no_cost() -> None:
    cluster = await started(least=2, backoffLimit=0, resizeSeconds=60)
    until_then = cluster.now + 30
    cluster.preempt("train-1", 30)
    cluster.place()
    await cluster.round(1)
    told = notices(cluster)
    assert set(told) == {"train-0", "train-1"}
    assert {one["kind"] for one in told.values()} == {"suspend"}
    assert all(until_then - 1 <= one["deadline"] <= until_then for one in told.values())
    assert cluster.phase() == "Suspending"
    assert "asked to save: preempted for ns/other: queue" in cluster.status().reason
    await cluster.go(10)
    assert cluster.running() == {"train-0": 2, "train-1": 2}
    assert cluster.status().restarts == 0
    words = [one.reason for one in cluster.status().history if one.phase == "Suspended"]
    assert [text.partition(":")[0] for text in words] == ["asked to save"]


@scenario
async def test_workers_that_ignore_the_notice_are_stopped_at_the_eviction_time() -> None:
    cluster = await started(least=2, resizeSeconds=60)
    cluster.cooperative = False
    cluster.preempt("train-1", 10)
    await cluster.go(8)
    assert len(cluster.running()) == 2
    await cluster.go(12)
    assert set(cluster.running().values()) == {2}
    assert cluster.status().restarts == 0


@scenario
async def test_a_live_job_shrinks_below_preempted_workers() -> None:
    cluster = JobCluster()
    cluster.submit(least=1, most=2, live=True)
    await cluster.go(4)
    cluster.change(workers={"min": 1, "max": 4})
    await cluster.go(20)
    assert cluster.running() == {"train-0": 1, "train-1": 1, "train-2": 2, "train-3": 2}
    cluster.preempt("train-2", 30)
    cluster.gang("other", 2)
    await cluster.go(10)
    assert cluster.running() == {"train-0": 1, "train-1": 1}
    assert len(cluster.running("other")) == 2
    assert [one.phase for one in cluster.status().history][-2:] == ["Shrinking", "Running"]


@scenario
async def test_workers_preempted_during_a_stop_get_their_full_notice() -> None:
    cluster = JobCluster()
    cluster.submit(least=1, most=4, live=True, resizeSeconds=5)
    await cluster.go(4)
    cluster.cooperative = False
    cluster.change(workers={"min": 1, "max": 3})
    while not (stopped := being_stopped(cluster)):
        await cluster.round(1)
    cluster.preempt("train-1", 30)
    cluster.place()
    await cluster.round(1)
    await cluster.round(1)
    assert being_stopped(cluster) == stopped == {"train-3"}
    cluster.run_pods()
    await cluster.round(1)
    await cluster.round(1)
    told = notices(cluster)
    assert [told[f"train-{rank}"]["kind"] for rank in range(3)] == ["suspend"] * 3
    assert being_stopped(cluster) == stopped


def being_stopped(cluster: JobCluster) -> set[str]:
    pods = cluster.pods().items()
    return {name for name, one in pods if one["metadata"].get("deletionTimestamp")}


@scenario
async def test_a_user_suspension_outlives_a_preemption() -> None:
    cluster = await started(least=2)
    cluster.change(suspend=True)
    cluster.preempt("train-1", 30)
    await cluster.go(10)
    assert cluster.phase() == "Suspended"
    assert cluster.status().reason == "suspended by the user: asked to save"


# --- with the scheduler ---------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_run, "DECIDE_SECONDS", 0.1)
    monkeypatch.setattr(jobs_run, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(elastic, "MARGIN", 5.0)
    monkeypatch.setattr(state, "LATE", 5.0)


@asynccontextmanager
async def both(cluster: JobCluster) -> AsyncIterator[None]:
    """Run the scheduler, kube-scheduler, the controller and the kubelet with one API server."""
    gangs = GangWorld(api=cluster.api)
    gangs.offered = {NODE}
    often = Rules(resize_seconds=0.2, settle_seconds=0.2)
    async with cluster.api.serving(), cluster.api.client() as client:
        controller = Controller(client, ControllerOptions(namespace="ns", times=OFTEN, rules=often))
        async with replica(cluster.api, gangs=GANGS_SOON) as one:
            await one.ready()
            async with gangs.scheduling(one):
                running = asyncio.create_task(controller.run())
                try:
                    yield
                finally:
                    running.cancel()
                    await asyncio.wait([running])


async def comes(cluster: JobCluster, so: Callable[[], object]) -> None:
    """Let the kubelet act until the condition holds."""

    def acted() -> object:
        cluster.run_pods()
        return so()

    await until(acted)


def evictions(cluster: JobCluster) -> list[str]:
    return [path for _, path in cluster.api.requests if path.endswith("/eviction")]


def queue(cluster: JobCluster, name: str, gpus: int) -> None:
    spec = {"quota": {"gpus": gpus}}
    cluster.api.put("queues", {"metadata": {"name": name}, "spec": spec})


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("least", "size", "left", "phases"),
    [
        (1, 2, 2, ["Shrinking", "Starting", "Running"]),
        (2, 4, 0, ["Suspending", "Suspended", "Pending", "Starting"]),
    ],
    ids=["it gives back", "it is in the way"],
)
def test_quota_is_reclaimed_with_notice_and_without_an_eviction(
    least: int, size: int, left: int, phases: list[str]
) -> None:
    async def run() -> None:
        cluster = JobCluster(4)
        queue(cluster, "own", 4)
        queue(cluster, "guest", 0)
        async with both(cluster):
            cluster.submit(least=least, most=4, queue="guest", resizeSeconds=10)
            await comes(cluster, lambda: len(cluster.running()) == 4)
            await comes(cluster, lambda: cluster.phase() == "Running")
            before = len(cluster.status().history)
            cluster.gang("claimant", size, queue="own")
            await comes(cluster, lambda: len(cluster.running("claimant")) == size)
            await comes(cluster, lambda: len(cluster.running()) == left)
            await comes(cluster, lambda: cluster.phase() == phases[-1])
            assert [one.phase for one in cluster.status().history][before:] == phases
            assert not evictions(cluster)
            assert cluster.status().restarts == 0

    asyncio.run(run())
