"""The owners of grants, set by the kubelet's report."""

from __future__ import annotations

from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.node.deviceplugin.matching.confirm import apply_report, set_pod
from kubernetes.builders import container, make_pod
from kubernetes.node.builders import (
    CORE,
    GPU,
    MEMORY,
    SGPU,
    make_grant,
    make_host_gpu,
    make_ids,
    make_owner,
)

GPUS = [make_host_gpu(0), make_host_gpu(1)]


def test_containers_that_were_mixed_up_exchange_owners() -> None:
    ids = make_ids(GPUS)
    allocations = ids.allocations
    one = make_grant("shared", GPUS[:1], "a", units={SGPU: ["s0"]})
    two = make_grant("shared", GPUS[1:], "b", units={SGPU: ["s1"]})
    allocations.add(one)
    allocations.add(two)
    assert apply_report(ids, make_owner("b"), {"main": {SGPU: ("s0",)}}, ()) == 1
    assert allocations.grants[one.name].owner.uid == "b"
    assert allocations.grants[two.name].owner.uid == "a"
    assert (allocations.grants[one.name].confirmed, allocations.grants[two.name].confirmed) == (
        True,
        False,
    )
    assert apply_report(ids, make_owner("a"), {"main": {SGPU: ("s1",)}}, ()) == 0
    assert allocations.grants[two.name].confirmed


def test_compute_goes_to_the_container_that_has_its_ids() -> None:
    """Memory alone and memory with compute look alike until the kubelet reports them."""
    ids = make_ids(GPUS)
    allocations = ids.allocations
    plain = make_grant("sliced", GPUS[:1], "plain", memory=5, units={MEMORY: ["m0"]})
    rich = make_grant(
        "sliced", GPUS[:1], "rich", memory=5, core=30, units={MEMORY: ["m1"], CORE: ["c0"]}
    )
    allocations.add(plain)
    allocations.add(rich)
    report = {"main": {MEMORY: ("m0",), CORE: ("c0",)}}
    apply_report(ids, make_owner("rich"), report, requests_of(make_pod(memory=1, core=30)))
    apply_report(
        ids, make_owner("plain"), {"main": {MEMORY: ("m1",)}}, requests_of(make_pod(memory=1))
    )
    (grant,) = allocations.of_pod("rich")
    assert (grant.current.compute, grant.allocated[0].reserved, grant.device_ids[CORE]) == (
        30,
        30,
        ("c0",),
    )
    assert grant.name == plain.name, "its container keeps this grant"
    (grant,) = allocations.of_pod("plain")
    assert (grant.current.compute, grant.allocated[0].reserved, CORE in grant.device_ids) == (
        0,
        0,
        False,
    )


def test_a_report_in_the_middle_of_an_admission_takes_nothing_away() -> None:
    """The agent has answered both calls, and the kubelet has noted the first one."""
    ids = make_ids(GPUS)
    units = {MEMORY: ["m0"], CORE: ["c0"]}
    grant = make_grant("sliced", GPUS[:1], "a", memory=5, core=1, units=units)
    ids.allocations.add(grant)
    requests = requests_of(make_pod(memory=1, core=1))
    for part in ({MEMORY: ("m0",)}, {CORE: ("c0",)}):
        assert apply_report(ids, make_owner("a"), {"main": part}, requests) == 0
        assert ids.allocations.grants[grant.name] == grant
    apply_report(ids, make_owner("a"), {"main": {MEMORY: ("m0",), CORE: ("c0",)}}, requests)
    assert ids.allocations.grants[grant.name].confirmed


def test_a_grant_whose_ids_are_reused_is_an_init_containers() -> None:
    ids = make_ids(GPUS)
    allocations = ids.allocations
    first = make_grant("shared", GPUS[:1], "x", units={SGPU: ["s0"]})
    allocations.add(first)
    allocations.add(make_grant("shared", GPUS, "y", units={SGPU: ["s0", "s2"]}, reuses=(first,)))
    pod = make_pod("a", container("main", sgpu=2), init=(container("first", sgpu=1),))
    apply_report(ids, make_owner("a"), {"main": {SGPU: ("s0", "s2")}}, requests_of(pod))
    assert [grant.owner.container for grant in allocations.of_pod("a")] == ["first", "main"]


def test_the_grant_just_before_is_an_init_containers_by_its_size() -> None:
    ids = make_ids(GPUS)
    allocations = ids.allocations
    other = make_grant("whole", GPUS[:1], "a", container="first", units={GPU: ["g1"]})
    init = make_grant("whole", GPUS[1:], "b", units={GPU: ["g0"]})
    allocations.add(other)
    allocations.add(init)
    allocations.release(other.name)
    allocations.add(make_grant("shared", GPUS[:1], "a", units={SGPU: ["s0"]}))
    pod = make_pod("a", container("main", sgpu=1), init=(container("first", gpu=1),))
    apply_report(ids, make_owner("a"), {"main": {SGPU: ("s0",)}}, requests_of(pod))
    assert allocations.grants[init.name].owner == make_owner("a", "first")


def test_a_report_of_unknown_ids_changes_nothing() -> None:
    ids = make_ids(GPUS)
    allocations = ids.allocations
    allocations.add(make_grant("shared", GPUS[:1], "a", units={SGPU: ["s0"]}))
    before = allocations.saved()
    report = {"main": {SGPU: ("s1",), "other.io/x": ("1",)}}
    assert apply_report(ids, make_owner("b"), report, ()) == 0
    assert allocations.saved() == before


def test_a_process_confirms_the_pod_of_its_grant() -> None:
    ids = make_ids(GPUS)
    allocations = ids.allocations
    one = make_grant("shared", GPUS[:1], "a", units={SGPU: ["s0"]})
    two = make_grant("shared", GPUS[1:], "b", units={SGPU: ["s1"]})
    allocations.add(one)
    allocations.add(two)
    set_pod(allocations, one.name, make_owner("b"))
    assert [grant.owner.uid for grant in allocations.grants.values()] == ["b", "a"]
    assert [grant.confirmed for grant in allocations.grants.values()] == [True, False]
