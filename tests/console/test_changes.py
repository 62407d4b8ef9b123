"""What is changed through the console: sizes of grants, and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from console.conftest import SLEEPS, Console
from pool.conftest import PoolUp
from support import GIB, wait_until


def test_a_dry_run_says_the_effect_and_changes_nothing(console: Console, sleeper: str) -> None:
    path, wanted = f"/api/v1/grants/{sleeper}/resize", {"memory": "16GiB", "compute": "50"}
    tried = console.ask("POST", path, {**wanted, "dry_run": True})
    assert tried.status == 200, tried
    (effect,) = tried.json["slices"]
    assert effect["before"]["memory_bytes"] == 8 * GIB
    assert effect["after"] == {
        "memory_bytes": 16 * GIB,
        "compute_percent": 50,
        "policy": "elastic",
        "priority": "normal",
    }
    assert effect["free_percent"] == 50
    assert tried.json["command_line"] == "aliquot resize sleeper --memory 16GiB --compute 50"

    def settings() -> tuple[int, int]:
        (part,) = console.get(f"/grants/{sleeper}")["slices"]
        return part["memory_bytes"], part["compute_percent"]

    assert settings() == (8 * GIB, 30)
    assert console.ask("POST", path, wanted).json == tried.json
    wait_until(lambda: settings() == (16 * GIB, 50))
    assert console.get("/gpus")["items"][0]["free_bytes"] == effect["free_bytes"]


REFUSED_SIZES: list[tuple[dict[str, object], int, str, str]] = [
    ({"memory": "900GiB", "dry_run": True}, 409, "capacity-refused", "900 GiB"),
    ({"memory": "900GiB"}, 409, "capacity-refused", "900 GiB"),
    ({"memory": "much"}, 400, "invalid-value", "much"),
    ({"compute": "101"}, 400, "invalid-value", "101"),
    ({"compute": "equal", "policy": "hard"}, 400, "invalid-value", "share"),
    ({}, 400, "invalid-value", "no setting"),
    ({"dry_run": True}, 400, "invalid-value", "no setting"),
    ({"memory": 5}, 400, "invalid-value", "memory"),
    ({"colour": "red"}, 400, "invalid-value", "colour"),
]


def test_a_refused_resize_says_why_and_changes_nothing(console: Console, sleeper: str) -> None:
    for body, status, kind, word in REFUSED_SIZES:
        found = console.problem(status, "POST", f"/api/v1/grants/{sleeper}/resize", body)
        assert found["type"].endswith(f":{kind}"), body
        assert word in found["detail"], body
    assert console.get(f"/grants/{sleeper}")["slices"][0]["memory_bytes"] == 8 * GIB
    console.problem(404, "POST", "/api/v1/grants/nobody/resize", {"compute": "5"})


def test_a_job_is_explained_and_submitted_suspended_resumed_and_cancelled(
    console: Console, pool: PoolUp, tmp_path: Path
) -> None:
    body = {
        "command": "/bin/sh -c 'pwd; sleep 600'",
        "name": "mine",
        "memory": "20GiB",
        "workers": "1..2",
        "directory": str(tmp_path),
    }
    explained = console.ask("POST", "/api/v1/explain", body).json
    assert explained["fits"]
    assert [one["memory_bytes"] for one in explained["slices"]] == [20 * GIB]
    made = console.ask("POST", "/api/v1/jobs", body)
    assert made.status == 201, made
    same = "aliquot submit --name mine --workers 1..2 --memory 20GiB"
    assert made.json["command_line"] == f"{same} -- /bin/sh -c 'pwd; sleep 600'"
    pool.wait_for("mine", "Running")
    wait_until(lambda: console.get("/jobs/mine/log")["text"] == f"{tmp_path}\n")
    number = made.json["number"]
    for verb, phase in (("suspend", "Suspended"), ("resume", "Running"), ("cancel", "Cancelled")):
        answer = console.ask("POST", f"/api/v1/jobs/{number}/{verb}")
        assert answer.status == 200, answer
        assert answer.json["message"]
        pool.wait_for("mine", phase)
    found = console.problem(409, "POST", f"/api/v1/jobs/{number}/resume")
    assert "mine" in found["detail"] or str(number) in found["detail"]
    console.problem(404, "POST", f"/api/v1/jobs/{number}/explode")
    console.problem(404, "POST", "/api/v1/jobs/nobody/cancel")


def test_what_does_not_fit_now_is_explained(console: Console, pool: PoolUp) -> None:
    pool.submit("--name", "all", "--workers", "4", "--time", "1h", "--", *SLEEPS)
    pool.wait_for("all", "Running")
    explained = console.ask("POST", "/api/v1/explain", {"memory": "20GiB"}).json
    assert not explained["fits"]
    assert explained["waiting"]["place"] == 1
    assert explained["waiting"]["expected_start"]
    assert [one["fits"] for one in explained["gpus"]] == [False] * 4

    def what_if(**question: object) -> Any:
        answer = console.ask("POST", "/api/v1/what-if", question)
        assert answer.status == 200, answer
        return answer.json

    found = what_if(add={"memory": "20GiB", "workers": "2"})
    assert (found["asked"]["does"], found["asked"]["place"]) == ("waits", 1)
    found = what_if(add={"memory": "20GiB", "workers": "2"}, without_jobs=[1])
    assert (found["asked"]["does"], found["asked"]["size"]) == ("starts", 2)
    (job,) = what_if(without_gpus=[0])["jobs"]
    assert job["before"] == {"does": "runs", "size": 4}
    assert job["after"]["does"] == "waits"
    for question, status in (
        ({"without_gpus": [9]}, 404),
        ({"without_jobs": [99]}, 404),
        ({"without_gpus": [0, 1, 2, 3]}, 400),
        ({"queue_quotas": [{"name": "nobody", "gpus": 1}]}, 400),
        ({"user_limits": [{"name": "x", "gpus": -1}]}, 400),
        ({"add": {"memory": "much"}}, 400),
    ):
        console.problem(status, "POST", "/api/v1/what-if", question)
    never = console.ask("POST", "/api/v1/explain", {"memory": "900GiB"}).json
    assert (never["fits"], never["waiting"]) == (False, None)
    assert never["error"]
    assert never["hint"]


REFUSED_JOBS: list[tuple[dict[str, object], str]] = [
    ({"command": ""}, "command"),
    ({"command": "echo 'open"}, "quotation"),
    ({"command": "/no/such/program"}, "/no/such/program"),
    ({"workers": "many"}, "many"),
    ({"time": "soon"}, "soon"),
    ({"gpus": 0}, "gpus"),
    ({"directory": "relative"}, "relative"),
    ({"directory": "/no/such/folder"}, "/no/such/folder"),
    ({"name": "a b"}, "a b"),
]


def test_an_invalid_submission_is_refused_and_nothing_is_submitted(console: Console) -> None:
    for change, word in REFUSED_JOBS:
        answer = console.ask("POST", "/api/v1/jobs", {"command": "/bin/true", **change})
        assert answer.status in {400, 409}, answer
        assert word in answer.json["detail"] + str(answer.json["hint"]), answer
    assert console.get("/jobs?which=all")["items"] == []
