"""Memory that the driver takes by itself, measured with NVML."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU
from support import GIB, MIB, Stopwatch, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arbiter.rig import Arbiter, Machine, Tenant

    Tenants = Callable[[Path], Tenant]


class TestMeasure:
    @pytest.fixture
    def holding(self, arbiter: Arbiter) -> wire.Holding:
        """This process in the grant `a`."""
        return wire.Holding.of(wire.exchange(arbiter.make(), wire.hello_message()))

    @staticmethod
    def measure(arbiter: Arbiter, for_context: int = 0) -> None:
        message = wire.measure_message(for_context)
        answer = wire.exchange(arbiter.state / "grants" / "a", message)
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

    def test_a_rise_counts_when_two_answers_show_it(
        self, machine: Machine, holding: wire.Holding
    ) -> None:
        """One alone is memory that the program took and gave back while NVML looked."""
        machine.list_process(os.getpid(), 500 * MIB)
        wait_until(lambda: holding.limits.slice().driver == 500 * MIB)
        machine.list_more_once(100)
        calls, seen = machine.count_lists(), set()
        while machine.count_lists() < calls + 8:  # more than two measurements
            seen.add(holding.limits.slice().driver)
        assert seen == {500 * MIB}

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

    def test_the_size_of_a_context_is_kept_for_that_model_and_driver(
        self, arbiter: Arbiter, machine: Machine
    ) -> None:
        """The first program after a restart need not be the one that measures it."""

        def learned(gpu: str, size: int) -> list[int]:
            joined = wire.exchange(arbiter.make(gpu=gpu), wire.hello_message())
            wire.Holding.of(joined).hold(0, 8 * GIB)
            machine.list_process(os.getpid(), size, gpu)
            self.measure(arbiter, 8 * GIB)
            machine.drop_process(os.getpid(), gpu)
            return known()

        def known() -> list[int]:
            gpus = arbiter.status()["gpus"]
            assert [one["context_is_measured"] for one in gpus] == [
                one["context_bytes"] > 0 for one in gpus
            ]
            return [one["context_bytes"] for one in gpus]

        def restart() -> list[int]:
            """The sizes that an arbiter knows which finds no grant."""
            arbiter.end()
            for path in (arbiter.state / "grants" / "a", arbiter.state / "private" / "a"):
                shutil.rmtree(path, ignore_errors=True)
            arbiter.start()
            return known()

        assert learned(GPU, 518 * MIB) == [518 * MIB, 0]
        assert restart() == [518 * MIB, 0]
        assert learned(OTHER_GPU, 402 * MIB) == [518 * MIB, 402 * MIB]
        assert restart() == [518 * MIB, 402 * MIB]
        machine.set_driver("2.0")
        assert restart() == [0, 0]
        assert learned(GPU, 530 * MIB) == [530 * MIB, 0]
        machine.set_driver("1.0")
        assert restart() == [518 * MIB, 402 * MIB]
        (arbiter.state / "contexts").write_text("rubbish\n-1 1.0 Fake\n" + "9" * 5000)
        assert restart() == [0, 0]

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

    @pytest.mark.parametrize("size", [16, 24, 32])
    @pytest.mark.parametrize("count", [1, 47, 64, 200])
    def test_entries_of_any_size_are_read_right(
        self, arbiter: Arbiter, machine: Machine, size: int, count: int
    ) -> None:
        """R535.43 to R535.86 write 32 bytes for each process, which must not pass the buffer."""
        machine.set_entry_size(size)
        for number in range(count):
            machine.list_process(100_000_001 + number, 4096 * (number + 1))
        (first, _) = arbiter.status()["gpus"]
        assert [(one["pid"], one["bytes"]) for one in first["strangers"]] == [
            (100_000_001 + number, 4096 * (number + 1)) for number in range(count)
        ]

    @pytest.mark.parametrize("figure", ["unknown", 0, None])
    def test_a_context_that_nvml_knows_nothing_of_gets_an_estimate(
        self, arbiter: Arbiter, machine: Machine, holding: wire.Holding, figure: int | str | None
    ) -> None:
        """Under MPS, WSL and vGPU; the next context then reserves that, not the whole slice."""
        holding.hold(0, 8 * GIB)
        if figure is not None:
            machine.list_process(os.getpid(), figure)
        self.measure(arbiter, 8 * GIB)
        assert holding.limits.slice().context == 512 * MIB
        (gpu, other) = arbiter.status()["gpus"]
        assert (gpu["context_bytes"], gpu["context_is_measured"]) == (512 * MIB, False)
        assert (other["context_bytes"], other["context_is_measured"]) == (0, False)
        machine.list_process(os.getpid(), 300 * MIB)
        holding.hold(0, 512 * MIB)
        self.measure(arbiter)
        assert holding.limits.slice().context == 300 * MIB

    def test_an_estimate_is_at_most_a_quarter_of_the_slice(
        self, arbiter: Arbiter, holding: wire.Holding, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make("small", 256 * MIB))
        tenant.hello()
        tenant.tell("hold", 0, 200 * MIB)  # as a stand-in reserves before it makes a context
        assert tenant.tell("measure", 200 * MIB) == "measured"
        assert holding.limits.slice().context == 512 * MIB
        directory = arbiter.make("later", 256 * MIB)
        later = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        assert later.limits.slice().context == 64 * MIB


class TestLostGpu:
    """A GPU that falls off the bus, and a driver that is replaced."""

    def answers(self, arbiter: Arbiter) -> list[bool]:
        return [gpu["answers"] for gpu in arbiter.status()["gpus"]]

    def test_a_lost_gpu_that_recovers_is_measured_again(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        assert self.answers(arbiter) == [True, True]
        machine.lose_gpu(GPU)
        wait_until(lambda: self.answers(arbiter) == [False, True])
        assert tenant.tell("measure") == "measured"
        machine.lose_gpu(GPU, lost=False)
        machine.list_process(tenant.pid, GIB)
        wait_until(lambda: self.answers(arbiter) == [True, True])
        assert tenant.tell("measure") == "measured"
        assert arbiter.status()["grants"][0]["slices"][0]["driver_bytes"] == GIB

    def test_memory_of_the_dead_on_a_lost_gpu_is_given_back(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        machine.lose_gpu(GPU)
        tenant.kill()
        wait_until(lambda: arbiter.states() == [])
        assert arbiter.counted() == 0

    def test_status_has_the_version_of_the_driver_that_was_loaded(
        self, arbiter: Arbiter, machine: Machine
    ) -> None:
        before = arbiter.status()["driver_version"]
        machine.set_driver("2.0")
        assert arbiter.status()["driver_version"] == before != "2.0"


class TestHungNvml:
    """NVML that does not answer stops nothing else."""

    @pytest.fixture
    def hung(self, arbiter: Arbiter, machine: Machine) -> Iterator[Arbiter]:
        arbiter.make()
        machine.hang()
        yield arbiter
        machine.hang(hung=False)

    def test_processes_join_and_die_and_grants_are_resized(
        self, hung: Arbiter, tenants: Tenants
    ) -> None:
        directory = hung.state / "grants" / "a"
        first = tenants(directory)
        first.hello()
        assert first.tell("measure") == "measured"
        assert tenants(directory).hello() == 1
        first.kill()
        wait_until(lambda: hung.states() == ["ending", "live"])
        answer = hung.ask(f"resize name=a slice={GPU},memory={4 * GIB}")
        assert answer["slices"][0]["reached"]
        hung.make("b")

    def test_memory_of_the_dead_stays_counted_until_nvml_answers(
        self, hung: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(hung.state / "grants" / "a")
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        tenant.kill()
        wait_until(lambda: hung.states() == ["ending"])
        assert hung.counted() == GIB
        machine.hang(hung=False)
        wait_until(lambda: hung.states() == [])
        assert hung.counted() == 0

    def test_status_says_for_how_long(self, hung: Arbiter, machine: Machine) -> None:
        wait_until(lambda: hung.status()["nvml_silent_ns"] > 0)
        machine.hang(hung=False)
        wait_until(lambda: hung.status()["nvml_silent_ns"] == 0)

    def test_a_first_context_waits_for_a_slow_nvml(
        self, hung: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(hung.state / "grants" / "a")
        tenant.hello()
        tenant.tell("hold", 0, 8 * GIB)
        wait_until(lambda: hung.status()["nvml_silent_ns"] > 0)
        with ThreadPoolExecutor(1) as aside:
            measured = aside.submit(tenant.tell, "measure", 8 * GIB)
            assert tenants(hung.state / "grants" / "a").hello() == 1
            machine.list_process(tenant.pid, 600 * MIB)
            machine.hang(hung=False)
            assert measured.result() == "measured"
        assert hung.status()["gpus"][0]["context_bytes"] == 600 * MIB

    @pytest.mark.shares
    def test_a_first_context_gets_an_estimate_in_time(
        self, hung: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(hung.state / "grants" / "a")
        tenant.hello()
        tenant.tell("hold", 0, 8 * GIB)
        begun = time.monotonic()
        assert tenant.tell("measure", 8 * GIB) == "measured"
        assert time.monotonic() - begun < 5  # a program's own patience
        assert hung.status()["gpus"][0]["context_bytes"] == 512 * MIB


class TestMeasureLoop:
    def test_costs_few_calls_of_nvml(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        machine.list_process(tenant.pid, 100 * MIB)
        before = machine.count_lists()
        answers = int(tenant.tell("measure-all-the-time", 1.0))
        assert answers > 100
        assert machine.count_lists() - before < 1200

    @pytest.mark.shares
    def test_does_not_delay_another_grant(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        greedy, modest = tenants(arbiter.make()), tenants(arbiter.make("b"))
        greedy.hello()
        modest.hello()
        before = machine.count_lists()
        looping = threading.Thread(target=lambda: greedy.tell("measure-all-the-time", 1.0))
        looping.start()
        with Stopwatch() as took:
            for _ in range(8):
                assert modest.tell("measure") == "measured"
        looping.join()
        assert took.seconds < took.limit(0.5)
        assert machine.count_lists() - before < 1200
