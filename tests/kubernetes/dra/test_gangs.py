"""Gangs whose pods ask for GPUs by resource claims: all of them get GPUs, or none."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from aliquot.kubernetes.cluster import dra
from aliquot.kubernetes.dra import refusals
from kubernetes.builders import GIB
from kubernetes.dra.dra_world import (
    KINDS,
    Json,
    World,
    a_node,
    claim,
    device_class,
    played,
    pod,
    request,
    shipped_class,
)
from kubernetes.extender.replica import put_node, replica
from kubernetes.fake_api import FakeApi, until

GATES = [{"name": "aliquot.io/gang"}, {"name": "aliquot.io/resource-claims"}]


def gang(
    one: World, name: str, size: int, *requests: Json, pods: int | None = None, **more: Any
) -> list[str]:
    """The pods of a gang, each with a claim of its own; their names."""
    names = [f"{name}-{number}" for number in range(size if pods is None else pods)]
    for member in names:
        one.api.put("resourceclaims", claim(member, *requests, pod=member))
    for member in names:
        one.api.put("pods", gang_pod(member, name, size, member, **more))
    return names


def gang_pod(
    member: str,
    name: str,
    size: int,
    *claims: str,
    made: bool = True,
    queue: str = "",
    **more: Any,
) -> Json:
    meta: Json = {"annotations": {"aliquot.io/gang": name, "aliquot.io/gang-size": str(size)}}
    if queue:
        meta["labels"] = {"aliquot.io/queue": queue}
    return pod(member, *claims, made=made, metadata=meta, schedulingGates=GATES, **more)


def allocated(one: World, names: list[str]) -> list[str]:
    return [name for name in names if one.devices(name)]


def is_started(one: World, names: list[str]) -> bool:
    return allocated(one, names) == names and not any(one.is_gated(name) for name in names)


def phase(one: World, name: str) -> str:
    found = one.api.objects.get(("gangs", "ns", name), {})
    return str(found.get("status", {}).get("phase", ""))


def reason(one: World, name: str) -> str:
    return str(one.api.objects["gangs", "ns", name]["status"].get("reason", ""))


def status_of(name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}/status"


def refuse(one: World, name: str, code: int) -> None:
    """The API server refuses to write the allocation of a claim."""
    one.api.faults.refuse = lambda method, at: (
        code if (method, at) == ("PATCH", status_of(name)) else None
    )


def accept(one: World) -> None:
    one.api.faults.refuse = lambda _method, _at: None


def test_all_members_get_their_gpus_together_and_then_their_gates_are_opened() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole", count=4))
        await until(lambda: is_started(one, names))
        assert {one.node(name) for name in names} == {"n1", "n2"}
        assert all(len(set(one.devices(name))) == 4 for name in names)
        await until(lambda: phase(one, "g") == "Reserved")
        for name in names:
            one.reserve(name, one.node(name))
        await until(lambda: phase(one, "g") == "Bound")

    played(play, a_node("n1", 4), a_node("n2", 4))


def test_members_are_close_to_each_other() -> None:
    async def play(one: World) -> None:
        for number in range(1, 5):
            rack = {"aliquot.io/rack": "left" if number in {1, 4} else "right"}
            body = one.api.objects["nodes", "", f"n{number}"]
            meta = {**body["metadata"], "labels": rack}
            one.api.put("nodes", {**body, "metadata": meta})
        one.ask("other", request("whole"), nodeSelector={"aliquot.io/rack": "left"})
        await until(lambda: one.devices("other"))
        names = gang(one, "g", 2, request("whole", count=2))
        await until(lambda: is_started(one, names))
        assert {one.node(name) for name in names} == {"n2", "n3"}

    played(play, *(a_node(f"n{number}", 2) for number in range(1, 5)))


def test_a_gang_that_does_not_fit_has_nothing_and_says_why() -> None:
    async def play(one: World) -> None:
        one.ask("other", request("whole"))
        await until(lambda: one.devices("other"))
        names = gang(one, "g", 2, request("whole", count=2))
        await until(lambda: phase(one, "g") == "Waiting")
        await until(lambda: all("Waiting" in one.events(name) for name in names))
        assert "gang g: 4 GPUs requested; 3 free" in one.events(names[0])["Waiting"]
        assert "4 GPUs requested; 3 free" in reason(one, "g")
        assert not allocated(one, names)
        assert all(one.is_gated(name) for name in names)
        one.api.delete("pods", "other", "ns")
        one.api.delete("resourceclaims", "other", "ns")
        await until(lambda: is_started(one, names))

    played(play, a_node("n1", 2), a_node("n2", 2))


def test_a_gang_waits_until_all_its_pods_exist() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 3, request(memory="8Gi"), pods=2)
        await until(lambda: phase(one, "g") == "Gathering" and "2 of its 3" in reason(one, "g"))
        assert not allocated(one, names)
        one.api.put("resourceclaims", claim("g-2", request(memory="8Gi"), pod="g-2"))
        one.api.put("pods", gang_pod("g-2", "g", 3, "g-2"))
        await until(lambda: is_started(one, [*names, "g-2"]))

    played(play)


def test_a_gang_larger_than_the_cluster_is_refused() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 3, request("whole"))
        await until(lambda: phase(one, "g") == "Refused")
        await until(lambda: "Refused" in one.events("g-0"))
        assert "it asks for 3 GPUs, and there are 2" in one.events("g-0")["Refused"]
        assert not allocated(one, names)

    played(play)


def test_an_allocation_that_is_refused_leaves_none_to_the_others() -> None:
    async def play(one: World) -> None:
        refuse(one, "g-1", 403)
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: "ClaimNotAllocated" in one.events("g-1"))
        await until(lambda: not allocated(one, names))
        assert all(one.is_gated(name) for name in names)
        accept(one)
        await until(lambda: is_started(one, names), 30)

    played(play)


def test_a_gang_whose_second_claim_changes_meanwhile_is_completed() -> None:
    async def play(one: World) -> None:
        left = [409]
        one.api.faults.refuse = lambda method, at: (
            left.pop() if left and (method, at) == ("PATCH", status_of("g-1")) else None
        )
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: is_started(one, names))
        assert len({one.devices(name)[0] for name in names}) == 2

    played(play)


def test_a_leader_that_dies_between_two_writes_leaves_a_gang_to_the_next_one() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, a_node())
        for kind in KINDS:
            api.put("deviceclasses", shipped_class(kind))
        async with api.serving():
            async with replica(api, resource_claims=True) as first:
                await first.ready()
                one = World(api, first)
                refuse(one, "g-1", 503)
                names = gang(one, "g", 2, request("whole"))
                tried = ("PATCH", status_of("g-1"))
                await until(lambda: one.devices("g-0") and tried in api.requests)
            assert allocated(one, names) == ["g-0"]
            assert all(one.is_gated(name) for name in names)
            accept(one)
            async with replica(api, resource_claims=True, lease="another") as second:
                await second.ready()
                await until(lambda: is_started(one, names))
                assert len({one.devices(name)[0] for name in names}) == 2

    asyncio.run(run())


def test_a_write_of_which_nobody_knows_holds_the_gates_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dra, "UNSURE_SECONDS", 0.5)

    async def play(one: World) -> None:
        refuse(one, "g-1", 503)
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: one.devices("g-0") and "ClaimNotAllocated" in one.events("g-1"))
        assert all(one.is_gated(name) for name in names)
        accept(one)
        await until(lambda: is_started(one, names))
        assert len({one.devices(name)[0] for name in names}) == 2

    played(play)


def test_the_next_leader_completes_a_gang_of_which_one_claim_is_allocated() -> None:
    async def play(one: World) -> None:
        half_allocated(one)
        names = ["g-0", "g-1"]
        await until(lambda: is_started(one, names))
        assert one.devices("g-0") == ["gpu-n1-0-whole"]
        assert one.devices("g-1") == ["gpu-n1-1-whole"]

    played(play, a_node("n1", 2), a_node("n2", 2))


def test_the_next_leader_takes_back_what_half_a_gang_has_that_does_not_fit() -> None:
    async def play(one: World) -> None:
        one.ask("other", request("whole"))
        await until(lambda: one.devices("other"))
        (taken,) = one.devices("other")
        half_allocated(one, "gpu-n1-0-whole" if taken == "gpu-n1-1-whole" else "gpu-n1-1-whole")
        await until(lambda: not one.devices("g-0"))
        assert one.is_gated("g-0")
        await until(lambda: phase(one, "g") == "Waiting")

    played(play)


def test_what_a_gang_has_is_taken_back_if_a_member_is_deleted_before_it_starts() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: is_started(one, names))
        one.api.delete("pods", "g-1", "ns")
        one.api.delete("resourceclaims", "g-1", "ns")
        await until(lambda: not one.devices("g-0"))

    played(play)


def test_nothing_is_taken_back_once_a_member_has_a_node() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: is_started(one, names))
        one.reserve("g-0", "n1")
        one.api.delete("pods", "g-1", "ns")
        one.api.delete("resourceclaims", "g-1", "ns")
        one.ask("single", request("whole"))
        await until(lambda: one.devices("single"))
        one.api.put("resourceclaims", claim("g-1", request("whole"), pod="g-1"))
        one.api.put("pods", gang_pod("g-1", "g", 2, "g-1"))
        await until(lambda: "Waiting" in one.events("g-1"))
        assert one.devices("g-0")
        one.api.delete("pods", "single", "ns")
        one.api.delete("resourceclaims", "single", "ns")
        await until(lambda: one.devices("g-1") and not one.is_gated("g-1"))

    played(play)


def test_pods_that_are_ending_do_not_count_as_members_of_the_next_run() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: is_started(one, names))
        for name in names:
            one.reserve(name, "n1")
        await until(lambda: phase(one, "g") == "Bound")
        for name in names:
            body = one.api.objects["pods", "ns", name]
            meta = {**body["metadata"], "deletionTimestamp": "2026-11-15T12:00:00Z"}
            one.api.put("pods", {**body, "metadata": meta})
        after = ["again-0", "again-1"]
        for name in after:
            one.api.put("resourceclaims", claim(name, request("whole"), pod=name))
            one.api.put("pods", gang_pod(name, "g", 2, name))
        await until(lambda: phase(one, "g") == "Waiting")
        for name in names:
            one.api.delete("pods", name, "ns")
            one.api.delete("resourceclaims", name, "ns")
        await until(lambda: is_started(one, after))

    played(play)


def test_a_gang_one_of_whose_allocations_kube_scheduler_takes_back_goes_elsewhere() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole", count=2))
        await until(lambda: is_started(one, names))
        first = one.node("g-0")
        one.take_back("g-0")
        await until(lambda: one.devices("g-0") and one.node("g-0") != first)
        await until(lambda: is_started(one, names))
        assert one.node("g-0") != one.node("g-1")

    played(play, a_node("n1", 2), a_node("n2", 2), a_node("n3", 2))


def test_a_gang_that_has_only_a_node_that_kube_scheduler_did_not_accept_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusals, "BARRED_SECONDS", refusals.LONGEST_BAR)

    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole"))
        await until(lambda: is_started(one, names))
        one.take_back("g-0")
        await until(lambda: not one.devices("g-1"))
        await until(lambda: "did not accept n1" in reason(one, "g"))
        assert not allocated(one, names)

    played(play)


def test_two_gangs_that_do_not_fit_together_start_one_after_the_other() -> None:
    async def play(one: World) -> None:
        both = {name: gang(one, name, 2, request("whole", count=2)) for name in ("g", "h")}
        await until(lambda: any(is_started(one, names) for names in both.values()))
        first = next(name for name, names in both.items() if is_started(one, names))
        second = "h" if first == "g" else "g"
        await until(lambda: phase(one, second) == "Waiting")
        assert not allocated(one, both[second])
        for name in both[first]:
            one.api.delete("pods", name, "ns")
            one.api.delete("resourceclaims", name, "ns")
        await until(lambda: is_started(one, both[second]))

    played(play, a_node("n1", 2), a_node("n2", 2))


def test_the_limit_of_its_queue_holds_for_a_whole_gang() -> None:
    async def play(one: World) -> None:
        queue(one, 3)
        one.ask("single", request("whole"), metadata={"labels": {"aliquot.io/queue": "team"}})
        await until(lambda: one.devices("single"))
        names = gang(one, "g", 3, request("whole"), queue="team")
        await until(lambda: "Waiting" in one.events("g-0"))
        assert "team" in one.events("g-0")["Waiting"]
        assert not allocated(one, names)
        large = gang(one, "large", 4, request("whole"), queue="team")
        await until(lambda: phase(one, "large") == "Refused")
        assert not allocated(one, large)
        one.api.delete("pods", "single", "ns")
        one.api.delete("resourceclaims", "single", "ns")
        await until(lambda: is_started(one, names))

    played(play, a_node("n1", 4), a_node("n2", 4))


def test_members_that_share_a_claim_are_on_one_node() -> None:
    async def play(one: World) -> None:
        one.ask("other", request("whole"))
        await until(lambda: one.devices("other"))
        one.api.put("resourceclaims", claim("common", request("whole")))
        for number in range(2):
            name = f"g-{number}"
            one.api.put("resourceclaims", claim(name, request("whole"), pod=name))
            made = gang_pod(name, "g", 2, "common", name)
            made["spec"]["resourceClaims"][0] = {"name": "c0", "resourceClaimName": "common"}
            made["status"]["resourceClaimStatuses"] = made["status"]["resourceClaimStatuses"][1:]
            one.api.put("pods", made)
        await until(lambda: not one.is_gated("g-0") and not one.is_gated("g-1"))
        every = ["common", "g-0", "g-1"]
        assert len({one.node(name) for name in every}) == 1
        assert len({one.devices(name)[0] for name in every}) == 3

    played(play, a_node("n1", 3), a_node("n2", 3))


def test_members_of_one_shared_slice_start_together() -> None:
    async def play(one: World) -> None:
        one.api.put("resourceclaims", claim("common", request(memory="8Gi", compute=10)))
        for number in range(2):
            one.api.put("pods", gang_pod(f"g-{number}", "g", 2, "common", made=False))
        await until(lambda: not one.is_gated("g-0") and not one.is_gated("g-1"))
        (result,) = one.json("common")["status"]["allocation"]["devices"]["results"]
        assert result["consumedCapacity"] == {"memory": str(8 * GIB), "compute": "10"}

    played(play)


def test_each_member_gets_gpus_with_an_attribute_in_common() -> None:
    async def play(one: World) -> None:
        near = [{"matchAttribute": "aliquot.io/neighbours"}]
        names = ["g-0", "g-1"]
        for name in names:
            body = claim(name, request("whole", count=2), pod=name, constraints=near)
            one.api.put("resourceclaims", body)
            one.api.put("pods", gang_pod(name, "g", 2, name))
        await until(lambda: is_started(one, names))
        found = sorted(tuple(sorted(one.devices(name))) for name in names)
        assert found == [
            ("gpu-n1-0-whole", "gpu-n1-1-whole"),
            ("gpu-n1-2-whole", "gpu-n1-3-whole"),
        ]

    played(play, a_node(gpus=4, linked=True))


def test_a_gang_with_a_claim_that_is_not_understood_is_refused() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("slice", "device.bindsToNode"))
        await until(lambda: "UnsupportedClaim" in one.events("g-0"))
        await until(lambda: phase(one, "g") == "Refused")
        assert "device.bindsToNode" in reason(one, "g")
        assert not allocated(one, names)

    played(play)


def test_a_gang_whose_pods_ask_in_both_ways_is_refused() -> None:
    async def play(one: World) -> None:
        names = gang(one, "g", 2, request("whole"), pods=1)
        body = gang_pod("g-1", "g", 2)
        body["spec"]["containers"][0]["resources"] = {"limits": {"aliquot.io/gpu": "1"}}
        one.api.put("pods", body)
        await until(lambda: phase(one, "g") == "Refused")
        assert "ask in one way" in " ".join(reason(one, "g").split())
        assert not allocated(one, names)

    played(play)


def test_claims_for_other_drivers_hold_no_gang_back() -> None:
    async def play(one: World) -> None:
        one.api.put("deviceclasses", device_class("nic", 'device.driver == "nic.example.com"'))
        nic = {"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}}
        names = gang(one, "g", 2, nic)
        await until(lambda: all(len(gates(one, name)) == 1 for name in names))
        assert gates(one, "g-0") == ["aliquot.io/gang"]

    played(play)


def gates(one: World, name: str) -> list[str]:
    spec = one.api.objects["pods", "ns", name]["spec"]
    return [gate["name"] for gate in spec.get("schedulingGates") or ()]


def queue(one: World, gpus: int) -> None:
    spec = {"limit": {"gpus": gpus}, "namespaceSelector": {}}
    one.api.put("queues", {"metadata": {"name": "team"}, "spec": spec})


def half_allocated(one: World, device: str = "gpu-n1-0-whole", pods: int = 2) -> None:
    """A gang of two as a leader leaves it that dies between its first and its second write."""
    body = claim("g-0", request("whole"), pod="g-0")
    result = {
        "request": "gpu",
        "driver": "aliquot.io",
        "pool": "n1",
        "device": device,
    }
    body["status"] = {"allocation": {"devices": {"results": [result]}}}
    one.api.put("resourceclaims", body)
    one.api.put("resourceclaims", claim("g-1", request("whole"), pod="g-1"))
    for name in ("g-0", "g-1")[:pods]:
        one.api.put("pods", gang_pod(name, "g", 2, name))


def is_waiting(one: World, name: str) -> bool:
    """Whether the scheduler knows of a gang by now, and so of all changes of pods before."""
    one.api.put_if_absent("pods", gang_pod(f"{name}-0", name, 2))
    return phase(one, name) == "Gathering"


def test_no_gate_is_opened_if_a_member_is_deleted_while_claims_are_written() -> None:
    async def play(one: World) -> None:
        held = one.api.faults.held[status_of("g-1")] = asyncio.Event()
        gang(one, "g", 2, request("whole"))
        await until(lambda: ("PATCH", status_of("g-1")) in one.api.requests)
        one.api.delete("pods", "g-0", "ns")
        one.api.delete("resourceclaims", "g-0", "ns")
        await until(lambda: is_waiting(one, "later"))
        held.set()
        await until(lambda: one.devices("g-1") or "1 of its 2" in reason(one, "g"))
        await until(lambda: not one.devices("g-1") and "1 of its 2" in reason(one, "g"))
        assert one.is_gated("g-1")

    played(play)


def test_a_member_whose_claims_come_in_the_middle_of_a_pass_is_not_served_alone() -> None:
    async def play(one: World) -> None:
        for name in ("g-0", "g-1"):
            one.api.put("pods", gang_pod(name, "g", 2, name))
        await until(lambda: phase(one, "g") == "Gathering" and "claims" in reason(one, "g"))
        held = one.api.faults.held[status_of("first")] = asyncio.Event()
        one.ask("first", request("whole"))
        await until(lambda: ("PATCH", status_of("first")) in one.api.requests)
        for name in ("g-0", "g-1"):
            one.api.put("resourceclaims", claim(name, request("whole"), pod=name))
        opening = "/api/v1/namespaces/ns/pods/first"
        rest = one.api.faults.held[opening] = asyncio.Event()
        held.set()
        await until(lambda: ("PATCH", opening) in one.api.requests)
        rest.set()
        await until(lambda: "1 free" in reason(one, "g"))
        assert ("PATCH", status_of("g-0")) not in one.api.requests
        assert gates(one, "g-0") == gates(one, "g-1") == [one["name"] for one in GATES]

    played(play)


def hold_claims_after_taking_back(one: World, name: str) -> asyncio.Event:
    """The scheduler does not see claims change from when it takes back an allocation."""
    held = asyncio.Event()

    def hold(method: str, at: str) -> None:
        if (method, at) == ("PATCH", status_of(name)):
            one.api.faults.held["watch resourceclaims"] = held

    one.api.faults.refuse = hold
    return held


async def until_all_are_served(one: World, name: str) -> None:
    """Wait for a pass over all pods with earlier names that exist now."""
    late = pod(name, "none")
    late["status"]["resourceClaimStatuses"] = [{"name": "c0"}]  # it needs none
    one.api.put("pods", late)
    await until(lambda: not one.is_gated(name))


def test_what_was_taken_back_bars_no_node_if_the_watch_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusals, "BARRED_SECONDS", refusals.LONGEST_BAR)

    async def play(one: World) -> None:
        held = hold_claims_after_taking_back(one, "g-0")
        one.ask("other", request("whole"))
        await until(lambda: one.devices("other"))
        (taken,) = one.devices("other")
        half_allocated(one, "gpu-n1-0-whole" if taken == "gpu-n1-1-whole" else "gpu-n1-1-whole")
        await until(lambda: not one.devices("g-0"))
        await until_all_are_served(one, "z")
        accept(one)
        one.api.faults.held.clear()
        held.set()
        one.api.delete("pods", "other", "ns")
        one.api.delete("resourceclaims", "other", "ns")
        await until(lambda: is_started(one, ["g-0", "g-1"]))

    played(play)


def test_a_gang_does_not_go_on_with_what_is_being_taken_back() -> None:
    async def play(one: World) -> None:
        held = hold_claims_after_taking_back(one, "g-0")
        half_allocated(one, pods=1)
        await until(lambda: not one.devices("g-0"))
        one.api.put("pods", gang_pod("g-1", "g", 2, "g-1"))
        await until_all_are_served(one, "z")
        assert one.is_gated("g-0")
        assert one.is_gated("g-1")
        accept(one)
        one.api.faults.held.clear()
        held.set()
        await until(lambda: is_started(one, ["g-0", "g-1"]))

    played(play)


def test_what_a_gang_has_on_a_node_that_is_gone_is_taken_back() -> None:
    async def play(one: World) -> None:
        half_allocated(one)
        await until(lambda: is_started(one, ["g-0", "g-1"]))
        assert {one.node(name) for name in ("g-0", "g-1")} == {"n2"}

    played(play, a_node("n2", 2))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_half_gang_goes_on_or_stays_whatever_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dra, "UNSURE_SECONDS", 0.2)
    monkeypatch.setattr(refusals, "LONGEST_BAR", 0.2)

    async def play(one: World) -> None:
        draw = random.Random(seed)  # noqa: S311 - the same each time
        gangs: dict[str, list[str]] = {}
        early: list[str] = []

        def refuse_some(method: str, at: str) -> int | None:
            member = at.rsplit("/", 1)[-1]
            if method == "PATCH" and "/pods/" in at:
                names = next(names for names in gangs.values() if member in names)
                early.extend(name for name in names if not one.devices(name))
            if method != "PATCH" or "/gangs/" in at:
                return None
            return draw.choice([409, 403, 503]) if draw.random() < 0.3 else None

        one.api.faults.refuse = refuse_some
        for turn in range(4):
            name = f"g{turn}"
            size = draw.choice([2, 3])
            gangs[name] = [f"{name}-{number}" for number in range(size)]
            gang(one, name, size, request("whole", count=draw.choice([1, 2])))
            await until(lambda: any(is_started(one, names) for names in gangs.values()))
            done = next(name for name, names in gangs.items() if is_started(one, names))
            for member in gangs.pop(done):
                one.api.delete("pods", member, "ns")
                one.api.delete("resourceclaims", member, "ns")
        accept(one)
        await until(lambda: all(settled(one, names) for names in gangs.values()))
        assert not early

    played(play, a_node("n1", 4), a_node("n2", 4))


def settled(one: World, names: list[str]) -> bool:
    return not allocated(one, names) or is_started(one, names)
