"""Memory that can leave the GPU looks to the program as the driver's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standin.conftest import MakeMachine
from standin.machine import CONTEXT, GIB, MIB, OUT_OF_MEMORY, Grant, Machine, Tenant
from standin.test_same_results import CALLS, EXAMPLES, Call, Runner, compare

NOT_SUPPORTED = 801
IPC_CAPABLE = 10  # an attribute of pointers


@pytest.fixture
def runners(make_machine: MakeMachine) -> Iterator[tuple[Runner, Runner]]:
    """One on the driver alone, one in a slice whose memory can leave."""
    alone, sliced = make_machine("h100:1"), make_machine("h100:1")
    pair = Runner(alone.bare()), Runner(sliced.inside(sliced.grant(60 * GIB, swap=True)))
    yield pair
    for runner in pair:
        runner.close()


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(2 * GIB, swap=True)


@pytest.fixture
def tenant(machine: Machine, grant: Grant) -> Tenant:
    return machine.tenant(grant).start()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=st.lists(CALLS, min_size=5, max_size=40))
def test_a_program_gets_the_same_answers(runners: tuple[Runner, Runner], calls: list[Call]) -> None:
    compare(runners, [["init"], ["retain"], *calls])


def test_what_is_freed_is_given_back(grant: Grant, tenant: Tenant) -> None:
    tenant.ok("alloc", 1)  # and the page of shadows
    before = grant.counted()
    pointers = [tenant.ok("alloc", size) for size in (MIB + 1, 64 * MIB, 512, MIB, MIB)]
    assert grant.counted() - before == (2 + 64 + 2) * MIB, "two of 1 MiB do not fit beside the rest"
    for pointer in pointers:
        tenant.does("free", pointer)
    assert grant.counted() == before


def test_all_of_the_slice_can_be_allocated(grant: Grant, tenant: Tenant) -> None:
    """But for the page of shadows; and an allocation that does not fit leaves nothing."""
    pointers = []
    while (answer := tenant("alloc", 32 * MIB))[0] == 0:
        pointers.append(answer[1])
    assert answer == [OUT_OF_MEMORY, 0]
    full = grant.counted()
    assert tenant("alloc_pitch", 1 << 20, 64) == [OUT_OF_MEMORY, 0, 0]
    assert grant.counted() == full
    tenant.does("free", pointers.pop())
    tenant.ok("alloc", 32 * MIB)
    assert len(pointers) + 1 == (2 * GIB - CONTEXT - 32 * MIB - 2 * MIB) // (32 * MIB)


def test_the_end_of_a_context_gives_everything_back(grant: Grant, tenant: Tenant) -> None:
    before = grant.counted()
    first = tenant.ok("create_context")
    for size in (1, 5 * MIB, 700, 64 * MIB):
        tenant.ok("alloc", size)
    tenant.does("destroy_context", first)
    assert grant.counted() == before


def test_freeing_waits_for_the_gpu(tenant: Tenant) -> None:
    tenant.does("prepare")
    stream = tenant.ok("create_stream")
    pointer, small = tenant.ok("alloc", 8 * MIB), tenant.ok("alloc", 8)
    for one in (pointer, small):
        tenant.does("spin_for", 50_000_000, stream)
        tenant.does("free", one)
        assert tenant("query_stream", stream) == [0]


def test_freeing_breaks_no_capture_of_another_thread(tenant: Tenant) -> None:
    stream = tenant.ok("create_stream")
    pointer = tenant.ok("alloc", 8 * MIB)
    begin = ["begin_capture", stream, 1]
    assert tenant("in_thread", "other", begin) == [[0]]
    tenant.does("free", pointer)
    again = tenant.ok("alloc", 8 * MIB)
    tenant.does("free", again)
    ((code, graph),) = tenant("in_thread", "other", ["end_capture", stream])
    assert code == 0
    assert graph


def fixed(machine: Machine, grant: Grant) -> int:
    (process,) = machine.grant_status(grant)["processes"]
    return int(process["fixed_bytes"])


def test_what_cannot_leave_is_told(machine: Machine, grant: Grant, tenant: Tenant) -> None:
    before = fixed(machine, grant)
    pointer = tenant.ok("alloc", 64 * MIB)
    assert fixed(machine, grant) - before == 2 * MIB, "the page of shadows"
    tenant.ok("create_array", 1024, 1024, 0x20, 1)
    more = fixed(machine, grant) - before - 2 * MIB
    assert more >= 4 * MIB
    tenant.does("free", pointer)
    assert fixed(machine, grant) == before + more
    tenant.ok("alloc", 512)
    assert fixed(machine, grant) == before + more + 2 * MIB


def test_memory_that_other_devices_get_stays(
    machine: Machine, grant: Grant, tenant: Tenant
) -> None:
    pointer = tenant.ok("alloc", 64 * MIB)
    before = fixed(machine, grant)
    tenant.ok("range_descriptor", pointer, 4096)
    assert fixed(machine, grant) - before == 64 * MIB


def test_without_swap_nothing_changes(machine: Machine) -> None:
    tenant = machine.tenant(machine.grant(GIB, name="plain")).start()
    pointer = tenant.ok("alloc", 64 * MIB)
    assert tenant("attribute_of", pointer, IPC_CAPABLE)[1] & 0xFF == 1
