"""Processes that cannot be checkpointed or restored."""

from __future__ import annotations

from sim.checkpoints import (
    CHECKPOINTED,
    GIB,
    ILLEGAL_STATE,
    LOCKED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    RUNNING,
    SUCCESS,
    caller_on,
    freeze,
    nvml_on,
    state,
    target_on,
    thaw,
    used,
)
from sim.conftest import Start
from sim.program import Program


def test_a_process_is_lost_when_its_memory_is_not_free_at_restore(start: Start) -> None:
    caller, nvml = caller_on(start, "t4:1"), nvml_on(start, "t4:1")
    target, other = target_on(start, "t4:1"), start("checkpoint", "t4:1")
    freeze(caller, target)
    other("begin")
    free = nvml("memory", 0)[3] // 2 * 2
    assert other("keep", "all", "cuMemAlloc", free << 20) == SUCCESS
    before = used(nvml)
    assert caller("restore", target.pid) == OUT_OF_MEMORY
    assert (state(caller, target), used(nvml)) == (CHECKPOINTED, before)
    other.kill()
    for anyone in (caller, caller_on(start, "t4:1")):
        assert anyone("restore", target.pid) == OPERATING_SYSTEM
        assert anyone("unlock", target.pid) == ILLEGAL_STATE
        assert (state(anyone, target), used(nvml)) == (CHECKPOINTED, 0)
    target.kill()
    assert used(nvml) == 0


def test_a_restore_can_use_memory_of_dead_processes(start: Start) -> None:
    caller, target = caller_on(start, "t4:1"), target_on(start, "t4:1")
    other = start("checkpoint", "t4:1")
    freeze(caller, target)
    other("begin")
    while other("call", "cuMemAlloc", GIB)[0] == SUCCESS:
        pass
    other.kill()
    thaw(caller, target)


def stays_locked(caller: Program, target: Program) -> None:
    """A checkpoint is refused, and the process goes on as before."""
    assert caller("lock", target.pid) == SUCCESS
    assert caller("checkpoint", target.pid) == NOT_SUPPORTED
    assert state(caller, target) == LOCKED
    assert caller("restore", target.pid) == ILLEGAL_STATE
    assert caller("unlock", target.pid) == SUCCESS
    assert state(caller, target) == RUNNING
    address = target("call", "cuMemGetAddressRange", "$memory")[1]
    assert target("read", address, 64) == [7] * 64


def test_a_process_with_managed_memory_cannot_be_checkpointed(start: Start) -> None:
    caller, nvml, target = caller_on(start), nvml_on(start), target_on(start)
    before = used(nvml)
    assert target("keep", "managed", "cuMemAllocManaged", GIB, 1) == SUCCESS
    stays_locked(caller, target)
    assert used(nvml) == before + 1024
    assert target("call", "cuMemFree", "$managed") == [SUCCESS]
    freeze(caller, target)
    assert used(nvml) == 0
    thaw(caller, target)
    assert used(nvml) == before


def test_a_process_on_two_gpus_cannot_be_checkpointed(start: Start) -> None:
    caller, target = caller_on(start, "h100:2"), target_on(start, "h100:2")
    target("keep", "second", "cuDevicePrimaryCtxRetain", 1)
    stays_locked(caller, target)


def test_a_process_with_imported_memory_cannot_be_restored(start: Start) -> None:
    caller, nvml = caller_on(start), nvml_on(start)
    giver, taker = target_on(start), target_on(start)
    number = giver("share", "shared")
    assert taker("borrow", "theirs", f"/proc/{giver.pid}/fd/{number}") == SUCCESS
    freeze(caller, giver)  # the exporting process can be restored
    thaw(caller, giver)
    before = used(nvml)
    freeze(caller, taker)
    away = used(nvml)
    assert away < before
    for anyone in (caller, caller_on(start)):
        assert anyone("restore", taker.pid) == NOT_SUPPORTED
        assert anyone("unlock", taker.pid) == ILLEGAL_STATE
        assert (state(anyone, taker), used(nvml)) == (CHECKPOINTED, away)


def test_a_process_that_released_imported_memory_can_be_restored(start: Start) -> None:
    caller, giver, taker = caller_on(start), target_on(start), target_on(start)
    number = giver("share", "shared")
    assert taker("borrow", "theirs", f"/proc/{giver.pid}/fd/{number}") == SUCCESS
    assert taker("call", "cuMemRelease", "$theirs") == [SUCCESS]
    freeze(caller, taker)
    thaw(caller, taker)
