"""`aliquot kill`, `aliquot up --detach` and `aliquot down`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Tenants, grants_of
from cli.terminal import Terminal
from conftest import Cli, aliquot_command
from slices.played import Played, grant_words, slice_words, status_words
from support import wait_until

ONE = ("--simulate", "h100:1")
DEAF = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('deaf', flush=True); signal.pause()"
)


def test_kill_ends_the_programs_of_a_grant(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--name", "mine")
    tenant.hear("stays")
    answer = cli("kill", "mine")
    assert (answer.returncode, answer.stdout) == (0, "grant mine: 1 process ended\n")
    assert tenant.process.wait(60) == -signal.SIGTERM
    assert "mine" not in grants_of(cli)


def test_a_stopped_program_gets_its_sigterm(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--name", "mine")
    tenant.hear("stays")
    tenant.process.send_signal(signal.SIGSTOP)
    assert cli("kill", "mine", *ONE).returncode == 0
    assert tenant.process.wait(60) == -signal.SIGTERM


def test_sigkill_comes_after_the_grace(cli: Cli, cli_env: dict[str, str]) -> None:
    command = [aliquot_command(), "run", *ONE, "--memory", "1GiB", "--name", "deaf", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", DEAF], env=cli_env, stdout=subprocess.PIPE, text=True
    ) as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == "deaf\n"
        answer = cli("kill", "deaf", "--grace", "0.2")
        assert answer.stdout == (
            "grant deaf: 1 process ended, 1 of them with SIGKILL after 0.2 s\n"
        ), answer.stderr
        assert deaf.wait(60) == -signal.SIGKILL


def test_kill_names_what_it_does_not_find_and_ends_the_rest(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "8GiB", "--name", "mine").hear("stays")
    answer = cli("kill", "missing", "mine")
    assert answer.returncode == 1
    assert "aliquot: there is no grant named missing\n  Existing grants: mine" in answer.stderr
    assert "grant mine: 1 process ended" in answer.stdout


@pytest.fixture
def theirs(aliquot_state: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a fake arbiter says is in another user's grant."""
    aliquot_state.mkdir(mode=0o700)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as program:
        grants = {
            **grant_words("theirs", slice_words(), pids=(program.pid,)),
            "owner_uid": 4001,
            "owner_pid": program.pid,
        }
        played = Played(
            aliquot_state,
            lambda _: status_words(*([grants] if program.poll() is None else [])),
        )
        yield program
        program.kill()
        played.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's grant")
def test_root_is_asked_on_a_terminal(
    theirs: subprocess.Popen[bytes], cli_env: dict[str, str]
) -> None:
    command = [aliquot_command(), "kill", "4001:theirs"]
    for answer, code in (("n\n", 1), ("y\n", 0)):
        terminal = Terminal(command, cli_env)
        try:
            terminal.wait_for(f"End 4001's grant theirs (PID {theirs.pid}: sleep 600)? [y/N]")
            assert theirs.poll() is None
            terminal.press(answer)
            assert terminal.end() == code
        finally:
            terminal.close()
    assert theirs.wait(60) == -signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's grant")
def test_kill_asks_nothing_without_a_terminal(theirs: subprocess.Popen[bytes], cli: Cli) -> None:
    assert cli("kill", "4001:theirs").returncode == 0
    assert theirs.wait(60) == -signal.SIGTERM


@pytest.fixture
def pool(cli: Cli, aliquot_state: Path) -> Iterator[Path]:
    """Ends a pool that a test leaves up; the pool's directory."""
    yield aliquot_state / "pool" / "simulated" / "h100-1"
    cli("cancel", "--all", *ONE)
    cli("down", *ONE)


def pid_in(text: str) -> int:
    return int(text.partition("pid ")[2].partition(",")[0])


def test_a_pool_in_the_background(cli: Cli, pool: Path) -> None:
    answer = cli("up", "--detach", *ONE)
    assert answer.returncode == 0, answer.stderr
    pid = pid_in(answer.stdout)
    assert answer.stdout == (
        f"The pool of simulated h100:1 is up: pid {pid}, log {pool / 'pool.log'}\n"
    )
    assert os.getsid(pid) == pid
    assert cli("jobs", *ONE).returncode == 0
    assert "up on simulated h100:1" in (pool / "pool.log").read_text()
    again = cli("up", "--detach", *ONE)
    assert (again.returncode, again.stdout) == (
        0,
        f"The pool of simulated h100:1 is already up: pid {pid}\n",
    )
    other = cli("up", "--detach", "--resize-every", "7", *ONE)
    assert other.returncode == 1
    assert "aliquot: the pool of simulated h100:1 did not start: a pool" in other.stderr
    assert "is already up" in other.stderr
    down = cli("down", *ONE)
    assert (down.returncode, down.stdout) == (
        0,
        "The pool of simulated h100:1 is down; no job runs.\n",
    )
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert cli("jobs", *ONE).returncode == 1


def test_down_says_which_jobs_keep_running(cli: Cli, pool: Path) -> None:
    assert cli("up", "-d", *ONE).returncode == 0
    assert cli("submit", *ONE, "--name", "long", "--", "sleep", "600").returncode == 0
    wait_until(lambda: "Running" in cli("jobs", *ONE).stdout)
    refused = cli("kill", "long.1.1.0")
    assert refused.returncode == 1
    assert "To end the job: aliquot cancel 1" in refused.stderr
    refused = cli("kill", "long")
    assert refused.returncode == 1
    assert refused.stderr == (
        "aliquot: there is no grant named long, but a job\n  To end the job: aliquot cancel long\n"
    )
    down = cli("down", *ONE)
    assert down.stdout == (
        "The pool of simulated h100:1 is down. 1 job still running: long. The next aliquot up"
        " continues with them.\n"
    )
    assert cli("up", "-d", *ONE).returncode == 0
    assert "Running" in cli("jobs", *ONE).stdout


def test_down_without_a_pool(cli: Cli) -> None:
    answer = cli("down", *ONE)
    assert (answer.returncode, answer.stdout) == (
        0,
        "No pool of simulated h100:1 is up: nothing to stop.\n",
    )
