"""What the driver's checkpoint cannot take off a GPU, and what does not come back from it."""

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


def test_where_there_is_no_room_it_is_lost(start: Start) -> None:
    caller, nvml = caller_on(start, "t4:1"), nvml_on(start, "t4:1")
    target, other = target_on(start, "t4:1"), start("checkpoint", "t4:1")
    freeze(caller, target)
    other("begin")
    room = nvml("memory", 0)[3] // 2 * 2
    assert other("keep", "all", "cuMemAlloc", room << 20) == SUCCESS
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


def test_what_the_dead_held_is_room(start: Start) -> None:
    caller, target = caller_on(start, "t4:1"), target_on(start, "t4:1")
    other = start("checkpoint", "t4:1")
    freeze(caller, target)
    other("begin")
    while other("call", "cuMemAlloc", GIB)[0] == SUCCESS:
        pass
    other.kill()
    thaw(caller, target)


def stays_locked(caller: Program, target: Program) -> None:
    """What cannot be taken off goes on as before."""
    assert caller("lock", target.pid) == SUCCESS
    assert caller("checkpoint", target.pid) == NOT_SUPPORTED
    assert state(caller, target) == LOCKED
    assert caller("restore", target.pid) == ILLEGAL_STATE
    assert caller("unlock", target.pid) == SUCCESS
    assert state(caller, target) == RUNNING
    address = target("call", "cuMemGetAddressRange", "$memory")[1]
    assert target("read", address, 64) == [7] * 64


def test_managed_memory_is_not_taken_off(start: Start) -> None:
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


def test_one_on_two_gpus_is_not_taken_off(start: Start) -> None:
    caller, target = caller_on(start, "h100:2"), target_on(start, "h100:2")
    target("keep", "second", "cuDevicePrimaryCtxRetain", 1)
    stays_locked(caller, target)


def test_one_with_anothers_memory_does_not_come_back(start: Start) -> None:
    caller, nvml = caller_on(start), nvml_on(start)
    giver, taker = target_on(start), target_on(start)
    number = giver("share", "shared")
    assert taker("borrow", "theirs", f"/proc/{giver.pid}/fd/{number}") == SUCCESS
    freeze(caller, giver)  # who gave does
    thaw(caller, giver)
    before = used(nvml)
    freeze(caller, taker)
    away = used(nvml)
    assert away < before
    for anyone in (caller, caller_on(start)):
        assert anyone("restore", taker.pid) == NOT_SUPPORTED
        assert anyone("unlock", taker.pid) == ILLEGAL_STATE
        assert (state(anyone, taker), used(nvml)) == (CHECKPOINTED, away)


def test_one_that_gave_anothers_memory_back_comes_back(start: Start) -> None:
    caller, giver, taker = caller_on(start), target_on(start), target_on(start)
    number = giver("share", "shared")
    assert taker("borrow", "theirs", f"/proc/{giver.pid}/fd/{number}") == SUCCESS
    assert taker("call", "cuMemRelease", "$theirs") == [SUCCESS]
    freeze(caller, taker)
    thaw(caller, taker)
