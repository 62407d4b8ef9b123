"""`aliquot run` beside a pool: it waits in the pool's queue, and the pool admits it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from aliquot.cli.tables import NOTHING
from aliquot.devices import parse_shape
from aliquot.model import Request
from aliquot.pool.grant_seeker import Wait, open_grant
from aliquot.pool.runs import MOST_OF_A_USER
from aliquot.slices import control
from cli.terminal import Terminal
from conftest import aliquot_command
from pool.conftest import SHAPE, PoolUp, strict_arbiter
from support import wait_until
from users import ALICE, BOB, User, everyones_python, needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HERE = ("--simulate", SHAPE)
WHOLE = Request(gpus=4)
SLEEPS = (sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(1000)")


class Runs:
    """Commands of `aliquot run`, in the background."""

    def __init__(self, env: dict[str, str], state: Path) -> None:
        self.env, self.state = env, state
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, program: tuple[str, ...] = SLEEPS) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [aliquot_command(), "run", *HERE, *options, "--", *program],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def fill(self, *options: str) -> subprocess.Popen[str]:
        """A command that runs now."""
        process = self.start(*options)
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n", process.communicate()[1]
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def runs(cli_env: dict[str, str], down_pool: PoolUp) -> Iterator[Runs]:
    running = Runs(cli_env, down_pool.state)
    yield running
    running.end()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """The next line of its standard error that has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without {words!r}: {process.poll()}")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_run_waits_in_the_queue_until_gpus_are_free(pool: PoolUp, runs: Runs) -> None:
    first = runs.fill("--gpus", "4", "--name", "first")
    second = runs.start("--gpus", "4", "--name", "second", "--wait")
    assert "place 1 of 1" in line_with(second, "waiting for GPUs")
    third = runs.start("--gpus", "4", "--name", "third", "--wait=10m")
    assert "place 2 of 2" in line_with(third, "waiting for GPUs")
    end(first)
    assert second.stdout is not None
    assert second.stdout.readline() == "runs\n"
    assert pool.grants() == ["second"]
    (grant,) = control.status(pool.state).grants
    assert grant.owner_pid == second.pid
    assert "place 1 of 1" in line_with(third, "waiting for GPUs")
    end(second)
    assert third.stdout is not None
    assert third.stdout.readline() == "runs\n"


def test_the_list_of_jobs_has_the_commands_that_wait(pool: PoolUp, runs: Runs) -> None:
    runs.fill("--gpus", "4")
    waits = runs.start("--gpus", "4", "--name", "mine", "--wait")
    line_with(waits, "place 1 of 1")
    pool.submit("--gpus", "4", "--name", "later", "--", "true")
    (shown,) = json.loads(pool.ask("jobs", "--json").stdout)["runs"]
    assert (shown["name"], shown["pid"], shown["request"]["gpus"]) == ("mine", waits.pid, 4)
    assert shown["turn"]["place"] == 1
    header, job, run = pool.ask("jobs").stdout.splitlines()
    assert header.split()[:3] == ["#", "Kind", "Job"]
    assert job.split()[:3] == ["1", "job", "later"]
    assert run.split()[:3] == [NOTHING, "command", "mine"]
    assert "it does not fit beside what runs" in run
    for options in ((), ("--phase", "pending"), ("--all",)):
        answer = pool.ask("jobs", *options, "--format", "{kind} {name}")
        assert answer.stdout == "job later\ncommand mine\n", options
    assert pool.ask("jobs", "later", "--format", "{name}").stdout == "later\n"
    assert pool.ask("jobs", "--phase", "running", "--format", "{name}").stdout == ""
    end(waits)
    wait_until(lambda: not json.loads(pool.ask("jobs", "--json").stdout)["runs"])


def test_a_command_that_waits_is_found_by_its_name_and_cancelled(pool: PoolUp, runs: Runs) -> None:
    first = runs.fill("--gpus", "4", "--name", "first")
    waits = runs.start("--gpus", "4", "--name", "mine", "--wait")
    line_with(waits, "place 1 of 1")
    unnamed = runs.start("--gpus", "4", "--wait", program=("/bin/true",))
    line_with(unnamed, "place 2 of 2")
    pool.submit("--gpus", "4", "--name", "mine", "--", "true")
    columns = ("--format", "{kind} {name}")
    assert pool.ask("jobs", "mine", *columns).stdout == "job mine\ncommand mine\n"
    name = f"true-{unnamed.pid}"
    assert pool.ask("jobs", name, *columns).stdout == f"command {name}\n"
    assert {"mine", name} <= set(pool.ask("__names", "jobs").stdout.split())
    refused = pool.ask("suspend", name)
    assert (refused.returncode, f"aliquot cancel {name}" in refused.stderr) == (1, True)
    assert pool.ask("cancel", name).stdout == f"{name}: cancelled\n"
    assert unnamed.wait(60) == 143
    assert unnamed.stderr is not None
    assert "aliquot: cancelled by " in unnamed.stderr.read()
    assert pool.ask("cancel", "mine").stdout == "mine (1): cancelling\nmine: cancelled\n"
    assert waits.wait(60) == 143
    assert first.poll() is None
    again = pool.ask("cancel", name)
    assert (again.returncode, "no such job" in again.stderr) == (1, True)


def test_a_run_that_ends_leaves_the_queue_at_once(pool: PoolUp, runs: Runs) -> None:
    runs.fill("--gpus", "4")
    second = runs.start("--gpus", "4", "--wait")
    line_with(second, "place 1 of 1")
    third = runs.start("--gpus", "1", "--wait")
    line_with(third, "place 2 of 2")
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 130
    assert second.stderr is not None
    assert "no longer waiting" in second.stderr.read()
    line_with(third, "place 1 of 1")
    fourth = runs.start("--gpus", "1", "--wait")
    line_with(fourth, "place 2 of 2")
    end(third)
    line_with(fourth, "place 1 of 1")


def test_a_grant_that_comes_when_the_wait_is_interrupted_is_ended(
    pool: PoolUp, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", runs.env)
    first = runs.fill("--gpus", "4", "--name", "first")

    def interrupt(_place: str) -> None:
        end(first)
        wait_until(lambda: pool.grants() == ["mine"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_grant(parse_shape(SHAPE), WHOLE, "mine", "x", os.environ, Wait(), interrupt)
    wait_until(lambda: pool.grants() == [])


def test_a_grant_is_ended_if_the_arbiter_does_not_say_what_it_has(
    pool: PoolUp, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", runs.env)
    with monkeypatch.context() as silent:
        silent.setattr(control, "status", Mock(side_effect=control.SilentArbiterError("silent")))
        with pytest.raises(control.SilentArbiterError):
            open_grant(parse_shape(SHAPE), WHOLE, "mine", "x", os.environ, Wait())
    wait_until(lambda: pool.grants() == [])


@pytest.mark.parametrize("wait", [Wait(), None], ids=["by the pool", "by the arbiter"])
def test_a_grant_is_ended_if_no_program_can_run_in_it(
    pool: PoolUp, runs: Runs, monkeypatch: pytest.MonkeyPatch, wait: Wait | None
) -> None:
    made: list[str] = []

    def fail(*_: object) -> None:
        made.extend(pool.grants())
        raise MemoryError

    monkeypatch.setattr(os, "environ", runs.env)
    monkeypatch.setattr("aliquot.slices.tenant_environment", fail)
    with pytest.raises(MemoryError):
        open_grant(parse_shape(SHAPE), WHOLE, "mine", "x", os.environ, wait)
    assert made == ["mine"]
    wait_until(lambda: pool.grants() == [])


def test_a_time_to_wait_ends_with_its_own_exit_code(pool: PoolUp, runs: Runs) -> None:
    runs.fill("--gpus", "4")
    late = runs.start("--wait=0.2s")
    assert late.wait(60) == 75
    assert late.stderr is not None
    assert "the time to wait is over" in late.stderr.read()


@pytest.mark.parametrize("wait", ["0s", "100000000000"])
def test_free_gpus_are_given_however_short_or_long_the_wait(pool: PoolUp, wait: str) -> None:
    answer = pool.ask("run", f"--wait={wait}", "--", "true")
    assert answer.returncode == 0, answer.stderr


def test_no_time_to_wait_is_over_once_the_pool_says_that_nothing_is_free(
    pool: PoolUp, runs: Runs
) -> None:
    runs.fill("--gpus", "4")
    answer = pool.ask("run", "--wait=0s", "--", "true")
    assert (answer.returncode, "the time to wait is over" in answer.stderr) == (75, True)


def test_elastic_jobs_shrink_for_a_run_that_waits(pool: PoolUp, runs: Runs) -> None:
    pool.submit("--workers", "1..4", "--name", "elastic", "--notice", "0", "--", *SLEEPS)
    pool.wait_for("elastic", "Running", size=4)
    waits = runs.start("--gpus", "1", "--name", "mine", "--wait")
    assert waits.stdout is not None
    assert waits.stdout.readline() == "runs\n"
    pool.wait_for("elastic", "Running", size=3)
    assert "mine" in pool.grants()


def test_nobody_shrinks_for_a_run_that_does_not_wait(pool: PoolUp, runs: Runs) -> None:
    pool.submit("--workers", "1..4", "--name", "elastic", "--notice", "0", "--", *SLEEPS)
    pool.wait_for("elastic", "Running", size=4)
    answer = pool.ask("run", "--gpus", "1", "--", "true")
    assert answer.returncode == 1
    assert "no GPU is whole" in answer.stderr
    gives = "Job elastic of root has 4 workers, and gives 3 of them up for a command that waits"
    assert gives in answer.stderr
    assert "aliquot run --wait" in answer.stderr
    assert pool.history("elastic")[-1] == ("Running", 4)


def test_time_limits_of_jobs_say_when_a_run_starts(pool: PoolUp, runs: Runs) -> None:
    pool.submit("--gpus", "4", "--time", "1h", "--name", "first", "--", *SLEEPS)
    pool.wait_for("first", "Running")
    waits = runs.start("--gpus", "4", "--name", "mine", "--wait")
    said = line_with(waits, "waiting for GPUs")
    assert re.search(r"place 1 of 1, starts by [\d: -]+: it does not fit beside what runs", said)
    answer = pool.ask("run", "--gpus", "2", "--", "true")
    assert answer.returncode == 1
    assert "With --wait: place 2 of 2, start not known" in answer.stderr, "mine has no time limit"
    pool.ask("cancel", "first")
    assert waits.stdout is not None
    assert waits.stdout.readline() == "runs\n"


def test_a_run_asks_in_the_queue_that_it_names(down_pool: PoolUp, short_tmp: Path) -> None:
    policy = short_tmp / "pool.toml"
    policy.write_text("[queues.default]\n[queues.small]\nlimit = 1\n")
    refused = down_pool.ask("run", "--queue", "small", "--", "true")
    assert (refused.returncode, "no pool is up" in refused.stderr) == (2, True), refused.stderr
    down_pool.up("--config", str(policy))
    refused = down_pool.ask("run", "--queue", "big", "--wait", "--", "true")
    assert (refused.returncode, "queue 'big' does not exist" in refused.stderr) == (2, True)
    assert down_pool.ask("run", "--queue", "small", "--", "true").returncode == 0
    two = ("--queue", "small", "--gpus", "2")
    answer = down_pool.ask("run", *two, "--dry-run", "--", "true")
    assert answer.returncode == 1
    assert "what is free is not for this command now: queue small" in answer.stderr
    assert "With --wait: place 1 of 1, start not known" in answer.stderr
    answer = down_pool.ask("run", *two, "--wait", "--dry-run", "--json", "--", "true")
    shown = json.loads(answer.stdout)
    assert (answer.returncode, shown["fits"]) == (0, False)
    assert shown["waiting"]["place"] == 1
    answer = down_pool.ask("run", "--gpus", "2", "--dry-run", "--", "true")
    assert answer.returncode == 0, "the other queue has no limit"


def test_limits_count_commands_that_run_also_after_a_restart_of_the_pool(
    down_pool: PoolUp, runs: Runs, short_tmp: Path
) -> None:
    policy = short_tmp / "pool.toml"
    policy.write_text("[queues.default]\n[queues.small]\nlimit = 1\n")
    down_pool.up("--config", str(policy))
    first = runs.fill("--queue", "small")
    for _ in range(2):
        answer = down_pool.ask("run", "--queue", "small", "--", "true")
        assert (answer.returncode, "queue small" in answer.stderr) == (1, True), answer.stderr
        assert down_pool.ask("run", "--queue", "default", "--", "true").returncode == 0
        down_pool.kill()
        down_pool.up("--config", str(policy))
    waits = runs.start("--queue", "small", "--wait")
    assert "queue small" in line_with(waits, "waiting for GPUs: place 1 of 1")
    end(first)
    assert waits.stdout is not None
    assert waits.stdout.readline() == "runs\n"


def test_a_request_that_never_fits_does_not_wait(pool: PoolUp, runs: Runs) -> None:
    for options in (("--gpus", "5"), ("--memory", "500GiB"), ("--memory", "1MiB")):
        answer = pool.ask("run", *options, "--wait", "--", "true")
        assert answer.returncode == 1, answer.stderr


def test_a_run_waits_only_for_gpus_that_are_visible(pool: PoolUp, runs: Runs) -> None:
    runs.fill("--gpus", "1", "--name", "first")
    (grant,) = control.status(pool.state).grants
    taken = grant.slices[0].gpu_uuid
    visible = {**runs.env, "CUDA_VISIBLE_DEVICES": taken}
    answer = subprocess.run(
        [aliquot_command(), "run", *HERE, "--wait=0.2s", "--", "true"],
        env=visible,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 75, answer.stderr


def test_a_waiting_run_survives_a_restart_of_the_pool(pool: PoolUp, runs: Runs) -> None:
    first = runs.fill("--gpus", "4")
    waits = runs.start("--gpus", "4", "--wait")
    line_with(waits, "place 1 of 1")
    pool.kill()
    line_with(waits, "waiting for GPUs: ")
    pool.up()
    line_with(waits, "place 1 of 1")
    end(first)
    assert waits.stdout is not None
    assert waits.stdout.readline() == "runs\n"


def test_a_run_waits_without_a_pool_and_says_that_the_order_is_not_kept(
    pool: PoolUp, runs: Runs
) -> None:
    pool.down()
    first = runs.fill("--gpus", "4")
    waits = runs.start("--gpus", "4", "--wait")
    assert "no pool is up" in line_with(waits, "waiting for GPUs")
    end(first)
    assert waits.stdout is not None
    assert waits.stdout.readline() == "runs\n"


@pytest.mark.parametrize("columns", [80, 200])
def test_the_place_in_the_queue_is_one_line_of_a_terminal(
    pool: PoolUp, runs: Runs, columns: int
) -> None:
    first = runs.fill("--gpus", "4")
    command = [aliquot_command(), "run", *HERE, "--gpus", "4", "--wait", "--", "echo", "it runs"]
    terminal = Terminal(command, runs.env, columns)
    try:
        terminal.wait_for("waiting for GPUs: place 1 of 1")
        assert "\n" not in terminal.shown
        assert len(terminal.shown) < columns
        end(first)
        terminal.wait_for("it runs")
        assert terminal.end() == 0
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("command", "until"),
    [
        (("jobs", *HERE), r"; at most until \d\d:\d\d:\d\d"),
        (("run", *HERE, "--wait=100s", "--", "true"), r"; at most until \d\d:\d\d:\d\d"),
        (("run", *HERE, "--wait", "--", "true"), ""),
    ],
)
def test_a_person_is_told_that_a_command_waits_for_a_silent_pool(
    pool: PoolUp, runs: Runs, command: tuple[str, ...], until: str
) -> None:
    assert pool.process is not None
    assert pool.ask("jobs").returncode == 0
    pool.process.send_signal(signal.SIGSTOP)
    terminal = Terminal([aliquot_command(), *command], runs.env, columns=200)
    try:
        terminal.wait_for(f"waiting for the pool of simulated {SHAPE}, which does not answer")
        terminal.wait_for("\n")
        assert re.search(rf"which does not answer{until}\n", terminal.shown), terminal.shown
        pool.process.send_signal(signal.SIGCONT)
        assert terminal.end() == 0, terminal.shown
        assert terminal.shown.count("waiting for the pool") == 1
    finally:
        pool.process.send_signal(signal.SIGCONT)
        terminal.close()


def test_ctrl_c_on_a_terminal_leaves_the_queue(pool: PoolUp, runs: Runs) -> None:
    runs.fill("--gpus", "4")
    terminal = Terminal([aliquot_command(), "run", *HERE, "--wait", "--", "true"], runs.env)
    try:
        terminal.wait_for("waiting for GPUs: place 1 of 1")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


def test_an_invalid_request_is_refused_and_the_pool_goes_on(pool: PoolUp, runs: Runs) -> None:
    valid = {
        "request": {
            "gpus": 1,
            "memory": None,
            "compute_percent": 0,
            "policy": "elastic",
            "priority": "normal",
            "together": None,
            "among": None,
        },
        "name": None,
        "command": "x",
        "visible": None,
        "wait": False,
    }
    invalid = [
        b"\n",
        b"[]\n",
        b"{}\n",
        b"[" * 50_000 + b"\n",
        json.dumps({**valid, "name": "a/b"}).encode() + b"\n",
        json.dumps({**valid, "request": {**valid["request"], "gpus": "1"}}).encode() + b"\n",  # type: ignore[dict-item]
        json.dumps(
            {**valid, "request": {**valid["request"], "memory": {"bytes": "1", "percent": None}}}  # type: ignore[dict-item]
        ).encode()
        + b"\n",
        json.dumps(
            {**valid, "request": {**valid["request"], "memory": {"bytes": None, "percent": "1e99"}}}  # type: ignore[dict-item]
        ).encode()
        + b"\n",
    ]
    for line in invalid:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(pool.state / "pool" / "runs"))
            connection.sendall(line)
            assert b'"error"' in connection.recv(1 << 16), line
    assert pool.ask("run", "--", "true").returncode == 0


def test_a_command_of_a_pool_is_not_named_like_the_number_of_a_job(pool: PoolUp) -> None:
    refused = pool.ask("run", "--wait", "--memory", "1GiB", "--name", "1", "--", "true")
    assert refused.returncode == 2
    assert "--name 1 is a number, and in a pool numbers are those of jobs" in refused.stderr


def test_wait_takes_no_argument_of_the_command(pool: PoolUp, runs: Runs) -> None:
    answer = pool.ask("run", "--wait", "echo", "--wait=5m", "--wait")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "--wait=5m --wait\n"
    assert pool.ask("run", "--wait=soon", "--", "true").returncode == 2


@pytest.fixture
def strict_pool(down_pool: PoolUp, runs_env: dict[str, str]) -> Iterator[PoolUp]:
    """Root's pool, beside an arbiter that gives users nothing directly."""
    with strict_arbiter(down_pool, runs_env):
        yield down_pool


@pytest.fixture
def runs_env(short_tmp: Path, cli_env: dict[str, str]) -> dict[str, str]:
    short_tmp.chmod(0o755)
    return {**cli_env, "ALIQUOT_SIMULATE": SHAPE}


@needs_root
def test_the_pool_of_root_makes_the_grants_of_users(
    strict_pool: PoolUp, runs_env: dict[str, str], short_tmp: Path
) -> None:
    with everyones_python(short_tmp) as python:
        alice = User(ALICE, python, short_tmp / str(ALICE), runs_env)
        refused = alice.aliquot("run", "--memory", "8GiB", "--", "/bin/true")
        assert refused.returncode == 1
        assert "the pool makes the grants" in refused.stderr
        strict_pool.up()
        told = "cat /proc/$$/status | grep ^Uid; sleep 1000"
        command = ["run", "--memory", "8GiB", "--name", "mine", "--wait", "--", "sh", "-c", told]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with alice.start(alice.command(*command), **pipes) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.split()[1:2] == [str(ALICE)], process.communicate()[1]
            (grant,) = control.status(strict_pool.state).grants
            assert (grant.owner_uid, grant.owner_pid) == (ALICE, process.pid)
            assert grant.plain_name == "mine"
            process.kill()


@needs_root
def test_connections_of_one_user_do_not_keep_others_out(
    strict_pool: PoolUp, runs_env: dict[str, str], short_tmp: Path
) -> None:
    flood = (
        "import socket, sys\n"
        "kept = []\n"
        "for number in range(500):\n"
        "    one = socket.socket(socket.AF_UNIX)\n"
        "    one.connect(sys.argv[1])\n"
        "    kept.append(one)\n"
        "refused = 0\n"
        "for one in kept:\n"
        "    one.settimeout(0.01)\n"
        "    try:\n"
        "        refused += b'error' in one.recv(1000)\n"
        "    except OSError:\n"
        "        pass\n"
        "print(refused, flush=True)\n"
        "input()\n"
    )
    strict_pool.up()
    with everyones_python(short_tmp) as python:
        alice, bob = (User(uid, python, short_tmp / str(uid), runs_env) for uid in (ALICE, BOB))
        with bob.python(flood, str(strict_pool.state / "pool" / "runs")) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline()) >= 500 - MOST_OF_A_USER
            answer = alice.aliquot("run", "--memory", "1GiB", "--", "/bin/true")
            assert answer.returncode == 0, answer.stderr
            process.kill()


@needs_root
def test_limits_of_users_hold_for_runs_that_the_pool_admits(
    down_pool: PoolUp, runs_env: dict[str, str], short_tmp: Path
) -> None:
    limits = short_tmp / "users"
    limits.write_text(f"user {ALICE} memory 4GiB\n")
    strict = strict_arbiter(down_pool, runs_env, "--users", str(limits))
    with strict, everyones_python(short_tmp) as python:
        down_pool.up()
        alice = User(ALICE, python, short_tmp / str(ALICE), runs_env)
        answer = alice.aliquot("run", "--memory", "8GiB", "--wait", "--", "/bin/true")
        assert answer.returncode == 1
        assert "may have 4096 MiB of GPU memory in all" in answer.stderr
        answer = alice.aliquot("run", "--memory", "2GiB", "--wait", "--", "/bin/true")
        assert answer.returncode == 0, answer.stderr
