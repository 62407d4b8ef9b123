"""Turns with memory, and programs that do not move theirs (tests/standin has programs that do)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU
from arbiter.test_move import make
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from arbiter.rig import Arbiter, Machine
    from arbiter.test_move import Tenants


HOST_FULL = 2  # aliquot/move.h


def line(name: str, memory: int) -> str:
    return f"make name={name} kept=1 swap=1 slice={GPU},memory={memory}"


def directory(arbiter: Arbiter, name: str, memory: int) -> Path:
    return Path(arbiter.ask(line(name, memory))["directory"])


def step(arbiter: Arbiter, name: str) -> str:
    grant = arbiter.grant(name)
    assert grant
    return str(grant["parking"])


def refused(grant: Path) -> bool:
    """Whether calls for memory of its programs are out of memory."""
    at = wire.LIMITS_HEADER.size + wire.REFUSED_AT
    return (grant / "limits").read_bytes()[at : at + 4] != bytes(4)


def test_a_slice_says_how_long_it_may_be_off_its_gpu(arbiter: Arbiter) -> None:
    assert arbiter.status()["knows_swap_wait"] is True
    arbiter.ask(f"make name=a kept=1 swap=1 swap-wait=30000 slice={GPU},memory={GIB}")
    arbiter.ask(line("b", GIB))
    grants = [arbiter.grant(name) for name in ("a", "b")]
    assert [one["swap_wait_ms"] for one in grants if one] == [30000, 15000]


@pytest.mark.parametrize("wrong", ["swap-wait=30000", "swap=1 swap-wait=1999", "swap=1 swap-wait="])
def test_a_wait_that_cannot_be_is_refused(arbiter: Arbiter, wrong: str) -> None:
    answer = arbiter.ask(f"make name=a kept=1 {wrong} slice={GPU},memory={GIB}")
    assert answer["code"] == "malformed"


@pytest.mark.timeout(240)
def test_a_background_program_is_not_ended_for_what_is_not_its_own_fault(
    stopped_arbiter: Arbiter, tenants: Tenants
) -> None:
    stopped_arbiter.start("--overcommit", "300", "--host-memory", str(1 << 40))
    slice_ = f"slice={GPU},memory={60 * GIB}"
    holds = Path(
        stopped_arbiter.ask(f"make name=holds kept=1 swap=1 {slice_},priority=background")[
            "directory"
        ]
    )
    holder = tenants(holds)
    holder.hello()
    assert holder.tell("cannot-leave", HOST_FULL) == "fails"
    waits = directory(stopped_arbiter, "waits", 60 * GIB)
    assert wire.exchange(waits, wire.hello_message()).value == wire.PARKED
    # After two failures it counts as unwilling, and who waits is answered. It is not ended.
    wait_until(lambda: refused(waits), 120)
    assert holder.tell("done", 0) == "0"
    assert "is ended" not in stopped_arbiter.log.read_text()


@pytest.mark.timeout(120)
def test_one_that_seems_idle_and_never_moves_is_not_the_only_one_that_is_asked(
    stopped_arbiter: Arbiter, tenants: Tenants
) -> None:
    stopped_arbiter.start("--overcommit", "300", "--host-memory", str(1 << 40))
    silent = make(stopped_arbiter, line("silent", 36 * GIB))
    silent.works[0].set("calls", 1)  # and no work: it is idle, and the first that is asked
    tenants(directory(stopped_arbiter, "busy", 36 * GIB)).hello()
    wait_until(lambda: stopped_arbiter.compute("silent")["idle_ns"] > 1_000_000_000)
    waits = directory(stopped_arbiter, "waits", 36 * GIB)
    assert wire.exchange(waits, wire.hello_message()).value == wire.PARKED
    wait_until(lambda: step(stopped_arbiter, "silent") == "leaving")
    wait_until(lambda: step(stopped_arbiter, "busy") == "leaving", 50)


@pytest.mark.timeout(240)
def test_programs_that_die_all_the_time_keep_nobody_from_an_answer(
    machine: Machine, stopped_arbiter: Arbiter, tenants: Tenants
) -> None:
    stopped_arbiter.start("--overcommit", "300", "--host-memory", str(1 << 40))
    dies = Path(stopped_arbiter.ask(f"make name=dies kept=1 slice={GPU},memory={GIB}")["directory"])
    holder = tenants(directory(stopped_arbiter, "holds", 50 * GIB))
    holder.hello()
    os.kill(holder.pid, signal.SIGSTOP)
    waits = directory(stopped_arbiter, "waits", 50 * GIB)
    assert wire.exchange(waits, wire.hello_message()).value == wire.PARKED

    def is_answered_while_one_dies() -> bool:
        one = tenants(dies)
        one.hello()
        machine.list_process(one.pid, MIB)  # also when it is dead: its memory is there
        one.kill()
        return refused(waits)

    wait_until(is_answered_while_one_dies, 120)
