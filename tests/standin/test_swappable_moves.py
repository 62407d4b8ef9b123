"""Memory that leaves the GPU and comes back, at any moment: the program sees no difference."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.devices import CUDA
from aliquot.model import GrantState, Residence
from aliquot.slices import control
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, Grant, Machine
from standin.test_same_results import CALLS, Call, Runner, compare
from support import wait_until

EXAMPLES = 30
SIZES = [1, 512, 1000, MIB, MIB + 1, 3 * MIB, 20 * MIB, 64 * MIB]
BUFFER_ID, BLOCK_ID = 7, 20  # attributes of pointers


@pytest.fixture
def machine(make_machine: MakeMachine, native_dir: Any) -> Machine:
    options = ("--cuda", str(native_dir / "sim" / CUDA), "--host-memory", str(8 * GIB))
    return make_machine("h100:1", options=options)


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(60 * GIB, swap=True)


def processes(machine: Machine, grant: Grant) -> list[dict[str, Any]]:
    return list(machine.grant_status(grant)["processes"])


def move(machine: Machine, grant: Grant, place: Residence) -> list[dict[str, Any]]:
    """Wait until every process has dealt with it; returns what they say then."""
    control.move(machine.state, grant.name, place)
    wait_until(lambda: all(one["settled"] for one in processes(machine, grant)), 60)
    return processes(machine, grant)


def take_away(machine: Machine, grant: Grant) -> list[dict[str, Any]]:
    control.set_state(machine.state, grant.name, GrantState.SWITCHING)
    return move(machine, grant, Residence.HOST)


def bring_back(machine: Machine, grant: Grant) -> None:
    move(machine, grant, Residence.GPU)
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)


def test_every_byte_comes_back_at_its_address(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    pointers = [tenant.ok("alloc", size) for size in SIZES]
    for value, (pointer, size) in enumerate(zip(pointers, SIZES, strict=True), 1):
        tenant.does("fill", pointer, value, size)
    tenant.does("synchronize")
    asked = [(pointer, which) for pointer in pointers for which in (BUFFER_ID, BLOCK_ID)]
    before = [tenant("attribute_of", *one) for one in asked]
    for _ in range(3):
        (process,) = take_away(machine, grant)
        assert process["move_failed"] is None
        assert process["away_bytes"] >= sum(size for size in SIZES if size > MIB)
        bring_back(machine, grant)
        for value, (pointer, size) in enumerate(zip(pointers, SIZES, strict=True), 1):
            ends = min(size, 8)
            for place in (pointer, pointer + size - ends):
                assert tenant("read", place, ends) == [0, *[value] * ends]
        assert [tenant("attribute_of", *one) for one in asked] == before
    for pointer in pointers:
        tenant.does("free", pointer)


@contextmanager
def always_moving(machine: Machine, grant: Grant) -> Iterator[list[int]]:
    """Move the memory of whatever runs in the grant, again and again; how often it was away."""
    stop, away, errors = threading.Event(), [0], []

    def work() -> None:
        try:
            while not stop.is_set():
                for process in take_away(machine, grant):
                    away[0] += bool(process["away_bytes"])
                bring_back(machine, grant)
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield away
    finally:
        stop.set()
        thread.join(120)
    assert not errors, errors


def test_a_program_gets_the_same_answers_while_its_memory_moves(
    make_machine: MakeMachine, machine: Machine, grant: Grant
) -> None:
    alone = make_machine("h100:1")
    pair = Runner(alone.bare()), Runner(machine.inside(grant))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.nested_given],
    )
    @given(
        calls=st.lists(
            CALLS.filter(lambda call: call[0] != "alloc_managed"), min_size=20, max_size=60
        )
    )
    def same_answers(calls: list[Call]) -> None:
        start: list[Call] = [
            ["init"],
            ["retain"],
            ["alloc", 3 * MIB],
            ["touch", 0, 7],
            ["alloc", 700],
        ]
        compare(pair, [*start, *calls])

    with always_moving(machine, grant) as away:
        same_answers()
    assert away[0] > 0
    for runner in pair:
        runner.close()
