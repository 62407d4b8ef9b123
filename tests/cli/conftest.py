"""Programs that run in slices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.slices import control
from conftest import Cli, aliquot_command
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).parents[2] / "demo" / "tenant.py"


class Tenant:
    """A program in a slice: `tenant.py`, started by `aliquot run`."""

    def __init__(self, env: dict[str, str], options: tuple[str, ...], wants: str) -> None:
        command = [aliquot_command(), "run", *options, "--", sys.executable, str(PROGRAM), wants]
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self, event: str) -> dict[str, Any]:
        """Wait for a report of the program."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words: dict[str, Any] = json.loads(line)
            if words["event"] == event:
                return words
        raise AssertionError(f"it ended before {event!r}: {self.process.communicate()[1]}")

    def tell(self, command: str, size: int) -> None:
        """Send the program a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {size}\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Let it end; its exit code."""
        self.process.communicate(timeout=60)
        return self.process.returncode


class Tenants:
    """Starts programs in slices of one machine."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self.started: list[Tenant] = []

    def start(self, *options: str, wants: str = "0") -> Tenant:
        tenant = Tenant(self._env, options, wants)
        self.started.append(tenant)
        return tenant


@pytest.fixture
def tenants(cli_env: dict[str, str], aliquot_state: Path) -> Iterator[Tenants]:
    """If the test fails, pytest shows what the programs and the arbiter wrote."""
    running = Tenants(cli_env)
    yield running
    for tenant in running.started:
        ended = tenant.process.poll()
        tenant.process.kill()
        print(f"exit code {ended}: {tenant.process.communicate()[1]}")  # noqa: T201
    # Not by a walk: grants end meanwhile, and their folders with them.
    for log in (*aliquot_state.glob("arbiter.log"), *aliquot_state.glob("simulated/*/arbiter.log")):
        print(log.read_text("utf-8"))  # noqa: T201


def grants_of(cli: Cli) -> dict[str, Any]:
    """The grants that `aliquot ps` shows, by name."""
    answer = cli("ps", "--json")
    assert answer.returncode == 0, answer.stderr
    return {grant["name"]: grant for grant in json.loads(answer.stdout)["grants"]}


def kill_arbiter(state: Path) -> None:
    """Kill all processes of an arbiter at once: none restarts another."""
    answer = control.status(state).answer
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for key in ("guard_pid", "pid", "serving_pid"):
            with suppress(ProcessLookupError):
                os.kill(int(answer[key]), number)
    wait_until(lambda: not control.answers(state))
