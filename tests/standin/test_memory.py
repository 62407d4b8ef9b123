"""Every call that allocates is charged, refused at the limit, and released when freed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from standin.conftest import MakeMachine
from standin.driver import (
    BC1,
    BC7,
    FLOAT,
    MALLOC_HEAP,
    NV12,
    PRINTF_BUFFER,
    RESERVED_NOW,
    STACK_SIZE,
    UNMAP,
    UNORM8X4,
)
from standin.machine import CONTEXT, GIB, MIB, OUT_OF_MEMORY, Grant, Machine, Tenant

LIMIT = 2 * GIB
PIECE = 64 * MIB


@dataclass(frozen=True)
class Way:
    """A call that allocates PIECE, and the call that frees it."""

    take: str
    arguments: tuple[int, ...]
    give: str
    needs_pool: bool = False
    settles: bool = False  # given back at the next synchronisation


WAYS = {
    "cuMemAlloc": Way("alloc", (PIECE,), "free"),
    "cuMemAllocPitch": Way("alloc_pitch", (64 << 10, 1 << 10), "free"),
    "cuMemAllocManaged": Way("alloc_managed", (PIECE,), "free"),
    "cuMemAllocAsync": Way("alloc_async", (PIECE,), "free_async", settles=True),
    "cuMemAllocAsync and cuMemFree": Way("alloc_async", (PIECE,), "free"),
    "cuMemAllocFromPoolAsync": Way(
        "alloc_from", (PIECE,), "free_async", needs_pool=True, settles=True
    ),
    "cuMemCreate": Way("create_physical", (PIECE,), "release_physical"),
    "cuArrayCreate of one dimension": Way("create_array", (4 << 20, 0), "destroy_array"),
    "cuArrayCreate of two": Way("create_array", (2048, 2048), "destroy_array"),
    "cuArray3DCreate": Way("create_array3d", (256, 256, 64), "destroy_array"),
    "cuArray3DCreate in layers": Way("create_array3d", (256, 256, 64, 4, 1), "destroy_array"),
    "cuMipmappedArrayCreate": Way("create_mipmap", (2048, 2048, 1), "destroy_mipmap"),
}


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(LIMIT)


@pytest.fixture
def tenant(machine: Machine, grant: Grant) -> Tenant:
    return machine.tenant(grant).start()


def used(tenant: Tenant) -> int:
    """The memory that a program sees in use on its GPU."""
    _, free, total = tenant("info")
    return int(total - free)


@pytest.mark.parametrize("name", WAYS)
def test_every_allocating_call_is_charged_limited_and_released(
    tenant: Tenant, grant: Grant, name: str
) -> None:
    way = WAYS[name]
    before, counted_before = used(tenant), grant.counted()
    arguments = way.arguments
    if way.needs_pool:
        arguments = (tenant.ok("create_pool"), *arguments)

    taken = [tenant.ok(way.take, *arguments)]
    assert grant.counted() - counted_before == PIECE
    assert used(tenant) - before == PIECE

    while (answer := tenant(way.take, *arguments))[0] == 0:
        taken.append(answer[1])
    assert answer[0] == OUT_OF_MEMORY
    room = LIMIT - before
    assert room - PIECE < len(taken) * PIECE <= room
    assert used(tenant) <= LIMIT

    for one in taken:
        tenant.does(way.give, one)
    if way.settles:
        tenant.does("synchronize")
    assert grant.counted() == counted_before
    assert used(tenant) == before
    tenant.ok(way.take, *arguments)


def test_a_context_is_charged_before_any_allocation(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    assert CONTEXT <= used(tenant) < CONTEXT + 64 * MIB


def test_a_context_that_does_not_fit_is_refused(machine: Machine, grant: Grant) -> None:
    first, second = machine.tenant(grant).start(), machine.tenant(grant)
    first.ok("alloc", LIMIT - used(first) - CONTEXT // 2)
    second.does("init")
    assert second("retain")[0] == OUT_OF_MEMORY
    assert second("create_context")[0] == OUT_OF_MEMORY
    assert second("primary_state")[2] == 0


def test_destroying_a_context_releases_its_memory(tenant: Tenant, grant: Grant) -> None:
    before = used(tenant), grant.counted()
    tenant.ok("create_context")
    assert used(tenant) - before[0] >= CONTEXT
    for take in (("alloc", PIECE), ("alloc_managed", PIECE), ("create_array", 2048, 2048)):
        tenant.ok(*take)
    (_, context) = tenant("pop")
    tenant.does("destroy_context", context)
    assert (used(tenant), grant.counted()) == before


@pytest.mark.parametrize("ending", ["release", "reset"])
def test_releasing_a_primary_context_releases_its_memory(
    tenant: Tenant, grant: Grant, ending: str
) -> None:
    tenant.ok("alloc", PIECE)
    tenant.does(ending)
    assert grant.counted() == 0
    context = tenant.ok("retain")
    tenant.does("set_current", context)
    assert used(tenant) < CONTEXT + 64 * MIB


def test_a_context_retained_twice_is_charged_once(tenant: Tenant, grant: Grant) -> None:
    before = used(tenant)
    tenant.ok("retain")
    assert used(tenant) == before
    tenant.does("release")
    assert used(tenant) == before
    tenant.ok("alloc", PIECE)


def test_small_allocations_are_charged_by_the_page_they_share(tenant: Tenant, grant: Grant) -> None:
    before = grant.counted()
    pointers = [tenant.ok("alloc", size) for size in (1, 512, 513, 1000)]
    assert grant.counted() - before == 2 * MIB
    pointers += [tenant.ok("alloc", MIB) for _ in range(3)]  # two pages' worth
    assert grant.counted() - before == 4 * MIB
    for pointer in pointers:
        tenant.does("free", pointer)
    assert grant.counted() == before


def test_large_allocations_are_charged_in_whole_pages(tenant: Tenant, grant: Grant) -> None:
    before = grant.counted()
    tenant.ok("alloc", MIB + 1)
    assert grant.counted() - before == 2 * MIB


def test_an_allocation_larger_than_the_slice_is_refused(tenant: Tenant, grant: Grant) -> None:
    before = grant.counted()
    for size in (LIMIT, LIMIT + 1, 1 << 40, (1 << 64) - 1):
        assert tenant("alloc", size) == [OUT_OF_MEMORY, 0]
        assert tenant("alloc_managed", size)[0] == OUT_OF_MEMORY
        assert tenant("alloc_async", size)[0] == OUT_OF_MEMORY
    assert grant.counted() == before


def test_physical_memory_stays_charged_while_it_has_a_handle_or_mapping(
    tenant: Tenant, grant: Grant
) -> None:
    before = grant.counted()
    handle = tenant.ok("create_physical", PIECE)
    first, second = (tenant.ok("reserve_addresses", PIECE) for _ in range(2))
    tenant.does("map", first, PIECE, handle)
    tenant.does("map", second, PIECE, handle)
    again = tenant.ok("retain_physical", first)
    assert again == handle
    for leave in (
        ("release_physical", handle),
        ("unmap", first, PIECE),
        ("release_physical", handle),
    ):
        tenant.does(*leave)
        assert grant.counted() - before == PIECE, leave
    tenant.does("unmap", second, PIECE)
    assert grant.counted() == before
    assert tenant("release_physical", handle)[0] != 0
    assert grant.counted() == before


def test_one_unmap_may_end_several_mappings(tenant: Tenant, grant: Grant) -> None:
    before = grant.counted()
    base = tenant.ok("reserve_addresses", 3 * PIECE)
    for number in range(3):
        handle = tenant.ok("create_physical", PIECE)
        tenant.does("map", base + number * PIECE, PIECE, handle)
        tenant.does("release_physical", handle)
    assert grant.counted() - before == 3 * PIECE
    assert tenant("unmap", base, PIECE // 2)[0] != 0
    assert grant.counted() - before == 3 * PIECE
    tenant.does("unmap", base, 2 * PIECE)
    assert grant.counted() - before == PIECE
    tenant.does("unmap", base + 2 * PIECE, PIECE)
    assert grant.counted() == before


def test_pools_are_charged_by_what_they_reserve(tenant: Tenant, grant: Grant) -> None:
    before = grant.counted()
    pool = tenant.ok("create_pool")
    first, second = (tenant.ok("alloc_from", pool, MIB) for _ in range(2))
    assert grant.counted() - before == tenant("pool_attribute", pool, RESERVED_NOW)[1] == 32 * MIB
    tenant.does("free_async", first)
    tenant.does("free_async", second)
    tenant.does("synchronize_stream")
    assert grant.counted() - before == tenant("pool_attribute", pool, RESERVED_NOW)[1]
    tenant.does("destroy_pool", pool)
    assert grant.counted() == before


def test_pools_give_up_unused_memory_before_an_allocation_is_refused(
    tenant: Tenant, grant: Grant
) -> None:
    pool = tenant.ok("default_pool")
    tenant.does("set_pool_attribute", pool, 4, (1 << 64) - 1)
    pointer = tenant.ok("alloc_async", GIB)
    tenant.does("free_async", pointer)
    tenant.does("synchronize")
    assert grant.counted() >= GIB  # kept, and counted
    tenant.ok("alloc", GIB)
    assert grant.counted() <= LIMIT


def test_allocations_of_a_destroyed_pool_stay_charged_until_freed(
    tenant: Tenant, grant: Grant
) -> None:
    before = grant.counted()
    pool = tenant.ok("create_pool")
    pointer = tenant.ok("alloc_from", pool, PIECE)
    tenant.does("destroy_pool", pool)
    assert grant.counted() - before >= PIECE
    tenant.does("free_async", pointer)
    tenant.does("synchronize")
    assert grant.counted() == before


def test_per_thread_stream_calls_are_charged_alike(tenant: Tenant, grant: Grant) -> None:
    before = grant.counted()
    tenant.does("use_per_thread_streams")
    pointer = tenant.ok("alloc_async", PIECE)
    pool = tenant.ok("create_pool")
    other = tenant.ok("alloc_from", pool, PIECE)
    assert grant.counted() - before == 2 * PIECE
    assert tenant("alloc_async", LIMIT)[0] == OUT_OF_MEMORY
    tenant.does("free_async", pointer)
    tenant.does("free_async", other)
    tenant.does("synchronize_stream")
    assert grant.counted() == before


def test_slices_of_two_gpus_have_separate_limits(make_machine: MakeMachine) -> None:
    machine = make_machine("h100:2")
    grant = machine.grant(2 * GIB, 3 * GIB)
    tenant = machine.tenant(grant)
    tenant.does("init")
    contexts = [tenant.ok("retain", device) for device in (0, 1)]
    held = []
    for device, size in ((0, 2 * GIB), (1, 3 * GIB)):
        tenant.does("set_current", contexts[device])
        assert tenant.ok("total", device) == size
        count, code = tenant("fill_up", PIECE)
        assert code == OUT_OF_MEMORY
        assert size - CONTEXT - 3 * PIECE < count * PIECE <= size - CONTEXT
        held.append(grant.counted(device))
    assert held[1] - held[0] == GIB
    # Physical memory is asked for by device, whatever context is current.
    assert tenant("create_physical", PIECE, 0)[0] == OUT_OF_MEMORY
    tenant.does("release", 0)
    assert grant.counted(0) == 0
    tenant.ok("create_physical", PIECE, 0)
    assert tenant("create_physical", PIECE, 1)[0] == OUT_OF_MEMORY


def test_another_grant_on_the_same_gpu_uses_none_of_this_limit(machine: Machine) -> None:
    ours, theirs = machine.grant(2 * GIB, name="ours"), machine.grant(4 * GIB, name="theirs")
    one, other = machine.tenant(ours).start(), machine.tenant(theirs).start()
    assert other("fill_up", PIECE)[1] == OUT_OF_MEMORY
    count, _ = one("fill_up", PIECE)
    assert count * PIECE > 2 * GIB - CONTEXT - 3 * PIECE


# --- the interface of CUDA 3.1: it works in contexts that cuCtxCreate itself made


OLD_WAYS = {
    "cuMemAlloc": Way("alloc_v1", (PIECE,), "free_v1"),
    "cuMemAllocPitch": Way("alloc_pitch_v1", (64 << 10, 1 << 10), "free_v1"),
    "cuArrayCreate": Way("create_array_v1", (2048, 2048), "destroy_array"),
    "cuArray3DCreate": Way("create_array3d_v1", (256, 256, 64), "destroy_array"),
}


@pytest.mark.parametrize("name", OLD_WAYS)
def test_every_allocating_call_of_the_first_interface_is_charged(
    machine: Machine, grant: Grant, name: str
) -> None:
    way = OLD_WAYS[name]
    tenant = machine.tenant(grant)
    tenant.does("init")
    tenant.ok("create_context_v1")
    before = grant.counted()
    taken = [tenant.ok(way.take, *way.arguments)]
    assert grant.counted() - before == PIECE
    while (answer := tenant(way.take, *way.arguments))[0] == 0:
        taken.append(answer[1])
    assert answer[0] == OUT_OF_MEMORY
    assert len(taken) * PIECE <= LIMIT - before
    code, free, total = tenant("info_v1")
    assert (code, total) == (0, LIMIT)
    assert free < PIECE
    for one in taken:
        tenant.does(way.give, one)
    assert grant.counted() == before


# --- arrays


@pytest.mark.parametrize(
    ("layout", "channels", "bits"),
    [(BC1, 4, 4), (BC7, 4, 8), (NV12, 3, 12), (UNORM8X4, 4, 32), (FLOAT, 2, 64)],
)
def test_an_array_is_charged_by_the_bits_of_its_format(
    tenant: Tenant, grant: Grant, layout: int, channels: int, bits: int
) -> None:
    before, seen = grant.counted(), used(tenant)
    array = tenant.ok("create_array", 4096, 4096, layout, channels)
    assert grant.counted() - before == 4096 * 4096 * bits // 8
    assert used(tenant) - seen == grant.counted() - before  # NVML sees no more
    tenant.does("destroy_array", array)
    assert grant.counted() == before


@pytest.mark.parametrize("ending", ["destroy_array", "destroy_context"])
def test_memory_in_a_sparse_array_stays_charged_until_the_array_ends(
    tenant: Tenant, grant: Grant, ending: str
) -> None:
    before = grant.counted()
    context = tenant.ok("create_context")
    own = grant.counted()
    array = tenant.ok("create_sparse_array", 4096, 4096)
    assert grant.counted() == own
    for _ in range(2):  # the second memory replaces the first
        handle = tenant.ok("create_physical", PIECE)
        tenant.does("map_array", array, handle)
        tenant.does("map_array", array, handle)
        tenant.does("release_physical", handle)
    assert grant.counted() - own >= PIECE
    tenant.does("map_array", array, 0, UNMAP)
    if ending == "destroy_array":
        tenant.does("destroy_array", array)
        assert grant.counted() == own
    tenant.does("destroy_context", context)
    assert grant.counted() == before


# --- limits of a context


def test_a_larger_stack_is_charged_for_every_thread_of_the_gpu(
    machine: Machine, tenant: Tenant, grant: Grant
) -> None:
    before, seen = grant.counted(), used(tenant)
    threads = 132 * 2048  # of an H100
    assert tenant("set_limit", STACK_SIZE, 64 << 10)[0] == OUT_OF_MEMORY  # 16.5 GiB
    assert tenant.ok("get_limit", STACK_SIZE) == 1024
    assert grant.counted() == before
    for size in (4096, 2048, 3072):
        tenant.does("set_limit", STACK_SIZE, size)
        assert grant.counted() - before == threads * (size - 1024)
        assert used(tenant) - seen == threads * (size - 1024)
    tenant.does("set_limit", STACK_SIZE, 1024)
    assert grant.counted() == before


@pytest.mark.parametrize("limit", [MALLOC_HEAP, PRINTF_BUFFER])
def test_a_heap_that_kernels_will_take_is_charged_when_it_is_set(
    tenant: Tenant, grant: Grant, limit: int
) -> None:
    before, default = grant.counted(), tenant.ok("get_limit", limit)
    assert tenant("set_limit", limit, LIMIT)[0] == OUT_OF_MEMORY
    assert tenant.ok("get_limit", limit) == default
    context = tenant.ok("create_context")
    own = grant.counted()
    tenant.does("set_limit", limit, default + PIECE)
    assert grant.counted() - own == PIECE
    tenant.does("destroy_context", context)
    assert grant.counted() == before
