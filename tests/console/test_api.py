"""The console's API: what it shows of GPUs, grants and jobs, in pages, and as its document says."""

from __future__ import annotations

import http.client
import json
import subprocess
from typing import Any

import pytest

from aliquot.console.deltas import apply
from conftest import aliquot_command
from console.conftest import SLEEPS, Console
from console.everything import ask_everything
from pool.conftest import SHAPE, PoolUp
from support import GIB, wait_until


class Stream:
    """Server-sent events as they come, put together as a page does."""

    def __init__(self, console: Console) -> None:
        self._connection = http.client.HTTPConnection(console.host, timeout=60)
        headers = {"Authorization": f"Bearer {console.token}"}
        self._connection.request("GET", "/api/v1/events", headers=headers)
        self._answer = self._connection.getresponse()
        self._views: dict[str, Any] = {}
        self.deltas = 0
        assert self._answer.getheader("content-type", "").startswith("text/event-stream")

    def next(self, name: str) -> Any:
        """The view of that name after its next event."""
        while True:
            event = self._answer.readline().strip().decode().removeprefix("event: ")
            view, _, kind = event.partition("-")
            if view not in {"machine", "jobs"}:
                continue
            content = json.loads(self._answer.readline().partition(b"data: ")[2])
            self.deltas += kind == "delta"
            self._views[view] = apply(self._views[view], content) if kind else content
            if view == name:
                return self._views[view]

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_gpus_and_grants_show_what_is_granted_and_used(console: Console, sleeper: str) -> None:
    gpu = console.get("/gpus")["items"][0]
    assert gpu["granted_bytes"] == 8 * GIB
    assert gpu["free_percent"] == 70
    grant = console.get(f"/grants/{sleeper}")
    (part,) = grant["slices"]
    assert (part["memory_bytes"], part["compute_percent"]) == (8 * GIB, 30)
    assert (part["gpu"], part["gpu_index"]) == (gpu["uuid"], gpu["index"])
    assert "time.sleep" in grant["command"]
    assert part["shares_work"] is None, "not known is not false"
    assert grant["away_bytes"] is None
    (history,) = console.get(f"/grants/{sleeper}/history")["slices"]
    assert len(history["times"]) == len(history["used_bytes"]) > 0
    (stored,) = console.get(f"/grants/{sleeper}/history?span=day")["slices"]
    assert stored["part_bytes"][-1] == 8 * GIB
    (stored,) = console.get("/gpus/0/history?span=day")["slices"]
    assert stored["part_bytes"][-1] == 8 * GIB
    assert console.get("/gpus/0/history?span=month")["step"] == 900
    found = console.problem(404, "GET", "/api/v1/grants/nobody")
    assert found["type"].endswith("no-such-grant")
    assert "nobody" in found["detail"]


def test_waste_has_a_price_where_the_model_has_one(console: Console, sleeper: str) -> None:
    body = {"model": "H100 80GB HBM3", "per_hour": 2.5}
    assert console.ask("PUT", "/api/v1/prices", body).json == {"prices": {body["model"]: 2.5}}
    wait_until(lambda: console.get("/waste")["items"])
    (row,) = console.get("/waste")["items"]
    assert (row["model"], row["queue"]) == (body["model"], None)
    assert row["granted_hours"] >= row["idle_hours"] + row["unknown_hours"] - 0.001
    assert row["idle_cost"] is not None
    csv = console.ask("GET", "/api/v1/waste.csv")
    assert csv.headers["content-type"].startswith("text/csv")
    assert csv.body.decode().splitlines()[1].startswith(f"{row['month']},{row['user']},,H100")
    points = console.ask("GET", "/api/v1/history.csv?kind=gpu&span=month")
    assert points.body.decode().startswith("time,name,gpu,used_bytes")
    for wrong in ({"per_hour": -1}, {"per_hour": "x"}, {"model": ""}):
        console.problem(400, "PUT", "/api/v1/prices", {**body, **wrong})
    for path in ("/gpus/x/history", "/gpus/0/history?span=year", "/history.csv?kind=jobs"):
        console.problem(400, "GET", f"/api/v1{path}")
    console.problem(404, "GET", "/api/v1/gpus/99/history")


def test_lists_come_in_pages(console: Console, pool: PoolUp) -> None:
    first = console.get("/gpus?limit=3")
    assert [one["index"] for one in first["items"]] == [0, 1, 2]
    rest = console.get(f"/gpus?limit=3&after={first['next']}")
    assert [one["index"] for one in rest["items"]] == [3]
    assert rest["next"] is None
    for name in ("a", "b", "c"):
        pool.submit("--name", name, "--", *SLEEPS)
    newest = console.get("/jobs?limit=2")
    assert [one["name"] for one in newest["items"]] == ["c", "b"]
    pool.ask("cancel", "b")  # a page continues after a job that is no longer listed
    pool.wait_for("b", "Cancelled")
    rest = console.get(f"/jobs?limit=2&after={newest['next']}")
    assert [one["name"] for one in rest["items"]] == ["a"]
    everything = console.get("/jobs?which=all")["items"]
    assert [one["name"] for one in everything] == ["c", "b", "a"]
    for query in ("limit=0", "limit=x", "limit=501", "limit=1&limit=2", "page=2", "which=some"):
        assert console.problem(400, "GET", f"/api/v1/jobs?{query}")["detail"]


def test_a_job_has_its_history_and_its_log(console: Console, pool: PoolUp) -> None:
    name = pool.submit("--name", "speaks", "--", "/bin/sh", "-c", "echo häuser; echo two")
    pool.wait_for(name, "Succeeded")
    job = console.get("/jobs/speaks")
    assert (job["phase"], job["exit_code"], job["ranks"]) == ("Succeeded", 0, [0])
    assert [one["phase"] for one in job["history"]][:2] == ["Pending", "Starting"]
    whole = console.get("/jobs/speaks/log")
    assert (whole["text"], whole["phase"]) == ("häuser\ntwo\n", "Succeeded")
    assert console.get("/jobs/speaks/log?tail=1")["text"] == "two\n"
    assert console.get(f"/jobs/speaks/log?from={whole['end']}")["text"] == ""
    assert console.problem(404, "GET", "/api/v1/jobs/nobody")["type"].endswith("no-such-job")


def test_a_waiting_job_says_why_and_its_place(console: Console, pool: PoolUp) -> None:
    pool.submit("--name", "all", "--workers", "4", "--time", "1h", "--", *SLEEPS)
    pool.wait_for("all", "Running")
    pool.submit("--name", "later", "--", *SLEEPS)
    wait_until(lambda: console.get("/jobs/later")["place"])
    later = console.get("/jobs/later")
    assert "job 1" in later["reason"]
    assert (later["place"], later["of"]) == (1, 1)
    assert later["expected_start"] > later["submitted"]


def test_events_tell_of_a_grant_when_it_comes_and_of_jobs_that_change(
    console: Console, pool: PoolUp, cli_env: dict[str, str]
) -> None:
    stream = Stream(console)
    assert stream.next("machine")["grants"] == []
    assert stream.next("jobs") == {"up": True, "items": [], "left_out": 0}
    command = [aliquot_command(), "run", "--simulate", SHAPE, "--memory", "8GiB", "--", *SLEEPS]
    with subprocess.Popen(command, env=cli_env) as process:
        try:
            while not (grants := stream.next("machine")["grants"]):
                pass
            assert grants[0]["slices"][0]["memory_bytes"] == 8 * GIB
            pool.submit("--name", "new", "--", *SLEEPS)
            while not (jobs := stream.next("jobs")["items"]):
                pass  # all comes again for a page that missed something
            assert jobs[0]["name"] == "new"
            while not stream.deltas:
                stream.next("machine")
        finally:
            process.kill()
    stream.close()


def test_without_a_pool_gpus_are_shown_and_jobs_are_absent(
    console: Console, pool: PoolUp, sleeper: str
) -> None:
    pool.down()
    assert console.problem(503, "GET", "/api/v1/jobs")["hint"]
    wait_until(lambda: not console.get("/machine")["pool_is_up"])
    assert console.get(f"/grants/{sleeper}")["state"] == "unused"
    pool.up()
    assert console.get("/jobs")["items"] == []


def test_a_page_that_does_not_read_holds_nobody_up(console: Console, pool: PoolUp) -> None:
    idle = [Stream(console) for _ in range(20)]
    stream = Stream(console)
    times = [stream.next("machine")["time"] for _ in range(3)]
    assert times == sorted(times)
    assert pool.ask("jobs").returncode == 0
    for one in [*idle, stream]:
        one.close()


def test_the_console_of_aliquot_up_ends_with_it_and_begins_again_if_it_dies(
    down_pool: PoolUp, cli_env: dict[str, str]
) -> None:
    down_pool.up("--console", "127.0.0.1:0")
    lock = down_pool.state / "console" / "address"
    wait_until(lambda: lock.exists() and lock.read_text())
    first = lock.read_text().strip()
    wait_until(lambda: first in down_pool.output.read_text())
    link = down_pool.ask("console").stdout.strip()
    assert link.startswith(f"{first}#code=")
    token = (down_pool.state / "console" / "token").read_text()
    (pid,) = child_consoles(down_pool)
    subprocess.run(["kill", "-9", str(pid)], check=True)
    wait_until(lambda: [one for one in child_consoles(down_pool) if one != pid])
    wait_until(lambda: lock.read_text().strip() != first)
    assert (down_pool.state / "console" / "token").read_text() == token
    assert down_pool.phase_of(down_pool.submit("--", "/bin/true"))
    down_pool.down()
    wait_until(lambda: not child_consoles(down_pool))
    assert cli_env["ALIQUOT_CONSOLE"] == "off"


def child_consoles(pool: PoolUp) -> list[int]:
    assert pool.process is not None
    found = subprocess.run(
        ["pgrep", "-P", str(pool.process.pid), "-f", "aliquot.console"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(one) for one in found.stdout.split()]


@pytest.mark.filterwarnings("default")
def test_every_answer_is_as_the_document_says(console: Console, pool: PoolUp, sleeper: str) -> None:
    pool.submit("--name", "train", "--", *SLEEPS)
    document = console.get("/openapi.json")
    del document["paths"]["/events"]  # it does not end
    tried = ask_everything(console, document)
    assert len(tried) >= 10
    for path in (f"/grants/{sleeper}", "/jobs/train", "/jobs/train/log"):
        console.get(path)
