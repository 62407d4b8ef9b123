"""Which nodes a pod fits, which GPUs it gets, and the reasons of a refusal."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kubernetes.api.gpunode import NodeGrant
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.objects import Container, GpuNode, Pod
from aliquot.kubernetes.api.presets import ALIQUOT, NVIDIA, SLOTS, TENCENT
from aliquot.kubernetes.api.requests import ContainerRequest
from aliquot.kubernetes.cluster.cluster import UNREPORTED_SECONDS, Cluster
from aliquot.kubernetes.cluster.parts import Part, Parts, plan_of
from aliquot.kubernetes.cluster.usable import NO_AGENT
from aliquot.kubernetes.extender.planner import Planner
from aliquot.placement.choose.chooser import Chooser
from kubernetes.builders import GIB, GPU_BYTES, container, gpu_uuid, make_node, make_pod, units


def planner(*nodes: GpuNode, offer: int = 1, **options: Any) -> Planner:
    cluster = Cluster(**options)
    for node in nodes:
        cluster.set_node(node.metadata.name, node)
    return Planner(cluster, options.get("presets", (ALIQUOT,)), offer=offer)


def plan(of: Planner, pod: Pod, node: str = "n1") -> Parts:
    found = of.plan(of.requests(pod), node)
    assert found is not None
    return found


def filtered(of: Planner, pod: Pod, *names: str) -> tuple[str, ...]:
    return of.filter(pod, names or tuple(of.cluster.nodes)).names


# --- one pod ----------------------------------------------------------------------------------


def test_a_pod_without_gpus_may_go_anywhere() -> None:
    assert filtered(planner(), make_pod(), "a", "b") == ("a", "b")


def test_a_slice_goes_beside_the_pod_that_uses_the_least() -> None:
    def half_used(name: str, *busy: int) -> GpuNode:
        node = make_node(name, len(busy), kind="sliced")
        gpus = []
        for gpu, steps in zip(node.status.gpus, busy, strict=True):
            grant = NodeGrant(gpu.uuid, "ns", "p", "main", GPU_BYTES // 2, 50, busy=steps)
            gpus.append(msgspec.structs.replace(gpu, grants=(grant,)))
        status = msgspec.structs.replace(node.status, gpus=tuple(gpus))
        return msgspec.structs.replace(node, status=status)

    of, pod = planner(half_used("n1", 8, 4), half_used("n2", 7, 2)), make_pod(memory=8, core=20)
    assert filtered(of, pod) == ("n2",)
    reserved = of.cluster.reserved(pod.metadata.uid)
    assert reserved is not None
    assert reserved.parts[0].gpus == (gpu_uuid("n2", 1),)
    assert plan(of, pod, "n1")[0].gpus == (gpu_uuid("n1", 1),)


def test_the_offered_number_of_nodes_comes_back_best_first() -> None:
    nodes = [make_node(f"n{number}") for number in range(20)]
    names = filtered(planner(*nodes), make_pod(gpu=1))
    assert len(names) == 1
    of = planner(*nodes, offer=5)
    assert filtered(of, make_pod(gpu=1))[0] == names[0]
    names = filtered(of, make_pod(gpu=1))
    assert len(names) == 5
    scores = dict(of.scores(make_pod(gpu=1), names))
    assert scores[names[0]] == 10
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_a_pod_like_the_last_one_is_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(*, ahead: bool) -> tuple[list[tuple[str, ...]], int]:
        of = planner(*(make_node(f"n{number}") for number in range(3)))
        found = [filtered(of, make_pod("first", memory=8, core=5))]
        if ahead:
            of.prepare()
        computed: list[object] = []
        real = Chooser._costs

        def counted(*args: Any) -> Any:
            computed.append(args)
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(Chooser, "_costs", counted)
            found.append(filtered(of, make_pod("second", memory=8, core=5)))
        found.append(filtered(of, make_pod("third", gpu=2)))
        return found, len(computed)

    assert answers(ahead=False)[1] > 0
    assert answers(ahead=True) == (answers(ahead=False)[0], 0)


@pytest.mark.parametrize("versions", [("1", "2"), ("", "")])
def test_a_pod_that_has_changed_is_read_again(versions: tuple[str, str]) -> None:
    of = planner(make_node("n1"))
    before, now = (
        msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=version)
        )
        for pod, version in zip((make_pod("a", gpu=1), make_pod("a", gpu=2)), versions, strict=True)
    )
    assert before.metadata.uid == now.metadata.uid
    assert [of.requests(one)[0].gpus for one in (before, before, now)] == [1, 1, 2]


def test_only_requested_nodes_come_back() -> None:
    of = planner(make_node("n1"), make_node("n2"))
    assert filtered(of, make_pod(gpu=1), "n2", "other") == ("n2",)


def test_the_best_node_is_left_out_if_kube_scheduler_does_not_name_it() -> None:
    of = planner(make_node("n1", 8), make_node("n2", 1), make_node("n3", 8))
    assert filtered(of, make_pod("a", gpu=1)) == ("n2",)
    for names in (("n3", "n1"), ("n1", "n3"), ("other", "n3", "n1")):
        assert filtered(of, make_pod("a", gpu=1), *names) == ("n1",)
    assert not filtered(of, make_pod("a", gpu=1), "other")


def test_a_refusal_tells_unusable_nodes_from_full_ones() -> None:
    of = planner(make_node("n1", 1), make_node("n2", 1), make_node("n3", 0))
    of.cluster.set_unusable("n2", "it is being repaired")
    assert filtered(of, make_pod("a", gpu=1)) == ("n1",)
    answer = of.filter(make_pod("b", gpu=1), ("n3", "n2", "n1", "n4"))
    assert list(answer.refused) == ["n3", "n2", "n1", "n4"]
    assert answer.refused["n1"] == "not enough free on enough GPUs"
    assert answer.refused["n2"] == "it is being repaired"
    assert answer.refused["n3"] == answer.refused["n4"] == NO_AGENT
    assert answer.reason == "InsufficientGPUs"
    only = of.filter(make_pod("c", gpu=2), ("n1", "n2"))
    assert only.reason == "TooLarge"


def test_a_reservation_is_not_free_for_the_next_pod() -> None:
    of = planner(make_node("n1", 1), make_node("n2", 1))
    first = filtered(of, make_pod("a", gpu=1))[0]
    second = filtered(of, make_pod("b", gpu=1))
    assert len(second) == 1
    assert second[0] != first
    assert not filtered(of, make_pod("c", gpu=1))


def test_a_pods_own_reservation_is_free_for_it() -> None:
    of = planner(make_node("n1", 1))
    pod = make_pod("a", gpu=1)
    assert filtered(of, pod) == filtered(of, pod) == ("n1",)


def test_a_slice_has_its_bytes_and_its_share() -> None:
    (part,) = plan(planner(make_node()), make_pod(memory=40, core=30))
    assert (part.kind, part.memory, part.compute, len(part.gpus)) == ("sliced", 10 * GIB, 30, 1)


def test_two_halves_come_from_two_gpus() -> None:
    (part,) = plan(planner(make_node(shares=4)), make_pod(sgpu=2))
    assert len(set(part.gpus)) == 2
    assert part.memory == GPU_BYTES // 4


def test_whole_gpus_are_linked() -> None:
    (part,) = plan(planner(make_node(linked=True)), make_pod(gpu=2))
    assert set(part.gpus) in ({gpu_uuid("n1", 0), gpu_uuid("n1", 1)}, {"GPU-n1-2", "GPU-n1-3"})


def test_kinds_do_not_mix_on_a_gpu() -> None:
    of = planner(make_node("n1", 2))
    assert filtered(of, make_pod("a", sgpu=1))
    assert filtered(of, make_pod("b", memory=4))
    refused = of.filter(make_pod("c", gpu=1), ["n1"])
    assert refused.names == ()
    assert refused.reason == "InsufficientGPUs"
    assert filtered(of, make_pod("d", sgpu=1))
    assert filtered(of, make_pod("e", memory=4))


def test_models_are_matched_by_words() -> None:
    nodes = make_node("n1", model="H100 80GB HBM3"), make_node("n2", model="A100-SXM4-40GB")
    of = planner(*nodes, offer=2)
    assert filtered(of, make_pod(gpu=1, annotations={"aliquot.io/models": "a100"})) == ("n2",)
    both = make_pod(gpu=1, annotations={"aliquot.io/models": "A100,H100"})
    assert set(filtered(of, both)) == {"n1", "n2"}
    none = of.filter(make_pod(gpu=1, annotations={"aliquot.io/models": "B200"}), ["n1", "n2"])
    assert none.reason == "TooLarge"
    assert "another GPU model" in none.message


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (("Tesla P40", 24), ("Tesla V100-SXM2-16GB", 16)),
        (("Tesla M40", 24), ("A10", 24)),
        (("Tesla T4", 16), ("GeForce RTX 3080", 10)),
        (("Tesla K80", 12), ("GeForce RTX 4070", 12)),
        (("Tesla V100-SXM2-32GB", 32), ("GeForce RTX 4090", 24)),
        (("T4", 16), ("H100 80GB HBM3", 80)),
    ],
)
def test_slices_go_to_weaker_gpus_and_whole_gpus_are_the_stronger(
    weak: tuple[str, int], strong: tuple[str, int]
) -> None:
    nodes = {"weak": weak, "strong": strong}
    for order in (("weak", "strong"), ("strong", "weak")):
        of = planner(*(make_node(n, model=nodes[n][0], memory=nodes[n][1] * GIB) for n in order))
        assert filtered(of, make_pod(memory=4))[0] == "weak"
        assert filtered(of, make_pod("shared", sgpu=1))[0] == "weak"
        assert filtered(of, make_pod("whole", gpu=1))[0] == "strong"


def test_what_an_agent_reports_is_believed_before_the_name_of_a_model() -> None:
    of = planner(make_node("n1", model="H100", strength=1.0), make_node("n2", model="T4"))
    assert filtered(of, make_pod(memory=4))[0] == "n1"


@pytest.mark.parametrize("asked", [{"gpu": 1}, {"sgpu": 1}, {"memory": 4}])
def test_no_gpu_weaker_than_the_annotation_says_is_chosen(asked: dict[str, Any]) -> None:
    of = planner(make_node("t4", model="Tesla T4"), make_node("a100", model="A100"), offer=2)
    pod = make_pod(annotations={"aliquot.io/min-strength": "100"}, **asked)
    assert filtered(of, pod) == ("a100",)
    none = of.filter(
        make_pod(annotations={"aliquot.io/min-strength": "286"}, **asked), ["t4", "a100"]
    )
    assert (none.names, none.reason) == ((), "TooLarge")
    assert "2 nodes: GPUs that are weaker than asked for" in none.message
    assert "with strength 286 or more" in none.message
    assert "The strongest of these GPUs has 100: lower aliquot.io/min-strength" in none.message


@pytest.mark.parametrize("asked", [{"gpu": 1}, {"sgpu": 1}, {"memory": 4}])
def test_no_gpu_of_a_model_that_is_excluded_is_chosen(asked: dict[str, Any]) -> None:
    mixed = make_node("mixed", 2, model="A100")
    weak = msgspec.structs.replace(mixed.status.gpus[0], model="Tesla T4")
    status = msgspec.structs.replace(mixed.status, gpus=(weak, mixed.status.gpus[1]))
    of = planner(
        make_node("t4", model="Tesla T4"),
        make_node("a100", model="A100"),
        msgspec.structs.replace(mixed, status=status),
        offer=3,
    )

    def chosen(**notes: str) -> set[str]:
        named = {f"aliquot.io/{name.replace('_', '-')}": value for name, value in notes.items()}
        names = ["t4", "a100", "mixed"]
        return set(of.filter(make_pod(annotations=named, **asked), names).names)

    assert chosen(not_models="t4") == {"a100"}
    assert chosen(not_models="V100") == {"t4", "a100", "mixed"}
    assert chosen(models="T4,A100", not_models="a100") == {"t4"}
    assert chosen(not_models="T4,A100") == set()


def test_an_annotation_of_hami_that_is_not_honoured_is_refused_by_name() -> None:
    of = planner(make_node(), presets=(NVIDIA,))
    asked: dict[str, Any] = {"nvidia.com/gpu": 1}
    pod = make_pod(annotations={"nvidia.com/vgpu-mode": "mig"}, **asked)
    refused = of.filter(pod, ["n1"])
    assert (refused.names, refused.reason) == ((), "UnsupportedAnnotation")
    assert "the annotation nvidia.com/vgpu-mode is 'mig'" in refused.message


def test_a_node_with_another_strength_than_its_model_is_ranked_by_its_own() -> None:
    of = planner(make_node("n1", model="A100"), make_node("n2", model="A100", strength=50.0))
    assert filtered(of, make_pod(memory=4))[0] == "n2"
    assert filtered(of, make_pod("whole", gpu=1))[0] == "n1"
    of.cluster.set_node("n1", make_node("n1", model="A100", strength=20.0))
    assert filtered(of, make_pod("later", gpu=1))[0] == "n2"


def test_a_mixed_node_is_as_strong_as_its_weakest_gpu() -> None:
    mixed = make_node("n1", 2, model="A100")
    weak = msgspec.structs.replace(mixed.status.gpus[0], model="Tesla T4")
    status = msgspec.structs.replace(mixed.status, gpus=(weak, mixed.status.gpus[1]))
    of = planner(msgspec.structs.replace(mixed, status=status))
    assert not filtered(of, make_pod(gpu=1, annotations={"aliquot.io/min-strength": "100"}))


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "fast", "1e9"])
def test_an_invalid_minimum_strength_is_refused(text: str) -> None:
    refused = planner(make_node()).filter(
        make_pod(gpu=1, annotations={"aliquot.io/min-strength": text}), ["n1"]
    )
    assert refused.reason == "InvalidAnnotation"
    assert f"aliquot.io/min-strength is {text!r}" in refused.message
    assert "an A100 has 100" in refused.message


def test_the_size_of_a_share_depends_on_its_node() -> None:
    of = planner(make_node("n1", 1, shares=2), make_node("n2", 1, shares=4))
    for name in "abcdef":
        assert filtered(of, make_pod(name, sgpu=1))
    assert not filtered(of, make_pod("g", sgpu=1))


def test_a_gpu_without_free_memory_has_no_share_free() -> None:
    """The node had two shares of a GPU when both were given, and has four since."""
    before = planner(make_node("n1", 1, shares=2))
    after = planner(make_node("n1", 1, shares=4))
    for name in ("a", "b"):
        pod = make_pod(name, sgpu=1)
        after.cluster.set_pod(pod.metadata.uid, bound_by(pod, "n1", plan(before, pod)))
    assert not filtered(after, make_pod("c", sgpu=1))


def test_a_percentage_is_of_the_gpu_that_was_chosen() -> None:
    of = planner(
        make_node("n1", 1, memory=80 * GIB),
        make_node("n2", 1, memory=16 * GIB, model="T4"),
        presets=(NVIDIA,),
    )
    asked: dict[str, Any] = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}
    for name in "abcd":
        assert filtered(of, make_pod(name, **asked))
    assert not filtered(of, make_pod("e", **asked))


def test_a_gpu_takes_no_more_containers_than_it_has_slots() -> None:
    of = planner(make_node("n1", 1), presets=(NVIDIA,))
    asked: dict[str, Any] = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}
    for number in range(SLOTS):
        assert filtered(of, make_pod(f"p{number}", **asked))
    assert not filtered(of, make_pod("one-more", **asked))


def test_a_hundred_core_of_gpu_manager_is_a_whole_gpu() -> None:
    of = planner(make_node("n1", 2), presets=(TENCENT,))
    asked: dict[str, Any] = {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60}
    (part,) = plan(of, make_pod(**asked))
    assert (part.kind, len(part.gpus), part.memory) == ("whole", 2, GPU_BYTES)


# --- refusals ---------------------------------------------------------------------------------


def test_a_refusal_has_the_reason_for_every_node() -> None:
    of = planner(make_node("n1", 2), make_node("n2", 8, memory=16 * GIB, model="T4"))
    answer = of.filter(make_pod(memory=128, annotations={"aliquot.io/gpus": "2"}), ["n1", "n2"])
    assert answer.names  # 16 GiB of each of two GPUs
    answer = of.filter(make_pod(memory=960, annotations={"aliquot.io/gpus": "3"}), ["n1", "n2"])
    assert answer.refused == {
        "n1": "fewer GPUs than asked for",
        "n2": "GPUs with less memory than asked for",
    }
    assert answer.reason == "TooLarge"
    assert "container 'main' asks for sliced: 80 GiB of each of 3 GPUs" in answer.message


def test_bytes_that_are_written_instead_of_units_are_refused_with_the_unit() -> None:
    answer = planner(make_node("n1", 2)).filter(make_pod(memory="8Gi"), ["n1"])
    assert answer.reason == "InvalidAmount"
    assert answer.message.endswith("Ask for less, in units of 256 MiB.")


def test_too_large_says_the_maximum_in_the_units_of_the_request() -> None:
    of = planner(make_node("n1", 2, memory=79 * GIB), make_node("n2", 2, memory=16 * GIB))
    answer = of.filter(make_pod(memory="8Ki"), ["n1", "n2"])
    assert answer.reason == "TooLarge"
    assert answer.message.endswith(
        " Such a GPU has at most 79 GiB, aliquot.io/vcuda-memory: 316 for container 'main' in units"
        " of 256 MiB."
    )
    of_two = of.filter(make_pod(memory=640, annotations={"aliquot.io/gpus": "2"}), ["n1", "n2"])
    assert "aliquot.io/vcuda-memory: 632" in of_two.message
    per_gpu = planner(make_node("n1", memory=79 * GIB), presets=(NVIDIA,))
    asked: dict[str, Any] = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 90_000}
    told = per_gpu.filter(make_pod(**asked), ["n1"]).message
    assert told.endswith(" Such a GPU has at most 79 GiB.")


def test_a_refusal_names_nodes_without_an_agent() -> None:
    answer = planner(make_node("n1", 1)).filter(make_pod(gpu=2), ["n1", "n2"])
    assert answer.refused["n2"] == NO_AGENT
    assert f"1 node (n2): {NO_AGENT}" in answer.message
    assert "1 node: fewer GPUs than asked for" in answer.message
    many = planner().filter(make_pod(gpu=1), ["n5", "n4", "n3", "n2"])
    assert f"4 nodes (n2, n3, n4, …): {NO_AGENT}" in many.message
    assert answer.reason == "TooLarge"
    assert planner().filter(make_pod(gpu=2), ["n2"]).reason == "InsufficientGPUs"


def test_an_invalid_request_is_refused_on_every_node_with_its_reason() -> None:
    answer = planner(make_node()).filter(make_pod(core=30), ["n1"])
    assert answer.invalid
    assert answer.reason == "CoreWithoutMemory"
    assert "Add aliquot.io/vcuda-memory" in answer.refused["n1"]


# --- several containers -----------------------------------------------------------------------


def test_containers_that_run_together_are_placed_together() -> None:
    pod = make_pod("p", container("a", gpu=1), container("b", gpu=1), container("c", memory=320))
    parts = {one.container: one for one in plan(planner(make_node("n1", 3)), pod)}
    assert len({gpu for one in parts.values() for gpu in one.gpus}) == 3
    assert not filtered(planner(make_node("n1", 2)), pod)


def test_containers_that_fit_alone_but_not_together_are_refused() -> None:
    pod = make_pod("p", container("a", memory=200), container("b", memory=200))
    answer = planner(make_node("n1", 1)).filter(pod, ["n1"])
    assert answer.refused == {"n1": "its containers do not fit together"}


def test_an_init_container_uses_the_gpus_of_those_after_it() -> None:
    pod = make_pod("p", container("main", gpu=1), init=(container("prepare", gpu=2),))
    parts = {one.container: one for one in plan(planner(make_node("n1", 2)), pod)}
    assert set(parts["main"].gpus) < set(parts["prepare"].gpus)


def test_an_init_container_does_not_add_to_those_after_it() -> None:
    pod = make_pod("p", container("main", memory=320), init=(container("prepare", memory=300),))
    parts = {one.container: one for one in plan(planner(make_node("n1", 1)), pod)}
    assert parts["main"].gpus == parts["prepare"].gpus


def test_a_sidecar_is_placed_together_with_the_others() -> None:
    sidecar = container("side", sidecar=True, memory=200)
    pod = make_pod("p", container("main", memory=200), init=(sidecar,))
    assert not filtered(planner(make_node("n1", 1)), pod)
    parts = plan(planner(make_node("n1", 2)), pod)
    assert len({one.gpus for one in parts}) == 2


def test_a_pod_uses_a_gpu_as_one_kind() -> None:
    pod = make_pod("p", container("main", memory=4), init=(container("prepare", gpu=1),))
    assert not filtered(planner(make_node("n1", 1)), pod)
    parts = {one.container: one for one in plan(planner(make_node("n1", 2)), pod)}
    assert parts["main"].gpus != parts["prepare"].gpus


# --- any order --------------------------------------------------------------------------------

SHAPES: list[tuple[Container, ...]] = [
    (container("main", gpu=1),),
    (container("main", gpu=2),),
    (container("main", sgpu=1),),
    (container("main", sgpu=2),),
    (container("main", memory=80, core=30),),
    (container("main", memory=200),),
    (container("a", memory=40, core=50), container("b", memory=120, core=60)),
    (container("a", gpu=1), container("b", sgpu=1)),
]
OPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, len(SHAPES) - 1)),
    st.tuples(st.just("ask"), st.integers(0, len(SHAPES) - 1)),
    st.tuples(st.just("bind"), st.integers(0, 30)),
    st.tuples(st.just("bind"), st.integers(0, 30)),
    st.tuples(st.just("surprise"), st.integers(0, len(SHAPES) - 1)),
    st.tuples(st.just("report"), st.integers(0, 30)),
    st.tuples(st.just("end"), st.integers(0, 30)),
)


class Machine:
    """kube-scheduler and the agents, as they would follow the planner."""

    def __init__(self, sizes: list[int]) -> None:
        self.nodes = {f"n{i}": make_node(f"n{i}", size) for i, size in enumerate(sizes)}
        self.now = 0.0
        self.of = planner(*self.nodes.values(), now=lambda: self.now)
        self.asked: dict[str, tuple[Pod, str]] = {}
        self.live: dict[str, tuple[Pod, str, Parts]] = {}
        self.count = 0

    def pod(self, shape: int) -> Pod:
        self.count += 1
        return make_pod(f"p{self.count}", *SHAPES[shape])

    def ask(self, shape: int) -> None:
        pod = self.pod(shape)
        names = self.of.filter(pod, list(self.nodes)).names
        if names:  # kube-scheduler may choose any of them
            self.asked[pod.metadata.uid] = (pod, names[-1])
        elif not self.asked:
            requests = self.of.requests(pod)
            assert not any(self.has_room(node, requests) for node in self.nodes)

    def bind(self, which: int) -> None:
        if self.asked:
            uid = sorted(self.asked)[which % len(self.asked)]
            pod, node = self.asked.pop(uid)
            parts = self.of.plan_again(uid, self.of.requests(pod), node)
            if parts is None:
                self.of.cluster.forget(uid)
            else:
                self.see(pod, node, parts)

    def surprise(self, shape: int) -> None:
        """A pod that another has bound, who knew nothing of what is reserved."""
        pod, other = self.pod(shape), planner(*self.nodes.values())
        for uid, (one, _, _) in self.live.items():
            other.cluster.set_pod(uid, one)
        names = other.filter(pod, list(self.nodes)).names
        if names:
            parts = other.plan_again(pod.metadata.uid, other.requests(pod), names[0])
            assert parts is not None
            self.see(pod, names[0], parts)

    def see(self, pod: Pod, node: str, parts: Parts) -> None:
        with_node = bound_by(pod, node, parts)
        self.of.cluster.set_pod(pod.metadata.uid, with_node)
        self.live[pod.metadata.uid] = (with_node, node, parts)

    def report(self, which: int) -> None:
        if self.live:
            uid = sorted(self.live)[which % len(self.live)]
            pod, node, parts = self.live[uid]
            self.nodes[node] = naming(self.nodes[node], pod, parts)
            self.of.cluster.set_node(node, self.nodes[node])

    def end(self, which: int) -> None:
        if self.live:
            uid = sorted(self.live)[which % len(self.live)]
            _, node, _ = self.live.pop(uid)
            self.nodes[node] = without(self.nodes[node], uid)
            self.of.cluster.set_pod(uid, None)
            self.of.cluster.set_node(node, self.nodes[node])
            self.now += UNREPORTED_SECONDS

    def held(self, node: str) -> dict[str, list[Part]]:
        found: dict[str, list[Part]] = defaultdict(list)
        for _, at, parts in self.live.values():
            for one in parts if at == node else ():
                for gpu in one.gpus:
                    found[gpu].append(one)
        return found

    def check(self) -> None:
        for node in self.nodes:
            for parts in self.held(node).values():
                assert len({one.kind for one in parts}) == 1
                assert sum(one.memory for one in parts) <= GPU_BYTES
                assert sum(one.reserved for one in parts) <= 100
                assert parts[0].kind != "whole" or len(parts) == 1

    def has_room(self, node: str, requests: tuple[ContainerRequest, ...]) -> bool:
        """By trying every GPU for every container."""
        gpus = [one.uuid for one in self.nodes[node].status.gpus]
        return _room(requests, gpus, {gpu: list(p) for gpu, p in self.held(node).items()})


def _room(
    requests: tuple[ContainerRequest, ...], gpus: list[str], held: dict[str, list[Part]]
) -> bool:
    if not requests:
        return True
    first, *rest = requests
    for chosen in combinations(gpus, first.gpus):
        part = Part("x", first.kind, chosen, first.memory_of(GPU_BYTES, 2), 0, first.reserved)
        after = {gpu: [*parts] for gpu, parts in held.items()}
        for gpu in chosen:
            after.setdefault(gpu, []).append(part)
        fits = all(
            len({one.kind for one in after[gpu]}) == 1
            and sum(one.memory for one in after[gpu]) <= GPU_BYTES
            and sum(one.reserved for one in after[gpu]) <= 100
            for gpu in chosen
        )
        if fits and _room(tuple(rest), gpus, after):
            return True
    return False


def bound_by(pod: Pod, node: str, parts: Parts) -> Pod:
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations={PLAN: plan_of(parts).encode()}),
        spec=msgspec.structs.replace(pod.spec, node_name=node),
    )


def naming(node: GpuNode, pod: Pod, parts: Parts) -> GpuNode:
    gpus = []
    for gpu in without(node, pod.metadata.uid).status.gpus:
        mine = tuple(
            NodeGrant(pod.metadata.uid, "ns", "p", one.container, one.memory, one.compute)
            for one in parts
            if gpu.uuid in one.gpus
        )
        kinds = {one.kind for one in parts if gpu.uuid in one.gpus}
        kind = kinds.pop() if kinds else gpu.kind
        gpus.append(msgspec.structs.replace(gpu, grants=(*gpu.grants, *mine), kind=kind))
    return with_gpus(node, tuple(gpus))


def without(node: GpuNode, uid: str) -> GpuNode:
    gpus = []
    for gpu in node.status.gpus:
        left = tuple(one for one in gpu.grants if one.pod_uid != uid)
        kind = gpu.kind if left else None
        gpus.append(msgspec.structs.replace(gpu, grants=left, kind=kind))
    return with_gpus(node, tuple(gpus))


def with_gpus(node: GpuNode, gpus: tuple[Any, ...]) -> GpuNode:
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, gpus=gpus))


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), ops=st.lists(OPS, max_size=25))
def test_no_gpu_is_given_twice_and_no_fitting_node_is_overlooked(
    sizes: list[int], ops: list[tuple[str, int]]
) -> None:
    machine = Machine(sizes)
    for what, which in ops:
        getattr(machine, what)(which)
        machine.check()


@pytest.mark.parametrize("strategy", ["fragmentation", "pack", "spread", "best-fit"])
def test_every_strategy_fills_a_gpu(strategy: str) -> None:
    of = planner(make_node("n1", 2), by=strategy)
    for number in range(8):
        assert filtered(of, make_pod(f"p{number}", memory=80, core=25))
    assert not filtered(of, make_pod("one-more", memory=1, core=25))
    assert units(80) * 4 == GPU_BYTES
