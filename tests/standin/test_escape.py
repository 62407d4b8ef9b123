"""A program that brings its own driver library: detected, charged, and ended by policy."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from aliquot.slices import control
from cgroups import make_cgroup
from standin.machine import CONTEXT, GIB, MIB, OUT_OF_MEMORY
from support import Stopwatch, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgroups import Cgroup
    from standin.conftest import MakeMachine
    from standin.machine import Grant, Machine

LIMIT = 4 * GIB


@pytest.fixture
def cgroup(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with make_cgroup(f"aliquot-{os.getpid()}-{id(request)}") as made:
        if not made:
            pytest.skip("needs root and a cgroup hierarchy that can be written")
        yield made


def grant_of(machine: Machine, cgroup: Cgroup) -> Grant:
    grant = machine.grant(LIMIT)
    control.set_cgroup(machine.state, grant.name, cgroup.path)
    return grant


def test_what_it_takes_is_missing_for_the_programs_of_its_grant(
    machine: Machine, cgroup: Cgroup
) -> None:
    grant = grant_of(machine, cgroup)
    honest = machine.tenant(grant)
    cgroup.enter(honest.pid)
    honest.start().ok("alloc", GIB)
    hostile = machine.stranger()
    cgroup.enter(hostile.pid)
    hostile.start()
    hostile.ok("alloc", 2 * GIB)
    wait_until(lambda: machine.grant_status(grant)["unjoined"])
    (found,) = machine.grant_status(grant)["unjoined"]
    assert (found["pid"], found["bytes"]) == (hostile.pid, CONTEXT + 2 * GIB)
    assert honest("alloc", GIB)[0] == OUT_OF_MEMORY
    assert honest("info")[1] < GIB
    hostile.kill()
    wait_until(lambda: not machine.grant_status(grant)["unjoined"])
    wait_until(lambda: honest("alloc", GIB)[0] == 0)


@pytest.mark.shares
def test_it_is_ended_and_no_honest_program_is(make_machine: MakeMachine, cgroup: Cgroup) -> None:
    machine = make_machine(options=("--unjoined", "end"))
    grant = grant_of(machine, cgroup)
    honest = machine.tenant(grant)
    cgroup.enter(honest.pid)
    honest.start().ok("alloc", MIB)
    hostile = machine.stranger()
    cgroup.enter(hostile.pid)
    hostile.start()
    with Stopwatch() as took:
        assert hostile.process.wait(60) == -9
    assert took.seconds < took.limit(1.5)
    for _ in range(4):
        honest.does("free", honest.ok("alloc", MIB))
        time.sleep(0.3)
    assert [one["pid"] for one in machine.grant_status(grant)["processes"]] == [honest.pid]
