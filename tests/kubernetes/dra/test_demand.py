"""What claims ask for, and which of them are refused because that cannot be decided."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.dra import DeviceClass, ResourceClaim
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.objects import GpuNode
from aliquot.kubernetes.api.requests import ContainerRequest
from aliquot.kubernetes.dra.demand import ClaimDemand, Devices, demand_of
from aliquot.model import Policy, Priority
from kubernetes.builders import GIB, make_node
from kubernetes.dra.dra_world import Json, claim, device_class, request, shipped_class

OURS = 'device.attributes["aliquot.io"]'
CLASSES = [
    *(shipped_class(kind) for kind in ("whole", "shared", "slice")),
    device_class("any.aliquot.io", 'device.driver == "aliquot.io"'),
    device_class("strong.aliquot.io", f'{OURS}.kind == "whole" && {OURS}.strength >= 100'),
    device_class("odd.aliquot.io", f'{OURS}.kind.matches("w.*")'),
    device_class("nic.example.com", 'device.driver == "nic.example.com"'),
]
NODES = [
    make_node("n1", 4, linked=True, strength=286.0),
    make_node("n2", 2, model="T4", memory=16 * GIB, strength=30.0),
]


def demand(
    *requests: Json, nodes: list[GpuNode] | None = None, classes: tuple[Json, ...] = (), **more: Any
) -> ClaimDemand | None:
    found = msgspec.json.decode(
        msgspec.json.encode(claim("a", *requests, **more)), type=ResourceClaim
    )
    known = [
        msgspec.json.decode(msgspec.json.encode(one), type=DeviceClass)
        for one in (*CLASSES, *classes)
    ]
    devices = Devices(
        {one.metadata.name: one.status for one in (NODES if nodes is None else nodes)}
    )
    return demand_of("gpu", found, {one.metadata.name: one for one in known}, devices)


def made(*requests: Json, **more: Any) -> ClaimDemand:
    found = demand(*requests, **more)
    assert found is not None
    return found


def only(*requests: Json, **more: Any) -> ContainerRequest:
    """What a claim asks for that has one option."""
    (one,) = made(*requests, **more).options
    return one.request


def settings(**values: str) -> Json:
    parameters = {"apiVersion": "aliquot.io/v1alpha1", "kind": "SliceParameters", **values}
    return {"opaque": {"driver": "aliquot.io", "parameters": parameters}}


def test_amounts_are_rounded_up_to_the_steps_of_the_device() -> None:
    one = only(request(memory="1000Mi", compute="30"))
    assert (one.kind, one.gpus, one.memory, one.compute) == ("sliced", 1, 4 * MEMORY_UNIT, 30)
    assert only(request(memory="1")).memory == MEMORY_UNIT
    assert only(request(capacity={"requests": {"aliquot.io/memory": "1Gi"}})).memory == GIB


def test_requests_that_ask_for_the_same_are_one_request_for_several_gpus() -> None:
    found = made(request(name="x", memory="1Gi"), request(name="y", memory="1Gi", count=2))
    assert found.requests == ("x", "y", "y")
    assert found.options[0].request.gpus == 3


def test_parameters_of_the_class_come_before_those_of_the_claim() -> None:
    classes = (shipped_class("slice", config=(settings(policy="hard", priority="latency"),)),)
    found = made(request(compute=10), classes=classes, config=[settings(priority="background")])
    assert [one.source for one in found.config] == ["FromClass", "FromClaim"]
    assert found.config[0].requests == ("gpu",)
    one = found.options[0].request
    assert (one.policy, one.priority, one.reserved) == (Policy.HARD, Priority.BACKGROUND, 0)


def test_selectors_restrict_the_nodes_or_name_the_gpus() -> None:
    (one,) = made(request("slice", f'{OURS}.model.startsWith("T4")')).options
    assert (one.nodes, one.request.wishes) == (frozenset({"n2"}), None)
    (strong,) = made(request("strong")).options
    assert strong.nodes == frozenset({"n1"})
    assert strong.request.kind == "whole"
    (second,) = made(request("slice", f"{OURS}.index == 1")).options
    assert second.nodes is None
    assert second.request.wishes is not None
    assert second.request.wishes.named == {"GPU-n1-1", "GPU-n2-1"}


def test_selectors_see_the_memory_that_the_agent_publishes() -> None:
    published = 'device.capacity["aliquot.io"].memory.compareTo(quantity("81664Mi")) == 0'
    uneven = [make_node("n1", 1, memory=80 * GIB - 1)]
    assert made(request("slice", published), nodes=uneven).options
    with pytest.raises(InvalidClaimError, match="no GPU has"):
        demand(request("whole", published), nodes=uneven)


def test_a_whole_gpu_can_be_asked_for_with_a_least_amount_of_memory() -> None:
    (one,) = made(request("whole", memory="40Gi")).options
    assert one.nodes == frozenset({"n1"})


def test_gpus_with_an_attribute_in_common_are_options_of_their_own() -> None:
    constraint = [{"matchAttribute": "aliquot.io/neighbours"}]
    found = made(request(count=2), constraints=constraint)
    named = [sorted(one.request.wishes.named) for one in found.options if one.request.wishes]
    assert named == [["GPU-n1-0", "GPU-n1-1"], ["GPU-n1-2", "GPU-n1-3"]]
    distinct = [{"distinctAttribute": "aliquot.io/uuid"}]
    assert only(request(count=2), constraints=distinct).wishes is None


def test_claims_of_other_drivers_ask_for_nothing_here() -> None:
    assert demand({"name": "n", "exactly": {"deviceClassName": "nic.example.com"}}) is None
    assert demand({"name": "n", "exactly": {"deviceClassName": "unknown"}}) is None


@pytest.mark.parametrize(
    ("requests", "more", "said"),
    [
        ([request("odd")], {}, "kind.matches"),
        ([request("slice", "device.driver.size() == 1")], {}, "size"),
        ([request("slice", *["true && " * 99 + "true"] * 3)], {}, "more than 500 words"),
        ([request("any")], {}, "whole and shared and sliced devices"),
        ([request(), request("whole", name="b")], {}, "different devices"),
        ([request(memory="1Gi"), request(name="b", memory="2Gi")], {}, "different devices"),
        (
            [request(), {"name": "n", "exactly": {"deviceClassName": "nic.example.com"}}],
            {},
            "other",
        ),
        ([{"name": "n", "firstAvailable": [{"deviceClassName": "x.aliquot.io"}]}], {}, "firstAv"),
        ([request(allocationMode="All")], {}, "allocationMode All"),
        ([request(adminAccess=True)], {}, "adminAccess"),
        ([request(tolerations=[{"operator": "Exists"}])], {}, "tolerates"),
        ([request(count=1000)], {}, "at most"),
        ([request(capacity={"requests": {"bandwidth": "1"}})], {}, "bandwidth"),
        ([request(memory="1.5m")], {}, "not whole"),
        ([request(memory="1e60")], {}, "which no GPU has"),
        ([request("whole", compute=10)], {}, "compute"),
        ([request(compute=101)], {}, "compute"),
        ([request()], {"constraints": [{"distinctAttribute": "aliquot.io/numa"}]}, "numa"),
        ([request()], {"constraints": [{"matchAttribute": "resource.kubernetes.io/x"}]}, "io/x"),
        (
            [request(), request(name="b")],
            {"constraints": [{"requests": ["gpu"], "matchAttribute": "aliquot.io/numa"}]},
            "numa",
        ),
        ([request()], {"config": [settings(policy="x")]}, "parameters are invalid"),
        ([request()], {"config": [settings(policy="hard")]}, "no share of compute"),
        ([request("slice", f"{OURS}.strength > 1000")], {}, "no GPU has"),
        ([request()], {"nodes": []}, "no GPU has"),
        ([request(count=2)], {"constraints": [{"matchAttribute": "aliquot.io/numa"}]}, "no GPU"),
    ],
)
def test_what_cannot_be_decided_is_refused_and_named(
    requests: list[Json], more: Json, said: str
) -> None:
    with pytest.raises(InvalidClaimError) as error:
        demand(*requests, **more)
    assert said in error.value.one_line
