"""A program that joins a parked grant waits until the grant is active."""

from __future__ import annotations

import os
import signal
import time

import pytest

from aliquot.model import GrantState, Slice
from aliquot.slices import control
from standin.machine import GIB, MIB, SYSTEM_NOT_READY, Grant, Machine
from support import wait_until

ASKED_TIMES = 3
ASKS_EVERY = 0.1


@pytest.fixture
def grant(machine: Machine) -> Grant:
    """A persistent grant that is parked."""
    slices = [Slice(machine.uuids()[0], 2 * GIB)]
    grant = machine.made(control.make(machine.state, "one", slices, kept=True))
    control.set_state(machine.state, grant.name, GrantState.PARKED)
    return grant


def wait_while_it_asks() -> None:
    """Wait until the program has been told several times that the grant is parked."""
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + ASKED_TIMES * ASKS_EVERY)


@pytest.mark.parametrize("how", [GrantState.SWITCHING, GrantState.PARKED])
def test_a_program_that_joins_a_parked_grant_continues_when_it_is_active(
    machine: Machine, grant: Grant, how: GrantState
) -> None:
    control.set_state(machine.state, grant.name, how)
    tenant = machine.tenant(grant)
    tenant.tell("start")
    wait_while_it_asks()
    assert not tenant.has_answered()
    assert machine.grant_status(grant)["processes"] == []
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)
    assert tenant.answer() == [0]
    tenant.ok("alloc", MIB)
    assert tenant.end() == ""


def test_all_threads_that_wait_for_a_parked_grant_continue(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant)
    tenant.tell("begin_in_threads", 8)
    wait_while_it_asks()
    assert not tenant.has_answered()
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)
    assert tenant.answer() == [0]
    assert len(machine.grant_status(grant)["processes"]) == 1


def test_a_program_that_waits_survives_an_arbiter_restart(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant)
    tenant.tell("start")
    serving = machine.status()["serving_pid"]
    os.kill(serving, signal.SIGKILL)
    wait_until(lambda: control.answers(machine.state))
    wait_while_it_asks()
    assert not tenant.has_answered()
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)
    assert tenant.answer() == [0]


def test_a_program_that_waits_learns_that_the_grant_has_ended(
    machine: Machine, grant: Grant
) -> None:
    tenant = machine.tenant(grant)
    tenant.tell("init")
    wait_while_it_asks()
    assert control.end(machine.state, grant.name)
    assert tenant.answer() == [SYSTEM_NOT_READY]
    assert "has ended" in tenant.end()


def test_a_program_that_has_joined_continues_in_a_parked_grant(
    machine: Machine, grant: Grant
) -> None:
    """Freezing it is the driver's part, not tested here."""
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)
    tenant = machine.tenant(grant).start()
    control.set_state(machine.state, grant.name, GrantState.PARKED)
    assert grant.limits().slices[0].grant_state == 2
    tenant.ok("alloc", MIB)
    control.set_state(machine.state, grant.name, GrantState.ACTIVE)
    tenant.ok("alloc", MIB)
    assert grant.counted() > 0
