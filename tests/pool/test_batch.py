"""Jobs as in a batch system, through the commands."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from cli.terminal import Terminal, on_terminal
from conftest import aliquot_command
from pool.conftest import SHAPE, PoolUp
from support import wait_until

FOREVER = ("sh", "-c", "echo runs; while :; do sleep 1; done")

pytestmark = pytest.mark.timeout(300)


def command(*args: str) -> list[str]:
    return [aliquot_command(), args[0], "--simulate", SHAPE, *args[1:]]


class TestFollow:
    def test_a_followed_job_prints_its_output_and_gives_its_exit_code(self, pool: PoolUp) -> None:
        answer = pool.ask("submit", "--follow", "--", "sh", "-c", "echo one; echo two; exit 3")
        assert answer.stdout == "one\ntwo\n"
        assert answer.returncode == 3
        assert "submitted sh-1 (job 1)" in answer.stderr
        assert "sh-1 (1): Failed" in answer.stderr
        assert "worker 0 ended with exit code 3" in answer.stderr

    def test_several_workers_are_followed_with_their_ranks(self, pool: PoolUp) -> None:
        answer = pool.ask("submit", "-f", "--workers", "2", "--", "sh", "-c", "echo I am $RANK")
        assert sorted(answer.stdout.splitlines()) == ["[0] I am 0", "[1] I am 1"]
        assert answer.returncode == 0

    def test_ctrl_c_stops_following_and_the_job_keeps_running(
        self, pool: PoolUp, cli_env: dict[str, str]
    ) -> None:
        args = ("submit", "--follow", "--name", "long", "--", *FOREVER)
        terminal = Terminal(command(*args), cli_env, columns=80)
        try:
            terminal.wait_for("runs")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 130
            assert "long keeps running" in terminal.shown
            assert "aliquot logs -f long" in terminal.shown
            assert "aliquot cancel long" in terminal.shown
            assert "Traceback" not in terminal.shown
        finally:
            terminal.close()
        assert pool.phase_of("long") == "Running"

    def test_a_followed_job_says_why_it_waits(self, pool: PoolUp, cli_env: dict[str, str]) -> None:
        pool.submit("--name", "full", "--workers", "4", "--", *FOREVER)
        pool.wait_for("full", "Running")
        terminal = Terminal(command("submit", "-f", "--", "echo", "done"), cli_env, columns=200)
        try:
            terminal.wait_for("echo-1 (2) waits: it does not fit beside what runs: job 1")
            pool.ask("cancel", "full")
            assert terminal.end() == 0
            assert "done" in terminal.shown
        finally:
            terminal.close()


class TestWait:
    def test_the_exit_code_is_the_first_that_is_not_zero(self, pool: PoolUp) -> None:
        for name, code in (("good", 0), ("bad", 7), ("worse", 9)):
            pool.submit("--name", name, "--memory", "1GiB", "--", "sh", "-c", f"exit {code}")
        assert pool.ask("wait", "good").returncode == 0
        answer = pool.ask("wait", "good", "bad", "worse")
        assert answer.returncode == 7
        assert [line.split(" after")[0] for line in sorted(answer.stdout.splitlines())] == [
            "bad (2): Failed", "good (1): Succeeded", "worse (3): Failed",
        ]  # fmt: skip

    def test_waiting_ends_at_its_timeout(self, pool: PoolUp) -> None:
        pool.submit("--name", "long", "--", *FOREVER)
        answer = pool.ask("wait", "--timeout", "0.1", "long")
        assert answer.returncode == 75
        assert "1 of 1 not finished" in answer.stderr
        assert pool.ask("cancel", "long").returncode == 0
        assert pool.ask("wait", "long").returncode == 143

    def test_waiting_survives_a_pool_that_restarts(
        self, pool: PoolUp, cli_env: dict[str, str], tmp_path: Path
    ) -> None:
        go = tmp_path / "go"
        pool.submit("--name", "job", "--", "sh", "-c", f"until test -e {go}; do sleep 0.1; done")
        pool.wait_for("job", "Running")
        pool.submit("--name", "quick", "--", "true")
        terminal = Terminal(command("wait", "quick", "job"), cli_env)
        try:
            terminal.wait_for("quick (2): Succeeded")
            pool.kill()
            terminal.wait_for("waiting until it is back")
            go.touch()
            pool.up()
            assert terminal.end() == 0
            assert "job (1): Succeeded" in terminal.shown
        finally:
            terminal.close()

    def test_a_job_that_does_not_exist_is_refused(self, pool: PoolUp) -> None:
        answer = pool.ask("wait", "nobody")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert "no such job: nobody" in answer.stderr


class TestLists:
    def test_numbers_and_recently_finished_jobs_are_listed(
        self, pool: PoolUp, cli_env: dict[str, str]
    ) -> None:
        pool.submit("--name", "fails", "--", "sh", "-c", "exit 4")
        pool.wait_for("fails", "Failed")
        pool.submit("--name", "runs", "--", *FOREVER)
        pool.wait_for("runs", "Running")
        for columns in (80, 200):
            lines = on_terminal(command("jobs"), cli_env, columns)
            assert max(map(len, lines)) <= columns
            above, below = lines[: lines.index("")], lines[lines.index("") :]
            assert above[1].split()[:2] == ["2", "runs"]
            assert "Finished in the last day:" in below
            assert below[-1].split()[:2] == ["1", "fails"]
            assert "Failed" in below[-1]
        assert "worker 0 ended with exit code 4" in on_terminal(command("jobs"), cli_env, 200)[-1]
        piped = pool.ask("jobs").stdout
        assert "worker 0 ended with exit code 4" in piped
        answer = json.loads(pool.ask("jobs", "--json").stdout)
        assert [one["name"] for one in answer["jobs"]] == ["runs"]
        assert [(one["name"], one["exit_code"]) for one in answer["finished"]] == [("fails", 4)]
        assert pool.ask("jobs", "--format", "{number} {name} {exit}").stdout == "2 runs –\n"  # noqa: RUF001

    def test_jobs_are_listed_by_name_user_and_phase(
        self, pool: PoolUp, cli_env: dict[str, str]
    ) -> None:
        pool.submit("--name", "fails", "--", "sh", "-c", "exit 4")
        pool.wait_for("fails", "Failed")
        pool.submit("--name", "full", "--workers", "4", "--", *FOREVER)
        pool.wait_for("full", "Running")
        pool.submit("--name", "waits", "--array", "1-2", "--", "true")

        def listed(*args: str) -> list[str]:
            answer = pool.ask("jobs", *args, "--format", "{name}")
            assert answer.returncode == 0, answer.stderr
            return answer.stdout.split()

        assert listed("waits", "fails") == ["waits-1", "waits-2", "fails"]
        assert listed("--phase", "failed") == ["fails"]
        assert listed("--phase", "RUNNING", "--phase", "Failed") == ["fails", "full"]
        me = pool.job("full")["user"]
        assert listed("--user", me, "--phase", "pending") == ["waits-1", "waits-2"]
        assert listed("--user", "nobody") == []
        assert pool.ask("jobs", "--phase", "succeeded").stdout.startswith("No such jobs.")
        assert "no such job: nobody" in pool.ask("jobs", "nobody").stderr
        assert "Choose one of pending, " in pool.ask("jobs", "--phase", "done").stderr
        lines = on_terminal(command("jobs", "--all"), cli_env, 80)
        assert max(map(len, lines)) <= 80
        assert lines[1].split()[:1] == ["1"]
        assert lines[1].split()[3:5] == ["Failed", "4"]
        start = pool.ask("jobs", "fails", "--format", "{start} {end}").stdout.split()
        assert len(start) == 4

    def test_watched_jobs_are_shown_until_a_key(
        self, pool: PoolUp, cli_env: dict[str, str]
    ) -> None:
        terminal = Terminal(command("jobs", "--watch", "--interval", "0.1"), cli_env, columns=80)
        try:
            terminal.wait_for("No unfinished jobs")
            pool.submit("--name", "late", "--", *FOREVER)
            terminal.wait_for("late")
            terminal.wait_for("Running")
            terminal.press("q")
            assert terminal.end() == 0
        finally:
            terminal.close()

    def test_describe_shows_where_a_job_runs_and_its_command_as_typed(self, pool: PoolUp) -> None:
        wanted = ("--min-strength", "10", "--model", "h100", "--not-gpu", "0")
        pool.submit("--name", "runs", "--time", "2h", *wanted, "--", *FOREVER)
        pool.wait_for("runs", "Running")
        shown = dict(
            line.split(":", 1)
            for line in pool.ask("describe", "runs").stdout.splitlines()
            if ":" in line and not line.startswith(" ")
        )
        assert shown["Command"].strip() == "sh -c 'echo runs; while :; do sleep 1; done'"
        excluded = pool.job("runs")["request"]["which"]["excluded"]
        assert len(excluded[0]) == 40  # the UUID: indexes may change with a reboot
        assert shown["Each worker"].strip() == (
            f"1 GPU of strength 10 or more, whole; --model h100 --not-gpu {excluded[0]}"
        )
        assert shown["Folder"].strip() == str(Path.cwd())
        assert Path(shown["Log"].strip()).read_text() == "runs\n"
        assert shown["Time limit"].strip().startswith("2 h, ")
        gpu, pids, memory = shown["Worker 0"].strip().split("; ")
        assert memory == "uses 0 B of 79.1 GiB"
        assert gpu in {f"GPU {index}" for index in range(1, 4)}
        pid = int(pids.split()[1])
        assert b"sh\0-c" in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert "Ended" not in shown
        pool.ask("cancel", "runs")
        assert pool.ask("wait", "runs").returncode == 143
        ended = pool.ask("describe", "runs").stdout
        for key in ("Started:", "Ended:", "Duration:", "Exit code:"):
            assert key in ended
        assert " Cancelling " in ended


class TestRequests:
    def test_requests_that_change_nothing_say_so(self, pool: PoolUp) -> None:
        pool.submit("--name", "runs", "--notice", "0", "--", *FOREVER)
        pool.wait_for("runs", "Running")
        again = pool.ask("resume", "runs")
        assert (again.returncode, again.stdout) == (0, "runs (1): not suspended: it is Running\n")
        assert pool.ask("suspend", "runs").stdout == "runs (1): suspending\n"
        pool.wait_for("runs", "Suspended")
        again = pool.ask("suspend", "runs")
        assert (again.returncode, again.stdout) == (0, "runs (1): already suspended\n")
        assert pool.ask("cancel", "runs").stdout == "runs (1): cancelling\n"
        pool.wait_for("runs", "Cancelled")
        again = pool.ask("cancel", "runs")
        assert (again.returncode, again.stdout) == (0, "runs (1): already finished: Cancelled\n")
        refused = pool.ask("resume", "runs")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "job runs (1) cannot be resumed: it is Cancelled" in refused.stderr

    def test_a_job_with_workers_is_shown_as_cancelling(self, pool: PoolUp) -> None:
        script = "trap '' TERM; echo ready; while :; do sleep 1; done"
        pool.submit("--name", "deaf", "--grace", "60", "--", "sh", "-c", script)
        wait_until(lambda: "ready" in pool.log("deaf"), 60)
        assert pool.ask("cancel", "deaf").returncode == 0
        assert "Cancelling" in pool.ask("jobs").stdout
        pool.wait_for("deaf", "Cancelling")
        assert pool.ask("cancel", "deaf").stdout == "deaf (1): already being cancelled\n"

    def test_a_queue_that_does_not_exist_is_refused(self, pool: PoolUp) -> None:
        answer = pool.ask("submit", "--queue", "nowhere", "--", "true")
        assert answer.returncode == 2
        assert "queue 'nowhere' does not exist" in answer.stderr
        assert "queues are: default." in answer.stderr


class TestTimeLimits:
    def test_a_job_is_stopped_at_its_time_limit(self, pool: PoolUp) -> None:
        script = "trap 'echo saved; exit 0' TERM; echo runs; while :; do sleep 0.1; done"
        limits = ("--time", "1h", "--notice", "0.2")
        pool.submit("--name", "slow", *limits, "--", "sh", "-c", script)
        wait_until(lambda: "runs" in pool.log("slow"), 60)
        assert any(self.ends_in(pool, seconds) for seconds in (1, 8, 64))
        answer = pool.ask("wait", "slow")
        assert answer.returncode == 124
        assert "Failed" in answer.stdout
        lines = pool.log("slow").splitlines()
        assert (lines[0], lines[-1]) == ("runs", "saved")
        assert "it has reached its time limit of " in pool.job("slow")["state"]["reason"]
        pool.leaves_nothing()

    @staticmethod
    def ends_in(pool: PoolUp, seconds: int) -> bool:
        """Make the limit that much longer than the time used; False if that has passed by then."""
        used = time.time() - pool.job("slow")["state"]["active_since"]
        limit = f"{used + seconds:.0f}s"
        return pool.ask("update", "slow", "--time", limit).returncode == 0


class TestDependencies:
    def test_a_job_starts_after_the_ones_it_waits_for(self, pool: PoolUp, tmp_path: Path) -> None:
        go = tmp_path / "go"
        script = f"until test -e {go}; do sleep 0.1; done; exit 3"
        pool.submit("--name", "first", "--", "sh", "-c", script)
        pool.submit("--name", "any", "--after", "first:any", "--", "true")
        pool.submit("--name", "ok", "--after", "first", "--after", "any", "--", "true")
        pool.wait_for("first", "Running")
        wait_until(lambda: "job 1, which is Running" in pool.job("any")["waiting"], 30)
        assert "it starts after job 1" in pool.ask("describe", "ok").stdout
        go.touch()
        pool.wait_for("any", "Succeeded")
        pool.wait_for("ok", "Cancelled")
        assert pool.job("ok")["state"]["reason"] == "job 1, which it starts after, is Failed"

    def test_a_dependency_that_does_not_exist_is_refused(self, pool: PoolUp) -> None:
        answer = pool.ask("submit", "--after", "nobody", "--", "true")
        assert answer.returncode == 1
        assert "no such job: nobody" in answer.stderr


class TestArrays:
    def test_an_array_runs_a_job_for_each_index_and_is_named_as_one(self, pool: PoolUp) -> None:
        script = "echo I am $ALIQUOT_ARRAY_INDEX; test $ALIQUOT_ARRAY_INDEX != 2"
        args = ("--name", "sweep", "--array", "1-3", "--memory", "1GiB", "--", "sh", "-c", script)
        assert pool.submit(*args) == "sweep"
        answer = pool.ask("wait", "sweep")
        assert answer.returncode == 1
        assert [line.split(" after")[0] for line in sorted(answer.stdout.splitlines())] == [
            "sweep-1 (1): Succeeded", "sweep-2 (2): Failed", "sweep-3 (3): Succeeded",
        ]  # fmt: skip
        assert sorted(pool.ask("logs", "sweep").stdout.splitlines()) == [
            "[sweep-1] I am 1", "[sweep-2] I am 2", "[sweep-3] I am 3",
        ]  # fmt: skip
        head, hint, _, *table = pool.ask("describe", "sweep").stdout.splitlines()
        assert head == "Array sweep: 3 jobs: 2 Succeeded, 1 Failed"
        assert "aliquot logs sweep-2" in hint
        assert [line.split()[:2] for line in table[1:]] == [
            ["1", "sweep-1"], ["2", "sweep-2"], ["3", "sweep-3"],
        ]  # fmt: skip
        assert len(json.loads(pool.ask("describe", "sweep", "--json").stdout)["jobs"]) == 3
        assert pool.ask("logs", "sweep-2").stdout == "I am 2\n"

    def test_an_array_runs_only_so_many_at_once_and_is_cancelled_as_one(self, pool: PoolUp) -> None:
        pool.submit("--name", "sweep", "--array", "0-3%2", "--memory", "1GiB", "--", *FOREVER)
        for name in ("sweep-0", "sweep-1"):
            pool.wait_for(name, "Running")
        for name in ("sweep-2", "sweep-3"):
            assert pool.job(name)["waiting"] == "array sweep runs 2 of its jobs at once"
        refused = pool.ask("submit", "--name", "sweep", "--", "true")
        assert "an array named sweep exists" in refused.stderr
        assert pool.ask("cancel", "sweep-0").returncode == 0
        pool.wait_for("sweep-2", "Running")
        cancelled = pool.ask("cancel", "sweep")
        assert cancelled.returncode == 0
        assert len(cancelled.stdout.splitlines()) == 4
        assert pool.ask("wait", "sweep").returncode == 143
        pool.leaves_nothing()


class TestUpdate:
    def test_a_waiting_job_is_changed_and_a_running_one_only_in_part(self, pool: PoolUp) -> None:
        pool.submit("--name", "full", "--workers", "4", "--", *FOREVER)
        pool.wait_for("full", "Running")
        pool.submit("--name", "waits", "--workers", "2", "--", *FOREVER)
        changes = ("--memory", "1GiB", "--compute", "10", "--workers", "1", "--time", "1h")
        assert pool.ask("update", "waits", *changes).stdout == "waits (2): changed\n"
        job = pool.job("waits")
        assert (job["sizes"], job["time_seconds"]) == ([1], 3600)
        assert job["request"]["compute_percent"] == 10
        refused = pool.ask("update", "full", "--memory", "1GiB", "--time", "1h")
        assert refused.returncode == 1
        assert "--memory cannot change while job full (1) has workers" in refused.stderr
        assert pool.job("full")["time_seconds"] is None
        assert pool.ask("update", "full", "--time", "1h", "--urgency", "3").returncode == 0
        assert (pool.job("full")["time_seconds"], pool.job("full")["urgency"]) == (3600, 3)
        too_large = pool.ask("update", "waits", "--workers", "64", "--memory", "80GiB")
        assert too_large.returncode == 1
        wait_until(lambda: pool.job("waits")["turn"] is not None, 30)
        turn = pool.job("waits")["turn"]
        assert (turn["place"], turn["of"]) == (1, 1)
        pool.ask("cancel", "full")
        pool.wait_for("waits", "Running")

    def test_the_first_in_line_knows_when_it_starts(self, pool: PoolUp) -> None:
        pool.submit("--name", "full", "--workers", "4", "--time", "1h", "--", *FOREVER)
        pool.wait_for("full", "Running")
        pool.submit("--name", "waits", "--", *FOREVER)
        wait_until(lambda: (pool.job("waits")["turn"] or {}).get("expected_start"), 30)
        job = pool.job("full")
        expected = pool.job("waits")["turn"]["expected_start"]
        assert abs(expected - (job["state"]["active_since"] + 3600 + 30 + 10)) < 5
        assert "Turn:" in pool.ask("describe", "waits").stdout
        assert "starts by" in pool.ask("describe", "waits").stdout


class TestLogs:
    def test_tail_since_timestamps_and_all_ranks(self, pool: PoolUp) -> None:
        script = "for i in 1 2 3; do echo $RANK-$i; done"
        name = pool.submit("--workers", "2", "--", "sh", "-c", script)
        pool.wait_for(name, "Succeeded")
        assert pool.ask("logs", "--tail", "2", name).stdout == "0-2\n0-3\n"
        both = pool.ask("logs", "--rank", "all", "--tail", "1", name).stdout
        assert sorted(both.splitlines()) == ["[0] 0-3", "[1] 1-3"]
        stamped = pool.ask("logs", "--rank", "1", "-t", name).stdout.splitlines()
        assert [line.split(" ", 1)[1] for line in stamped] == ["1-1", "1-2", "1-3"]
        assert stamped[0][4] == stamped[0][7] == "-"
        assert pool.ask("logs", "--since", "1h", name).stdout == "0-1\n0-2\n0-3\n"
        assert pool.ask("logs", "--since", "0", name).stdout == ""
        assert pool.ask("logs", "--rank", "x", name).returncode == 2

    def test_a_line_without_an_end_is_printed_when_the_job_ends(self, pool: PoolUp) -> None:
        name = pool.submit("--", "printf", "half")
        assert pool.ask("logs", "-f", name).stdout == "half"
        assert pool.ask("logs", "--rank", "all", name).stdout == "[0] half\n"


class TestPrune:
    def test_old_jobs_and_their_output_are_forgotten(self, pool: PoolUp) -> None:
        for name in ("one", "two"):
            pool.submit("--name", name, "--", "echo", name)
            pool.wait_for(name, "Succeeded")
        pool.submit("--name", "later", "--after", "two", "--workers", "4", "--", *FOREVER)
        assert pool.ask("prune", "--older", "1h").stdout.startswith("Forgot 0 finished jobs")
        pool.wait_for("later", "Running")
        assert pool.ask("prune", "--older", "0").stdout.startswith("Forgot 1 finished job ")
        assert not (pool.directory / "jobs" / "1").exists()
        names = [one["name"] for one in json.loads(pool.ask("jobs", "-a", "--json").stdout)["jobs"]]
        assert names == ["two", "later"]


class TestResubmit:
    def test_a_finished_job_runs_again_as_it_was(
        self, pool: PoolUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        # One of two workers fails: the first to fail ends the other before that has said anything.
        fails = 'pwd; echo "$0"; [ "$RANK" != 0 ] || exit 3; exec sleep 600'
        told = ("sh", "-c", fails, "two words")
        options = ("--workers", "1..2", "--memory", "10%", "--compute", "20", "--time", "1h")
        pool.submit("--name", "train", *options, "--retries", "0", "--urgency", "4", "--", *told)
        pool.wait_for("train", "Failed")
        monkeypatch.chdir("/")
        again = pool.ask("resubmit", "train")
        assert again.stdout == "train (1): submitted again as train (2)\n", again.stderr
        pool.wait_for("2", "Failed")
        first, second = pool.job("1"), pool.job("2")
        same = {"command", "directory", "program", "request", "sizes", "queue", "urgency"}
        same |= {"time_seconds", "retries", "notice_seconds", "grace_seconds", "live", "name"}
        assert {key: first[key] for key in same} == {key: second[key] for key in same}
        assert pool.log("2").splitlines()[:2] == [str(tmp_path), "two words"]

    def test_a_job_that_is_not_finished_is_refused_with_what_to_do(self, pool: PoolUp) -> None:
        pool.submit("--name", "long", "--grace", "1", "--notice", "0", "--", *FOREVER)
        pool.wait_for("long", "Running")
        refused = pool.ask("resubmit", "long")
        assert refused.returncode == 1
        assert "job long (1) cannot be submitted again: it is Running" in refused.stderr
        assert "aliquot cancel 1" in refused.stderr
        pool.ask("cancel", "long")
        pool.wait_for("long", "Cancelled")
        assert pool.ask("resubmit", "1", "--name", "other").returncode == 0
        assert pool.ask("resubmit", "1").stdout == "long (1): submitted again as long (3)\n"
        taken = pool.ask("resubmit", "1")
        assert "a job named long exists" in taken.stderr
        assert pool.ask("resubmit", "none").returncode == 1

    def test_jobs_of_an_array_keep_their_indices(self, pool: PoolUp) -> None:
        show = ("sh", "-c", "echo index $ALIQUOT_ARRAY_INDEX")
        pool.submit("--name", "sweep", "--memory", "1GiB", "--array", "1-3%2", "--", *show)
        for number in ("1", "2", "3"):
            pool.wait_for(number, "Succeeded")
        again = pool.ask("resubmit", "sweep-1", "sweep-3")
        assert again.stdout.splitlines() == [
            "sweep-1 (1): submitted again as sweep-1 (4)",
            "sweep-3 (3): submitted again as sweep-3 (5)",
        ], again.stderr
        pool.wait_for("5", "Succeeded")
        assert pool.log("5") == "index 3\n"
        array = {"name": "sweep", "index": 3, "at_once": 2, "begun": None}
        assert pool.job("5")["array"] == array
        refused = pool.ask("resubmit", "1", "2", "--name", "x")
        assert refused.returncode == 2

    def test_a_finished_job_of_an_unfinished_array_takes_its_place_again(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        fixed = tmp_path / "fixed"
        script = f"[ $ALIQUOT_ARRAY_INDEX = 1 ] || exec sleep 1000; [ -e {fixed} ]"
        options = ("--memory", "1GiB", "--array", "1-2", "--grace", "1", "--notice", "0")
        pool.submit("--name", "sweep", *options, "--", "sh", "-c", script)
        pool.wait_for("sweep-1", "Failed")
        pool.wait_for("sweep-2", "Running")
        fixed.touch()
        again = pool.ask("resubmit", "sweep-1")
        assert again.stdout == "sweep-1 (1): submitted again as sweep-1 (3)\n", again.stderr
        pool.wait_for("3", "Succeeded")
        refused = pool.ask("resubmit", "sweep-2")
        assert (refused.returncode, "it is Running" in refused.stderr) == (1, True)
        taken = pool.ask("submit", "--name", "sweep", *options, "--", "true")
        assert "an array named sweep exists" in taken.stderr
        members = ("jobs", "sweep", "--format", "{number} {name}")
        assert sorted(pool.ask(*members).stdout.splitlines()) == ["2 sweep-2", "3 sweep-1"]
        pool.ask("cancel", "sweep")
        pool.wait_for("2", "Cancelled")
        assert sorted(pool.ask(*members).stdout.splitlines()) == ["2 sweep-2", "3 sweep-1"]

    def test_a_job_that_starts_after_another_is_submitted_with_it(self, pool: PoolUp) -> None:
        pool.submit("--name", "first", "--memory", "1GiB", "--", "false")
        pool.submit("--name", "second", "--memory", "1GiB", "--after", "first", "--", "true")
        pool.wait_for("second", "Cancelled")
        refused = pool.ask("resubmit", "second")
        assert refused.returncode == 1
        assert "job second (2) starts after job 1, which is Failed" in refused.stderr
        assert "aliquot resubmit 1 2" in refused.stderr
        assert pool.ask("resubmit", "second", "first").returncode == 0
        assert pool.job("4")["after"] == [{"job": "3", "needs": "ok"}]

    def test_no_job_is_submitted_if_the_program_of_one_is_gone(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        program = tmp_path / "program"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        for name, command in (("first", "true"), ("second", str(program))):
            pool.submit("--name", name, "--memory", "1GiB", "--", command)
            pool.wait_for(name, "Succeeded")
        program.unlink()
        refused = pool.ask("resubmit", "first", "second")
        assert (refused.returncode, refused.stdout) == (127, "")
        assert f"{program}: command not found" in refused.stderr
        assert pool.ask("describe", "3").returncode == 1

    def test_jobs_submitted_before_a_refused_one_are_named(self, pool: PoolUp) -> None:
        for name in ("first", "second"):
            pool.submit("--name", name, "--memory", "1GiB", "--", "true")
            pool.wait_for(name, "Succeeded")
        pool.submit("--name", "second", "--memory", "1GiB", "--", *FOREVER)
        refused = pool.ask("resubmit", "1", "2")
        assert refused.returncode == 1
        assert refused.stdout == "first (1): submitted again as first (4)\n"
        assert "a job named second exists" in refused.stderr
