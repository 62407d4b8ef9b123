"""Single pods, gangs and queues together: messages, missing queues, and waking."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.kubernetes.api.names import RETRY
from aliquot.kubernetes.cluster import watches
from kubernetes.builders import node_json
from kubernetes.extender.replica import Replica, replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, led, played, running

IN_Q = {"aliquot.io/queue": "q"}
HOURS, MINUTES = {"aliquot.io/duration": "5h"}, {"aliquot.io/duration": "5m"}


def test_a_namespace_with_a_missing_queue_is_reported_without_any_queues() -> None:
    async def play() -> None:
        world = World(1)
        world.api.put("namespaces", {"metadata": {"name": "ns", "labels": IN_Q}})
        async with running(world):
            world.pod("single", gpu=1)
            await until(lambda: world.events("single"))
            reason, text = world.events("single")[0]
            assert reason == "InvalidQueue"
            assert "queue 'q' does not exist" in text
            world.queue("q")
            await until(lambda: "single" in world.bound())

    asyncio.run(play())


def test_queues_that_are_not_read_yet_do_not_count_as_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "QUEUE_SECONDS", 0.05)

    async def play() -> None:
        world = World(1)
        world.queue("q", limit={"gpus": 0})
        world.pod("single", gpu=1, labels=IN_Q)
        world.api.faults.refuse = lambda _, path: 503 if path.endswith("/queues") else None
        async with world.api.serving(), replica(world.api) as one:
            await until(lambda: len([1 for _, p in world.api.requests if "/queues" in p]) > 4)
            assert one.scheduler.why_not()
            world.api.faults.refuse = lambda *_: None
            await one.ready()
            answer = await one.filter(world.pods()["single"], "n0")
            assert not answer["NodeNames"]

    asyncio.run(play())


def test_a_cluster_without_queues_is_not_waited_for() -> None:
    async def play() -> None:
        world = World(1)
        world.api.faults.refuse = lambda _, path: 404 if path.endswith("/queues") else None
        async with world.api.serving(), led(world):
            world.pod("single", gpu=1)
            await until(lambda: "single" in world.bound())

    asyncio.run(play())


def test_single_pods_wait_behind_a_gang_at_their_queues_limit() -> None:
    async def play() -> None:
        world = World(4)
        world.queue("q", limit={"gpus": 2})
        async with running(world):
            for name in ("s0", "s1"):
                world.pod(name, gpu=1, labels=IN_Q)
            await until(lambda: len(world.bound()) == 2)
            world.gang("a", 2, gpu=1, labels=IN_Q)
            await until(lambda: "queue q may have 2 GPUs" in world.why("a"))
            world.pod("later", gpu=1, labels=IN_Q)
            world.delete("s0")
            behind = ("QueueFull", "ns/a comes before it, and waits for the limit of queue q")
            await until(lambda: behind in world.events("later"))
            world.pod("urgent", gpu=1, labels=IN_Q, spec={"priority": 9})
            await until(lambda: "urgent" in world.bound())
            world.delete("s1", "urgent")
            await is_bound(world, "a", 2)
            assert "later" not in world.bound()
            world.delete(*world.pods("a"))
            await until(lambda: "later" in world.bound())

    asyncio.run(play())


def test_the_last_of_many_waiting_pods_is_woken_for_backfill() -> None:
    async def play() -> None:
        world = World(2)
        async with world.api.serving(), replica(world.api) as one:
            await one.ready()
            async with world.scheduling(one):
                world.gang("first", 1)
                await is_bound(world, "first", 1)
                world.pod("gap", gpu=1, annotations=MINUTES)
                await until(lambda: "gap" in world.bound())
                world.gang("big", 2)
                await until(lambda: world.phase("big") == "Waiting")
            for number in range(15):
                world.pod(f"long{number}", gpu=1, annotations=HOURS)
            world.pod("short", gpu=1, annotations=MINUTES)
            for pod in world.pods().values():
                if not pod.spec.node_name and not pod.spec.scheduling_gates:
                    assert not (await one.filter(pod, "n0"))["NodeNames"]
            world.delete("gap")
            await until(lambda: RETRY in world.pods()["short"].metadata.annotations)
            woken = [n for n, pod in world.pods().items() if RETRY in pod.metadata.annotations]
            assert woken == ["short"]
            assert (await one.filter(world.pods()["short"], "n0"))["NodeNames"] == ["n0"]

    asyncio.run(play())


def test_backfilled_slices_delay_no_planned_start() -> None:
    async def play() -> None:
        world = World(1)
        async with running(world):
            world.pod("first", memory=160, core=50, annotations={"aliquot.io/duration": "1h"})
            await until(lambda: "first" in world.bound())
            world.gang("big", 1, memory=160, core=60)
            await until(lambda: world.phase("big") == "Waiting")
            planned = world.status("big")
            assert planned is not None
            for number in range(4):
                world.pod(f"long{number}", memory=8, core=15, annotations=HOURS)
            await until(lambda: {"long0", "long1"} & world.bound().keys())
            await until(
                lambda: all(
                    f"long{n}" in world.bound() or world.events(f"long{n}") for n in range(4)
                )
            )
            long = [name for name in world.bound() if name.startswith("long")]
            assert 15 * len(long) <= 40
            world.delete("first")
            await is_bound(world, "big", 1)

    asyncio.run(play())


def test_an_uncordoned_node_is_used_at_once() -> None:
    async def play() -> None:
        world = World(1)
        world.api.put("nodes", node_json("n0", spec={"unschedulable": True}))
        async with running(world) as one:
            world.gang("a", 1)
            await until(lambda: world.phase("a") in {"Waiting", "Refused"})
            changes = one.scheduler._changes
            seen = changes.count
            world.api.put("nodes", node_json("n0"))
            await until(lambda: changes.count > seen)
            await is_bound(world, "a", 1)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("queues", "why"),
    [
        (
            {"q": {"parent": "r"}, "r": {"parent": "q"}},
            "queue 'q' is below itself: q below r below q",
        ),
        ({"q": {"limit": {"gpus": 0}}}, "queue q may have 0 GPUs"),
    ],
    ids=["a circle", "a limit of zero"],
)
def test_a_queue_in_which_nothing_can_start_has_a_condition(
    queues: dict[str, dict[str, object]], why: str
) -> None:
    async def play(world: World, _: Replica) -> None:
        for name, spec in queues.items():
            world.queue(name, **spec)
        world.gang("a", 1, labels=IN_Q, gpu=1)
        await until(lambda: why in world.why("a"))
        assert world.phase("a") == "Refused"
        assert not world.bound()
        world.gang("other", 1)
        await is_bound(world, "other", 1)

    played(World(2), play)


def test_a_queue_with_a_quota_of_zero_borrows_all_it_uses() -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("none", quota={"gpus": 0})
        world.queue("own", quota={"gpus": 2})
        world.gang("guest", 2, labels={"aliquot.io/queue": "none"}, gpu=1)
        await is_bound(world, "guest", 2)
        world.gang("host", 2, labels={"aliquot.io/queue": "own"}, gpu=1)
        await is_bound(world, "host", 2)
        assert not world.bound("guest")

    played(World(2), play)


def test_a_queue_counts_single_pods_that_wait() -> None:
    def waiting(world: World) -> dict[str, object]:
        status = world.api.objects["queues", "", "q"].get("status", {})
        return dict(status.get("waiting", {}))

    async def play(world: World, _: Replica) -> None:
        world.queue("q", quota={"gpus": 1})
        world.pod("first", gpu=1, labels=IN_Q)
        await until(lambda: "first" in world.bound())
        for name in ("s0", "s1"):
            world.pod(name, gpu=1, labels=IN_Q)
        await until(lambda: waiting(world).get("pods") == 2)
        assert waiting(world)["since"]
        world.delete("first")
        await until(lambda: waiting(world).get("pods") == 1)

    played(World(1), play)


def test_a_gang_above_its_queues_limit_is_refused_until_the_limit_is_raised() -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 1})
        world.gang("a", 2, gpu=1, labels=IN_Q)
        await until(lambda: world.phase("a") == "Refused")
        assert world.why("a") == (
            "queue q may have 1 GPU; this gang asks for 2. Ask for less, or raise the limit"
        )
        world.gang("b", 1, gpu=1, labels=IN_Q)
        await is_bound(world, "b", 1)
        world.queue("q", limit={"gpus": 3})
        await is_bound(world, "a", 2)

    played(World(4), play)
