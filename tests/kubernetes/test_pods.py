"""What containers ask for, and the reasons of invalid requests."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kubernetes.api.presets import ALIQUOT, ALIYUN, choose_presets
from aliquot.kubernetes.api.requests import (
    ContainerRequest,
    InvalidRequestError,
    asks,
    quantity,
    requests_of,
    settings_of,
)
from aliquot.model import Amount, Policy, Priority
from aliquot.model.errors import InvalidValueError
from aliquot.model.parking_rule import NEVER, ParkingRule
from kubernetes.builders import GIB, GPU_BYTES, container, make_pod, units


def only(pod_asks: dict[str, Any], **annotations: str) -> ContainerRequest:
    notes = {f"aliquot.io/{name}": value for name, value in annotations.items()}
    (one,) = requests_of(make_pod(annotations=notes, **pod_asks))
    return one


def refused(pod_asks: dict[str, Any], **annotations: str) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as error:
        only(pod_asks, **annotations)
    return error.value


def test_a_pod_without_gpus_asks_for_nothing() -> None:
    other: dict[str, Any] = {"example.com/x": 1}
    assert requests_of(make_pod(**other)) == ()
    assert not asks(make_pod())


def test_whole_gpus() -> None:
    one = only({"gpu": 2})
    assert (one.kind, one.gpus, one.compute, one.reserved) == ("whole", 2, 100, 100)
    assert one.memory_of(GPU_BYTES, shares=2) == GPU_BYTES
    assert one.units == (("aliquot.io/gpu", 2),)


def test_shares_have_an_equal_part_of_the_memory_and_no_cap_on_compute() -> None:
    one = only({"sgpu": 2})
    assert (one.kind, one.gpus, one.compute) == ("shared", 2, 0)
    assert one.memory_of(GPU_BYTES, shares=4) == GPU_BYTES // 4


def test_a_slice_of_one_gpu() -> None:
    one = only({"memory": 40, "core": 30})
    assert (one.kind, one.gpus, one.memory, one.compute) == ("sliced", 1, 10 * GIB, 30)
    assert one.units == (("aliquot.io/vcuda-core", 30), ("aliquot.io/vcuda-memory", 40))


def test_memory_without_core_is_an_equal_part_of_the_compute() -> None:
    assert only({"memory": 40}).compute == 0


def test_units_are_split_evenly_over_the_gpus_of_the_annotation() -> None:
    one = only({"memory": 40, "core": 60}, gpus="2")
    assert (one.gpus, one.memory, one.compute) == (2, units(20), 30)


def test_compute_comes_from_the_annotation_if_no_resource_has_it() -> None:
    assert only({"memory": 4}, compute="25").compute == 25
    assert only({"memory": 4, "core": 30}, compute="25").compute == 30
    assert only({"memory": 4}, compute="equal").compute == 0


def test_the_memory_of_a_slice_can_leave_its_gpu() -> None:
    one = only({"memory": 4}, swap="true", **{"park-after": "10m,always"})
    assert (one.swap, one.park_after) == (True, ParkingRule(600.0, always=True))
    assert only({"memory": 4}).swap is None
    assert only({"gpu": 1}, swap="false").swap is False
    assert only({"gpu": 1}, **{"park-after": "never"}).park_after == NEVER


@pytest.mark.parametrize(
    ("asks_for", "notes", "why"),
    [
        ({"memory": 4}, {"swap": "yes"}, "annotation aliquot.io/swap is 'yes', which is invalid"),
        ({"memory": 4}, {"swap": "true", "park-after": "soon"}, "aliquot.io/park-after is 'soon'"),
        ({"memory": 4}, {"park-after": "10m"}, "park-after is 10 min, and aliquot.io/swap is not"),
        ({"gpu": 1}, {"swap": "true"}, "swap is true, and container 'main' asks for whole GPUs"),
        ({"sgpu": 1}, {"swap": "true"}, "swap is true, and container 'main' asks for shared GPUs"),
        ({"memory": 4}, {"swap": "true", "gpus": "2"}, "container 'main' asks for slices of 2"),
    ],
)
def test_memory_that_cannot_leave_is_refused(
    asks_for: dict[str, Any], notes: dict[str, str], why: str
) -> None:
    assert why in str(refused(asks_for, **notes))


def test_background_work_reserves_no_compute() -> None:
    one = only({"memory": 4, "core": 30}, priority="background")
    assert (one.compute, one.reserved) == (30, 0)


def test_models_are_words_with_commas() -> None:
    assert only({"gpu": 1}, models="H100, A100").models == {"H100", "A100"}


def test_each_container_asks_for_itself_and_init_containers_come_first() -> None:
    pod = make_pod(
        "p",
        container("a", gpu=1),
        container("none"),
        container("b", memory=4),
        init=(container("prepare", gpu=2), container("side", sidecar=True, sgpu=1)),
    )
    found = requests_of(pod)
    assert [(one.container, one.kind, one.init) for one in found] == [
        ("prepare", "whole", True),
        ("side", "shared", False),
        ("a", "whole", False),
        ("b", "sliced", False),
    ]


@pytest.mark.parametrize(
    ("pod_asks", "annotations", "reason", "said"),
    [
        ({"memory": "1500m"}, {}, "InvalidAmount", "leave aliquot.io/vcuda-memory out"),
        ({"memory": 0, "core": 5}, {}, "CoreWithoutMemory", "aliquot.io/vcuda-core"),
        ({"gpu": "500m"}, {}, "InvalidAmount", "500m"),
        ({"gpu": "many"}, {}, "InvalidAmount", "'many' is no quantity"),
        ({"core": 30}, {}, "CoreWithoutMemory", "Add aliquot.io/vcuda-memory"),
        ({"gpu": 1, "sgpu": 1}, {}, "SeveralKinds", "aliquot.io/gpu and aliquot.io/sgpu"),
        ({"sgpu": 1, "memory": 4}, {}, "SeveralKinds", "one kind"),
        ({"memory": 21}, {"gpus": "2"}, "UnevenSplit", "21"),
        ({"memory": 20, "core": 15}, {"gpus": "2"}, "UnevenSplit", "15"),
        ({"memory": 8, "core": 150}, {}, "TooMuchCore", "aliquot.io/gpus"),
        ({"gpu": 17}, {}, "TooManyGPUs", "17 GPUs"),
        ({"memory": 34}, {"gpus": "17"}, "TooManyGPUs", "1 to 16"),
        ({"memory": 4}, {"gpus": "two"}, "InvalidAnnotation", "'two'"),
        ({"memory": 4}, {"gpus": "0"}, "InvalidAnnotation", "'0'"),
        ({"memory": 4}, {"gpus": "-1"}, "InvalidAnnotation", "'-1'"),
        ({"memory": 4}, {"gpus": "²"}, "InvalidAnnotation", "'²'"),
        ({"memory": 4}, {"compute": "130"}, "InvalidAnnotation", "1 to 100 percent"),
        ({"memory": 4}, {"memory": "lots"}, "InvalidAnnotation", "8GiB"),
        ({"memory": 4}, {"policy": "soft"}, "InvalidAnnotation", "elastic, hard"),
        ({"memory": 4}, {"priority": "first"}, "InvalidAnnotation", "latency, normal, background"),
        ({"memory": 4}, {"models": " , "}, "InvalidAnnotation", "H100,A100"),
        ({"memory": 4}, {"policy": "hard"}, "HardWithoutCompute", "aliquot.io/vcuda-core"),
        ({"sgpu": 1}, {"policy": "hard"}, "HardWithoutCompute", "shared GPUs"),
    ],
)
def test_an_invalid_request_is_named_with_what_to_write(
    pod_asks: dict[str, Any], annotations: dict[str, str], reason: str, said: str
) -> None:
    error = refused(pod_asks, **annotations)
    assert error.reason == reason
    assert said in str(error)
    assert error.hint


def test_all_invalid_annotations_are_named() -> None:
    error = refused({"memory": 4}, policy="strict", priority="high", compute="30", memory="lots")
    assert str(error) == (
        "the annotation aliquot.io/policy is 'strict' and the annotation aliquot.io/priority is"
        " 'high' and the annotation aliquot.io/memory is 'lots', which is invalid. Write one of"
        " elastic, hard for aliquot.io/policy; one of latency, normal, background for"
        " aliquot.io/priority; an amount as 8GiB, 50%, or units of 256 MiB for aliquot.io/memory."
    )


def test_a_shared_gpu_is_not_advised_to_ask_for_compute() -> None:
    told = str(refused({"sgpu": 1}, policy="hard"))
    assert "Ask for compute" not in told
    assert "Leave the policy out" in told


def test_a_pod_with_an_invalid_request_still_asks() -> None:
    assert asks(make_pod(gpu="500m"))
    assert not asks(make_pod(gpu=0))
    named: dict[str, Any] = {"aliquot.io/gpu": 1, "aliyun.com/gpu-mem": 3}
    both = container("main", **named)
    assert asks(make_pod("p", both), (ALIQUOT, ALIYUN))
    with pytest.raises(InvalidRequestError, match="aliquot and aliyun"):
        requests_of(make_pod("p", both), (ALIQUOT, ALIYUN))


def test_settings_are_read_from_annotations() -> None:
    notes = {
        "aliquot.io/policy": "hard",
        "aliquot.io/priority": "latency",
        "aliquot.io/compute": "30%",
        "aliquot.io/memory": "8GiB",
    }
    found = settings_of(make_pod(annotations=notes))
    assert (found.policy, found.priority, found.compute) == (Policy.HARD, Priority.LATENCY, 30)
    assert found.memory == Amount(bytes=8 * GIB)
    in_units = settings_of(make_pod(annotations={"aliquot.io/memory": "32"}))
    assert in_units.memory == Amount(bytes=8 * GIB)
    assert settings_of(make_pod()).memory is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("3k", 3000), ("1", 1), (7, 7), ("10Ki", 10240), ("1500m", Fraction(3, 2)), ("1.5G", 1.5e9)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str | int, number: float) -> None:
    assert quantity(text) == number


@given(text=st.text(max_size=12))
def test_any_quantity_is_a_number_or_refused(text: str) -> None:
    try:
        assert quantity(text) >= 0
    except InvalidValueError as error:
        assert error.hint


@given(
    asked=st.dictionaries(
        st.sampled_from(["gpu", "sgpu", "memory", "core"]),
        st.one_of(st.integers(-3, 400), st.sampled_from(["1k", "2Mi", "", "x"])),
    ),
    notes=st.dictionaries(
        st.sampled_from(["gpus", "models", "policy", "priority", "compute", "memory"]),
        st.one_of(st.text(max_size=6), st.sampled_from(["2", "3", "hard", "background", "50%"])),
    ),
)
def test_any_request_is_valid_or_refused_with_what_to_write(
    asked: dict[str, Any], notes: dict[str, str]
) -> None:
    pod = make_pod(annotations={f"aliquot.io/{k}": v for k, v in notes.items()}, **asked)
    try:
        found = requests_of(pod)
    except InvalidRequestError as error:
        assert error.reason.isalpha()
        assert error.hint
        return
    for one in found:
        assert 1 <= one.gpus <= 16
        assert 0 <= one.reserved <= 100
        if one.kind == "sliced":
            assert one.gpus * one.memory == units(int(quantity(asked["memory"])))
            assert one.compute or quantity(asked.get("core", 0)) == 0


def test_presets_that_use_the_same_resource_exclude_each_other() -> None:
    assert [one.name for one in choose_presets(["aliquot", "aliyun"])] == ["aliquot", "aliyun"]
    with pytest.raises(InvalidValueError, match=r"tuya and nvidia both use nvidia\.com/gpu"):
        choose_presets(["tuya", "nvidia"])
    with pytest.raises(InvalidValueError, match="no preset 'amd'"):
        choose_presets(["amd"])
    with pytest.raises(InvalidValueError, match="There are"):
        choose_presets([])
