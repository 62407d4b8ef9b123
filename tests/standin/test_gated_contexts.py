"""Contexts: each has its own gates, while contexts are created, destroyed, break or have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from standin import pages
from standin.conftest import MakeGated
from standin.gated import Gated
from standin.machine import NOT_INITIALIZED, Tenant
from support import wait_until

NOT_SUPPORTED = 801
ILLEGAL_ADDRESS = 700
WITHOUT = "stream-memory-operations"


@pytest.fixture
def tenant(gated: Gated) -> Tenant:
    return gated.tenant()


def another(tenant: Tenant) -> int:
    """Create one more context with its kernels, and make it current."""
    context = tenant.ok("create_context")
    tenant.does("prepare")
    return context


def test_every_context_has_gates_in_its_own_default_streams(gated: Gated, tenant: Tenant) -> None:
    contexts = [tenant.ok("current"), another(tenant), another(tenant)]
    newest = gated.take_turns(tenant)
    for word, context in enumerate(contexts):
        tenant.does("set_current", context)
        tenant.does("launch", "cuLaunchKernel", word)
        tenant.does("launch", "cuLaunchKernel_ptsz", 10 + word)
    gated.stays_out(tenant, 0, 1, 2, 10, 11, 12)
    gated.arbiter.give(newest + 6)
    gated.runs(tenant, 0, 1, 2, 10, 11, 12)
    gated.settles(tenant)


def test_a_gate_in_one_context_does_not_count_in_another(gated: Gated, tenant: Tenant) -> None:
    """Their default streams have the same handle."""
    first, second = tenant.ok("current"), another(tenant)

    def launch(context: int, word: int) -> None:
        tenant.does("set_current", context)
        tenant.does("launch", "cuLaunchKernel", word)

    newest = gated.take_turns(tenant, credit=1000)
    for _ in range(6):  # so often that none of the next ones stands alone to be measured
        launch(first, 0)
        launch(second, 1)
    launch(first, 0)
    tenant("query_stream")
    launch(second, 1)
    opened = gated.arbiter.work().opened
    gated.arbiter.give(newest)
    launch(first, 2)
    assert gated.arbiter.work().opened == opened, "it is in the same quantum"
    gated.stays_out(tenant, 2)
    gated.settles(tenant)
    gated.runs(tenant, 2)


def test_a_call_in_one_context_closes_a_quantum_used_in_another(
    gated: Gated, tenant: Tenant
) -> None:
    first = tenant.ok("current")
    stream = tenant.ok("create_stream")
    another(tenant)
    gated.take_turns(tenant, credit=1000)
    tenant("set_words", 9)
    tenant.does("set_current", first)
    tenant("set_words", 9)
    tenant.does("launch", "cuLaunchKernel", 20, stream)
    tenant.does("launch", "cuLaunchKernel", 21)
    tenant.ok("pop")
    assert tenant("query_stream", stream)[0] in {0, 600}  # with no context at all
    gated.arbiter.wait_done(gated.arbiter.work().opened)
    gated.runs(tenant, 20, 21)


def test_a_destroyed_context_leaves_no_pending_mark(gated: Gated, tenant: Tenant) -> None:
    newest = gated.take_turns(tenant)
    context = another(tenant)
    for _ in range(3):
        tenant.does("launch", "cuLaunchKernel", 0)
        tenant("query_stream")
    tenant.does("destroy_context", context)
    assert gated.arbiter.asked() == gated.arbiter.reached()
    gated.arbiter.wait_done(newest + 3)
    tenant.does("launch", "cuLaunchKernel", 1)
    gated.stays_out(tenant, 1)
    gated.arbiter.give(newest + 4)
    gated.runs(tenant, 1)
    gated.settles(tenant)


@pytest.mark.parametrize("end", ["reset", "release"])
def test_a_primary_context_created_again_is_gated_again(
    gated: Gated, tenant: Tenant, end: str
) -> None:
    for _ in range(3):
        newest = gated.take_turns(tenant)
        tenant.does("launch", "cuLaunchKernel", 0)
        tenant.does(end)
        assert gated.arbiter.asked() == gated.arbiter.reached()
        tenant.start()
        tenant("prepare_again")
        tenant.does("launch", "cuLaunchKernel", 1)
        gated.stays_out(tenant, 1)
        gated.arbiter.give(pages.OPEN)
        gated.runs(tenant, 1)
        assert gated.arbiter.work().opened > newest


def test_destroyed_contexts_leave_no_mapping(gated: Gated, tenant: Tenant) -> None:
    def mappings() -> list[str]:
        maps = Path(f"/proc/{tenant.pid}/maps").read_text("ascii").splitlines()
        return [line.split()[1] for line in maps if "memfd:credit" in line or "memfd:work" in line]

    before = mappings()
    for _ in range(300):  # more than there are places for
        context = tenant.ok("create_context")
        tenant.does("destroy_context", context)
    assert mappings() == before
    assert sorted(before) == ["r--s", "r--s", "rw-s", "rw-s"]


def test_destroying_a_context_twice_returns_the_drivers_error(gated: Gated, tenant: Tenant) -> None:
    context = another(tenant)
    tenant("set_words", 3)
    tenant.does("destroy_context", context)
    assert tenant("destroy_context", context)[0] != 0
    primary = tenant.ok("retain")
    assert tenant("destroy_context", primary)[0] != 0, "it is not the program's to destroy"
    newest = gated.take_turns(tenant)
    tenant.does("set_current", primary)
    tenant.does("launch", "cuLaunchKernel", 20)
    gated.stays_out(tenant, 20)
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 20)


def test_each_gpu_has_its_own_credit(make_gated: MakeGated) -> None:
    gated = make_gated("h100:2")
    tenant = gated.tenant()
    first = tenant.ok("current")
    second = tenant.ok("retain", 1)
    tenant.does("set_current", second)
    tenant.does("prepare")
    for index in range(2):
        gated.arbiter.set_pace(pages.TURNS, index)
        gated.arbiter.give(0, index)
    for word, context in enumerate((first, second)):
        tenant.does("set_current", context)
        tenant.does("launch", "cuLaunchKernel", word)
    gated.stays_out(tenant, 0, 1)
    gated.arbiter.give(1, 1)
    gated.runs(tenant, 1)
    gated.stays_out(tenant, 0)
    tenant("query_stream")  # closes on both
    gated.arbiter.wait_done(1, 1)
    gated.arbiter.give(1, 0)
    gated.runs(tenant, 0)
    gated.arbiter.wait_done(1, 0)


# --- where it cannot work


def test_without_stream_operations_there_are_memory_limits_only(gated: Gated) -> None:
    gated.arbiter.greet_with(credit=0, pace=pages.TURNS)
    tenant = gated.tenant(ALIQUOT_SIMULATE_WITHOUT=WITHOUT)
    work = gated.arbiter.work()
    assert (work.gates, work.why) == (pages.GATES_FAIL, NOT_SUPPORTED)
    stream = tenant.ok("create_stream")
    for word, where in enumerate((0, 1, 2, stream)):
        tenant.does("launch", "cuLaunchKernel", word, where)
    another(tenant)
    tenant.does("launch", "cuLaunchKernel", 4)
    gated.runs(tenant, 0, 1, 2, 3, 4)
    tenant.does("synchronize")
    assert work.opened == 0
    assert tenant.end() == ""


def test_a_slow_self_test_is_not_a_failed_one(make_gated: MakeGated) -> None:
    """A GPU that is busy with others gets to it late. A hard slice needs the result at once."""
    gated = make_gated(policy=pages.HARD)
    tenant = gated.tenant(ALIQUOT_SIMULATE_WITHOUT="prompt-values")
    assert gated.arbiter.work().gates == pages.GATES_WORK
    tenant.does("launch", "cuLaunchKernel", 0)
    gated.runs(tenant, 0)


@pytest.mark.parametrize("call", ["retain", "create_context"])
def test_hard_policy_is_refused_if_gates_do_not_work(make_gated: MakeGated, call: str) -> None:
    gated = make_gated(policy=pages.HARD)
    tenant = gated.newcomer(ALIQUOT_SIMULATE_WITHOUT=WITHOUT)
    tenant.does("init")
    assert tenant(call)[0] == NOT_SUPPORTED
    assert tenant(call)[0] == NOT_SUPPORTED
    assert tenant("primary_state")[2] == 0
    assert tenant("current") == [0, 0]
    usage = gated.arbiter.usage.as_form(pages.Usage)
    assert pages.bytes_in(usage.slices[0].word) == 0
    said = tenant.end()
    assert "hard" in said
    assert "aliquot doctor" in said


def test_hard_policy_works_if_gates_work(make_gated: MakeGated) -> None:
    gated = make_gated(policy=pages.HARD)
    tenant = gated.tenant()
    newest = gated.take_turns(tenant)
    tenant.does("launch", "cuLaunchKernel", 0)
    gated.stays_out(tenant, 0)
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 0)


# --- what breaks


def test_a_fault_completes_the_marks_of_its_context(gated: Gated, tenant: Tenant) -> None:
    """Its marks count as written, and the program gets the driver's error."""
    gated.take_turns(tenant, credit=1000)
    tenant.does("fault")
    tenant("set_words", 20)
    assert tenant("synchronize") == [ILLEGAL_ADDRESS]
    assert gated.arbiter.asked() == gated.arbiter.reached()
    gated.arbiter.wait_done(gated.arbiter.work().closed)
    assert set(tenant("set_words", 5)) == {ILLEGAL_ADDRESS}
    assert tenant("query_stream") == [ILLEGAL_ADDRESS]


def test_a_fault_reported_by_a_launch_completes_the_marks(gated: Gated, tenant: Tenant) -> None:
    gated.take_turns(tenant, credit=1000)
    tenant.does("fault")
    wait_until(lambda: tenant("launch", "cuLaunchKernel", 0) == [ILLEGAL_ADDRESS])
    assert gated.arbiter.asked() == gated.arbiter.reached()


def test_a_fault_leaves_the_gates_of_other_contexts(make_gated: MakeGated) -> None:
    gated = make_gated("h100:2")
    tenant = gated.tenant()
    second = tenant.ok("retain", 1)
    tenant.does("fault")
    assert tenant("synchronize") == [ILLEGAL_ADDRESS]
    tenant.does("set_current", second)
    assert tenant("prepare")[0] in {0, ILLEGAL_ADDRESS}


def test_a_forked_child_goes_straight_to_the_driver(gated: Gated, tenant: Tenant) -> None:
    stream = tenant.ok("create_stream")
    newest = gated.take_turns(tenant)
    tenant.does("launch", "cuLaunchKernel", 0, stream)
    work = gated.arbiter.work()
    before = (work.launches, work.opened, work.closed)
    calls = [
        ("launch_nothing",),
        ("launch_nothing", stream),
        ("call", "cuLaunchKernel_ptsz", *[0] * 11),
        ("call", "cuStreamQuery", stream),
        ("call", "cuStreamBeginCapture_v2", stream, 0),
        ("destroy_stream", stream),
    ]
    answers = tenant("in_child", *calls)
    assert [answer[0] for answer in answers] == [NOT_INITIALIZED] * len(calls)
    assert (work.launches, work.opened, work.closed) == before
    gated.arbiter.give(newest + 1)
    gated.runs(tenant, 0)
    gated.settles(tenant)


def test_an_exec_gets_new_pages(gated: Gated, tenant: Tenant) -> None:
    gated.take_turns(tenant)
    tenant.does("launch", "cuLaunchKernel", 0)
    gated.arbiter.greet_with(credit=0, pace=pages.TURNS)
    tenant.tell("become_new")
    tenant.start().does("prepare")
    assert gated.arbiter.work().opened == 0
    tenant.does("launch", "cuLaunchKernel", 0)
    gated.stays_out(tenant, 0)
    gated.arbiter.give(1)
    gated.runs(tenant, 0)


@pytest.mark.parametrize("page", ["credit", "work"])
def test_invalid_pages_give_no_gpu(gated: Gated, page: str) -> None:
    gated.arbiter.spoil = page
    tenant = gated.newcomer()
    assert tenant("init") == [802]
    said = tenant.end()
    assert page in said
    assert "aliquot doctor" in said
