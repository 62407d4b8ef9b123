"""Manifests of other projects mean here what those projects document."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.kubernetes.api.presets import ALIQUOT, ALIYUN, NVIDIA, PRESETS, TENCENT, TUYA, Preset
from aliquot.kubernetes.api.requests import ContainerRequest, InvalidRequestError, requests_of
from kubernetes.builders import GIB, GPU_BYTES, pod_of

MIB = 1 << 20


def manifest(
    limits: dict[str, int], *, requests: bool = False, notes: dict[str, str] | None = None
) -> dict[str, Any]:
    resources: dict[str, Any] = {"limits": limits}
    if requests:
        resources["requests"] = limits
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpu-pod", "annotations": notes or {}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "resources": resources}],
        },
    }


def only(preset: Preset, what: dict[str, Any]) -> ContainerRequest:
    (one,) = requests_of(pod_of(what), (preset,))
    return one


def test_gpu_manager_a_part_of_a_gpu_in_units_of_256_mib() -> None:
    limits = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}
    notes = {"tencent.com/vcuda-core-limit": "50"}
    one = only(TENCENT, manifest(limits, requests=True, notes=notes))
    assert (one.kind, one.gpus, one.memory, one.compute) == ("sliced", 1, 7680 * MIB, 50)
    assert dict(one.units) == limits


def test_gpu_manager_a_hundred_core_is_a_whole_gpu_whatever_the_memory() -> None:
    limits = {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 60}
    one = only(TENCENT, manifest(limits, requests=True))
    assert (one.kind, one.gpus) == ("whole", 2)
    assert dict(one.units) == limits
    with pytest.raises(InvalidRequestError, match="multiple of 100"):
        only(TENCENT, manifest({"tencent.com/vcuda-core": 150, "tencent.com/vcuda-memory": 6}))


def test_tuya_whole_gpus_two_halves_and_units() -> None:
    assert only(TUYA, manifest({"nvidia.com/gpu": 1})).kind == "whole"
    halves = only(TUYA, manifest({"tuya.com/sgpu": 2}))
    assert (halves.kind, halves.gpus, halves.memory_of(GPU_BYTES, 2)) == (
        "shared",
        2,
        GPU_BYTES // 2,
    )
    part = only(TUYA, manifest({"tuya.com/vcuda-memory": 10, "tuya.com/vcuda-core": 20}))
    assert (part.kind, part.memory, part.compute) == ("sliced", 2560 * MIB, 20)


def test_hami_memory_in_mib_and_cores_of_each_gpu() -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    one = only(NVIDIA, manifest(limits))
    assert (one.kind, one.gpus, one.memory, one.compute) == ("sliced", 2, 3000 * MIB, 30)
    # Memory in MiB is far too many ids: the kubelet sees only GPUs.
    assert one.units == (("nvidia.com/gpu", 2),)


def test_hami_quantities_as_the_api_server_writes_them() -> None:
    what = manifest({})
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    what["spec"]["containers"][0]["resources"]["limits"] = limits
    assert only(NVIDIA, what).memory == 3000 * MIB


def test_hami_a_percentage_of_the_memory_of_any_gpu() -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30}
    one = only(NVIDIA, manifest(limits))
    assert (one.kind, one.memory_percent, one.compute) == ("sliced", 50, 30)
    assert one.memory_of(GPU_BYTES, 2) == GPU_BYTES // 2


def test_hami_all_of_a_gpu_is_a_whole_gpu() -> None:
    every = {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 100, "nvidia.com/gpucores": 100}
    assert only(NVIDIA, manifest(every)).kind == "whole"
    assert only(NVIDIA, manifest({"nvidia.com/gpu": 2})).kind == "whole"
    cores = only(NVIDIA, manifest({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}))
    assert (cores.kind, cores.memory_of(GPU_BYTES, 2), cores.compute) == ("sliced", GPU_BYTES, 30)


def test_hami_gpu_types_are_chosen_by_annotation() -> None:
    notes = {"nvidia.com/use-gputype": "A100,V100"}
    assert only(NVIDIA, manifest({"nvidia.com/gpu": 2}, notes=notes)).models == {"A100", "V100"}
    notes = {"nvidia.com/nouse-gputype": "a100, V100"}
    one = only(NVIDIA, manifest({"nvidia.com/gpu": 2}, notes=notes))
    assert one.not_models == {"a100", "V100"}
    assert [one.accepts(name) for name in ("NVIDIA A100-SXM4-80GB", "Tesla T4")] == [False, True]
    assert str(one) == "whole: 2 GPUs and not V100 or a100"


def test_hami_gpus_are_chosen_by_their_uuids() -> None:
    notes = {"nvidia.com/use-gpuuuid": "GPU-1a, GPU-2b", "nvidia.com/nouse-gpuuuid": "GPU-2b"}
    wishes = only(NVIDIA, manifest({"nvidia.com/gpu": 1}, notes=notes)).wishes
    assert wishes is not None
    assert [wishes.selects(gpu) for gpu in ("GPU-1a", "GPU-2b", "GPU-3c")] == [True, False, False]
    assert only(TUYA, manifest({"nvidia.com/gpu": 1}, notes=notes)).wishes is None
    with pytest.raises(InvalidRequestError, match=r"nvidia\.com/use-gpuuuid is 'first', which"):
        only(NVIDIA, manifest({"nvidia.com/gpu": 1}, notes={"nvidia.com/use-gpuuuid": "first"}))


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        ("hami.io/node-scheduler-policy", "spread", "how nodes and GPUs are filled"),
        ("hami.io/gpu-scheduler-policy", "spread", "how nodes and GPUs are filled"),
        ("nvidia.com/numa-bind", "true", "NUMA nodes of GPUs are not known"),
        ("nvidia.com/vgpu-mode", "mig", "Leave it out, or write hami-core"),
        ("nvidia.com/vgpu-mode", "mps", "and not as MIG instances or by MPS"),
    ],
)
def test_what_hami_does_and_aliquot_does_not_is_refused_by_name(
    annotation: str, value: str, said: str
) -> None:
    pod = manifest({"nvidia.com/gpu": 1}, notes={annotation: value})
    with pytest.raises(InvalidRequestError) as caught:
        only(NVIDIA, pod)
    assert caught.value.reason == "UnsupportedAnnotation"
    assert f"the annotation {annotation} is {value!r}" in str(caught.value)
    assert said in str(caught.value)
    assert only(TUYA, pod).gpus == 1  # it means nothing to pods of others
    pod["spec"]["nodeName"] = "node-a"  # an earlier version admitted it there
    assert only(NVIDIA, pod).gpus == 1


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("nvidia.com/use-gpuuuid", ""),
        ("hami.io/node-scheduler-policy", "binpack"),
        ("hami.io/gpu-scheduler-policy", "topology-aware"),
        ("nvidia.com/vgpu-mode", "hami-core"),
    ],
)
def test_what_hami_asks_for_and_aliquot_does_anyway_is_accepted(
    annotation: str, value: str
) -> None:
    pod = manifest({"nvidia.com/gpu": 1}, notes={annotation: value})
    assert only(NVIDIA, pod).gpus == 1


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"nvidia.com/gpumem": 3000}, "Add nvidia.com/gpu"),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 101}, "more than 100 percent of a GPU"),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1, "nvidia.com/gpumem-percentage": 1},
            "memory twice",
        ),
    ],
)
def test_hami_invalid_requests_are_refused(limits: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        only(NVIDIA, manifest(limits))


def test_gpushare_memory_in_gib() -> None:
    one = only(ALIYUN, manifest({"aliyun.com/gpu-mem": 3}))
    assert (one.kind, one.gpus, one.memory, one.compute) == ("sliced", 1, 3 * GIB, 0)


def test_aliquot_two_half_gpus() -> None:
    one = only(ALIQUOT, manifest({"aliquot.io/sgpu": 2}))
    assert (one.kind, one.gpus) == ("shared", 2)


def test_a_preset_says_which_names_the_kubelet_sees() -> None:
    seen = {name: set(one.roles) for name, one in PRESETS.items()}
    assert seen == {
        "aliquot": {
            "aliquot.io/gpu",
            "aliquot.io/sgpu",
            "aliquot.io/vcuda-core",
            "aliquot.io/vcuda-memory",
        },
        "tencent": {"tencent.com/vcuda-core", "tencent.com/vcuda-memory"},
        "tuya": {
            "nvidia.com/gpu",
            "tuya.com/sgpu",
            "tuya.com/vcuda-core",
            "tuya.com/vcuda-memory",
        },
        "nvidia": {"nvidia.com/gpu"},
        "aliyun": {"aliyun.com/gpu-mem"},
    }
    assert NVIDIA.roles == {"nvidia.com/gpu": "slot"}
