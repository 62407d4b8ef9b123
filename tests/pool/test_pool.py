"""Jobs on one machine, through the commands."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from aliquot.model.units import format_bytes
from aliquot.pool.logs import KEPT_BYTES, PART_BYTES
from aliquot.slices import control
from conftest import Cli
from pool.conftest import EXAMPLE, PoolUp
from support import GIB, wait_until

TENANT = Path(__file__).parents[2] / "demo" / "tenant.py"
FOREVER = ("sh", "-c", "echo runs; while :; do sleep 1; done")

pytestmark = pytest.mark.timeout(300)


class TestRunning:
    def test_a_worker_runs_in_its_slice_with_the_usual_variables(self, pool: PoolUp) -> None:
        name = pool.submit(
            "--memory", "2GiB", "--workers", "2", "--",
            "sh", "-c", f"env; exec {sys.executable} {TENANT} 1000000",
        )  # fmt: skip
        assert name == "sh-1"
        pool.wait_for(name, "Succeeded")
        for rank in range(2):
            lines = pool.log(name, rank).splitlines()
            words = dict(line.split("=", 1) for line in lines if "=" in line)
            assert (words["RANK"], words["WORLD_SIZE"]) == (str(rank), "2")
            assert words["MASTER_ADDR"] == "127.0.0.1"
            assert 1024 <= int(words["MASTER_PORT"]) <= 65535
            seen = next(json.loads(line) for line in lines if '"sees"' in line)
            assert seen["bytes"] == 2 * GIB
        pool.leaves_nothing()

    def test_workers_of_one_job_run_together(self, pool: PoolUp) -> None:
        one = pool.submit("--memory", "1GiB", "--workers", "2", "--", *FOREVER)
        other = pool.submit("--memory", "1GiB", "--together", "ring", "--", *FOREVER)
        pool.wait_for(one, "Running")
        pool.wait_for(other, "Running")
        groups = [grant.together for grant in control.status(pool.state).grants]
        assert sorted(str(group) for group in groups) == ["ring", "sh-1.1", "sh-1.1"]
        shown = [pool.ask("describe", job).stdout.splitlines() for job in (one, other)]
        assert [
            line.partition(":")[2].strip()
            for lines in shown
            for line in lines
            if "Together" in line
        ] == ["only its own workers", "ring"]

    def test_a_worker_has_the_directory_and_environment_of_the_submitter(
        self, pool: PoolUp, cli: Cli, tmp_path: Path
    ) -> None:
        script = tmp_path / "where.sh"
        script.write_text("#!/bin/sh\necho $MINE; pwd\n")
        script.chmod(0o755)
        env = {"MINE": "from outside", "ALIQUOT_SIMULATE": "h100:4"}
        answer = cli("submit", "--name", "here", "--", str(script), env=env)
        assert answer.returncode == 0, answer.stderr
        pool.wait_for("here", "Succeeded")
        assert pool.log("here").splitlines() == ["from outside", str(Path.cwd())]

    def test_following_a_log_ends_with_the_job(self, pool: PoolUp) -> None:
        name = pool.submit("--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done")
        assert pool.ask("logs", "-f", name).stdout == "1\n2\n3\n"
        assert pool.phase_of(name) == "Succeeded"

    def test_a_long_log_keeps_its_end_and_says_how_much_was_dropped(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        """Followed from its first byte, over many parts."""
        go, lines = tmp_path / "go", 100_000  # of 1000 bytes
        script = f"seq -f %0999.0f {lines}; while ! test -e {go}; do sleep 0.1; done; echo last"
        pool.submit("--name", "long", "--", "sh", "-c", script)
        folder = pool.directory / "jobs" / "1"
        wait_until((folder / f"rank-0.log.{88 << 20}").exists, 120)
        go.touch()
        pool.wait_for("long", "Succeeded")
        assert sum(part.stat().st_size for part in folder.glob("rank-0.log*")) <= KEPT_BYTES
        shown = pool.ask("logs", "-f", "long")
        *kept, last = shown.stdout.splitlines()
        assert last == "last"
        assert len(kept) > (KEPT_BYTES - PART_BYTES) // 1000 - 1
        assert kept[1:] == [f"{n:0999d}" for n in range(lines - len(kept) + 2, lines + 1)]
        assert f"the last {format_bytes(KEPT_BYTES)} of each worker are kept" in shown.stderr

    def test_a_failed_job_is_restarted_up_to_its_retries(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        script = f"echo run >>{tmp_path}/runs; exit 3"
        pool.submit("--name", "fails", "--retries", "1", "--", "sh", "-c", script)
        pool.wait_for("fails", "Failed")
        assert (tmp_path / "runs").read_text() == "run\nrun\n"
        reason = pool.job("fails")["state"]["reason"]
        assert reason == "worker 0 ended with exit code 3 (1 of 1 retries used)"
        pool.leaves_nothing()

    def test_a_failed_worker_stops_the_whole_gang(self, pool: PoolUp) -> None:
        script = "test $RANK = 1 && exit 5; sleep 1000"
        pool.submit("--name", "gang", "--workers", "3", "--", "sh", "-c", script)
        pool.wait_for("gang", "Failed")
        assert pool.job("gang")["state"]["reason"] == "worker 1 ended with exit code 5"
        pool.leaves_nothing()

    def test_a_suspended_job_has_no_gpus_and_continues(self, pool: PoolUp, tmp_path: Path) -> None:
        save = tmp_path / "saved.json"
        pool.submit(
            "--name", "count", "--",
            sys.executable, str(EXAMPLE), "--steps", "1000000", "--save", str(save),
        )  # fmt: skip
        wait_until(lambda: "starts at step 0" in pool.log("count"), 60)
        assert pool.ask("suspend", "count").returncode == 0
        pool.wait_for("count", "Suspended")
        pool.leaves_nothing()
        step = json.loads(save.read_text())["step"]
        assert pool.ask("resume", "count").returncode == 0
        wait_until(lambda: f"starts at step {step}: rank 0 of 1" in pool.log("count"), 60)
        assert pool.job("count")["state"]["retries"] == 0
        pool.ask("cancel", "count")
        pool.wait_for("count", "Cancelled")

    def test_a_worker_that_ignores_sigterm_is_killed_with_its_descendants(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        stray = tmp_path / "stray"
        script = (
            "trap '' TERM; setsid sh -c 'trap \"\" TERM;"
            f" echo $$ >{stray}; while :; do sleep 1; done' & while :; do sleep 1; done"
        )
        pool.submit("--name", "deaf", "--grace", "0.3", "--", "sh", "-c", script)
        wait_until(lambda: stray.exists() and stray.read_text(), 60)
        pool.ask("cancel", "deaf")
        pool.wait_for("deaf", "Cancelled")
        pool.leaves_nothing()
        assert not Path(f"/proc/{stray.read_text().strip()}").exists()

    def test_processes_that_a_worker_leaves_behind_are_killed(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        stray = tmp_path / "stray"
        script = (
            f"setsid sh -c 'echo $$ >{stray}; sleep 1000' & while ! test -s {stray}; do :; done"
        )
        pool.submit("--name", "leaves", "--", "sh", "-c", script)
        pool.wait_for("leaves", "Succeeded")
        pool.leaves_nothing()
        assert not Path(f"/proc/{stray.read_text().strip()}").exists()


class TestElastic:
    def test_an_elastic_job_shrinks_for_a_gang_and_grows_back(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        every = 20
        pool.submit(
            "--name", "big", "--workers", "1..4", "--",
            sys.executable, str(EXAMPLE), "--steps", "1000000", "--every", str(every),
            "--seconds", "0.02", "--save", str(tmp_path / "big.json"),
        )  # fmt: skip
        pool.wait_for("big", "Running", size=4)
        wait_until(lambda: "starts at step" in pool.log("big"), 60)
        pool.submit("--name", "gang", "--workers", "2", "--", *FOREVER)
        pool.wait_for("gang", "Running")
        pool.wait_for("big", "Running", size=2)
        assert sorted(pool.grants()) == ["big.1.2.0", "big.1.2.1", "gang.2.1.0", "gang.2.1.1"]
        wait_until(lambda: pool.log("big").count("starts at step") == 2, 60)
        pool.ask("cancel", "gang")
        pool.wait_for("big", "Running", size=4)
        wait_until(lambda: pool.log("big").count("starts at step") >= 3, 60)
        states = [state for state, _ in pool.history("big")]
        assert states[:6] == [
            "Pending", "Starting", "Running", "Shrinking", "Starting", "Running",
        ]  # fmt: skip
        grown = ["Growing", "Starting", "Running"]
        assert states[6:] in (grown, grown * 2)  # the gang's GPUs may come free one by one
        steps = [int(line.split()[3].rstrip(":")) for line in pool.log("big").splitlines()]
        assert all(after >= before - every for before, after in pairwise(steps))
        assert pool.job("big")["state"]["retries"] == 0
        assert pool.job("big")["speeds"], "it has reported how fast it is"
        pool.ask("cancel", "big")
        pool.wait_for("big", "Cancelled")
        pool.leaves_nothing()

    def test_a_job_that_does_not_save_shrinks_once_and_then_waits_before_growing(
        self, pool: PoolUp
    ) -> None:
        script = (
            "import time\nfrom aliquot import worker\nfor step in range(10**6):\n"
            "    time.sleep(0.05)\n    worker.report(step=step, samples_per_second=worker.size())"
        )
        pool.submit(
            "--name", "big", "--workers", "1..4", "--notice", "0.1", "--grace", "0.1", "--",
            sys.executable, "-c", script,
        )  # fmt: skip
        pool.wait_for("big", "Running", size=4)
        wait_until(lambda: (pool.job("big")["progress"].get("step") or 0) > 20, 60)
        pool.submit("--name", "gang", "--workers", "2", "--", *FOREVER)
        pool.wait_for("gang", "Running")
        wait_until(lambda: pool.job("big")["progress"].get("lost_seconds"), 60)
        lost = pool.job("big")["progress"]["lost_seconds"]
        assert "of work, so the job does not grow for" in pool.ask("describe", "big").stdout
        pool.ask("cancel", "gang")
        pool.wait_for("big", "Running", size=4)
        at = {one["phase"]: one["at"] for one in pool.job("big")["events"]}
        assert at["Growing"] - at["Shrinking"] >= 10 * lost
        pool.ask("cancel", "big")
        pool.wait_for("big", "Cancelled")

    def test_a_job_cancelled_during_a_resize_leaves_nothing(self, pool: PoolUp) -> None:
        pool.submit("--name", "big", "--workers", "1..4", "--notice", "60", "--", *FOREVER)
        pool.wait_for("big", "Running", size=4)
        pool.submit("--name", "gang", "--workers", "2", "--", *FOREVER)
        pool.wait_for("big", "Shrinking")
        assert "giving its GPUs back" in pool.job("gang")["waiting"]
        pool.ask("cancel", "big", "gang")
        pool.wait_for("big", "Cancelled")
        pool.wait_for("gang", "Cancelled")
        pool.leaves_nothing()

    def test_a_live_job_loses_only_workers_above_the_new_size(self, pool: PoolUp) -> None:
        pool.submit(
            "--name", "big", "--workers", "1..4", "--live", "--notice", "0.2", "--", *FOREVER
        )
        pool.wait_for("big", "Running", size=4)
        wait_until(lambda: all(pool.log("big", rank) for rank in range(4)), 60)
        pool.submit("--name", "gang", "--workers", "2", "--", *FOREVER)
        pool.wait_for("gang", "Running")
        pool.wait_for("big", "Running", size=2)
        pool.ask("cancel", "gang")
        pool.wait_for("big", "Running", size=4)
        wait_until(lambda: pool.log("big", 3) == "runs\nruns\n", 60)
        assert pool.log("big", 0) == "runs\n"
        pool.ask("cancel", "--all")
        pool.wait_for("big", "Cancelled")
        pool.leaves_nothing()


class TestRefusals:
    @pytest.mark.parametrize(
        ("args", "code", "words"),
        [
            (("--workers", "4..2", "--", "true"), 2, "the maximum 2 is below the minimum 4"),
            (("--workers", "0", "--", "true"), 2, "cannot have 0 workers"),
            (("--workers", "many", "--", "true"), 2, "is not a number of workers"),
            (("--workers", "5", "--", "true"), 1, "do not fit this machine: at most 4 do"),
            (("--memory", "200GiB", "--", "true"), 1, "no GPU has 200 GiB"),
            (("--", "no-such-command"), 127, "no-such-command: command not found"),
            (("--name", "12", "--", "true"), 2, "is not a valid name for a job"),
            (("--name", "a b", "--", "true"), 2, "is not a valid name for a job"),
        ],
    )
    def test_an_invalid_submission_is_refused_at_once(
        self, pool: PoolUp, args: tuple[str, ...], code: int, words: str
    ) -> None:
        answer = pool.ask("submit", *args)
        assert (answer.returncode, answer.stdout) == (code, "")
        assert words in answer.stderr
        assert pool.ask("jobs", "--all").stdout == "No jobs.\n"

    def test_a_refused_request_does_not_stop_the_others(self, pool: PoolUp) -> None:
        pool.submit("--name", "mine", "--", *FOREVER)
        answer = pool.ask("cancel", "first", "mine", "second")
        assert answer.returncode == 1
        told = [line for line in answer.stderr.splitlines() if line.startswith("aliquot: ")]
        assert ["first" in told[0], "second" in told[1], len(told)] == [True, True, 2]
        pool.wait_for("mine", "Cancelled")

    def test_a_name_belongs_to_one_unfinished_job(self, pool: PoolUp) -> None:
        pool.submit("--name", "mine", "--", *FOREVER)
        answer = pool.ask("submit", "--name", "mine", "--", "true")
        assert answer.returncode == 1
        assert "a job named mine exists" in answer.stderr
        pool.ask("cancel", "mine")
        pool.wait_for("mine", "Cancelled")
        pool.submit("--name", "mine", "--", "true")
        pool.wait_for("mine", "Succeeded")
        assert "is Succeeded" in pool.ask("suspend", "mine").stderr

    def test_a_command_that_vanished_before_the_start_fails_the_job(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        script = tmp_path / "script"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
        pool.submit("--name", "full", "--workers", "4", "--", *FOREVER)
        pool.wait_for("full", "Running")
        pool.submit("--name", "late", "--retries", "5", "--", str(script))
        wait_until(lambda: "it does not fit beside what runs: job " in pool.job("late")["waiting"])
        script.unlink()
        pool.ask("cancel", "full")
        pool.wait_for("late", "Failed")
        reason = pool.job("late")["state"]["reason"]
        assert f"could not run: {script}: No such file or directory" in reason
        pool.leaves_nothing()

    def test_commands_without_a_pool_say_how_to_start_one(self, cli: Cli) -> None:
        for args in (
            ("jobs",),
            ("submit", "--", "true"),
            ("logs", "x"),
            ("jobs", "--simulate", "t4:1"),
        ):
            answer = cli(*args)
            assert answer.returncode == 1
            assert "aliquot up" in answer.stderr

    def test_only_one_pool_can_be_up(self, pool: PoolUp) -> None:
        answer = pool.ask("up")
        assert answer.returncode == 1
        assert "is already up" in answer.stderr


class TestDying:
    def test_jobs_keep_running_without_the_pool_and_are_found_again(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        go = tmp_path / "go"
        script = f"echo once; while ! test -e {go}; do sleep 0.1; done; exit 7"
        pool.submit("--name", "lasts", "--", "sh", "-c", script)
        pool.submit("--name", "stays", "--", *FOREVER)
        pool.wait_for("lasts", "Running")
        pool.wait_for("stays", "Running")
        wait_until(lambda: pool.log("lasts") and pool.log("stays"), 60)
        before = pool.supervisors()
        pool.kill()
        go.touch()
        wait_until(lambda: len(pool.supervisors()) == 1)
        pool.up()
        pool.wait_for("lasts", "Failed")
        assert pool.job("lasts")["state"]["reason"] == "worker 0 ended with exit code 7"
        assert pool.log("lasts") == "once\n"
        assert pool.phase_of("stays") == "Running"
        assert pool.supervisors()[0] in before
        pool.ask("cancel", "stays")
        pool.wait_for("stays", "Cancelled")
        pool.leaves_nothing()
        pool.down()

    def test_a_worker_whose_supervisor_is_killed_is_gone_and_has_failed(
        self, pool: PoolUp, tmp_path: Path
    ) -> None:
        script = f"echo $$ >{tmp_path}/pid; while :; do sleep 1; done"
        pool.submit("--name", "kept", "--", "sh", "-c", script)
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
        os.kill(pool.supervisors()[0], signal.SIGKILL)
        pool.wait_for("kept", "Failed")
        assert "how it ended is unknown" in pool.job("kept")["state"]["reason"]
        pid = (tmp_path / "pid").read_text().strip()
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
        pool.leaves_nothing()

    @pytest.mark.parametrize("seed", range(2))
    def test_a_pool_killed_anywhere_loses_no_worker_and_runs_none_twice(
        self, down_pool: PoolUp, tmp_path: Path, seed: int
    ) -> None:
        """Each worker locks a file of its rank; a second worker of that rank fails the job."""
        pool, chance = down_pool, random.Random(seed)  # noqa: S311 - the same each time
        script = (
            f"exec 9>>{tmp_path}/rank-$RANK;"
            f" flock -n 9 || {{ echo twice >>{tmp_path}/twice; exit 9; }};"
            f" while ! test -e {tmp_path}/go; do sleep 0.1; done"
        )
        pool.up()
        pool.submit(
            "--name", "big", "--workers", "1..3", "--notice", "0.2", "--grace", "0.2", "--",
            "sh", "-c", script,
        )  # fmt: skip
        pool.submit(
            "--name", "gang", "--workers", "2", "--", "sh", "-c", script.replace("rank", "g")
        )
        pool.kill()
        for _ in range(10):
            pool.up(dies_after=int(10 ** chance.uniform(2.0, 4.0)))
            assert pool.process is not None
            assert pool.process.wait(60) == -signal.SIGKILL
        pool.up()
        pool.wait_for("big", "Running")
        pool.wait_for("gang", "Running")
        (tmp_path / "go").touch()
        pool.wait_for("big", "Succeeded")
        pool.wait_for("gang", "Succeeded")
        assert not (tmp_path / "twice").exists()
        for name in ("big", "gang"):
            assert pool.job(name)["state"]["retries"] == 0
        pool.leaves_nothing()


@pytest.fixture
def small_disk(down_pool: PoolUp) -> Iterator[Path]:
    """The pool's directory on a small separate disk."""
    folder = down_pool.directory.parents[1]
    folder.mkdir(parents=True)
    options = "size=2m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    yield folder
    down_pool.clean_up()
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk")
def test_on_a_full_disk_submissions_are_refused_and_nothing_is_lost(
    down_pool: PoolUp, small_disk: Path, tmp_path: Path
) -> None:
    pool, go = down_pool, tmp_path / "go"
    pool.up()
    script = f"while ! test -e {go}; do sleep 0.1; done; exit 4"
    pool.submit("--name", "runs", "--", "sh", "-c", script)
    pool.wait_for("runs", "Running")
    with suppress(OSError), (small_disk / "filler").open("wb") as filler:
        while True:
            filler.write(b"x" * 512)
            filler.flush()
    answer = pool.ask("submit", "--name", "new", "--", "true")
    assert answer.returncode == 1
    assert "cannot use the pool's database" in answer.stderr
    assert "Free disk space" in answer.stderr
    go.touch()
    wait_until(lambda: not pool.supervisors())
    (small_disk / "filler").unlink()
    pool.wait_for("runs", "Failed")
    assert pool.job("runs")["state"]["reason"] == "worker 0 ended with exit code 4"


def test_a_job_that_ended_while_the_pool_was_down_has_its_true_end(
    pool: PoolUp, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done"
    pool.submit("--name", "runs", "--", "sh", "-c", script)
    pool.wait_for("runs", "Running")
    pool.kill()
    go.touch()
    end = pool.directory / "jobs" / "1" / "1.0" / "end"
    wait_until(end.exists, 60)
    pool.up()
    pool.wait_for("runs", "Succeeded")
    assert pool.job("runs")["state"]["since"] == end.stat().st_mtime
    times = [one["at"] for one in pool.job("runs")["events"]]
    assert times == sorted(times)
    pool.submit("--name", "new", "--", "true")
    pool.wait_for("new", "Succeeded")
    pool.leaves_nothing()
