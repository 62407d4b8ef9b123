"""A pool on a simulated machine of the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.model.errors import AliquotError
from aliquot.pool.client import Client
from aliquot.pool.place import Place
from aliquot.slices import StateDirectory, control
from conftest import Cli, aliquot_command
from support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE = "h100:4"
EXAMPLE = Path(__file__).parents[2] / "examples" / "plain.py"
DIES = Path(__file__).with_name("dies.py")


class PoolUp:
    """`aliquot up`, and the commands that go to it."""

    def __init__(self, cli: Cli, env: dict[str, str], state: Path) -> None:
        self._cli, self._env = cli, env
        self.state = state / "simulated" / "h100-4"
        self.place = state / "pool" / "simulated" / "h100-4"
        self.output = state.parent / "up.log"
        self.process: subprocess.Popen[bytes] | None = None

    def up(self, *options: str, dies_after: int | None = None) -> None:
        """Bring it up; one that dies does so after so many lines of its own code."""
        command = [aliquot_command()]
        if dies_after is not None:
            command = [sys.executable, str(DIES), str(dies_after)]
        rules = ("--simulate", SHAPE, "--resize-every", "0.5", "--settle", "0.5")
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "up", *rules, *options], env=self._env, stdout=log, stderr=log
            )
        if dies_after is None:
            wait_until(lambda: self._listens() or self.process.poll() is not None, 60)  # type: ignore[union-attr]
            assert self._listens(), self.output.read_text()

    def _listens(self) -> bool:
        with suppress(OSError, ValueError):
            assert self.process is not None
            return bool(
                json.loads((self.place / "pool.json").read_text())["pid"] == self.process.pid
            )
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def down(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(20) == 0, self.output.read_text()

    def ask(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command, on this pool."""
        return self._cli(args[0], "--simulate", SHAPE, *args[1:])

    def submit(self, *args: str) -> str:
        answer = self.ask("submit", *args)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def job(self, name: str) -> dict[str, Any]:
        return self._client().job(name)

    def _client(self) -> Client:
        words = json.loads((self.place / "pool.json").read_text())
        return Client(Place(self.place, StateDirectory(self.state)), words["port"], words["token"])

    def state_of(self, name: str) -> str:
        return str(self.job(name)["record"]["state"])

    def wait_for(
        self, name: str, *states: str, size: int | None = None, seconds: float = 90
    ) -> None:
        """Wait until a job is there; with a size, until it has so many workers."""
        deadline = time.monotonic() + seconds
        while True:
            job = self.job(name)
            there = len(job["record"]["slots"])
            if job["record"]["state"] in states and size in {None, there}:
                return
            assert time.monotonic() < deadline, f"{job}\n{self.output.read_text()}"
            time.sleep(0.02)

    def log(self, name: str, rank: int = 0) -> str:
        return self._client().log(name, rank, 0).words.decode()

    def history(self, name: str) -> list[tuple[str, int]]:
        return [(one["state"], one["size"]) for one in self.job(name)["events"]]

    def grants(self) -> list[str]:
        return [grant.name for grant in control.status(self.state).grants]

    def keepers(self) -> list[int]:
        """The keepers that are alive."""
        claims = [json.loads(path.read_text()) for path in self.place.glob("jobs/*/*/claim")]
        pids = [claim["keeper"] for claim in claims if "keeper" in claim]
        return [pid for pid in pids if _is_keeper(pid)]

    def leaves_nothing(self) -> None:
        wait_until(lambda: not self.keepers())
        wait_until(lambda: not self.grants())

    def clean_up(self) -> None:
        """End what a failed test has left."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in self.keepers():
            os.kill(pid, signal.SIGKILL)
        with suppress(AliquotError):
            for name in self.grants():
                control.end(self.state, name)


def _is_keeper(pid: int) -> bool:
    with suppress(OSError):
        return b"aliquot.pool.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.fixture
def down_pool(cli: Cli, cli_env: dict[str, str], aliquot_state: Path) -> Iterator[PoolUp]:
    pool = PoolUp(cli, cli_env, aliquot_state)
    yield pool
    pool.clean_up()


@pytest.fixture
def pool(down_pool: PoolUp) -> PoolUp:
    down_pool.up()
    return down_pool
