"""Claims of waiting pods get their allocations: what is written, where, and when not."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter
from typing import Any

import pytest

from aliquot.kubernetes.api.dra import FINALIZER
from aliquot.kubernetes.api.dra_devices import parse_device
from aliquot.kubernetes.dra import refusals
from kubernetes.builders import GIB, gpu_uuid, make_node, make_pod
from kubernetes.dra.dra_world import (
    Json,
    Play,
    World,
    a_node,
    claim,
    device_class,
    played,
    pod,
    request,
)
from kubernetes.extender.replica import put_node, put_pod, replica
from kubernetes.fake_api import FakeApi, until

GPUS = [gpu_uuid(node, index) for node in ("n1", "n2") for index in range(2)]


def test_a_waiting_pod_gets_its_slice_as_kube_scheduler_would_write_it() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="10000Mi", compute=30))
        await until(lambda: not one.is_gated("a"))
        found = one.json("a")
        assert found["metadata"]["finalizers"] == [FINALIZER]
        allocation = found["status"]["allocation"]
        assert allocation["allocationTimestamp"].endswith("Z")
        (result,) = allocation["devices"]["results"]
        uuid.UUID(result.pop("shareID"))
        assert result.pop("device") in {"gpu-n1-0-sliced", "gpu-n1-1-sliced"}
        assert result == {
            "request": "gpu",
            "driver": "aliquot.io",
            "pool": "n1",
            "consumedCapacity": {"memory": str(10 * GIB), "compute": "30"},
        }
        assert one.node("a") == "n1"

    played(play)


def test_kinds_exclude_each_other_on_a_gpu_and_what_does_not_fit_waits() -> None:
    async def play(one: World) -> None:
        one.ask("slice", request(memory="8Gi"))
        await until(lambda: one.devices("slice"))
        one.ask("whole", request("whole"))
        await until(lambda: one.devices("whole"))
        one.ask("more", request(memory="70Gi"))
        await until(lambda: one.devices("more"))
        one.ask("late", request("shared"))
        await until(lambda: "InsufficientGPUs" in one.events("late"))
        (sliced,), (whole,) = one.devices("slice"), one.devices("whole")
        assert one.devices("more") == [sliced]
        assert sliced.removesuffix("-sliced") != whole.removesuffix("-whole")
        assert one.is_gated("late")
        assert "claim 'c0' asks for shared: 1 GPU" in one.events("late")["InsufficientGPUs"]
        assert "shareID" not in one.json("whole")["status"]["allocation"]["devices"]["results"][0]

    played(play)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_gpu_is_overbooked_whatever_claims_come_and_go(seed: int) -> None:
    async def play(one: World) -> None:
        draw, there = random.Random(seed), []  # noqa: S311 - the same each time
        for turn in range(3):
            for number in range(12):
                name = f"p{turn}-{number}"
                one.ask(name, drawn(draw))
                there.append(name)
            await until(lambda: all(one.devices(n) or one.events(n) for n in there))
            check(one)
            for name in draw.sample(there, 8):
                one.api.delete("pods", name, "ns")
                one.api.delete("resourceclaims", name, "ns")
                there.remove(name)
        await until(lambda: all(one.devices(n) or one.events(n) for n in there))
        check(one)
        assert any(one.devices(name) for name in there)

    played(play, a_node("n1", 2), a_node("n2", 2))


def test_shared_gpus_have_a_device_for_each_share() -> None:
    async def play(one: World) -> None:
        for name in "abc":
            one.ask(name, request("shared"))
        await until(lambda: one.devices("a") and one.devices("b"))
        await until(lambda: "InsufficientGPUs" in one.events("c"))
        found = sorted([*one.devices("a"), *one.devices("b")])
        assert found == ["gpu-n1-0-shared-0", "gpu-n1-0-shared-1"]

    played(play, a_node(gpus=1))


def test_selectors_and_constraints_decide_which_gpus_a_claim_gets() -> None:
    async def play(one: World) -> None:
        index = 'device.attributes["aliquot.io"].index == 3'
        one.ask("third", request("slice", index, memory="8Gi"))
        await until(lambda: one.devices("third"))
        assert one.devices("third") == ["gpu-n1-3-sliced"]
        near = [{"matchAttribute": "aliquot.io/neighbours"}]
        one.api.put("resourceclaims", claim("pair", request("whole", count=2), constraints=near))
        one.api.put("pods", pod("pair", "pair", made=False))
        await until(lambda: one.devices("pair"))
        assert sorted(one.devices("pair")) == ["gpu-n1-0-whole", "gpu-n1-1-whole"]
        one.api.put("resourceclaims", claim("late", request("whole", count=2), constraints=near))
        one.api.put("pods", pod("late", "late", made=False))
        await until(lambda: "InsufficientGPUs" in one.events("late"))
        one.ask("odd", request("slice", "device.bindsToNode"))
        await until(lambda: "UnsupportedClaim" in one.events("odd"))
        assert "device.bindsToNode" in one.events("odd")["UnsupportedClaim"]
        assert one.is_gated("odd")

    played(play, a_node(gpus=4, linked=True))


def test_claims_without_an_amount_of_memory_get_all_of_a_gpu() -> None:
    async def play(one: World) -> None:
        one.ask("a", request())
        await until(lambda: one.devices("a"))
        (result,) = one.json("a")["status"]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"] == {"memory": str(80 * GIB), "compute": "0"}

    played(play)


def test_a_claim_keeps_counting_until_its_node_reports_it_and_then_once() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="40Gi"))
        await until(lambda: one.devices("a"))
        one.reserve("a", "n1")
        one.ask("b", request(memory="41Gi"))
        await until(lambda: "InsufficientGPUs" in one.events("b"))
        one.report("a", "n1", 0, 40 * GIB)
        one.ask("c", request(memory="40Gi"))
        await until(lambda: one.devices("c"))
        assert not one.devices("b")

    played(play, a_node(gpus=1))


def test_a_claim_that_got_another_gpu_counts_there_while_its_former_grant_ends() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="60Gi"))
        await until(lambda: one.devices("a"))
        (device,) = one.devices("a")
        other = 0 if device == "gpu-n1-1-sliced" else 1
        one.report("a", "n1", other, 60 * GIB)
        nodes = one.replica.scheduler.cluster.nodes
        await until(lambda: nodes["n1"].status.gpus[other].grants)
        one.ask("b", request(memory="30Gi"))
        await until(lambda: "InsufficientGPUs" in one.events("b"))

    played(play)


def test_the_next_leader_knows_what_claims_have() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="50Gi"))
        await until(lambda: one.devices("a"))

        async with replica(one.api, resource_claims=True, lease="another") as other:
            await other.ready()
            one.ask("b", request(memory="50Gi"))
            await until(lambda: "InsufficientGPUs" in one.events("b"))

    played(play, a_node(gpus=1))


def test_a_pod_whose_allocation_is_taken_back_gets_another_node() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="8Gi"))
        await until(lambda: one.devices("a") and not one.is_gated("a"))
        first = one.node("a")
        one.take_back("a")
        await until(lambda: one.devices("a") and one.node("a") != first)

    played(play, a_node("n1"), a_node("n2"))


def test_a_pod_gets_the_same_node_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "BARRED_SECONDS", refusals.LONGEST_BAR)

    async def play(one: World) -> None:
        one.ask("a", request(memory="8Gi"))
        await until(lambda: one.devices("a") and not one.is_gated("a"))
        one.take_back("a")
        await until(lambda: "NoNodeForClaims" in one.events("a"))
        assert "did not accept n1" in one.events("a")["NoNodeForClaims"]
        later = time.time() + refusals.LONGEST_BAR
        allocator = one.replica.scheduler._allocator
        assert allocator is not None
        monkeypatch.setattr(allocator._waits, "_now", lambda: later)
        await until(lambda: one.devices("a"))

    played(play)


def test_pods_without_a_gate_get_allocations_too() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="8Gi"), gated=False)
        await until(lambda: one.devices("a"))

    played(play)


def test_pods_with_gates_of_others_wait_for_these() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="8Gi"), schedulingGates=[{"name": "example.com/quota"}])
        one.ask("b", request(memory="8Gi"))
        await until(lambda: one.devices("b"))
        assert not one.devices("a")

    played(play)


def test_claims_of_other_drivers_are_left_alone() -> None:
    async def play(one: World) -> None:
        one.api.put("deviceclasses", device_class("nic", 'device.driver == "nic.example.com"'))
        nic = {"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}}
        one.api.put("resourceclaims", claim("nic", nic, pod="a"))
        one.api.put("resourceclaims", claim("gpu", request(memory="8Gi"), pod="a"))
        one.api.put("pods", pod("a", "nic", "gpu"))
        one.ask("b", nic)
        await until(lambda: one.devices("gpu") and not one.is_gated("a"))
        await until(lambda: not one.is_gated("b"))
        assert not one.devices("nic")
        assert not one.devices("b")

    played(play)


def test_only_nodes_whose_agents_leave_claims_to_aliquot_get_any() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="8Gi"))
        await until(lambda: "NoMatchingGPU" in one.events("a"))
        put_node(one.api, a_node("n3"))
        await until(lambda: one.devices("a"))
        assert one.node("a") == "n3"

    played(play, a_node("n1", by="kube-scheduler"), make_node("n2"))


def test_pods_that_ask_by_resources_get_no_gpus_of_claims() -> None:
    async def play(one: World) -> None:
        devices: dict[str, Any] = {"capacity": {}, "allocatable": {}}
        one.api.put("nodes", {"metadata": {"name": "n2", "labels": {}}, "status": devices})
        put_node(one.api, a_node("n2"))
        await until(lambda: "n2" in one.replica.scheduler.cluster.nodes)
        by_resource = put_pod(one.api, make_pod("a", gpu=1))
        answer = await one.replica.filter(by_resource, "n1", "n2")
        assert answer["NodeNames"] == ["n1"]
        one.ask("b", request(memory="8Gi"))
        await until(lambda: one.devices("b"))
        assert one.node("b") == "n2"

    played(play, make_node("n1"))


def test_a_pod_goes_only_where_taints_and_selectors_let_it() -> None:
    async def play(one: World) -> None:
        one.ask("a", request(memory="8Gi"), nodeSelector={"zone": "b"})
        await until(lambda: "NoNodeForClaims" in one.events("a"))
        body = one.api.objects["nodes", "", "n2"]
        labels = {**body["metadata"], "labels": {"zone": "b"}}
        one.api.put("nodes", {**body, "metadata": labels})
        await until(lambda: one.devices("a"))
        assert one.node("a") == "n2"

    played(play, a_node("n1"), a_node("n2"))


def test_all_claims_of_a_pod_are_on_one_node() -> None:
    async def play(one: World) -> None:
        for name in ("x", "y"):
            one.api.put("resourceclaims", claim(name, request("whole"), pod="a"))
        one.ask("other", request("whole"))
        await until(lambda: one.devices("other"))
        one.api.put("pods", pod("a", "x", "y"))
        await until(lambda: not one.is_gated("a"))
        assert one.node("x") == one.node("y")
        assert one.devices("x") != one.devices("y")

    played(play, a_node("n1"), a_node("n2"))


def test_a_claim_that_a_pod_shares_with_an_earlier_one_keeps_its_node() -> None:
    async def play(one: World) -> None:
        one.api.put("resourceclaims", claim("common", request(memory="8Gi")))
        one.api.put("pods", pod("a", "common", made=False))
        await until(lambda: one.devices("common") and not one.is_gated("a"))
        before = one.json("common")["status"]
        one.api.put("pods", pod("b", "common", made=False))
        await until(lambda: not one.is_gated("b"))
        assert one.json("common")["status"] == before

    played(play)


def test_an_allocation_that_no_pod_uses_is_taken_back() -> None:
    async def play(one: World) -> None:
        one.api.put("resourceclaims", claim("common", request("whole")))
        one.api.put("pods", pod("a", "common", made=False))
        await until(lambda: one.devices("common") and not one.is_gated("a"))
        one.api.delete("pods", "a", "ns")
        await until(lambda: not one.devices("common"))
        one.ask("b", request("whole"))
        await until(lambda: one.devices("b"))

    played(play, a_node(gpus=1))


def test_a_claim_that_changes_meanwhile_is_tried_again() -> None:
    async def play(one: World) -> None:
        path = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/a/status"
        left = [409, 409]

        def refuse(method: str, at: str) -> int | None:
            return left.pop() if (method, at) == ("PATCH", path) and left else None

        one.api.faults.refuse = refuse
        one.ask("a", request("whole"))
        await until(lambda: one.devices("a"))
        one.ask("b", request("whole"))
        await until(lambda: "InsufficientGPUs" in one.events("b"))

    played(play, a_node(gpus=1))


def test_an_allocation_that_is_forbidden_counts_nowhere_and_is_said_on_the_pod() -> None:
    async def play(one: World) -> None:
        forbidden = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/a/status"
        one.api.faults.refuse = lambda _method, at: 403 if at == forbidden else None
        one.ask("a", request("whole"))
        await until(lambda: "ClaimNotAllocated" in one.events("a"))
        one.ask("b", request("whole"))
        await until(lambda: one.devices("b"))
        assert one.is_gated("a")

    played(play, a_node(gpus=1))


def test_the_queue_of_its_pod_limits_a_claim() -> None:
    async def play(one: World) -> None:
        one.ask("a", request("whole"), metadata=in_team())
        one.ask("b", request(memory="8Gi", compute=10), metadata=in_team())
        await until(lambda: one.devices("a") or one.devices("b"))
        await until(lambda: "QueueFull" in {**one.events("a"), **one.events("b")})
        (waits,) = (name for name in "ab" if "QueueFull" in one.events(name))
        (has,) = {"a", "b"} - {waits}
        assert not one.devices(waits)
        one.reserve(has, "n1")
        one.ask("free", request(memory="8Gi"))
        await until(lambda: one.devices("free"))
        one.api.delete("pods", has, "ns")
        one.api.delete("resourceclaims", has, "ns")
        await until(lambda: one.devices(waits))

    played(in_limited_queue(play))


def test_what_a_pod_has_counts_for_the_limit_when_its_other_claims_are_allocated() -> None:
    async def play(one: World) -> None:
        refused = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/second/status"
        one.api.faults.refuse = lambda _method, at: 409 if at == refused else None
        for name in ("first", "second"):
            one.api.put("resourceclaims", claim(name, request(memory="39Gi"), pod="a"))
        one.api.put("pods", pod("a", "first", "second", metadata=in_team()))
        await until(lambda: one.devices("first"))
        one.ask("b", request(memory="39Gi"), metadata=in_team())
        await until(lambda: one.devices("b"))
        one.api.faults.refuse = lambda _method, _at: None
        await until(lambda: one.devices("second") or "QueueFull" in one.events("a"))
        assert not one.devices("second")

    played(in_limited_queue(play))


def test_a_shared_claim_counts_for_the_queue_of_a_pod_that_still_uses_it() -> None:
    async def play(one: World) -> None:
        one.api.put("resourceclaims", claim("common", request(memory="50Gi")))
        for name in "ab":
            one.api.put("pods", pod(name, "common", made=False, metadata=in_team()))
        await until(lambda: not one.is_gated("a") and not one.is_gated("b"))
        (device,) = one.devices("common")
        for name in "ab":
            one.reserve("common", "n1", pods=("a", "b"), binds=name)
        one.report("common", "n1", int(device.removesuffix("-sliced")[-1]), 50 * GIB, pod="a")
        one.api.delete("pods", "a", "ns")
        one.ask("c", request("whole"), metadata=in_team())
        await until(lambda: "QueueFull" in one.events("c"))
        assert not one.devices("c")

    played(in_limited_queue(play))


def test_pods_that_ask_by_resources_too_are_refused() -> None:
    async def play(one: World) -> None:
        resources = {"limits": {"aliquot.io/gpu": "1"}}
        one.ask("a", request(memory="8Gi"), containers=[{"name": "m", "resources": resources}])
        await until(lambda: "SeveralKinds" in one.events("a"))
        assert not one.devices("a")

    played(play)


def test_nothing_is_read_or_allocated_without_the_option() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, a_node())
        async with api.serving(), replica(api) as one:
            await one.ready()
            World(api, one).ask("a", request(memory="8Gi"))
            await one.filter(put_pod(api, make_pod("b", gpu=1)), "n1")
            assert not any("resource.k8s.io" in path for _, path in api.requests)

    asyncio.run(run())


def in_team() -> dict[str, Any]:
    return {"labels": {"aliquot.io/queue": "team"}}


def in_limited_queue(play: Play) -> Play:
    """With a queue of one GPU, which all namespaces may use."""

    async def with_queue(one: World) -> None:
        spec = {"limit": {"gpus": 1}, "namespaceSelector": {}}
        one.api.put("queues", {"metadata": {"name": "team"}, "spec": spec})
        view = one.replica.scheduler._view
        await until(lambda: "team" in view.queues.objects)
        await play(one)

    return with_queue


def drawn(draw: random.Random) -> Json:
    """A claim's request."""
    kind = draw.choice(["whole", "shared", "slice", "slice"])
    if kind != "slice":
        return request(kind, count=draw.choice([1, 1, 2]))
    memory, compute = draw.randrange(1, 60), draw.randrange(80)
    return request(kind, memory=f"{memory}Gi", compute=compute)


def check(one: World) -> None:
    """What kube-scheduler's counters would allow: one kind on a GPU, no more than it has."""
    kinds: dict[str, set[str]] = {}
    sums: Counter[tuple[str, str]] = Counter()
    names: list[str] = []
    for found in one.api.all("resourceclaims"):
        allocation = found.get("status", {}).get("allocation")
        for result in allocation["devices"]["results"] if allocation else ():
            uuid_, kind = parse_device(result["device"], GPUS) or ("", "")
            kinds.setdefault(uuid_, set()).add(kind)
            names += [result["device"]] if kind != "sliced" else []
            for name, amount in result.get("consumedCapacity", {}).items():
                sums[uuid_, name] += int(amount)
    assert all(len(one) == 1 for one in kinds.values())
    assert len(names) == len(set(names))
    most = {"memory": 80 * GIB, "compute": 100}
    assert all(amount <= most[name] for (_, name), amount in sums.items())
