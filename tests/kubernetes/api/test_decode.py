"""Texts of tenants to values: nesting and digits without end."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kubernetes.api.decode import DEEPEST, decode_json, whole_number
from aliquot.kubernetes.api.elasticjob import ElasticJob
from aliquot.kubernetes.api.plan import decode_plan

LEVELS = 20_000
DIGITS = "9" * 5000
OPEN = ["[", '{"a":', '[{"\\"]":', '{"a": [1, ']
CLOSE = {"[": "]", "{": "}"}


def nested(opening: str, inner: str, levels: int) -> str:
    brackets = [one for one in opening.replace('"\\"]"', "") if one in CLOSE]
    ends = "".join(CLOSE[one] for one in reversed(brackets))
    return opening * levels + inner + ends * levels


@pytest.mark.parametrize("opening", OPEN)
def test_what_is_nested_too_deep_reads_as_null(opening: str) -> None:
    deep = nested(opening, "1", LEVELS)
    found = decode_json(f'{{"first": 1, "deep": {deep}, "last": [{{"x": 2}}]}}', dict)
    assert (found["first"], found["last"]) == (1, [{"x": 2}])
    kept = json.dumps(found["deep"])
    assert kept.count("null") == 1
    assert kept.count("[") + kept.count("{") == DEEPEST - 1


@pytest.mark.parametrize("text", ["[" * LEVELS, '{"a":' * LEVELS, "[" * LEVELS + "]" * 7])
def test_a_text_that_ends_too_early_is_an_error(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(text, object)
    assert decode_plan(text) is None


def test_a_string_without_an_end_is_read_once() -> None:
    """An annotation may have 256 KiB. To search on from each quotation mark would take minutes."""
    text = "[" * LEVELS + '"' + '\\"' * 120_000
    with pytest.raises(msgspec.DecodeError):
        decode_json(text, object)


def test_a_job_whose_template_is_nested_deep_is_read() -> None:
    template = '{"spec": {"containers": [], "dnsConfig": ' + nested('{"a":', "1", LEVELS) + "}}"
    spec = f'{{"workers": {{"min": 1, "max": 1}}, "template": {template}, "queue": "q"}}'
    text = f'{{"metadata": {{"name": "j"}}, "spec": {spec}}}'
    found = decode_json(text.encode(), ElasticJob)
    assert (found.metadata.name, found.spec.queue) == ("j", "q")


@given(st.recursive(st.text() | st.integers(-9, 9) | st.none(), st.lists, max_leaves=20))
def test_other_texts_are_read_as_they_are(value: object) -> None:
    assert decode_json(json.dumps(value), object) == value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("0", 0),
        ("-1", None),
        ("", None),
        ("1.5", None),
        ("²", None),
        ("9" * 5000, None),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number
