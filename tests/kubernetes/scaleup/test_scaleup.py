"""What asks an autoscaler for nodes: when it appears, what it asks for, and that it goes again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aliquot.kubernetes.cluster import cluster
from aliquot.kubernetes.gangs import store
from aliquot.kubernetes.scaleup import controller
from aliquot.kubernetes.scaleup.controller import ScaleUpOptions
from kubernetes.builders import make_node, node_json
from kubernetes.extender.replica import Replica, pod_in, put_node
from kubernetes.fake_api import Json, until
from kubernetes.gangs.world import World, is_bound, led, played

ASKS = ScaleUpOptions(patience=1.0)
BY_REQUEST = ScaleUpOptions(request_class="best-effort-atomic-scale-up", patience=1.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "REASON_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "UNREPORTED_SECONDS", 0.0)
    monkeypatch.setattr(controller, "BURST_SECONDS", 0.01)
    monkeypatch.setattr(controller, "PASS_SECONDS", 0.05)
    monkeypatch.setattr(controller, "LIST_AGAIN", 0.1)


def play(
    world: World,
    what: Callable[[World, Replica], Coroutine[Any, Any, None]],
    options: ScaleUpOptions | None = ASKS,
) -> None:
    played(world, what, scale_up=options)


def placeholders(world: World, plural: str = "pods") -> list[Json]:
    return [
        one
        for one in world.api.all(plural)
        if "aliquot.io/placeholder" in one["metadata"].get("labels", {})
    ]


def asked(world: World) -> list[str]:
    """What each placeholder asks for, in GPUs."""
    every = (one["spec"]["containers"][0] for one in placeholders(world))
    return sorted(one["resources"]["limits"]["aliquot.io/gpu"] for one in every)


def put_units(world: World, name: str, **units: int) -> None:
    """What the kubelet of a node offers."""
    offered = {f"aliquot.io/{key.replace('_', '-')}": str(value) for key, value in units.items()}
    status = {"capacity": offered, "allocatable": offered}
    world.api.put("nodes", {"metadata": {"name": name}, "status": status})


# --- gangs ----------------------------------------------------------------------------------------


def test_placeholders_ask_for_the_gpus_that_a_gang_lacks() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 3, gpu=2)
        await until(lambda: asked(world) == ["2", "2"])
        first = placeholders(world)[0]
        assert first["metadata"]["namespace"] == "ns"
        assert "schedulingGates" not in first["spec"]
        assert first["spec"]["schedulerName"] == "aliquot"
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        (term,) = first["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
        away = {"key": "aliquot.io/counted", "operator": "DoesNotExist"}
        assert term["matchExpressions"] == [away]
        labels = world.api.objects["nodes", "", "n0"]["metadata"]["labels"]
        assert labels == {"aliquot.io/counted": "true"}

    play(World(2), what)


def test_placeholders_go_when_the_gang_starts_on_the_new_node() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 2, gpu=2)
        await until(lambda: asked(world) == ["2"])
        put_node(world.api, make_node("n1", 2))
        world.offered.add("n1")
        await is_bound(world, "a", 2)
        await until(lambda: not placeholders(world))

    play(World(2), what)


def test_placeholders_go_with_the_gang() -> None:
    async def what(world: World, _: Replica) -> None:
        names = world.gang("a", 4)
        await until(lambda: asked(world) == ["1"] * 3)
        world.delete(*names)
        await until(lambda: not placeholders(world))

    play(World(1), what)


def test_a_new_node_is_labelled_only_after_its_placeholder_is_gone() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 3, gpu=2)
        await until(lambda: asked(world) == ["2", "2"])
        put_node(world.api, make_node("n1", 2))
        await until(lambda: asked(world) == ["2"])
        await until(lambda: world.api.objects["nodes", "", "n1"]["metadata"].get("labels"))
        tail = [
            (method, path)
            for method, path in world.api.requests
            if "placeholder" in path or path.endswith("/nodes/n1")
        ]
        assert [method for method, _ in tail[-2:]] == ["DELETE", "PATCH"]

    play(World(2), what)


def test_a_gang_larger_than_the_cluster_waits_for_nodes() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 2)
        await until(lambda: asked(world) == ["1", "1"])
        await until(lambda: world.phase("a") == "Waiting")
        assert "the autoscaler is asked for more" in world.why("a")

    play(World(), what)


def test_no_node_is_asked_for_what_a_queues_limit_blocks() -> None:
    async def what(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 2})
        world.gang("a", 2, labels={"aliquot.io/queue": "q"}, gpu=1)
        await is_bound(world, "a", 2)
        world.gang("b", 2, labels={"aliquot.io/queue": "q"}, gpu=1)
        world.gang("c", 3, labels={"aliquot.io/queue": "q"}, gpu=1)
        world.pod("single", labels={"aliquot.io/queue": "q"}, gpu=1)
        await until(lambda: world.phase("b") == "Waiting")
        world.gang("free", 2)  # of another queue: nodes are asked for this one alone
        await until(lambda: asked(world) == ["1", "1"])
        assert world.phase("c") == "Refused"

    play(World(2), what)


def test_no_more_is_asked_for_than_a_queues_limit_leaves() -> None:
    async def what(world: World, _: Replica) -> None:
        world.queue("q", limit={"gpus": 3})
        for name in ("a", "b", "c", "d"):  # each alone is within the limit
            world.pod(name, labels={"aliquot.io/queue": "q"}, memory=320, core=100)
        await until(lambda: asked(world) == ["1"] * 3)
        world.gang("g", 2, labels={"aliquot.io/queue": "q"}, gpu=1)
        await until(lambda: len(placeholders(world)) == 3)
        world.delete("a", "b", "c", "d")
        await until(lambda: asked(world) == ["1"] * 2)

    play(World(), what)


def test_no_node_is_asked_for_a_gang_that_starts_soon() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("now", 2, annotations={"aliquot.io/duration": "30s"}, gpu=1)
        await is_bound(world, "now", 2)
        world.gang("soon", 2)
        await until(lambda: "planned for" in world.why("soon"))
        world.gang("late", 2)
        await until(lambda: asked(world) == ["1", "1"])  # for the one behind it

    play(World(2), what, ScaleUpOptions(patience=60.0))


def test_a_placeholder_asks_for_nodes_that_accept_the_pods() -> None:
    async def what(world: World, _: Replica) -> None:
        zone = {"key": "zone", "operator": "In", "values": ["a"]}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        terms = {required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
        tolerates = {"key": "gpus", "operator": "Exists", "effect": "NoSchedule"}
        spec = {
            "nodeSelector": {"pool": "h100"},
            "affinity": {"nodeAffinity": terms},
            "tolerations": [tolerates],
        }
        world.gang("a", 1, spec=spec, gpu=1)
        pod = world.api.objects["pods", "ns", "a-0"]
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1500m", "memory": "2Gi"}
        world.api.put("pods", pod)
        await until(lambda: [one for one in placeholders(world) if _cpu(one) == "1500m"])
        await until(lambda: len(placeholders(world)) == 1)
        (one,) = placeholders(world)
        found = one["spec"]
        assert found["containers"][0]["resources"]["requests"]["memory"] == str(2 << 30)
        assert found["nodeSelector"] == {"pool": "h100"}
        assert found["tolerations"] == [tolerates]
        (term,) = found["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
        assert term["matchExpressions"][0] == zone
        assert term["matchExpressions"][1]["key"] == "aliquot.io/counted"

    play(World(1), what)


def _cpu(one: Json) -> str | None:
    cpu: str | None = one["spec"]["containers"][0]["resources"]["requests"].get("cpu")
    return cpu


def test_slices_share_the_gpus_that_are_asked_for() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 5, memory=100, core=40)  # 25 GiB and 40 % each
        await until(lambda: asked(world) == ["1"])

    play(World(2), what)


# --- single pods ----------------------------------------------------------------------------------


def test_40_and_40_free_are_not_60() -> None:
    async def what(world: World, _: Replica) -> None:
        put_units(world, "n0", gpu=2, vcuda_core=200, vcuda_memory=640)
        for name in ("a", "b"):
            world.pod(name, memory=8, core=60)
        await until(lambda: len(world.bound()) == 2)
        world.pod("c", memory=8, core=60)  # 80 of 200 units are free, for an autoscaler it fits
        await until(lambda: asked(world) == ["1"])

    play(World(2), what)


def test_no_placeholder_stands_for_a_pod_that_the_autoscaler_sees() -> None:
    async def what(world: World, _: Replica) -> None:
        put_units(world, "n0", gpu=2, vcuda_core=200, vcuda_memory=640)
        world.pod("a", gpu=2)
        await until(lambda: len(world.bound()) == 1)
        world.pod("b", gpu=1)  # no unit is free: the autoscaler adds a node by itself
        world.pod("c", memory=8, core=60)
        await until(lambda: asked(world) == ["1"])
        world.delete("c")
        await until(lambda: not placeholders(world))
        assert not pod_in(world.api, "b").spec.node_name

    play(World(2), what)


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        {"schedulingGates": [{"name": "aliquot.io/gang"}]},  # of no gang: nobody removes it
        {"schedulerName": "other"},
    ],
)
def test_no_node_is_asked_for_a_pod_that_could_not_use_it(spec: Json) -> None:
    async def what(world: World, _: Replica) -> None:
        for number in range(controller.MOST_SINGLE_PODS):
            world.pod(f"held-{number}", gpu=1, spec=spec)
        world.pod("waits", memory=8, core=60, spec={"schedulerName": "ours"})
        await until(lambda: asked(world) == ["1"])
        world.delete("waits")
        await until(lambda: not placeholders(world))

    played(World(), what, scale_up=ASKS, scheduler_names=("aliquot", "ours"))


def test_no_node_is_asked_for_a_gang_of_another_scheduler() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("theirs", 2, gpu=2, spec={"schedulerName": "other"})
        world.gang("a", 2, gpu=1, spec={"schedulerName": "aliquot"})
        await until(lambda: asked(world) == ["1", "1"])

    play(World(), what)


# --- what a placeholder is not --------------------------------------------------------------------


def test_a_placeholder_gets_no_node_and_is_no_work() -> None:
    async def what(world: World, one: Replica) -> None:
        world.gang("a", 3)
        await until(lambda: asked(world) == ["1"])
        put_node(world.api, make_node("big", 8))
        (found,) = placeholders(world)
        pod = pod_in(world.api, found["metadata"]["name"])
        answer = await one.filter(pod, "n0", "big")
        assert not answer["NodeNames"]
        assert "never runs" in answer["FailedAndUnresolvableNodes"]["big"]
        assert "never runs" in await one.bind(pod, "big")
        world.queue("default", limit={"gpus": 100})
        text = (await one.get("/metrics")).text
        assert "aliquot_scheduler_waiting_pods 0.0" in text

    play(World(2), what)


def test_a_placeholder_that_another_scheduler_bound_is_deleted() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 2)
        await until(lambda: asked(world) == ["1"])
        (one,) = placeholders(world)
        uid = one["metadata"]["uid"]
        bound = json.loads(json.dumps(one))
        bound["spec"]["nodeName"] = "elsewhere"
        world.api.put("pods", bound)
        await until(
            lambda: [one["metadata"]["uid"] for one in placeholders(world)] not in ([uid], [])
        )
        (again,) = placeholders(world)
        assert "nodeName" not in again["spec"]

    play(World(1), what)


def test_nothing_is_asked_by_default() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 2)
        await until(lambda: world.phase("a") == "Refused")
        assert not placeholders(world)

    play(World(1), what, None)


def test_nothing_is_written_while_nothing_changes() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 3)
        await until(lambda: asked(world) == ["1", "1"])
        await until(lambda: world.phase("a") == "Waiting")
        before, seen = _writes(world), _lists(world)
        await until(lambda: _lists(world) > seen + 3)
        assert _writes(world) == before

    play(World(1), what)


def _lists(world: World) -> int:
    return world.api.requests.count(("GET", "/api/v1/namespaces/ns/pods"))


def _writes(world: World) -> list[tuple[str, str]]:
    return [
        (method, path)
        for method, path in world.api.requests
        if method != "GET" and ("placeholder" in path or path.endswith(("/pods", "/nodes/n0")))
    ]


# --- death between any two requests ---------------------------------------------------------------


def dies_after(world: World, writes: int) -> Callable[[], bool]:
    """After so many writes about nodes nothing is heard of the leader; whether that is so."""
    written: list[str] = []

    def refuse(method: str, path: str) -> int | None:
        ours = any(one in path for one in ("placeholder", "provisioning", "podtemplates"))
        if method != "GET" and (ours or path.endswith(("/pods", "/nodes/n0"))):
            written.append(path)
        return 503 if len(written) > writes else None

    world.api.faults.refuse = refuse
    return lambda: len(written) > writes


def is_complete(world: World) -> bool:
    """Whether what two missing members need is asked for, in the one way or the other."""
    if placeholders(world):
        return asked(world) == ["2", "2"]
    return _sets(world) == [2] and len(placeholders(world, "podtemplates")) == 1


def is_empty(world: World) -> bool:
    every = ("pods", "podtemplates", "provisioningrequests")
    return not any(placeholders(world, one) for one in every)


# Placeholders: a label and two pods. Requests: a template and a request.
@pytest.mark.parametrize(
    ("options", "writes"),
    [*((ASKS, one) for one in range(3)), *((BY_REQUEST, one) for one in range(2))],
)
def test_the_next_leader_completes_what_a_dead_one_began(
    options: ScaleUpOptions, writes: int
) -> None:
    async def run() -> None:
        world = World(2)
        async with world.api.serving():
            is_dead = dies_after(world, writes)
            async with led(world, scale_up=options):
                world.gang("a", 3, gpu=2)
                await until(is_dead)
            assert not is_complete(world)
            world.revive()
            async with led(world, scale_up=options):
                await until(lambda: is_complete(world))

    asyncio.run(run())


@pytest.mark.parametrize("options", [ASKS, BY_REQUEST], ids=["placeholders", "requests"])
@pytest.mark.parametrize("writes", range(2))
def test_the_next_leader_removes_what_a_dead_one_left(options: ScaleUpOptions, writes: int) -> None:
    async def run() -> None:
        world = World(2)
        async with world.api.serving():
            async with led(world, scale_up=options):
                names = world.gang("a", 3, gpu=2)
                await until(lambda: is_complete(world))
                is_dead = dies_after(world, writes)
                world.delete(*names)
                await until(is_dead)
            assert not is_empty(world)
            world.revive()
            async with led(world, scale_up=options):
                await until(lambda: is_empty(world))

    asyncio.run(run())


# --- ProvisioningRequests -------------------------------------------------------------------------


def _sets(world: World) -> list[int]:
    requests = placeholders(world, "provisioningrequests")
    return [each["count"] for one in requests for each in one["spec"]["podSets"]]


def test_a_provisioning_request_asks_for_all_that_a_gang_lacks() -> None:
    async def what(world: World, _: Replica) -> None:
        world.api.put("nodes", node_json("n0", labels={"kubernetes.io/hostname": "host-0"}))
        world.gang("a", 4, gpu=2)
        await until(lambda: _sets(world) == [3])
        (request,) = placeholders(world, "provisioningrequests")
        (template,) = placeholders(world, "podtemplates")
        assert request["apiVersion"] == "autoscaling.x-k8s.io/v1"
        assert request["spec"]["provisioningClassName"] == "best-effort-atomic-scale-up"
        (one,) = request["spec"]["podSets"]
        assert one["podTemplateRef"] == {"name": template["metadata"]["name"]}
        spec = template["template"]["spec"]
        assert spec["containers"][0]["resources"]["limits"] == {"aliquot.io/gpu": "2"}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        (term,) = spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
        away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["host-0"]}
        assert term["matchExpressions"] == [away]
        assert not placeholders(world)
        assert (
            "aliquot.io/counted" not in world.api.objects["nodes", "", "n0"]["metadata"]["labels"]
        )

    play(World(2), what, BY_REQUEST)


def test_a_request_that_failed_long_ago_is_made_again() -> None:
    async def what(world: World, _: Replica) -> None:
        world.gang("a", 2, gpu=1)
        await until(lambda: _sets(world) == [1])
        (request,) = placeholders(world, "provisioningrequests")
        failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        world.api.put("provisioningrequests", {**request, "status": {"conditions": [failed]}})
        uid = request["metadata"]["uid"]

        def again() -> bool:
            found = placeholders(world, "provisioningrequests")
            return [one["metadata"]["uid"] for one in found] not in ([uid], [])

        await until(again)

    play(World(1), what, BY_REQUEST)


def test_a_cluster_without_provisioning_requests_loses_nothing_else() -> None:
    async def what(world: World, _: Replica) -> None:
        world.api.faults.refuse = lambda _, path: 404 if "provisioning" in path else None
        world.gang("big", 9)
        world.gang("a", 1)
        await is_bound(world, "a", 1)

    play(World(1), what, BY_REQUEST)
