"""Gangs whose pods choose GPUs by UUID or by neighbours, and pods that keep gangs away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.plan import decode_plan
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, led, running

LABEL, APART, ALONE = "aliquot.io/label", "aliquot.io/apart-from", "aliquot.io/alone"


def sharing(world: World, play: Callable[[World, Replica], Coroutine[Any, Any, None]]) -> None:
    """Play it where several pods may have one GPU."""

    async def run() -> None:
        async with running(world) as one:
            await play(world, one)

    asyncio.run(run())


def gpus(world: World, gang: str = "") -> list[str]:
    """The GPUs of a gang's pods."""
    plans = (
        decode_plan(one.metadata.annotations.get(PLAN, "")) for one in world.pods(gang).values()
    )
    parts = (part for plan in plans if plan is not None for part in plan.containers.values())
    return sorted(gpu for part in parts for gpu in part.gpus)


def test_members_that_avoid_each_other_and_others_get_their_own_gpus() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 2, memory=8, annotations={LABEL: "x", APART: "x"})
        await is_bound(world, "a", 2)
        assert len(set(gpus(world, "a"))) == 2
        world.gang("c", 1, memory=10, annotations={APART: "x", LABEL: "c"})
        await is_bound(world, "c", 1)
        assert not set(gpus(world, "a")) & set(gpus(world, "c"))
        world.gang("b", 1, memory=9, annotations={LABEL: "x"})
        await is_told(world, "b", ", which asks to be apart from label x")
        world.delete("a-0", "a-1")
        await is_bound(world, "b", 1)
        assert not set(gpus(world, "b")) & set(gpus(world, "c"))

    sharing(World(3), play)


async def is_told(world: World, gang: str, why: str) -> None:
    await until(lambda: world.phase(gang) == "Waiting" and why in world.why(gang))
    assert not world.bound(gang)


def test_a_gang_does_not_join_a_pod_that_is_alone() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("single", memory=8, annotations={ALONE: "true"})
        await until(lambda: "single" in world.bound())
        world.gang("a", 2, memory=9)
        await is_told(world, "a", "has pod ns/single, which is alone")
        world.delete("single")
        await is_bound(world, "a", 2)
        world.gang("b", 1, memory=10, annotations={ALONE: "true"})
        await is_told(world, "b", "and this pod asks to be alone")

    world = World(1)
    sharing(world, play)


def test_members_get_the_gpus_that_they_name() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 2, annotations={"aliquot.io/gpu": "GPU-n1,GPU-n0-3"})
        await is_bound(world, "a", 2)
        world.gang("b", 2, annotations={"aliquot.io/gpu": "GPU-n1,GPU-n0-3"})
        await until(lambda: world.phase("b") == "Waiting")
        assert "GPU GPU-n0-3 is on node n0; GPU GPU-n1-0 is on node n1" in world.why("b")
        world.gang("c", 1, annotations={"aliquot.io/gpu": "GPU-n7"})
        await until(lambda: "no node has a GPU GPU-n7" in world.why("c"))
        world.delete("a-0", "a-1")
        await is_bound(world, "b", 2)
        assert set(gpus(world, "b")) <= {"GPU-n0-3", "GPU-n1-0", "GPU-n1-1"}

    sharing(World(4, 2), play)


def test_another_leader_keeps_gangs_from_a_pod_that_is_alone() -> None:
    async def run() -> None:
        world = World(1, 1)
        async with world.api.serving():
            async with led(world):
                world.gang("a", 1, memory=8, annotations={ALONE: "true"})
                await is_bound(world, "a", 1)
            async with led(world):
                world.gang("b", 2, memory=9)
                await is_bound(world, "b", 2)
                assert len(set(gpus(world, "b"))) == 1
                assert not set(gpus(world, "a")) & set(gpus(world, "b"))

    asyncio.run(run())
