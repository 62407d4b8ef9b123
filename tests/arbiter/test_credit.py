"""Credit: the pages of a process, turns between grants, and their figures."""

from __future__ import annotations

import mmap
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, OTHER_GPU, contend
from support import GIB, on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Tenant

    Tenants = Callable[[Path], Tenant]

SOON = 0.1


class TestPages:
    @pytest.fixture
    def answer(self, arbiter: Arbiter) -> wire.Answer:
        slices = f"slice={GPU},memory={GIB} slice={OTHER_GPU},memory={GIB}"
        directory = Path(arbiter.ask(f"make name=a {slices}")["directory"])
        return wire.exchange(directory, wire.hello_message())

    def test_start_empty_with_open_gates(self, answer: wire.Answer) -> None:
        holding = wire.Holding.of(answer)
        magic, version, size = holding.credit.header()
        assert magic.to_bytes(8, "little") == b"ALQCRED1"
        assert (version, size) == (1, wire.CREDIT_SIZE)
        for index in range(wire.MAX_GPUS):
            words = holding.credit.slice(index)
            assert words.is_open
            assert words.quantum_ns == 700_000
        assert len(holding.works) == 2
        for work in holding.works:
            magic, version, size = work.header()
            assert magic.to_bytes(8, "little") == b"ALQWORK1"
            assert (version, size) == (1, wire.WORK_SIZE)
            assert not any(work.get(field) for field in wire.WORK_FIELDS)

    def test_are_allocated_in_full(self, answer: wire.Answer) -> None:
        credit, work = answer.fds[2:]
        for fd, size in ((credit, wire.CREDIT_SIZE), (work, 2 * wire.WORK_SIZE)):
            status = os.fstat(fd)
            assert (status.st_size, status.st_blocks * 512) == (size, size)

    def test_the_tenant_cannot_write_its_credit(self, answer: wire.Answer) -> None:
        credit = answer.fds[2]
        with pytest.raises(PermissionError):
            mmap.mmap(credit, wire.CREDIT_SIZE, mmap.MAP_SHARED, mmap.PROT_WRITE)
        for write in (lambda: os.pwrite(credit, b"x", 64), lambda: os.ftruncate(credit, 0)):
            with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
                write()

    def test_each_program_gets_new_pages(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        for _ in range(2):  # an exec in between
            tenant.hello()
            assert tenant.done() == 0
            tenant.tell("launch", 0, 3)
            tenant.tell("rest")
            assert tenant.done() == 3
            tenant.exec()
        tenant.hello()
        slot, _ = tenant.fork()
        assert slot == 1
        assert arbiter.states() == ["live", "live"]

    def test_pages_of_a_dead_process_are_removed(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()

        def kept() -> int:
            files = [file.name for file in arbiter.pages().iterdir()]
            credit = {name.partition(".")[2] for name in files if name.startswith("credit.")}
            work = {name.partition(".")[2] for name in files if name.startswith("work.")}
            assert credit == work
            return len(credit)

        tenant, other = tenants(directory), tenants(directory)
        tenant.hello()
        other.hello()
        assert kept() == 2
        tenant.exec()
        tenant.hello()
        wait_until(lambda: kept() == 2)
        tenant.kill()
        wait_until(lambda: kept() == 1)
        other.become_cat()
        wait_until(lambda: kept() == 0)

    def test_a_stopped_parent_blocks_nobody(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        late = tenants(directory)
        arbiter.pause_parent()
        try:
            assert late.hello() == 0
            late.run()
        finally:
            arbiter.resume_parent()


class TestTurns:
    @pytest.fixture
    def pair(self, arbiter: Arbiter, tenants: Tenants) -> tuple[Tenant, Tenant]:
        """Two grants of one GPU, each with a process that keeps working."""
        return contend(arbiter, tenants)

    def test_start_when_two_slices_have_work(
        self, arbiter: Arbiter, pair: tuple[Tenant, Tenant]
    ) -> None:
        assert not arbiter.is_contended(1)
        for name, tenant in zip("ab", pair, strict=True):
            wait_until(lambda: tenant.credit().credit < wire.OPEN)  # noqa: B023 - called here
            assert tenant.credit().pace in (wire.TURNS, wire.YIELD)
            compute = arbiter.compute(name)
            assert compute["gates"] == "work"
            assert compute["weight_percent"] == 50
            turns = ("out", "holds", "drains")
            wait_until(lambda: arbiter.compute(name)["state"] in turns)  # noqa: B023
            before, handovers = tenant.done(), compute["handovers"]
            wait_until(lambda: tenant.done() > before + 20)  # noqa: B023 - called here
            wait_until(lambda: arbiter.compute(name)["handovers"] > handovers + 2)  # noqa: B023

    def test_stop_when_one_is_idle_and_start_when_it_rings(
        self, arbiter: Arbiter, pair: tuple[Tenant, Tenant]
    ) -> None:
        first, second = pair
        second.tell("rest")
        wait_until(lambda: not arbiter.is_contended())
        first.opened_at()
        assert arbiter.compute("a")["state"] == "alone"
        wait_until(lambda: arbiter.compute("b")["state"] == "idle")
        assert second.credit().ring == 1
        assert second.tell("run", 0) == "runs"
        wait_until(arbiter.is_contended)

    @pytest.mark.shares
    def test_a_killed_process_leaves_the_turns_at_once(
        self, arbiter: Arbiter, pair: tuple[Tenant, Tenant]
    ) -> None:
        first, second = pair
        killed_at = time.monotonic_ns()
        second.kill()
        took = (first.opened_at() - killed_at) / 1e9
        assert took < on_this_machine(10 * SOON)
        assert not arbiter.is_contended()
        assert arbiter.compute("b")["gates"] == "untried"

    def test_a_process_that_does_not_drain_is_logged(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        culprit, other = tenants(arbiter.make("a", GIB)), tenants(arbiter.make("b", GIB))
        other.run()
        culprit.hello()
        culprit.tell("gates", 0, wire.GATES_WORK, 0)
        culprit.tell("launch", 0, 1000)
        wait_until(lambda: arbiter.compute("a")["fallbacks"])
        assert arbiter.compute("a")["state"] == "overdue"
        assert arbiter.compute("a")["backlog"] == 1000
        before = other.done()
        wait_until(lambda: other.done() > before + 20)
        line = (
            rf"grant a: process {culprit.pid} was late at the end of its turn on GPU 0: "
            r"the others run at the same time \(\d+ times so far\)"
        )
        wait_until(lambda: re.search(line, arbiter.log.read_text()))
        for times in (2, 3):
            culprit.tell("catch-up", 0)
            wait_until(lambda: arbiter.compute("a")["fallbacks"] >= times)  # noqa: B023
        assert arbiter.compute("a")["state"] == "exempt"
        assert culprit.credit().is_open
        exempt = "grant a was late too often on GPU 0: it is exempt from turns for a while"
        wait_until(lambda: exempt in arbiter.log.read_text())

    def test_failing_gates_are_reported(self, arbiter: Arbiter, tenants: Tenants) -> None:
        first, second = tenants(arbiter.make("a", GIB)), tenants(arbiter.make("b", GIB))
        second.run()
        first.hello()
        first.tell("gates", 0, wire.GATES_FAIL, 801)
        first.tell("launch", 0, 8)
        compute = arbiter.compute("a")
        assert (compute["gates"], compute["why"]) == ("fail", 801)
        said = f"grant a: gates fail for process {first.pid} on GPU 0 (CUDA error 801)"
        wait_until(lambda: said in arbiter.log.read_text())
        assert not arbiter.is_contended()
        assert arbiter.log.read_text().count(said) == 1

    @pytest.mark.parametrize("rubbish", [b"\xff" * wire.WORK_SIZE, bytes(wire.WORK_SIZE)])
    def test_a_corrupt_work_page_harms_no_other_process(
        self, arbiter: Arbiter, pair: tuple[Tenant, Tenant], tenants: Tenants, rubbish: bytes
    ) -> None:
        directory = arbiter.make("c", GIB)
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.works[0].scribble(rubbish)
        holding.works[0].set("gates", wire.GATES_WORK)
        wire.ring(directory)
        before = [tenant.done() for tenant in pair]
        wait_until(lambda: all(one.done() > n + 50 for one, n in zip(pair, before, strict=True)))
        assert tenants(directory).hello() == 1

    def test_counts_near_the_end_of_their_range_stop_no_other_process(
        self, arbiter: Arbiter, pair: tuple[Tenant, Tenant], tenants: Tenants
    ) -> None:
        """Sums of such counts wrap: the arbiter must neither look for ever nor open gates."""
        directory = arbiter.make("c", GIB)
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        last = (1 << 64) - 1
        holding.works[0].pretend(done=last - 64, closed=last)
        wire.ring(directory)
        before = [tenant.done() for tenant in pair]
        wait_until(lambda: all(one.done() > n + 50 for one, n in zip(pair, before, strict=True)))
        assert tenants(arbiter.make("d", GIB)).hello() == 0
        assert arbiter.is_contended()
        assert arbiter.compute("c")["gates"] == "invalid"
        said = f"grant c: process {os.getpid()} wrote impossible counts to its work page on GPU 0"
        wait_until(lambda: said in arbiter.log.read_text())
        assert holding.credit.slice().credit == 0  # its own gates are closed

    def test_a_ring_from_an_unknown_process_is_refused(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory, other = arbiter.make("a", GIB), arbiter.make("b", GIB)
        wire.Holding.of(wire.exchange(other, wire.hello_message()))
        answer = wire.exchange(directory, wire.message(wire.RING))
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.MALFORMED)
        tenant = tenants(directory)
        tenant.hello()
        assert tenant.tell("ring") == "rung"

    def test_use_no_cpu_without_contention(
        self, arbiter: Arbiter, pair: tuple[Tenant, Tenant]
    ) -> None:
        pair[1].tell("rest")
        wait_until(lambda: not arbiter.is_contended())
        first = arbiter.status()
        wait_until(lambda: arbiter.status()["now_ns"] > first["now_ns"] + 1_000_000_000)
        last = arbiter.status()
        # Each status is a look; those above and the timer's are all there are.
        used, passed = (last[key] - first[key] for key in ("credit_cpu_ns", "now_ns"))
        assert used < passed / 20


class TestFigures:
    def test_of_a_slice_without_processes(self, arbiter: Arbiter) -> None:
        arbiter.make()
        status = arbiter.status()
        assert abs(status["now_ns"] - time.monotonic_ns()) < 10**10
        assert status["credit_cpu_ns"] >= 0
        compute = arbiter.compute()
        del compute["recent_ns"], compute["idle_ns"]
        assert compute == {
            "gates": "untried",
            "why": 0,
            "state": "idle",
            "weight_percent": 100,
            "used_ns": 0,
            "handovers": 0,
            "fallbacks": 0,
            "backlog": 0,
            "waits": 0,
            "waited_ns": 0,
            "wait_p50_ns": 0,
            "wait_p99_ns": 0,
            "recent_used_ns": 0,
        }

    def test_of_two_contending_slices(self, arbiter: Arbiter, tenants: Tenants) -> None:
        contend(arbiter, tenants, shares=(75, 25))
        first, begun = arbiter.compute("a"), arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > begun + 1_500_000_000)
        status = arbiter.status()
        both = {one["name"]: one["slices"][0]["compute"] for one in status["grants"]}
        assert (both["a"]["weight_percent"], both["b"]["weight_percent"]) == (75, 25)
        for one in both.values():
            assert 900_000_000 < one["recent_ns"] < 1_700_000_000
            assert one["recent_used_ns"] <= one["recent_ns"]
            assert one["waits"] > 5
            assert one["waited_ns"] > 0
            assert 0 < one["wait_p50_ns"] <= one["wait_p99_ns"]
        used = [one["recent_used_ns"] for one in both.values()]
        assert 0.5 < sum(used) / both["a"]["recent_ns"] < 1.1
        assert both["a"]["used_ns"] > first["used_ns"] + 300_000_000

    def test_of_a_slice_alone_count_time_with_launches(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.run()
        wait_until(lambda: arbiter.compute()["state"] == "alone")

        def share() -> float:
            compute = arbiter.compute()
            return float(compute["recent_used_ns"] / compute["recent_ns"])

        wait_until(lambda: arbiter.compute()["recent_ns"] > 900_000_000 and share() > 0.9)
        before = arbiter.compute()["used_ns"]
        assert before > 800_000_000
        tenant.tell("rest")
        wait_until(lambda: arbiter.compute()["state"] == "idle")
        wait_until(lambda: share() == 0)
        assert arbiter.compute()["used_ns"] < before + 2_000_000_000

    def test_a_slice_is_idle_since_its_last_work(self, arbiter: Arbiter, tenants: Tenants) -> None:
        tenant = tenants(arbiter.make())
        wait_until(lambda: arbiter.compute()["idle_ns"] > 700_000_000)
        tenant.run()
        started = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > started + 1_200_000_000)
        assert arbiter.compute()["idle_ns"] < 100_000_000
        tenant.tell("rest")
        rested = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > rested + 700_000_000)
        status = arbiter.status()
        idle = status["grants"][0]["slices"][0]["compute"]["idle_ns"]
        assert 600_000_000 < idle < status["now_ns"] - started

    def test_a_slice_with_unfinished_work_is_not_idle(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        tenant.tell("gates", 0, wire.GATES_WORK, 0)
        tenant.tell("launch", 0, 1)
        launched = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > launched + 700_000_000)
        assert arbiter.compute()["idle_ns"] < 100_000_000
        tenant.tell("catch-up", 0)
        wait_until(lambda: arbiter.compute()["idle_ns"] > 200_000_000)

    def test_nobody_knows_how_long_a_slice_was_idle_whose_work_is_not_seen(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        tenant.tell("gates", 0, wire.GATES_FAIL, 801)
        assert arbiter.compute()["idle_ns"] is None
        tenant.kill()
        wait_until(lambda: arbiter.compute()["idle_ns"] is not None)

    def test_work_that_was_not_seen_was_no_idle_time(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        tenant = tenants(arbiter.make())
        tenant.hello()
        tenant.tell("gates", 0, wire.GATES_FAIL, 801)
        started = arbiter.status()["now_ns"]
        wait_until(lambda: arbiter.status()["now_ns"] > started + 3_000_000_000)
        tenant.kill()
        wait_until(lambda: arbiter.compute()["idle_ns"] is not None)
        assert arbiter.compute()["idle_ns"] < 2_000_000_000
