"""Pods that choose GPUs by UUID or by neighbours: plans, refusals, and another leader."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.objects import GpuNode, Pod
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.cluster.cluster import Cluster
from aliquot.kubernetes.cluster.parts import plan_of
from aliquot.kubernetes.extender.planner import Planner
from kubernetes.builders import container, gpu_uuid, held, make_node, make_pod, units
from kubernetes.extender.replica import plan_in, put_node, put_pod, replica
from kubernetes.fake_api import FakeApi

SLICE = 40  # units of memory: an eighth of a GPU


def planner(*nodes: GpuNode) -> Planner:
    cluster = Cluster()
    for node in nodes:
        cluster.set_node(node.metadata.name, node)
    return Planner(cluster, (ALIQUOT,))


def wishing(name: str, namespace: str = "ns", memory: int = SLICE, **says: str) -> Pod:
    """A slice with annotations: wishing("a", apart_from="x"); `beside` is aliquot.io/with."""
    words = {"apart_from": "apart-from", "not_gpu": "not-gpu", "beside": "with"}
    notes = {f"aliquot.io/{words.get(key, key)}": value for key, value in says.items()}
    pod = make_pod(name, memory=memory, annotations=notes)
    meta = msgspec.structs.replace(pod.metadata, namespace=namespace)
    return msgspec.structs.replace(pod, metadata=meta)


def bound(of: Planner, pod: Pod) -> tuple[str, ...] | None:
    """The GPUs that a pod was bound to, as watches report it; None if it was refused."""
    answer = of.filter(pod, tuple(of.cluster.nodes))
    if not answer.names:
        return None
    parts = of.plan_again(pod.metadata.uid, of.requests(pod), answer.names[0])
    assert parts is not None
    notes = {**pod.metadata.annotations, PLAN: plan_of(parts).encode()}
    meta = msgspec.structs.replace(pod.metadata, annotations=notes)
    spec = msgspec.structs.replace(pod.spec, node_name=answer.names[0])
    of.cluster.set_pod(pod.metadata.uid, msgspec.structs.replace(pod, metadata=meta, spec=spec))
    return parts[0].gpus


def why(of: Planner, pod: Pod) -> str:
    answer = of.filter(pod, tuple(of.cluster.nodes))
    assert not answer.names
    return answer.message


def test_a_pod_gets_the_gpu_that_it_names() -> None:
    of = planner(make_node("n1", 2), make_node("n2", 2))
    assert bound(of, wishing("a", gpu=gpu_uuid("n2", 1))) == (gpu_uuid("n2", 1),)
    assert bound(of, wishing("b", gpu="GPU-n2", not_gpu=gpu_uuid("n2", 1))) == (gpu_uuid("n2", 0),)
    answer = of.filter(wishing("c", gpu="GPU-n9"), ("n1", "n2"))
    assert answer.reason == "TooLarge"
    assert "No node has a GPU GPU-n9." in answer.message
    assert "on GPU-n9" in answer.message
    assert bound(of, make_pod("w", gpu=2, annotations={"aliquot.io/gpu": "GPU-n1"})) is not None
    full = why(of, wishing("d", gpu=gpu_uuid("n1", 0)))
    assert f"GPU {gpu_uuid('n1', 0)} is on node n1." in full


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ({"gpu": "0"}, "aliquot.io/gpu is '0', which names no GPU"),
        ({"not_gpu": "GPU-1,,"}, "aliquot.io/not-gpu is 'GPU-1,,', which names no GPU"),
        ({"alone": "yes"}, "aliquot.io/alone is 'yes'"),
        ({"label": "a b"}, "aliquot.io/label 'a b' is not a valid label"),
        ({"beside": "x", "alone": "true"}, "aliquot.io/alone and aliquot.io/with x exclude"),
        ({"beside": "x", "apart_from": "y,x"}, "aliquot.io/with x and aliquot.io/apart-from x"),
        ({"apart_from": ",".join("abcdefghi")}, "aliquot.io/apart-from names 9 labels"),
    ],
)
def test_an_invalid_wish_is_refused_by_its_name(says: dict[str, Any], told: str) -> None:
    answer = planner(make_node()).filter(wishing("a", **says), ("n1",))
    assert answer.invalid
    assert answer.reason == "InvalidAnnotation"
    assert told in answer.message
    assert "--" not in answer.message


def test_nobody_is_beside_a_pod_that_is_alone() -> None:
    of = planner(make_node("n1", 1))
    assert bound(of, wishing("a", alone="true")) == (gpu_uuid("n1", 0),)
    for other in (wishing("b"), wishing("c", namespace="other"), wishing("d", label="x")):
        text = why(of, other)
        assert f"GPU {gpu_uuid('n1', 0)} on node n1 has pod ns/a, which is alone." in text
    of.cluster.set_pod("uid-a", None)
    assert bound(of, wishing("b")) is None  # its node may be about to report it
    of = planner(make_node("n1", 1))
    assert bound(of, wishing("b")) is not None
    text = why(of, wishing("a", alone="true"))
    assert "has pod ns/b, and this pod asks to be alone." in text


def test_pods_that_are_apart_get_different_gpus_whoever_comes_first() -> None:
    of = planner(make_node("n1", 2))
    first = bound(of, wishing("a", label="x"))
    second = bound(of, wishing("b", apart_from="x", label="y"))
    assert first != second
    assert bound(of, wishing("c", label="x")) == first
    text = why(of, wishing("d", apart_from="x,y"))
    assert "which this pod asks to be apart from (label " in text
    late = wishing("e", label="x", gpu=str(second and second[0]))
    assert "is on node n1" in why(of, late)
    one = planner(make_node("n1", 1))
    assert bound(one, wishing("b", apart_from="x")) is not None
    assert "has pod ns/b, which asks to be apart from label x." in why(one, wishing("e", label="x"))


def test_labels_belong_to_a_namespace() -> None:
    of = planner(make_node("n1", 1))
    assert bound(of, wishing("a", label="x")) is not None
    assert bound(of, wishing("b", namespace="other", apart_from="x")) is not None
    assert bound(of, wishing("c", apart_from="x")) is None


def test_a_pod_goes_to_the_gpu_of_the_pod_that_it_is_with() -> None:
    of = planner(make_node("n1", 2), make_node("n2", 2))
    assert bound(of, wishing("first", beside="x")) is not None
    there = bound(of, wishing("a", label="x", gpu=gpu_uuid("n2", 1)))
    assert there == (gpu_uuid("n2", 1),)
    assert bound(of, wishing("b", beside="x")) == there
    two = make_pod(
        "c",
        container("one", memory=SLICE),
        container("two", memory=SLICE),
        annotations={"aliquot.io/with": "x"},
    )
    assert of.plan(of.requests(two), "n1") is None
    assert bound(of, two) == there
    assert bound(of, wishing("big", memory=150)) is not None
    text = why(of, wishing("d", memory=300, beside="x"))
    assert "Pod ns/a, which this pod asks to be with (label x), is on GPU GPU-n2-1 of node" in text


def test_a_node_that_reports_a_pod_keeps_its_rules() -> None:
    of = planner(make_node("n1", 1))
    pod = wishing("a", alone="true")
    assert bound(of, pod) is not None
    gpu = make_node("n1", 1).status.gpus[0]
    grants = (held(pod, memory=units(SLICE)),)
    reported = msgspec.structs.replace(gpu, kind="sliced", grants=grants)
    node = make_node("n1", 1)
    status = msgspec.structs.replace(node.status, gpus=(reported,))
    of.cluster.set_node("n1", msgspec.structs.replace(node, status=status))
    assert "has pod ns/a, which is alone." in why(of, wishing("b"))
    of.cluster.set_node("n1", make_node("n1", 1))
    of.cluster.set_pod("uid-a", None)
    assert bound(of, wishing("b")) is not None


# --- any stream of pods, against a judge of few lines ---------------------------------------------

LABELS = st.sampled_from([None, None, "x", "y"])


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    says: dict[str, str] = {}
    for key, values in (
        ("label", LABELS),
        ("beside", LABELS),
        ("apart_from", st.sampled_from([None, None, "x", "x,y"])),
        ("gpu", st.sampled_from([None, None, "GPU-n1", gpu_uuid("n2", 0)])),
        ("not_gpu", st.sampled_from([None, None, gpu_uuid("n1", 0)])),
        ("alone", st.sampled_from([None, None, None, "true", "false"])),
    ):
        word = draw(values)
        if word is not None:
            says[key] = word
    namespace = draw(st.sampled_from(["ns", "other"]))
    return {"namespace": namespace, "memory": draw(st.sampled_from([40, 100, 200])), **says}


def may_share(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if "true" in {one.get("alone"), other.get("alone")}:
        return False
    if one["namespace"] != other["namespace"]:
        return True
    apart = [
        a.get("label") is not None and a["label"] in b.get("apart_from", "").split(",")
        for a, b in ((one, other), (other, one))
    ]
    return not any(apart)


def judged(asked: dict[str, Any], on: dict[str, list[dict[str, Any]]]) -> set[str]:
    """The GPUs that a pod may go to."""
    label, scope = asked.get("beside"), asked["namespace"]

    def has(gpu: str) -> bool:
        return any(o.get("label") == label and o["namespace"] == scope for o in on[gpu])

    joins = label is not None and any(map(has, on))
    return {
        gpu
        for gpu, there in on.items()
        if sum(one["memory"] for one in there) + asked["memory"] <= 320
        and gpu.startswith(asked.get("gpu", "GPU-"))
        and gpu != asked.get("not_gpu")
        and all(may_share(asked, one) for one in there)
        and (not joins or has(gpu))
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=st.lists(st.tuples(pods(), st.booleans()), max_size=9))
def test_a_pod_is_placed_where_it_may_be_whenever_there_is_such_a_place(
    stream: list[tuple[dict[str, Any], bool]],
) -> None:
    of = planner(make_node("n1", 2), make_node("n2", 1))
    on: dict[str, list[dict[str, Any]]] = {
        gpu_uuid(*one): [] for one in (("n1", 0), ("n1", 1), ("n2", 0))
    }
    known: dict[str, Pod] = {}
    for number, (asked, restarts) in enumerate(stream):
        if (asked.get("beside") and asked.get("alone") == "true") or (
            asked.get("beside") in asked.get("apart_from", "").split(",")
        ):
            continue  # refused as a contradiction
        pod = wishing(f"p{number}", **asked)
        possible = judged(asked, on)
        found = bound(of, pod)
        assert (found is not None) == bool(possible)
        if found is None:
            continue
        assert found[0] in possible
        on[found[0]].append(asked)
        known[pod.metadata.uid] = _bound_pod(of, pod)
        if restarts:
            of = planner(make_node("n1", 2), make_node("n2", 1))
            for uid, one in known.items():
                of.cluster.set_pod(uid, one)


def _bound_pod(of: Planner, pod: Pod) -> Pod:
    """A pod as the API server has it after its binding."""
    [(node, parts)] = [
        (name, parts)
        for name in of.cluster.nodes
        for uid, parts in of.cluster.parts_on(name)
        if uid == pod.metadata.uid
    ]
    notes = {**pod.metadata.annotations, PLAN: plan_of(parts).encode()}
    meta = msgspec.structs.replace(pod.metadata, annotations=notes)
    spec = msgspec.structs.replace(pod.spec, node_name=node)
    return msgspec.structs.replace(pod, metadata=meta, spec=spec)


# --- over HTTP ------------------------------------------------------------------------------------


def test_another_leader_keeps_pods_apart_by_the_annotations_of_those_that_run() -> None:
    async def run() -> None:
        api = FakeApi()
        put_node(api, make_node("n1", 2))
        async with api.serving():
            async with replica(api) as first:
                await first.ready()
                for name, memory, says in (("a", 40, {"alone": "true"}), ("b", 41, {"label": "x"})):
                    pod = put_pod(api, wishing(name, memory=memory, **says))
                    await first.filter(pod, "n1")
                    assert await first.bind(pod, "n1") == ""
            async with replica(api) as second:
                await second.ready()
                pod = put_pod(api, wishing("c", memory=42, apart_from="x"))
                refused = await second.filter(pod, "n1")
                assert not refused["NodeNames"]
                [gpu] = plan_in(api, "b").containers["main"].gpus
                plain = put_pod(api, wishing("d", memory=43))
                assert (await second.filter(plain, "n1"))["NodeNames"] == ["n1"]
                assert await second.bind(plain, "n1") == ""
                assert plan_in(api, "d").containers["main"].gpus == (gpu,)

    asyncio.run(run())
