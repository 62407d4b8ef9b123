"""What a new leader reads of Gang objects is borne out by pods and nodes, or it does not count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from kubernetes.builders import GPU_BYTES, gpu_uuid
from kubernetes.extender.replica import replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import SOON, World, is_bound, led

PLAN = "aliquot.io/plan"


def served(world: World, play: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with world.api.serving():
            await play(world)
        world.check_gpus()

    asyncio.run(run())


async def reserved(world: World, name: str, size: int, **asked: Any) -> dict[str, Any]:
    """A gang's object, with its places, by a leader that is gone before anybody is bound."""
    async with replica(world.api, gangs=SOON) as one:
        await one.ready()
        world.gang(name, size, **asked)
        await until(lambda: world.phase(name) == "Reserved")
    return dict(json.loads(json.dumps(world.api.objects["gangs", "ns", name])))


def rewrite(world: World, found: dict[str, Any], **status: Any) -> None:
    world.api.put("gangs", {**found, "status": {**found["status"], **status}})


def plan(*gpus: str, **changes: Any) -> str:
    part: dict[str, Any] = {
        "kind": "whole",
        "gpus": gpus,
        "memory": GPU_BYTES,
        "compute": 0,
        **changes,
    }
    return Plan({"main": ContainerPlan(**part)}).encode()


@pytest.mark.parametrize(
    "forged",
    [
        plan(gpu_uuid("n0", 0), gpu_uuid("n0", 1)),
        plan(gpu_uuid("n1", 0)),
        plan(gpu_uuid("n0", 0), memory=2 * GPU_BYTES),
        plan(gpu_uuid("n0", 0), kind="sliced", memory=GPU_BYTES // 2, compute=50),
        "{nonsense",
    ],
    ids=["more GPUs", "another node's", "more memory", "another kind", "nonsense"],
)
def test_a_restored_place_that_differs_from_the_request_is_planned_again(forged: str) -> None:
    async def play(world: World) -> None:
        found = await reserved(world, "a", 1)
        member = {**found["status"]["members"][0], "node": "n0", "plan": forged}
        rewrite(world, found, members=[member])
        async with led(world):
            await is_bound(world, "a", 1)
        assert world.pods()["a-0"].metadata.annotations[PLAN] != forged

    served(World(4, 2), play)


def test_a_restored_place_that_another_pod_has_is_not_confirmed() -> None:
    async def play(world: World) -> None:
        async with led(world):
            world.pod("single", gpu=1)
            await until(lambda: "single" in world.bound())
        theirs = world.pods()["single"].metadata.annotations[PLAN]
        found = await reserved(world, "a", 1)
        member = {**found["status"]["members"][0], "plan": theirs}
        rewrite(world, found, members=[member])
        async with led(world):
            await is_bound(world, "a", 1)

    served(World(2), play)


def test_a_restored_place_above_a_limit_is_not_confirmed() -> None:
    async def play(world: World) -> None:
        world.queue("q", limit={"gpus": 2})
        await reserved(world, "a", 2, gpu=1, labels={"aliquot.io/queue": "q"})
        world.queue("q", limit={"gpus": 1})
        async with led(world):
            await until(lambda: "queue q may have 1 GPU" in world.why("a"))
            assert not world.bound("a")

    served(World(2), play)


def test_a_forged_status_evicts_nobody() -> None:
    async def play(world: World) -> None:
        async with led(world):
            world.gang("kept", 1, spec={"priority": 100}, gpu=1)
            await is_bound(world, "kept", 1)
        kept = world.pods()["kept-0"]
        found = await reserved(world, "a", 1)
        member = {
            **found["status"]["members"][0],
            "node": world.bound()["kept-0"],
            "plan": kept.metadata.annotations[PLAN],
        }
        rewrite(world, found, members=[member], victims=[kept.metadata.uid])
        async with led(world):
            await is_bound(world, "a", 1)
            assert world.pods()["kept-0"].metadata.uid == kept.metadata.uid
        evicted = [path for _, path in world.api.requests if path.endswith("/eviction")]
        assert not evicted

    served(World(2), play)


def test_a_new_leader_waits_for_victims_that_terminate() -> None:
    async def play(world: World) -> None:
        async with led(world):
            world.gang("low", 1)
            await is_bound(world, "low", 1)
            world.api.faults.grace = 60.0
            world.gang("high", 1, spec={"priority": 9}, gpu=1)
            await until(lambda: world.pods()["low-0"].metadata.deletion_timestamp)
        places = world.api.objects["gangs", "ns", "high"]["status"]["members"]
        async with led(world):
            await until(lambda: world.leader.scheduler.cluster.reserved(places[0]["uid"]))
            world.delete("low-0")
            await is_bound(world, "high", 1)
        assert world.api.objects["gangs", "ns", "high"]["status"]["members"] == places

    served(World(1), play)


def test_a_gang_has_not_waited_for_longer_than_its_pods_exist() -> None:
    async def play(world: World) -> None:
        async with led(world):
            world.gang("first", 1)
            await is_bound(world, "first", 1)
            world.gang("a", 1)
            await until(lambda: world.phase("a") == "Waiting")
        found = json.loads(json.dumps(world.api.objects["gangs", "ns", "a"]))
        rewrite(world, found, since="2001-01-01T00:00:00Z")
        async with led(world):
            made = world.pods()["a-0"].metadata.creation_timestamp
            await until(lambda: since(world, "a") == made)

    served(World(1), play)


def since(world: World, gang: str) -> str | None:
    found = world.status(gang)
    return found.status.since if found else None


def test_a_gang_that_has_run_for_long_was_whole_whatever_its_status_says() -> None:
    async def play(world: World) -> None:
        async with led(world):
            world.gang("a", 2)
            await is_bound(world, "a", 2)
        for name in ("a-0", "a-1"):
            body = json.loads(json.dumps(world.api.objects["pods", "ns", name]))
            body["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
            world.api.put("pods", body)
        found = json.loads(json.dumps(world.api.objects["gangs", "ns", "a"]))
        rewrite(world, found, wholeOnce=False)
        world.delete("a-1")
        async with led(world):
            world.gang("later", 1)
            await is_bound(world, "later", 1)
            await until(lambda: (one := world.status("a")) and one.status.whole_once)
            assert set(world.bound("a")) == {"a-0"}

    served(World(2), play)
