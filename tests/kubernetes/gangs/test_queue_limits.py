"""Limits of queues while victims terminate: no limit is passed, and nobody waits in vain."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.kubernetes.gangs.controller import GangOptions
from aliquot.kubernetes.gangs.lifecycle import Deadlines
from kubernetes.builders import node_json
from kubernetes.extender.replica import Replica, replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import SOON, World, is_bound, led, played

IN_Q = {"aliquot.io/queue": "q"}
OWN, GUEST = {"aliquot.io/queue": "own"}, {"aliquot.io/queue": "guest"}
HIGHER = {"priority": 9}
ELSEWHERE = {**HIGHER, "nodeSelector": {"for": "urgent"}}
FOR_EVER = 60.0


def ending(world: World) -> set[str]:
    return {name for name, one in world.pods().items() if one.metadata.deletion_timestamp}


def gated(world: World, gang: str) -> bool:
    return all(one.spec.scheduling_gates for one in world.pods(gang).values())


def set_apart(world: World, node: str) -> None:
    """A node that others than the urgent are not offered."""
    world.api.put("nodes", node_json(node, labels={"for": "urgent"}))
    world.offered.discard(node)


async def looked_again(world: World) -> None:
    """Another gang has come and gone: all were looked at since."""
    for _ in range(2):
        world.gang("other", 1)
        await is_bound(world, "other", 1)
        world.delete(*world.pods("other"))
        await until(lambda: world.status("other") is None)


@pytest.mark.parametrize("victim", ["gang", "single pods"])
def test_at_a_limit_a_gang_waits_for_victims_on_other_nodes(victim: str) -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 2})
        set_apart(world, "n1")
        if victim == "gang":
            low = world.gang("low", 2, labels=IN_Q, gpu=1)
        else:
            low = ["low-0", "low-1"]
            for name in low:
                world.pod(name, labels=IN_Q, gpu=1)
        await until(lambda: world.bound().keys() == {*low})
        world.api.faults.grace = FOR_EVER
        world.offered.add("n1")
        world.gang("urgent", 2, labels=IN_Q, gpu=1, spec=ELSEWHERE)
        await until(lambda: ending(world) == {*low})
        await looked_again(world)
        assert gated(world, "urgent")
        world.delete(low[0])
        await looked_again(world)
        assert gated(world, "urgent")
        world.delete(low[1])
        await is_bound(world, "urgent", 2)

    played(World(2, 2, 1), play)


@pytest.mark.parametrize("limit", [None, {"gpus": 2}], ids=["no limit", "a limit"])
def test_a_gang_waits_for_victims_on_other_nodes_only_at_a_limit(
    limit: dict[str, int] | None,
) -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("own", quota={"gpus": 2}, **({"limit": limit} if limit else {}))
        world.queue("guest", quota={"gpus": 0})
        names = world.gang("guests", 2, labels=GUEST, gpu=1)
        await is_bound(world, "guests", 2)
        world.api.faults.grace = FOR_EVER
        world.gang("mine", 1, labels=OWN, gpu=1)
        await until(lambda: ending(world) == {*names})
        found = world.status("mine")
        assert found is not None
        (place,) = found.status.members
        here = next(name for name in names if world.bound()[name] == place.node)
        world.delete(here)
        others = tuple(one.metadata.uid for one in world.pods("guests").values())
        if limit:
            await until(lambda: victims_of(world, "mine") == others)
            assert gated(world, "mine")
            world.delete(*names)
        await is_bound(world, "mine", 1)

    played(World(1, 1), play)


def victims_of(world: World, gang: str) -> tuple[str, ...]:
    found = world.status(gang)
    return found.status.victims if found else ()


def test_a_protected_victim_on_another_node_counts_for_the_limit() -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 1})
        set_apart(world, "n1")
        world.pod("low", labels=IN_Q, gpu=1)
        await until(lambda: "low" in world.bound())
        world.api.faults.budgets = {"low": "keep-it"}
        world.offered.add("n1")
        world.gang("urgent", 1, labels=IN_Q, gpu=1, spec=ELSEWHERE)
        await until(lambda: "disruption budgets protect pod ns/low" in world.why("urgent"))
        assert world.held("q") == 1
        world.api.faults.budgets = {}
        await is_bound(world, "urgent", 1)
        assert world.held("q") == 1

    played(World(1, 1), play)


def test_a_victim_counts_for_the_limit_until_it_is_gone() -> None:
    """Two of four are free when the low ones have ended, and not before."""

    async def play(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 4})
        low = world.gang("low", 4, labels=IN_Q, gpu=1)
        await is_bound(world, "low", 4)
        world.api.faults.grace = FOR_EVER
        world.gang("urgent", 2, labels=IN_Q, gpu=1, spec=HIGHER)
        await until(lambda: ending(world) == {*low})
        world.gang("later", 2, labels=IN_Q, gpu=1)
        text = "queue q may have 4 GPUs; with this gang it would have 6"
        await until(lambda: text in world.why("later"))
        world.pod("single", labels=IN_Q, gpu=1)
        await until(lambda: world.events("single"))
        assert world.events("single")[0][0] == "QueueFull"
        assert world.bound().keys() == {*low}
        world.delete(*low)
        await is_bound(world, "urgent", 2)
        await is_bound(world, "later", 2)

    played(World(4, 4), play)


def test_preemptions_at_one_limit_do_not_wait_for_each_other() -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 2})
        for name in ("low0", "low1"):
            world.gang(name, 1, labels=IN_Q, gpu=1)
            await is_bound(world, name, 1)
        world.api.faults.grace = FOR_EVER
        for name in ("urgent0", "urgent1"):
            world.gang(name, 1, labels=IN_Q, gpu=1, spec=HIGHER)
        await until(lambda: len(ending(world)) == 2)
        world.delete("low0-0", "low1-0")
        await is_bound(world, "urgent0", 1)
        await is_bound(world, "urgent1", 1)

    played(World(2, 2), play)


def test_a_new_leader_goes_on_with_a_preemption_at_a_limit() -> None:
    async def run() -> None:
        world = World(1, 1)
        world.queue("q", limit={"gpus": 1})
        async with world.api.serving():
            set_apart(world, "n1")
            async with led(world):
                world.gang("low", 1, labels=IN_Q, gpu=1)
                await is_bound(world, "low", 1)
            world.offered.add("n1")
            async with replica(world.api, gangs=SOON) as one:
                await one.ready()
                world.api.faults.refuse = lambda _, path: 503 if "/eviction" in path else None
                world.gang("urgent", 1, labels=IN_Q, gpu=1, spec=ELSEWHERE)
                await until(lambda: victims_of(world, "urgent"))
                before = world.status("urgent")
            world.api.faults.grace = FOR_EVER
            world.api.faults.refuse = lambda *_: None
            async with led(world):
                await until(lambda: ending(world) == {"low-0"})
                after = world.status("urgent")
                assert before is not None
                assert after is not None
                assert after.status.members == before.status.members
                assert gated(world, "urgent")
                world.delete("low-0")
                await is_bound(world, "urgent", 1)

    asyncio.run(run())


def test_a_gang_does_not_wait_for_protected_victims_of_another() -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("own", quota={"gpus": 3})
        world.queue("guest", quota={"gpus": 0})
        world.gang("mine", 1, labels=OWN, gpu=1)
        await is_bound(world, "mine", 1)
        kept = world.gang("kept", 2, labels=GUEST, gpu=1)
        await is_bound(world, "kept", 2)
        world.api.faults.budgets = dict.fromkeys(kept, "keep-it")
        world.gang("first", 1, labels=OWN, gpu=1)
        await until(lambda: victims_of(world, "first"))
        world.delete(*world.pods("mine"))
        world.gang("may", 1, labels=GUEST, gpu=1)
        await is_bound(world, "may", 1)
        world.gang("second", 1, labels=OWN, gpu=1)
        await is_bound(world, "second", 1)
        assert set(world.bound("kept")) == {*kept}

    played(World(3), play, gangs=GangOptions(times=Deadlines(grace=0.4, eviction=FOR_EVER)))


def test_an_eviction_is_written_after_its_reservation() -> None:
    async def play(world: World, _: Replica) -> None:
        def refuse(method: str, path: str) -> int | None:
            mine = path.endswith("/gangs") if method == "POST" else "/gangs/mine" in path
            return 503 if mine and method != "GET" else None

        world.queue("own", quota={"gpus": 1})
        world.queue("guest", quota={"gpus": 0})
        world.gang("guests", 1, labels=GUEST, gpu=1)
        await is_bound(world, "guests", 1)
        world.api.faults.refuse = refuse
        world.gang("mine", 1, labels=OWN, gpu=1)
        tried = len(world.api.requests)
        await until(lambda: refusals(world, tried) >= 2)
        assert not world.eviction_reason("guests")
        world.api.faults.refuse = lambda _method, _path: None
        await is_bound(world, "mine", 1)

    played(World(1), play)


def refusals(world: World, since: int) -> int:
    """How often it was tried to write a gang that is new."""
    asked = world.api.requests[since:]
    return sum(method == "POST" and path.endswith("/gangs") for method, path in asked)
