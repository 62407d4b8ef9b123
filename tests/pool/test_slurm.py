"""The table of docs/from-slurm.md: each command does what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from aliquot.cli.app import app
from conftest import aliquot_command
from pool.conftest import SHAPE

if TYPE_CHECKING:
    from pool.conftest import PoolUp

PAGE = Path(__file__).parents[2] / "docs" / "from-slurm.md"
JOB, FINISHED = "12", "9"  # of the page

pytestmark = pytest.mark.timeout(600)


def commands() -> list[str]:
    """The commands of the right column, in order."""
    lines = PAGE.read_text("utf-8").splitlines()
    rows = (line.split(" | ")[-1] for line in lines if line.startswith("| "))
    return [one for row in rows for one in re.findall(r"`aliquot ([^`]+)`", row)]


def test_each_command_of_the_table_for_slurm_users_runs(
    pool: PoolUp, cli_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in ("train.sh", "sweep.sh"):
        (tmp_path / script).write_text("#!/bin/sh\necho $ALIQUOT_JOB_NUMBER $RANK\n")
        (tmp_path / script).chmod(0o755)
    pool.submit("--name", "first", "--memory", "1GiB", "--", "sleep", "600")
    done = pool.job(pool.submit("--name", "done", "--memory", "1GiB", "--", "true"))
    pool.wait_for("done", "Succeeded")
    waits = pool.job(pool.submit("--name", "waits", "--after", "first", "--", "true"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALIQUOT_STATE", cli_env["ALIQUOT_STATE"])
    monkeypatch.setenv("ALIQUOT_SIMULATE", SHAPE)
    listed = commands()
    assert len(listed) > 25
    for one in listed:
        command = re.sub(rf"\b{JOB}\b", str(waits["number"]), one).replace("$USER", waits["user"])
        command = re.sub(rf"\b{FINISHED}$", str(done["number"]), command)
        words = shlex.split(command)
        if words[0] == "run":  # becomes the command
            subprocess.run(
                [aliquot_command(), *words],
                env={**cli_env, "ALIQUOT_SIMULATE": SHAPE},
                stdin=subprocess.DEVNULL,
                timeout=300,
                check=True,
            )
        else:
            answer = CliRunner().invoke(app, words, catch_exceptions=False)
            assert answer.exit_code == 0, f"{command}\n{answer.output}"
    ended = pool.job("waits")
    assert ended["state"]["phase"] == "Cancelled"
    assert (ended["urgency"], ended["time_seconds"]) == (5, 4 * 3600)
