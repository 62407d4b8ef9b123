"""Random programs and credit: nothing starts before it has credit, and nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standin import pages
from standin.gated import Gated
from standin.machine import Tenant

EXAMPLES = 60

Step = tuple[Any, ...]

# The default streams by all their names, then two blocking ones and two that are not.
STREAM = st.integers(0, 6)
LAUNCH = st.tuples(st.just("launch"), STREAM)
STEPS = st.one_of(
    LAUNCH,
    LAUNCH,
    LAUNCH,
    st.tuples(st.just("graph"), STREAM),
    st.tuples(st.just("give"), st.integers(1, 3)),
    st.tuples(st.just("take_back")),
    st.tuples(st.just("query"), STREAM),
    st.tuples(st.just("join"), STREAM, STREAM),
    st.tuples(st.just("pace"), st.sampled_from([pages.ALONE, pages.TURNS, pages.YIELD])),
    st.tuples(st.just("quantum"), st.sampled_from([1, 15_000, 100_000])),
    st.tuples(st.just("replace"), st.integers(3, 6)),
    st.tuples(st.just("capture"), st.integers(3, 6)),
)


@dataclass
class Program:
    """A tenant that does the steps, and the rules it must obey."""

    gated: Gated
    tenant: Tenant
    streams: list[int]
    event: int
    quantum_of: dict[int, int] = field(default_factory=dict)  # by word
    granted: int = 0  # the most credit that there ever was

    def do(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])
        self.check()

    def check(self) -> None:
        done = self.gated.arbiter.done()
        words = sorted(self.quantum_of)
        written = self.tenant("read_words", *words)
        for word, value in zip(words, written, strict=True):
            quantum = self.quantum_of[word]
            assert not value or quantum <= self.granted, f"{word} ran without credit"
        assert done <= self.granted

    def launch(self, stream: int, symbol: str = "cuLaunchKernel") -> None:
        word = len(self.quantum_of)
        self.tenant.does("launch", symbol, word, self.streams[stream])
        self.quantum_of[word] = int(self.gated.arbiter.work().opened)

    def graph(self, stream: int) -> None:
        self.launch(stream, "cuGraphLaunch")

    def give(self, quanta: int) -> None:
        credit = self.gated.arbiter.done() + quanta
        self.granted = max(self.granted, credit)
        self.gated.arbiter.give(credit)

    def take_back(self) -> None:
        self.gated.arbiter.give(self.gated.arbiter.done())

    def query(self, stream: int) -> None:
        assert self.tenant("query_stream", self.streams[stream])[0] in {0, 600}

    def join(self, stream: int, other: int) -> None:
        self.tenant.does("record_event", self.event, self.streams[stream])
        self.tenant.does("wait_event", self.event, self.streams[other])

    def pace(self, pace: int) -> None:
        self.gated.arbiter.set_pace(pace)

    def quantum(self, ns: int) -> None:
        self.gated.arbiter.credit().quantum_ns = ns

    def replace(self, stream: int) -> None:
        self.tenant.does("destroy_stream", self.streams[stream])
        self.streams[stream] = self.tenant.ok("create_stream", int(stream > 4))

    def capture(self, stream: int) -> None:
        handle = self.streams[stream]
        self.tenant.does("begin_capture", handle, 0)
        self.tenant.does("launch", "cuLaunchKernel", 4000, handle)
        graph = self.tenant.ok("end_capture", handle)
        assert self.tenant("node_types", graph) == [0, 0]

    def finish(self) -> None:
        """Assert that everything ran, every mark was written, and no quantum is open."""
        self.gated.arbiter.set_pace(pages.TURNS)
        self.gated.settles(self.tenant)
        assert all(self.tenant("read_words", *sorted(self.quantum_of)))
        work = self.gated.arbiter.work()
        assert work.opened == work.closed == self.gated.arbiter.done()


@pytest.fixture(params=["1", "8"])
def tenant(gated: Gated, request: pytest.FixtureRequest) -> Tenant:
    return gated.tenant(CUDA_DEVICE_MAX_CONNECTIONS=request.param)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=5, max_size=60))
def test_nothing_starts_without_credit_and_nothing_is_lost(
    gated: Gated, tenant: Tenant, steps: list[Step]
) -> None:
    newest = gated.take_turns(tenant)
    tenant.does("clear_words")
    streams = [0, 1, 2, *[tenant.ok("create_stream", flags) for flags in (0, 0, 1, 1)]]
    program = Program(gated, tenant, streams, tenant.ok("create_event"), granted=newest)
    for step in steps:
        program.do(step)
    program.finish()
    for stream in program.streams[3:]:
        tenant.does("destroy_stream", stream)
