"""Shared by the checkpoint tests: programs, error codes and states."""

from __future__ import annotations

from pathlib import Path

from sim import gpu_time
from sim.conftest import Start
from sim.program import Program

GIB, BASELINE = 1 << 30, 3
USED = 518 + 2 + 1024  # MiB of a target: its context, its module and its memory
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 0, 1, 2, 3, 100
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801
RUNNING, LOCKED, CHECKPOINTED = range(3)
LOCKING = 4  # in the machine's file; for other callers it is RUNNING
STEPS = ("lock", "checkpoint", "restore", "unlock")
NON_BLOCKING = 1


def caller_on(start: Start, shape: str | None = None, **variables: str) -> Program:
    program = start("checkpoint", shape, **variables)
    assert program("call", "cuInit", 0) == [SUCCESS]
    return program


def nvml_on(start: Start, shape: str | None = None) -> Program:
    program = start("nvml", shape)
    assert program("call", "nvmlInit") is None
    return program


def target_on(start: Start, shape: str | None = None) -> Program:
    program = start("checkpoint", shape)
    program("begin")
    program("load")
    program("keep", "s0", "cuStreamCreate", NON_BLOCKING)
    assert program("keep", "memory", "cuMemAlloc", GIB) == SUCCESS
    assert program("call", "cuMemsetD8", "$memory", 7, 64) == [SUCCESS]
    return program


def close_gate(target: Program) -> None:
    target("words", "gate")
    assert target("wait_word", "s0", "gate", 0, 1) == SUCCESS


def entry_of(target: Program, sim_env: dict[str, str]) -> gpu_time.Process:
    """The process's entry in the machine's file."""
    place = Path(sim_env["ALIQUOT_SIMULATE_STATE"]) / "machine"
    lines: list[gpu_time.Process] = gpu_time.Times.from_buffer_copy(place.read_bytes()).processes
    return next(line for line in lines if line.used and line.pid == target.pid)


def used(nvml: Program) -> int:
    """MiB in use of the first GPU, without the driver's own."""
    return int(nvml("memory", 0)[2]) - BASELINE


def state(caller: Program, target: Program) -> int:
    code, found = caller("state", target.pid)
    assert code == SUCCESS
    return int(found)


def freeze(caller: Program, target: Program) -> None:
    assert caller("lock", target.pid, 10_000) == SUCCESS
    assert caller("checkpoint", target.pid) == SUCCESS


def thaw(caller: Program, target: Program) -> None:
    assert caller("restore", target.pid) == SUCCESS
    assert caller("unlock", target.pid) == SUCCESS
