"""`aliquot gpus`, `ps` and `doctor`, on simulated machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cli.conftest import PROGRAM, Tenants
from conftest import Cli, aliquot_command
from support import GIB, merged, wait_until

ONE = ("--simulate", "h100:1")


def test_gpus_as_a_table(cli: Cli) -> None:
    answer = cli("gpus", "--simulate", "h100:8")
    assert answer.returncode == 0, answer.stderr
    assert "simulated h100:8" in answer.stdout
    assert answer.stdout.count("H100 80GB HBM3") == 8
    assert "NV18" in answer.stdout


def test_gpus_as_json(cli: Cli) -> None:
    answer = json.loads(cli("gpus", "--simulate", "a100:4", "--json").stdout)
    assert answer["simulated"] == "a100:4"
    assert [gpu["index"] for gpu in answer["gpus"]] == [0, 1, 2, 3]
    assert len({gpu["uuid"] for gpu in answer["gpus"]}) == 4
    first = answer["gpus"][0]
    assert first["uuid"].startswith("GPU-")
    assert first["memory_bytes"] > 79 * GIB
    assert first["links"][0]["kind"] == "NV12"


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
    assert "No grants" in answer.stdout
    assert json.loads(cli("ps", "--json").stdout) == {"grants": [], "gpus": [], "machines": []}


def test_ps_as_a_table(cli: Cli, tenants: Tenants) -> None:
    tenant = tenants.start(*ONE, "--memory", "8GiB", "--name", "mine", wants=str(GIB))
    tenant.hear("stays")
    shown = cli("ps").stdout
    assert "simulated h100:1" in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("mine"))
    assert "8 GiB" in row
    assert f"({tenant.process.pid})" in row


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


def test_ps_can_go_on(cli_env: dict[str, str], tenants: Tenants) -> None:
    tenants.start(*ONE, "--name", "mine").hear("stays")
    command = ["timeout", "--signal=INT", "3", aliquot_command(), "ps", "--watch"]
    answer = subprocess.run(command, env=cli_env, capture_output=True, text=True, check=False)
    assert "mine" in answer.stdout
    assert "Traceback" not in answer.stderr


def findings(cli: Cli, *arguments: str) -> dict[str, list[dict[str, Any]]]:
    answer = json.loads(cli("doctor", "--json", *arguments).stdout)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in answer["findings"]:
        found.setdefault(finding["subject"], []).append(finding)
    return found


def test_doctor_finds_all_well_on_a_simulated_machine(cli: Cli) -> None:
    answer = cli("doctor", *ONE)
    assert answer.returncode == 0, answer.stdout
    assert "simulated h100:1" in answer.stdout
    assert "Aliquot works here." in answer.stdout


def test_doctor_looks_which_library_a_tenant_finds(cli: Cli) -> None:
    found = findings(cli, *ONE)["library"]
    assert [finding["health"] for finding in found] == ["ok"] * 4
    names = {finding["detail"].split()[0] for finding in found}
    assert names == {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"}


def test_doctor_says_how_to_mend(cli: Cli, aliquot_state: Path) -> None:
    aliquot_state.mkdir()
    aliquot_state.chmod(0o777)
    answer = cli("doctor", *ONE, "--json")
    assert answer.returncode == 1
    broken = [one for one in json.loads(answer.stdout)["findings"] if one["health"] == "broken"]
    assert broken[0]["subject"] == "state"
    assert "chmod" in broken[0]["mend"]


def test_who_slips_past_is_named(
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
        assert "outside Aliquot" in cli("ps").stdout
        beside = cli("run", *ONE, "--memory", "8GiB", "--", "true")
        assert "also used outside Aliquot" in beside.stderr
        stranger.communicate()
