"""Single pods, as of Deployments, get their queue's quota back and preempt lower priorities."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aliquot.kubernetes.api.names import PREEMPTS, RETRY
from aliquot.kubernetes.api.objects import PODS
from kubernetes import chart
from kubernetes.extender.replica import Replica
from kubernetes.fake_api import as_json, until
from kubernetes.gangs.world import World, is_bound, led, played, running

OWN, GUEST = {"aliquot.io/queue": "own"}, {"aliquot.io/queue": "guest"}
SEVERAL_KINDS = [
    {"name": name, "resources": {"limits": {f"aliquot.io/{resource}": "1"}}}
    for name, resource in (("main", "gpu"), ("side", "vcuda-memory"))
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes" / "service.yaml"


def set_quotas(world: World, own: int, guest: int = 0) -> None:
    world.queue("own", quota={"gpus": own})
    world.queue("guest", quota={"gpus": guest})


def preempting(world: World) -> set[str]:
    return {n for n, one in world.pods().items() if PREEMPTS in one.metadata.annotations}


def evictions(world: World) -> int:
    return sum(path.endswith("/eviction") for _, path in world.api.requests)


async def guests_run(world: World, count: int, **asked: Any) -> list[str]:
    """Single pods of the other queue."""
    names = [f"guest-{number}" for number in range(count)]
    for name in names:
        world.pod(name, gpu=1, labels=GUEST, **asked)
    await until(lambda: world.bound().keys() >= set(names))
    return names


def told(world: World, name: str, reason: str) -> list[str]:
    return [text for why, text in world.events(name) if why == reason]


def test_a_single_pod_reclaims_its_queues_quota() -> None:
    async def play(world: World, _: Replica) -> None:
        set_quotas(world, own=1)
        world.gang("borrower", 1, gpu=1, labels=GUEST)
        await is_bound(world, "borrower", 1)
        world.pod("service", gpu=1, labels=OWN)
        await until(lambda: world.bound() == {"service": "n0"})
        (advice,) = told(world, "service", "InsufficientGPUs")
        assert "The quota of queue own covers it, so it preempts what other queues" in advice
        (why,) = told(world, "service", "Preempts")
        right = "since queue guest borrows from the quota of queue own"
        assert why == (f"starts in place of ns/borrower, {right}: 0.00 GPU hours of work are lost")
        assert told(world, "borrower-0", "Preempted") == [
            "preempted for ns/pod.service: queue guest borrows from the quota of queue own"
        ]

    played(World(1), play)


def test_all_replicas_of_a_scale_up_reclaim_and_no_pod_is_evicted_for_nothing() -> None:
    """The queue's quota is three: the fourth replica waits, and two guests stay."""

    async def play(world: World, _: Replica) -> None:
        set_quotas(world, own=3)
        await guests_run(world, 5)
        world.pod("web-0", gpu=1, labels=OWN)
        await until(lambda: "web-0" in world.bound())
        for number in (1, 2, 3):
            world.pod(f"web-{number}", gpu=1, labels=OWN)
        await until(lambda: world.held("own") == 3)
        assert world.held("guest") == 2
        assert len({"web-1", "web-2", "web-3"} & world.bound().keys()) == 2
        assert evictions(world) == 3

    played(World(2, 3), play)


def test_a_higher_priority_preempts_a_single_pod_of_its_queue() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("low", gpu=1, spec={"priority": 1})
        world.pod("high", gpu=1, spec={"priority": 9})
        await until(lambda: len(world.bound()) == 2)
        world.pod("middle", gpu=1, spec={"priority": 5})
        await until(lambda: world.bound().keys() == {"high", "middle"})
        assert told(world, "low", "Preempted") == [
            "preempted for ns/pod.middle, whose priority 5 is above 1"
        ]
        (why,) = told(world, "middle", "Preempts")
        assert "in place of pod ns/low, since its priority 5 is above 1" in why

    played(World(2), play)


def test_slices_reclaim_too() -> None:
    async def play() -> None:
        world = World(1)
        set_quotas(world, own=1)
        async with running(world):
            for name in ("a", "b"):
                world.pod(name, memory=160, core=50, labels=GUEST)
            await until(lambda: len(world.bound()) == 2)
            world.pod("service", memory=100, core=40, labels=OWN)
            await until(lambda: "service" in world.bound())
            assert len(world.bound()) == 2

    asyncio.run(play())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"gpu": 1, "spec": {"preemptionPolicy": "Never"}}, "its preemptionPolicy is Never"),
        (
            {"spec": {"containers": SEVERAL_KINDS}},
            "several of its containers ask for GPUs, and not all for whole ones",
        ),
    ],
    ids=["its policy", "several kinds"],
)
def test_a_pod_that_may_not_preempt_waits(asked: dict[str, Any], why: str) -> None:
    async def play(world: World, one: Replica) -> None:
        set_quotas(world, own=2)
        guests = await guests_run(world, 2)
        world.pod("service", labels=OWN, **asked)
        await until(lambda: told(world, "service", "InsufficientGPUs"))
        (advice,) = told(world, "service", "InsufficientGPUs")
        assert advice.endswith(f"covers it, but it does not preempt: {why}.")
        await one.scheduler._gangs.look()
        assert not preempting(world)
        world.delete(*guests)
        await until(lambda: "service" in world.bound())
        assert not evictions(world)

    played(World(2), play)


def test_a_pod_beyond_its_queues_quota_preempts_nobody() -> None:
    async def play(world: World, one: Replica) -> None:
        set_quotas(world, own=1, guest=1)
        await guests_run(world, 1)
        world.pod("first", gpu=1, labels=OWN)
        await until(lambda: "first" in world.bound())
        world.pod("second", gpu=1, labels=OWN)
        await until(lambda: told(world, "second", "InsufficientGPUs"))
        await one.scheduler._gangs.look()
        assert not preempting(world)
        assert not evictions(world)

    played(World(2), play)


def test_nobody_is_evicted_on_a_node_that_kube_scheduler_does_not_offer() -> None:
    """The guest on n0 would be the cheaper victim, but n0 has no CPU for the service."""

    async def play(world: World, _: Replica) -> None:
        set_quotas(world, own=2)
        world.pod("long", gpu=1, labels=GUEST, spec={"nodeSelector": {"kubernetes.io/os": "n1"}})
        world.offered = {"n1"}
        await until(lambda: "long" in world.bound())
        world.offered = {"n0"}
        world.pod("short", gpu=1, labels=GUEST)
        await until(lambda: "short" in world.bound())
        world.offered = {"n1"}
        world.pod("service", gpu=1, labels=OWN)
        await until(lambda: "service" in world.bound())
        assert world.bound() == {"short": "n0", "service": "n1"}
        assert evictions(world) == 1

    played(World(1, 1), play)


# --- disruption budgets ---------------------------------------------------------------------------


def put_budget(world: World, allowed: int, labels: dict[str, str]) -> None:
    """A budget of pods with these labels, as the API server counts it."""
    world.api.put(
        "poddisruptionbudgets",
        {
            "metadata": {"name": "kept", "namespace": "ns"},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed},
        },
    )


def test_a_pod_that_a_budget_protects_is_not_chosen() -> None:
    async def play(world: World, _: Replica) -> None:
        set_quotas(world, own=1)
        for name, labels in (("a", {"app": "db"}), ("b", {"app": "batch"})):
            world.pod(name, gpu=1, labels={**GUEST, **labels})
        await until(lambda: len(world.bound()) == 2)
        put_budget(world, 0, {"app": "db"})
        world.pod("service", gpu=1, labels=OWN)
        await until(lambda: "service" in world.bound())
        assert world.bound().keys() == {"a", "service"}
        assert evictions(world) == 1

    played(World(2), play)


def test_nobody_is_evicted_if_a_budget_keeps_one_of_two_pods_that_are_in_the_way() -> None:
    """The service needs both GPUs. The budget allows one eviction, then two."""

    async def play(world: World, _: Replica) -> None:
        set_quotas(world, own=2)
        put_budget(world, 1, GUEST)
        await guests_run(world, 2)
        world.pod("service", gpu=2, labels=OWN)
        why = "disruption budgets protect pod ns/guest-0, pod ns/guest-1 from eviction"
        await until(lambda: why in world.why("pod.service"))
        assert not evictions(world)
        put_budget(world, 2, GUEST)
        await until(lambda: world.bound() == {"service": "n0"})

    played(World(2), play)


# --- kube-scheduler's own preemption --------------------------------------------------------------


async def may_evict(
    world: World, one: Replica, pod: str, node: str, *victims: str, violations: int = 0
) -> bool:
    """Whether kube-scheduler may evict these pods, which are in the way of a pod's CPU."""
    pods = world.pods()
    uids = [{"UID": pods[name].metadata.uid} for name in victims]
    asked = {node: {"Pods": uids, "NumPDBViolations": violations}}
    body = {"Pod": as_json(PODS, pods[pod]), "NodeNameToMetaVictims": asked}
    answer = (await one.post("/preempt", body)).json()
    return node in answer["NodeNameToMetaVictims"]


def test_kube_scheduler_evicts_no_pod_whose_gpus_are_covered_by_a_quota() -> None:
    """The guest's priority is lower, and its GPU is its own queue's. The second GPU is free."""

    async def play(world: World, one: Replica) -> None:
        set_quotas(world, own=1, guest=1)
        await guests_run(world, 1)
        world.offered = set()
        world.pod("service", gpu=1, labels=OWN, spec={"priority": 9})
        world.pod("friend", gpu=1, labels=GUEST, spec={"priority": 9})
        await until(lambda: len(one.scheduler._view.workloads.pods) == 3)
        assert not await may_evict(world, one, "service", "n0", "guest-0")
        assert await may_evict(world, one, "friend", "n0", "guest-0")
        assert not await may_evict(world, one, "friend", "n0", "guest-0", violations=1)

    played(World(2), play)


def test_kube_scheduler_evicts_no_part_of_a_gang() -> None:
    async def play(world: World, one: Replica) -> None:
        (member,) = world.gang("gang", 1)
        await is_bound(world, "gang", 1)
        world.offered = set()
        world.pod("service", gpu=1, spec={"priority": 9})
        await until(lambda: len(one.scheduler._view.workloads.pods) == 2)
        assert not await may_evict(world, one, "service", "n0", member)

    played(World(2), play)


def test_a_pod_without_cpu_and_gpus_preempts_by_the_usual_decision() -> None:
    """kube-scheduler offers no node, and would evict the guest itself."""

    async def play(world: World, one: Replica) -> None:
        set_quotas(world, own=1)
        (guest,) = await guests_run(world, 1)
        world.offered = set()
        world.pod("service", gpu=1, labels=OWN, spec={"priority": 9})
        await until(lambda: len(one.scheduler._view.workloads.pods) == 2)
        assert not await may_evict(world, one, "service", "n0", guest)
        await until(lambda: preempting(world))
        assert not await may_evict(world, one, "service", "n0", guest)
        await until(lambda: guest not in world.bound())
        world.pod("cpu")
        await until(lambda: world.phase("pod.service") == "Reserved")
        await until(lambda: RETRY in world.pods()["service"].metadata.annotations)
        assert await may_evict(world, one, "service", "n0", "cpu")
        world.offered = {"n0"}
        await until(lambda: "service" in world.bound())

    played(World(1), play)


# --- another leader -------------------------------------------------------------------------------


def test_the_next_leader_goes_on_with_a_single_pods_reservation() -> None:
    async def play() -> None:
        world = World(1)
        set_quotas(world, own=1)
        async with world.api.serving():
            async with led(world):
                await guests_run(world, 1)
                is_dead = world.dies_after(0)
                world.pod("service", gpu=1, labels=OWN)
                await until(is_dead)
            assert preempting(world) == {"service"}
            world.revive()
            async with led(world):
                await until(lambda: world.bound() == {"service": "n0"})

    asyncio.run(play())


def test_a_copied_annotation_makes_no_gang() -> None:
    async def play(world: World, _: Replica) -> None:
        world.pod("copy", gpu=1, annotations={PREEMPTS: "the UID of another pod"})
        await until(lambda: "copy" in world.bound())
        assert world.status("pod.copy") is None

    played(World(1), play)


def test_the_example_reclaims_what_a_training_has_borrowed() -> None:
    """Its queue lends both GPUs of the node, and gets both back."""
    queue, deployment = chart.objects(EXAMPLE.read_text("utf-8"))
    template, replicas = deployment["spec"]["template"], deployment["spec"]["replicas"]
    assert replicas == queue["spec"]["quota"]["gpus"]

    async def play(world: World, _: Replica) -> None:
        world.queue(queue["metadata"]["name"], **queue["spec"])
        world.gang("training", replicas, gpu=1)
        await is_bound(world, "training", replicas)
        for number in range(replicas):
            meta = {**template["metadata"], "name": f"web-{number}", "namespace": "ns"}
            world.api.put("pods", {"metadata": meta, "spec": template["spec"]})
        await until(lambda: world.held("services") == replicas)
        assert not world.bound("training")

    played(World(replicas), play)
