"""The commands on this machine's own GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Tenants, grants_of
from conftest import Cli
from support import GIB, MIB, environment, wait_until

pytestmark = pytest.mark.gpu

DEMO = Path(__file__).parents[2] / "demo" / "demo.py"


def test_gpus(cli: Cli) -> None:
    answer = json.loads(cli("gpus", "--json").stdout)
    assert answer["simulated"] is None
    assert answer["gpus"]


def test_doctor_finds_nothing_broken(cli: Cli) -> None:
    answer = cli("doctor")
    assert answer.returncode == 0, answer.stdout


def test_the_program_sees_its_slice_and_is_stopped_at_its_limit(cli: Cli, tenants: Tenants) -> None:
    greedy = tenants.start("--memory", "2GiB", "--name", "greedy", wants="all")
    assert greedy.hear("sees")["bytes"] == 2 * GIB
    assert greedy.hear("stopped")["code"] == 2
    part = grants_of(cli)["greedy"]["slices"][0]
    assert 2 * GIB - 64 * MIB <= part["counted_bytes"] + part["driver_bytes"] <= 2 * GIB
    assert greedy.end() == 0
    wait_until(lambda: not grants_of(cli))


def test_the_demo() -> None:
    answer = subprocess.run(
        [sys.executable, str(DEMO)], env=environment(), capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "simulated" not in answer.stdout
