"""Memory that the driver takes by itself, measured with NVML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from support import GIB, MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Tenant

    Tenants = Callable[[Path], Tenant]


class TestMeasure:
    @pytest.fixture
    def holding(self, arbiter: Arbiter) -> wire.Holding:
        """This process in the grant `a`."""
        return wire.Holding.of(wire.exchange(arbiter.make(), wire.hello_message()))

    @staticmethod
    def measure(arbiter: Arbiter) -> None:
        answer = wire.exchange(arbiter.state / "grants" / "a", wire.measure_message())
        assert answer.kind == wire.MEASURED, answer

    def test_driver_bytes_are_nvml_bytes_minus_ledger_bytes(
        self, arbiter: Arbiter, machine: Machine, holding: wire.Holding
    ) -> None:
        holding.hold(0, 2 * GIB)
        holding.manage(0, GIB)
        machine.list_process(os.getpid(), GIB + 518 * MIB)
        self.measure(arbiter)
        assert holding.limits.slice().driver == 518 * MIB
        assert holding.limits.process(holding.slot).driver[0] == 518 * MIB
        grant = arbiter.grant("a")
        assert grant
        assert grant["slices"][0]["driver_bytes"] == 518 * MIB
        assert grant["processes"][0]["slices"] == [
            {"gpu": GPU, "counted_bytes": 2 * GIB, "driver_bytes": 518 * MIB}
        ]

    def test_a_fall_counts_when_seen_twice(
        self, arbiter: Arbiter, machine: Machine, holding: wire.Holding
    ) -> None:
        def measured(size: int) -> int:
            machine.list_process(os.getpid(), size)
            self.measure(arbiter)
            return holding.limits.slice().driver

        assert measured(500 * MIB) == 500 * MIB
        assert measured(600 * MIB) == 600 * MIB
        holding.hold(0, GIB)  # reserved, and not yet allocated
        machine.list_process(os.getpid(), GIB + 600 * MIB)
        self.measure(arbiter)
        assert holding.limits.slice().driver == 600 * MIB
        machine.list_process(os.getpid(), GIB + 100 * MIB)
        wait_until(lambda: holding.limits.slice().driver == 100 * MIB)

    def test_all_processes_are_measured_periodically(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, holding: wire.Holding
    ) -> None:
        tenant = tenants(arbiter.state / "grants" / "a")
        tenant.hello()
        machine.list_process(tenant.pid, 100 * MIB)
        machine.list_process(os.getpid(), 50 * MIB, kind="drawing")
        wait_until(lambda: holding.limits.slice().driver == 150 * MIB)
        tenant.kill()
        machine.drop_process(tenant.pid)
        wait_until(lambda: holding.limits.slice().driver == 50 * MIB)

    @pytest.mark.parametrize("figure", ["unknown", 0])
    def test_an_unknown_nvml_figure_is_ignored(
        self, arbiter: Arbiter, machine: Machine, holding: wire.Holding, figure: int | str
    ) -> None:
        machine.list_process(os.getpid(), figure)
        self.measure(arbiter)
        assert holding.limits.slice() == wire.SliceLimits(8 * GIB, 32 * MIB, 0, 0)

    def test_learns_the_size_of_a_context(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, holding: wire.Holding
    ) -> None:
        machine.list_process(os.getpid(), 518 * MIB)
        self.measure(arbiter)
        assert holding.limits.slice().context == 518 * MIB
        later = tenants(arbiter.make("b", GIB))
        later.hello()
        later.tell("hold", 0, 518 * MIB)
        machine.list_process(later.pid, 510 * MIB)
        later.tell("measure")
        assert holding.limits.slice().context == 510 * MIB
        loaded = tenants(arbiter.make("c", GIB))
        loaded.hello()
        loaded.tell("hold", 0, 100 * MIB)
        machine.list_process(loaded.pid, 400 * MIB)
        loaded.tell("measure")
        assert holding.limits.slice().context == 510 * MIB

    @pytest.mark.usefixtures("holding")
    def test_processes_outside_all_grants_are_listed(
        self, arbiter: Arbiter, machine: Machine
    ) -> None:
        init_name = Path("/proc/1/comm").read_text().strip()
        machine.list_process(os.getpid(), GIB)
        machine.list_process(1, 3 * MIB)
        machine.list_process(os.getpid(), MIB, OTHER_GPU)
        first, second = arbiter.status()["gpus"]
        assert first["used_bytes"] == GIB + 3 * MIB
        assert first["strangers"] == [{"pid": 1, "name": init_name, "bytes": 3 * MIB}]
        assert [one["pid"] for one in second["strangers"]] == [os.getpid()]

    def test_many_clients_are_all_listed(self, arbiter: Arbiter, machine: Machine) -> None:
        for pid in range(100_000_001, 100_000_201):
            machine.list_process(pid, 4096)
        (first, _) = arbiter.status()["gpus"]
        assert len(first["strangers"]) == 200
        assert first["strangers"][0] == {"pid": 100_000_001, "name": "?", "bytes": 4096}
