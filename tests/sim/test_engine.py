"""The engine's schedule: every nanosecond of a GPU is recorded once, for the right process.

The engine is compiled alone, with the test's own clock (engine_alone.c): the test chooses which
process looks, when, and how late.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import compile_library

HERE = Path(__file__).resolve().parent
SIM = HERE.parents[1] / "native" / "sim" / "machine"
US, MS = 1_000, 1_000_000
SLICE = 2 * MS
SPINS = (1 << 64) - 1
START = 1_000 * MS


class Engine:
    """The engine of one GPU, and its clock."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        for name, arguments in {
            "reset": [],
            "clock": [ctypes.c_uint64],
            "submit": [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool],
            "end": [ctypes.c_uint32],
            "release": [ctypes.c_uint32],
            "leave": [ctypes.c_uint32],
            "busy": [ctypes.c_uint32],
            "gpu_busy": [],
        }.items():
            function = getattr(self._library, f"engine_test_{name}")
            function.argtypes, function.restype = arguments, ctypes.c_uint64
        self.now = START

    def reset(self) -> None:
        self._library.engine_test_reset()
        self.pass_time(START - self.now)

    def pass_time(self, ns: int) -> None:
        self.now += ns
        self._library.engine_test_clock(self.now)

    def submit(self, process: int, ready: int, ns: int, *, more: bool = False) -> None:
        self._library.engine_test_submit(process, ready, ns, more)

    def end(self, process: int) -> int:
        """When the process's kernel ended; 0: it has not ended."""
        return int(self._library.engine_test_end(process))

    def release(self, process: int) -> None:
        self._library.engine_test_release(process)

    def leave(self, process: int) -> None:
        self._library.engine_test_leave(process)

    def busy(self, process: int) -> int:
        return int(self._library.engine_test_busy(process))

    def gpu_busy(self) -> int:
        return int(self._library.engine_test_gpu_busy())


@dataclass(frozen=True)
class Kernel:
    gap: int  # from the end of the previous kernel until this one is ready
    ns: int


@dataclass
class Tenant:
    """A process with kernels to run, which does what a worker thread does when it wakes up."""

    engine: Engine
    number: int
    kernels: list[Kernel]
    ready: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    at_engine: bool = False

    @property
    def finished(self) -> bool:
        return len(self.ends) == len(self.kernels)

    def look(self) -> None:
        while self._take_ended() and not self.finished:
            number = len(self.ends)
            kernel = self.kernels[number]
            ready = (self.ends[-1] if self.ends else START) + kernel.gap
            if ready > self.engine.now:
                break
            self.ready.append(ready)
            more = number + 1 < len(self.kernels) and not self.kernels[number + 1].gap
            self.engine.submit(self.number, ready, kernel.ns, more=more)
            self.at_engine = True
        if not self.at_engine:
            self.engine.leave(self.number)

    def _take_ended(self) -> bool:
        end = self.at_engine and self.engine.end(self.number)
        if end:
            self.ends.append(end)
            self.at_engine = False
        return not self.at_engine


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = (HERE / "engine_alone.c").read_text("ascii")
    flags = ("-std=gnu11", "-D_GNU_SOURCE", f"-I{SIM}")
    return compile_library(tmp_path_factory.mktemp("engine"), "libengine.so", source, *flags)


@pytest.fixture(scope="session")
def engine(library: Path) -> Engine:
    return Engine(library)


durations = st.one_of(st.integers(0, 50 * US), st.integers(0, 7 * MS))
back_to_back = st.builds(Kernel, gap=st.just(0), ns=durations)
with_gaps = st.builds(Kernel, gap=st.sampled_from([0, 0, 1, 30 * US, 3 * MS]), ns=durations)
looks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * MS)), max_size=60)


def run(engine: Engine, work: list[list[Kernel]], looked: list[tuple[int, int]]) -> list[Tenant]:
    """Run all the work: the processes look as in `looked`, then all of them repeatedly."""
    engine.reset()
    tenants = [Tenant(engine, number, kernels) for number, kernels in enumerate(work)]
    for who, step in looked:
        engine.pass_time(step)
        tenants[who % len(tenants)].look()
        assert engine.gpu_busy() == sum(engine.busy(tenant.number) for tenant in tenants)
    while not all(tenant.finished for tenant in tenants):
        engine.pass_time(500 * US)
        for tenant in tenants:
            tenant.look()
    return tenants


@given(work=st.lists(st.lists(with_gaps, min_size=1, max_size=8), min_size=1, max_size=4), at=looks)
def test_no_kernel_loses_or_gains_time(
    engine: Engine, work: list[list[Kernel]], at: list[tuple[int, int]]
) -> None:
    tenants = run(engine, work, at)
    for tenant in tenants:
        assert engine.busy(tenant.number) == sum(kernel.ns for kernel in tenant.kernels)
        for kernel, ready, end in zip(tenant.kernels, tenant.ready, tenant.ends, strict=True):
            assert end - ready >= kernel.ns
    assert engine.gpu_busy() == sum(kernel.ns for kernels in work for kernel in kernels)


@given(kernels=st.lists(with_gaps, min_size=1, max_size=20), at=looks)
def test_the_only_kernel_starts_when_it_is_ready(
    engine: Engine, kernels: list[Kernel], at: list[tuple[int, int]]
) -> None:
    [tenant] = run(engine, [kernels], at)
    assert [end - ready for ready, end in zip(tenant.ready, tenant.ends, strict=True)] == [
        kernel.ns for kernel in kernels
    ]


@given(
    work=st.lists(st.lists(back_to_back, min_size=1, max_size=8), min_size=1, max_size=4), at=looks
)
def test_no_gpu_time_is_lost_however_late_the_processes_look(
    engine: Engine, work: list[list[Kernel]], at: list[tuple[int, int]]
) -> None:
    tenants = run(engine, work, at)
    last = max(tenant.ends[-1] for tenant in tenants)
    assert last - START == sum(kernel.ns for kernels in work for kernel in kernels)


@pytest.mark.parametrize("ns", [[10 * US, 30 * MS], [700 * US, 5 * MS], [10 * US, 10 * US]])
@pytest.mark.parametrize("late", [10 * US, 300 * US, 4 * MS])
def test_processes_get_equal_time_whatever_their_kernels(
    engine: Engine, ns: list[int], late: int
) -> None:
    engine.reset()
    tenants = [Tenant(engine, number, [Kernel(0, each)] * 9_000) for number, each in enumerate(ns)]
    for tenant in tenants:
        tenant.look()
    while engine.gpu_busy() < 90 * MS:
        for tenant in tenants:
            engine.pass_time(late)
            tenant.look()
    assert abs(engine.busy(0) - engine.busy(1)) <= SLICE


def test_a_process_keeps_its_slice_between_kernels(engine: Engine) -> None:
    engine.reset()
    first = Tenant(engine, 0, [Kernel(0, 500 * US)] * 8)
    second = Tenant(engine, 1, [Kernel(0, 10 * MS)])
    first.look()
    second.look()
    while not first.finished:
        engine.pass_time(100 * US)
        first.look()
        second.look()
    half_ms = [(end - START) // (500 * US) for end in first.ends]
    assert half_ms == [1, 2, 3, 4, 9, 10, 11, 12]


def test_the_engine_does_not_wait_long_for_a_process_that_stops_in_its_slice(
    engine: Engine,
) -> None:
    engine.reset()
    engine.submit(0, START, 100 * US, more=True)
    engine.submit(1, START, MS)
    engine.pass_time(10 * MS)
    assert engine.end(1) == 0
    engine.pass_time(25 * MS)
    assert engine.end(1) == START + 100 * US + MS


def test_a_spinning_kernel_takes_turns_with_other_processes(engine: Engine) -> None:
    engine.reset()
    engine.submit(0, START, SPINS)
    engine.submit(1, START, 10 * MS)
    engine.pass_time(50 * MS)
    assert engine.end(1) == START + 20 * MS
    engine.release(0)
    assert engine.end(0) == START + 50 * MS
    assert (engine.busy(0), engine.busy(1)) == (40 * MS, 10 * MS)


def test_a_released_kernel_ends_when_it_next_has_the_gpu(engine: Engine) -> None:
    engine.reset()
    engine.submit(0, START, SPINS)
    engine.submit(1, START, 10 * MS)
    engine.pass_time(3 * MS)
    engine.release(0)
    assert engine.end(0) == 0
    engine.pass_time(2 * MS)
    assert engine.end(0) == START + 4 * MS
    engine.pass_time(20 * MS)
    assert engine.end(1) == START + 12 * MS
    assert engine.busy(0) == 2 * MS


def test_a_kernel_of_the_same_process_replaces_a_spinning_one(engine: Engine) -> None:
    engine.reset()
    engine.submit(0, START, SPINS)
    engine.pass_time(5 * MS)
    engine.submit(0, START + 4 * MS, 10 * MS)
    engine.pass_time(20 * MS)
    assert engine.end(0) == START + 14 * MS
    engine.submit(0, START + 14 * MS, SPINS)
    engine.pass_time(5 * MS)
    engine.release(0)
    assert engine.end(0) == START + 30 * MS
    assert engine.busy(0) == engine.gpu_busy() == 30 * MS


def test_a_dropped_kernel_counts_for_the_time_it_ran(engine: Engine) -> None:
    engine.reset()
    engine.submit(0, START, 100 * MS)
    engine.pass_time(7 * MS)
    engine.leave(0)
    engine.submit(1, START, MS)
    engine.pass_time(20 * MS)
    assert engine.end(1) == START + 8 * MS
    assert (engine.busy(0), engine.busy(1)) == (7 * MS, MS)
