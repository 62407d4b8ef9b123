"""The engine's paper: every nanosecond of a GPU is written down once, for the right process.

The engine is compiled alone, with a clock that the test moves (engine_on_paper.c): who looks, when,
and how late is all chosen here.
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


class Paper:
    """The engine of one GPU, and the clock."""

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
            function = getattr(self._library, f"paper_{name}")
            function.argtypes, function.restype = arguments, ctypes.c_uint64
        self.now = START

    def reset(self) -> None:
        self._library.paper_reset()
        self.pass_time(START - self.now)

    def pass_time(self, ns: int) -> None:
        self.now += ns
        self._library.paper_clock(self.now)

    def submit(self, process: int, ready: int, ns: int, *, more: bool = False) -> None:
        self._library.paper_submit(process, ready, ns, more)

    def end(self, process: int) -> int:
        """When the process's kernel ended; 0: it has not."""
        return int(self._library.paper_end(process))

    def release(self, process: int) -> None:
        self._library.paper_release(process)

    def leave(self, process: int) -> None:
        self._library.paper_leave(process)

    def busy(self, process: int) -> int:
        return int(self._library.paper_busy(process))

    def gpu_busy(self) -> int:
        return int(self._library.paper_gpu_busy())


@dataclass(frozen=True)
class Kernel:
    gap: int  # between the end of the one before it and its own being ready
    ns: int


@dataclass
class Tenant:
    """A process with kernels to run, which does what a worker thread does when it wakes up."""

    paper: Paper
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
            if ready > self.paper.now:
                break
            self.ready.append(ready)
            more = number + 1 < len(self.kernels) and not self.kernels[number + 1].gap
            self.paper.submit(self.number, ready, kernel.ns, more=more)
            self.at_engine = True
        if not self.at_engine:
            self.paper.leave(self.number)

    def _take_ended(self) -> bool:
        end = self.at_engine and self.paper.end(self.number)
        if end:
            self.ends.append(end)
            self.at_engine = False
        return not self.at_engine


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = (HERE / "engine_on_paper.c").read_text("ascii")
    flags = ("-std=gnu11", "-D_GNU_SOURCE", f"-I{SIM}")
    return compile_library(tmp_path_factory.mktemp("engine"), "libpaper.so", source, *flags)


@pytest.fixture(scope="session")
def paper(library: Path) -> Paper:
    return Paper(library)


durations = st.one_of(st.integers(0, 50 * US), st.integers(0, 7 * MS))
back_to_back = st.builds(Kernel, gap=st.just(0), ns=durations)
with_gaps = st.builds(Kernel, gap=st.sampled_from([0, 0, 1, 30 * US, 3 * MS]), ns=durations)
looks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * MS)), max_size=60)


def run(paper: Paper, work: list[list[Kernel]], looked: list[tuple[int, int]]) -> list[Tenant]:
    """All of the work; first looked at as told, then by everyone again and again."""
    paper.reset()
    tenants = [Tenant(paper, number, kernels) for number, kernels in enumerate(work)]
    for who, step in looked:
        paper.pass_time(step)
        tenants[who % len(tenants)].look()
        assert paper.gpu_busy() == sum(paper.busy(tenant.number) for tenant in tenants)
    while not all(tenant.finished for tenant in tenants):
        paper.pass_time(500 * US)
        for tenant in tenants:
            tenant.look()
    return tenants


@given(work=st.lists(st.lists(with_gaps, min_size=1, max_size=8), min_size=1, max_size=4), at=looks)
def test_no_kernel_loses_or_gains_time(
    paper: Paper, work: list[list[Kernel]], at: list[tuple[int, int]]
) -> None:
    tenants = run(paper, work, at)
    for tenant in tenants:
        assert paper.busy(tenant.number) == sum(kernel.ns for kernel in tenant.kernels)
        for kernel, ready, end in zip(tenant.kernels, tenant.ready, tenant.ends, strict=True):
            assert end - ready >= kernel.ns
    assert paper.gpu_busy() == sum(kernel.ns for kernels in work for kernel in kernels)


@given(kernels=st.lists(with_gaps, min_size=1, max_size=20), at=looks)
def test_alone_a_kernel_starts_when_it_is_ready(
    paper: Paper, kernels: list[Kernel], at: list[tuple[int, int]]
) -> None:
    [tenant] = run(paper, [kernels], at)
    assert [end - ready for ready, end in zip(tenant.ready, tenant.ends, strict=True)] == [
        kernel.ns for kernel in kernels
    ]


@given(
    work=st.lists(st.lists(back_to_back, min_size=1, max_size=8), min_size=1, max_size=4), at=looks
)
def test_no_time_is_lost_however_late_anyone_looks(
    paper: Paper, work: list[list[Kernel]], at: list[tuple[int, int]]
) -> None:
    tenants = run(paper, work, at)
    last = max(tenant.ends[-1] for tenant in tenants)
    assert last - START == sum(kernel.ns for kernels in work for kernel in kernels)


@pytest.mark.parametrize("ns", [[10 * US, 30 * MS], [700 * US, 5 * MS], [10 * US, 10 * US]])
@pytest.mark.parametrize("late", [10 * US, 300 * US, 4 * MS])
def test_processes_share_by_time_whatever_their_kernels(
    paper: Paper, ns: list[int], late: int
) -> None:
    paper.reset()
    tenants = [Tenant(paper, number, [Kernel(0, each)] * 9_000) for number, each in enumerate(ns)]
    for tenant in tenants:
        tenant.look()
    while paper.gpu_busy() < 90 * MS:
        for tenant in tenants:
            paper.pass_time(late)
            tenant.look()
    assert abs(paper.busy(0) - paper.busy(1)) <= SLICE


def test_a_process_keeps_its_slice_from_kernel_to_kernel(paper: Paper) -> None:
    paper.reset()
    first = Tenant(paper, 0, [Kernel(0, 500 * US)] * 8)
    second = Tenant(paper, 1, [Kernel(0, 10 * MS)])
    first.look()
    second.look()
    while not first.finished:
        paper.pass_time(100 * US)
        first.look()
        second.look()
    half_ms = [(end - START) // (500 * US) for end in first.ends]
    assert half_ms == [1, 2, 3, 4, 9, 10, 11, 12]


def test_one_that_stops_in_its_slice_is_not_waited_for_long(paper: Paper) -> None:
    paper.reset()
    paper.submit(0, START, 100 * US, more=True)
    paper.submit(1, START, MS)
    paper.pass_time(10 * MS)
    assert paper.end(1) == 0
    paper.pass_time(25 * MS)
    assert paper.end(1) == START + 100 * US + MS


def test_one_that_spins_takes_turns_with_the_others(paper: Paper) -> None:
    paper.reset()
    paper.submit(0, START, SPINS)
    paper.submit(1, START, 10 * MS)
    paper.pass_time(50 * MS)
    assert paper.end(1) == START + 20 * MS
    paper.release(0)
    assert paper.end(0) == START + 50 * MS
    assert (paper.busy(0), paper.busy(1)) == (40 * MS, 10 * MS)


def test_one_that_spins_ends_when_it_next_has_the_gpu(paper: Paper) -> None:
    paper.reset()
    paper.submit(0, START, SPINS)
    paper.submit(1, START, 10 * MS)
    paper.pass_time(3 * MS)
    paper.release(0)
    assert paper.end(0) == 0
    paper.pass_time(2 * MS)
    assert paper.end(0) == START + 4 * MS
    paper.pass_time(20 * MS)
    assert paper.end(1) == START + 12 * MS
    assert paper.busy(0) == 2 * MS


def test_a_kernel_of_its_own_process_runs_beside_one_that_spins(paper: Paper) -> None:
    paper.reset()
    paper.submit(0, START, SPINS)
    paper.pass_time(5 * MS)
    paper.submit(0, START + 4 * MS, 10 * MS)
    paper.pass_time(20 * MS)
    assert paper.end(0) == START + 14 * MS
    paper.submit(0, START + 14 * MS, SPINS)
    paper.pass_time(5 * MS)
    paper.release(0)
    assert paper.end(0) == START + 30 * MS
    assert paper.busy(0) == paper.gpu_busy() == 30 * MS


def test_a_kernel_that_is_dropped_is_counted_as_far_as_it_came(paper: Paper) -> None:
    paper.reset()
    paper.submit(0, START, 100 * MS)
    paper.pass_time(7 * MS)
    paper.leave(0)
    paper.submit(1, START, MS)
    paper.pass_time(20 * MS)
    assert paper.end(1) == START + 8 * MS
    assert (paper.busy(0), paper.busy(1)) == (7 * MS, MS)
