"""`aliquot run --isolation`: what its program gets, and what is refused, on simulated machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Tenants, grants_of
from conftest import Cli
from support import wait_until

ONE = ("--simulate", "h100:1")
PART = ("--isolation", "mps", "--memory", "1GiB")


def test_programs_of_one_user_are_clients_of_one_server(tenants: Tenants, cli: Cli) -> None:
    tenants.start(*ONE, *PART, "--name", "a").hear("stays")
    told = cli("run", *ONE, *PART, "--name", "b", "--", "env")
    assert told.returncode == 0, told.stderr
    found = dict(line.split("=", 1) for line in told.stdout.splitlines() if "=" in line)
    pipes = Path(found["CUDA_MPS_PIPE_DIRECTORY"])
    record = json.loads((pipes.parent / "record.json").read_text())
    assert record["phase"] == "ready"
    assert grants_of(cli)["a"]["isolation"] == "mps"
    wait_until(lambda: json.loads((pipes.parent / "record.json").read_text())["clients"], 60)
    assert len(json.loads((pipes.parent / "record.json").read_text())["clients"]) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*PART, "--swap"), "exclude each other"),
        ((*PART, "--spill", "1GiB"), "exclude each other"),
        ((*PART, "--together", "ring"), "exclude each other"),
        ((*PART, "--gpus", "2"), "is for one GPU"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    cli: Cli, options: tuple[str, ...], words: str
) -> None:
    answer = cli("run", *ONE, *options, "--", "true")
    assert answer.returncode == 2
    assert words in answer.stderr


def test_a_server_that_cannot_be_started_refuses_the_command(cli: Cli, short_tmp: Path) -> None:
    broken = short_tmp / "python"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys\nif '-f' in sys.orig_argv: sys.exit('the daemon is broken')\n"
    )
    env = {"PYTHONPATH": str(broken)}
    answer = cli("run", *ONE, *PART, "--name", "a", "--", "echo", "ran", env=env)
    assert answer.returncode == 1
    assert "ran" not in answer.stdout
    assert "the MPS server of GPU-" in answer.stderr
    assert "does not start" in answer.stderr
    assert "--isolation soft" in answer.stderr
    wait_until(lambda: "a" not in grants_of(cli), 60)
