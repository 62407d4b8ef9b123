"""`aliquot restart`, and what `ps`, `doctor` and `resize` say of a program that was not adopted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot import slices
from aliquot.model.errors import AliquotError
from aliquot.slices import control
from cli.conftest import Tenants, grants_of, kill_arbiter
from conftest import Cli, aliquot_command
from support import GIB, wait_until

if TYPE_CHECKING:
    from cli.conftest import Tenant

ONE = ("--simulate", "h100:1")


def running(tenants: Tenants, name: str) -> Tenant:
    options = ("--memory", "8GiB", "--compute", "30", "--name", name)
    tenant = tenants.start(*ONE, *options, wants=str(GIB))
    tenant.hear("stays")
    return tenant


def process_of(cli: Cli, name: str) -> dict[str, Any]:
    (process,) = grants_of(cli)[name]["processes"]
    assert isinstance(process, dict)
    return process


def serves(state: Path, pid: int) -> bool:
    with suppress(AliquotError):
        return control.status(state).pid == pid
    return False


def test_programs_keep_running_with_their_limits_and_shares(
    cli: Cli, tenants: Tenants, aliquot_state: Path
) -> None:
    running(tenants, "mine")
    before = control.status(aliquot_state / "simulated" / "h100-1")
    done = cli("restart", *ONE)
    assert done.returncode == 0, done.stderr
    after = control.status(aliquot_state / "simulated" / "h100-1")
    assert after.pid != before.pid
    assert done.stdout == f"restarted: pid {after.pid}, 1 grant\n"
    (part,) = grants_of(cli)["mine"]["slices"]
    assert (part["memory_bytes"], part["compute_percent"]) == (8 * GIB, 30)
    assert process_of(cli, "mine")["ungated"] is None
    assert cli("doctor", *ONE).returncode == 0


def test_grants_are_shown_while_the_arbiter_is_restarted(
    tenants: Tenants, aliquot_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(tenants, "mine")
    monkeypatch.setenv("ALIQUOT_STATE", str(aliquot_state))
    for _ in range(5):
        answer = control.status(aliquot_state / "simulated" / "h100-1").answer
        os.kill(int(answer["serving_pid"]), signal.SIGKILL)
        (machine,) = slices.survey().found
        assert [grant.name for grant in machine.status.grants] == ["mine"]


def test_an_arbiter_of_another_driver_is_reported_and_replaced(
    cli: Cli, tenants: Tenants, aliquot_state: Path
) -> None:
    running(tenants, "mine")
    machine = aliquot_state / "simulated" / "h100-1" / "machine"
    (machine / "driver").write_text("library 590.1\nmodule 590.1\n")
    said = " ".join(cli("doctor", *ONE).stdout.split())
    assert "it uses driver 580.159.04, and this machine now has 590.1" in said
    assert cli("restart", *ONE).returncode == 0
    assert process_of(cli, "mine")["ungated"] is None
    assert "uses driver" not in cli("doctor", *ONE).stdout


def test_a_lost_share_is_shown_everywhere(cli: Cli, tenants: Tenants, aliquot_state: Path) -> None:
    running(tenants, "mine")
    state = aliquot_state / "simulated" / "h100-1"
    pages = Path(control.status(state).answer["pages"]) / "mine"
    kill_arbiter(state)
    for file in pages.glob("work.*"):
        file.unlink()
    why = "its pages are lost: No such file or directory"
    shown = cli("ps")
    assert "takes no turns" in " ".join((shown.stdout + shown.stderr).split())
    assert process_of(cli, "mine")["ungated"] == why
    doctor = cli("doctor", "--json", *ONE)
    assert doctor.returncode == 1
    broken = [one for one in json.loads(doctor.stdout)["findings"] if one["health"] == "broken"]
    assert [why in one["detail"] for one in broken] == [True]
    resized = cli("resize", "mine", "--compute", "40", *ONE)
    assert resized.returncode == 1
    assert "is not held: its pages are lost" in resized.stderr
    assert cli("resize", "mine", "--memory", "9GiB", *ONE).returncode == 0
    again = cli("restart", *ONE)
    assert again.returncode == 1
    assert "takes no turns" in again.stdout


def test_an_arbiter_in_the_foreground_is_left_to_who_started_it(
    cli: Cli, cli_env: dict[str, str], aliquot_state: Path
) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    with subprocess.Popen([aliquot_command(), "arbiter", *ONE], env=cli_env) as serving:
        wait_until(lambda: control.answers(state))
        refused = cli("restart", *ONE)
        assert refused.returncode == 1
        assert "runs in the foreground" in refused.stderr
        serving.terminate()
        assert serving.wait(60) == 0


def test_one_in_the_background_is_replaced_by_one_in_the_foreground(
    cli: Cli, cli_env: dict[str, str], tenants: Tenants, aliquot_state: Path
) -> None:
    """So a service manager gets its arbiter back, whoever started one while it was away."""
    running(tenants, "mine")
    state = aliquot_state / "simulated" / "h100-1"
    with subprocess.Popen([aliquot_command(), "arbiter", *ONE], env=cli_env) as serving:
        wait_until(lambda: serves(state, serving.pid))
        assert process_of(cli, "mine")["ungated"] is None
        serving.terminate()
        assert serving.wait(60) == 0


def test_commands_leave_the_restart_to_the_service_manager(
    cli: Cli, cli_env: dict[str, str], tenants: Tenants, aliquot_state: Path
) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    command = [aliquot_command(), "arbiter", *ONE]
    with subprocess.Popen(command, env=cli_env):
        wait_until(lambda: control.answers(state))
        running(tenants, "mine")
        kill_arbiter(state)
    with (
        subprocess.Popen([aliquot_command(), "ps"], env=cli_env) as shown,
        subprocess.Popen(command, env=cli_env) as serving,
    ):
        assert shown.wait(60) == 0
        wait_until(lambda: serves(state, serving.pid))
        assert process_of(cli, "mine")["ungated"] is None
        serving.terminate()
        assert serving.wait(60) == 0


def test_the_next_arbiter_keeps_the_settings_of_the_last(
    cli: Cli, cli_env: dict[str, str], tenants: Tenants, aliquot_state: Path, tmp_path: Path
) -> None:
    """Whoever starts it: without its options it would know no limits of users."""
    state = aliquot_state / "simulated" / "h100-1"
    users = tmp_path / "users"
    users.write_text("user * memory 20GiB\n")
    options = (*ONE, "--users", str(users), "--unjoined", "end")
    foreground = subprocess.Popen([aliquot_command(), "arbiter", *options], env=cli_env)
    wait_until(lambda: control.answers(state))
    running(tenants, "mine")
    foreground.terminate()
    foreground.wait(60)
    assert cli("ps").returncode == 0  # starts one, since a grant is left
    settings = control.status(state).answer
    assert settings["unjoined"] == "end"
    command = Path(f"/proc/{control.status(state).pid}/cmdline").read_bytes().split(b"\0")
    assert command[command.index(b"--users") + 1] == str(users).encode()


def test_what_an_arbiter_may_take_of_the_host_outlives_it(
    cli: Cli, cli_env: dict[str, str], tenants: Tenants, aliquot_state: Path
) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    command = [aliquot_command(), "arbiter", *ONE, "--host-memory", "3GiB"]
    with subprocess.Popen(command, env=cli_env) as serving:
        wait_until(lambda: control.answers(state))
        assert control.status(state).answer["host_memory_bytes"] == 3 << 30
        serving.terminate()
        assert serving.wait(60) == 0
    running(tenants, "mine")
    assert control.status(state).answer["host_memory_bytes"] == 3 << 30
    refused = cli("arbiter", *ONE, "--host-memory", "50%")
    assert (refused.returncode, "50%" in refused.stderr) == (2, True)
