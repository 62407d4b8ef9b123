"""A shared machine: arbiter and pool run by a service manager, and two busy jobs at 60 and 40 %."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import support
from aliquot import devices
from aliquot.devices import parse_shape
from aliquot.model import Turn
from aliquot.model.errors import AliquotError
from aliquot.pool.client import PoolClient, connect
from aliquot.pool.peers import peer_of
from aliquot.slices import control
from arbiter.older import build_arbiter, extract, has_history
from conftest import Cli, aliquot_command
from credit import measuring
from credit.measuring import Figures, Shares
from outages.services import Service
from sim import gpu_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.model import Grant

    MakeShared = Callable[..., "SharedMachine"]

TESTS = Path(__file__).parents[1]
SHAPE = "h100:1"
SHARES = {"big": 60, "small": 40}
# The finder of an editable install would come before every path.
COMES_FIRST = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
sys.path.insert(0, {!r})
"""


@dataclass(frozen=True)
class Running:
    """What a job must keep while arbiter and pool come and go."""

    pid: int
    history: int
    bursts: int


class SharedMachine:
    """The services of a machine, its two busy jobs, and what people see of them."""

    def __init__(
        self, cli: Cli, env: dict[str, str], state: Path, older: Path | None = None
    ) -> None:
        """`older`: the folder of an earlier version, by which the services begin."""
        self._cli = cli
        self._older = older
        self.state = state / "simulated" / SHAPE.replace(":", "-")
        self.env = {**env, "PYTHONPATH": str(TESTS)}
        self.services: list[Service] = []
        self.pids: list[int] = []
        self.arbiter = self.service("arbiter")
        support.wait_until(self.arbiter_answers)
        self.pool = self.service("up")
        support.wait_until(self.pool_answers)

    def service(self, command: str) -> Service:
        words, env = self.command(command, self._older)
        log = self.state.parents[2] / f"{command}.log"
        self.services.append(Service(words, env, log))
        return self.services[-1]

    def command(self, name: str, older: Path | None = None) -> tuple[list[str], dict[str, str]]:
        """The command line and environment of a unit, of this version or of an older one."""
        program = [aliquot_command()] if older is None else [sys.executable, "-m", "aliquot"]
        env = self.env if older is None else {**self.env, "PYTHONPATH": str(older)}
        return [*program, name, "--simulate", SHAPE], env

    def upgrade(self, *, arbiter: bool = False, pool: bool = False) -> None:
        """Restart these services by this version."""
        if arbiter:
            self.arbiter.replace(*self.command("arbiter"))
        if pool:
            self.pool.replace(*self.command("up"))

    def ask(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine."""
        return self._cli(*args, env={**self.env, "ALIQUOT_SIMULATE": SHAPE})

    def grant_list(self) -> str:
        """What `ps` prints."""
        listed = self.ask("ps")
        return listed.stdout + listed.stderr

    def client(self) -> PoolClient:
        return connect(parse_shape(SHAPE))

    def arbiter_answers(self) -> bool:
        """Whether the arbiter that the service manager started answers."""
        with suppress(AliquotError):
            return bool(control.status(self.state).answer["pid"] == self.arbiter.pid)
        return False

    def pool_answers(self) -> bool:
        with suppress(AliquotError, OSError):
            return pool_pid(self.client()) == self.pool.pid
        return False

    def submit(self) -> None:
        """Start the two jobs, and wait until both compute."""
        for name, share in SHARES.items():
            size = ("--memory", "8GiB", "--compute", str(share))
            program = (sys.executable, "-S", str(Path(__file__).with_name("busy.py")))
            done = self.ask("submit", "--name", name, *size, "--", *program)
            assert done.returncode == 0, done.stderr
        support.wait_until(lambda: all(self.bursts(name) > 2 for name in SHARES))
        self.pids = [self.pid_of(name) for name in SHARES]

    def bursts(self, name: str) -> int:
        """How many bursts a job has printed, without a gap."""
        lines = self.client().log(name, 0, 0).content.decode().split()
        assert lines == [str(number) for number in range(len(lines))]
        return len(lines)

    def running(self, name: str) -> Running:
        job = self.client().job(name)
        assert job["state"]["phase"] == "Running", job
        assert job["state"]["retries"] == 0
        return Running(self.pid_of(name), len(job["events"]), self.bursts(name))

    def grants(self) -> dict[str, Grant]:
        """The grants of the jobs."""
        found = control.status(self.state).grants
        return {one.plain_name.partition(".")[0]: one for one in found}

    def pid_of(self, name: str) -> int:
        (process,) = self.grants()[name].processes
        return process.pid

    def shares(self, is_right: Callable[[Shares], bool]) -> Shares:
        """What each job gets from now on, in the order of SHARES: what is right, or undisturbed."""
        pids = [self.pid_of(name) for name in SHARES]

        def busy() -> list[int]:
            found = gpu_time.busy_ns(self.state / "machine")
            return [found.get((pid, 0), 0) for pid in pids]

        def figures() -> Figures:
            grants = self.grants()
            told = [grants[name].compute[0] for name in SHARES]
            return Figures(
                busy(),
                [int(one.used_seconds * 1e9) for one in told],
                sum(one.fallbacks for one in told),
                not any(one.turn in {Turn.OVERDUE, Turn.EXEMPT} for one in told),
            )

        return measuring.until_right(
            is_right,
            lambda: measuring.measure(figures, lambda: sum(busy()), gpu_seconds=1.0),
            lambda: figures().in_turn,
        )

    def close(self) -> None:
        """End the jobs, then the services."""
        with suppress(AliquotError):
            for name in SHARES:
                self.client().request(name, "cancel")
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(AliquotError):
            support.wait_until(lambda: not self.grants())
        for service in reversed(self.services):
            service.stop()


def pool_pid(client: PoolClient) -> int:
    """The process that listens at a pool's socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(client.directory.socket))
        return peer_of(probe).pid


def wait_until_clock(then: float) -> None:
    """Until that time of `time.monotonic`."""
    support.wait_until(lambda: time.monotonic() >= then)


@pytest.fixture
def make_shared(
    cli: Cli, cli_env: dict[str, str], aliquot_state: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeShared]:
    monkeypatch.setenv("ALIQUOT_STATE", str(aliquot_state))
    with ExitStack() as ends:

        def make(older: Path | None = None) -> SharedMachine:
            machine = SharedMachine(cli, cli_env, aliquot_state, older)
            ends.callback(machine.close)
            machine.submit()
            return machine

        yield make


@pytest.fixture
def shared(make_shared: MakeShared) -> SharedMachine:
    return make_shared()


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commit before this one, complete. As PYTHONPATH it comes before the installed version."""
    if not has_history():
        pytest.skip("this is not a checkout of the repository: it has no earlier commits")
    folder = tmp_path_factory.mktemp("older")
    package = extract("HEAD~1", "src", folder) / "aliquot"
    shutil.copytree(devices.native_dir(), package / "_native")
    program = build_arbiter("HEAD~1", folder)
    shutil.copy(program, package / "_native" / "bin" / "aliquot-arbiter")
    (folder / "sitecustomize.py").write_text(COMES_FIRST.format(str(folder / "src")))
    return folder
