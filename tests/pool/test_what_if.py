"""What the pool would decide if something were different: its own decision, and nothing changes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aliquot.model import parse_amount
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.request import Request
from aliquot.pool.client import PoolClient
from aliquot.pool.directory import directory_of
from aliquot.pool.encoding import encode_request
from aliquot.pool.what_if import as_seen, decode_question
from aliquot.slices import StateDirectory
from pool.conftest import PoolUp
from support import wait_until

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


def ask(pool: PoolUp, **question: Any) -> dict[str, Any]:
    return PoolClient(directory_of(StateDirectory(pool.state))).what_if(question)


def rows(found: dict[str, Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return {row["name"]: (row["before"], row["after"]) for row in found["jobs"]}


def asked(text: str | None = None, gpus: int = 1) -> dict[str, Any]:
    return encode_request(Request(gpus=gpus, memory=None if text is None else parse_amount(text)))


def test_a_request_starts_or_waits_as_the_pool_would_decide(pool: PoolUp) -> None:
    pool.submit("--name", "most", "--workers", "3", "--time", "1h", "--", *SLEEPS)
    pool.wait_for("most", "Running")
    found = ask(pool, add=asked())
    assert found["asked"]["does"] == "starts"
    assert found["asked"]["gpus"] == [3]
    assert rows(found)["most"][0] == rows(found)["most"][1] == {"does": "runs", "size": 3}
    waits = ask(pool, add=asked(), workers=[2])["asked"]
    assert waits["does"] == "waits"
    assert waits["place"] == waits["of"] == 1
    assert waits["expected_start"] is not None
    assert "most" in waits["reason"]
    pool.submit("--name", "two", "--workers", "2", "--", *SLEEPS)
    wait_until(lambda: pool.job("two")["turn"])
    assert pool.job("two")["turn"]["place"] == waits["place"]
    assert pool.phase_of("two") == "Pending", "asking has changed nothing"


def test_without_a_job_those_that_wait_start(pool: PoolUp) -> None:
    pool.submit("--name", "all", "--workers", "4", "--", *SLEEPS)
    pool.wait_for("all", "Running")
    pool.submit("--name", "next", "--", *SLEEPS)
    wait_until(lambda: pool.job("next")["turn"])
    number = pool.job("all")["number"]
    before, after = rows(ask(pool, gone_jobs=[number]))["next"]
    assert before["does"] == "waits"
    assert (after["does"], after["size"]) == ("starts", 1)
    assert rows(ask(pool, gone_jobs=[number]))["all"][1] == {"does": "ends"}
    assert pool.phase_of("all") == "Running"
    with pytest.raises(AliquotError, match="no unfinished job 99"):
        ask(pool, gone_jobs=[99])


def test_without_its_gpu_a_job_starts_again_elsewhere_or_waits(pool: PoolUp) -> None:
    pool.submit("--name", "one", "--", *SLEEPS)
    pool.wait_for("one", "Running")
    gpus = ask(pool)["gpus"]
    (own,) = [one for one in gpus if one["granted_bytes"]]
    others = [one["uuid"] for one in gpus if one is not own]
    found = ask(pool, gone_gpus=[own["uuid"]])
    assert rows(found)["one"][1]["does"] == "starts"
    assert own["index"] not in rows(found)["one"][1]["gpus"]
    gone = next(one for one in found["gpus"] if one["uuid"] == own["uuid"])
    assert gone["granted_bytes"] is None
    pool.submit("--name", "rest", "--workers", "3", "--", *SLEEPS)
    pool.wait_for("rest", "Running")
    # Both start again; the one that was submitted first goes first, and the other waits.
    found = rows(ask(pool, gone_gpus=others[:2]))
    assert found["one"][1] == {"does": "runs", "size": 1}
    assert found["rest"][1]["does"] == "waits"
    with pytest.raises(AliquotError, match="at least one GPU"):
        ask(pool, gone_gpus=[one["uuid"] for one in gpus])


def test_a_limit_of_a_user_holds_back_what_would_start(pool: PoolUp) -> None:
    pool.submit("--name", "one", "--", *SLEEPS)
    pool.wait_for("one", "Running")
    user = pool.job("one")["user"]
    assert ask(pool, add=asked())["asked"]["does"] == "starts"
    limited = ask(pool, add=asked(), limits={user: 1})["asked"]
    assert limited["does"] == "waits"
    assert user in limited["reason"]
    with pytest.raises(AliquotError, match="nobody"):
        ask(pool, quotas={"nobody": 1})


@pytest.mark.parametrize(
    "question",
    [
        {"add": {}},
        {"add": 5},
        {"workers": []},
        {"workers": [0]},
        {"workers": ["2"]},
        {"gone_gpus": 7},
        {"gone_gpus": [7]},
        {"gone_gpus": ["x"] * 65},
        {"limits": {"a": -1}},
        {"limits": {"a": float("nan")}},
        {"limits": {"a": "x"}},
        {"limits": []},
        {"colour": "red"},
    ],
)
def test_an_invalid_question_is_refused(question: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        decode_question(question)


def test_of_others_only_what_they_do_and_their_size_is_seen() -> None:
    outcome = {"does": "waits", "size": 2, "reason": "x", "place": 1, "of": 2, "gpus": [0]}
    assert as_seen(outcome, sees=True) == outcome
    assert as_seen(outcome, sees=False) == {"does": "waits", "size": 2}
