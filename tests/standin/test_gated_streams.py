"""Many streams, default streams, threads, destroyed streams: each gets its gate and its mark."""

from __future__ import annotations

import pytest

from standin import pages
from standin.gated import Gated
from standin.machine import Tenant
from support import wait_until

LEGACY, PER_THREAD = 1, 2
BLOCKING, NON_BLOCKING = 0, 1


@pytest.fixture
def tenant(gated: Gated) -> Tenant:
    return gated.tenant()


@pytest.mark.parametrize("queues", [1, 8])
@pytest.mark.parametrize("flags", [BLOCKING, NON_BLOCKING])
def test_forty_streams_share_few_hardware_queues(gated: Gated, queues: int, flags: int) -> None:
    """With credit for one quantum at a time, a mark behind a gate would never be written."""
    tenant = gated.tenant(CUDA_DEVICE_MAX_CONNECTIONS=str(queues))
    streams = [tenant.ok("create_stream", flags) for _ in range(40)]
    newest = gated.take_turns(tenant)
    for word in range(400):
        tenant.does("launch", "cuLaunchKernel", word, streams[word * 7 % 40])
        if word % 13 == 0:
            tenant("query_stream", streams[word % 40])
    tenant("query_stream", streams[0])
    closed = gated.arbiter.work().closed
    assert closed > newest + 20
    for quantum in range(newest + 1, closed + 1):
        gated.arbiter.give(quantum)
        gated.arbiter.wait_done(quantum)
        assert gated.arbiter.done() == quantum
    gated.runs(tenant, *range(400))
    gated.settles(tenant)


def test_streams_that_wait_for_each_other_advance_quantum_by_quantum(gated: Gated) -> None:
    tenant = gated.tenant(CUDA_DEVICE_MAX_CONNECTIONS="1")
    streams = [tenant.ok("create_stream", NON_BLOCKING) for _ in range(6)]
    events = [tenant.ok("create_event") for _ in range(6)]
    newest = gated.take_turns(tenant)
    for word in range(120):
        here, there = word % 6, (word + 1) % 6
        tenant.does("launch", "cuLaunchKernel", word, streams[here])
        tenant.does("record_event", events[here], streams[here])
        tenant.does("wait_event", events[here], streams[there])
    tenant("query_stream", streams[0])
    for quantum in range(newest + 1, gated.arbiter.work().closed + 1):
        gated.arbiter.give(quantum)
        gated.arbiter.wait_done(quantum)
    gated.runs(tenant, *range(120))


def test_all_streams_of_a_process_share_a_quantum(gated: Gated, tenant: Tenant) -> None:
    streams = [0, *[tenant.ok("create_stream", NON_BLOCKING) for _ in range(3)]]
    gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)  # now its cost is known, and the next measurement is far
    tenant("query_stream")
    before = gated.arbiter.work().opened, gated.arbiter.asked()
    for word, stream in enumerate(streams):
        tenant.does("launch", "cuLaunchKernel", word, stream)
    tenant("query_stream")
    assert gated.arbiter.work().opened == before[0] + 1
    assert gated.arbiter.asked() == before[1] + 4
    gated.arbiter.wait_done(before[0] + 1)


def test_streams_beyond_the_table_run_without_gates(gated: Gated, tenant: Tenant) -> None:
    """Streams that are not in the open quantum lose their slots and mark words to others."""
    streams = tenant("make_streams", 2600)
    gated.take_turns(tenant, credit=100_000)
    assert set(tenant("launch_into", streams, 0)) == {0}
    tenant("query_stream")
    assert set(tenant("launch_into", streams, 0)) == {0}
    gated.settles(tenant)
    assert gated.arbiter.work().marks_end <= pages.MARKS


# --- the default streams


@pytest.mark.parametrize("stream", [0, LEGACY, PER_THREAD])
def test_default_streams_by_every_name(gated: Gated, tenant: Tenant, stream: int) -> None:
    newest = gated.take_turns(tenant)
    tenant.does("launch", "cuLaunchKernel", 0, stream)
    tenant.does("launch", "cuLaunchKernel_ptsz", 1, stream)
    gated.stays_out(tenant, 0, 1)
    gated.arbiter.give(newest + 2)
    gated.runs(tenant, 0, 1)
    gated.settles(tenant)


def test_the_legacy_streams_mark_is_no_barrier(gated: Gated, tenant: Tenant) -> None:
    """A blocking stream may wait for something that a second one does later.

    A mark in the legacy stream behind the first one's wait would keep the second from starting.
    """
    first, second = (tenant.ok("create_stream", BLOCKING) for _ in range(2))
    gated.take_turns(tenant, credit=1000)
    tenant.does("launch", "cuLaunchKernel", 0)
    tenant.does("wait_value", 10, 1, first)
    tenant("query_stream", second)  # closes the quantum
    tenant.does("launch", "cuLaunchKernel", 10, second)
    gated.runs(tenant, 0, 10)
    gated.settles(tenant)


def test_the_legacy_streams_mark_is_no_barrier_when_a_capture_begins(
    gated: Gated, tenant: Tenant
) -> None:
    first, second = (tenant.ok("create_stream", BLOCKING) for _ in range(2))
    other = tenant.ok("create_stream", NON_BLOCKING)
    tenant.does("launch", "cuLaunchKernel", 0)
    tenant.does("wait_value", 10, 1, first)
    tenant.does("begin_capture", other)
    tenant.ok("end_capture", other)
    tenant.does("launch", "cuLaunchKernel", 10, second)
    gated.runs(tenant, 0, 10)
    gated.settles(tenant)


def test_a_launch_into_a_blocking_stream_marks_the_legacy_stream_first(
    gated: Gated, tenant: Tenant
) -> None:
    stream = tenant.ok("create_stream", BLOCKING)
    gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)
    tenant("query_stream")
    before = gated.arbiter.asked()
    tenant.does("launch", "cuLaunchKernel", 20)
    tenant.does("launch", "cuLaunchKernel", 21)
    assert gated.arbiter.asked() == before
    tenant.does("launch", "cuLaunchKernel", 22, stream)
    assert gated.arbiter.asked() == before + 1
    tenant.does("launch", "cuLaunchKernel", 23)  # again: a mark more, and no second gate
    opened = gated.arbiter.work().opened
    tenant("query_stream")
    assert gated.arbiter.asked() == before + 3
    gated.arbiter.wait_done(opened)


def test_a_launch_into_a_non_blocking_stream_does_not_mark_the_legacy_stream(
    gated: Gated, tenant: Tenant
) -> None:
    stream = tenant.ok("create_stream", NON_BLOCKING)
    gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)
    tenant("query_stream")
    before = gated.arbiter.asked()
    for word in range(3):
        tenant.does("launch", "cuLaunchKernel", word)
        tenant.does("launch", "cuLaunchKernel", word, stream)
    assert gated.arbiter.asked() == before


# --- threads


def test_every_thread_has_its_own_default_stream(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant)
    for index, name in enumerate("abc"):
        assert tenant("in_thread", name, ["launch", "cuLaunchKernel_ptsz", index]) == [[0]]
    gated.stays_out(tenant, 0, 1, 2)
    gated.arbiter.give(newest + 3)
    gated.runs(tenant, 0, 1, 2)


def test_a_per_thread_stream_is_marked_by_its_own_thread(gated: Gated, tenant: Tenant) -> None:
    """Another thread leaves the mark out once; from then on each launch is marked."""
    launch = ["launch", "cuLaunchKernel_ptsz", 0]
    gated.take_turns(tenant, credit=1000)
    tenant("in_thread", "a", *[launch] * 11)  # the last one did not stand alone
    before = gated.arbiter.asked()
    tenant("query_stream")  # another thread's call closes the quantum
    assert gated.arbiter.asked() == before
    tenant("in_thread", "a", launch, launch)
    assert gated.arbiter.asked() == before + 2
    tenant("query_stream")
    gated.settles(tenant)


def test_a_new_thread_reuses_the_slot_of_one_that_ended(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant, credit=1)
    tenant("in_thread", "a", ["launch", "cuLaunchKernel_ptsz", 0])
    gated.runs(tenant, 0)
    tenant("end_thread", "a")
    tenant("in_thread", "b", ["launch", "cuLaunchKernel_ptsz", 1])
    gated.stays_out(tenant, 1)
    gated.arbiter.give(newest + 2)
    gated.runs(tenant, 1)
    gated.settles(tenant)


def test_marks_of_an_ended_thread_are_not_mixed_with_the_next_ones(
    gated: Gated, tenant: Tenant
) -> None:
    """The first thread's mark is written after the second's, though it was inserted before."""
    gated.take_turns(tenant, credit=1000)
    launch, query = ["launch", "cuLaunchKernel_ptsz", 0], ["query_stream", PER_THREAD]
    tenant("in_thread", "a", launch, ["wait_value", 10, 1, PER_THREAD], query)
    tenant("end_thread", "a")
    tenant("in_thread", "b", launch, query)
    tenant.does("write_word", 10, 1)
    gated.settles(tenant)


def test_threads_that_launch_and_close_concurrently_lose_nothing(
    gated: Gated, tenant: Tenant
) -> None:
    gated.take_turns(tenant, credit=3)
    gated.arbiter.credit().quantum_ns = 50_000
    tenant.tell("hammer", 6, 300)
    work = gated.arbiter.work()
    answered = False
    while not answered:  # an arbiter that gives credit a little ahead of what is done
        gated.arbiter.give(gated.arbiter.done() + 2)
        answered = tenant.has_answered()
    assert tenant.answer() == [0]
    gated.settles(tenant)
    assert work.launches <= 6 * 300 + 10


# --- streams that end


def test_a_destroyed_stream_has_its_mark_and_loses_its_slot(gated: Gated, tenant: Tenant) -> None:
    gated.take_turns(tenant, credit=1000)
    for word in range(50):
        stream = tenant.ok("create_stream", NON_BLOCKING)
        tenant.does("launch", "cuLaunchKernel", word, stream)
        tenant.does("destroy_stream", stream)
        wait_until(lambda: gated.arbiter.asked() == gated.arbiter.reached())
    gated.runs(tenant, *range(50))
    gated.settles(tenant)
    assert gated.arbiter.work().marks_end <= 2


def test_the_remaining_work_of_a_destroyed_stream_keeps_its_quantum_open(
    gated: Gated, tenant: Tenant
) -> None:
    stream = tenant.ok("create_stream", NON_BLOCKING)
    gated.leave_open(tenant, stream)
    tenant.does("wait_value", 10, 1, stream)
    before = gated.arbiter.asked()
    tenant.does("destroy_stream", stream)
    assert gated.arbiter.asked() == before + 1
    tenant("query_stream")
    opened = gated.arbiter.work().opened
    assert gated.arbiter.work().closed == opened
    gated.stays_out(tenant, 10)
    assert gated.arbiter.done() < opened
    tenant.does("write_word", 10, 1)
    gated.arbiter.wait_done(opened)


def use_and_end(gated: Gated, tenant: Tenant) -> int:
    """Destroy a stream of the open quantum, and create another with the same handle."""
    for _ in range(50):  # the driver gives handles again, though not always at once
        stream, *others = tenant("make_streams", 20)
        tenant.does("write_word", 20, 0)
        tenant.does("launch", "cuLaunchKernel", 20, stream)
        gated.runs(tenant, 20)
        for one in (*others, stream):
            tenant.does("destroy_stream", one)
        if stream in tenant("make_streams", 50):
            return int(stream)
    raise AssertionError("no handle was given again")


def test_a_new_stream_with_a_reused_handle_gets_its_own_gate(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)
    stream = use_and_end(gated, tenant)
    gated.arbiter.give(newest)  # nothing may start any more
    tenant.does("launch", "cuLaunchKernel", 21, stream)
    gated.stays_out(tenant, 21)
    gated.settles(tenant)
    gated.runs(tenant, 21)


def test_a_stream_destroyed_at_a_gate_finishes_when_credit_comes(
    gated: Gated, tenant: Tenant
) -> None:
    newest = gated.take_turns(tenant)
    stream = tenant.ok("create_stream", NON_BLOCKING)
    tenant.does("launch", "cuLaunchKernel", 0, stream)
    tenant.does("destroy_stream", stream)
    gated.stays_out(tenant, 0)
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 0)
    gated.settles(tenant)
