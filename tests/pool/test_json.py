"""JSON for programs: the same key means the same thing in every command."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.model import Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job
from aliquot.model.owner import Owner
from aliquot.model.selection import GpuSelection
from aliquot.pool.encoding import Submission, decode_submission, encode_submission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pool.conftest import PoolUp

ANSWERS = (
    ("gpus",),
    ("ps",),
    ("doctor",),
    ("explain",),
    ("limits",),
    ("jobs",),
    ("describe", "train"),
    ("run", "--dry-run", "--json", "--memory", "1GiB", "--", "true"),
)
# A request's number of GPUs, and the GPUs; a grant's state and a job's; the setting, and processes.
SEVERAL = {"gpus", "state", "unjoined"}


def test_a_key_has_one_kind_of_value_in_all_commands(pool: PoolUp) -> None:
    pool.submit("--name", "train", "--memory", "4GiB", "--urgency", "2", "--", "sleep", "600")
    pool.wait_for("train", "Running")
    kinds: dict[str, set[str]] = {}
    shares: list[Any] = []
    for words in ANSWERS:
        answer = pool.ask(*words, *(() if "--json" in words else ("--json",)))
        assert answer.returncode == 0, answer.stderr
        for key, value in pairs(json.loads(answer.stdout)):
            kinds.setdefault(key, set()).add(kind_of(value))
            shares += [value] if key == "compute_percent" else []
            assert key != "priority" or value == "normal", words
            assert key != "urgency" or value == 2, words
    assert shares
    assert set(shares) == {None}  # equal, or no limit
    mixed = {key: found for key, found in kinds.items() if len(found - {"null"}) > 1}
    assert mixed.keys() == SEVERAL, mixed


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return "number" if type(value) in {int, float} else type(value).__name__


def pairs(answer: Any) -> Iterator[tuple[str, Any]]:
    """All keys of all objects in it, with their values."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield key, value
            yield from pairs(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from pairs(value)


def test_jobs_that_earlier_versions_stored_are_read() -> None:
    job = Job(3, "train", ("true",), Request(), urgency=7)
    one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
    stored = encode_submission(one)
    assert stored["request"]["compute_percent"] is None
    earlier = {**stored, "priority": stored.pop("urgency")}
    earlier["request"] = {**stored["request"], "compute_percent": 0}
    assert decode_submission(earlier, one.owner) == one
    assert "min_strength" not in stored["request"]  # earlier versions refuse what they do not know
    assert "which" not in stored["request"]
    assert decode_submission({**stored, "urgency": 9}, one.owner) == replace(
        one, job=replace(job, urgency=9)
    )


def test_a_job_keeps_its_minimum_strength() -> None:
    job = Job(3, "train", ("true",), Request(min_strength=26.1))
    one = Submission(Owner(1000, 1000, "alice"), job, "/bin/true", "/")
    assert decode_submission(encode_submission(one), one.owner) == one
    invalid = encode_submission(one)
    for value in (-1.0, float("nan"), 1e9, "26"):
        invalid["request"]["min_strength"] = value
        with pytest.raises(InvalidValueError):
            decode_submission(invalid, one.owner)


def test_a_job_keeps_the_gpus_that_it_may_use() -> None:
    which = GpuSelection(("H100",), ("GPU-1", "0"), ("GPU-2",))
    one = Submission(
        Owner(1000, 1000, "alice"),
        Job(3, "train", ("true",), Request(which=which)),
        "/bin/true",
        "/",
    )
    assert decode_submission(json.loads(json.dumps(encode_submission(one))), one.owner) == one
    values: tuple[Any, ...] = ({"models": "H"}, {"named": [7]}, {"named": [""]}, {"later": []}, [1])
    for value in values:
        invalid = encode_submission(one)
        invalid["request"]["which"] = value
        with pytest.raises(InvalidValueError):
            decode_submission(invalid, one.owner)
