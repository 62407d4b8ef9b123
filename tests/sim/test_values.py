"""Stream memory operations: every version, every kind of memory, and drivers without them."""

from __future__ import annotations

import itertools

import pytest

from sim.conftest import Start
from sim.program import Program

SUCCESS, INVALID_VALUE, NO_DEVICE, NOT_READY, NOT_SUPPORTED = 0, 1, 100, 600, 801
NON_BLOCKING = 1
# CU_DEVICE_ATTRIBUTE_CAN_USE_...: three of the first version, then two of the second
STREAM_OPERATIONS = (92, 93, 94, 122, 123)
HOST_REGISTER, READ_ONLY_HOST_REGISTER = 99, 113
WITHOUT = {"ALIQUOT_SIMULATE_WITHOUT": "stream-memory-operations"}
FORMS = ("", "_v2", "_ptsz", "_v2_ptsz")


@pytest.fixture
def program(start: Start) -> Program:
    return program_on(start)


def program_on(start: Start, **variables: str) -> Program:
    program = start("driver", **variables)
    program("begin")
    program("keep", "s0", "cuStreamCreate", NON_BLOCKING)
    return program


def attributes(program: Program, which: tuple[int, ...]) -> list[int]:
    return [program("attribute", number) for number in which]


@pytest.mark.parametrize("kind", ["pinned", "managed", "registered", "duplicate", "sealed"])
def test_a_stream_waits_for_a_value_in_every_kind_of_memory(program: Program, kind: str) -> None:
    assert program("words", "gate", kind) == SUCCESS
    assert program("words", "mark") == SUCCESS
    for number in range(1, 4):
        assert program("wait_word", "s0", "gate", number, number) == SUCCESS
        assert program("write_word", "s0", "mark", 0, number) == SUCCESS
    for number in range(1, 4):
        assert program("call", "cuStreamQuery", "$s0") == [NOT_READY]
        assert program("word", "mark", 0) == number - 1
        program("word", "gate", number, number)
        program("wait_until_word", "mark", 0, number)
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]


@pytest.mark.parametrize("kind", ["pinned", "managed", "registered", "duplicate"])
def test_a_stream_writes_a_value_in_every_kind_of_memory(program: Program, kind: str) -> None:
    program("words", "mark", kind)
    assert program("write_word", "s0", "mark", 5, 1 << 40) == SUCCESS
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]
    assert program("word", "mark", 5) == 1 << 40


def test_a_page_registered_read_only_is_not_written(program: Program) -> None:
    program("words", "page", "sealed")
    assert program("write_word", "s0", "page", 0, 1) == INVALID_VALUE


@pytest.mark.parametrize("form", FORMS)
def test_every_version_waits_and_writes(program: Program, form: str) -> None:
    for width, stream in itertools.product(("32", "64"), ("s0", None)):
        program("words", "page", "registered")
        assert program("operate", f"cuStreamWaitValue{width}{form}", stream, "page", 4) == SUCCESS
        assert (
            program("operate", f"cuStreamWriteValue{width}{form}", stream, "page+8", 6) == SUCCESS
        )
        assert program("word", "page", 1) == 0
        program("word", "page", 0, 4)
        program("wait_until_word", "page", 1, 6)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_runs_in_order(program: Program, form: str) -> None:
    program("words", "page")
    operations = [
        ["write64", "page+8", 1],
        ["wait64", "page", 1],
        ["write32", "page+16", 2],
        ["wait32", "page", 2],
        ["write64", "page+24", 3],
    ]
    assert program("batch", f"cuStreamBatchMemOp{form}", "s0", *operations) == SUCCESS
    program("wait_until_word", "page", 1, 1)
    assert program("word", "page", 2) == 0
    program("word", "page", 0, 1)
    program("wait_until_word", "page", 2, 2)
    assert program("word", "page", 3) == 0
    program("word", "page", 0, 2)
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]
    assert program("word", "page", 3) == 3


def test_a_written_value_is_seen_soon(program: Program) -> None:
    delays = sorted(program("gate_delays", "s0", 200))
    assert delays[len(delays) // 4] < 0.001


def test_the_device_reports_stream_memory_operations(program: Program) -> None:
    assert attributes(program, STREAM_OPERATIONS) == [1] * 5
    assert attributes(program, (HOST_REGISTER, READ_ONLY_HOST_REGISTER)) == [1, 1]


@pytest.mark.parametrize("form", FORMS)
def test_a_driver_without_the_feature_returns_not_supported(start: Start, form: str) -> None:
    program = program_on(start, **WITHOUT)
    program("words", "page")
    assert attributes(program, STREAM_OPERATIONS) == [0] * 5
    assert attributes(program, (HOST_REGISTER, READ_ONLY_HOST_REGISTER)) == [1, 1]
    for name in ("WaitValue32", "WaitValue64", "WriteValue32", "WriteValue64"):
        assert program("operate", f"cuStream{name}{form}", "s0", "page", 0) == NOT_SUPPORTED
    operation = ["write64", "page", 1]
    assert program("batch", f"cuStreamBatchMemOp{form}", "s0", operation) == NOT_SUPPORTED


def test_an_unknown_feature_cannot_be_switched_off(start: Start) -> None:
    program = start("driver", ALIQUOT_SIMULATE_WITHOUT="gravity")
    assert program("call", "cuInit", 0) == [NO_DEVICE]
