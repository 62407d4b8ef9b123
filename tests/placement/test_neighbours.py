"""Slices that are with, apart from, or alone: on one machine, against a judge of few lines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.model import Amount, Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.neighbours import Neighbours, Occupant, why_not_beside
from aliquot.placement.choose.machine import (
    GpuCapacity,
    choose_gpus,
    label_to_join,
    why_unwelcome,
)
from support import GIB, make_gpu

ALICE, BOB = 1001, 1002
GPUS = 3


def asked(owner: int = ALICE, gpus: int = 1, **says: object) -> Request:
    neighbours = Neighbours(**says)  # type: ignore[arg-type]
    return Request(gpus=gpus, memory=Amount(bytes=GIB), neighbours=neighbours, owner=owner)


@dataclass
class Machine:
    """GPUs with enough memory for everybody: only neighbours decide."""

    on: list[list[Request]] = field(default_factory=lambda: [[] for _ in range(GPUS)])

    def place(self, request: Request) -> list[int] | None:
        gpus = [
            GpuCapacity(
                make_gpu(index),
                bytes_free=40 * GIB,
                percent_free=100,
                unused_bytes=40 * GIB,
                holders=len(here),
                occupants=tuple(one.occupant for one in here),
            )
            for index, here in enumerate(self.on)
        ]
        found = choose_gpus(request, gpus)
        if found is None:
            return None
        for gpu in found:
            self.on[gpu.index].append(request)
        return [gpu.index for gpu in found]


def may_share(one: Request, other: Request) -> bool:
    """The judge: whether two slices may be on one GPU."""
    if one.neighbours.alone or other.neighbours.alone:
        return False
    if one.owner != other.owner:
        return True
    return not (
        other.neighbours.label in one.neighbours.apart_from
        or one.neighbours.label in other.neighbours.apart_from
    )


def has(here: list[Request], request: Request) -> bool:
    """The judge: whether a GPU has a slice that the request asks to be with."""
    wanted = request.neighbours.beside, request.owner
    return any((one.neighbours.label, one.owner) == wanted for one in here)


LABELS = st.sampled_from(["a", "b", "c"])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(["plain", "plain", "with", "apart", "apart", "alone"]))
    return asked(
        draw(st.sampled_from([ALICE, ALICE, BOB])),
        gpus=draw(st.sampled_from([1, 1, 1, 2])),
        label=draw(LABELS),
        beside=draw(LABELS) if kind == "with" else None,
        apart_from=tuple(draw(st.sets(LABELS, min_size=1))) if kind == "apart" else (),
        alone=kind == "alone",
    )


@settings(max_examples=300, deadline=None)
@given(stream=st.lists(st.one_of(requests(), st.integers(0, 20)), max_size=16))
def test_slices_share_a_gpu_exactly_if_all_of_them_may(stream: list[Request | int]) -> None:
    machine = Machine()
    placed: list[Request] = []
    for event in stream:
        if isinstance(event, int):  # one ends
            if placed:
                gone = placed.pop(event % len(placed))
                machine.on = [[one for one in here if one is not gone] for here in machine.on]
            continue
        must_join = any(has(here, event) for here in machine.on)
        welcome = [
            here
            for here in machine.on
            if all(may_share(event, one) for one in here) and (not must_join or has(here, event))
        ]
        request = replace(event)  # itself, and no equal one before it
        found = machine.place(request)
        assert (found is not None) == (len(welcome) >= request.gpus)
        placed += [] if found is None else [request]
        for here in machine.on:
            assert all(
                may_share(one, other)
                for number, one in enumerate(here)
                for other in here[number + 1 :]
            )


@given(one=requests(), other=requests())
def test_it_is_the_same_for_who_comes_first(one: Request, other: Request) -> None:
    after = why_not_beside(one.occupant, [other.occupant])
    before = why_not_beside(other.occupant, [one.occupant])
    assert (after is None) == (before is None) == may_share(one, other)


@given(one=requests(), other=requests())
def test_a_reason_names_no_slice_of_another_user(one: Request, other: Request) -> None:
    why = why_not_beside(one.occupant, [other.occupant])
    if why is not None and one.owner != other.owner:
        assert "another user's slice" in why


def test_the_reason_names_the_pair() -> None:
    train = Occupant(ALICE, "train")
    apart = asked(label="train2", apart_from=("train",))
    assert why_not_beside(apart.occupant, [train]) == (
        "it has the slice train, which train2 asks to be apart from"
    )
    assert why_not_beside(train, [apart.occupant]) == (
        "it has the slice train2, which asks to be apart from train"
    )
    alone = asked(label="bench", alone=True)
    assert why_not_beside(train, [alone.occupant]) == (
        "it has the slice bench, which is alone on it"
    )
    assert why_not_beside(Occupant(BOB, "x"), [alone.occupant]) == (
        "it has another user's slice, which is alone on it"
    )
    assert why_not_beside(alone.occupant, [train]) == (
        "it has the slice train, and bench asks to be alone"
    )
    beside = asked(label="serve", beside="train")
    assert label_to_join(beside, [Occupant(BOB, "train")]) is None
    assert label_to_join(beside, [train]) == "train"
    assert why_unwelcome(beside, [], "train") == (
        "it has no slice train, which serve asks to be with"
    )
    assert why_unwelcome(beside, [train], "train") is None


def test_the_first_with_a_label_may_be_anywhere_and_the_others_join_it() -> None:
    machine = Machine()
    assert machine.place(asked(label="x", apart_from=("web",))) == [0]
    joins = asked(label="web", beside="web")
    first = machine.place(joins)
    assert first in ([1], [2])
    assert machine.place(joins) == first
    assert machine.place(asked(label="big", beside="web", gpus=2)) is None


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ({"label": "a b"}, "--label 'a b' is not a valid label"),
        ({"apart_from": ("ok", "")}, "--apart-from '' is not a valid label"),
        ({"apart_from": tuple("abcdefghi")}, "--apart-from names 9 labels, and may name 8"),
        ({"beside": "a", "alone": True}, "--alone and --with a exclude each other"),
        ({"beside": "a", "apart_from": ("a",)}, "--with a and --apart-from a exclude each other"),
    ],
)
def test_what_contradicts_itself_is_refused(says: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Neighbours(**says)  # type: ignore[arg-type]


def test_the_number_of_labels_is_limited_also_if_they_are_the_same() -> None:
    with pytest.raises(InvalidValueError, match="names 9 labels, and may name 8"):
        Neighbours(apart_from=("z",) * 9)
