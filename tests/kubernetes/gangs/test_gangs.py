"""Gangs from their pods to their nodes: over HTTP, with an API server that keeps the truth."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import structlog

from aliquot.kubernetes.api.passes import PASS_SECONDS
from aliquot.kubernetes.gangs import state
from aliquot.kubernetes.gangs.controller import GangOptions
from aliquot.kubernetes.gangs.lifecycle import Deadlines
from kubernetes.builders import GPU_BYTES, held, make_node, make_pod, node_json
from kubernetes.extender.replica import Replica, put_node, replica
from kubernetes.fake_api import until
from kubernetes.gangs.world import SOON, World, is_bound, led, played, running

GPU = "aliquot.io/gpu"


@pytest.mark.parametrize("gated", [True, False])
def test_a_gang_starts_when_all_its_pods_exist(gated: bool) -> None:  # noqa: FBT001
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 3, pods=2, gated=gated)
        await until(lambda: world.phase("a") == "Gathering")
        assert world.why("a") == "2 of its 3 pods exist"
        assert not world.bound("a")
        world.gang("a", 3, pods=1, first=2, gated=gated)
        await is_bound(world, "a", 3)
        found = world.status("a")
        assert found is not None
        assert found.spec.size == 3
        assert {one.node for one in found.status.members} == set(world.bound("a").values())
        assert found.status.topology == "one node"

    played(World(2, 4), play)


def test_a_small_gang_is_backfilled_before_a_large_one() -> None:
    async def play(world: World, _: Replica) -> None:
        hour, minutes = {"aliquot.io/duration": "1h"}, {"aliquot.io/duration": "10m"}
        world.gang("first", 2, annotations=hour)
        await is_bound(world, "first", 2)
        world.gang("big", 4, annotations=hour)
        await until(lambda: world.phase("big") == "Waiting")
        assert "4 GPUs requested; 2 free; planned for about" in world.why("big")
        assert "after ns/first" in world.why("big")
        world.gang("small", 2, annotations=minutes)
        await is_bound(world, "small", 2)
        assert not world.bound("big")
        world.delete("small-0", "small-1")
        await until(lambda: world.status("small") is None)
        assert not world.bound("big")
        world.delete("first-0", "first-1")
        await is_bound(world, "big", 4)

    played(World(4), play)


def test_no_member_gets_a_gpu_weaker_than_asked() -> None:
    async def play(world: World, _: Replica) -> None:
        put_node(world.api, make_node("n0", 4, model="Tesla T4"))
        world.gang("strong", 2, annotations={"aliquot.io/min-strength": "100"})
        await is_bound(world, "strong", 2)
        assert set(world.bound("strong").values()) == {"n1"}
        world.gang("next", 1, annotations={"aliquot.io/min-strength": "100"})
        await until(lambda: world.phase("next") == "Waiting")
        world.gang("never", 1, annotations={"aliquot.io/min-strength": "300"})
        await until(lambda: "asks for strength 300" in world.why("never"))
        assert "the strongest GPU has 286.3; ask for less" in world.why("never")
        assert not world.bound("next")
        world.delete("strong-0", "strong-1")
        await is_bound(world, "next", 1)
        assert set(world.bound("next").values()) == {"n1"}

    played(World(4, 2), play)


def test_work_that_would_delay_a_planned_start_waits() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("first", 2, annotations={"aliquot.io/duration": "1h"})
        await is_bound(world, "first", 2)
        world.gang("big", 4)
        await until(lambda: world.phase("big") == "Waiting")
        world.gang("long", 2, annotations={"aliquot.io/duration": "5h"})
        await until(lambda: world.phase("long") == "Waiting")
        world.pod("single", gpu=1, annotations={"aliquot.io/duration": "5h"})
        await until(lambda: world.events("single"))
        reason, why = world.events("single")[0]
        assert reason == "KeptForGangs"
        assert why == (
            "what is free is kept for the planned starts of gangs (kubectl get gangs -A); a pod"
            " that declares a short aliquot.io/duration may start before them"
        )
        world.pod("short", gpu=1, annotations={"aliquot.io/duration": "5m"})
        await until(lambda: "short" in world.bound())
        assert set(world.bound()) == {"first-0", "first-1", "short"}

    played(World(4), play)


def test_a_namespace_whose_pods_overrun_does_not_backfill_by_its_word() -> None:
    """Otherwise pods that declare a minute and run for days hold up every gang for ever."""

    async def play(world: World, _: Replica) -> None:
        minute = {"aliquot.io/duration": "1m"}
        world.gang("first", 1, annotations={"aliquot.io/duration": "30m"})
        await is_bound(world, "first", 1)
        world.gang("big", 4)
        await until(lambda: world.phase("big") == "Waiting")
        world.pod("liar", gpu=1, annotations=minute)
        await until(lambda: "liar" in world.bound())
        liar = world.api.objects["pods", "ns", "liar"]
        began = datetime.now(UTC) - timedelta(hours=1)
        status = {"phase": "Running", "startTime": began.strftime("%Y-%m-%dT%H:%M:%SZ")}
        world.api.put("pods", {**liar, "status": status})
        seen = world.leader.scheduler._watches.pods
        await until(lambda: (one := seen.get("liar", "ns")) and one.status.start_time)
        name = "liar"
        for again in ("again", "later"):
            world.pod(again, gpu=1, annotations=minute)
            await until(partial(world.events, again))
            reason, message = world.events(again)[0]
            assert reason == "KeptForGangs"
            assert "Its aliquot.io/duration of 1m does not count" in message
            world.delete(name)  # that the liar is gone proves nothing about the next one
            name = again
        assert set(world.bound()) == {"first-0"}

    played(World(4), play)


def test_two_gangs_that_could_deadlock_run_one_after_the_other() -> None:
    async def play(world: World, _: Replica) -> None:
        for number in range(3):
            for name in ("a", "b"):
                world.gang(name, 3, pods=1, first=number, gated=False)
        await until(lambda: len(world.bound()) == 3)
        first, other = ("a", "b") if world.bound("a") else ("b", "a")
        assert len(world.bound(first)) == 3
        await until(lambda: world.phase(other) == "Waiting")
        world.delete(*world.pods(first))
        await is_bound(world, other, 3)

    played(World(2, 2), play)


def test_a_pod_group_says_how_many_must_start_together() -> None:
    async def play(world: World, _: Replica) -> None:
        for number in range(3):
            world.pod(f"p{number}", gpu=1)
            body = world.api.objects["pods", "ns", f"p{number}"]
            body["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "pg"}
            world.api.put("pods", body)
        await until(lambda: "PodGroup 'pg', which knows its size, does not" in world.why("pg"))
        group = {"metadata": {"name": "pg", "namespace": "ns"}, "spec": {"minMember": 3}}
        world.api.put("podgroups", group)
        await until(lambda: len(world.bound()) == 3)
        found = world.status("pg")
        assert found is not None
        assert found.metadata.owner_references[0].kind == "PodGroup"

    played(World(4), play)


def test_the_source_of_a_bound_gang_stays_known() -> None:
    async def run() -> None:
        world = World(3)
        async with world.api.serving():
            for later in ("b", "c"):  # a pass of this leader, and of the next one
                async with led(world):
                    if later == "b":
                        world.gang("a", 1, group=True)
                        await is_bound(world, "a", 1)
                    world.gang(later, 1)
                    await is_bound(world, later, 1)
                    found = world.status("a")
                    assert found is not None
                    assert found.spec.size == 1
                    assert found.metadata.owner_references[0].kind == "PodGroup"

    asyncio.run(run())


def test_a_pod_may_change_its_gang() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 1, gpu=9)
        await until(lambda: world.phase("a") == "Refused")
        body = world.api.objects["pods", "ns", "a-0"]
        body["metadata"]["annotations"]["aliquot.io/gang"] = "b"
        world.api.put("pods", body)
        await until(lambda: world.phase("b") == "Refused" and world.status("a") is None)

    played(World(1), play)


def test_a_gang_waits_for_foreign_gates() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("a", 1)
        body = world.api.objects["pods", "ns", "a-0"]
        body["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
        world.api.put("pods", body)
        await until(lambda: "hold its pods back: kueue.x-k8s.io/admission" in world.why("a"))
        body = world.api.objects["pods", "ns", "a-0"]
        body["spec"]["schedulingGates"].pop()
        world.api.put("pods", body)
        await is_bound(world, "a", 1)

    played(World(1), play)


def test_a_rejected_node_is_not_tried_again() -> None:
    async def play(world: World, _: Replica) -> None:
        world.offered = {"n0", "n2"}
        world.gang("a", 4)
        await is_bound(world, "a", 4)
        assert set(world.bound("a").values()) == {"n0", "n2"}

    played(World(2, 4, 2), play)


def test_members_that_do_not_arrive_lose_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "FIRST_PAUSE", 0.1)

    async def run() -> None:
        world = World(4)
        async with world.api.serving(), replica(world.api, gangs=SOON) as one:
            await one.ready()
            world.gang("a", 4)
            await until(lambda: world.phase("a") == "Reserved")
            await until(lambda: "did not arrive in time" in world.why("a"))
            async with world.scheduling(one):
                await is_bound(world, "a", 4)
        world.check_gpus()

    asyncio.run(run())


@pytest.mark.parametrize("what", ["pod", "gpu", "node"])
def test_a_gang_is_planned_again_if_a_place_is_lost_before_the_bind(what: str) -> None:
    async def run() -> None:
        world = World(2, 2)
        async with world.api.serving(), replica(world.api) as one:
            await one.ready()
            world.gang("a", 2)
            await until(lambda: world.phase("a") == "Reserved")
            node = places(world, "a").pop()
            if what == "pod":
                world.delete("a-0")
                await until(lambda: world.phase("a") == "Gathering")
                world.gang("a", 2, pods=1)
            elif what == "gpu":
                put_node(world.api, make_node(node, 2, healthy=False))
            else:
                world.api.delete("gpunodes", node)
            await until(lambda: what == "pod" or node not in places(world, "a"))
            async with world.scheduling(one):
                await is_bound(world, "a", 2)
        world.check_gpus()

    asyncio.run(run())


def places(world: World, gang: str) -> set[str]:
    found = world.status(gang)
    assert found is not None
    return {one.node for one in found.status.members}


def test_a_new_leader_goes_on_with_a_reservation() -> None:
    async def run() -> None:
        world = World(2, 2)
        async with world.api.serving():
            async with replica(world.api) as first:
                await first.ready()
                world.gang("a", 3)
                await until(lambda: world.phase("a") == "Reserved")
                await until(
                    lambda: not any(one.spec.scheduling_gates for one in world.pods("a").values())
                )
            found = world.status("a")
            assert found is not None
            async with replica(world.api) as second:
                await second.ready()
                single = world.pods("a")["a-0"]
                answer = await second.filter(single, "n0", "n1")
                assert answer["NodeNames"] == [found.status.members[0].node]
                async with world.scheduling(second):
                    await is_bound(world, "a", 3)
            assert world.bound("a") == {one.pod: one.node for one in found.status.members}

    asyncio.run(run())


def test_an_incomplete_gang_is_evicted() -> None:
    async def play(world: World, _: Replica) -> None:
        def refuse(_: str, path: str) -> int | None:
            return 403 if path.endswith("a-1/binding") else None

        world.api.faults.refuse = refuse
        world.gang("a", 2)
        await until(lambda: len(world.bound("a")) == 1)
        await until(lambda: not world.bound("a"))
        world.api.faults.refuse = lambda *_: None
        assert not world.halves()

    played(World(2), play)


def test_a_replacement_is_placed_close_to_the_other_members() -> None:
    async def play(world: World, _: Replica) -> None:
        for name, rack in {"n0": "r1", "n1": "r2", "n2": "r1"}.items():
            labels = {"topology.kubernetes.io/rack": rack}
            world.api.put("nodes", node_json(name, labels=labels))
        world.gang("a", 2, gpu=2)
        await is_bound(world, "a", 2)
        found = world.status("a")
        assert found is not None
        assert found.status.topology == "2 nodes of one rack"
        assert set(world.bound("a").values()) == {"n0", "n2"}
        world.delete("a-1")
        world.gang("a", 2, pods=1, first=2, gpu=2)
        await until(lambda: "a-2" in world.bound("a"))
        assert set(world.bound("a").values()) == {"n0", "n2"}

    played(World(2, 2, 2), play)


def test_new_pods_beside_terminating_ones_are_a_new_run() -> None:
    async def play(world: World, _: Replica) -> None:
        old = set(world.gang("a", 2))
        await is_bound(world, "a", 2)
        world.begin_to_end(*old)
        world.gang("a", 2, pods=1, first=2)
        await until(lambda: world.why("a") == "1 of its 2 pods exist")
        assert set(world.bound("a")) == old
        world.gang("a", 2, pods=1, first=3)
        await until(lambda: set(world.bound("a")) == old | {"a-2", "a-3"})

    played(World(2, 2), play)


def test_a_new_leader_does_not_evict_a_gang_that_waits_for_a_replacement() -> None:
    async def run() -> None:
        world = World(1, 1)
        async with running(world):
            world.gang("a", 2)
            await is_bound(world, "a", 2)
            kept, lost = "a-0", "a-1"
            put_node(world.api, make_node(world.bound("a")[lost], 0))
            world.delete(lost)
            world.gang("a", 2, pods=1, first=2)
            await until(lambda: world.phase("a") == "Waiting")
        async with running(world):
            over = time.monotonic() + 2 * SOON.times.grace + 2.5 * PASS_SECONDS
            await until(lambda: time.monotonic() > over or kept not in world.bound("a"))
            assert kept in world.bound("a")

    asyncio.run(run())


def test_a_gang_of_higher_priority_preempts() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("low", 2)
        await is_bound(world, "low", 2)
        world.gang("high", 1, pods=0)
        notes = {"aliquot.io/gang": "high", "aliquot.io/gang-size": "2"}
        for number in range(2):
            world.pod(f"high-{number}", gated=True, annotations=notes, gpu=1, spec={"priority": 9})
        await is_bound(world, "high", 2)
        assert not world.bound("low")
        told = [reason for reason, _ in world.events("low-0")]
        assert "Preempted" in told

    played(World(2), play)


def test_a_protected_victim_is_spared_and_the_gang_starts_elsewhere() -> None:
    async def play(world: World, _: Replica) -> None:
        world.gang("kept", 1)
        await is_bound(world, "kept", 1)
        world.api.faults.budgets = {"kept-0": "keep-it"}
        notes = {"aliquot.io/gang": "high", "aliquot.io/gang-size": "1"}
        world.pod("high-0", gated=True, annotations=notes, gpu=1, spec={"priority": 9})
        await until(lambda: "disruption budgets protect ns/kept from" in world.why("high"))
        assert world.bound() == {"kept-0": "n0"}
        world.gang("spare", 1, pods=0)
        put_node(world.api, make_node("n1", 1))
        world.offered.add("n1")
        await is_bound(world, "high", 1)
        assert world.bound("kept") == {"kept-0": "n0"}

    options = GangOptions(times=Deadlines(grace=0.4, eviction=0.2))
    played(World(1), play, gangs=options)


def test_a_gang_waits_for_a_gpu_that_a_node_still_reports_for_a_deleted_pod() -> None:
    async def play(world: World, _: Replica) -> None:
        world.queue("q", quota={"gpus": 1})
        gone = held(make_pod("gone"), memory=GPU_BYTES)
        put_node(world.api, make_node("n0", 1, kind="whole", grants=(gone,)))
        world.gang("a", 1, gpu=1, labels={"aliquot.io/queue": "q"})
        await until(lambda: world.phase("a") == "Reserved")
        found = world.status("a")
        assert found is not None
        assert found.status.victims == ("uid-gone",)
        assert world.pods()["a-0"].spec.scheduling_gates
        put_node(world.api, make_node("n0", 1))
        await is_bound(world, "a", 1)

    played(World(1), play)


@pytest.mark.parametrize("change", ["its kubelet lost the devices", "its Node was deleted"])
def test_a_reservation_on_a_node_that_becomes_unusable_is_abandoned(change: str) -> None:
    """Members that are bound there would be rejected by the kubelet."""

    async def run() -> None:
        world = World(2)
        async with world.api.serving(), replica(world.api) as one:
            await one.ready()
            world.gang("a", 2)
            await until(lambda: world.phase("a") == "Reserved")
            with structlog.testing.capture_logs() as logs:
                if change == "its Node was deleted":
                    world.api.delete("nodes", "n0")
                else:
                    counts = {"capacity": {GPU: "2"}, "allocatable": {GPU: "0"}}
                    world.api.put("nodes", {"metadata": {"name": "n0"}, "status": counts})
                await until(lambda: world.phase("a") == "Refused")
            assert not [entry for entry in logs if "failed" in entry["event"]]
            for pod in world.pods("a").values():
                assert not (await one.filter(pod, "n0"))["NodeNames"]

    asyncio.run(run())
