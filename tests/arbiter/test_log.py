"""The arbiter's log: bounded, whatever tenants do."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from support import MIB, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from arbiter.rig import Arbiter, Tenant

    Tenants = Callable[[Path], Tenant]

MOST = 4 * MIB


class TestManyLines:
    def test_a_tenant_that_repeats_itself_writes_few_lines(
        self, arbiter: Arbiter, tenants: Tenants
    ) -> None:
        directory = arbiter.make()
        wire.Holding.of(wire.exchange(directory, wire.hello_message())).hold(0, MIB)
        for _ in range(500):
            answer = wire.exchange(directory, wire.hello_message())
            assert (answer.kind, answer.value) == (wire.REFUSED, wire.TWICE)
        other = tenants(arbiter.make("b"))
        other.hello()
        log = arbiter.log.read_text()
        refused = f"grant a: process {os.getpid()} refused"
        assert 1 < log.count(refused) < 100
        assert f"grant b: process {other.pid} joined" in log

    def test_what_was_left_out_is_counted(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        wire.Holding.of(wire.exchange(directory, wire.hello_message())).hold(0, MIB)

        def is_counted() -> bool:
            for _ in range(100):
                wire.exchange(directory, wire.hello_message())
            return "more like this)" in arbiter.log.read_text()

        wait_until(is_counted)


class TestFile:
    @pytest.fixture
    def background(self, stopped_arbiter: Arbiter) -> Iterator[Arbiter]:
        """An arbiter in the background, which finds the log of a long time."""
        stopped_arbiter.state.mkdir()
        (stopped_arbiter.state / "arbiter.log").write_bytes(b"old\n" * MIB)
        command, environment = stopped_arbiter.command(), stopped_arbiter.machine.environment
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        yield stopped_arbiter
        assert stopped_arbiter.ask("stop") == {"stopped": True}

    def test_has_a_bound(self, background: Arbiter) -> None:
        log, earlier = (background.state / name for name in ("arbiter.log", "arbiter.log.1"))
        wait_until(earlier.exists)
        assert earlier.read_bytes()[:4] == b"old\n"
        assert log.stat().st_size < MOST
        assert "ready: pid" in log.read_text()

    def test_all_processes_of_the_arbiter_write_to_the_new_file(self, background: Arbiter) -> None:
        status = background.status()
        log = background.state / "arbiter.log"
        os.kill(status["serving_pid"], 9)
        wait_until(lambda: log.read_text().count("ready: pid") == 2)
        assert "died of signal 9" in log.read_text()
