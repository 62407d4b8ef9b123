"""Queues are a boundary: namespaces that they do not accept, and labels that change later."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aliquot.kubernetes.gangs.controller import GangOptions, Gangs
from aliquot.kubernetes.gangs.lifecycle import Deadlines
from kubernetes.extender.replica import Replica, report
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, played

IN_Q, IN_R = {"aliquot.io/queue": "q"}, {"aliquot.io/queue": "r"}
ONE_GPU = {"gpus": 1}
ADMITTED_QUEUE = "aliquot.io/admitted-queue"


def a_world(gpus: int, **queues: dict[str, Any]) -> World:
    """A node with so many GPUs, and these queues."""
    world = World(gpus)
    for name, spec in queues.items():
        world.queue(name, **spec)
    return world


def relabel(world: World, name: str, **labels: str) -> None:
    """Somebody who may edit the pod gives it another queue."""
    body = json.loads(json.dumps(world.api.objects["pods", "ns", name]))
    body["metadata"]["labels"] = {f"aliquot.io/{key}": value for key, value in labels.items()}
    world.api.put("pods", body)


def status(world: World, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = world.api.objects["queues", "", queue].get("status", {})
    return found


def used(world: World, queue: str) -> str:
    return str(status(world, queue).get("used", {}).get("gpus", ""))


def waiting(world: World, queue: str) -> int:
    return int(status(world, queue).get("waiting", {}).get("pods", -1))


async def another_pass(world: World) -> None:
    """Another pod has come, run and gone: queues were counted since."""
    world.pod("other", gpu=1, labels=IN_R)
    await until(lambda: "other" in world.bound())
    await until(lambda: used(world, "r") == "1")
    world.delete("other")
    await until(lambda: used(world, "r") == "0")


# --- spec.namespaces ------------------------------------------------------------------------------


def test_a_pod_of_another_namespace_is_refused_and_never_counted() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("guest", gpu=1, labels=IN_Q)
        await until(lambda: world.events("guest"))
        reason, text = world.events("guest")[0]
        assert reason == "InvalidQueue"
        assert text.startswith("queue 'q' does not accept pods of namespace 'ns'")
        assert "theirs" not in text
        await another_pass(world)
        assert "guest" not in world.bound()
        assert (used(world, "q"), waiting(world, "q")) == ("0", 0)
        world.queue("q", namespaces=["theirs", "ns"])
        await until(lambda: "guest" in world.bound())
        await until(lambda: used(world, "q") == "1")

    played(a_world(2, q={"namespaces": ["theirs"]}, r={}), play)


def test_a_gang_of_another_namespace_is_refused_and_never_counted() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("guests", 2, gpu=1, labels=IN_Q)
        text = "queue 'q' does not accept pods of namespace 'ns': queue 'top' is above it"
        await until(lambda: text in world.why("guests"))
        assert world.phase("guests") == "Refused"
        await until(lambda: any(text in message for _, message in world.events("guests-0")))
        await another_pass(world)
        assert (used(world, "q"), waiting(world, "q")) == ("0", 0)
        world.queue("q", parent="top", namespaces=["ns"])
        await is_bound(world, "guests", 2)

    played(a_world(3, top={"namespaces": ["theirs"]}, q={"parent": "top"}, r={}), play)


def test_a_gang_whose_pods_name_several_queues_is_refused() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("mixed", 2, pods=1, gpu=1, labels=IN_R)
        world.gang("mixed", 2, pods=1, first=1, gpu=1, labels=IN_Q)
        await until(lambda: "its pods name several queues: q, r." in world.why("mixed"))
        relabel(world, "mixed-1", queue="r")
        await is_bound(world, "mixed", 2)

    played(a_world(2, q={"limit": {"gpus": 0}}, r={}), play)


# --- labels that change later ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pod", "gang"])
def test_a_running_pod_stays_in_the_queue_that_it_was_admitted_under(kind: str) -> None:
    async def play(world: World, _: Replica) -> None:
        name = "mine" if kind == "pod" else world.gang("mine", 1, gpu=1, labels=IN_Q)[0]
        if kind == "pod":
            world.pod(name, gpu=1, labels=IN_Q)
        await until(lambda: name in world.bound() and used(world, "q") == "1")
        record = world.pods()[name].metadata.annotations[ADMITTED_QUEUE]
        assert record == f"q/{world.pods()[name].metadata.uid}"
        relabel(world, name, queue="r")
        world.pod("second", gpu=1, labels=IN_Q)
        await until(lambda: world.events("second"))
        assert world.events("second")[0][0] == "QueueFull"
        await another_pass(world)
        assert used(world, "q") == "1"
        assert "second" not in world.bound()
        world.delete(name)
        await until(lambda: "second" in world.bound())

    played(a_world(3, q={"limit": ONE_GPU}, r={}), play)


def test_a_running_pod_cannot_become_a_placeholder() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("mine", gpu=1, labels=IN_Q)
        await until(lambda: used(world, "q") == "1")
        relabel(world, "mine", queue="q", placeholder="true")
        await another_pass(world)
        assert used(world, "q") == "1"

    played(a_world(2, q={"limit": ONE_GPU}, r={}), play)


def test_a_running_pod_stays_when_its_namespace_or_the_list_changes() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("mine", gpu=1)
        await until(lambda: used(world, "q") == "1")
        world.queue("q", namespaces=["theirs"])
        world.api.put("namespaces", {"metadata": {"name": "ns", "labels": IN_R}})
        await another_pass(world)
        assert used(world, "q") == "1"

    played(a_world(2, q={"namespaces": ["ns"]}, r={}), play)


def test_a_copied_record_puts_no_pod_into_a_queue() -> None:
    async def play(world: World, _: Replica) -> None:
        forged = {ADMITTED_QUEUE: "q/uid-guessed"}
        world.pod("past", gpu=1, annotations=forged, spec={"nodeName": "n0"}, labels=IN_Q)
        world.pod("waits", gpu=1, annotations=forged, labels=IN_R)
        await until(lambda: "waits" in world.bound())
        await until(lambda: used(world, "r") == "1")
        record = world.pods()["waits"].metadata.annotations[ADMITTED_QUEUE]
        assert record == f"r/{world.pods()['waits'].metadata.uid}"
        assert used(world, "q") == "0"

    played(a_world(2, q={"namespaces": ["theirs"]}, r={}), play)


def keep_gates_closed(world: World) -> None:
    """kube-scheduler never asks by itself."""
    world.offered.clear()
    world.api.faults.refuse = lambda method, path: (
        503 if method == "PATCH" and "/pods/" in path else None
    )


async def relabelled(world: World, name: str, **labels: str) -> None:
    """Give a pod other labels, and wait until the scheduler has seen them."""
    relabel(world, name, **labels)
    version = world.pods()[name].metadata.resource_version
    watch = world.leader.scheduler._watches.pods
    await until(lambda: (one := watch.get(name, "ns")) and one.metadata.resource_version == version)


def test_a_pod_that_changes_its_queue_while_it_is_bound_is_not_bound() -> None:
    async def play(world: World, one: Replica) -> None:
        world.offered.clear()  # kube-scheduler asks when the test says so
        world.pod("other", memory=200, core=60, labels=IN_R)
        world.pod("mine", memory=200, core=50, labels=IN_Q)
        other, mine = world.pods()["other"], world.pods()["mine"]
        assert await one.bind(other, "n0") == ""
        assert (await one.filter(mine, "n0"))["NodeNames"] == ["n0"]
        binding = asyncio.create_task(one.bind(mine, "n0"))  # waits until the node reports `other`
        await relabelled(world, "mine", queue="r")
        assert not binding.done()
        report(world.api, "other", "n0")
        assert "it was in queue 'q', and is in 'r' now" in await binding
        assert "mine" not in world.bound()

    played(a_world(2, q={}, r={}), play)


def test_a_member_that_changes_its_queue_while_it_is_bound_is_not_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = []

    async def nothing(_: Gangs) -> None:
        """The controller has no time."""
        passes.append("begun")

    async def play(world: World, one: Replica) -> None:
        keep_gates_closed(world)
        world.gang("mine", 1, gpu=1, labels=IN_Q)
        await until(lambda: world.phase("mine") == "Reserved")
        monkeypatch.setattr(Gangs, "look", nothing)
        world.pod("other", gpu=1)  # a change, so that there is another pass
        await until(lambda: passes)
        await relabelled(world, "mine-0", queue="r")
        text = "it was reserved in queue 'q', and is in 'r' now"
        assert text in await one.bind(world.pods()["mine-0"], "n0")
        assert "mine-0" not in world.bound()

    patient = GangOptions(times=Deadlines(grace=60.0))
    played(a_world(1, q={}, r={}), play, gangs=patient)


def test_a_reserved_gang_that_changes_its_queue_is_planned_again() -> None:
    async def play(world: World, _: Replica) -> None:
        keep_gates_closed(world)
        world.gang("mine", 1, gpu=1, labels=IN_Q)
        await until(lambda: world.phase("mine") == "Reserved")
        relabel(world, "mine-0", queue="r")
        await until(lambda: "queue r may have 0 GPUs" in world.why("mine"))
        assert world.phase("mine") == "Refused"

    patient = GangOptions(times=Deadlines(grace=60.0))
    played(a_world(1, q={}, r={"limit": {"gpus": 0}}), play, gangs=patient)
