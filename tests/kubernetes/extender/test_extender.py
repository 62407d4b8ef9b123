"""The extender as kube-scheduler calls it: over HTTP, with a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.gpunode import NodeGrant
from aliquot.kubernetes.api.names import PLAN, RETRY
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.extender import bind, planner, server, waiting
from kubernetes.builders import container, gpu_uuid, make_node, make_pod, node_json, units
from kubernetes.extender.replica import (
    Replica,
    plan_in,
    pod_in,
    put_node,
    put_pod,
    replica,
    report,
)
from kubernetes.fake_api import FakeApi, as_json, until


def played(play: Callable[[FakeApi, Replica], Coroutine[Any, Any, None]], **options: Any) -> None:
    """With one node of two GPUs, and a replica that is ready."""

    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 2))
        async with api.serving(), replica(api, **options) as one:
            await one.ready()
            await play(api, one)

    asyncio.run(run())


async def seen(one: Replica, name: str) -> None:
    await until(lambda: one.scheduler._watches.pods.get(name, "ns"))


def release(api: FakeApi, node: str = "n1") -> None:
    """The agent names nobody any more."""
    body = api.objects["gpunodes", "", node]
    for gpu in body["status"]["gpus"]:
        gpu.pop("grants", None)
        gpu.pop("kind", None)
    api.put("gpunodes", body)


def test_a_pod_gets_its_node_and_its_plan_in_one_step() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", memory=40, core=30))
        answer = await one.filter(pod, "n1", "elsewhere")
        assert answer["NodeNames"] == ["n1"]
        assert answer["FailedAndUnresolvableNodes"] == {}
        assert await one.prioritize(pod, "n1") == [{"Host": "n1", "Score": 10}]
        assert await one.bind(pod, "n1") == ""
        assert pod_in(api, "a").spec.node_name == "n1"
        part = plan_in(api, "a").containers["main"]
        assert (part.kind, part.memory, part.compute) == ("sliced", units(40), 30)
        assert part.gpus[0] in {gpu_uuid("n1", 0), gpu_uuid("n1", 1)}

    played(play)


def test_a_pod_is_bound_where_kube_scheduler_says_not_where_it_was_reserved() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        put_node(api, make_node("n2", 2))
        await until(lambda: "n2" in one.scheduler.cluster.nodes)
        pod = put_pod(api, make_pod("a", gpu=2))
        [best] = (await one.filter(pod, "n1", "n2"))["NodeNames"]
        [other] = {"n1", "n2"} - {best}
        assert await one.bind(pod, other) == ""
        assert all(
            gpu.startswith(f"GPU-{other}-") for gpu in plan_in(api, "a").containers["main"].gpus
        )
        assert (await one.filter(make_pod("b", gpu=2), "n1", "n2"))["NodeNames"] == [best]

    played(play)


def test_a_pod_without_gpus_is_not_bound_by_the_extender() -> None:
    """Who reaches its port could else bind any pod of the cluster to any node."""

    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a"))
        assert (await one.filter(pod, "x", "y"))["NodeNames"] == ["x", "y"]
        assert "managedResources" in await one.bind(pod, "y")
        assert not pod_in(api, "a").spec.node_name

    played(play)


def test_a_pod_that_asks_for_zero_gpus_is_bound_without_a_plan() -> None:
    """kube-scheduler asks the extender about every pod that names its resources."""

    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", container(gpu=0), container("other", memory=0, core=0)))
        assert (await one.filter(pod, "x", "y"))["NodeNames"] == ["x", "y"]
        assert await one.bind(pod, "y") == ""
        assert pod_in(api, "a").spec.node_name == "y"
        assert PLAN not in pod_in(api, "a").metadata.annotations
        beside = put_pod(api, make_pod("b", container(gpu=0), container("other", memory=4)))
        assert (await one.filter(beside, "n1"))["NodeNames"] == ["n1"]
        assert await one.bind(beside, "n1") == ""
        assert list(plan_in(api, "b").containers) == ["other"]

    played(play)


def test_a_pod_that_may_have_been_bound_is_offered_no_other_node() -> None:
    """The API server did not answer: what it may have done counts, whoever asks."""

    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", gpu=1))
        assert (await one.filter(pod, "n1"))["NodeNames"] == ["n1"]
        api.faults.refuse = lambda _, path: 503 if path.endswith("/binding") else None
        assert await one.bind(pod, "n1") != ""
        assert (await one.filter(pod, "n2"))["NodeNames"] == []
        assert (await one.filter(pod, "n2", "n1"))["NodeNames"] == ["n1"]
        api.faults.refuse = lambda *_: None
        assert await one.bind(pod, "n1") == ""

    played(play)


def test_a_replica_killed_between_filter_and_bind_is_replaced() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        async with api.serving():
            pod = put_pod(api, make_pod("a", gpu=1))
            async with replica(api) as first:
                await first.ready()
                assert (await first.filter(pod, "n1"))["NodeNames"] == ["n1"]
            async with replica(api) as second:
                await second.ready()
                assert await second.bind(pod, "n1") == ""
        assert plan_in(api, "a").containers["main"].gpus == (gpu_uuid("n1", 0),)

    asyncio.run(run())


def test_plans_of_bound_pods_count_after_a_restart() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        async with api.serving():
            pod = put_pod(api, make_pod("a", gpu=1))
            async with replica(api) as first:
                await first.ready()
                assert await first.bind(pod, "n1") == ""
            async with replica(api) as second:
                await second.ready()
                assert (await second.filter(make_pod("b", gpu=1), "n1"))["NodeNames"] == []

    asyncio.run(run())


def test_a_pod_that_is_bound_already_is_bound_again_only_to_the_same_node() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", gpu=1))
        assert await one.bind(pod, "n1") == ""
        await until(
            lambda: (found := one.scheduler._watches.pods.get("a", "ns")) and found.spec.node_name
        )
        assert await one.bind(pod, "n1") == ""
        assert "bound to node n1 already" in await one.bind(pod, "n2")

    played(play)


def test_a_failed_binding_says_why_and_reserves_nothing() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        assert "not found" in await one.bind(make_pod("missing", gpu=1), "n1")
        pod = put_pod(api, make_pod("a", gpu=2))
        impostor = make_pod("a", gpu=2, uid="another")
        assert "replaced by another pod" in await one.bind(impostor, "n1")
        assert "pod ns/a does not fit node n2" in await one.bind(pod, "n2")
        api.faults.refuse = lambda method, _: 403 if method == "POST" else None
        assert "403" in await one.bind(pod, "n1")
        api.faults.refuse = lambda *_: None
        assert (await one.filter(make_pod("b", gpu=2), "n1"))["NodeNames"] == ["n1"]

    played(play)


def test_the_plan_counts_if_the_api_server_does_not_answer() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", gpu=2))
        await seen(one, "a")
        api.faults.refuse = lambda _, path: 503 if path.endswith("/binding") else None
        assert "503" in await one.bind(pod, "n1")
        assert (await one.filter(make_pod("b", gpu=1), "n1"))["NodeNames"] == []
        api.faults.refuse = lambda *_: None
        assert await one.bind(pod, "n1") == ""

    played(play)


def test_a_refused_pod_gets_one_event_and_is_retried_when_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "BURST_SECONDS", 0.01)

    async def play(api: FakeApi, one: Replica) -> None:
        first = put_pod(api, make_pod("a", gpu=2))
        assert await one.bind(first, "n1") == ""
        report(api, "a")
        second = put_pod(api, make_pod("b", gpu=1))
        for _ in range(5):
            answer = await one.filter(second, "n1")
            assert answer["NodeNames"] == []
            assert answer["FailedAndUnresolvableNodes"] == {"n1": "not enough free on enough GPUs"}
        await until(lambda: api.all("events"))
        (event,) = api.all("events")
        assert event["reason"] == "InsufficientGPUs"
        assert event["involvedObject"]["name"] == "b"
        assert "1 node: not enough free on enough GPUs" in event["message"]
        assert event["count"] == 1
        text = (await one.get("/metrics")).text
        assert "aliquot_scheduler_waiting_pods 1.0" in text
        api.delete("pods", "a", "ns")
        release(api)
        await until(lambda: RETRY in pod_in(api, "b").metadata.annotations)
        assert (await one.filter(pod_in(api, "b"), "n1"))["NodeNames"] == ["n1"]
        assert "aliquot_scheduler_waiting_pods 0.0" in (await one.get("/metrics")).text

    played(play)


def test_pods_that_do_not_fit_do_not_keep_others_from_being_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "BURST_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "WAKE_AGAIN", 0.05)
    monkeypatch.setattr(waiting, "LOOKED_AT", 2)

    async def play(api: FakeApi, one: Replica) -> None:
        first = put_pod(api, make_pod("a", gpu=2))
        assert await one.bind(first, "n1") == ""
        report(api, "a")
        for name, gpus in (("b", 9), ("c", 9), ("d", 9), ("e", 1)):
            pod = put_pod(api, make_pod(name, gpu=gpus))
            assert (await one.filter(pod, "n1"))["NodeNames"] == []
        api.delete("pods", "a", "ns")
        release(api)
        await until(lambda: RETRY in pod_in(api, "e").metadata.annotations)

    played(play)


def patches(api: FakeApi, *names: str) -> int:
    """How often somebody has patched these pods."""
    paths = {f"/api/v1/namespaces/ns/pods/{name}" for name in names}
    return sum(method == "PATCH" and path in paths for method, path in api.requests)


def occupy(api: FakeApi, node: str) -> None:
    """Somebody has all GPUs of a node."""
    held = NodeGrant("uid-ghost", "ns", "ghost", "main", 80 << 30)
    put_node(api, make_node(node, 2, kind="whole", grants=(held,)))


async def looked_at_all(api: FakeApi, one: Replica, node: str, marker: str) -> None:
    """All waiting pods have been looked at: a marker that came last was woken on its own node."""
    occupy(api, node)
    await until(lambda: one.scheduler.cluster.usage_by_pod(node))
    pod = put_pod(api, make_pod(marker, gpu=1))
    assert (await one.filter(pod, node))["NodeNames"] == []
    release(api, node)
    await until(lambda: patches(api, marker))
    api.delete("pods", marker, "ns")
    await until(lambda: one.scheduler._watches.pods.get(marker, "ns") is None)


def test_a_free_gpu_that_kube_scheduler_does_not_offer_wakes_no_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One cordoned node must not make the extender patch every waiting pod for ever."""
    monkeypatch.setattr(waiting, "BURST_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "WAKE_AGAIN", 0.02)

    async def play(api: FakeApi, one: Replica) -> None:
        occupy(api, "n1")
        put_node(api, make_node("cordoned", 2))
        api.put("nodes", node_json("cordoned", spec={"unschedulable": True}))
        put_node(api, make_node("n3", 2))
        await until(lambda: {"cordoned", "n3"} <= one.scheduler.cluster.nodes.keys())
        await until(lambda: one.scheduler.cluster.usage_by_pod("n1"))
        names = [f"w{number}" for number in range(20)]
        for name in names:
            pod = put_pod(api, make_pod(name, gpu=2))
            assert (await one.filter(pod, "n1"))["NodeNames"] == []
        for number in range(5):
            await looked_at_all(api, one, "n3", f"m{number}")
        assert not patches(api, *names)

    played(play)


def test_a_pod_is_woken_once_for_each_time_that_it_begins_to_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kube-scheduler does not ask again if no node has CPU for it."""
    monkeypatch.setattr(waiting, "BURST_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "WAKE_AGAIN", 0.02)

    async def play(api: FakeApi, one: Replica) -> None:
        put_node(api, make_node("n3", 2))
        await until(lambda: "n3" in one.scheduler.cluster.nodes)
        occupy(api, "n1")
        await until(lambda: one.scheduler.cluster.usage_by_pod("n1"))
        pod = put_pod(api, make_pod("b", gpu=1))
        assert (await one.filter(pod, "n1"))["NodeNames"] == []
        for times in range(1, 4):
            release(api)
            await until(partial(lambda times: patches(api, "b") == times, times))
            await looked_at_all(api, one, "n3", f"m{times}")
            await looked_at_all(api, one, "n3", f"n{times}")
            assert patches(api, "b") == times
            occupy(api, "n1")
            await looked_at_all(api, one, "n3", f"o{times}")

    played(play)


def test_a_pod_that_fits_meanwhile_is_not_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "BURST_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "WAKE_AGAIN", 0.05)

    async def play(api: FakeApi, one: Replica) -> None:
        first = put_pod(api, make_pod("a", gpu=2))
        assert await one.bind(first, "n1") == ""
        report(api, "a")
        pods = {name: put_pod(api, make_pod(name, gpu=1)) for name in ("b", "c", "d")}
        for pod in pods.values():
            assert (await one.filter(pod, "n1"))["NodeNames"] == []

        def found_room(method: str, path: str) -> None:
            if method == "PATCH" and path.endswith("/pods/b"):
                one.scheduler._waiting.done(pods["c"].metadata.uid)

        api.faults.refuse = found_room
        api.delete("pods", "a", "ns")
        release(api)
        await until(lambda: RETRY in pod_in(api, "d").metadata.annotations)
        assert RETRY in pod_in(api, "b").metadata.annotations
        assert RETRY not in pod_in(api, "c").metadata.annotations

    played(play)


@pytest.mark.parametrize(
    ("name", "value", "reason", "why"),
    [
        ("gpus", "2", "UnevenSplit", "multiple of 2"),
        ("duration", "2 weeks", "InvalidAnnotation", "aliquot.io/duration is '2 weeks'"),
        ("duration", "9" * 20 + "d", "InvalidAnnotation", "3650d is the most"),
    ],
)
def test_an_invalid_request_becomes_an_event(name: str, value: str, reason: str, why: str) -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", memory=21, annotations={f"aliquot.io/{name}": value}))
        answer = await one.filter(pod, "n1")
        assert answer["NodeNames"] == []
        await until(lambda: api.all("events"))
        assert api.all("events")[0]["reason"] == reason
        assert why in api.all("events")[0]["message"]

    played(play)


def test_a_confusable_pod_waits_until_the_other_is_reported() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        # The same count of memory, on other GPUs, and only the core tells them apart.
        first = put_pod(api, make_pod("a", memory=200, core=60))
        second = put_pod(api, make_pod("b", memory=200, core=50))
        alike = put_pod(api, make_pod("c", memory=8, core=10))
        assert await one.bind(first, "n1") == ""
        held = asyncio.create_task(one.bind(second, "n1"))
        assert await one.bind(alike, "n1") == ""
        assert not held.done()
        report(api, "a")
        assert await held == ""
        gpus = [plan_in(api, name).containers["main"].gpus for name in "ab"]
        assert gpus[0] != gpus[1]

    played(play)


def test_a_binding_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "PATIENCE", 0.1)

    async def play(api: FakeApi, one: Replica) -> None:
        first = put_pod(api, make_pod("a", memory=200, core=60))
        second = put_pod(api, make_pod("b", memory=200, core=50))
        assert await one.bind(first, "n1") == ""
        assert "held back on node n1" in await one.bind(second, "n1")
        assert pod_in(api, "b").spec.node_name == ""

    played(play)


def test_pods_of_equal_parts_do_not_wait_for_each_other() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        for name in "ab":
            pod = put_pod(api, make_pod(name, memory=200, core=50))
            assert await one.bind(pod, "n1") == ""
        other = put_pod(api, make_pod("c", memory=40, core=10))
        assert await one.bind(other, "n1") == ""

    played(play)


def test_a_node_without_its_agent_gets_no_pods_until_the_agent_is_back() -> None:
    def node(allocatable: int) -> dict[str, Any]:
        counts = {"capacity": {"aliquot.io/gpu": "2"}}
        return {
            "metadata": {"name": "n1"},
            "status": {**counts, "allocatable": {"aliquot.io/gpu": str(allocatable)}},
        }

    async def play(api: FakeApi, one: Replica) -> None:
        async def has_room() -> bool:
            return bool((await one.filter(make_pod("a", gpu=1), "n1"))["NodeNames"])

        async def becomes(*, room: bool) -> None:
            async with asyncio.timeout(20):
                while await has_room() != room:
                    await asyncio.sleep(0.01)

        assert await has_room()  # a kubelet that says nothing may have an agent that just came
        for allocatable, room in ((0, False), (2, True)):
            api.put("nodes", node(allocatable))
            await becomes(room=room)
        api.delete("nodes", "n1")  # its GPUNode may outlive it
        await becomes(room=False)

    played(play)


def test_kube_scheduler_evicts_for_cpu_only_where_gpus_are_free() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        put_node(api, make_node("n2", 2))
        await until(lambda: "n2" in one.scheduler.cluster.nodes)
        pod = put_pod(api, make_pod("a", gpu=2))
        assert await one.bind(pod, "n1") == ""
        victims = {
            "n1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0},
            "n2": {"Pods": [{"UID": "uid-cpu-only"}], "NumPDBViolations": 0},
        }
        body = {
            "Pod": as_json(PODS, put_pod(api, make_pod("c", gpu=1))),
            "NodeNameToVictims": None,
            "NodeNameToMetaVictims": victims,
        }
        answer = (await one.post("/preempt", body)).json()
        assert answer == {"NodeNameToMetaVictims": {"n2": victims["n2"]}}

    played(play)


def test_only_the_leader_decides_and_the_next_leader_has_its_plans() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 1))
        pod = put_pod(api, make_pod("a", gpu=1))
        async with api.serving(), AsyncExitStack() as living:
            first = await living.enter_async_context(replica(api))
            await first.ready()
            async with replica(api) as second:
                await until(lambda: second.scheduler.why_not().endswith("leads"))
                follows = await second.get("/readyz")
                assert (follows.status_code, follows.text) == (200, "follows")
                assert (await second.get("/healthz")).status_code == 200
                assert (await second.post("/filter", {})).status_code == 503
                assert await first.bind(pod, "n1") == ""
                await living.aclose()
                await second.ready()
                assert (await second.get("/readyz")).text == "leads"
                assert (await second.filter(make_pod("b", gpu=1), "n1"))["NodeNames"] == []

    asyncio.run(run())


def test_names_are_compared_as_whole_strings_however_they_are_written() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        pod = msgspec.json.encode(as_json(PODS, put_pod(api, make_pod("a", gpu=1)))).decode()
        await seen(one, "a")
        for names, found in (
            ('["n10", "xn1"]', []),
            ('["n\\u0031"]', ["n1"]),
            ('["a \\"n1\\" b"]', []),
            ('["other" , "n1"]', ["n1"]),
            ("[]", []),
        ):
            body = f'{{"Pod": {pod}, "Nodes": null, "NodeNames": {names}}}'
            answer = await one.post("/filter", msgspec.Raw(body.encode()))
            assert answer.json()["NodeNames"] == found, names
        for names in ('"n1"', "[1]", '{"n1": 1}'):
            body = f'{{"Pod": {pod}, "Nodes": null, "NodeNames": {names}}}'
            assert (await one.post("/filter", msgspec.Raw(body.encode()))).status_code == 400

    played(play)


def test_an_invalid_message_gets_no_answer() -> None:
    async def play(_: FakeApi, one: Replica) -> None:
        assert (await one.post("/filter", "nonsense")).status_code == 400
        body = {"Pod": {"metadata": {"name": "a"}}, "Nodes": {"items": []}, "NodeNames": None}
        assert "nodeCacheCapable" in (await one.post("/filter", body)).json()["Error"]

    played(play)


def test_all_answers_but_to_a_bind_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler schedules no other pod while it waits for a filter."""
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.05)

    async def play(api: FakeApi, one: Replica) -> None:
        api.faults.unanswered.add("/api/v1/namespaces/ns/pods/a")
        meta = {"name": "a", "namespace": "ns", "uid": "u"}
        bind = {"PodName": "a", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"}
        binding = asyncio.create_task(one.post("/bind", bind))
        asked = {"Pod": {"metadata": meta}, "Nodes": None, "NodeNames": ["n1"]}
        for path in ("/filter", "/prioritize", "/preempt"):
            assert (await one.post(path, asked)).status_code == 503
        assert not binding.done()
        binding.cancel()

    played(play)


def test_the_next_answer_is_prepared_after_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    monkeypatch.setattr(planner.Planner, "prepare", lambda _: prepared.append(1))

    async def play(api: FakeApi, one: Replica) -> None:
        assert not (await one.filter(put_pod(api, make_pod("huge", gpu=9)), "n1"))["NodeNames"]
        assert not prepared
        assert (await one.filter(put_pod(api, make_pod("a", gpu=1)), "n1"))["NodeNames"]
        await until(lambda: prepared)

    played(play)


def test_metrics_show_allocations_and_decisions() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        pod = put_pod(api, make_pod("a", gpu=1))
        await one.filter(pod, "n1")
        await one.bind(pod, "n1")
        text = (await one.get("/metrics")).text
        assert 'aliquot_scheduler_decisions_total{result="fits",verb="filter"} 1.0' in text
        assert 'aliquot_scheduler_decisions_total{result="bound",verb="bind"} 1.0' in text
        assert 'aliquot_scheduler_decision_seconds_count{verb="filter"} 1.0' in text
        assert "aliquot_scheduler_allocated_compute_ratio 0.5" in text
        assert "aliquot_scheduler_allocated_memory_ratio 0.5" in text
        assert 'aliquot_scheduler_gpus{kind="whole"} 1.0' in text
        assert "aliquot_scheduler_fragmentation_ratio" in text
        assert "aliquot_scheduler_leader 1.0" in text

    played(play)


# --- a caller that lies ---------------------------------------------------------------------------


async def asked_about(one: Replica, pod: Any, path: str = "/filter") -> Any:
    """The answer about a pod, as this body describes it."""
    body = {"Pod": as_json(PODS, pod), "Nodes": None, "NodeNames": ["n1"]}
    return await one.post(path, body)


def test_a_pod_that_does_not_exist_is_refused_and_reserves_nothing() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        forged = make_pod("forged", gpu=2)
        answer = (await asked_about(one, forged)).json()
        assert answer["NodeNames"] == []
        assert "'forged' not found" in answer["Error"]
        for path in ("/prioritize", "/preempt"):
            assert (await asked_about(one, forged, path)).status_code == 404
        assert "'forged' not found" in await one.bind(forged, "n1")
        real = put_pod(api, make_pod("real", gpu=2))
        assert (await one.filter(real, "n1"))["NodeNames"] == ["n1"]

    played(play)


def test_a_pod_with_another_uid_is_refused() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        put_pod(api, make_pod("a", gpu=1))
        old = make_pod("a", gpu=1)
        forged = msgspec.structs.replace(
            old, metadata=msgspec.structs.replace(old.metadata, uid="uid-other")
        )
        answer = (await asked_about(one, forged)).json()
        assert answer["NodeNames"] == []
        assert "replaced by another pod" in answer["Error"]

    played(play)


def test_a_pod_gets_what_it_asks_for_in_the_cluster_and_not_what_the_call_says() -> None:
    async def play(api: FakeApi, one: Replica) -> None:
        put_pod(api, make_pod("a", gpu=1))
        await seen(one, "a")
        greedy = make_pod("a", gpu=2)
        assert (await asked_about(one, greedy)).json()["NodeNames"] == ["n1"]
        other = put_pod(api, make_pod("b", gpu=1))
        assert (await one.filter(other, "n1"))["NodeNames"] == ["n1"]  # one GPU is left

    played(play)
