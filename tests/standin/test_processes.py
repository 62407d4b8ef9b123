"""Processes of one grant share its ledger, and leave no charge when they end."""

from __future__ import annotations

import os
import signal

import pytest

from standin.conftest import MakeMachine
from standin.machine import CONTEXT, GIB, MIB, NOT_INITIALIZED, OUT_OF_MEMORY, Grant, Machine
from support import wait_until

LIMIT = 4 * GIB
PIECE = 64 * MIB


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(LIMIT)


def test_processes_share_the_limit(machine: Machine, grant: Grant) -> None:
    first, second = machine.tenant(grant).start(), machine.tenant(grant).start()
    first.ok("alloc", 2 * GIB)
    assert second("alloc", 2 * GIB)[0] == OUT_OF_MEMORY
    free = second("info")[1]
    assert free == first("info")[1]
    second.ok("alloc", free // PIECE * PIECE)
    assert first("alloc", PIECE)[0] == OUT_OF_MEMORY


def test_threads_that_race_for_the_first_call_join_once(machine: Machine) -> None:
    grant = machine.grant(GIB)  # no room for two contexts, not even for a moment
    tenant = machine.tenant(grant)
    assert tenant("begin_in_threads", 16) == [0]
    assert len(machine.grant_status(grant)["processes"]) == 1
    (used,) = machine.grant_status(grant)["slices"]
    in_use = used["counted_bytes"] + used["driver_bytes"]
    assert CONTEXT + 16 * MIB <= in_use <= CONTEXT + 16 * MIB + PIECE


def test_threads_that_race_to_create_and_release_a_context_leave_it_charged_right(
    machine: Machine,
) -> None:
    grant = machine.grant(GIB)
    tenant = machine.tenant(grant)
    assert tenant("init") == [0]
    assert tenant("turn_over_in_threads", 8, 20) == [0]
    assert grant.counted() == 0
    tenant.ok("retain")
    assert grant.counted() == CONTEXT


def test_contexts_without_a_figure_leave_the_rest_of_the_slice_alone(
    make_machine: MakeMachine,
) -> None:
    """Under MPS, WSL and vGPU NVML does not tell how much a process uses."""
    machine = make_machine(ALIQUOT_SIMULATE_WITHOUT="process-memory")
    grant = machine.grant(LIMIT)
    busy, maker = machine.tenant(grant).start(), machine.tenant(grant)
    assert grant.counted() == 512 * MIB
    assert maker("init") == [0]
    busy.tell("in_threads", 4, [PIECE, PIECE], 2000)
    made = 0
    while not busy.has_answered():
        context = maker.ok("create_context")
        assert grant.counted() >= 1024 * MIB
        maker.does("destroy_context", context)
        made += 1
    assert busy.answer() == [0]
    assert made > 1
    assert grant.counted() == 512 * MIB


def test_concurrent_threads_lose_nothing_in_the_ledger(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    before = grant.counted()
    assert tenant("in_threads", 16, [1, 4096, MIB, 3 * MIB], 25) == [0]
    assert grant.counted() == before


def test_threads_that_race_for_the_last_bytes_never_exceed_the_limit(
    machine: Machine, grant: Grant
) -> None:
    tenant = machine.tenant(grant).start()
    before = grant.counted()
    assert tenant("in_threads", 8, [GIB] * 4, 20) == [0, OUT_OF_MEMORY]
    assert grant.counted() == before


def test_a_forked_child_has_no_gpu_and_its_parent_keeps_its_memory(
    machine: Machine, grant: Grant
) -> None:
    tenant = machine.tenant(grant).start()
    pointer = tenant.ok("alloc", PIECE)
    counted = grant.counted()
    calls = (
        ("init",),
        ("alloc", PIECE),
        ("free", pointer),
        ("alloc_async", PIECE),
        ("create_physical", PIECE),
        ("create_array", 64, 64),
        ("create_context",),
        ("retain",),
        ("release",),
        ("info",),
        ("synchronize",),
    )
    answers = tenant("in_child", *calls)
    assert [answer[0] for answer in answers] == [NOT_INITIALIZED] * len(calls)
    assert grant.counted() == counted
    tenant.does("fill", pointer, 1, PIECE)
    tenant.does("free", pointer)
    assert grant.counted() == counted - PIECE


def test_a_child_forked_while_another_thread_unmaps_does_not_hang(
    machine: Machine, grant: Grant
) -> None:
    """A search through many mappings takes long, and most children are forked in one."""
    tenant = machine.tenant(grant).start()
    assert tenant("unmap_in_children", 4096, 10) == [NOT_INITIALIZED]


def test_a_child_forked_before_the_first_call_joins_by_itself(
    machine: Machine, grant: Grant
) -> None:
    tenant = machine.tenant(grant)
    assert tenant("in_child", ("start",), ("alloc", PIECE))[1][0] == 0
    wait_until(lambda: grant.counted() == 0)
    tenant.start().ok("alloc", PIECE)


def test_an_exec_releases_the_programs_memory(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", GIB)
    pid = tenant("pid")
    tenant.tell("become_new")
    assert tenant("pid") == pid
    tenant.start()
    assert grant.counted() <= CONTEXT + PIECE
    tenant.ok("alloc", 3 * GIB)
    assert len(machine.grant_status(grant)["processes"]) == 1


def test_a_killed_process_leaves_no_charge(machine: Machine, grant: Grant) -> None:
    survivor, victim = machine.tenant(grant).start(), machine.tenant(grant).start()
    before = grant.counted()
    survivor.ok("alloc", PIECE)
    victim.ok("alloc", 2 * GIB)
    victim.ok("alloc_async", PIECE)
    victim.ok("create_physical", PIECE)
    victim.kill()
    wait_until(lambda: grant.counted() < before + PIECE)
    wait_until(lambda: len(machine.grant_status(grant)["processes"]) == 1)
    survivor.ok("alloc", 3 * GIB)


def test_an_orphaned_child_keeps_no_charge(machine: Machine, grant: Grant) -> None:
    """It has its parent's descriptors and mappings; the kernel still reports the parent's end."""
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", 2 * GIB)
    child = os.pidfd_open(tenant("leave_child_behind"))
    try:
        tenant.process.kill()
        wait_until(lambda: grant.counted() == 0)
        signal.pidfd_send_signal(child, signal.SIGKILL)  # it was there all the time
    finally:
        os.close(child)


def test_a_process_that_exits_leaves_no_charge(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", GIB)
    tenant.end()
    wait_until(lambda: grant.counted() == 0)
    assert machine.grant_status(grant)["processes"] == []


def test_a_process_may_fill_its_slice_again_and_again(machine: Machine, grant: Grant) -> None:
    for _ in range(5):
        tenant = machine.tenant(grant).start()
        tenant.ok("alloc", LIMIT - CONTEXT - 2 * PIECE)
        tenant.kill()
        wait_until(lambda: grant.counted() == 0)
