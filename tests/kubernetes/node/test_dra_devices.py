"""GPUs as devices of ResourceSlices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import support
from aliquot.devices.device_location import DeviceLocation
from aliquot.kubernetes.api.dra_devices import device_name, parse_device, semantic_version
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.node.dra.devices import (
    MOST_COUNTER_SETS,
    MOST_DEVICES,
    UNHEALTHY,
    DeviceGpu,
    digest_of,
    specs_of,
)
from aliquot.kubernetes.node.grants.allocations import HostGpu
from aliquot.model import Link
from support import GIB, MIB

Json = dict[str, Any]


def make_device_gpu(index: int, *linked: int, kind: str = "NV18", **more: Any) -> DeviceGpu:
    gpu = support.make_gpu(index)
    gpu = replace(gpu, links=tuple(Link(one, kind) for one in linked), strength=286.3)
    host = HostGpu(gpu.uuid, index, 80 * GIB + 3 * MIB)
    return DeviceGpu(host, gpu, DeviceLocation(index // 2, index), **more)


def devices_of(*gpus: DeviceGpu, shares: int = 2, version: str = "580.159.04") -> dict[str, Json]:
    specs = specs_of("n1", gpus, shares, version)
    return {one["name"]: one for spec in specs for one in spec.get("devices", ())}


def attribute(device: Json, name: str) -> Any:
    (value,) = device["attributes"].get(name, {"": None}).values()
    return value


def test_the_kinds_of_a_gpu_exclude_each_other_by_its_counter() -> None:
    gpu = make_device_gpu(0)
    specs = specs_of("n1", [gpu], 3, "")
    (counters,) = specs[0]["sharedCounters"]
    total = int(counters["counters"]["parts"]["value"])
    taken: dict[str, list[int]] = {}
    for device in specs[1]["devices"]:
        (use,) = device["consumesCounters"]
        assert use["counterSet"] == counters["name"]
        kind = attribute(device, "kind")
        taken.setdefault(kind, []).append(int(use["counters"]["parts"]["value"]))
    assert taken == {"whole": [total], "shared": [1, 1, 1], "sliced": [total]}
    assert total == sum(taken["shared"])


def test_slices_have_whole_units_of_memory_and_an_equal_part_of_compute_by_default() -> None:
    (sliced,) = (one for one in devices_of(make_device_gpu(0)).values() if "sliced" in one["name"])
    assert sliced["allowMultipleAllocations"]
    memory, compute = sliced["capacity"]["memory"], sliced["capacity"]["compute"]
    assert int(memory["value"]) == 80 * GIB
    unit = str(MEMORY_UNIT)
    assert memory["requestPolicy"]["validRange"] == {"min": unit, "step": unit}
    assert compute["value"] == "100"
    assert compute["requestPolicy"] == {
        "default": "0",
        "validRange": {"min": "0", "step": "1"},
    }


def test_only_the_sliceable_device_is_shared_by_claims() -> None:
    found = devices_of(make_device_gpu(0))
    several = [name for name, one in found.items() if one.get("allowMultipleAllocations")]
    assert several == [device_name(support.uuid_of(0), "sliced")]


def test_attributes_tell_gpus_apart_and_neighbours_together() -> None:
    gpus = [
        make_device_gpu(0, 1),
        make_device_gpu(1, 0),
        make_device_gpu(2, 3, kind="PIX"),
        make_device_gpu(3, 2, kind="PIX"),
        make_device_gpu(4, 0, kind="SYS"),
    ]
    wholes = [one for one in devices_of(*gpus).values() if attribute(one, "kind") == "whole"]
    assert [attribute(one, "neighbours") for one in wholes] == [0, 0, 2, 2, None]
    assert [attribute(one, "index") for one in wholes] == [0, 1, 2, 3, 4]
    assert len({attribute(one, "uuid") for one in wholes}) == 5
    assert {attribute(one, "model") for one in wholes} == {"H100 80GB HBM3"}
    assert [attribute(one, "numa") for one in wholes] == [0, 0, 1, 1, 2]
    assert attribute(wholes[0], "strength") == 286
    assert attribute(wholes[0], "driverVersion") == "580.159.4"


def test_a_taint_is_on_all_devices_of_its_gpu_and_on_no_other() -> None:
    found = devices_of(make_device_gpu(0, taints=(UNHEALTHY,)), make_device_gpu(1))
    tainted = {name for name, one in found.items() if one.get("taints")}
    assert tainted == {name for name in found if name.startswith(support.uuid_of(0).lower())}


@pytest.mark.parametrize(("count", "shares"), [(1, 2), (8, 2), (9, 2), (16, 10), (3, 64), (64, 64)])
def test_slices_keep_within_the_limits_of_kubernetes(count: int, shares: int) -> None:
    specs = specs_of("n1", [make_device_gpu(index) for index in range(count)], shares, "")
    names = [one["name"] for spec in specs for one in spec.get("devices", ())]
    sets = [one["name"] for spec in specs for one in spec.get("sharedCounters", ())]
    assert len(names) == len(set(names)) == count * (shares + 2)
    assert len(sets) == len(set(sets)) == count
    assert max(map(len, names)) <= 63
    for spec in specs:
        assert ("devices" in spec) is not ("sharedCounters" in spec)
        assert len(spec.get("devices", ())) <= MOST_DEVICES
        assert len(spec.get("sharedCounters", ())) <= MOST_COUNTER_SETS
        assert spec["pool"]["resourceSliceCount"] == len(specs)


def test_a_device_is_found_by_its_name() -> None:
    uuids = [support.uuid_of(0), support.uuid_of(1)]
    for uuid in uuids:
        assert parse_device(device_name(uuid, "whole"), uuids) == (uuid, "whole")
        assert parse_device(device_name(uuid, "shared", 7), uuids) == (uuid, "shared")
        assert parse_device(device_name(uuid, "sliced"), uuids) == (uuid, "sliced")
    wrong = [
        device_name(support.uuid_of(2), "whole"),
        f"{device_name(uuids[0], 'whole')}-1",
        f"{uuids[0].lower()}-shared",
        f"{uuids[0].lower()}-other",
        "",
    ]
    assert [parse_device(name, uuids) for name in wrong] == [None] * len(wrong)


def test_a_digest_differs_for_slices_that_differ() -> None:
    first, second = make_device_gpu(0), make_device_gpu(0, taints=(UNHEALTHY,))
    digests = [[digest_of(one) for one in specs_of("n1", [gpu], 2)] for gpu in (first, second)]
    assert digests[0] == [digest_of(one) for one in specs_of("n1", [first], 2)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("580.159.04", "580.159.4"), ("580.159", "580.159.0"), ("", ""), ("1.2.3.4", ""), ("a", "")],
)
def test_driver_versions_are_written_as_kubernetes_compares_them(given: str, expected: str) -> None:
    assert semantic_version(given) == expected
