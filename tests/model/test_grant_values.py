from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model import (
    Amount,
    ComputeUse,
    GrantChange,
    Policy,
    Priority,
    Request,
    Slice,
    check_name,
)
from aliquot.model.errors import AliquotError, InvalidValueError
from support import GIB, make_gpu


def test_a_request_without_memory_is_for_the_whole_gpu() -> None:
    gpu = make_gpu(memory=24 * GIB)
    assert Request().slice_of(gpu) == Slice(gpu.uuid, 24 * GIB)


def test_a_request_becomes_a_slice_with_the_same_values() -> None:
    request = Request(
        memory=Amount(bytes=GIB),
        compute_percent=30,
        policy=Policy.HARD,
        priority=Priority.LATENCY,
    )
    gpu = make_gpu(3)
    assert request.slice_of(gpu) == Slice(gpu.uuid, GIB, 30, Policy.HARD, Priority.LATENCY)


@pytest.mark.parametrize("gpus", [0, -1, 17])
def test_a_grant_has_one_to_sixteen_gpus(gpus: int) -> None:
    with pytest.raises(InvalidValueError, match=str(gpus)):
        Request(gpus=gpus)


@pytest.mark.parametrize("compute", [-1, 101])
def test_compute_is_a_percentage(compute: int) -> None:
    with pytest.raises(InvalidValueError, match=str(compute)):
        Request(compute_percent=compute)


def test_a_background_slice_takes_no_compute_time_from_others() -> None:
    uuid = make_gpu().uuid
    assert Slice(uuid, GIB, 30).reserved_percent == 30
    assert Slice(uuid, GIB, 30, priority=Priority.BACKGROUND).reserved_percent == 0


def test_a_change_must_change_something() -> None:
    with pytest.raises(InvalidValueError) as caught:
        GrantChange()
    assert "--compute equal" in str(caught.value)
    assert GrantChange(compute_percent=0).memory is None


def test_used_compute_is_a_fraction_of_the_elapsed_time() -> None:
    assert ComputeUse(recent_used_seconds=0.25, recent_seconds=0.5).got_ratio == 0.5
    assert ComputeUse().got_ratio is None


@pytest.mark.parametrize("name", ["a", "train-1", "Two.Halves_2", "9", "x" * 63])
def test_valid_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", "x" * 64])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidValueError):
        check_name(name)


@given(st.text())
def test_no_name_contains_a_path_separator_or_a_newline(name: str) -> None:
    try:
        check_name(name)
    except InvalidValueError:
        return
    assert name not in {".", ".."}
    assert not set(name) & set("/ \n=,")


def test_an_error_message_includes_the_way_out() -> None:
    assert str(AliquotError("this is wrong", "Do that.")) == "this is wrong\n  Do that."
    assert str(AliquotError("this is wrong")) == "this is wrong"
