"""A tenant that sends messages without a pause costs the arbiter little and delays no other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arbiter.rig import Arbiter, Tenant

    Tenants = Callable[[Path], Tenant]

# Joins, says so, and sends RING as fast as it can. The arbiter ends a connection after 5 s.
FLOOD = f"""
import sys, socket
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from arbiter import wire
directory = Path(sys.argv[1])
assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME
print("joined", flush=True)
ring = wire.message(wire.RING)
while True:
    try:
        with wire.connected(directory, "socket", socket.SOCK_SEQPACKET) as connection:
            while True:
                connection.send(ring)
    except OSError:
        pass
"""
WINDOW_SECONDS = 2.0


@pytest.fixture
def flooded(arbiter: Arbiter) -> Iterator[Arbiter]:
    """An arbiter with a grant whose four processes have used up its budget."""
    command = [sys.executable, "-E", "-S", "-c", FLOOD, str(arbiter.make("flood"))]
    floods = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for flood in floods:
            assert flood.stdout
            assert flood.stdout.readline() == "joined\n"
        wait_until(lambda: "send too many messages" in arbiter.log.read_text())
        yield arbiter
    finally:
        for flood in floods:
            flood.kill()
            flood.communicate()


def cpu_seconds(pid: int) -> float:
    """The processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_it_costs_the_arbiter_a_bounded_part_of_a_core(flooded: Arbiter) -> None:
    pid = flooded.serving_pid()
    before, begun = cpu_seconds(pid), time.monotonic()
    time.sleep(WINDOW_SECONDS)
    used, passed = cpu_seconds(pid) - before, time.monotonic() - begun
    assert used / passed < 0.35


@pytest.mark.shares
def test_another_grant_joins_rings_and_gets_credit_meanwhile(
    flooded: Arbiter, tenants: Tenants
) -> None:
    first, second = tenants(flooded.make("b")), tenants(flooded.make("c"))
    begun = time.monotonic()
    first.run()  # it rings when it begins
    second.run()
    for _ in range(20):
        assert first.tell("measure") == "measured"
    assert time.monotonic() - begun < on_this_machine(1.0)
    wait_until(flooded.is_contended)
    done = [first.done(), second.done()]
    wait_until(lambda: first.done() > done[0] + 50 and second.done() > done[1] + 50)


def test_the_grants_own_programs_are_served_in_the_end(flooded: Arbiter, tenants: Tenants) -> None:
    grant = flooded.grant("flood")
    assert grant
    assert tenants(Path(grant["directory"])).hello() > 0
