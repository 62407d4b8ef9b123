"""Memory that is freed while work of another context still uses it.

The driver first waits for the work that can end. Work that cannot end faults when its turn comes.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.conftest import Start
from sim.program import Program

SUCCESS, ILLEGAL_ADDRESS = 0, 700
NON_BLOCKING = 1
MIB, MS = 1 << 20, 1_000_000

FREES: dict[str, list[Any]] = {
    "cuDevicePrimaryCtxReset": [0],
    "cuMemFree": ["$memory"],
    "cuMemFreeAsync": ["$memory", 0],
}
USES: dict[str, list[Any]] = {
    "fill": ["call", "cuMemsetD8Async", "$memory", 7, 2 * MIB, "$stream"],
    "copy": ["call", "cuMemcpyDtoDAsync", "$own", "$memory", 2 * MIB, "$stream"],
    "write": ["write_word", "stream", "memory", 0, 1],
    "wait": ["wait_word", "stream", "memory", 0, 0],
    "set": ["launch", "set", "stream", "memory", 1],
}


@pytest.fixture
def program(start: Start) -> Program:
    """`memory` is of the primary context; current is a second one, with `stream`."""
    program = start("driver")
    program("begin")
    assert program("keep", "memory", "cuMemAlloc", 2 * MIB) == SUCCESS
    program("keep", "second", "cuCtxCreate", None, 0, 0)
    program("load")
    program("words", "page")
    program("keep", "own", "cuMemAlloc", 2 * MIB)
    program("keep", "stream", "cuStreamCreate", NON_BLOCKING)
    return program


def free(program: Program, call: str) -> None:
    assert program("call", call, *FREES[call]) == [SUCCESS]


@pytest.mark.parametrize("call", FREES)
@pytest.mark.parametrize("use", USES)
def test_memory_is_freed_after_the_work_of_other_contexts_on_it(
    program: Program, use: str, call: str
) -> None:
    program("spin", 20 * MS, "stream")
    program(*USES[use])
    program("write_word", "stream", "page", 0, 1)
    free(program, call)
    assert program("call", "cuStreamSynchronize", "$stream") == [SUCCESS]
    assert program("word", "page", 0) == 1


@pytest.mark.parametrize("call", FREES)
@pytest.mark.parametrize("use", USES)
def test_work_that_runs_after_its_memory_was_freed_faults(
    program: Program, use: str, call: str
) -> None:
    program("wait_word", "stream", "page", 0, 1)
    program(*USES[use])
    free(program, call)
    program("word", "page", 0, 1)
    assert program("call", "cuStreamSynchronize", "$stream") == [ILLEGAL_ADDRESS]


@pytest.mark.parametrize("call", FREES)
def test_a_wait_for_a_value_in_freed_memory_faults(program: Program, call: str) -> None:
    program("wait_word", "stream", "memory", 0, 1)
    free(program, call)
    assert program("call", "cuStreamSynchronize", "$stream") == [ILLEGAL_ADDRESS]


def test_work_on_other_memory_of_the_context_goes_on(program: Program) -> None:
    program("call", "cuCtxSetCurrent", "$context")
    program("keep", "other", "cuMemAlloc", 2 * MIB)
    program("wait_word", "stream", "page", 0, 1)
    program("call", "cuMemsetD8Async", "$other", 7, 2 * MIB, "$stream")
    free(program, "cuMemFree")
    program("word", "page", 0, 1)
    assert program("call", "cuStreamSynchronize", "$stream") == [SUCCESS]


def test_unmapping_waits_for_nothing_and_work_on_the_memory_faults(program: Program) -> None:
    """As on an H200: only cuMemFree and its kin wait."""
    assert program("physical", "piece", 2 * MIB) == SUCCESS
    code, address = program("call", "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    assert code == SUCCESS
    program("call", "cuMemMap", address, 2 * MIB, 0, "$piece", 0)
    assert program("allow", address, 2 * MIB) == SUCCESS
    program("wait_word", "stream", "page", 0, 1)
    program("call", "cuMemsetD8Async", address, 7, 2 * MIB, "$stream")
    assert program("call", "cuMemUnmap", address, 2 * MIB) == [SUCCESS], "the gate is closed"
    program("word", "page", 0, 1)
    assert program("call", "cuStreamSynchronize", "$stream") == [ILLEGAL_ADDRESS]
