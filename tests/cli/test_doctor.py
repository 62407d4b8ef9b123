"""What `aliquot doctor` says of a state directory and a file that no arbiter can start with."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.devices import Shape
from aliquot.slices import StateDirectory, control, diagnostics
from aliquot.slices.arbiter_process import ArbiterSettings
from aliquot.slices.arbiter_status import Status
from aliquot.slices.control import NoArbiterError, SilentArbiterError
from aliquot.slices.user_limits import read_limits
from cli.terminal import on_terminal
from conftest import aliquot_command
from support import wait_until

if TYPE_CHECKING:
    from cli.conftest import Tenants
    from conftest import Cli

ONE = ("--simulate", "h100:1")
PROBLEM = "line 1: a line begins with `user` or #"


@pytest.fixture
def state(aliquot_state: Path) -> Path:
    directory = aliquot_state / "simulated" / "h100-1"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def users(state: Path, short_tmp: Path) -> Path:
    """A file of user limits, with a line that no arbiter understands."""
    path = short_tmp / "users"
    path.write_text("nonsense\n")
    ArbiterSettings(path).store(state)
    return path


def diagnose(cli: Cli) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what is not well."""
    answer = cli("doctor", "--json", *ONE)
    findings = json.loads(answer.stdout)["findings"]
    return answer.returncode, [one for one in findings if one["health"] != "ok"]


def problem_of_limits(state: Path) -> str | None:
    """What is wrong with the limits by the arbiter's word; None while it does not answer."""
    try:
        return read_limits(state).problem
    except NoArbiterError:  # the old one is dying, or the next one has not started
        return None


def test_a_state_directory_of_a_later_version_is_reported(cli: Cli, state: Path) -> None:
    (state / "version").write_text("99\n")
    refused = cli("run", *ONE, "--", "true")
    assert (refused.returncode, "version 99" in refused.stderr) == (1, True)
    code, (finding,) = diagnose(cli)
    assert (code, finding["subject"], finding["health"]) == (1, "state", "broken")
    assert f"{state} is of version 99, and this arbiter knows versions up to" in finding["detail"]
    assert str(state) in finding["fix"]
    assert (state / "version").read_text() == "99\n"


def test_a_directory_that_is_not_there_yet_has_no_wrong_version(cli: Cli) -> None:
    assert diagnose(cli) == (0, [])


def test_an_invalid_file_of_user_limits_is_reported(cli: Cli, users: Path) -> None:
    refused = cli("run", *ONE, "--", "true")
    assert (refused.returncode, PROBLEM in refused.stderr) == (1, True)
    code, (finding,) = diagnose(cli)
    assert (code, finding["subject"], finding["health"]) == (1, "users", "broken")
    assert finding["detail"] == f"the next arbiter does not start: {users}, {PROBLEM}"
    assert finding["fix"] == "Correct the file."
    users.write_text("user 4001 grants 1\n")
    assert diagnose(cli) == (0, [])


def test_an_arbiter_that_does_not_answer_is_broken_and_not_absent(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(directory: Path) -> Status:
        raise SilentArbiterError(f"the arbiter in {directory} runs and did not answer", "See.")

    monkeypatch.setattr(control, "status", status)
    findings = diagnostics.diagnose(StateDirectory(state, Shape("h100", 1)))
    arbiter = [one for one in findings if one.subject == "arbiter"]
    text = f"the arbiter in {state} runs and did not answer"
    assert arbiter == [diagnostics.Finding("arbiter", diagnostics.Health.BROKEN, text, "See.")]


def test_a_file_that_became_invalid_is_reported_while_an_arbiter_runs(
    cli: Cli, users: Path, tenants: Tenants
) -> None:
    users.write_text("user 4001 grants 1\n")
    tenants.start(*ONE).hear("stays")
    users.write_text("nonsense\n")
    code, (finding,) = diagnose(cli)
    assert (code, finding["subject"], finding["health"]) == (0, "users", "warning")
    assert f"the next arbiter does not start: {users}, {PROBLEM}" in finding["detail"]
    assert "aliquot limits --reload" in finding["fix"]


def test_an_arbiter_that_gives_users_nothing_new_is_reported(
    cli: Cli, state: Path, users: Path, tenants: Tenants
) -> None:
    users.write_text("user 4001 grants 1\n")
    tenants.start(*ONE).hear("stays")
    users.write_text("nonsense\n")
    os.kill(control.status(state).answer["serving_pid"], signal.SIGKILL)  # the next reads the file
    wait_until(lambda: problem_of_limits(state))
    code, (finding,) = diagnose(cli)
    assert (code, finding["subject"], finding["health"]) == (1, "users", "broken")
    assert finding["detail"] == f"users get nothing new: {users}, {PROBLEM}"
    assert "aliquot limits --reload" in finding["fix"]


def test_findings_are_lines_in_a_pipe_and_whole_words_on_a_terminal(
    cli: Cli, cli_env: dict[str, str]
) -> None:
    piped = cli("doctor", *ONE)
    title, *rows, end = piped.stdout.splitlines()
    assert (title, end) == ("simulated h100:1", "Aliquot works here.")
    assert all(row.split()[0] and "  ok  " in row for row in rows)
    assert not any(row.startswith(" ") for row in rows)
    assert piped.stdout.isascii()
    shown = on_terminal([aliquot_command(), "doctor", *ONE], cli_env, 40)
    free = re.compile(r"\([0-9.]+ .iB free\)")  # of the disk, which others fill
    words = " ".join(" ".join(shown).split())
    assert free.sub("", words) == free.sub("", " ".join(piped.stdout.split()))
