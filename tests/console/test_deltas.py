"""What changed between two views, as pages get it."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aliquot.console.deltas import apply, difference

FIGURES = st.none() | st.integers(0, 5)


def slices() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "gpu": st.sampled_from(["a", "b"]),
            "memory_bytes": st.integers(1, 3),
            "used_bytes": FIGURES,
            "got_ratio": FIGURES,
            "idle_seconds": FIGURES,
            "wait_p99_seconds": FIGURES,
        }
    )


def processes() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"pid": st.integers(1, 3), "used_bytes": FIGURES})


def gpus(uuid: str) -> st.SearchStrategy[dict[str, Any]]:
    told = ("busy_ratio", "power_watts", "power_limit_watts", "celsius", "clock_mhz")
    return st.fixed_dictionaries(
        {
            "uuid": st.just(uuid),
            "healthy": st.booleans(),
            "used_bytes": FIGURES,
            "telemetry": st.none() | st.fixed_dictionaries(dict.fromkeys(told, FIGURES)),
        }
    )


def grants(name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "id": st.just(name),
            "state": st.sampled_from(["running", "parked"]),
            "slices": st.lists(slices(), min_size=1, max_size=2),
            "processes": st.lists(processes(), max_size=2),
        }
    )


@st.composite
def views(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from("stuvwxyz"), unique=True, max_size=6).map(sorted))
    found = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(sorted))
    return {
        "time": draw(st.integers(0, 3)),
        "notes": draw(st.lists(st.sampled_from("no"))),
        "gpus": [draw(gpus(uuid)) for uuid in found],
        "grants": [draw(grants(name)) for name in names],
    }


@given(before=views(), after=views())
def test_a_view_and_what_changed_make_the_next_view(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    kept = copy.deepcopy(before)
    delta = difference(before, after)
    assert delta is not None
    assert apply(before, json.loads(json.dumps(delta))) == after
    assert before == kept


@given(view=views())
def test_nothing_that_changed_is_no_difference(view: dict[str, Any]) -> None:
    delta = difference(view, copy.deepcopy(view))
    assert delta == {"view": {}, "lists": {}, "moved": {}}


def test_figures_are_sent_without_their_items() -> None:
    part = {"used_bytes": 1, "got_ratio": None, "idle_seconds": 2, "wait_p99_seconds": None}
    grant = {"id": "a", "state": "running", "slices": [part], "processes": []}
    before = {"gpus": [], "grants": [grant]}
    after = {"gpus": [], "grants": [{**grant, "slices": [{**part, "used_bytes": 7}]}]}
    delta = difference(before, after)
    assert delta is not None
    assert delta["lists"] == {}
    assert delta["moved"]["slices"]["at"] == [0]
    assert delta["moved"]["slices"]["used_bytes"] == [7]


def test_items_that_have_one_key_are_sent_again() -> None:
    """Names of other users' grants are hidden, and two may be made in one millisecond."""
    grant = {"id": "1000:?@1.000", "state": "running", "slices": [], "processes": []}
    parked = {**grant, "state": "parked"}
    gpus: list[Any] = []
    for before, after in (([grant, parked], [grant]), ([grant], [grant, parked])):
        assert difference({"gpus": gpus, "grants": before}, {"gpus": gpus, "grants": after}) is None


def test_items_in_another_order_are_sent_again() -> None:
    one, two = ({"number": number, "name": "x", "phase": "Running"} for number in (1, 2))
    assert difference({"items": [one, two]}, {"items": [two, one]}) is None
    delta = difference({"items": [one]}, {"items": [two, one]})
    assert delta is not None
    assert delta["lists"]["items"] == {"set": [[0, two]]}
