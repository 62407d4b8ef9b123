"""A pool on a simulated machine, one for each test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.model.errors import AliquotError
from aliquot.pool.client import PoolClient
from aliquot.pool.directory import PoolDirectory
from aliquot.pool.peers import peer_of
from aliquot.slices import StateDirectory, control
from conftest import Cli, aliquot_command
from support import wait_until
from users import User, everyones_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPE = "h100:4"
EXAMPLE = Path(__file__).parents[2] / "examples" / "plain.py"
KILLED_AFTER_LINES = Path(__file__).with_name("killed_after_lines.py")


class PoolUp:
    """`aliquot up`, and commands to that pool."""

    def __init__(self, cli: Cli, env: dict[str, str], state: Path) -> None:
        self._cli, self._env = cli, env
        self.state = state / "simulated" / "h100-4"
        self.directory = state / "pool" / "simulated" / "h100-4"
        self.output = state.parent / "up.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.launcher: list[str] = []  # a command that becomes the command it is given

    def up(self, *options: str, dies_after: int | None = None) -> None:
        """Bring the pool up; `dies_after` kills it after so many lines of its own code."""
        command = [aliquot_command()]
        if dies_after is not None:
            command = [sys.executable, str(KILLED_AFTER_LINES), str(dies_after)]
        rules = ("--simulate", SHAPE, "--resize-every", "0.5", "--settle", "0.5")
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, *command, "up", *rules, *options],
                env=self._env,
                stdout=log,
                stderr=log,
            )
        if dies_after is None:
            wait_until(lambda: self._listens() or self.process.poll() is not None, 60)  # type: ignore[union-attr]
            assert self._listens(), self.output.read_text()

    def _listens(self) -> bool:
        assert self.process is not None
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self.state / "pool" / "socket"))
            return peer_of(probe).pid == self.process.pid
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def down(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(60) == 0, self.output.read_text()

    def ask(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this pool."""
        return self._cli(args[0], "--simulate", SHAPE, *args[1:])

    def submit(self, *args: str) -> str:
        answer = self.ask("submit", *args)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def job(self, name: str) -> dict[str, Any]:
        return self._client().job(name)

    def _client(self) -> PoolClient:
        return PoolClient(PoolDirectory(self.directory, StateDirectory(self.state)))

    def phase_of(self, name: str) -> str:
        return str(self.job(name)["state"]["phase"])

    def wait_for(
        self, name: str, *phases: str, size: int | None = None, seconds: float = 90
    ) -> None:
        """Wait until a job is in one of the phases and, if given, has `size` workers."""
        deadline = time.monotonic() + seconds
        while True:
            job = self.job(name)
            there = len(job["state"]["slots"])
            if job["state"]["phase"] in phases and size in {None, there}:
                return
            assert time.monotonic() < deadline, f"{job}\n{self.output.read_text()}"
            time.sleep(0.02)

    def log(self, name: str, rank: int = 0) -> str:
        return self._client().log(name, rank, 0).content.decode()

    def history(self, name: str) -> list[tuple[str, int]]:
        return [(one["phase"], one["size"]) for one in self.job(name)["events"]]

    def grants(self) -> list[str]:
        return [grant.name for grant in control.status(self.state).grants]

    def supervisors(self) -> list[int]:
        """The supervisors that are alive."""
        owners = [json.loads(path.read_text()) for path in self.directory.glob("jobs/*/*/owner")]
        pids = [owner["supervisor"] for owner in owners if "supervisor" in owner]
        return [pid for pid in pids if _is_supervisor(pid)]

    def leaves_nothing(self) -> None:
        wait_until(lambda: not self.supervisors())
        wait_until(lambda: not self.grants())

    def clean_up(self) -> None:
        """End everything that a failed test left behind."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in self.supervisors():
            os.kill(pid, signal.SIGKILL)
        with suppress(AliquotError):
            for name in self.grants():
                control.end(self.state, name)


@contextmanager
def strict_arbiter(pool: PoolUp, env: dict[str, str], *options: str) -> Iterator[None]:
    """Root's arbiter, which gives users nothing directly: only the pool makes grants."""
    command = [aliquot_command(), "arbiter", "--simulate", SHAPE, "--admission", "pool", *options]
    with subprocess.Popen(command, env=env) as arbiter:
        try:
            wait_until(lambda: control.answers(pool.state))
            yield
        finally:
            pool.clean_up()
            arbiter.terminate()


def _is_supervisor(pid: int) -> bool:
    with suppress(OSError):
        return b"aliquot.pool.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.fixture
def python_of_users(short_tmp: Path) -> Iterator[Path]:
    """A Python that all users can run. Needs root."""
    short_tmp.chmod(0o755)
    with everyones_python(short_tmp) as python:
        yield python


@pytest.fixture
def users(short_tmp: Path, cli_env: dict[str, str], python_of_users: Path) -> Callable[..., User]:
    """Makes users, whose commands find the pool of the test. Needs root."""
    env = {**cli_env, "ALIQUOT_SIMULATE": SHAPE}
    return lambda uid, *groups: User(uid, python_of_users, short_tmp / str(uid), env, groups)


@pytest.fixture
def down_pool(cli: Cli, cli_env: dict[str, str], aliquot_state: Path) -> Iterator[PoolUp]:
    pool = PoolUp(cli, cli_env, aliquot_state)
    yield pool
    pool.clean_up()


@pytest.fixture
def pool(down_pool: PoolUp) -> PoolUp:
    down_pool.up()
    return down_pool
