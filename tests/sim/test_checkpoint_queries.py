"""Queries and waits: they work in a locked process, and end a checkpointed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sim.checkpoints import (
    CHECKPOINTED,
    LOCKED,
    LOCKING,
    NOT_READY,
    OPERATING_SYSTEM,
    SUCCESS,
    USED,
    caller_on,
    close_gate,
    entry_of,
    freeze,
    state,
    target_on,
    thaw,
    used,
)
from sim.conftest import Start
from sim.program import Program
from support import wait_until

LOOKS = (
    ("cuStreamQuery", "s0"),
    ("cuStreamQuery_ptsz", "s0"),
    ("cuStreamSynchronize", "s0"),
    ("cuStreamSynchronize_ptsz", "s0"),
    ("cuEventQuery", "event"),
    ("cuEventSynchronize", "event"),
    ("cuCtxSynchronize",),
    ("cuCtxSynchronize_v2", "context"),
)
CHUNK = 32  # MiB that a pool takes at a time


@pytest.fixture
def caller(start: Start) -> Program:
    return caller_on(start)


@pytest.fixture
def target(start: Start) -> Program:
    """A program with a context, a stream and a recorded event."""
    program = target_on(start)
    program("keep", "event", "cuEventCreate", 0)
    assert program("call", "cuEventRecord", "$event", "$s0") == [SUCCESS]
    return program


def test_queries_work_in_a_locked_process(caller: Program, nvml: Program, target: Program) -> None:
    assert caller("lock", target.pid) == SUCCESS
    free = nvml("memory", 0)[3]
    for look in LOOKS:
        assert target("by_symbol", *look) == SUCCESS
    code, available, _ = target("call", "cuMemGetInfo")
    assert (code, available >> 20) == (SUCCESS, free)
    assert state(caller, target) == LOCKED
    assert caller("checkpoint", target.pid) == SUCCESS


def test_queries_work_while_a_process_is_being_locked(
    caller: Program, target: Program, sim_env: dict[str, str]
) -> None:
    close_gate(target)
    caller.ask("lock", target.pid)
    wait_until(lambda: entry_of(target, sim_env).state == LOCKING)
    assert target("by_symbol", "cuStreamQuery", "s0") == NOT_READY
    assert target("by_symbol", "cuEventSynchronize", "event") == SUCCESS  # recorded before
    target("word", "gate", 0, 1)
    assert caller.answer() == SUCCESS


def test_a_process_that_queries_all_the_time_can_be_locked(
    caller: Program, target: Program
) -> None:
    for _ in range(2):
        target("query_forever", "s0")
    for _ in range(3):
        assert caller("lock", target.pid, 10_000) == SUCCESS
        assert caller("unlock", target.pid) == SUCCESS
    freeze(caller, target)
    assert target.ended() == -signal.SIGSEGV


def test_a_wait_in_a_locked_process_frees_no_memory(
    caller: Program, nvml: Program, target: Program
) -> None:
    target("keep", "piece", "cuMemAllocAsync", 1 << 20, "$s0")
    assert target("call", "cuMemFreeAsync", "$piece", "$s0") == [SUCCESS]
    whole = used(nvml)
    assert whole == USED + CHUNK
    assert caller("lock", target.pid) == SUCCESS
    assert target("by_symbol", "cuStreamSynchronize", "s0") == SUCCESS
    assert used(nvml) == whole
    assert caller("unlock", target.pid) == SUCCESS
    assert target("by_symbol", "cuStreamSynchronize", "s0") == SUCCESS
    assert used(nvml) == USED


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look[0])
def test_a_query_ends_a_checkpointed_process(
    caller: Program, nvml: Program, target: Program, look: tuple[str, ...], tmp_path: Path
) -> None:
    target("redirect_stderr", str(tmp_path / "said"))
    freeze(caller, target)
    target.ask("by_symbol", *look)
    assert target.ended() == -signal.SIGSEGV
    base = look[0].removesuffix("_ptsz")
    line = f"aliquot: simulated driver: {base} in a checkpointed process: SIGSEGV\n"
    assert (tmp_path / "said").read_text() == line
    assert caller("state", target.pid) == [OPERATING_SYSTEM]
    assert (nvml("processes", 0), used(nvml)) == ({}, 0)


def test_ignoring_sigsegv_does_not_save_a_checkpointed_process(
    caller: Program, target: Program
) -> None:
    target("ignore_sigsegv")
    freeze(caller, target)
    target.ask("by_symbol", "cuStreamQuery", "s0")
    assert target.ended() == -signal.SIGSEGV


def test_memory_info_fails_in_a_checkpointed_process(caller: Program, target: Program) -> None:
    freeze(caller, target)
    assert target("call", "cuMemGetInfo")[0] == OPERATING_SYSTEM
    assert state(caller, target) == CHECKPOINTED
    thaw(caller, target)
    assert target("call", "cuMemGetInfo")[0] == SUCCESS


def test_queries_work_in_a_restored_process(caller: Program, target: Program) -> None:
    freeze(caller, target)
    assert caller("restore", target.pid) == SUCCESS
    for look in LOOKS:
        assert target("by_symbol", *look) == SUCCESS
    assert caller("unlock", target.pid) == SUCCESS
    for look in LOOKS:
        assert target("by_symbol", *look) == SUCCESS
