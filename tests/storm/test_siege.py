"""Honest programs beside hostile ones, while arbiters die: nobody honest notices.

ALIQUOT_SIEGE_TENANTS hostile tenants, ALIQUOT_SIEGE_DEATHS deaths of the arbiter and
ALIQUOT_SIEGE_DOUBLE_DEATHS of the arbiter and its parent at once. `make soak` sets large numbers.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

import support
from aliquot.devices import NVML
from aliquot.model import Slice
from aliquot.slices import control
from standin import pages
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, TESTS, Grant, Machine

TENANTS = int(os.environ.get("ALIQUOT_SIEGE_TENANTS", "8"))
DEATHS = int(os.environ.get("ALIQUOT_SIEGE_DEATHS", "6"))
DOUBLE_DEATHS = int(os.environ.get("ALIQUOT_SIEGE_DOUBLE_DEATHS", "2"))
HONEST = 3
HOSTILE_SECONDS = 0.5
# An arbiter that dies ten times within ten seconds is given up: nine pauses must be longer.
APART_SECONDS = 1.2
LIMIT = 2 * GIB
HELD_SECONDS = 0.25

READ_ONLY = {"limits", "credit"}


def start(module: str, *arguments: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-m", f"storm.{module}", *arguments],
        env={**environment, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@dataclass
class Siege:
    """A machine with honest programs, each in a slice of its own."""

    machine: Machine
    grants: list[Grant] = field(default_factory=list)
    honest: list[subprocess.Popen[str]] = field(default_factory=list)
    hostile: list[subprocess.Popen[str]] = field(default_factory=list)
    attacks: int = 0
    most_used: int = 0

    def start_in_background(self) -> None:
        """As `aliquot run` does: there the arbiter's guard replaces what dies."""
        self.machine.stop_arbiter()
        program = self.machine.native / "bin" / "aliquot-arbiter"
        command = [str(program), "--state", str(self.machine.state)]
        command += ["--nvml", str(self.machine.driver / NVML)]
        subprocess.run(command, env=self.machine.bare(), check=True, timeout=60)

    def parent(self) -> int:
        return int((self.machine.state / "arbiter.pid").read_text())

    def grant(self, name: str, memory: int, compute: int) -> Grant:
        part = Slice(self.machine.uuids()[0], memory, compute)
        return self.machine.made(control.make(self.machine.state, name, [part]))

    def add_honest(self, number: int) -> None:
        self.grants.append(self.grant(f"honest{number}", LIMIT, 100 // (HONEST + 1)))
        self.honest.append(start("honest", environment=self.machine.inside(self.grants[-1])))
        assert self.honest[-1].stdout
        assert self.honest[-1].stdout.readline() == "ready\n"

    def attack(self) -> None:
        """One more hostile tenant, in a grant that only it has."""
        self.attacks += 1
        grant = self.grant(f"hostile{self.attacks}", 64 * MIB, 0)
        words = (str(grant.directory), str(self.attacks), str(HOSTILE_SECONDS))
        self.hostile.append(start("hostile", *words, environment=self.machine.bare()))

    def await_attackers(self) -> None:
        for one in self.hostile:
            reached, _ = one.communicate(timeout=120)
            assert one.returncode == 0
            if os.geteuid() == 0:
                assert not READ_ONLY & set(reached.split()), reached
        self.hostile.clear()

    def watch(self) -> None:
        """The ledgers of the honest, and whether all of them live."""
        for one, grant in zip(self.honest, self.grants, strict=True):
            assert one.poll() is None, "an honest program ended"
            self.most_used = max(self.most_used, grant.counted())

    def answers(self) -> bool:
        with suppress(Exception):
            return bool(self.machine.status()["serving_pid"])
        return False

    def kill(self, *, parent: bool) -> None:
        """Kill the arbiter, or the arbiter and its parent at once; wait for the next."""
        support.wait_until(self.answers)
        serving = self.machine.status()["serving_pid"]
        above = self.parent()
        if parent:
            os.kill(above, signal.SIGSTOP)
        os.kill(serving, signal.SIGKILL)
        if parent:
            os.kill(above, signal.SIGKILL)
        support.wait_until(lambda: self.answers() and self.serving() != serving)

    def serving(self) -> int:
        with suppress(Exception):
            return int(self.machine.status()["serving_pid"])
        return 0

    def close(self) -> None:
        sys.stdout.write((self.machine.state / "arbiter.log").read_text()[-4000:])
        support.wait_until(self.answers)
        parent = os.pidfd_open(self.parent())
        signal.pidfd_send_signal(parent, signal.SIGTERM)
        select.select([parent], [], [], 60)
        os.close(parent)
        for one in (*self.honest, *self.hostile):
            one.kill()
            one.communicate()


@pytest.fixture
def siege(make_machine: MakeMachine) -> Iterator[Siege]:
    made = Siege(make_machine("h100:1"))
    made.start_in_background()
    for number in range(HONEST):
        made.add_honest(number)
    yield made
    made.close()


def rounds_of(program: subprocess.Popen[str]) -> tuple[int, int, float]:
    """How many rounds it made, what the GPU counted, and its longest round in seconds."""
    said, _ = program.communicate("end\n", timeout=60)
    rounds, counted, longest = map(int, said.split())
    return rounds, counted, longest / 1e9


def is_double(event: int) -> bool:
    """Whether the parent dies too: evenly over all deaths."""
    deaths = DEATHS + DOUBLE_DEATHS
    return (event + 1) * DOUBLE_DEATHS // deaths > event * DOUBLE_DEATHS // deaths


@pytest.mark.shares
@pytest.mark.timeout(600 + 4 * (DEATHS + DOUBLE_DEATHS + TENANTS))
def test_honest_programs_notice_neither_hostile_tenants_nor_dying_arbiters(siege: Siege) -> None:
    allowed = support.on_this_machine(HELD_SECONDS)
    events = max(TENANTS, DEATHS + DOUBLE_DEATHS)
    for event in range(events):
        begin = time.monotonic()
        if event < TENANTS:
            siege.attack()
        if event < DEATHS + DOUBLE_DEATHS:
            siege.kill(parent=is_double(event))
        siege.watch()
        siege.await_attackers()
        time.sleep(max(0.0, APART_SECONDS - (time.monotonic() - begin)))  # the pace of the deaths
    allowed = max(allowed, support.on_this_machine(HELD_SECONDS))
    results = [rounds_of(one) for one in siege.honest]
    siege.honest.clear()
    for rounds, counted, longest in results:
        assert counted == rounds, "a result was lost"
        assert rounds > events
        assert longest <= allowed, f"held for {longest:.3f} s"
    assert siege.most_used <= LIMIT
    for grant in siege.grants:
        limits = grant.limits()
        support.wait_until(lambda: all(p.state == pages.FREE for p in limits.processes))  # noqa: B023
        assert grant.counted() == 0
