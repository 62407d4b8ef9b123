"""Streams share hardware queues: a waiting operation blocks everything behind it in its queue."""

from __future__ import annotations

import pytest

from sim.conftest import Start
from sim.program import Program

SUCCESS, NOT_READY = 0, 600
NON_BLOCKING = 1
MS = 1_000_000


def program_with(start: Start, streams: int, connections: str | None = None) -> Program:
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {}
    program = start("driver", **variables)
    program("begin")
    program("load")
    program("words", "page")
    for number in range(streams):
        program("keep", f"s{number}", "cuStreamCreate", NON_BLOCKING)
    return program


def is_blocked(program: Program, stream: str) -> bool:
    """Whether a stream still has work after everything that can run has run."""
    program("pass_by")
    return bool(program("call", "cuStreamQuery", f"${stream}") == [NOT_READY])


@pytest.mark.parametrize(
    ("connections", "shared"), [(None, 8), ("8", 8), ("3", 3), ("32", 32), ("0", 8), ("x", 8)]
)
def test_streams_get_queues_round_robin(start: Start, connections: str | None, shared: int) -> None:
    program = program_with(start, shared + 1, connections)
    program("wait_word", "s0", "page", 0, 1)
    for number in range(1, shared + 1):
        program("spin", 1000, f"s{number}")
    for number in range(1, shared):
        assert program("call", "cuStreamSynchronize", f"$s{number}") == [SUCCESS]
    assert is_blocked(program, f"s{shared}")
    program("word", "page", 0, 1)
    assert program("call", "cuStreamSynchronize", f"$s{shared}") == [SUCCESS]


def test_with_one_queue_a_waiting_stream_blocks_all_others(start: Start) -> None:
    program = program_with(start, 2, "1")
    program("wait_word", "s0", "page", 0, 1)
    program("spin", 1000, "s1")
    program("spin", 1000)
    assert [is_blocked(program, stream) for stream in ("s0", "s1")] == [True, True]
    assert program("call", "cuStreamQuery", 0) == [NOT_READY]
    program("word", "page", 0, 1)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


def test_a_write_behind_another_streams_wait_is_blocked(start: Start) -> None:
    """Why all writes of a quantum are submitted before the waits of the next."""
    program = program_with(start, 2, "1")
    program("wait_word", "s0", "page", 0, 1)
    program("spin", 1000, "s0")
    program("wait_word", "s1", "page", 0, 2)
    program("write_word", "s0", "page", 1, 1)
    program("word", "page", 0, 1)
    assert is_blocked(program, "s0")
    assert program("word", "page", 1) == 0
    program("word", "page", 0, 2)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]
    assert program("word", "page", 1) == 1


@pytest.mark.parametrize("connections", ["1", "2", "8"])
def test_waits_and_writes_in_the_right_order_never_deadlock(start: Start, connections: str) -> None:
    """Many streams, several quanta ahead: each quantum's writes run when its credit is there."""
    streams, quanta = 40, 4
    program = program_with(start, streams, connections)
    for quantum in range(1, quanta + 1):
        for number in range(streams):
            program("wait_word", f"s{number}", "page", 0, quantum)
            program("spin", 20_000, f"s{number}")
        for number in range(streams):
            program("write_word", f"s{number}", "page", 1 + number, quantum)
    for quantum in range(1, quanta + 1):
        program("word", "page", 0, quantum)
        for number in range(streams):
            program("wait_until_word", "page", 1 + number, quantum)


def test_an_issued_kernel_does_not_block_its_queue(start: Start) -> None:
    program = program_with(start, 2, "1")
    program("launch", "wait", "s0", "page", 1)
    program("launch", "set", "s1", "page", 1)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


def test_a_kernel_that_waits_for_its_own_stream_blocks_the_queue(start: Start) -> None:
    program = program_with(start, 2, "1")
    program("launch", "wait", "s0", "page", 1)
    program("spin", 1000, "s0")
    program("spin", 1000, "s1")
    assert is_blocked(program, "s1")
    program("word", "page", 0, 1)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


def test_a_stream_that_waits_for_an_event_blocks_the_queue(start: Start) -> None:
    program = program_with(start, 3, "2")  # s0, s2: the queue without the default stream
    program("keep", "event", "cuEventCreate", 0)
    program("wait_word", "s1", "page", 0, 1)
    program("call", "cuEventRecord", "$event", "$s1")
    program("call", "cuStreamWaitEvent", "$s0", "$event", 0)
    program("spin", 1000, "s2")
    assert is_blocked(program, "s2")
    program("word", "page", 0, 1)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


def test_copies_have_separate_queues(start: Start) -> None:
    program = program_with(start, 1, "1")
    address = program("call", "cuMemAlloc", 4096)[1]
    program("wait_word", "s0", "page", 0, 1)
    assert program("round_trip", address, 4096)
    assert is_blocked(program, "s0")
    program("word", "page", 0, 1)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]


def test_a_kernel_starts_after_the_value_before_it_was_seen(start: Start) -> None:
    """The start is not before the value was seen, even if the wait was in another stream."""
    program = program_with(start, 2, "1")
    for event in ("before", "after"):
        program("keep", event, "cuEventCreate", 0)
    program("call", "cuEventRecord", "$before", "$s1")
    program("wait_word", "s0", "page", 0, 1)
    program("spin", MS, "s1")
    program("call", "cuEventRecord", "$after", "$s1")
    took = program("open_after", "page", 30 * MS)
    assert program("call", "cuEventSynchronize", "$after") == [SUCCESS]
    code, ms = program("call", "cuEventElapsedTime", "$before", "$after")
    assert code == SUCCESS
    assert ms >= took * 1000 + 1


def test_contexts_have_separate_queues(start: Start) -> None:
    program = program_with(start, 1, "1")
    program("wait_word", "s0", "page", 0, 1)
    program("keep", "second", "cuCtxCreate", None, 0, 0)
    program("load")
    program("spin", 1000)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]
    program("call", "cuCtxDestroy", "$second")
    program("word", "page", 0, 1)
