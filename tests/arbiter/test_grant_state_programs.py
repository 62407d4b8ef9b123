"""Programs in grants that are not active: their gates, joining, dying and measuring."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU, contend
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Tenant

    Tenants = Callable[[Path], Tenant]

BOTH = f"slice={GPU},memory={40 * GIB},compute=60 slice={OTHER_GPU},memory={40 * GIB},compute=60"
NOT_ACTIVE = ["switching", "parked"]


def stays_open(arbiter: Arbiter, *tenants: Tenant, index: int = 0) -> bool:
    """Whether the gates stay open over many looks of the arbiter."""
    for tenant in tenants:
        for _ in range(20):
            tenant.tell("ring")
            arbiter.status()
            if not tenant.credit(index).is_open:
                return False
    return True


class TestGates:
    @pytest.mark.parametrize("how", NOT_ACTIVE)
    def test_open_at_once_and_stay_open_without_cost_to_others(
        self, arbiter: Arbiter, tenants: Tenants, how: str
    ) -> None:
        pair = contend(arbiter, tenants)
        arbiter.set_state(how)
        assert pair[0].credit().is_open
        wait_until(lambda: not arbiter.is_contended())
        pair[1].opened_at()
        assert stays_open(arbiter, *pair)
        assert arbiter.compute("a")["state"] == "idle"
        assert arbiter.compute("b")["state"] == "alone"
        arbiter.set_state("active")
        wait_until(arbiter.is_contended)
        for tenant in pair:
            wait_until(lambda: tenant.credit().credit < wire.OPEN)  # noqa: B023 - called here
            done = tenant.done()
            wait_until(lambda: tenant.done() > done + 20)  # noqa: B023 - called here

    def test_open_while_others_take_turns(self, arbiter: Arbiter, tenants: Tenants) -> None:
        pair = contend(arbiter, tenants)
        third = tenants(arbiter.make("c", GIB))
        third.run()
        wait_until(lambda: third.credit().credit < wire.OPEN)
        for _ in range(3):
            arbiter.set_state("switching", "c")
            assert third.credit().is_open
            assert stays_open(arbiter, third)
            assert arbiter.is_contended()
            arbiter.set_state("active", "c")
            for one in (third, *pair):
                wait_until(lambda: one.credit().credit < wire.OPEN)  # noqa: B023 - called here
                done = one.done()
                wait_until(lambda: one.done() > done + 20)  # noqa: B023 - called here
        assert arbiter.compute("c")["fallbacks"] == 0

    @pytest.mark.parametrize("how", NOT_ACTIVE)
    def test_of_a_hard_slice_alone(self, arbiter: Arbiter, tenants: Tenants, how: str) -> None:
        words = f"slice={GPU},memory={GIB},compute=1,policy=hard"
        tenant = tenants(Path(arbiter.ask(f"make name=a {words}")["directory"]))
        tenant.run()
        wait_until(lambda: tenant.credit().credit < wire.OPEN)
        arbiter.set_state(how)
        assert stays_open(arbiter, tenant)
        done = tenant.done()
        wait_until(lambda: tenant.done() > done + 200)
        arbiter.ask(f"resize name=a slice={GPU},compute=2,priority=latency")
        assert stays_open(arbiter, tenant)
        arbiter.set_state("active")
        wait_until(lambda: tenant.credit().credit < wire.OPEN)
        assert arbiter.compute()["weight_percent"] == 2

    def test_of_a_grant_on_two_gpus(self, arbiter: Arbiter, tenants: Tenants) -> None:
        tenant = tenants(Path(arbiter.ask(f"make name=a {BOTH}")["directory"]))
        tenant.run(0)
        tenant.tell("run", 1)
        neighbours = [
            tenants(arbiter.make(name, GIB, gpu)) for name, gpu in (("b", GPU), ("c", OTHER_GPU))
        ]
        for neighbour in neighbours:
            neighbour.run()
        wait_until(lambda: arbiter.is_contended(0) and arbiter.is_contended(1))
        arbiter.set_state("switching")
        wait_until(lambda: not arbiter.is_contended(0) and not arbiter.is_contended(1))
        assert stays_open(arbiter, tenant, index=0)
        assert stays_open(arbiter, tenant, index=1)
        arbiter.set_state("active")
        wait_until(lambda: arbiter.is_contended(0) and arbiter.is_contended(1))
        for index in (0, 1):
            done = tenant.done(index)
            wait_until(lambda: tenant.done(index) > done + 20)  # noqa: B023 - called here

    @pytest.mark.parametrize("how", NOT_ACTIVE)
    def test_stay_open_across_restarts_of_arbiter_and_parent(
        self, arbiter: Arbiter, tenants: Tenants, how: str
    ) -> None:
        pair = contend(arbiter, tenants)
        arbiter.set_state(how)
        for _ in range(3):
            serving = arbiter.serving_pid()
            os.kill(serving, signal.SIGKILL)
            wait_until(lambda: arbiter.answers() and arbiter.serving_pid() != serving)  # noqa: B023
            assert arbiter.grant_state() == how
            assert stays_open(arbiter, pair[0])
            assert not arbiter.is_contended()
        assert arbiter.granted()[0] == (2 if how == "switching" else 1) * 64 * MIB
        arbiter.set_state("active")
        wait_until(arbiter.is_contended)
        wait_until(lambda: pair[0].credit().credit < wire.OPEN)
        arbiter.set_state(how)
        arbiter.kill()
        arbiter.start()
        assert arbiter.grant_state() == how
        assert f"grant a recovered: 1 processes, owner alive, {how}" in arbiter.log.read_text()


class TestProcesses:
    @pytest.mark.parametrize("how", ["switching", "parked"])
    def test_a_process_can_join_only_an_active_grant(
        self, arbiter: Arbiter, tenants: Tenants, how: str
    ) -> None:
        tenant = tenants(arbiter.make("a", GIB))
        arbiter.set_state(how)
        log = arbiter.log.read_text()
        for _ in range(3):
            kind, why, *text = tenant.tell("hello").split()
            assert (int(kind), int(why)) == (wire.REFUSED, wire.PARKED), text
        assert arbiter.states() == []
        assert arbiter.log.read_text() == log
        arbiter.set_state("active")
        assert tenant.hello() == 0

    def test_a_repeated_hello_in_a_parked_grant_keeps_the_slot(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make("a", GIB))
        tenant.hello()
        tenant.tell("hold", 0, 512 * MIB)
        arbiter.set_state("parked")
        tenant.exec()  # another program, as a frozen one can become
        kind, why, *_ = tenant.tell("hello").split()
        assert (int(kind), int(why)) == (wire.REFUSED, wire.PARKED)
        arbiter.set_state("active")
        assert tenant.hello() == 0
        assert arbiter.counted() == 0

    def test_an_ended_and_parked_grant_refuses_as_ended(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        answer = arbiter.ask(f"make name=a kept=1 slice={GPU},memory={GIB}")
        first, late = tenants(Path(answer["directory"])), tenants(Path(answer["directory"]))
        first.hello()
        arbiter.set_state("parked")
        assert arbiter.ask("end name=a")["ended"] is False
        kind, why, *_ = late.tell("hello").split()
        assert (int(kind), int(why)) == (wire.REFUSED, wire.ENDED)
        arbiter.set_state("switching")  # as it can be resized
        arbiter.set_state("parked")
        first.kill()
        wait_until(lambda: arbiter.grant("a") is None)

    def test_a_process_that_dies_in_a_parked_grant_is_cleaned_up(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        arbiter.set_state("parked")
        tenant.kill()
        wait_until(lambda: arbiter.states() == [])
        assert (arbiter.counted(), arbiter.grant_state()) == (0, "parked")

    @pytest.mark.parametrize("how", NOT_ACTIVE)
    def test_driver_bytes_stay_while_a_grant_is_not_active(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, how: str
    ) -> None:
        tenant, other = tenants(arbiter.make("a", 2 * GIB)), tenants(arbiter.make("b", 2 * GIB))
        for one in (tenant, other):
            one.hello()
            one.tell("hold", 0, GIB)
            machine.list_process(one.pid, GIB + 500 * MIB)
            assert one.tell("measure") == "measured"

        def driver(name: str) -> list[int]:
            grant = arbiter.grant(name)
            assert grant
            both = (grant["slices"][0], grant["processes"][0]["slices"][0])
            return [one["driver_bytes"] for one in both]

        arbiter.set_state(how)
        machine.drop_process(tenant.pid)
        machine.list_process(other.pid, GIB + 400 * MIB)
        # Both are measured by the same timer: when the other's fall is seen, this one's would be.
        wait_until(lambda: driver("b") == [400 * MIB] * 2)
        for _ in range(3):
            assert tenant.tell("measure") == "measured"
        assert driver("a") == [500 * MIB] * 2
        arbiter.kill()
        arbiter.start()
        assert tenant.tell("measure") == "measured"
        assert driver("a") == [500 * MIB] * 2
        machine.list_process(tenant.pid, GIB + 300 * MIB)
        arbiter.set_state("active")
        wait_until(lambda: driver("a") == [300 * MIB] * 2)

    def test_ties_are_reported_until_the_slot_is_reused(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()

        def ties() -> list[list[str]]:
            grant = arbiter.grant("a")
            assert grant
            return [one["ties"] for one in grant["processes"]]

        first, second = tenants(directory), tenants(directory)
        first.hello()
        second.hello()
        assert ties() == [[], []]
        first.tell("tie", 1 << 40 | 7)
        first.tell("hold", 0, GIB)
        second.tell("tie", 2)
        assert ties() == [["managed", "ipc", "shared"], ["ipc"]]
        os.kill(serving := arbiter.serving_pid(), signal.SIGKILL)
        wait_until(lambda: arbiter.answers() and arbiter.serving_pid() != serving)
        assert ties() == [["managed", "ipc", "shared"], ["ipc"]]
        first.exec()
        first.hello()
        assert ties() == [[], ["ipc"]]
        second.kill()
        wait_until(lambda: len(ties()) == 1)
        assert tenants(directory).hello() == 1
        assert ties() == [[], []]
