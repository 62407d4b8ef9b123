"""What people are told: why a gang does not start, and what is wrong with one that did."""

from __future__ import annotations

import asyncio
import json

import pytest

from kubernetes.builders import node_json
from kubernetes.extender.replica import Replica, replica
from kubernetes.fake_api import until
from kubernetes.gangs.held_decisions import HeldDecision
from kubernetes.gangs.world import World, is_bound, led, played


@pytest.mark.parametrize(
    ("size", "pods", "annotations", "phase", "why"),
    [
        (9, 9, {}, "Refused", "it asks for 9 GPUs, and there are 4 in the cluster"),
        (2, 3, {}, "Refused", "3 pods belong to it, and they say that it has 2"),
        (2, 2, {"aliquot.io/gang-size": "x"}, "Refused", "aliquot.io/gang-size is 'x'"),
        (2, 2, {"aliquot.io/compute": "lots"}, "Refused", "the annotation aliquot.io/compute"),
        (2, 2, {"aliquot.io/duration": "2 weeks"}, "Refused", "aliquot.io/duration is '2 weeks'"),
    ],
)
def test_a_gang_that_cannot_start_is_refused_at_once(
    size: int, pods: int, annotations: dict[str, str], phase: str, why: str
) -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", size, pods=pods, annotations=annotations)
        await until(lambda: why in world.why("a"))
        assert world.phase("a") == phase
        await until(lambda: world.events("a-0"))
        (reason, message) = world.events("a-0")[-1]
        assert reason == phase
        assert why in message
        assert not world.bound()

    played(World(2, 2), play)


def test_the_reason_names_taints_that_exclude_a_gang() -> None:
    async def play(world: World, _: Replica) -> None:
        taint = {"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}
        world.api.put("nodes", node_json("n0", spec={"taints": [taint]}))
        world.gang("a", 2)
        await until(lambda: world.phase("a") == "Refused")
        assert "there are 0 on the nodes that it may go to" in world.why("a")
        assert "do not tolerate: nvidia.com/gpu=yes:NoSchedule." in world.why("a")
        assert "spec.tolerations" in world.why("a")
        world.delete(*world.pods("a"))
        may = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
        world.gang("b", 2, gpu=1, spec=may)
        await is_bound(world, "b", 2)
        world.gang("c", 9, gpu=1, spec=may)
        await until(lambda: world.phase("c") == "Refused")
        assert world.why("c") == "it asks for 9 GPUs, and there are 2 in the cluster"

    played(World(2), play)


def test_a_gang_behind_one_that_starts_is_told_what_is_free() -> None:
    async def run() -> None:
        world = World(4)
        world.gang("a", 3)
        world.gang("b", 3)
        async with world.api.serving(), led(world):
            await until(lambda: "Waiting" in {world.phase("a"), world.phase("b")})
            first, other = ("a", "b") if world.phase("b") == "Waiting" else ("b", "a")
            assert "3 GPUs requested; 1 free; planned for about" in world.why(other)
            assert f"after ns/{first}" in world.why(other)

    asyncio.run(run())


def test_a_gang_whose_pods_terminate_is_not_refused() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 2)
        await is_bound(world, "a", 2)
        world.begin_to_end(*world.pods("a"))
        await until(lambda: world.why("a") == "its pods are ending")
        assert world.phase("a") == "Gathering"

    played(World(2), play)


def test_the_status_says_that_another_scheduler_bound_a_gang() -> None:
    async def run() -> None:
        world = World(2)
        async with world.api.serving(), replica(world.api) as one:
            await one.ready()
            world.gang("a", 2)
            await until(lambda: world.phase("a") == "Reserved")
            for name in world.pods("a"):
                body = json.loads(json.dumps(world.api.objects["pods", "ns", name]))
                world.api.put("pods", {**body, "spec": {**body["spec"], "nodeName": "n0"}})
            await until(lambda: world.phase("a") == "Bound")
            assert "2 of its 2 pods have nodes that were not planned" in world.why("a")
            assert "Write schedulerName: aliquot" in world.why("a")
            await until(lambda: "Bound" in dict(world.events("a-0")))

    asyncio.run(run())


def test_a_gang_that_is_bound_as_planned_has_no_reason() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 2)
        await is_bound(world, "a", 2)
        assert not world.why("a")

    played(World(2), play)


def test_the_reason_names_a_missing_queue() -> None:
    async def play(world: World, _: Replica) -> None:
        body = {"metadata": {"labels": {"aliquot.io/queue": "nowhere"}}}
        world.gang("a", 1)
        pod = world.api.objects["pods", "ns", "a-0"]
        world.api.put("pods", {**pod, "metadata": {**pod["metadata"], **body["metadata"]}})
        await until(lambda: "queue 'nowhere' does not exist" in world.why("a"))

    played(World(0), play)


def test_kube_scheduler_is_told_that_a_gang_was_not_planned_yet(held: HeldDecision) -> None:
    async def play(world: World, one: Replica) -> None:
        held.hold()
        world.gang("a", 1)
        await held.decided()
        world.gang("b", 1, gated=False)
        await until(lambda: one.scheduler._watches.pods.get("b-0", "ns") is not None)
        answer = await one.filter(world.pods()["b-0"], "n0")
        told = answer["FailedAndUnresolvableNodes"]["n0"]
        assert told == "gang ns/b is gathering: it was not planned yet"
        held.go_on()
        await is_bound(world, "b", 1)

    played(World(2), play)
