"""No call starts work without credit; all work runs when credit comes; marks show its progress."""

from __future__ import annotations

import time

import pytest

from standin import pages
from standin.conftest import MakeGated
from standin.gated import Gated
from standin.machine import Tenant
from support import wait_until

KERNELS = ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch"]
FILLS = [
    f"cuMemset{kind}{bits}{form}"
    for kind in ("D", "D2D")
    for bits in (8, 16, 32)
    for form in ("_v2", "_v2_ptds", "Async", "Async_ptsz")
]
ENTRY_POINTS = [*KERNELS, *[f"{name}_ptsz" for name in KERNELS], *FILLS]
# The simulated driver does not have these: what we do before them is seen all the same.
UNSUPPORTED = [
    "cuLaunch",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchCooperativeKernelMultiDevice",
]


@pytest.fixture
def tenant(gated: Gated) -> Tenant:
    return gated.tenant()


@pytest.mark.parametrize("symbol", ENTRY_POINTS)
def test_every_launch_waits_for_credit(gated: Gated, tenant: Tenant, symbol: str) -> None:
    newest = gated.take_turns(tenant)
    tenant.does("launch", symbol, 3)
    assert gated.arbiter.work().opened == newest + 1
    gated.stays_out(tenant, 3)
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 3)
    tenant.does("synchronize")
    gated.arbiter.wait_done(newest + 1)


@pytest.mark.parametrize("symbol", ENTRY_POINTS)
@pytest.mark.parametrize("flags", [0, 1])
def test_every_launch_waits_for_credit_in_its_own_stream(
    gated: Gated, tenant: Tenant, symbol: str, flags: int
) -> None:
    stream = tenant.ok("create_stream", flags)
    newest = gated.take_turns(tenant)
    tenant.does("launch", symbol, 3, stream)
    gated.stays_out(tenant, 3)
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 3)


@pytest.mark.parametrize("symbol", UNSUPPORTED)
def test_old_launches_open_a_quantum(gated: Gated, tenant: Tenant, symbol: str) -> None:
    stream = tenant.ok("create_stream")
    newest = gated.take_turns(tenant)
    assert tenant("launch", symbol, 3, stream)[0] != 0
    assert gated.arbiter.work().opened == newest + 1
    assert tenant("query_stream", 0 if symbol in UNSUPPORTED[:2] else stream) == [600]
    gated.arbiter.give(newest + 1)
    tenant.does("synchronize")


def test_unlimited_credit_passes_every_gate(gated: Gated, tenant: Tenant) -> None:
    assert tenant("set_words", 1000) == [0] * 1000
    gated.runs(tenant, *range(1000))
    assert gated.arbiter.work().launches == 1000


def test_the_first_context_tests_whether_gates_work(gated: Gated) -> None:
    tenant = gated.newcomer()
    tenant.does("init")
    assert gated.arbiter.work().gates == pages.UNTRIED
    tenant.ok("retain")
    assert (gated.arbiter.work().gates, gated.arbiter.work().why) == (pages.GATES_WORK, 0)
    assert gated.arbiter.work().marks[pages.MARKS - 1].done == 1
    assert gated.arbiter.asked() == gated.arbiter.reached() == 0  # no quantum waits for that mark


def test_a_quantum_is_over_when_its_marks_are_reached(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant, credit=1)
    assert tenant("spin_for", 20_000_000) == [0]
    tenant("query_stream")  # a program that asks is about to wait: the quantum is closed
    assert gated.arbiter.work().closed == newest + 1
    assert gated.arbiter.done() == newest
    gated.arbiter.wait_done(newest + 1)


def test_work_beyond_the_credit_waits(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant, credit=2)
    for word in range(4):
        tenant.does("launch", "cuLaunchKernel", word)
        tenant("query_stream")
    assert gated.arbiter.work().closed == newest + 4
    gated.runs(tenant, 0, 1)
    gated.arbiter.wait_done(newest + 2)
    gated.stays_out(tenant, 2, 3)
    assert gated.arbiter.done() == newest + 2
    gated.arbiter.give(newest + 4)
    gated.arbiter.wait_done(newest + 4)


def test_reduced_credit_holds_quanta_that_have_not_started(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant, credit=10)
    tenant.does("launch", "cuLaunchKernel", 0)
    tenant("query_stream")
    gated.arbiter.wait_done(newest + 1)
    gated.arbiter.give(newest + 1)
    tenant.does("launch", "cuLaunchKernel", 1)
    gated.stays_out(tenant, 1)
    gated.arbiter.give(pages.OPEN)
    gated.runs(tenant, 1)


def test_quanta_are_about_as_long_as_the_arbiter_asks(gated: Gated, tenant: Tenant) -> None:
    """Kernels of unknown cost count 10 us each; the first ones are measured alone."""
    newest = gated.take_turns(tenant, credit=10_000)
    gated.arbiter.credit().quantum_ns = 100_000
    for _ in range(5):  # launches 1, 2 and 4 are alone
        tenant("set_words", 1)
    first = gated.arbiter.work().opened
    tenant("set_words", 2)
    opened = gated.arbiter.work().opened
    assert newest + 4 <= first <= opened
    tenant("set_words", 1000)
    quanta = gated.arbiter.work().opened - opened
    assert 1000 / 10 / 2 <= quanta <= 1000 / 10 * 2
    for quantum in range(opened + 1, opened + 5):
        assert gated.arbiter.work().quanta[quantum % pages.QUANTA].expected_ns <= 100_000


def test_a_process_that_is_alone_has_long_quanta(gated: Gated, tenant: Tenant) -> None:
    for times, launches in ((20, 10), (1, 1000)):
        before, began = gated.arbiter.work().opened, time.monotonic()
        for _ in range(times):
            tenant("set_words", launches)
            tenant.does("synchronize")
            tenant("query_stream")
        most = 2 + (time.monotonic() - began) / 0.004
        assert 1 <= gated.arbiter.work().opened - before <= most


def test_a_kernel_is_measured_at_its_first_second_fourth_and_eighth_launch(
    gated: Gated, tenant: Tenant
) -> None:
    """Counted per preceding kernel: at another point of the program it may take another time."""
    gated.take_turns(tenant, credit=10_000)
    tenant("set_words", 1)
    opened = []
    for _ in range(9):
        before = gated.arbiter.work().opened
        tenant("set_words", 1)
        opened.append(gated.arbiter.work().opened - before)
    #                 1  2  3  4  5  6  7  8  9
    assert opened == [1, 1, 1, 1, 1, 0, 0, 1, 1]


def test_graphs_of_unknown_cost_are_measured_and_few_share_a_quantum(
    gated: Gated, tenant: Tenant
) -> None:
    """Also while no other process wants the GPU, since each graph may take long."""
    tenant("set_words", 1)
    opened = []
    for _ in range(15):
        before = gated.arbiter.work().opened
        tenant.does("launch", "cuGraphLaunch", 1)
        opened.append(gated.arbiter.work().opened - before)
    #                 1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
    assert opened == [1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0]


def test_yield_closes_a_quantum_that_has_credit_and_no_other(gated: Gated, tenant: Tenant) -> None:
    gated.take_turns(tenant, credit=100)
    tenant("set_words", 11)  # the next one that stands alone is far
    opened = gated.arbiter.work().opened
    assert gated.arbiter.work().closed == opened - 1
    gated.arbiter.set_pace(pages.YIELD)
    gated.arbiter.give(opened)
    tenant("set_words", 1, 100)
    assert gated.arbiter.work().opened == opened + 1
    gated.arbiter.wait_done(opened)
    gated.stays_out(tenant, 100)
    tenant("set_words", 1, 101)  # no credit for this one: it stays open
    assert gated.arbiter.work().opened == opened + 1
    gated.arbiter.give(pages.OPEN)
    gated.runs(tenant, 100, 101)


CLOSING = {
    "synchronize": [],
    "synchronize_stream": [0],
    "query_stream": [0],
    "copy_word": [5, 6],
}


@pytest.mark.parametrize("call", CLOSING)
def test_calls_that_wait_close_the_quantum(gated: Gated, tenant: Tenant, call: str) -> None:
    newest = gated.leave_open(tenant)
    tenant(call, *CLOSING[call])
    assert gated.arbiter.work().closed == newest
    gated.arbiter.wait_done(newest)


@pytest.mark.parametrize("call", ["synchronize_event", "query_event"])
def test_an_event_query_closes_the_quantum_and_a_record_does_not(
    gated: Gated, tenant: Tenant, call: str
) -> None:
    event = tenant.ok("create_event")
    newest = gated.leave_open(tenant)
    tenant.does("record_event", event)
    assert gated.arbiter.work().closed == newest - 1
    tenant(call, event)
    assert gated.arbiter.work().closed == newest


def test_freeing_memory_closes_the_quantum(gated: Gated, tenant: Tenant) -> None:
    pointer = tenant.ok("alloc", 1 << 20)
    newest = gated.leave_open(tenant)
    tenant.does("free", pointer)
    assert gated.arbiter.work().closed == newest


def test_a_launch_alone_in_its_quantum_gets_its_mark_right_after_it(
    gated: Gated, tenant: Tenant
) -> None:
    """The arbiter sees the end of a long kernel, whatever the program does next."""
    newest = gated.take_turns(tenant, credit=10)
    tenant.does("launch", "cuLaunchKernel", 0)
    assert gated.arbiter.work().closed == newest + 1
    gated.arbiter.wait_done(newest + 1)


def test_a_launch_that_the_driver_refuses_returns_the_drivers_error(
    gated: Gated, tenant: Tenant
) -> None:
    stranger = gated.machine.stranger().start()
    stranger.does("prepare")
    newest = gated.take_turns(tenant)
    assert tenant("launch_nothing") == stranger("launch_nothing")
    assert tenant("launch_nothing", 0x1230) == stranger("launch_nothing", 0x1230)
    gated.arbiter.give(newest + 1)
    tenant.does("launch", "cuLaunchKernel", 0)
    gated.arbiter.give(pages.OPEN)
    gated.runs(tenant, 0)


def test_a_program_far_ahead_of_its_credit_loses_no_mark(gated: Gated, tenant: Tenant) -> None:
    """With more quanta than the page holds, the last one grows instead."""
    newest = gated.take_turns(tenant)
    for word in range(1200):
        tenant("launch", "cuLaunchKernel", word)
        tenant("query_stream")
    work = gated.arbiter.work()
    assert work.opened - newest <= pages.QUANTA // 2
    gated.arbiter.give(pages.OPEN)
    tenant.does("synchronize")
    gated.runs(tenant, *range(1200))
    tenant("launch", "cuLaunchKernel", 0)
    tenant.does("synchronize")
    gated.arbiter.wait_done(work.closed)
    assert work.closed == work.opened


def test_a_process_rings_if_the_arbiter_asks_for_it(gated: Gated, tenant: Tenant) -> None:
    gated.take_turns(tenant)
    assert gated.arbiter.rings == 0
    gated.arbiter.credit().ring = 1
    tenant.does("launch", "cuLaunchKernel", 0)
    wait_until(lambda: gated.arbiter.rings == 1)
    gated.arbiter.credit().ring = 0
    before = gated.arbiter.rings
    tenant("set_words", 100)
    assert gated.arbiter.rings == before


def test_rings_are_rare_and_leave_no_descriptor(gated: Gated, tenant: Tenant) -> None:
    before = tenant("descriptors")
    gated.arbiter.credit().ring = 1
    tenant("set_words", 500)
    assert tenant("descriptors") == before
    wait_until(lambda: gated.arbiter.rings >= 1)
    assert gated.arbiter.rings < 100


def test_a_process_without_free_descriptors_skips_the_ring(gated: Gated, tenant: Tenant) -> None:
    tenant("use_up_descriptors")
    gated.arbiter.credit().ring = 1
    assert tenant("set_words", 5) == [0] * 5
    gated.runs(tenant, *range(5))
    assert gated.arbiter.rings == 0


def test_a_ring_does_not_wait_for_the_arbiter(
    make_gated: MakeGated,
) -> None:
    gated = make_gated()
    tenant = gated.tenant()
    gated.arbiter.credit().ring = 1
    (gated.arbiter.directory / "socket").unlink()
    assert tenant("set_words", 5) == [0] * 5
    gated.runs(tenant, *range(5))
