"""Gates never break a capture, and a captured graph holds no gate and no mark."""

from __future__ import annotations

import pytest

from standin import pages
from standin.gated import Gated
from standin.machine import Tenant

BLOCKING, NON_BLOCKING = 0, 1
MODES = {"global": 0, "thread-local": 1, "relaxed": 2}
KERNEL, FILL, GRAPH = 0, 2, 4
LAUNCHES = {
    "cuLaunchKernel": KERNEL,
    "cuLaunchKernelEx": KERNEL,
    "cuLaunchCooperativeKernel": KERNEL,
    "cuMemsetD32Async": FILL,
    "cuMemsetD2D8Async": FILL,
    "cuLaunchKernel_ptsz": KERNEL,
    "cuMemsetD8Async_ptsz": FILL,
}

pytestmark = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@pytest.fixture
def tenant(gated: Gated) -> Tenant:
    return gated.tenant()


def captured(tenant: Tenant, stream: int, *kinds: int) -> int:
    """End the capture, and assert the kinds of its graph's nodes. Returns the graph."""
    graph = tenant.ok("end_capture", stream)
    assert tenant("node_types", graph) == [0, *sorted(kinds)]
    return graph


@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_a_captured_launch_gets_no_gate(
    gated: Gated, tenant: Tenant, mode: int, flags: int
) -> None:
    stream = tenant.ok("create_stream", flags)
    newest = gated.take_turns(tenant)
    tenant.does("begin_capture", stream, mode)
    for word, symbol in enumerate(LAUNCHES):
        tenant.does("launch", symbol, word, stream)
    graph = captured(tenant, stream, *LAUNCHES.values())
    assert gated.arbiter.work().opened == newest, "a capture is no work"
    executable = tenant.ok("instantiate", graph)
    tenant.does("launch_graph", executable, stream)
    gated.stays_out(tenant, *range(len(LAUNCHES)))
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, *range(len(LAUNCHES)))
    gated.settles(tenant)


@pytest.mark.parametrize("pace", [pages.ALONE, pages.TURNS])
def test_a_stream_in_the_open_quantum_may_begin_a_capture(
    gated: Gated, tenant: Tenant, mode: int, pace: int
) -> None:
    stream = tenant.ok("create_stream", NON_BLOCKING)
    if pace == pages.TURNS:
        gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)
    for _ in range(5):  # alone, these close it now and then; a capture always does
        tenant.does("launch", "cuLaunchKernel", 10, stream)
        tenant("query_stream", stream)
    tenant.does("launch", "cuLaunchKernel", 10, stream)
    opened = gated.arbiter.work().opened
    tenant.does("begin_capture", stream, mode)
    assert gated.arbiter.work().closed == opened, "nothing is left open"
    tenant.does("launch", "cuLaunchKernel", 11, stream)
    captured(tenant, stream, KERNEL)
    tenant.does("launch", "cuLaunchKernel", 12, stream)
    gated.runs(tenant, 10, 12)
    gated.settles(tenant)


def test_streams_join_and_leave_a_capture_by_events(
    gated: Gated, tenant: Tenant, mode: int
) -> None:
    """The streams that join are in an open quantum, which is closed while they capture."""
    origin, *joined = tenant("make_streams", 4)
    fork, *back = [tenant.ok("create_event") for _ in range(4)]
    gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)
    tenant.does("begin_capture", origin, mode)
    for word, stream in enumerate(joined):
        tenant.does("launch", "cuLaunchKernel", word, stream)
    tenant.does("launch", "cuLaunchKernel", 10, origin)
    tenant.does("record_event", fork, origin)
    for stream in joined:
        tenant.does("wait_event", fork, stream)
        tenant.does("launch", "cuLaunchKernel", 11, stream)
    tenant("in_thread", "other", ["set_words", 200, 100, tenant.ok("create_stream")])
    for stream, event in zip(joined, back, strict=True):
        tenant.does("launch", "cuLaunchKernel", 12, stream)
        tenant.does("record_event", event, stream)
        tenant.does("wait_event", event, origin)
    captured(tenant, origin, *[KERNEL] * 7)
    for stream in joined:
        tenant.does("launch", "cuLaunchKernel", 13, stream)
    gated.runs(tenant, 0, 1, 2, 13)
    gated.settles(tenant)
    assert tenant("read_words", 10, 11, 12) == [0, 0, 0]


def test_other_streams_are_gated_during_a_capture(gated: Gated, tenant: Tenant, mode: int) -> None:
    origin = tenant.ok("create_stream", NON_BLOCKING)
    other = tenant.ok("create_stream", NON_BLOCKING)
    gated.take_turns(tenant, credit=1000)
    tenant.does("launch", "cuLaunchKernel", 0)
    tenant.does("begin_capture", origin, mode)
    for word in range(1, 30):
        tenant.does("launch", "cuLaunchKernel", word)
        tenant.does("launch", "cuLaunchKernel", word, other)
        tenant.does("launch", "cuLaunchKernel", 100, origin)
    tenant("in_thread", "other", ["synchronize_stream", other], ["query_stream", other])
    captured(tenant, origin, *[KERNEL] * 29)
    gated.runs(tenant, *range(30))
    gated.settles(tenant)


def test_the_legacy_stream_gets_no_mark_while_a_blocking_stream_captures(
    gated: Gated, tenant: Tenant, mode: int
) -> None:
    """A mark in it would break the capture; it has launches in the quantum that is closed."""
    origin = tenant.ok("create_stream", BLOCKING)
    other = tenant.ok("create_stream", NON_BLOCKING)
    for word in range(3):
        tenant.does("launch", "cuLaunchKernel", word)
    tenant.does("begin_capture", origin, mode)
    tenant("in_thread", "other", ["set_words", 1500, 100, other])
    gated.arbiter.set_pace(1)
    tenant("in_thread", "other", ["set_words", 200, 100, other], ["query_stream", other])
    tenant.does("launch", "cuLaunchKernel", 4, origin)
    captured(tenant, origin, KERNEL)
    tenant.does("launch", "cuLaunchKernel", 5)
    gated.runs(tenant, 0, 1, 2, 5)
    gated.settles(tenant)


def test_a_capture_that_the_program_breaks_returns_the_drivers_error(
    gated: Gated, tenant: Tenant, mode: int
) -> None:
    stranger = gated.machine.stranger().start()
    stranger.does("prepare")
    gated.take_turns(tenant, credit=1000)
    answers = []
    for one in (tenant, stranger):
        stream = one.ok("create_stream", BLOCKING)
        one.does("begin_capture", stream, mode)
        told = [one("launch", "cuLaunchKernel", 0), one("launch", "cuLaunchKernel", 1, stream)]
        told += [one("end_capture", stream), one("launch", "cuLaunchKernel", 2)]
        answers.append(told)
    assert answers[0] == answers[1]
    gated.settles(tenant)


def test_a_context_can_be_created_during_a_capture(gated: Gated, tenant: Tenant, mode: int) -> None:
    """Creating it registers pages, which a capture in the global mode forbids to other threads."""
    stream = tenant.ok("create_stream", NON_BLOCKING)
    tenant.does("begin_capture", stream, mode)
    assert tenant("in_thread", "other", ["create_context"])[0][0] == 0
    tenant.does("launch", "cuLaunchKernel", 5, stream)
    captured(tenant, stream, KERNEL)
    newest = gated.take_turns(tenant)
    assert tenant("in_thread", "other", ["prepare"], ["set_words", 1]) == [[0], [0]]
    gated.stays_out(tenant, 0)
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 0)


def test_a_graph_launched_into_a_capture_becomes_a_node(
    gated: Gated, tenant: Tenant, mode: int
) -> None:
    stream = tenant.ok("create_stream", NON_BLOCKING)
    gated.take_turns(tenant)
    tenant.does("begin_capture", stream, mode)
    answer = tenant("launch", "cuGraphLaunch", 3, stream)
    tenant("end_capture", stream)
    stranger = gated.machine.stranger().start()
    stranger.does("prepare")
    other = stranger.ok("create_stream", NON_BLOCKING)
    stranger.does("begin_capture", other, mode)
    assert stranger("launch", "cuGraphLaunch", 3, other) == answer
