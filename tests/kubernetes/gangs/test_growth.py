"""Running pods that want to grow by their annotations ask their queue."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.gpunode import NodeGrant
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.gangs import growth
from kubernetes.builders import GIB
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, led, running

IN_Q = {"aliquot.io/queue": "q"}
SIZE = "aliquot.io/admitted-size"
UNITS = 4  # of memory in a GiB


def a_world(**limit: Any) -> World:
    world = World(1)
    world.queue("q", limit=limit)
    return world


def scheduled(world: World, play: Callable[[World, Replica], Coroutine[Any, Any, None]]) -> None:
    """Play it with a replica that leads."""

    async def go() -> None:
        async with running(world) as one:
            await play(world, one)

    asyncio.run(go())


async def run(world: World, name: str, gib: int, **asked: Any) -> None:
    """A pod with a slice runs, and its node reports it."""
    world.pod(name, memory=gib * UNITS, labels=IN_Q, **asked)
    await until(lambda: name in world.bound())
    report(world, name)


def report(world: World, name: str, **changes: Any) -> None:
    """The agent reports what a pod has: as planned, or with these changes."""
    pod = world.pods()[name]
    plan = decode_plan(pod.metadata.annotations[PLAN])
    assert plan is not None
    (part,) = plan.containers.values()
    grant = NodeGrant(pod.metadata.uid, "ns", name, "main", part.memory, part.compute)
    body = json.loads(json.dumps(world.api.objects["gpunodes", "", "n0"]))
    (gpu,) = body["status"]["gpus"]
    others = [one for one in gpu.get("grants", ()) if one["pod"] != name]
    gpu["kind"] = "sliced"
    gpu["grants"] = [*others, msgspec.to_builtins(msgspec.structs.replace(grant, **changes))]
    world.api.put("gpunodes", body)


def annotate(world: World, name: str, **notes: str | None) -> None:
    body = json.loads(json.dumps(world.api.objects["pods", "ns", name]))
    for key, value in notes.items():
        body["metadata"]["annotations"].pop(f"aliquot.io/{key}", None)
        if value is not None:
            body["metadata"]["annotations"][f"aliquot.io/{key}"] = value
    world.api.put("pods", body)


def allowed(world: World, name: str) -> dict[str, str]:
    """The annotations that the scheduler lets a pod grow to."""
    pod = world.pods()[name]
    text = pod.metadata.annotations.get(SIZE)
    if text is None:
        return {}
    size = json.loads(text)
    assert size["uid"] == pod.metadata.uid
    assert size["until"] < time.time() + 60
    return {key.removeprefix("aliquot.io/"): value for key, value in size["sizes"].items()}


def told(world: World, name: str) -> list[str]:
    return [text for reason, text in world.events(name) if reason == "ResizeRefused"]


def test_growth_within_the_limit_is_allowed_and_beyond_it_refused() -> None:
    async def play(world: World, _: Replica) -> None:
        await run(world, "a", 10)
        await run(world, "b", 10)
        annotate(world, "a", memory="25GiB")
        await until(lambda: told(world, "a"))
        (text,) = told(world, "a")
        assert text == (
            "it stays as it is: queue q may have 30 GiB of GPU memory; with this growth it would"
            " have 35 GiB. It grows as soon as its queue allows it"
        )
        annotate(world, "b", memory="15GiB")
        await until(lambda: allowed(world, "b") == {"memory": "15GiB"})
        assert allowed(world, "a") == {}
        report(world, "b", memory=15 * GIB)
        world.delete("b")
        body = json.loads(json.dumps(world.api.objects["gpunodes", "", "n0"]))
        (gpu,) = body["status"]["gpus"]
        gpu["grants"] = [one for one in gpu["grants"] if one["pod"] == "a"]
        world.api.put("gpunodes", body)
        await until(lambda: allowed(world, "a") == {"memory": "25GiB"})
        assert len(told(world, "a")) == 1

    scheduled(a_world(memory="30Gi"), play)


def test_of_two_pods_that_grow_at_once_only_one_gets_the_last_of_a_limit() -> None:
    async def play(world: World, _: Replica) -> None:
        await run(world, "a", 10)
        await run(world, "b", 10)
        for name in ("a", "b"):
            annotate(world, name, memory="20GiB")
        await until(lambda: any(allowed(world, name) for name in ("a", "b")))
        await until(lambda: told(world, "a") or told(world, "b"))
        assert sorted(bool(allowed(world, name)) for name in ("a", "b")) == [False, True]

    scheduled(a_world(memory="30Gi"), play)


def test_growth_counts_before_its_node_reports_it() -> None:
    async def play(world: World, _: Replica) -> None:
        await run(world, "a", 10)
        annotate(world, "a", memory="20GiB")
        await until(lambda: allowed(world, "a"))
        world.pod("b", memory=15 * UNITS, labels=IN_Q)
        await until(lambda: world.events("b"))
        reason, text = world.events("b")[0]
        assert (reason, "with this pod it would have 35 GiB" in text) == ("QueueFull", True)
        world.gang("g", 1, memory=15 * UNITS, labels=IN_Q)
        await until(lambda: "30 GiB of GPU memory" in world.why("g"))

    scheduled(a_world(memory="30Gi"), play)


def test_growth_counts_until_a_node_would_have_reported_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "VALID_SECONDS", 0.1)

    async def play(world: World, _: Replica) -> None:
        await run(world, "a", 10)
        annotate(world, "a", memory="20GiB")
        await until(lambda: allowed(world, "a"))
        size = json.loads(world.pods()["a"].metadata.annotations[SIZE])
        await until(lambda: time.time() > size["until"])  # an agent may have used it just before
        world.gang("later", 1, memory=UNITS)  # growth is counted again after this one is placed
        await is_bound(world, "later", 1)
        world.gang("g", 1, memory=15 * UNITS, labels=IN_Q)
        await until(lambda: "30 GiB of GPU memory" in world.why("g"))

    scheduled(a_world(memory="30Gi"), play)


def test_a_new_leader_counts_what_the_one_before_allowed() -> None:
    async def play() -> None:
        world = a_world(memory="30Gi")
        async with world.api.serving():
            async with led(world):
                await run(world, "a", 10)
                annotate(world, "a", memory="20GiB")
                await until(lambda: allowed(world, "a"))
            annotate(world, "a", memory="1GiB")  # the agent may have used the permission by now
            async with led(world):
                world.pod("b", memory=15 * UNITS, labels=IN_Q)
                await until(lambda: world.events("b"))
                assert world.events("b")[0][0] == "QueueFull"

    asyncio.run(play())


def test_compute_that_was_in_the_background_comes_back_through_the_queue() -> None:
    async def play(world: World, _: Replica) -> None:
        await run(world, "a", 1, core=30, annotations={"aliquot.io/priority": "background"})
        report(world, "a", priority="background")
        await run(world, "b", 1, core=80)
        annotate(world, "a", priority=None)
        await until(lambda: told(world, "a"))
        assert "with this growth it would have 1.1" in told(world, "a")[0]
        annotate(world, "b", priority="background")
        report(world, "b", priority="background")
        await until(lambda: SIZE in world.pods()["a"].metadata.annotations)
        assert allowed(world, "a") == {}  # for the annotations that it has: none

    scheduled(a_world(compute=100), play)


def test_without_queues_growth_is_allowed_and_shrinks_ask_nobody() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("a", memory=40)
        await until(lambda: "a" in world.bound())
        report(world, "a")
        annotate(world, "a", memory="1GiB")
        world.pod("b", memory=40)
        await until(lambda: "b" in world.bound())
        report(world, "b")
        annotate(world, "b", memory="50%")
        await until(lambda: allowed(world, "b") == {"memory": "50%"})
        assert SIZE not in world.pods()["a"].metadata.annotations

    scheduled(World(1), play)


def test_a_permission_that_was_not_used_ends_and_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "VALID_SECONDS", 0.2)
    monkeypatch.setattr(growth, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(growth, "RENEW_SECONDS", 0.2)

    async def play(world: World, _: Replica) -> None:
        await run(world, "a", 10)
        annotate(world, "a", memory="20GiB")
        await until(lambda: allowed(world, "a"))
        first = world.pods()["a"].metadata.annotations[SIZE]
        await until(lambda: world.pods()["a"].metadata.annotations[SIZE] != first)
        report(world, "a", memory=20 * GIB)

    scheduled(a_world(memory="30Gi"), play)
