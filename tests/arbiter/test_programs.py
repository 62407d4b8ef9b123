"""One process and its programs: exec, a second copy of the driver library, one without CUDA."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from arbiter import wire
from arbiter.rig import GPU
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Owner, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[[Path, str], Owner]


class TestExec:
    def test_after_exec_the_slot_is_reset(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        tenant, other = tenants(directory), tenants(directory)
        assert (tenant.hello(), other.hello()) == (0, 1)
        tenant.tell("hold", 0, 3 * GIB)
        other.tell("hold", 0, GIB)
        tenant.exec()
        assert tenant.hello() == 0
        assert arbiter.counted() == GIB
        assert arbiter.states() == ["live", "live"]

    def test_memory_kept_by_a_child_counts_as_driver_bytes(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, 3 * GIB)
        machine.list_process(tenant.pid, 3 * GIB + 500 * MIB)
        assert tenant.tell("measure") == "measured"
        tenant.exec()
        tenant.hello()
        assert arbiter.counted() == 0
        grant = arbiter.grant("a")
        assert grant
        assert grant["slices"][0]["driver_bytes"] == 3 * GIB + 500 * MIB

    def test_exec_can_move_a_process_to_another_grant(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        first, second = arbiter.make("a"), arbiter.make("b")
        tenant = tenants(first)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        tenant.exec(second)
        tenant.hello()
        assert (arbiter.states("a"), arbiter.states("b")) == ([], ["live"])
        assert arbiter.counted() == 0


class TestSecondHello:
    @staticmethod
    def check_refused(arbiter: Arbiter, directory: Path) -> None:
        def shown() -> dict[str, Any]:
            grant = arbiter.grant("a")
            assert grant
            for one in grant["slices"]:
                del one["compute"]  # time passes
            return grant

        before = shown()
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value, answer.fds) == (wire.REFUSED, wire.TWICE, ())
        assert answer.text == (
            f"process {os.getpid()} has already joined: one program has two copies of the driver"
            " library"
        )
        assert shown() == before

    def test_a_second_hello_with_memory_is_refused(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.hold(0, GIB)
        self.check_refused(arbiter, directory)
        assert arbiter.counted() == GIB
        holding.hold(0, 0)
        assert wire.Holding.of(wire.exchange(directory, wire.hello_message())).slot == 0

    @pytest.mark.parametrize("nvml", ["lists it", "cannot tell"])
    def test_a_second_hello_of_a_gpu_client_is_refused(
        self, arbiter: Arbiter, machine: Machine, nvml: str
    ) -> None:
        directory = arbiter.make()
        wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        if nvml == "cannot tell":
            machine.fail_lists()
        else:
            machine.list_process(os.getpid(), "unknown")
        self.check_refused(arbiter, directory)

    def test_a_second_hello_without_memory_gets_the_same_slot(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant, other = tenants(directory), tenants(directory)
        assert (tenant.hello(), other.hello()) == (0, 1)
        other.tell("hold", 0, GIB)
        assert tenant.hello() == 0
        assert arbiter.states() == ["live", "live"]
        assert arbiter.counted() == GIB

    def test_a_second_hello_at_another_grant_is_refused(self, arbiter: Arbiter) -> None:
        first, second = arbiter.make("a"), arbiter.make("b")
        holding = wire.Holding.of(wire.exchange(first, wire.hello_message()))
        holding.hold(0, GIB)
        self.check_refused(arbiter, second)
        assert (arbiter.states("a"), arbiter.states("b")) == (["live"], [])
        holding.hold(0, 0)
        wire.Holding.of(wire.exchange(second, wire.hello_message()))
        assert (arbiter.states("a"), arbiter.states("b")) == ([], ["live"])

    def test_a_restarted_arbiter_recognizes_the_program(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, 3 * GIB)
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.hold(0, GIB)
        arbiter.kill()
        arbiter.start()
        self.check_refused(arbiter, directory)
        tenant.exec()
        assert tenant.hello() == 0
        assert arbiter.counted() == GIB

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start it as another user")
    def test_a_program_whose_image_is_unreadable(
        self, stopped_arbiter: Arbiter, short_tmp: Path, fake_nvml: Path
    ) -> None:
        stopped_arbiter.program = Path(shutil.copy(stopped_arbiter.program, short_tmp))
        stopped_arbiter.machine.library = Path(shutil.copy(fake_nvml, short_tmp))
        os.chown(short_tmp, 65534, 65534)
        stopped_arbiter.start(user=65534)
        directory = stopped_arbiter.make()
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.hold(0, GIB)
        self.check_refused(stopped_arbiter, directory)
        holding.hold(0, 0)
        assert wire.Holding.of(wire.exchange(directory, wire.hello_message())).slot == 0


class TestAnotherProgram:
    """A process that execs a program which never calls CUDA."""

    def test_memory_of_the_old_program_is_given_back(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        watcher = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        tenant.tell("hold", 0, 3 * GIB)
        machine.list_process(tenant.pid, 3 * GIB + 500 * MIB)
        assert tenant.tell("measure") == "measured"
        machine.drop_process(tenant.pid)
        tenant.become_cat()
        wait_until(lambda: arbiter.states() == ["live"])
        assert arbiter.counted() == 0
        assert watcher.limits.slice().driver == 0
        assert watcher.limits.process(0).state == 0
        assert "now runs a program that uses no GPU" in arbiter.log.read_text()
        assert tenant.tell("still here") == "still here"

    @pytest.mark.parametrize("why", ["a child of the old one is on the GPU", "it did not change"])
    def test_a_process_stays_while_nvml_lists_it(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, why: str
    ) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        watcher = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        if why == "a child of the old one is on the GPU":
            machine.list_process(tenant.pid, GIB)
            tenant.become_cat()
        for size in (MIB, 2 * MIB, 3 * MIB):  # each seen: a measurement of all is over
            machine.list_process(os.getpid(), size)
            wait_until(lambda: watcher.limits.slice().driver == size)  # noqa: B023 - called here
        assert arbiter.states() == ["live", "live"]
        assert arbiter.counted() == GIB

    def test_a_replaced_process_does_not_keep_its_grant(
        self, arbiter: Arbiter, tenants: Tenants, owners: Owners
    ) -> None:
        owner = owners(arbiter.state, f"make name=a slice={GPU},memory={GIB}")
        tenant = tenants(owner.directory)
        tenant.hello()
        tenant.tell("hold", 0, MIB)
        owner.kill()
        tenant.become_cat()
        wait_until(lambda: arbiter.grant("a") is None)
