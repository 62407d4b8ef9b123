"""Allocations by workload: updates give the same answers as a full recount."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.names import GANG, GANG_SIZE, PLAN, QUEUE
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.cluster.allocations import PendingPreemption, WorkloadAllocations
from aliquot.kubernetes.cluster.cluster import Cluster, Reserved
from aliquot.kubernetes.cluster.parts import plan_of
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.cluster.workloads import Workloads
from aliquot.kubernetes.extender.planner import Planner
from aliquot.placement.queues.quota import Resources, usage
from kubernetes.builders import make_node, make_pod
from kubernetes.queues.builders import make_namespace

NOW = 1000.0
PODS = st.integers(0, 7)
ASKED: tuple[dict[str, Any], ...] = ({"gpu": 1}, {"memory": 40, "core": 30}, {"sgpu": 1})


class Stage:
    """A cluster, its pods and its queues, as they are told."""

    def __init__(self) -> None:
        self.cluster = Cluster(now=lambda: NOW)
        self.planner = Planner(self.cluster)
        self.queues = Queues()
        self.workloads = Workloads(self.queues.queue_of, lambda pod: asks(pod, (ALIQUOT,)), 60.0)
        self.allocations = WorkloadAllocations(self.cluster, self.workloads, self.queues)
        for name in ("n0", "n1"):
            self.cluster.set_node(name, make_node(name, 3))

    def pod(self, number: int, **changes: Any) -> Pod:
        gang = {GANG: f"g{number % 3}", GANG_SIZE: "3"} if number % 4 else {}
        one = make_pod(f"p{number}", annotations=gang, **ASKED[number % 3])
        meta = msgspec.structs.replace(one.metadata, labels=changes.get("labels", {}))
        return msgspec.structs.replace(one, metadata=meta)

    # --- what happens -----------------------------------------------------------------------------

    def come(self, number: int) -> None:
        self.workloads.change(f"uid-p{number}", self.pod(number), NOW)

    def reserve(self, number: int) -> None:
        self.planner.filter(self.pod(number), ["n0", "n1"])

    def bind(self, number: int) -> None:
        one = self.pod(number)
        place = self.cluster.reserved(one.metadata.uid)
        if place is None:
            return
        notes = {**one.metadata.annotations, PLAN: plan_of(place.parts).encode()}
        meta = msgspec.structs.replace(one.metadata, annotations=notes)
        spec = msgspec.structs.replace(one.spec, node_name=place.node)
        bound = msgspec.structs.replace(one, metadata=meta, spec=spec)
        self.cluster.set_pod(one.metadata.uid, bound)
        self.workloads.change(one.metadata.uid, bound, NOW)

    def go(self, number: int) -> None:
        uid = f"uid-p{number}"
        self.cluster.set_pod(uid, None)
        self.workloads.change(uid, None, NOW)

    def forget(self, number: int) -> None:
        self.cluster.forget(f"uid-p{number}")

    def label(self, number: int) -> None:
        labelled = self.pod(number, labels={QUEUE: f"q{number % 2}"})
        self.workloads.change(f"uid-p{number}", labelled, NOW)

    def map_namespace(self, number: int) -> None:
        self.queues.set_namespace("ns", make_namespace("ns", f"q{number}" if number % 2 else ""))

    def lose_node(self, number: int) -> None:
        self.cluster.set_node(f"n{number % 2}", None)

    def gain_node(self, number: int) -> None:
        name = f"n{number % 4}"
        self.cluster.set_node(name, make_node(name, 1 + number % 5))


OPS = st.tuples(
    st.sampled_from(
        ["come", "reserve", "bind", "go", "forget", "label", "map_namespace"] * 3
        + ["lose_node", "gain_node"]
    ),
    PODS,
)


@settings(max_examples=150, deadline=None)
@given(ops=st.lists(OPS, max_size=25), looks=st.integers(1, 5))
def test_updates_equal_a_full_recount(ops: list[tuple[str, int]], looks: int) -> None:
    stage = Stage()
    for at, (what, number) in enumerate(ops):
        getattr(stage, what)(number)
        if at % looks == 0:
            check(stage)
    check(stage)


def check(stage: Stage) -> None:
    kept, anew = (
        stage.allocations,
        WorkloadAllocations(stage.cluster, stage.workloads, stage.queues),
    )
    stage.workloads.listeners.pop()
    mine = {one.gang.name: one for one in kept.running(NOW)}
    fresh = {one.gang.name: one for one in anew.running(NOW)}
    assert mine == fresh
    assert kept.holders(NOW) == anew.holders(NOW)
    hardware = stage.cluster.chooser.allocations.hardware
    counted = {queue: one for queue, one in kept.used(NOW).items() if one != Resources()}
    assert counted == usage(mine.values(), hardware)
    some = {"uid-p0", "uid-p1"}
    without = {queue: one for queue, one in kept.used(NOW, some).items() if one != Resources()}
    assert without == usage(kept.running(NOW, some), hardware)


def test_giving_back_restores_the_allocations() -> None:
    stage = Stage()
    before = stage.cluster.chooser.allocations.copy()
    for number in range(6):
        stage.come(number)
        stage.reserve(number)
    allocations = stage.cluster.chooser.allocations.copy()
    for one in stage.allocations.running(NOW):
        allocations.give_gang(one)
    assert allocations.fingerprint == before.fingerprint


@settings(max_examples=60, deadline=None)
@given(ending=st.sets(PODS), heirs=st.sets(PODS))
def test_leftovers_of_victims_exclude_gpus_that_heirs_have(
    ending: set[int], heirs: set[int]
) -> None:
    stage = Stage()
    for number in range(8):
        stage.come(number)
        stage.reserve(number)
    uids = {f"uid-p{number}": NOW + number for number in ending}
    given = [f"uid-p{number}" for number in heirs - ending]
    found = stage.allocations.leftovers(uids, given, NOW)
    names = {stage.workloads.name_of(uid) for uid in uids}
    assert {one.gang.name for one in found} <= {f"{name} (ending)" for name in names}
    taken = {
        (place.node, place.gpus)
        for one in stage.allocations.each_of(given, NOW)
        for place in one.placements
    }
    assert taken.isdisjoint((at.node, at.gpus) for one in found for at in one.placements)
    allocations = stage.cluster.chooser.allocations.copy()
    for one in found:
        allocations.give_gang(one)
    if not given:
        for uid in uids:
            stage.cluster.forget(uid)
        assert allocations.fingerprint == stage.cluster.chooser.allocations.fingerprint


@pytest.mark.parametrize(
    ("ended", "begun", "counted"), [(3, 1, 3), (1, 3, 3), (2, 2, 2)], ids=["more", "less", "same"]
)
def test_a_limit_counts_the_larger_of_a_gang_and_its_victims(
    ended: int, begun: int, counted: int
) -> None:
    stage = Stage()
    uids: dict[str, list[str]] = {"old": [], "new": []}
    for name, count in (("old", ended), ("new", begun)):
        for number in range(count):
            notes = {GANG: name, GANG_SIZE: str(count)}
            pod = make_pod(f"{name}-{number}", annotations=notes, gpu=1)
            stage.workloads.change(pod.metadata.uid, pod, NOW)
            stage.planner.filter(pod, ["n0", "n1"])
            uids[name].append(pod.metadata.uid)
    old, new = frozenset(uids["old"]), frozenset(uids["new"])
    preemption = PendingPreemption(old, new, frozenset({"n0"}), "default")
    assert stage.allocations.charged(NOW, [])[("default",)].milli == 1000 * (ended + begun)
    assert stage.allocations.charged(NOW, [preemption])[("default",)].milli == 1000 * counted
    assert stage.allocations.used(NOW)["default"].milli == 1000 * (ended + begun)
    for uid in uids["old"]:
        stage.cluster.forget(uid)
    assert stage.allocations.still_held(preemption, NOW) == frozenset()


def test_a_deleted_pod_that_a_node_reports_ends_soon() -> None:
    stage = Stage()
    stage.cluster.reserve("uid-x", Reserved("ns/x", "n0", parts_of(stage), math.inf))
    (left,) = stage.allocations.running(NOW)
    assert left.gang.name == "a deleted pod that still has GPUs (UID uid-x)"
    assert left.end == NOW + 5


def parts_of(stage: Stage) -> Any:
    found = stage.planner.plan(stage.planner.requests(stage.pod(0)), "n0")
    assert found is not None
    return found
