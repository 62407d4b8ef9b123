"""Pods that take turns with memory: which nodes they fit, by node and queue."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from aliquot.kubernetes.api.gpunode import NodeGrant, OverCommit
from aliquot.kubernetes.api.names import PLAN, SWAP
from aliquot.kubernetes.api.objects import GpuNode, Pod
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.api.presets import ALIQUOT, PRESETS, SLOTS
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.parts import plan_of
from aliquot.kubernetes.extender.planner import Planner
from kubernetes.builders import GIB, container, make_node, make_pod
from kubernetes.queues.builders import know, make_queue, pod_in

HOST = 512 * GIB


def crowded(name: str = "n1", gpus: int = 1, factor: float = 1.5, host: int = HOST) -> GpuNode:
    """A node of GPUs of 80 GiB on which slices take turns."""
    node = make_node(name, gpus)
    said = OverCommit(factor, host, 0, 2 * GIB)
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, overcommit=said)
    )


def pod(name: str, gib: int, *, swap: bool = True) -> Pod:
    notes = {SWAP: "true"} if swap else {}
    return make_pod(name, annotations=notes, memory=gib * 4)


def planner(*nodes: GpuNode, most: float = 0.0) -> Planner:
    cluster = Cluster()
    for node in nodes:
        cluster.set_node(node.metadata.name, node)
    return Planner(cluster, (ALIQUOT,), overcommit=lambda _: most)


def bind(of: Planner, pod: Pod) -> Pod | None:
    """Bind a pod where the planner puts it; None if it fits nowhere."""
    names = of.filter(pod, tuple(of.cluster.nodes)).names
    if not names:
        return None
    kept = of.cluster.reserved(pod.metadata.uid)
    assert kept is not None
    notes = {**pod.metadata.annotations, PLAN: plan_of(kept.parts).encode()}
    bound = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=notes),
        spec=msgspec.structs.replace(pod.spec, node_name=names[0]),
    )
    of.cluster.set_pod(pod.metadata.uid, bound)
    return bound


def test_pods_that_swap_may_have_more_than_the_gpu_has() -> None:
    of = planner(crowded())
    assert bind(of, pod("a", 60)) is not None
    assert bind(of, pod("b", 60, swap=False)) is None
    assert bind(of, pod("b", 60)) is not None
    assert bind(of, pod("c", 4)) is None


def test_a_node_without_a_factor_is_never_over_committed() -> None:
    of = planner(make_node("n1", 1))
    assert bind(of, pod("a", 60)) is not None
    assert bind(of, pod("b", 60)) is None


def test_the_smaller_of_queue_and_node_holds() -> None:
    of = planner(crowded(), most=1.25)
    assert bind(of, pod("a", 60)) is not None
    assert bind(of, pod("b", 41)) is None
    assert bind(of, pod("b", 40)) is not None
    wide = planner(crowded(factor=1.1), most=2.0)
    assert bind(wide, pod("a", 60)) is not None
    assert bind(wide, pod("b", 29)) is None
    assert bind(wide, pod("b", 28)) is not None


def test_the_plan_says_what_the_queue_allows_and_another_scheduler_reads_it() -> None:
    of = planner(crowded(), most=1.25)
    first = bind(of, pod("a", 60))
    assert first is not None
    later = planner(crowded(), most=2.0)  # it knows only what the pods say
    later.cluster.set_pod(first.metadata.uid, first)
    assert bind(later, pod("b", 41)) is None
    assert bind(later, pod("b", 40)) is not None


def test_an_annotation_that_is_gone_takes_the_turns_along() -> None:
    """Without `aliquot.io/swap` a forged plan is no reason to count a pod as movable."""
    of = planner(crowded())
    first = bind(of, pod("a", 60))
    assert first is not None
    plan = {PLAN: first.metadata.annotations[PLAN]}
    forged = msgspec.structs.replace(
        first, metadata=msgspec.structs.replace(first.metadata, annotations=plan)
    )
    of.cluster.set_pod(first.metadata.uid, forged)
    assert bind(of, pod("b", 60)) is None
    assert bind(of, pod("b", 20)) is not None


def test_what_the_node_reports_counts_and_not_the_plan() -> None:
    of = planner(crowded())
    first = bind(of, pod("a", 60))
    assert first is not None
    for overcommit, fits in ((None, False), (0.0, True)):
        node = crowded()
        grant = NodeGrant(
            first.metadata.uid, "ns", "a", "main", 60 * GIB, overcommit=overcommit, fixed=3 * GIB
        )
        gpu = msgspec.structs.replace(node.status.gpus[0], kind="sliced", grants=(grant,))
        status = msgspec.structs.replace(node.status, gpus=(gpu,))
        of.cluster.set_node("n1", msgspec.structs.replace(node, status=status))
        assert bool(of.filter(pod("b", 60), ("n1",)).names) is fits


def test_the_host_bounds_what_all_gpus_of_a_node_take_turns_with() -> None:
    of = planner(crowded(gpus=2, factor=2.0, host=60 * GIB))
    for name in "ab":
        assert bind(of, pod(name, 60)) is not None
    assert bind(of, pod("c", 40)) is not None  # 20 GiB must leave, and the host needs twice that
    assert bind(of, pod("d", 40)) is None
    assert bind(of, pod("d", 30)) is not None


def test_a_node_where_it_fits_beside_others_comes_first() -> None:
    of = planner(crowded("n1"), make_node("n2", 1))
    nodes = {one.spec.node_name for name in "ab" if (one := bind(of, pod(name, 60))) is not None}
    assert nodes == {"n1", "n2"}
    third = bind(of, pod("c", 60))
    assert third is not None
    assert third.spec.node_name == "n1"


def test_a_refusal_says_how_large_a_slice_could_be_in_turns_and_why_not_larger() -> None:
    for node, most, size, why in (
        (crowded(), 0.0, "60 GiB", "as many times the memory as node and queues allow"),
        (crowded(factor=3.0), 0.0, "78 GiB", "fit beside what does not move"),
        (crowded(factor=3.0, host=40 * GIB), 0.0, "40 GiB", "the host has no more memory"),
        (crowded(factor=3.0), 1.25, "40 GiB", "as many times the memory as node and queues allow"),
    ):
        of = planner(node, most=most)
        assert bind(of, pod("a", 60)) is not None
        said = of.filter(pod("b", 79), ("n1",)).message
        assert f"In turns with memory a slice could have {size}: GPU 0 of node n1, where" in said
        assert why in said
        assert "In turns" not in of.filter(pod("b", 79, swap=False), ("n1",)).message


def test_the_queue_above_bounds_too() -> None:
    known = know(
        make_queue("team", overcommit=1.2),
        make_queue("serving", parent="team", overcommit=1.5),
        make_queue("free"),
        make_queue("none", overcommit=1.0),
    )
    said = {
        name: known.overcommit_of(known.queue_of(pod_in("ns", name)))
        for name in ("team", "serving", "free", "none")
    }
    assert said == {"team": 1.2, "serving": 1.2, "free": 0.0, "none": 1.0}
    assert known.overcommit_of("missing") == 0.0


def test_what_pods_hold_adds_up_in_any_order() -> None:
    """After any binds and ends the allocations are those of a cluster that sees them anew."""
    chance = random.Random(7)  # noqa: S311 - the same work each time
    of = planner(crowded("n1", 2), crowded("n2", 2, factor=2.0, host=100 * GIB))
    held: list[Pod] = []
    for number in range(60):
        if held and chance.random() < 0.4:
            gone = held.pop(chance.randrange(len(held)))
            of.cluster.set_pod(gone.metadata.uid, None)
            of.cluster.forget(gone.metadata.uid)
        one = bind(of, pod(f"p{number}", chance.randint(1, 80), swap=chance.random() < 0.7))
        if one is not None:
            held.append(one)
        fresh = planner(*of.cluster.nodes.values())
        for known in held:
            fresh.cluster.set_pod(known.metadata.uid, known)
        mine, theirs = of.cluster.chooser.allocations, fresh.cluster.chooser.allocations
        assert np.array_equal(mine.bytes_free, theirs.bytes_free)
        assert mine.turns == theirs.turns
    assert held


def with_grants(node: GpuNode, *grants: NodeGrant, gpu: int = 0) -> GpuNode:
    """The same node, with these grants on one of its GPUs."""
    gpus = list(node.status.gpus)
    gpus[gpu] = msgspec.structs.replace(gpus[gpu], kind="sliced", grants=grants)
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, gpus=tuple(gpus))
    )


@pytest.mark.parametrize("said", [1e308, 11.0, 0.5, -1.0])
def test_a_forged_plan_raises_nothing_and_stops_nobody(said: float) -> None:
    of = planner(crowded())
    uuid = of.cluster.nodes["n1"].status.gpus[0].uuid
    plan = Plan({"main": ContainerPlan("sliced", (uuid,), 60 * GIB, overcommit=said)})
    notes = {PLAN: plan.encode(), SWAP: "true"}
    forged = make_pod("a", node="n1", annotations=notes, memory=240)
    of.cluster.set_pod(forged.metadata.uid, forged)
    assert bind(of, pod("b", 61)) is None
    assert (bind(of, pod("b", 60)) is not None) is (said > 1)


@pytest.mark.parametrize("said", [1e308, 0.5])
def test_a_report_that_is_impossible_stops_nobody(said: float) -> None:
    of = planner(crowded("n2"))
    grant = NodeGrant("uid-a", "ns", "a", "main", 60 * GIB, overcommit=said)
    of.cluster.set_node("n1", with_grants(crowded("n1", factor=1e308), grant))
    first = bind(of, pod("b", 60))
    assert first is not None
    assert first.spec.node_name == "n2"


def test_a_pod_whose_init_containers_have_slices_takes_no_turns() -> None:
    """Its agent counts grants that reuse each other's units as what stays on the GPU."""
    of = planner(crowded(factor=2.0))
    assert bind(of, pod("a", 60)) is not None
    for name, gib, fits in (("b", 60, False), ("c", 10, True)):
        main, first = container(memory=gib * 4), container("init", memory=gib * 2)
        one = make_pod(name, main, init=(first,), annotations={SWAP: "true"})
        assert (bind(of, one) is not None) is fits
    assert bind(of, pod("d", 60)) is not None
    assert bind(of, pod("e", 31)) is None


def test_a_gpu_that_is_full_by_its_containers_is_not_crowded_further() -> None:
    """A preset whose containers each count: the GPU has as many as it can have."""
    cluster = Cluster(presets=(ALIQUOT, PRESETS["nvidia"]))
    node = crowded()
    grants = (
        *(NodeGrant(f"uid-{one}", "ns", one, "main", 30 * GIB, overcommit=0.0) for one in "cd"),
        *(NodeGrant(f"uid-{one}", "ns", f"p{one}", "main", GIB) for one in range(SLOTS - 2)),
    )
    cluster.set_node("n1", with_grants(node, *grants))
    of = Planner(cluster, (ALIQUOT,), overcommit=lambda _: 0.0)
    assert not of.filter(pod("b", 30), ("n1",)).names


def test_the_host_keeps_what_slices_of_an_unhealthy_gpu_need() -> None:
    of = planner(crowded(gpus=2, factor=2.0, host=80 * GIB))
    node = with_grants(
        of.cluster.nodes["n1"],
        *(NodeGrant(f"uid-{one}", "ns", one, "main", 60 * GIB, overcommit=0.0) for one in "ab"),
    )
    of.cluster.set_node("n1", node)
    assert bind(of, pod("c", 60)) is not None
    assert bind(of, pod("d", 40)) is None
    gpus = (msgspec.structs.replace(node.status.gpus[0], healthy=False), node.status.gpus[1])
    status = msgspec.structs.replace(node.status, gpus=gpus)
    of.cluster.set_node("n1", msgspec.structs.replace(node, status=status))
    assert bind(of, pod("d", 40)) is None
    assert bind(of, pod("d", 20)) is not None
