"""However the arbiter ends while slices take turns, all gates open at once."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import contend
from support import on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Tenant

    Tenants = Callable[[Path], Tenant]

SOON = 0.1


class TestArbiterDeath:
    @pytest.mark.shares
    def test_opens_all_gates_and_the_next_one_uses_the_same_pages(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        pair = contend(arbiter, tenants)
        for _ in range(2):  # the second time with pages that a child has inherited
            serving = arbiter.serving_pid()
            arbiter.pause_parent()
            os.kill(serving, signal.SIGKILL)
            shut = [tenant.credit().credit < wire.OPEN for tenant in pair]
            assert all(shut)
            resumed_at = time.monotonic()
            arbiter.resume_parent()
            wait_until(arbiter.answers)
            said = "opened the gates of 2 processes until the arbiter is back"
            assert said in arbiter.log.read_text()
            took = time.monotonic() - resumed_at
            assert took < on_this_machine(50 * SOON)
            assert arbiter.serving_pid() != serving
            wait_until(arbiter.is_contended)
            for name, tenant in zip("ab", pair, strict=True):
                wait_until(lambda: tenant.credit().credit < wire.OPEN)  # noqa: B023 - called here
                done = tenant.done()
                wait_until(lambda: tenant.done() > done + 20)  # noqa: B023 - called here
                wait_until(lambda: arbiter.compute(name)["handovers"] > 2)  # noqa: B023
        assert "not gated" not in arbiter.log.read_text()

    @pytest.mark.shares
    def test_opens_gates_within_100_ms_even_if_no_arbiter_can_start(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants
    ) -> None:
        pair = contend(arbiter, tenants)
        serving, parent = arbiter.serving_pid(), arbiter.process
        assert parent
        machine.lose_nvml()
        os.kill(serving, signal.SIGKILL)
        killed_at = time.monotonic_ns()
        took = (pair[0].opened_at() - killed_at) / 1e9
        assert took < on_this_machine(SOON)
        assert parent.wait(60) == 1
        arbiter.kill_is_done()
        assert all(tenant.credit().is_open for tenant in pair)

    def test_a_stopped_arbiter_is_replaced(self, arbiter: Arbiter, tenants: Tenants) -> None:
        pair = contend(arbiter, tenants)
        stopped = arbiter.serving_pid()
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: arbiter.answers() and arbiter.serving_pid() != stopped)
        assert f"the arbiter (pid {stopped}) was stopped: killed" in arbiter.log.read_text()
        wait_until(arbiter.is_contended)
        before = [tenant.done() for tenant in pair]
        wait_until(lambda: all(one.done() > n + 20 for one, n in zip(pair, before, strict=True)))

    def test_of_a_stopped_arbiter_opens_all_gates_although_the_log_blocks(
        self, stopped_arbiter: Arbiter, short_tmp: Path, tenants: Tenants
    ) -> None:
        """A busy disk may take seconds for a line of the log; here it is a pipe."""
        stopped_arbiter.log = short_tmp / "pipe"
        os.mkfifo(stopped_arbiter.log)
        pipe = os.open(stopped_arbiter.log, os.O_RDWR | os.O_NONBLOCK)
        stopped_arbiter.start()
        pair = contend(stopped_arbiter, tenants)
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, bytes(1))
        os.kill(stopped_arbiter.serving_pid(), signal.SIGSTOP)
        wait_until(lambda: all(tenant.credit().is_open for tenant in pair))
        os.set_blocking(pipe, False)
        stopped_arbiter.log = short_tmp / "state.log"
        with suppress(BlockingIOError):
            while os.read(pipe, 1 << 20):
                pass
        wait_until(stopped_arbiter.answers)
        os.close(pipe)

    @pytest.mark.shares
    def test_of_the_parent_opens_all_gates(self, arbiter: Arbiter, tenants: Tenants) -> None:
        pair = contend(arbiter, tenants)
        serving = os.pidfd_open(arbiter.serving_pid())
        assert arbiter.process
        killed_at = time.monotonic_ns()
        arbiter.process.kill()
        took = max(tenant.opened_at() - killed_at for tenant in pair) / 1e9
        assert took < on_this_machine(5 * SOON)
        assert select.select([serving], [], [], 20)[0]
        os.close(serving)
        arbiter.kill_is_done()
        assert all(tenant.credit().is_open for tenant in pair)

    def test_on_request_opens_all_gates(self, arbiter: Arbiter, tenants: Tenants) -> None:
        pair = contend(arbiter, tenants)
        assert arbiter.end() == 0
        assert all(tenant.credit().is_open for tenant in pair)

    def test_each_process_has_a_name_of_its_own(self, arbiter: Arbiter) -> None:
        """A kill by the name of one does not reach the others; each names itself when it begins."""
        for name, pid in arbiter.pids().items():
            comm = Path(f"/proc/{pid}/comm")
            wait_until(lambda: comm.read_text() == f"aliquot-{name}\n")  # noqa: B023
