"""`aliquot suspend` and `resume` of commands of `aliquot run --swap`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.conftest import grants_of
from conftest import aliquot_command
from support import MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.conftest import Tenants
    from conftest import Cli

pytestmark = pytest.mark.timeout(300)

LOOKS = Path(__file__).parents[1] / "pool" / "looks_when_asked.py"
ON = ("--simulate", "h100:1")
LARGE = ("--memory", "60GiB")


class Command:
    """A command with most of the GPU, which looks at its memory when it is asked to."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.asked, self._log = folder / "asked", folder / "log"
        program = (sys.executable, str(LOOKS), str(32 * MIB), str(self.asked))
        options = ("--name", "large", *LARGE, "--swap")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [aliquot_command(), "run", *ON, *options, "--", *program],
                env=env,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: "ready" in self._log.read_text())

    def looks(self) -> int:
        return self._log.read_text().count("same")


@pytest.fixture
def command(cli_env: dict[str, str], tmp_path: Path, tenants: Tenants) -> Iterator[Command]:
    one = Command(cli_env, tmp_path)
    yield one
    one.process.kill()
    one.process.wait()


def test_a_command_gives_its_gpu_to_another_and_continues(
    cli: Cli, command: Command, tenants: Tenants
) -> None:
    answer = cli("suspend", *ON, "large")
    assert (answer.returncode, answer.stdout) == (0, "large: suspended\n"), answer.stderr
    found = grants_of(cli)["large"]
    assert (found["state"], found["residence"]) == ("parked", "host")
    assert cli("suspend", *ON, "large").stdout == "large: already suspended\n"
    other = tenants.start(*ON, *LARGE, "--name", "other")
    other.hear("stays")
    command.asked.touch()
    refused = cli("resume", *ON, "large")
    assert refused.returncode == 1
    assert "command large: not resumed: " in refused.stderr
    said = " ".join(refused.stderr.split())
    assert "MiB requested" in said
    assert "It stays suspended. Try it again" in said
    assert command.looks() == 0
    other.end()
    wait_until(lambda: "other" not in grants_of(cli))
    answer = cli("resume", *ON, "large")
    assert (answer.returncode, answer.stdout) == (0, "large: resumed\n"), answer.stderr
    wait_until(lambda: command.looks() == 1)
    assert cli("resume", *ON, "large").stdout == "large: not suspended\n"
    command.asked.with_suffix(".end").touch()
    assert command.process.wait(60) == 0


def test_a_command_without_swap_cannot_be_suspended(cli: Cli, tenants: Tenants) -> None:
    tenants.start(*ON, "--memory", "1GiB", "--name", "stays").hear("stays")
    answer = cli("suspend", *ON, "stays")
    assert answer.returncode != 0
    assert "command stays was not started with --swap" in answer.stderr
    assert grants_of(cli)["stays"]["state"] == "active"
