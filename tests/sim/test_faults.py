"""An illegal access ends its context, and nothing else."""

from __future__ import annotations

import pytest

from sim.conftest import Start
from sim.program import Program

SUCCESS, INVALID_VALUE, ILLEGAL_ADDRESS = 0, 1, 700
NON_BLOCKING = 1
MS, HOUR = 1_000_000, 3600 * 10**9


@pytest.fixture
def program(start: Start) -> Program:
    program = start("driver")
    program("begin")
    program("load")
    program("words", "page")
    for number in range(2):
        program("keep", f"s{number}", "cuStreamCreate", NON_BLOCKING)
    program("keep", "event", "cuEventCreate", 0)
    return program


def fault(program: Program) -> None:
    assert program("launch", "fault", "s0") == SUCCESS
    assert program("call", "cuStreamSynchronize", "$s0") == [ILLEGAL_ADDRESS]


def test_every_later_call_returns_the_fault(program: Program) -> None:
    _, address = program("call", "cuMemAlloc", 4096)
    fault(program)
    codes = {
        "launch": program("launch", "spin", "s1", 1),
        "wait": program("wait_word", "s1", "page", 0, 1),
        "write": program("write_word", "s1", "page", 0, 1),
        "batch": program("batch", "cuStreamBatchMemOp_v2", "s1", ["write64", "page", 1]),
        "register": program("words", "other", "registered"),
    }
    for call in (
        ["cuCtxSynchronize"],
        ["cuStreamSynchronize", "$s1"],
        ["cuStreamSynchronize", 0],
        ["cuStreamQuery", "$s1"],
        ["cuStreamWaitEvent", "$s1", "$event", 0],
        ["cuStreamCreate", NON_BLOCKING],
        ["cuStreamDestroy", "$s1"],
        ["cuEventRecord", "$event", "$s1"],
        ["cuEventQuery", "$event"],
        ["cuEventSynchronize", "$event"],
        ["cuEventCreate", 0],
        ["cuMemAlloc", 4096],
        ["cuMemAllocAsync", 4096, "$s1"],
        ["cuMemFree", address],
        ["cuMemsetD8", address, 0, 16],
        ["cuMemGetInfo"],
        ["cuModuleUnload", "$module"],
    ):
        codes[" ".join(map(str, call))] = program("call", *call)[0]
    assert set(codes.values()) == {ILLEGAL_ADDRESS}, codes


def test_the_current_device_can_be_queried_after_a_fault(program: Program) -> None:
    fault(program)
    assert program("call", "cuCtxGetDevice") == [SUCCESS, 0]
    assert program("call", "cuCtxGetCurrent")[0] == SUCCESS
    assert program("call", "cuDeviceGetCount") == [SUCCESS, 1]
    assert program("call", "cuCtxSetCurrent", "$context") == [SUCCESS]


def test_operations_that_had_not_begun_are_dropped(program: Program) -> None:
    program("wait_word", "s1", "page", 0, 1)
    program("write_word", "s1", "page", 1, 1)
    program("write_word", "s0", "page", 2, 1)
    program("launch", "fault", "s0")
    program("write_word", "s0", "page", 3, 1)
    program("launch", "set", "s0", "page+32", 1)
    assert program("call", "cuStreamSynchronize", "$s1") == [ILLEGAL_ADDRESS]
    program("word", "page", 0, 1)
    assert program("call", "cuStreamQuery", "$s1") == [ILLEGAL_ADDRESS]
    assert [program("word", "page", index) for index in range(1, 5)] == [0, 1, 0, 0]


def test_running_kernels_of_the_context_leave_the_gpu(start: Start, program: Program) -> None:
    program("launch", "wait", "s1", "page", 1)
    fault(program)
    other = start("driver")
    other("begin")
    other("load")
    assert other("spins_took", MS, 10) == pytest.approx(10, rel=0.1)


def test_a_fault_does_not_affect_other_processes(start: Start, program: Program) -> None:
    other = start("driver")
    other("begin")
    other("load")
    other("words", "page")
    other("keep", "s0", "cuStreamCreate", NON_BLOCKING)
    other("wait_word", "s0", "page", 0, 1)
    other("spin", MS, "s0", 3)
    other("write_word", "s0", "page", 1, 9)
    fault(program)
    program.kill()
    other("word", "page", 0, 1)
    assert other("call", "cuCtxSynchronize") == [SUCCESS]
    assert other("word", "page", 1) == 9


def test_a_fault_does_not_affect_other_contexts_of_the_process(program: Program) -> None:
    program("keep", "second", "cuCtxCreate", None, 0, 0)
    program("call", "cuCtxSetCurrent", "$context")
    fault(program)
    program("call", "cuCtxSetCurrent", "$second")
    assert program("call", "cuMemAlloc", 4096)[0] == SUCCESS
    program("load")
    program("spin", MS)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


def test_the_process_can_go_on_after_a_reset(program: Program) -> None:
    fault(program)
    assert program("call", "cuDevicePrimaryCtxReset", 0) == [SUCCESS]
    assert program("begin") == SUCCESS
    assert program("load") == SUCCESS
    program("spin", MS)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


@pytest.mark.parametrize(
    ("kernel", "kind", "offset"),
    [
        ("set", "sealed", 0),
        ("set", "pinned", 1 << 40),
        ("wait", "pinned", 1 << 40),
        ("set", "pinned", 4),
    ],
)
def test_a_kernel_with_an_invalid_address_is_a_fault(
    program: Program, kernel: str, kind: str, offset: int
) -> None:
    program("words", "bad", kind)
    program("launch", kernel, "s0", f"bad+{offset}", 1)
    assert program("call", "cuStreamSynchronize", "$s0") == [ILLEGAL_ADDRESS]
