"""`aliquot gpus`, `ps`, `doctor` and `arbiter`, on simulated machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aliquot.devices import Shape
from aliquot.slices import StateDirectory, control, diagnostics
from aliquot.slices.state_directory import SYSTEM
from cli.conftest import PROGRAM, Tenants, grants_of, kill_arbiter
from cli.terminal import Terminal
from conftest import Cli, aliquot_command
from support import GIB, merged, wait_until

ONE = ("--simulate", "h100:1")


def test_gpus_as_json(cli: Cli) -> None:
    answer = json.loads(cli("gpus", "--simulate", "a100:4", "--json").stdout)
    assert answer["simulated"] == "a100:4"
    assert [gpu["index"] for gpu in answer["gpus"]] == [0, 1, 2, 3]
    assert len({gpu["uuid"] for gpu in answer["gpus"]}) == 4
    first = answer["gpus"][0]
    assert first["uuid"].startswith("GPU-")
    assert first["memory_bytes"] > 79 * GIB
    assert first["links"][0]["kind"] == "NV12"
    assert first["strength"] == 100


def test_gpus_show_what_is_granted(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "8GiB").hear("stays")
    answer = json.loads(cli("gpus", *ONE, "--json").stdout)
    assert answer["gpus"][0]["granted_bytes"] == 8 * GIB


def test_inside_a_grant_gpus_are_the_slices(cli: Cli) -> None:
    command = (aliquot_command(), "gpus", "--json")
    answer = cli("run", "--simulate", "h100:4", "--memory", "8GiB", "--", *command)
    gpus = json.loads(answer.stdout)["gpus"]
    assert [gpu["memory_bytes"] for gpu in gpus] == [8 * GIB]


def test_ps_without_grants(cli: Cli) -> None:
    answer = cli("ps")
    assert answer.returncode == 0
    assert answer.stdout.split() == [
        *["Grant", "User", "GPU", "Memory", "Compute", "Policy", "Priority", "State", "PID", "Age"],
        "Command",
    ]
    assert json.loads(cli("ps", "--json").stdout) == {
        "grants": [],
        "gpus": [],
        "machines": [],
        "silent": [],
    }


def test_ps_as_a_table(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--name", "mine", wants=str(GIB))
    tenant.hear("stays")
    shown = cli("ps").stdout
    assert "simulated h100:1" in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("mine"))
    assert "8 GiB" in row
    assert str(tenant.process.pid) in row
    assert "tenant.py" in row


def test_ps_shows_every_machine(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--name", "one").hear("stays")
    tenants.start("--simulate", "t4:2", "--name", "two").hear("stays")
    answer = json.loads(cli("ps", "--json").stdout)
    assert {machine["simulated"] for machine in answer["machines"]} == {"h100:1", "t4:2"}
    assert {grant["name"]: grant["simulated"] for grant in answer["grants"]} == {
        "one": "h100:1",
        "two": "t4:2",
    }
    assert [gpu["simulated"] for gpu in answer["gpus"]].count("t4:2") == 2


def test_ps_json_has_null_for_an_equal_share(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ONE, "--memory", "1GiB", "--name", "mine").hear("stays")
    assert grants_of(cli)["mine"]["slices"][0]["compute_percent"] is None


def test_ps_restarts_a_dead_arbiter_with_grants(
    cli: Cli, tenants: Tenants, aliquot_state: Path
) -> None:
    tenants.start(*ONE, "--memory", "8GiB", "--name", "mine", wants=str(GIB)).hear("stays")
    kill_arbiter(aliquot_state / "simulated" / "h100-1")
    (found,) = findings(cli, *ONE)["arbiter"]
    assert found["health"] == "warning"
    assert "mine" in found["detail"]
    assert "aliquot ps" in found["fix"]
    part = grants_of(cli)["mine"]["slices"][0]
    assert part["memory_bytes"] == 8 * GIB
    assert part["counted_bytes"] >= GIB


def test_gpus_restarts_a_dead_arbiter_with_grants(
    cli: Cli, tenants: Tenants, aliquot_state: Path
) -> None:
    tenants.start(*ONE, "--memory", "8GiB").hear("stays")
    kill_arbiter(aliquot_state / "simulated" / "h100-1")
    answer = json.loads(cli("gpus", *ONE, "--json").stdout)
    assert answer["gpus"][0]["granted_bytes"] == 8 * GIB


def test_an_arbiter_in_the_foreground(
    cli: Cli, cli_env: dict[str, str], aliquot_state: Path
) -> None:
    state = aliquot_state / "simulated" / "h100-1"
    command = [aliquot_command(), "arbiter", *ONE]
    with subprocess.Popen(
        command, env=cli_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        wait_until(lambda: control.answers(state))
        assert int((state / "arbiter.pid").read_text("ascii")) == serving.pid
        assert cli("run", *ONE, "--", "true").returncode == 0
        second = cli("arbiter", *ONE)
        assert second.returncode == 1
        assert f"an arbiter already runs in {state}" in second.stderr
        serving.terminate()
        _, log = serving.communicate(timeout=60)
        assert serving.returncode == 0, log
    assert not control.answers(state)


def test_ps_watch_runs_until_ctrl_c(cli_env: dict[str, str], tenants: Tenants) -> None:
    tenants.start(*ONE, "--name", "mine").hear("stays")
    terminal = Terminal([aliquot_command(), "ps", "--watch"], cli_env)
    try:
        terminal.wait_for("mine")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert "Traceback" not in terminal.shown


def findings(cli: Cli, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    answer = json.loads(cli("doctor", "--json", *arguments).stdout)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["subject"], []).append(finding)
    return found


def test_doctor_finds_nothing_broken_on_a_simulated_machine(cli: Cli) -> None:
    answer = cli("doctor", *ONE)
    assert answer.returncode == 0, answer.stdout
    assert "simulated h100:1" in answer.stdout
    assert "Aliquot works here." in answer.stdout


def test_doctor_checks_which_libraries_a_tenant_loads(cli: Cli) -> None:
    found = findings(cli, *ONE)["library"]
    assert [finding["health"] for finding in found] == ["ok"] * 4
    names = {finding["detail"].split()[0] for finding in found}
    assert names == {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"}


def test_doctor_says_how_to_fix(cli: Cli, aliquot_state: Path) -> None:
    aliquot_state.mkdir()
    aliquot_state.chmod(0o777)
    answer = cli("doctor", *ONE, "--json")
    assert answer.returncode == 1
    broken = [one for one in json.loads(answer.stdout)["findings"] if one["health"] == "broken"]
    assert [one["subject"] for one in broken] == ["state"]
    assert "chmod" in broken[0]["fix"]
    assert f"ALIQUOT_STATE is {aliquot_state}" in broken[0]["fix"]


def test_doctor_stops_without_a_state_directory(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = cli("doctor", *ONE, "--json", env={"ALIQUOT_STATE": str(tmp_path / "file")})
    assert answer.returncode == 1
    assert answer.stderr == ""
    last = json.loads(answer.stdout)["findings"][-1]
    assert (last["subject"], last["health"]) == ("state", "broken")


def test_doctor_warns_about_separate_arbiters(monkeypatch: pytest.MonkeyPatch) -> None:
    def subjects(where: StateDirectory) -> list[str]:
        return [finding.subject for finding in diagnostics._users(where)]

    own = StateDirectory(Path("/tmp/aliquot-1000"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert subjects(own) == []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert subjects(own) == ["users"]
    assert subjects(StateDirectory(SYSTEM)) == []
    assert subjects(replace(own, shape=Shape("h100", 1))) == []


def test_a_process_outside_all_grants_is_named(
    cli: Cli, tenants: Tenants, aliquot_state: Path, native_dir: Path, cli_env: dict[str, str]
) -> None:
    tenants.start(*ONE, "--memory", "8GiB").hear("stays")
    outside = merged(
        cli_env,
        {
            "LD_LIBRARY_PATH": str(native_dir / "sim"),
            "ALIQUOT_SIMULATE": "h100:1",
            "ALIQUOT_SIMULATE_STATE": str(aliquot_state / "simulated" / "h100-1" / "machine"),
        },
    )
    command = [sys.executable, str(PROGRAM), str(GIB)]
    with subprocess.Popen(
        command, env=outside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout is not None
        assert any("stays" in line for line in stranger.stdout)

        def named() -> bool:
            return any(
                finding["health"] == "warning" and f"({stranger.pid})" in finding["detail"]
                for finding in findings(cli, *ONE).get("GPU 0", [])
            )

        wait_until(named)
        assert "outside Aliquot" in cli("ps").stderr
        beside = cli("run", *ONE, "--memory", "8GiB", "--", "true")
        assert "also used outside Aliquot" in beside.stderr
        stranger.communicate()
