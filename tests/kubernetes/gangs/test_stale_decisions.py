"""Changes while a decision is made: what is not possible any more is not applied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.kubernetes.api import leader
from aliquot.kubernetes.extender import planner
from kubernetes.builders import node_json
from kubernetes.extender.replica import Replica, replica
from kubernetes.fake_api import until
from kubernetes.gangs.held_decisions import HeldDecision
from kubernetes.gangs.world import World, is_bound, played

HIGHER = {"priority": 9}
HIGHEST = {"priority": 100}
IN_Q = {"aliquot.io/queue": "q"}


def test_a_new_pod_with_the_name_of_a_victim_is_not_evicted(held: HeldDecision) -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("p", gpu=1)
        await until(lambda: "p" in world.bound())
        held.hold()
        world.gang("high", 1, spec=HIGHER, gpu=1)
        await held.decided()
        world.delete("p")
        world.pod("p", gpu=1, spec=HIGHEST)
        await until(lambda: "p" in world.bound())
        uid = world.pods()["p"].metadata.uid
        held.go_on()
        await until(lambda: world.phase("high") == "Waiting")
        assert world.pods()["p"].metadata.uid == uid

    played(World(1), play)


def test_nobody_is_preempted_for_a_gang_that_lost_another_place(held: HeldDecision) -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("low", 1)
        await is_bound(world, "low", 1)
        held.hold()
        world.gang("high", 2, spec=HIGHER, gpu=1)
        await held.decided()
        world.pod("taken", gpu=1, spec=HIGHEST)
        await until(lambda: "taken" in world.bound())
        held.go_on()
        await until(lambda: world.phase("high") == "Waiting")
        assert set(world.bound()) == {"low-0", "taken"}

    played(World(2), play)


def test_nobody_is_preempted_for_a_gang_that_fits_meanwhile(held: HeldDecision) -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("low", 1)
        await is_bound(world, "low", 1)
        world.pod("short", gpu=1, spec=HIGHEST)
        await until(lambda: "short" in world.bound())
        held.hold()
        world.gang("high", 1, spec=HIGHER, gpu=1)
        await held.decided()
        world.delete("short")
        await until(lambda: "short" not in world.pods())
        cluster = world.leader.scheduler.cluster
        await until(lambda: int(cluster.chooser.allocations.holders.sum()) == 1)
        held.go_on()
        await is_bound(world, "high", 1)
        assert set(world.bound()) == {"low-0", "high-0"}

    played(World(2), play)


def test_single_pods_during_a_decision_do_not_pass_a_limit(held: HeldDecision) -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 2})
        world.api.put("nodes", node_json("n0", labels={"for": "gangs"}))
        held.hold()
        world.gang("a", 2, labels=IN_Q, gpu=1, spec={"nodeSelector": {"for": "gangs"}})
        await held.decided()
        world.offered = {"n1"}
        world.pod("single", gpu=1, labels=IN_Q)
        await until(lambda: "single" in world.bound())
        world.offered = {"n0", "n1"}
        held.go_on()
        text = "queue q may have 2 GPUs; with this gang it would have 3"
        await until(lambda: text in world.why("a"))
        assert world.held("q") == 1
        world.delete("single")
        await is_bound(world, "a", 2)

    played(World(2, 2), play)


# --- at the bind ----------------------------------------------------------------------------------


async def asked(one: Replica, world: World, name: str) -> list[str]:
    answer = await one.filter(world.pods()[name], "n0")
    return list(answer["NodeNames"] or [])


def bound_by_hand(play: Callable[[World, Replica], Coroutine[Any, Any, None]]) -> None:
    """Two pods of a queue that may have one GPU, and nobody who asks for them."""

    async def run() -> None:
        world = World(4)
        world.queue("q", limit={"gpus": 1})
        for name in ("a", "b"):
            world.pod(name, gpu=1, labels=IN_Q)
        async with world.api.serving(), replica(world.api) as one:
            await one.ready()
            await play(world, one)
            assert world.held("q") <= 1

    asyncio.run(run())


def test_a_pod_with_a_conflicting_binding_counts_until_it_is_seen() -> None:
    async def play(world: World, one: Replica) -> None:
        assert await asked(one, world, "a") == ["n0"]
        world.api.faults.refuse = lambda _, path: 409 if path.endswith("a/binding") else None
        assert await one.bind(world.pods()["a"], "n0")
        assert not await asked(one, world, "b")

    bound_by_hand(play)


def test_a_pod_that_is_bound_late_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(world: World, one: Replica) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(planner, "RESERVED_SECONDS", 0.0)
            assert await asked(one, world, "a") == ["n0"]
        assert await asked(one, world, "b") == ["n0"]
        assert "took too long: it must be scheduled" in await one.bind(world.pods()["a"], "n0")
        assert not await one.bind(world.pods()["b"], "n0")
        assert not await asked(one, world, "a")

    bound_by_hand(play)


def test_the_message_of_a_full_queue_has_its_own_numbers() -> None:
    async def play(world: World, one: Replica) -> None:
        assert await asked(one, world, "a") == ["n0"]
        assert not await one.bind(world.pods()["a"], "n0")
        assert not await asked(one, world, "b")
        await until(lambda: world.events("b"))
        text = "queue q may have 1 GPU; with this pod it would have 2"
        assert world.events("b")[0] == ("QueueFull", text)

    bound_by_hand(play)


# --- who leads ------------------------------------------------------------------------------------


def test_a_replica_that_was_frozen_longer_than_its_lease_does_nothing(
    held: HeldDecision, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        world = World(2)
        async with world.api.serving(), replica(world.api) as one:
            await one.ready()
            held.hold()
            world.gang("a", 2)
            await held.decided()
            world.api.faults.refuse = lambda _, path: 503 if "/leases" in path else None
            later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
            monkeypatch.setattr(leader, "time", later)
            writes = len(written(world))
            held.go_on()
            answer = await one.post("/filter", {})
            assert answer.status_code == 503
            await until(one.scheduler.why_not)
            assert len(written(world)) == writes
            assert all(pod.spec.scheduling_gates for pod in world.pods("a").values())

    asyncio.run(run())


def written(world: World) -> list[str]:
    requests = world.api.requests
    return [path for method, path in requests if method != "GET" and "/leases" not in path]
