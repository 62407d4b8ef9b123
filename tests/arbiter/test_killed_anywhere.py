"""The arbiter killed before each of its steps in turn: what it leaves is whole or nothing.

A step is a call that changes something outside the process. The arbiter that follows must find a
sound grant or none, count what is held and nothing else, and leave no half of anything.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import support
from arbiter import doors
from arbiter.rig import GPU, Arbiter, Machine
from support import GIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Owner, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[[Path, str], Owner]

KILLER = Path(__file__).parents[1] / "native" / "arbiter" / "kill_at.c"
REQUEST = f"make name=a slice={GPU},memory={GIB}"


@pytest.fixture(scope="session")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killer")
    return support.compile_library(folder, "libkill.so", KILLER.read_text(), "-fvisibility=hidden")


class Rounds:
    """Arbiters of one machine, each killed one step later than the one before."""

    def __init__(self, folder: Path, program: Path, nvml: Path, killer: Path) -> None:
        self._folder = folder
        self._program = program
        self._order = folder / "kill_at"
        self._machine = Machine(folder, nvml)
        self._machine.variables.update(LD_PRELOAD=str(killer), KILL_AT=str(self._order))

    def start(self, number: int) -> Arbiter:
        arbiter = Arbiter(self._folder / f"state{number}", self._program, self._machine)
        arbiter.start()
        return arbiter

    def kill_at(self, step: int) -> None:
        self._order.write_text(str(step))

    def was_killed(self, arbiter: Arbiter) -> bool:
        """Whether there were that many steps; from now on nobody is killed, and it answers."""
        killed = not self._order.exists()
        self._order.unlink(missing_ok=True)
        wait_until(arbiter.answers)
        return killed


@pytest.fixture
def rounds(short_tmp: Path, native_dir: Path, fake_nvml: Path, killer: Path) -> Rounds:
    program = native_dir / "bin" / "aliquot-arbiter"
    if b"__asan_init" in program.read_bytes():
        pytest.skip("AddressSanitizer must be the first library")
    return Rounds(short_tmp, program, fake_nvml, killer)


def check_whole(arbiter: Arbiter) -> None:
    """Each directory is a sound grant, and each grant a directory."""
    grants = arbiter.status()["grants"]
    names = sorted(os.listdir(arbiter.state / "grants"))  # noqa: PTH208 - dotted names too
    assert names == sorted(one["name"] for one in grants)
    assert [one["broken"] for one in grants] == [None] * len(grants)


def test_while_it_makes_a_grant(rounds: Rounds) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        rounds.kill_at(step)
        with suppress(OSError, AssertionError):  # the answer may never come
            arbiter.ask(REQUEST)
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        if arbiter.grant("a") is None:
            arbiter.make("a", GIB)
        directory = arbiter.state / "grants" / "a"
        assert doors.exchange(directory, doors.hello_message()).kind == doors.WELCOME
        arbiter.end()
    assert step > 20, "the arbiter was not killed where it should be"


def test_while_it_takes_a_process_in(rounds: Rounds) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        directory = arbiter.make("a", GIB)
        rounds.kill_at(step)
        with suppress(OSError, AssertionError):
            doors.exchange(directory, doors.hello_message())
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        answer = doors.exchange(directory, doors.hello_message())
        assert (answer.kind, answer.value) == (doors.WELCOME, 0)
        doors.Holding.of(answer)
        arbiter.end()
    assert step > 5, "the arbiter was not killed where it should be"


def test_while_it_ends_a_process_and_its_grant(
    rounds: Rounds, tenants: Tenants, owners: Owners
) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        survivor = tenants(arbiter.make("survivor", GIB))
        survivor.hello()
        survivor.tell("hold", 0, 512)
        owner = owners(arbiter.state, REQUEST)
        tenant = tenants(owner.directory)
        tenant.hello()
        tenant.tell("hold", 0, 512 << 10)
        rounds.kill_at(step)
        tenant.kill()
        owner.kill()
        wait_until(lambda: not owner.directory.exists())  # noqa: B023 - called before the next round
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        (left,) = arbiter.status()["grants"]
        assert left["name"] == "survivor"
        assert left["slices"][0]["counted_bytes"] == 512
        assert [one["state"] for one in left["processes"]] == ["live"]
        arbiter.end()
        survivor.kill()
    assert step > 10, "the arbiter was not killed where it should be"


def test_while_it_finds_its_grants_again(rounds: Rounds, tenants: Tenants, owners: Owners) -> None:
    step = 0
    killed = True
    while killed:
        step += 1
        arbiter = rounds.start(step)
        survivor = tenants(arbiter.make("survivor", GIB))
        survivor.hello()
        survivor.tell("hold", 0, 512)
        owner = owners(arbiter.state, REQUEST)
        serving = arbiter.serving_pid()
        arbiter.pause_parent()
        os.kill(serving, signal.SIGKILL)
        owner.kill()
        rounds.kill_at(step)
        arbiter.resume_parent()
        wait_until(lambda: not owner.directory.exists())  # noqa: B023 - called before the next round
        killed = rounds.was_killed(arbiter)
        check_whole(arbiter)
        (left,) = arbiter.status()["grants"]
        assert left["slices"][0]["counted_bytes"] == 512
        assert survivor.tell("measure") == "measured"
        arbiter.end()
        survivor.kill()
    assert step > 20, "the arbiter was not killed where it should be"
