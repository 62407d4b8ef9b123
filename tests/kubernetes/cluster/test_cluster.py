"""The cluster's allocations equal a full recount, after any changes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.names import GPUS, PLAN, POLICY
from aliquot.kubernetes.api.objects import GpuNode, Pod
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.cluster.cluster import UNREPORTED_SECONDS, Cluster, Reserved
from aliquot.kubernetes.cluster.parts import Part
from aliquot.placement.core.demand import Demand, Kind, sliced, whole
from kubernetes.builders import GIB, GPU_BYTES, container, gpu_uuid, held, make_node, make_pod

SHAPES: list[Demand] = [
    whole(1),
    whole(3),
    sliced(300, 10 * GIB),
    sliced(0, 30 * GIB, gpus=2),
    Demand(gpus=1, kind=Kind.SHARED, milli=500, thrifty=True),
    Demand(gpus=1, kind=Kind.SLICED, milli=100, models=frozenset({"A100"})),
]
NODES = ("n0", "n1", "n2")
PODS = ("a", "b", "c", "d")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plan(node: str, gpus: list[int], kind: str = "sliced", gib: int = 10) -> Plan:
    uuids = tuple(gpu_uuid(node, gpu) for gpu in gpus)
    return Plan({"main": ContainerPlan(kind, uuids, gib * GIB, 20)})  # type: ignore[arg-type]


def planned(name: str, node: str, gpus: list[int], *, kind: str = "sliced", gib: int = 10) -> Pod:
    """A pod that asks for what it has by its plan."""
    count = len(gpus)
    asked: dict[str, dict[str, Any]] = {
        "sliced": {"memory": 4 * gib * count, "core": 20 * count},
        "whole": {"gpu": count},
        "shared": {"sgpu": count},
    }
    notes = {PLAN: plan(node, gpus, kind, gib).encode(), GPUS: str(count)}
    return make_pod(name, node=node, annotations=notes, **asked[kind])


def failed(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Failed"))


def holding(
    node: GpuNode, pod: Pod, gpu: int, *, gib: int = 10, kind: str = "sliced", busy: int = 0
) -> GpuNode:
    """The node, naming this pod on a GPU."""
    part = msgspec.structs.replace(held(pod, memory=gib * GIB, compute=20), busy=busy)
    gpus = tuple(
        msgspec.structs.replace(one, kind=kind, grants=(*one.grants, part))
        if one.index == gpu
        else one
        for one in node.status.gpus
    )
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))


def row(cluster: Cluster, name: str) -> dict[str, list[int]]:
    allocations = cluster.chooser.allocations
    at = cluster.rows[name]
    width = len(cluster.nodes[name].status.gpus)
    return {
        what: getattr(allocations, what)[at, :width].tolist()
        for what in ("milli_free", "bytes_free", "kind", "holders")
    }


# --- one after the other ----------------------------------------------------------------------


def test_a_node_without_pods_is_free() -> None:
    cluster = Cluster()
    cluster.set_node("n0", make_node("n0", 2))
    assert row(cluster, "n0") == {
        "milli_free": [1000, 1000],
        "bytes_free": [GPU_BYTES, GPU_BYTES],
        "kind": [Kind.FREE, Kind.FREE],
        "holders": [0, 0],
    }


def test_a_bound_pod_counts_by_its_plan_until_its_node_reports_it() -> None:
    cluster = Cluster()
    node = make_node("n0", 2)
    cluster.set_node("n0", node)
    pod = planned("a", "n0", [0])
    cluster.set_pod(pod.metadata.uid, pod)
    assert row(cluster, "n0")["bytes_free"] == [GPU_BYTES - 10 * GIB, GPU_BYTES]
    assert row(cluster, "n0")["milli_free"] == [800, 1000]
    # The agent gave it another GPU: that counts, and the plan no more.
    cluster.set_node("n0", holding(node, pod, 1))
    assert row(cluster, "n0")["bytes_free"] == [GPU_BYTES, GPU_BYTES - 10 * GIB]


def test_reported_grants_count_even_if_the_pod_is_gone() -> None:
    cluster = Cluster()
    pod = planned("a", "n0", [0])
    cluster.set_node("n0", holding(make_node("n0", 2), pod, 0))
    cluster.set_pod(pod.metadata.uid, None)
    assert row(cluster, "n0")["holders"] == [1, 0]


def test_use_counts_up_to_a_whole_gpu_and_without_those_that_leave() -> None:
    cluster, node = Cluster(), make_node("n1", 2)
    for name, busy in (("a", 6), ("b", 5)):
        node = holding(node, make_pod(name), 1, busy=busy)
    cluster.set_node("n1", node)
    assert cluster.chooser.allocations.busy[0].tolist() == [0, 8]
    without = cluster.chooser_on("n1", {make_pod("a").metadata.uid})
    assert without is not None
    assert without.allocations.busy[0].tolist() == [0, 5]


def test_a_pod_that_ended_no_longer_counts_by_its_plan() -> None:
    cluster = Cluster()
    pod = planned("a", "n0", [0])
    cluster.set_node("n0", holding(make_node("n0", 1), pod, 0))
    cluster.set_pod(pod.metadata.uid, pod)
    cluster.set_pod(pod.metadata.uid, failed(pod))
    cluster.set_node("n0", make_node("n0", 1))
    assert row(cluster, "n0")["holders"] == [0]


def test_a_pod_that_ended_unreported_counts_for_a_while() -> None:
    now = 0.0
    cluster = Cluster(now=lambda: now)
    cluster.set_node("n0", make_node("n0", 1))
    pod = planned("a", "n0", [0])
    cluster.set_pod(pod.metadata.uid, pod)
    for end in (failed(pod), failed(pod), None):
        cluster.set_pod(pod.metadata.uid, end)
        assert row(cluster, "n0")["holders"] == [1]
    now = UNREPORTED_SECONDS
    assert row(cluster, "n0")["holders"] == [0]


def test_a_plan_that_does_not_match_the_requests_does_not_count() -> None:
    """Whoever may annotate a pod can write a plan."""
    node = make_node("n0", 2)
    gpus = tuple(one.uuid for one in node.status.gpus)
    huge = -(2**63)
    forged = {
        "main": ContainerPlan("whole", gpus, 0),
        "sidecar": ContainerPlan("sliced", gpus[:1], huge),
    }
    for bad in ({}, {POLICY: "typo"}):
        cluster = Cluster()
        cluster.set_node("n0", node)
        notes = {PLAN: Plan(forged).encode(), **bad}
        pod = make_pod(
            "a", container("main", memory=4), container("sidecar"), node="n0", annotations=notes
        )
        cluster.set_pod(pod.metadata.uid, pod)
        assert all(left >= 0 for left in row(cluster, "n0")["bytes_free"])
        assert max(row(cluster, "n0")["bytes_free"]) <= GPU_BYTES
        if not bad:
            assert row(cluster, "n0")["holders"] == [0, 0]


def test_an_init_container_whose_devices_were_reused_counts_as_reported() -> None:
    cluster = Cluster()
    node = make_node("n0", 1)
    gpu = ContainerPlan("sliced", (gpu_uuid("n0", 0),), 10 * GIB, 20)
    notes = {PLAN: Plan({"first": gpu, "main": gpu}).encode()}
    asked: dict[str, Any] = {"memory": 40, "core": 20}
    first = container("first", **asked)
    pod = make_pod("a", container("main", **asked), init=(first,), node="n0", annotations=notes)
    cluster.set_node("n0", holding(node, pod, 0))
    cluster.set_pod(pod.metadata.uid, pod)
    assert not list(cluster.unreported("n0"))
    assert row(cluster, "n0")["holders"] == [1]


def test_an_unhealthy_gpu_has_nothing_free() -> None:
    cluster = Cluster()
    node = make_node("n0", 2)
    sick = msgspec.structs.replace(node.status.gpus[0], healthy=False, why="Xid 79")
    gpus = (sick, node.status.gpus[1])
    cluster.set_node("n0", make_node("n0", 2))
    assert np.isfinite(cluster.chooser.costs(whole(2))).any()
    status = msgspec.structs.replace(node.status, gpus=gpus)
    cluster.set_node("n0", msgspec.structs.replace(node, status=status))
    assert row(cluster, "n0")["milli_free"] == [-1, 1000]
    assert not np.isfinite(cluster.chooser.costs(whole(2))).any()


def test_a_reservation_counts_until_it_expires_or_the_pod_is_bound() -> None:
    clock = Clock()
    cluster = Cluster(now=clock)
    cluster.set_node("n0", make_node("n0", 1))
    part = Part("main", "whole", (gpu_uuid("n0", 0),), GPU_BYTES, 100, 100)
    cluster.reserve("uid-a", Reserved("ns/a", "n0", (part,), until=30.0))
    assert row(cluster, "n0")["kind"] == [Kind.WHOLE]
    clock.now = 29.0
    assert cluster.reserved("uid-a") is not None
    clock.now = 30.0
    assert cluster.reserved("uid-a") is None
    assert row(cluster, "n0")["kind"] == [Kind.FREE]


def test_init_containers_and_those_after_them_count_once() -> None:
    cluster = Cluster()
    cluster.set_node("n0", make_node("n0", 1))
    uuid = (gpu_uuid("n0", 0),)
    both = Plan(
        {
            "prepare": ContainerPlan("sliced", uuid, 30 * GIB, 10),
            "main": ContainerPlan("sliced", uuid, 20 * GIB, 40),
        }
    )
    pod = make_pod(
        "a",
        container("main", memory=80, core=40),
        init=(container("prepare", memory=120, core=10),),
        node="n0",
        annotations={PLAN: both.encode()},
    )
    cluster.set_pod(pod.metadata.uid, pod)
    assert row(cluster, "n0")["bytes_free"] == [GPU_BYTES - 30 * GIB]
    assert row(cluster, "n0")["milli_free"] == [600]


def test_background_work_takes_no_compute() -> None:
    cluster = Cluster()
    cluster.set_node("n0", make_node("n0", 1))
    pod = planned("a", "n0", [0])
    notes = {**pod.metadata.annotations, "aliquot.io/priority": "background"}
    meta = msgspec.structs.replace(pod.metadata, annotations=notes)
    cluster.set_pod(pod.metadata.uid, msgspec.structs.replace(pod, metadata=meta))
    assert row(cluster, "n0")["milli_free"] == [1000]


# --- any order ----------------------------------------------------------------------------------

GPU_LISTS = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)

CHANGES = st.one_of(
    st.tuples(
        st.just("node"),
        st.sampled_from(NODES),
        st.integers(0, 4),
        st.sampled_from(["H100 80GB HBM3", "A100", "T4"]),
        st.sets(st.integers(0, 3)),
        st.lists(st.tuples(st.sampled_from(PODS), st.integers(0, 3)), max_size=3),
    ),
    st.tuples(st.just("no node"), st.sampled_from(NODES)),
    st.tuples(
        st.just("bound"),
        st.sampled_from(PODS),
        st.sampled_from(NODES),
        GPU_LISTS,
        st.sampled_from(["sliced", "whole", "shared"]),
    ),
    st.tuples(st.just("ended"), st.sampled_from(PODS)),
    st.tuples(st.just("gone"), st.sampled_from(PODS)),
    st.tuples(
        st.just("reserve"),
        st.sampled_from(PODS),
        st.sampled_from(NODES),
        GPU_LISTS,
        st.integers(1, 60),
    ),
    st.tuples(st.just("forget"), st.sampled_from(PODS)),
    st.tuples(st.just("later"), st.integers(1, 30)),
    st.tuples(
        st.just("ask"),
    ),
)


class World:
    """A cluster that follows changes, with what is needed to make it from scratch."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cluster = Cluster(now=self.clock)
        self.nodes: dict[str, GpuNode] = {}
        self.pods: dict[str, Pod] = {}

    def change(self, what: tuple[Any, ...]) -> None:
        kind, *rest = what
        getattr(self, "_" + kind.replace(" ", "_"))(*rest)

    def _node(
        self,
        name: str,
        gpus: int,
        model: str,
        sick: set[int],
        holders: list[tuple[str, int]],
    ) -> None:
        node = make_node(name, gpus, model=model)
        made = tuple(
            msgspec.structs.replace(one, healthy=one.index not in sick) for one in node.status.gpus
        )
        node = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=made))
        for pod, gpu in holders:
            node = holding(node, make_pod(pod), gpu)
        self.nodes[name] = node
        self.cluster.set_node(name, node)

    def _no_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.cluster.set_node(name, None)

    def _bound(self, name: str, node: str, gpus: list[int], kind: str) -> None:
        self._set(planned(name, node, gpus, kind=kind))

    def _ended(self, name: str) -> None:
        pod = self.pods.get(f"uid-{name}")
        if pod is not None:
            status = msgspec.structs.replace(pod.status, phase="Succeeded")
            self._set(msgspec.structs.replace(pod, status=status))

    def _gone(self, name: str) -> None:
        self.pods.pop(f"uid-{name}", None)
        self.cluster.set_pod(f"uid-{name}", None)

    def _set(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod
        self.cluster.set_pod(pod.metadata.uid, pod)

    def _reserve(self, name: str, node: str, gpus: list[int], seconds: int) -> None:
        uuids = tuple(gpu_uuid(node, gpu) for gpu in gpus)
        part = Part("main", "sliced", uuids, 5 * GIB, 30, 30)
        until = self.clock.now + seconds
        self.cluster.reserve(f"uid-{name}", Reserved(name, node, (part,), until))

    def _forget(self, name: str) -> None:
        self.cluster.forget(f"uid-{name}")

    def _later(self, seconds: int) -> None:
        self.clock.now += seconds

    def _ask(self) -> None:
        for shape in SHAPES:
            self.cluster.chooser.costs(shape)

    def from_scratch(self) -> Cluster:
        fresh = Cluster(now=self.clock)
        for name, node in self.nodes.items():
            fresh.set_node(name, node)
        for uid, pod in self.pods.items():
            fresh.set_pod(uid, pod)
        for name in PODS:
            reserved = self.cluster.reserved(f"uid-{name}")
            if reserved is not None:
                fresh.reserve(f"uid-{name}", reserved)
        return fresh


@settings(max_examples=200)
@given(changes=st.lists(CHANGES, max_size=30))
def test_after_any_changes_the_allocations_equal_a_full_recount(
    changes: list[tuple[Any, ...]],
) -> None:
    world = World()
    for change in changes:
        world.change(change)
    fresh = world.from_scratch()
    kept = world.cluster
    choosers = kept.chooser, fresh.chooser
    assert kept.rows.keys() == fresh.rows.keys()
    for name in kept.rows:
        assert row(kept, name) == row(fresh, name)
        for shape in SHAPES:
            ours, theirs = (
                chooser.costs(shape)[cluster.rows[name]]
                for chooser, cluster in zip(choosers, (kept, fresh), strict=True)
            )
            # Strengths are ranks of the models seen: they may keep a model that has gone.
            if not shape.thrifty:
                assert ours == theirs or abs(ours - theirs) < 1e-6
            assert np.isfinite(ours) == np.isfinite(theirs)
    allocations = kept.chooser.allocations
    number = allocations.fingerprint
    allocations._fingerprint = None
    assert allocations.fingerprint == number
    unused = set(range(allocations.hardware.size)) - set(kept.rows.values())
    for shape in SHAPES:
        assert not np.isfinite(kept.chooser.costs(shape)[sorted(unused)]).any()
