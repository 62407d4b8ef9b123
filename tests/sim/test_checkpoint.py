"""Checkpoints: a process is locked, checkpointed, restored and unlocked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sim.checkpoints import (
    CHECKPOINTED,
    GIB,
    ILLEGAL_STATE,
    INVALID_VALUE,
    LOCKED,
    LOCKING,
    NO_DEVICE,
    NON_BLOCKING,
    NOT_INITIALIZED,
    NOT_READY,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    RUNNING,
    STEPS,
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

LOOKS = 50  # how often a test checks that something does not change


@pytest.fixture
def caller(start: Start) -> Program:
    """A program without a context, which locks others."""
    return caller_on(start)


@pytest.fixture
def target(start: Start) -> Program:
    """A program with a context, a stream and 1 GiB that begins with sevens."""
    return target_on(start)


def test_a_process_is_checkpointed_and_restored(
    caller: Program, nvml: Program, target: Program
) -> None:
    pid, listed = target.pid, {str(target.pid): USED}
    assert state(caller, target) == RUNNING
    assert caller("lock", pid, 10_000) == SUCCESS
    assert state(caller, target) == LOCKED
    assert (nvml("processes", 0), used(nvml)) == (listed, USED)
    assert caller("checkpoint", pid) == SUCCESS
    assert state(caller, target) == CHECKPOINTED
    assert (nvml("processes", 0), used(nvml)) == ({}, 0)
    assert caller("restore", pid) == SUCCESS
    assert state(caller, target) == LOCKED
    assert (nvml("processes", 0), used(nvml)) == (listed, USED)
    assert caller("unlock", pid) == SUCCESS
    assert state(caller, target) == RUNNING
    address = target("call", "cuMemGetAddressRange", "$memory")[1]
    assert target("read", address, 64) == [7] * 64


def test_a_process_can_checkpoint_itself(target: Program, nvml: Program) -> None:
    pid = target.pid
    assert target("lock", pid, 10_000) == SUCCESS
    assert target("checkpoint", pid) == SUCCESS
    assert used(nvml) == 0
    assert target("restore", pid) == SUCCESS
    assert target("unlock", pid) == SUCCESS
    assert target("call", "cuCtxSynchronize") == [SUCCESS]


def test_a_process_without_context_can_be_checkpointed(caller: Program, start: Start) -> None:
    target = caller_on(start)
    freeze(caller, target)
    thaw(caller, target)
    assert target("begin") == 0


def test_each_step_requires_its_state(caller: Program, target: Program) -> None:
    legal = {
        RUNNING: ("lock",),
        LOCKED: ("checkpoint", "unlock"),
        CHECKPOINTED: ("restore",),
    }
    reach = {RUNNING: "lock", LOCKED: "checkpoint"}
    for now, allowed in legal.items():
        for step in STEPS:
            if step not in allowed:
                assert caller(step, target.pid) == ILLEGAL_STATE
                assert state(caller, target) == now
        if now in reach:
            assert caller(reach[now], target.pid) == SUCCESS


def test_processes_without_cuda_are_refused(caller: Program, nvml: Program) -> None:
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        for pid in (stranger.pid, nvml.pid):
            assert caller("state", pid) == [NOT_INITIALIZED]
            assert caller("call", "cuCheckpointProcessGetRestoreThreadId", pid)[0] == 3
            assert [caller(step, pid) for step in STEPS] == [NOT_INITIALIZED] * 4
    finally:
        stranger.kill()
        stranger.wait()
    for pid in (stranger.pid, 0, -1):
        assert caller("state", pid) == [OPERATING_SYSTEM]
        assert [caller(step, pid) for step in STEPS] == [OPERATING_SYSTEM] * 4


def test_a_caller_needs_no_cuinit(start: Start, target: Program) -> None:
    caller = start("checkpoint")
    assert caller("state", caller.pid) == [NOT_INITIALIZED]
    assert [caller(step, target.pid) for step in STEPS] == [SUCCESS] * 4
    assert caller("call", "cuCheckpointProcessGetRestoreThreadId", target.pid)[0] == SUCCESS
    assert caller("state", caller.pid) == [NOT_INITIALIZED]  # it has not become a CUDA process
    assert caller("begin") == 0
    assert state(target, caller) == RUNNING


def test_without_a_machine_every_step_fails(start: Start, target: Program) -> None:
    caller = start("checkpoint", ALIQUOT_SIMULATE="")
    assert caller("state", target.pid) == [NO_DEVICE]
    assert [caller(step, target.pid) for step in STEPS] == [NO_DEVICE] * 4


def test_reserved_fields_must_be_zero(caller: Program, target: Program) -> None:
    pid = target.pid
    for words in ({"0": 1 << 32}, {"7": 1}):
        assert caller("with_words", "Lock", pid, words) == INVALID_VALUE
    assert caller("lock", pid) == SUCCESS
    assert caller("with_words", "Unlock", pid, {"3": 1}) == INVALID_VALUE
    assert caller("with_words", "Checkpoint", pid, {"0": 1}) == INVALID_VALUE
    assert caller("with_words", "Checkpoint", pid, {}) == SUCCESS
    for words in ({"1": 1}, {"2": 1}, {"7": 1}):  # a pair without an address, custom storage
        assert caller("with_words", "Restore", pid, words) == INVALID_VALUE
    assert caller("onto_itself", pid) == NOT_SUPPORTED
    assert state(caller, target) == CHECKPOINTED
    assert caller("with_words", "Restore", pid, {}) == SUCCESS
    assert caller("with_words", "Unlock", pid, {}) == SUCCESS


def test_calls_of_a_locked_process_wait(caller: Program, nvml: Program, target: Program) -> None:
    assert caller("lock", target.pid) == SUCCESS
    target("in_thread", "more", "cuMemAlloc", GIB)
    target("in_thread", "another", "cuStreamCreate", NON_BLOCKING)
    for _ in range(LOOKS):
        assert used(nvml) == USED
    assert caller("checkpoint", target.pid) == SUCCESS
    for _ in range(LOOKS):
        assert used(nvml) == 0
    assert target("answer_of", "more") is None
    assert target("answer_of", "another") is None
    thaw(caller, target)
    wait_until(lambda: target("answer_of", "more"))
    wait_until(lambda: target("answer_of", "another"))
    assert used(nvml) == USED + 1024


def test_a_locker_waits_for_running_kernels(caller: Program, target: Program) -> None:
    target("words", "mark")
    target("spin", 20_000_000, "s0", 5)
    assert target("write_word", "s0", "mark", 0, 1) == SUCCESS
    assert caller("lock", target.pid) == SUCCESS
    assert target("word", "mark", 0) == 1


def test_a_locker_waits_for_a_stream_that_waits_for_a_value(
    caller: Program, nvml: Program, target: Program
) -> None:
    close_gate(target)
    assert caller("lock", target.pid, 100) == NOT_READY
    assert state(caller, target) == RUNNING
    assert target("call", "cuMemAlloc", GIB)[0] == SUCCESS  # the process still runs
    assert used(nvml) == USED + 1024
    target("word", "gate", 0, 1)
    assert caller("lock", target.pid, 10_000) == SUCCESS


@pytest.mark.parametrize("kind", ["kernel", "host function"])
def test_a_locker_waits_for_every_kind_of_work(caller: Program, target: Program, kind: str) -> None:
    target("words", "page")
    if kind == "kernel":
        assert target("launch", "wait", "s0", "page", 1) == SUCCESS
    else:
        assert target("hold_up", "s0", "page") == SUCCESS
    assert caller("lock", target.pid, 100) == NOT_READY
    target("word", "page", 0, 1)
    assert caller("lock", target.pid, 10_000) == SUCCESS


@pytest.mark.parametrize("waits", ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"])
def test_a_thread_that_waits_for_the_gpu_returns_when_the_work_ends(
    caller: Program, target: Program, sim_env: dict[str, str], waits: str
) -> None:
    close_gate(target)
    target("keep", "event", "cuEventCreate", 0)
    target("call", "cuEventRecord", "$event", "$s0")
    arguments = {"cuStreamSynchronize": ["$s0"], "cuEventSynchronize": ["$event"]}
    target("in_thread", "wait", waits, *arguments.get(waits, []))
    wait_until(lambda: entry_of(target, sim_env).calls)
    assert caller("lock", target.pid, 100) == NOT_READY
    assert target("answer_of", "wait") is None
    caller.ask("lock", target.pid)
    target("word", "gate", 0, 1)
    assert caller.answer() == SUCCESS
    wait_until(lambda: target("answer_of", "wait") == [SUCCESS])
    assert caller("checkpoint", target.pid) == SUCCESS


def test_a_locker_does_not_wait_for_dropped_work(caller: Program, target: Program) -> None:
    close_gate(target)
    assert target("call", "cuDevicePrimaryCtxReset", 0) == [SUCCESS]
    assert caller("lock", target.pid) == SUCCESS
    assert caller("unlock", target.pid) == SUCCESS
    target("begin")
    target("load")
    target("keep", "s0", "cuStreamCreate", NON_BLOCKING)
    close_gate(target)
    target("spin", 1_000_000, "s0", 3)
    target("launch", "fault")
    assert caller("lock", target.pid) == SUCCESS


def test_a_second_locker_waits_for_the_first(
    caller: Program, start: Start, target: Program
) -> None:
    second = caller_on(start)
    close_gate(target)
    caller.ask("lock", target.pid)
    target.ask("call", "cuMemAlloc", GIB)  # it waits while the process is being locked
    assert second("lock", target.pid, 100) == NOT_READY
    assert second("unlock", target.pid) == ILLEGAL_STATE
    assert second("checkpoint", target.pid) == ILLEGAL_STATE
    assert state(second, target) == RUNNING
    caller.kill()
    assert target.answer()[0] == SUCCESS
    target("word", "gate", 0, 1)
    assert second("lock", target.pid, 10_000) == SUCCESS


def test_a_process_runs_again_when_its_locker_is_killed(
    caller: Program, start: Start, target: Program, sim_env: dict[str, str]
) -> None:
    close_gate(target)
    other = caller_on(start)
    caller.ask("lock", target.pid)
    wait_until(lambda: entry_of(target, sim_env).state == LOCKING)
    target.ask("call", "cuEventCreate", 0)
    caller.kill()
    assert target.answer()[0] == SUCCESS
    assert state(other, target) == RUNNING
    target("word", "gate", 0, 1)
    assert other("lock", target.pid, 10_000) == SUCCESS


@pytest.mark.parametrize("steps", range(4))
def test_another_caller_can_continue_after_a_killed_one(
    caller: Program, start: Start, target: Program, nvml: Program, steps: int
) -> None:
    for step in STEPS[:steps]:
        assert caller(step, target.pid) == SUCCESS
    caller.kill()
    other = caller_on(start)
    for step in STEPS[steps:]:
        assert other(step, target.pid) == SUCCESS
    assert used(nvml) == USED
    assert target("call", "cuCtxSynchronize") == [SUCCESS]


@pytest.mark.parametrize("steps", range(4))
def test_a_process_killed_in_any_state_frees_its_memory(
    caller: Program, target: Program, nvml: Program, steps: int
) -> None:
    for step in STEPS[:steps]:
        assert caller(step, target.pid) == SUCCESS
    target.kill()
    assert (nvml("processes", 0), used(nvml)) == ({}, 0)
    assert caller("state", target.pid) == [OPERATING_SYSTEM]


def test_a_locker_notices_that_the_process_died(caller: Program, target: Program) -> None:
    close_gate(target)
    caller.ask("lock", target.pid)
    target.kill()
    assert caller.answer() in (NOT_INITIALIZED, OPERATING_SYSTEM)


def test_the_restore_thread_belongs_to_the_process(caller: Program, target: Program) -> None:
    def thread(pid: int) -> int:
        code, tid = caller("call", "cuCheckpointProcessGetRestoreThreadId", pid)
        assert code == SUCCESS
        assert Path(f"/proc/{pid}/task/{tid}").exists()
        return int(tid)

    assert thread(target.pid) == target.pid  # it has no worker: all its operations ran at once
    target("spin_timed", 1000, 1)
    assert thread(target.pid) != target.pid


def test_the_functions_are_found_by_name(caller: Program) -> None:
    for step in ("GetState", "GetRestoreThreadId", "Lock", "Checkpoint", "Restore", "Unlock"):
        name = f"cuCheckpointProcess{step}"
        assert caller("look_up", name, 12080, 0) == [SUCCESS, 0, name]


def test_a_driver_without_the_feature_returns_not_supported(start: Start, target: Program) -> None:
    caller = start("checkpoint", ALIQUOT_SIMULATE_WITHOUT="checkpoint,stream-memory-operations")
    assert caller("state", target.pid) == [NOT_SUPPORTED]
    assert [caller(step, target.pid) for step in STEPS] == [NOT_SUPPORTED] * 4
    assert caller("call", "cuCheckpointProcessGetRestoreThreadId", target.pid)[0] == NOT_SUPPORTED
