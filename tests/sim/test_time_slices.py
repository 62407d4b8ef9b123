"""Processes share the GPU in time slices, and spinning kernels wait for each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import gpu_time
from sim.conftest import Start
from sim.program import Program
from support import wait_until

SUCCESS, NOT_READY = 0, 600
NON_BLOCKING = 1
US, MS, HOUR = 1_000, 1_000_000, 3600 * 10**9


@pytest.fixture
def place(sim_env: dict[str, str]) -> Path:
    return Path(sim_env["ALIQUOT_SIMULATE_STATE"])


def program_on(
    start: Start, *, device: int = 0, streams: int = 0, shape: str = "h100:1"
) -> Program:
    """A program with kernels and streams "s0", "s1", ... on a device."""
    program = start("driver", shape=shape)
    program("begin", device)
    program("load")
    for number in range(streams):
        program("keep", f"s{number}", "cuStreamCreate", NON_BLOCKING)
    return program


def busy(place: Path, program: Program, gpu: int = 0) -> int:
    return gpu_time.busy_ns(place).get((program.pid, gpu), 0)


@pytest.mark.parametrize(("ns", "times"), [(40 * MS, 1), (MS, 40), (10 * US, 4000)])
def test_a_long_kernel_of_another_process_takes_every_second_slice(
    start: Start, place: Path, ns: int, times: int
) -> None:
    hog, program = program_on(start), program_on(start)
    hog("spin", HOUR)
    wait_until(lambda: busy(place, hog) > 0)
    assert program("spins_took", ns, times) == pytest.approx(80, rel=0.25)
    assert busy(place, program) == ns * times


def test_many_processes_have_equal_shares(start: Start, place: Path) -> None:
    programs = [program_on(start) for _ in range(4)]
    for program in programs:
        program("spin", HOUR)
    before = gpu_time.read(place)
    wait_until(lambda: gpu_time.read(place).gpus[0] > before.gpus[0] + 400 * MS)
    after = gpu_time.read(place)
    keys = [(program.pid, 0) for program in programs]
    parts = [after.processes[key] - before.processes.get(key, 0) for key in keys]
    assert max(parts) - min(parts) < 20 * MS


def test_every_kernel_runs_for_exactly_its_duration(start: Start, place: Path) -> None:
    programs = [program_on(start) for _ in range(3)]
    for number, program in enumerate(programs, 1):
        program.ask("spin_timed", number * 700 * US + number, 20)
    for program in programs:
        program.answer()
    for number, program in enumerate(programs, 1):
        assert busy(place, program) == 20 * (number * 700 * US + number)
    found = gpu_time.read(place)
    assert found.gpus[0] == sum(found.processes.values())


def test_a_kernel_that_never_ends_takes_only_its_slices(start: Start, place: Path) -> None:
    hog, program = program_on(start), program_on(start)
    hog("spin", (1 << 64) - 1)
    wait_until(lambda: busy(place, hog) > 0)
    assert program("spins_took", 5 * MS, 8) == pytest.approx(80, rel=0.25)
    assert hog("call", "cuCtxGetDevice") == [SUCCESS, 0]
    assert hog("call", "cuStreamQuery", 0) == [NOT_READY]


@pytest.mark.parametrize("kind", ["pinned", "managed", "device", "registered", "duplicate"])
def test_a_kernel_spins_until_another_stream_writes_its_value(
    start: Start, place: Path, kind: str
) -> None:
    program = program_on(start, streams=2)
    assert program("words", "page", kind) == SUCCESS
    assert program("launch", "set", "s0", "page+8", 0) == SUCCESS
    assert program("launch", "wait", "s0", "page+8", 7) == SUCCESS
    wait_until(lambda: busy(place, program) > 5 * MS)
    assert program("call", "cuStreamQuery", "$s0") == [NOT_READY]
    assert program("launch", "set", "s1", "page+8", 6) == SUCCESS
    assert program("call", "cuStreamSynchronize", "$s1") == [SUCCESS]
    assert program("call", "cuStreamQuery", "$s0") == [NOT_READY]
    assert program("launch", "set", "s1", "page+8", 8) == SUCCESS
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]


def test_the_host_ends_a_wait_through_a_page_that_the_gpu_cannot_write(start: Start) -> None:
    program = program_on(start, streams=1)
    assert program("words", "page", "sealed") == SUCCESS
    program("launch", "wait", "s0", "page", 3)
    program("word", "page", 0, 3)
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]


def test_a_spinning_kernel_blocks_only_its_own_stream(start: Start) -> None:
    program = program_on(start, streams=2)
    program("words", "page")
    program("launch", "wait", "s0", "page", 1)
    program("write_word", "s0", "page", 1, 5)
    assert program("spins_took", MS, 20) == pytest.approx(20, rel=0.1)
    assert program("word", "page", 1) == 0
    program("word", "page", 0, 1)
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]
    assert program("word", "page", 1) == 5


def test_a_spinning_kernel_takes_slices_from_other_processes(start: Start, place: Path) -> None:
    program, other = program_on(start, streams=1), program_on(start)
    program("words", "page")
    program("launch", "wait", "s0", "page", 1)
    wait_until(lambda: busy(place, program) > 0)
    before = busy(place, program)
    assert other("spins_took", 2 * MS, 20) == pytest.approx(80, rel=0.25)
    assert busy(place, program) - before > 25 * MS
    program("word", "page", 0, 1)
    assert program("call", "cuCtxSynchronize") == [SUCCESS]
    ended = busy(place, program)
    other("spin_timed", MS, 5)
    assert busy(place, program) == ended


def test_two_gpus_wait_for_each_other_as_collectives_do(start: Start, place: Path) -> None:
    """One process, two GPUs: each kernel writes that it has arrived, then spins for the other."""
    program = program_on(start, streams=1, shape="h100:2")
    program("words", "first", "device")
    program("keep", "other", "cuDevicePrimaryCtxRetain", 1)
    program("call", "cuCtxSetCurrent", "$other")
    program("words", "second", "device")
    program("call", "cuCtxSetCurrent", "$context")
    for number in range(1, 6):
        program("launch", "set", "s0", "first", number)
        program("launch", "wait", "s0", "second", number)
    program("call", "cuCtxSetCurrent", "$other")
    program("load")
    program("keep", "t0", "cuStreamCreate", NON_BLOCKING)
    assert program("call", "cuStreamQuery", "$s0") == [NOT_READY]
    for number in range(1, 6):
        program("launch", "set", "t0", "second", number)
        program("launch", "wait", "t0", "first", number)
    assert program("call", "cuStreamSynchronize", "$t0") == [SUCCESS]
    assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]
    assert set(gpu_time.read(place).gpus) == {0, 1}


def test_kernels_in_graphs_spin_and_write_at_every_launch(start: Start) -> None:
    program = program_on(start, streams=2)
    program("words", "page")
    program("capture", "s0")
    program("launch", "wait", "s0", "page", 1)
    program("launch", "set", "s0", "page+8", 9)
    program("launch", "set", "s0", "page", 0)
    program("end_capture", "s0", "graph")
    program("keep", "exec", "cuGraphInstantiate", "$graph", 0)
    for _ in range(3):
        program("word", "page", 1, 0)
        assert program("call", "cuGraphLaunch", "$exec", "$s0") == [SUCCESS]
        assert program("call", "cuStreamQuery", "$s0") == [NOT_READY]
        program("word", "page", 0, 1)
        assert program("call", "cuStreamSynchronize", "$s0") == [SUCCESS]
        assert [program("word", "page", index) for index in (0, 1)] == [0, 9]


def test_a_context_can_end_while_a_kernel_spins(start: Start, place: Path) -> None:
    program = program_on(start, streams=1)
    program("words", "page")
    program("launch", "wait", "s0", "page", 1)
    wait_until(lambda: busy(place, program) > 0)
    assert program("call", "cuDevicePrimaryCtxReset", 0) == [SUCCESS]
    ended = busy(place, program)
    other = program_on(start)
    other("spin_timed", MS, 2)
    assert busy(place, program) == ended
