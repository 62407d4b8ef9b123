"""Within the limits, the stand-in answers every sequence of calls as the driver alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, TESTS

EXAMPLES = 300

Call = list[Any]

FITTING = [0, 1, 511, 512, 513, MIB, MIB + 1, 2 * MIB, 3 * MIB, 32 * MIB, 33 * MIB, 64 * MIB]
# No GPU has as much memory as the last ones. They are used only if all other arguments are valid:
# drivers differ in which of several errors they report.
SIZES = st.sampled_from([*FITTING, 1 << 50, (1 << 63) + 1, (1 << 64) - 1])
FIT = st.sampled_from(FITTING)
PAGES = st.sampled_from([0, 1, 2 * MIB, 4 * MIB, 3 * MIB, 64 * MIB, 1 << 50, (1 << 50) + 1])
PICK = st.integers(0, 5)
STREAM = st.integers(0, 2)
WIDTHS = st.sampled_from([0, 1, 512, 513, 1 << 16, 1 << 50, (1 << 64) - 1])
SIDES = st.sampled_from([0, 1, 33, 1000, 2048])


def call(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(name), *arguments).map(list)


# The most telling ones stand twice.
CALLS = st.one_of(
    call("alloc", SIZES),
    call("alloc", SIZES),
    call("alloc_pitch", WIDTHS, SIDES, st.sampled_from([1, 3, 4, 8, 16])),
    call("alloc_managed", SIZES, st.integers(0, 4)),
    call("alloc_async", FIT, STREAM),
    call("alloc_async", SIZES, st.just(0)),
    call("alloc_from", FIT, PICK, STREAM),
    call("free", PICK),
    call("free", PICK),
    call("free_pooled", PICK),
    call("free_async", PICK, STREAM),
    call("free_plain_async", PICK),
    call("free_inside", PICK),
    call("free_nothing"),
    call("touch", PICK, st.integers(0, 255)),
    call("ask", PICK, PICK),
    call("ask", PICK, PICK),
    call("set_sync", PICK, st.integers(0, 1)),
    call("misuse", PICK),
    call("create_context"),
    call("destroy_context", PICK),
    call("push", PICK),
    call("pop"),
    call("set_current", PICK),
    call("current"),
    call("retain"),
    call("release"),
    call("reset"),
    call("synchronize"),
    call("total_is_told"),
    call("create_pool"),
    call("default_pool"),
    call("destroy_pool", PICK),
    call("trim_pool", PICK, SIZES),
    call("pool_figures", PICK),
    call("set_threshold", PICK, SIZES),
    call("use_pool", PICK),
    call("create_stream"),
    call("destroy_stream", PICK),
    call("synchronize_stream", STREAM),
    call("create_event"),
    call("record_event", PICK, STREAM),
    call("synchronize_event", PICK),
    call("destroy_event", PICK),
    call("create_physical", PAGES),
    call("create_physical", PAGES),
    call("release_physical", PICK),
    call("map", PICK, PAGES),
    call("map_twice_side_by_side", PICK, PICK),
    call("unmap", PICK),
    call("unmap_part", PICK),
    call("retain_physical", PICK),
    call("create_array", SIDES, SIDES, st.sampled_from([1, 2, 3, 4])),
    call("create_array3d", SIDES, SIDES, st.sampled_from([0, 1, 8])),
    call("create_mipmap", SIDES, SIDES, st.integers(0, 12)),
    call("destroy_array", PICK),
    call("destroy_mipmap", PICK),
)


KERNELS = [
    f"{name}{thread}"
    for name in ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel")
    for thread in ("", "_ptsz")
]
FILLS = ["cuMemsetD8Async", "cuMemsetD32Async_ptsz"]
ANY_STREAM = st.integers(0, 6)  # the default ones by every name, and some of those made

WORK = st.one_of(
    call("launch", st.sampled_from(KERNELS), ANY_STREAM),
    call("launch", st.sampled_from(KERNELS), ANY_STREAM),
    call("launch", st.sampled_from(KERNELS), ANY_STREAM),
    call("fill_async", st.sampled_from(FILLS), PICK, ANY_STREAM),
    call("create_stream"),
    call("create_blocking_stream"),
    call("destroy_stream", PICK),
    call("query_stream", ANY_STREAM),
    call("synchronize_stream", STREAM),
    call("synchronize"),
    call("create_event"),
    call("record_event", PICK, STREAM),
    call("wait_event", PICK, ANY_STREAM),
    call("synchronize_event", PICK),
    call("begin_capture", ANY_STREAM, st.integers(0, 2)),
    call("begin_capture", ANY_STREAM, st.integers(0, 2)),
    call("end_capture", ANY_STREAM),
    call("end_capture", ANY_STREAM),
    call("instantiate", PICK),
    call("launch_graph", PICK, ANY_STREAM),
    call("destroy_executable", PICK),
    call("create_context"),
    call("destroy_context", PICK),
    call("set_current", PICK),
    call("retain"),
    call("reset"),
)


FILLS_FREED_MEMORY: list[Call] = [
    ["begin_capture", 3, 0],
    ["fill_async", "cuMemsetD8Async", 0, 3],
    ["create_context"],
    ["end_capture", 3],
    ["reset"],
    ["instantiate", 0],
    ["launch_graph", 0, 0],
]


# The second context fills memory of the first one behind a kernel, and the first one ends.
FILLS_MEMORY_OF_AN_ENDING_CONTEXT: list[Call] = [
    ["create_context"],
    ["launch", "cuLaunchKernel", 0],
    ["fill_async", "cuMemsetD8Async", 0, 0],
    ["reset"],
]


class Runner:
    """A process that runs sequences on one library."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "standin.sequence", "libcuda.so.1"],
            env={**environment, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, calls: list[Call]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(calls) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture
def runners(make_machine: MakeMachine) -> Iterator[tuple[Runner, Runner]]:
    """One on the driver alone, one on the stand-in over it; each on its own machine."""
    alone, sliced = make_machine("h100:1"), make_machine("h100:1")
    pair = Runner(alone.bare()), Runner(sliced.inside(sliced.grant(60 * GIB)))
    yield pair
    for runner in pair:
        runner.close()


def compare(runners: tuple[Runner, Runner], calls: list[Call]) -> None:
    for runner in runners:
        runner.tell(calls)
    alone, sliced = (runner.answer() for runner in runners)
    assert (alone.get("died"), sliced.get("died")) == (None, None)
    named = list(zip(calls, sliced["answers"], strict=True))
    assert named == list(zip(calls, alone["answers"], strict=True))
    assert sliced["left"] == 0, "freed by the driver, and still counted"


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=st.lists(CALLS, min_size=5, max_size=40))
def test_a_program_gets_the_same_answers(runners: tuple[Runner, Runner], calls: list[Call]) -> None:
    compare(runners, [["init"], ["retain"], *calls])


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=st.lists(WORK, min_size=5, max_size=60))
@example(calls=FILLS_FREED_MEMORY)
@example(calls=FILLS_MEMORY_OF_AN_ENDING_CONTEXT)
def test_a_working_program_gets_the_same_answers(
    runners: tuple[Runner, Runner], calls: list[Call]
) -> None:
    """Launches, fills, streams, events, captures and graphs, in several contexts."""
    start: list[Call] = [["init"], ["retain"], ["alloc", MIB], ["create_stream"], ["create_event"]]
    compare(runners, [*start, ["create_blocking_stream"], *calls])


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(before=st.lists(CALLS, max_size=8), after=st.lists(CALLS, max_size=8))
def test_calls_before_cuinit_get_the_same_answers(
    runners: tuple[Runner, Runner], before: list[Call], after: list[Call]
) -> None:
    """Calls before init, and before there is a context."""
    compare(runners, [*before, ["init"], *after])


def test_every_call_by_itself_gets_the_same_answer(runners: tuple[Runner, Runner]) -> None:
    """One example of each call, so that a call that the simulated driver lacks is seen."""
    for size in (1, 2 * MIB, 64 * MIB):
        calls: list[Call] = [
            ["init"],
            ["retain"],
            ["alloc", size],
            ["alloc_pitch", 1000, 100, 4],
            ["alloc_managed", size, 1],
            ["alloc_async", size, 0],
            ["create_pool"],
            ["alloc_from", size, 0, 0],
            ["pool_figures", 0],
            ["create_physical", size],
            ["map", 0, 2 * MIB],
            ["create_array", 64, 64, 4],
            ["create_array3d", 64, 64, 8],
            ["create_mipmap", 64, 64, 3],
            ["touch", 0, 7],
            *[["free", 0]] * 4,
            *[["free_async", 0, 0]] * 2,
            ["synchronize"],
            ["unmap", 0],
            ["release_physical", 0],
            ["destroy_array", 0],
            ["destroy_mipmap", 0],
        ]
        compare(runners, calls)
