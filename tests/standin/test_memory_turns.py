"""Slices that want more memory than their GPU has, together, have it in turn."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aliquot.devices import CUDA
from aliquot.model import GrantState, Priority, Slice
from aliquot.model.errors import NoCapacityError
from aliquot.slices import control, moving
from aliquot.slices.checkpoint import CannotFreezeError
from aliquot.slices.control import SliceChange
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, OUT_OF_MEMORY, Grant, Machine, Tenant
from standin.test_parking import SOON, is_parked, kill_arbiter
from standin.test_residence import mover
from support import wait_until

SIZE = 77 * GIB + 512 * MIB  # of the 79 GiB of the GPU: beside it contexts have room
PIECE = 24 * MIB
PIECES = 42  # so a program has almost 1 GiB

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def machine(make_machine: MakeMachine, native_dir: Path) -> Machine:
    cuda = ("--cuda", str(native_dir / "sim" / CUDA), "--host-memory", str(1024 * GIB))
    return make_machine("h100:1", options=(*cuda, "--overcommit", "300"))


class Program:
    """A program that has filled its memory, each piece with another number."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        size: int = SIZE,
        pieces: int = PIECES,
        grant: Grant | None = None,
    ) -> None:
        self.machine, self.pieces = machine, pieces
        self.grant = grant or machine.grant(size, swap=True, name=name)
        self.tenant: Tenant = machine.tenant(self.grant)
        self.pointers: list[int] = []

    def begin(self) -> Program:
        self.tenant.start()
        for number in range(self.pieces):
            self.pointers.append(self.tenant.ok("alloc", PIECE))
            self.tenant.does("fill", self.pointers[-1], number, PIECE)
        self.tenant.does("synchronize")
        return self

    def looks(self) -> bool:
        """Whether each piece has what it was filled with."""
        self.tenant.does("fill", self.pointers[0], 0, PIECE)
        return all(
            self.tenant("read", pointer + PIECE - 8, 8) == [0, *[number] * 8]
            for number, pointer in enumerate(self.pointers)
        )

    def status(self) -> dict[str, Any]:
        return self.machine.grant_status(self.grant)

    def is_off(self) -> bool:
        return bool(self.status()["off_turn"]) and self.status()["state"] == "parked"


def in_use(machine: Machine) -> int:
    return int(machine.status()["gpus"][0]["used_bytes"])


def test_two_that_do_not_fit_together_both_run_and_only_what_must_leaves(machine: Machine) -> None:
    first = Program(machine, "one").begin()
    assert not first.is_off()
    second = Program(machine, "two")
    assert second.is_off()
    second.begin()  # when the first has left as much as must
    assert first.is_off()
    away = sum(one["away_bytes"] for one in first.status()["processes"])
    assert 0 < away < PIECE * PIECES / 2
    for _ in range(2):
        for one in (first, second):
            assert one.looks()
            assert in_use(machine) <= 80 * GIB
    assert first.status()["off_times"] >= 2
    assert first.tenant.end() == second.tenant.end() == ""


def test_no_more_is_granted_than_overcommit_allows_nor_one_that_never_fits(
    machine: Machine,
) -> None:
    with pytest.raises(NoCapacityError):  # the process that copies has a part of the GPU
        machine.grant(80 * GIB, swap=True, name="whole")
    for name in ("one", "two", "three"):
        machine.grant(70 * GIB, swap=True, name=name)
    with pytest.raises(NoCapacityError, match="300 %"):
        machine.grant(30 * GIB, swap=True, name="four")
    with pytest.raises(NoCapacityError):  # it would never leave, and what there is is promised
        machine.grant(GIB, name="fixed")


def test_two_that_are_busy_all_the_time_have_the_gpu_in_turn(machine: Machine) -> None:
    both = [Program(machine, name).begin() for name in ("one", "two")]

    def works(one: Program) -> bool:
        while min(each.status()["off_times"] for each in both) < 2:
            one.tenant.does("fill", one.pointers[0], 0, PIECE)
            one.tenant.does("synchronize")
        return one.looks()

    with ThreadPoolExecutor() as threads:
        assert all(threads.map(works, both))


@pytest.mark.parametrize("which", ["arbiter", "mover", "other"])
@pytest.mark.parametrize("when", ["leaving", "returning"])
def test_nothing_is_lost_if_a_part_is_killed_in_an_exchange(
    machine: Machine, which: str, when: str
) -> None:
    first = Program(machine, "one").begin()
    second = Program(machine, "two").begin()
    first.tenant.tell("read", first.pointers[0], 8)
    looked = second if when == "leaving" else first
    wait_until(lambda: looked.status()["parking"] == when)
    if which == "arbiter":
        kill_arbiter(machine)
    elif which == "mover":
        os.kill(mover(machine)["pid"], signal.SIGKILL)
    else:
        second.tenant.kill()
    assert first.tenant.answer() == [0, *[0] * 8]
    assert first.looks()
    if which != "other":
        assert second.looks()
        assert first.looks()


def test_a_stopped_program_keeps_nobody_else_off_the_gpu(machine: Machine) -> None:
    first = Program(machine, "one", 40 * GIB, 4).begin()
    second = Program(machine, "two", 36 * GIB, 4).begin()
    os.kill(first.tenant.pid, signal.SIGSTOP)
    try:
        third = Program(machine, "three", 36 * GIB, 4).begin()
        assert third.looks()
        assert not first.is_off()
        assert second.is_off()
        wait_until(lambda: machine.grant_status(first.grant)["processes"][0]["stopped"])
    finally:
        os.kill(first.tenant.pid, signal.SIGCONT)
    assert second.looks()
    assert first.looks()


def test_one_that_waits_for_a_stopped_program_says_so(machine: Machine) -> None:
    first = Program(machine, "one").begin()
    os.kill(first.tenant.pid, signal.SIGSTOP)
    second = Program(machine, "two", pieces=1)
    try:
        second.tenant.tell("start", 0)
        wait_until(lambda: "stopped" in str(second.status()["parking_why"]))
        assert not second.tenant.has_answered()
    finally:
        os.kill(first.tenant.pid, signal.SIGCONT)
    second.tenant.answer()
    assert first.looks()


def turns_of_two(machine: Machine, priority: Priority = Priority.NORMAL) -> tuple[Program, Program]:
    """A program that is off its GPU, and one of that priority that has it."""
    off = Program(machine, "one", pieces=4).begin()
    slices = [Slice(machine.uuids()[0], SIZE, priority=priority)]
    marked = control.make(machine.state, "two", slices, swap=True)
    on = Program(machine, "two", pieces=4, grant=machine.made(marked)).begin()
    assert off.is_off()
    return off, on


def test_calls_for_memory_are_out_of_memory_while_a_stopped_program_has_it(
    machine: Machine,
) -> None:
    off, on = turns_of_two(machine)
    os.kill(on.tenant.pid, signal.SIGSTOP)
    try:
        assert off.tenant("alloc", PIECE)[0] == OUT_OF_MEMORY
        assert off.tenant("alloc_managed", PIECE)[0] == OUT_OF_MEMORY
        off.tenant.tell("fill", off.pointers[0], 0, PIECE)  # a fill that is not done is no answer
        wait_until(lambda: "stopped" in str(off.status()["parking_why"]))
        assert not off.tenant.has_answered()
    finally:
        os.kill(on.tenant.pid, signal.SIGCONT)
    assert off.tenant.answer() == [0]
    off.tenant.ok("alloc", PIECE)
    assert off.looks()
    assert on.looks()


def test_a_stopped_background_program_is_ended_for_one_that_waits(machine: Machine) -> None:
    off, on = turns_of_two(machine, Priority.BACKGROUND)
    os.kill(on.tenant.pid, signal.SIGSTOP)
    assert off.looks()
    assert on.tenant.process.wait() == -signal.SIGKILL


def test_a_background_program_whose_memory_cannot_leave_is_ended_when_that_failed_twice(
    machine: Machine,
) -> None:
    off, on = turns_of_two(machine, Priority.BACKGROUND)
    on.tenant.ok("alloc_managed", MIB)
    assert off.looks()
    assert on.tenant.process.wait() == -signal.SIGKILL


def test_one_whose_memory_cannot_leave_stays_and_it_is_said_why(machine: Machine) -> None:
    first = Program(machine, "one").begin()
    first.tenant.ok("alloc_managed", MIB)
    second = Program(machine, "two", pieces=1)
    second.tenant.tell("start", 0)
    wait_until(lambda: "unswappable" in str(second.status()["parking_why"]))
    assert first.looks()
    first.tenant.end()
    second.tenant.answer()


def test_a_program_that_dies_while_it_is_off_leaves_nothing(machine: Machine) -> None:
    first = Program(machine, "one").begin()
    second = Program(machine, "two").begin()
    assert first.is_off()
    first.tenant.kill()
    wait_until(lambda: mover(machine)["copies"] == 0)
    assert second.looks()
    first.tenant, first.pointers = machine.tenant(first.grant), []
    assert first.begin().looks()
    assert second.looks()


def test_one_that_is_off_grows_only_as_far_as_may_be_granted(machine: Machine) -> None:
    first = Program(machine, "one", 50 * GIB, 1).begin()
    second = Program(machine, "two", 60 * GIB, 1)
    assert second.is_off()
    uuid = machine.uuids()[0]
    for size in (79 * GIB, 80 * GIB):  # beside the mover and what the other leaves
        with pytest.raises(NoCapacityError):
            control.resize(machine.state, second.grant.name, [SliceChange(uuid, memory_bytes=size)])
    with pytest.raises(NoCapacityError):  # it is on the GPU, and a part of the other too
        control.resize(machine.state, first.grant.name, [SliceChange(uuid, memory_bytes=79 * GIB)])
    control.resize(machine.state, second.grant.name, [SliceChange(uuid, memory_bytes=70 * GIB)])
    assert second.begin().looks()
    assert first.looks()


def idle(machine: Machine, compute_percent: int = 0) -> Program:
    """A program that was idle and is parked."""
    slices = [Slice(machine.uuids()[0], 60 * GIB, compute_percent)]
    marked = control.make(machine.state, "idle", slices, swap=True, park_after=SOON)
    program = Program(machine, "idle", pieces=1, grant=machine.made(marked)).begin()
    wait_until(lambda: is_parked(machine, program.grant))
    return program


def test_one_that_was_idle_and_parked_has_a_turn_when_it_needs_it(machine: Machine) -> None:
    first = idle(machine)
    first.tenant.tell("read", first.pointers[0], 8)
    wait_until(first.tenant.has_answered)
    first.tenant.answer()
    second = Program(machine, "two", pieces=1).begin()
    assert first.looks()
    assert second.looks()


def test_nobody_leaves_for_one_that_may_not_return(machine: Machine) -> None:
    first = idle(machine, compute_percent=60)
    slices = [Slice(machine.uuids()[0], GIB, 60)]
    control.make(machine.state, "other", slices)  # has its share of the compute time now
    second = Program(machine, "two", 60 * GIB, 1).begin()
    first.tenant.tell("read", first.pointers[0], 8)
    wait_until(lambda: "compute" in str(first.status()["parking_why"]))
    assert second.looks()
    assert second.status()["off_times"] == 0
    control.end(machine.state, "other")
    first.tenant.answer()
    assert second.looks()


@pytest.fixture
def short_of_host(make_machine: MakeMachine, native_dir: Path) -> Machine:
    """A host with half a GiB beside what turns on GPU 0 need: its slices have 1 GiB too much."""
    options = ("--host-memory", str(5 * GIB // 2), "--overcommit", "150")
    machine = make_machine("h100:2", options=("--cuda", str(native_dir / "sim" / CUDA), *options))
    machine.grant(40 * GIB, swap=True, name="one")
    gpu = machine.status()["gpus"][0]
    machine.grant(gpu["memory_bytes"] - gpu["granted_bytes"] + GIB, swap=True, name="two")
    return machine


def test_a_suspend_leaves_the_host_what_turns_need(short_of_host: Machine) -> None:
    machine = short_of_host
    grant = machine.grant(8 * GIB, on=(1,), swap=True, name="three")
    program = Program(machine, "three", grant=grant).begin()
    with pytest.raises(CannotFreezeError, match="set aside"):
        moving.freeze(machine.state, "three")
    assert program.status()["state"] == "active"
    assert program.looks()
    control.end(machine.state, "two")
    moving.freeze(machine.state, "three")
    control.set_state(machine.state, "three", GrantState.PARKED)
    with pytest.raises(NoCapacityError, match="memory that leaves GPUs"):  # now copies are there
        machine.grant(41 * GIB, swap=True, name="two")


def test_an_idle_program_leaves_the_host_what_turns_need(short_of_host: Machine) -> None:
    machine = short_of_host
    grant = machine.grant(8 * GIB, on=(1,), swap=True, park_after=SOON, name="three")
    program = Program(machine, "three", grant=grant).begin()
    wait_until(lambda: "set aside" in str(program.status()["parking_why"]), 60)
    control.end(machine.state, "two")
    wait_until(lambda: is_parked(machine, grant), 60)
    assert program.looks()
