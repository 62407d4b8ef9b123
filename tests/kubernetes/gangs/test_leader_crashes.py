"""A leader that dies between two evictions: the next one leaves no half of a victim.

Some pods of a victim may be gone when the leader dies. The others may then be in nobody's way, and
its queue may borrow nothing any more: it is evicted all the same.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kubernetes.extender.replica import replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import SOON, World, is_bound, led

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWN, GUEST = {"aliquot.io/queue": "own"}, {"aliquot.io/queue": "guest"}


def queues(world: World, own: int, guest: int) -> None:
    world.queue("own", quota={"gpus": own})
    world.queue("guest", quota={"gpus": guest})


@asynccontextmanager
async def dying(world: World, evictions: int) -> AsyncIterator[None]:
    """A leader of which nothing is heard after so many evictions; it is gone afterwards."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(replica(world.api, gangs=SOON))
        await one.ready()
        await stack.enter_async_context(world.scheduling(one))
        asked = world.dies_after(evictions)
        yield
        await until(asked)
    world.revive()


@pytest.mark.parametrize("owned", [False, True], ids=["for good", "made anew"])
@pytest.mark.parametrize("evictions", [1, 2, 3])
@pytest.mark.parametrize(
    ("gpus", "size"), [((4,), 2), ((1, 1, 1, 1), 1)], ids=["one node", "four nodes"]
)
def test_a_crash_leaves_no_half_of_a_victim(
    gpus: tuple[int, ...], size: int, evictions: int, *, owned: bool
) -> None:
    async def run() -> None:
        world = World(*gpus)
        queues(world, own=2, guest=2)
        if owned:
            world.owned.add("victim")
        async with world.api.serving():
            async with dying(world, evictions):
                world.gang("victim", 4, labels=GUEST, gpu=1)
                await is_bound(world, "victim", 4)
                world.gang("preemptor", size, labels=OWN, gpu=1)
            assert len(world.active("victim")) == 4 - evictions
            async with led(world):
                await is_bound(world, "preemptor", size)
                await until(lambda: not world.active("victim"))
                await until(lambda: world.phase("victim") == ("Waiting" if owned else ""))
        world.check_gpus()

    asyncio.run(run())


@pytest.mark.parametrize("least", [4, 2], ids=["as many as must", "more than must"])
def test_a_crash_leaves_no_half_of_a_pod_group(least: int) -> None:
    async def run() -> None:
        world = World(1, 1, 1, 1)
        queues(world, own=2, guest=2)
        async with world.api.serving():
            async with dying(world, 2):
                world.gang("victim", least, pods=4, group=True, labels=GUEST)
                await is_bound(world, "victim", 4)
                world.gang("preemptor", 1, labels=OWN, gpu=1)
            assert len(world.active("victim")) == 2
            async with led(world):
                await is_bound(world, "preemptor", 1)
                await until(lambda: not world.active("victim"))

    asyncio.run(run())


@pytest.mark.parametrize("size", [2, 4], ids=["whole", "smaller than it was"])
def test_a_new_leader_spares_a_whole_victim_that_may_not_be_preempted_any_more(
    size: int,
) -> None:
    async def run() -> None:
        world = World(size)
        queues(world, own=size, guest=0)
        async with world.api.serving():
            async with dying(world, 0):
                names = world.gang("kept", size, labels=GUEST, gpu=1)
                await is_bound(world, "kept", size)
                world.delete(*names[2:])  # as a live job does that gives back
                world.gang("preemptor", size, labels=OWN, gpu=1)
            assert world.eviction_reason("kept")
            queues(world, own=size, guest=size)
            async with led(world):
                await until(lambda: not world.eviction_reason("kept"))
                await until(lambda: world.phase("preemptor") == "Waiting")
            assert len(world.active("kept")) == 2

    asyncio.run(run())


def test_a_protected_half_of_a_victim_is_evicted_when_that_is_allowed() -> None:
    async def run() -> None:
        world = World(2)
        queues(world, own=2, guest=0)
        async with world.api.serving(), led(world):
            world.gang("victim", 2, labels=GUEST, gpu=1)
            await is_bound(world, "victim", 2)
            world.api.faults.budgets = {"victim-1": "keep-it"}
            world.gang("preemptor", 2, labels=OWN, gpu=1)
            await until(lambda: "disruption budget" in world.why("preemptor"))
            await until(lambda: "disruption budget keep-it" in world.why("victim"))
            assert set(world.active("victim")) == {"victim-1"}
            world.api.faults.budgets = {}
            await is_bound(world, "preemptor", 2)
            assert not world.active("victim")

    asyncio.run(run())
