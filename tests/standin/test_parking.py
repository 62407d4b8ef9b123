"""Idle programs are parked: their memory leaves the GPU, and their next call brings it back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from aliquot.devices import CUDA
from aliquot.model import Grant as SeenGrant
from aliquot.model import GrantState, ParkingStep, Residence, Slice
from aliquot.model.errors import NoCapacityError
from aliquot.model.parking_rule import ParkingRule
from aliquot.slices import control
from aliquot.slices.control import NoArbiterError, SliceChange
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, Grant, Machine, Tenant
from standin.test_residence import mover, waits_for_memory
from support import wait_until

SOON = ParkingRule(1.0, always=True)  # seconds without work
IF_WANTED = ParkingRule(1.0)
LARGE = 60 * GIB  # of the 80 GiB of the GPU: two do not fit
DATA = 24 * MIB


@pytest.fixture
def machine(make_machine: MakeMachine, native_dir: Path) -> Machine:
    options = ("--cuda", str(native_dir / "sim" / CUDA), "--host-memory", str(2 * GIB))
    return make_machine("h100:1", options=options)


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(LARGE, swap=True, park_after=SOON)


def seen(machine: Machine, grant: Grant) -> SeenGrant:
    return next(one for one in control.status(machine.state).grants if one.name == grant.name)


def step(machine: Machine, grant: Grant) -> ParkingStep:
    parking = seen(machine, grant).parking
    assert parking is not None
    return parking.step


def is_parked(machine: Machine, grant: Grant) -> bool:
    return seen(machine, grant).is_idle_parked


def begin(machine: Machine, grant: Grant) -> tuple[Tenant, int]:
    """A program that has filled some memory."""
    tenant = machine.tenant(grant).start()
    pointer = tenant.ok("alloc", DATA)
    tenant.does("fill", pointer, 7, DATA)
    tenant.does("synchronize")
    return tenant, pointer


def kill_arbiter(machine: Machine) -> None:
    """Kill the process that serves, and wait for the next one."""
    serving = machine.status()["serving_pid"]
    os.kill(serving, signal.SIGKILL)

    def is_replaced() -> bool:
        with suppress(NoArbiterError):
            return bool(machine.status()["serving_pid"] != serving)
        return False

    wait_until(is_replaced)


def has_its_bytes(tenant: Tenant, pointer: int, value: int = 7) -> bool:
    ends = (pointer, pointer + DATA - 8)
    return all(tenant("read", place, 8) == [0, *[value] * 8] for place in ends)


def test_an_idle_program_is_parked_and_its_next_call_brings_it_back(
    machine: Machine, grant: Grant
) -> None:
    tenant, pointer = begin(machine, grant)
    for times in (1, 2):
        wait_until(lambda: is_parked(machine, grant))
        found = seen(machine, grant)
        assert found.away_bytes >= DATA
        assert found.bytes_on(found.slices[0].gpu_uuid) < GIB
        assert found.parking is not None
        assert (found.parking.times, found.parking.waits) == (times, False)
        assert found.parking.for_seconds is not None
        assert has_its_bytes(tenant, pointer)
        wait_until(lambda: step(machine, grant) is not ParkingStep.RETURNING)
        found = seen(machine, grant)
        assert (found.state, found.residence, found.away_bytes) == (
            GrantState.ACTIVE,
            Residence.GPU,
            0,
        )
        assert found.parking is not None
        assert found.parking.seconds > 0
        assert found.parking.for_seconds is None
    assert tenant.end() == ""


def test_a_grant_without_it_stays(machine: Machine) -> None:
    grant = machine.grant(2 * GIB, swap=True)
    parked = machine.grant(2 * GIB, swap=True, park_after=SOON, name="two")
    begin(machine, grant)
    begin(machine, parked)
    wait_until(lambda: is_parked(machine, parked))
    assert seen(machine, grant).parking is None
    assert seen(machine, grant).away_bytes == 0


def is_due(machine: Machine, grant: Grant) -> bool:
    return bool(machine.grant_status(grant)["park_due"])


def moves(machine: Machine, grant: Grant) -> int:
    return int(machine.grant_status(grant)["moves"])


def want(machine: Machine, size: int) -> None:
    control.want(machine.state, [Slice(machine.uuids()[0], size)])


def test_an_idle_program_leaves_when_its_room_is_wanted(machine: Machine) -> None:
    grant = machine.grant(LARGE, swap=True, park_after=IF_WANTED)
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_due(machine, grant))
    for size in (GIB, 90 * GIB):  # fits, never fits
        want(machine, size)
        assert moves(machine, grant) == 0
    want(machine, LARGE)
    wait_until(lambda: is_parked(machine, grant))
    other = machine.grant(LARGE, name="two")
    control.end(machine.state, other.name)
    assert has_its_bytes(tenant, pointer)


def test_a_want_ends_when_it_is_met(machine: Machine, grant: Grant) -> None:
    begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    want(machine, LARGE)
    other = machine.grant(LARGE, swap=True, park_after=IF_WANTED, name="two")
    begin(machine, other)
    wait_until(lambda: is_due(machine, other))
    control.status(machine.state)
    assert moves(machine, other) == 0


def test_only_as_many_leave_as_must(machine: Machine) -> None:
    first = machine.grant(30 * GIB, swap=True, park_after=IF_WANTED)
    later = machine.grant(30 * GIB, swap=True, park_after=IF_WANTED, name="later")
    begin(machine, first)
    wait_until(lambda: is_due(machine, first))
    begin(machine, later)
    wait_until(lambda: is_due(machine, later))
    want(machine, 40 * GIB)
    wait_until(lambda: is_parked(machine, first))
    want(machine, 40 * GIB)
    assert moves(machine, later) == 0
    machine.grant(40 * GIB, name="three")


def test_an_idle_program_gives_way_to_one_that_returns(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    other = machine.grant(LARGE, swap=True, park_after=IF_WANTED, name="two")
    second, others = begin(machine, other)
    wait_until(lambda: is_due(machine, other))
    assert moves(machine, other) == 0
    assert has_its_bytes(tenant, pointer)
    assert is_parked(machine, other)
    assert has_its_bytes(second, others)


def test_work_keeps_a_program_on_the_gpu(machine: Machine, grant: Grant) -> None:
    other = machine.grant(GIB, swap=True, park_after=SOON, name="two")
    tenant, pointer = begin(machine, grant)
    begin(machine, other)

    def both() -> bool:
        tenant.does("fill", pointer, 7, DATA)
        tenant.does("synchronize")
        return is_parked(machine, other)

    wait_until(both)
    assert machine.grant_status(grant)["moves"] == 0


def test_copies_keep_a_program_on_the_gpu(machine: Machine, grant: Grant) -> None:
    other = machine.grant(GIB, swap=True, park_after=SOON, name="two")
    tenant, pointer = begin(machine, grant)
    begin(machine, other)
    wait_until(lambda: has_its_bytes(tenant, pointer) and is_parked(machine, other))
    assert machine.grant_status(grant)["moves"] == 0


def test_questions_about_the_gpu_do_not_bring_it_back(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    moves = machine.grant_status(grant)["moves"]
    tenant.does("synchronize_stream")
    tenant.does("synchronize")
    assert is_parked(machine, grant)
    assert machine.grant_status(grant)["moves"] == moves
    assert has_its_bytes(tenant, pointer)


def test_two_that_do_not_fit_together_have_the_gpu_in_turn(machine: Machine, grant: Grant) -> None:
    first, pointer = begin(machine, grant)
    with pytest.raises(NoCapacityError):
        machine.grant(LARGE, swap=True, park_after=SOON, name="two")
    wait_until(lambda: is_parked(machine, grant))
    other = machine.grant(LARGE, swap=True, park_after=SOON, name="two")
    second, others = begin(machine, other)
    for _ in range(2):
        for tenant, its, mine in ((first, pointer, grant), (second, others, other)):
            assert has_its_bytes(tenant, its)
            assert seen(machine, mine).state is GrantState.ACTIVE
    assert first.end() == second.end() == ""


def test_what_a_waiting_program_needs_is_kept_for_it(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    other = machine.grant(LARGE, name="two")
    tenant.tell("read", pointer, 8)
    wait_until(lambda: machine.grant_status(grant)["parking_waits"])
    found = seen(machine, grant)
    assert found.parking is not None
    wait_until(lambda: "MiB requested" in (machine.grant_status(grant)["parking_why"] or ""))
    assert found.bytes_on(found.slices[0].gpu_uuid) == LARGE
    with pytest.raises(NoCapacityError):  # 15 GiB are free, and promised
        machine.grant(4 * GIB, name="three")
    assert not tenant.has_answered()
    control.end(machine.state, other.name)
    assert tenant.answer() == [0, *[7] * 8]


def test_of_two_that_wait_the_first_returns_first(machine: Machine, grant: Grant) -> None:
    first, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    later = machine.grant(40 * GIB, swap=True, park_after=SOON, name="later")
    second, others = begin(machine, later)
    wait_until(lambda: is_parked(machine, later))
    third = machine.grant(LARGE, name="three")
    first.tell("read", pointer, 8)
    wait_until(lambda: machine.grant_status(grant)["parking_waits"])
    second.tell("read", others, 8)
    wait_until(lambda: machine.grant_status(later)["parking_waits"])
    control.end(machine.state, third.name)
    assert first.answer() == [0, *[7] * 8]
    assert second.answer() == [0, *[7] * 8]  # when the first is idle again
    found = seen(machine, grant).parking
    assert found is not None
    assert found.times >= 2


def test_a_program_that_joins_brings_it_back(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    another = machine.tenant(grant).start()
    another.ok("alloc", MIB)
    assert has_its_bytes(tenant, pointer)


def test_a_program_that_calls_while_its_memory_leaves_goes_on(
    machine: Machine, grant: Grant
) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: mover(machine)["pid"])
    pid = mover(machine)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: step(machine, grant) is ParkingStep.LEAVING)
        assert has_its_bytes(tenant, pointer)
        found = seen(machine, grant).parking
        assert found is not None
        assert found.times == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: is_parked(machine, grant))
    assert has_its_bytes(tenant, pointer)


def test_a_program_whose_memory_cannot_leave_runs_on_and_it_is_said_why(
    machine: Machine, grant: Grant
) -> None:
    tenant, pointer = begin(machine, grant)
    tenant.ok("alloc_managed", MIB)
    wait_until(lambda: "unswappable" in (machine.grant_status(grant)["parking_why"] or ""))
    assert has_its_bytes(tenant, pointer)
    found = seen(machine, grant)
    assert found.parking is not None
    assert (found.parking.times, found.state) == (0, GrantState.ACTIVE)


@pytest.mark.parametrize("which", ["arbiter", "mover"])
@pytest.mark.parametrize("when", [ParkingStep.LEAVING, ParkingStep.AWAY, ParkingStep.RETURNING])
def test_a_killed_arbiter_or_mover_loses_nothing(
    machine: Machine, grant: Grant, which: str, when: ParkingStep
) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: mover(machine)["pid"])
    if when is ParkingStep.LEAVING:
        wait_until(lambda: step(machine, grant) is not ParkingStep.NONE)
    else:
        wait_until(lambda: is_parked(machine, grant))
    if when is ParkingStep.RETURNING:
        tenant.tell("read", pointer, 8)
        wait_until(lambda: not is_parked(machine, grant))
    if which == "arbiter":
        kill_arbiter(machine)
    elif pid := mover(machine)["pid"]:
        os.kill(pid, signal.SIGKILL)
    if when is ParkingStep.RETURNING:
        assert tenant.answer() == [0, *[7] * 8]
    assert has_its_bytes(tenant, pointer)
    wait_until(lambda: is_parked(machine, grant))  # and again
    assert has_its_bytes(tenant, pointer)


def test_a_call_that_waits_is_seen_by_the_next_arbiter(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    other = machine.grant(LARGE, name="two")
    tenant.tell("read", pointer, 8)
    wait_until(lambda: machine.grant_status(grant)["parking_waits"])
    kill_arbiter(machine)
    wait_until(lambda: machine.grant_status(grant)["parking_waits"])
    control.end(machine.state, other.name)
    assert tenant.answer() == [0, *[7] * 8]


def test_a_killed_program_leaves_nothing(machine: Machine, grant: Grant) -> None:
    tenant, _ = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    tenant.kill()
    wait_until(lambda: machine.grant_status(grant)["processes"] == [])
    wait_until(lambda: mover(machine)["copies"] == 0)
    again, pointer = begin(machine, grant)
    assert has_its_bytes(again, pointer)


def test_a_parked_program_that_is_moved_by_hand_stays_away(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    control.move(machine.state, grant.name, Residence.HOST)
    assert step(machine, grant) is ParkingStep.NONE
    assert seen(machine, grant).state is GrantState.PARKED
    tenant.tell("read", pointer, 8)
    wait_until(lambda: tenant.has_answered() or waits_for_memory(tenant.pid))
    assert not tenant.has_answered()
    control.set_state(machine.state, grant.name, GrantState.SWITCHING)
    control.move(machine.state, grant.name, Residence.GPU)
    assert tenant.answer() == [0, *[7] * 8]
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)
    wait_until(lambda: is_parked(machine, grant))


def test_a_parked_grant_can_be_resized(machine: Machine, grant: Grant) -> None:
    tenant, pointer = begin(machine, grant)
    wait_until(lambda: is_parked(machine, grant))
    uuid = machine.uuids()[0]
    control.resize(machine.state, grant.name, [SliceChange(uuid, memory_bytes=4 * GIB)])
    assert is_parked(machine, grant)
    machine.made(control.make(machine.state, "two", [Slice(uuid, LARGE)]))
    assert has_its_bytes(tenant, pointer)
    assert seen(machine, grant).slices[0].memory_bytes == 4 * GIB
