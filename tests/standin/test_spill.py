"""When a slice is full, its programs get memory of the host, which looks like the GPU's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.slices import control
from standin.conftest import MakeMachine
from standin.machine import CONTEXT, GIB, MIB, OUT_OF_MEMORY, Grant, Machine, Tenant
from standin.test_same_results import CALLS, Call, Runner, compare
from support import wait_until

EXAMPLES = 100
SLICE, SPILL = GIB, 256 * MIB
LEFT_BY_LARGE = 16 * MIB  # for small allocations, and what the driver must know of each on the host
FILLING = SLICE - CONTEXT - SLICE // 64 - LEFT_BY_LARGE - 2 * MIB
HOST = 15  # the entry of the ledger
MEMORY_TYPE, MANAGED = 2, 8  # attributes of pointers
ON_GPU = 2
NEEDS_THE_GPU = [
    "array",
    "mipmap",
    "pool",
    "physical",
    "managed",
    "async",
    "from",
    "context",
    "map",
]


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(SLICE, spill=SPILL)


@pytest.fixture
def tenant(machine: Machine, grant: Grant) -> Tenant:
    """Its slice is full."""
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", FILLING)
    return tenant


@pytest.fixture
def runners(make_machine: MakeMachine) -> Iterator[tuple[Runner, Runner]]:
    """One on the driver alone, one in a slice beside which there is memory of the host."""
    alone, sliced = make_machine("h100:1"), make_machine("h100:1")
    grant = sliced.grant(SLICE, spill=4 * GIB)
    pair = Runner(alone.bare()), Runner(sliced.inside(grant))
    yield pair
    for runner in pair:
        runner.close()
    assert grant.counted(HOST) == 0


def needs_the_gpu(call: Call) -> bool:
    return any(word in call[0] for word in NEEDS_THE_GPU)


def is_small(call: Call) -> bool:
    """Whether it allocates in a page that the driver shares with what it knows of the others."""
    name, *sizes = call
    if name == "alloc_pitch":
        sizes = [-(-sizes[0] // 512) * 512 * sizes[1]]
    return name in {"alloc", "alloc_pitch"} and 0 < sizes[0] <= MIB


def on_host(machine: Machine, grant: Grant) -> tuple[int, list[int]]:
    """What the arbiter says of the grant and of its processes."""
    told = machine.grant_status(grant)
    return told["on_host_bytes"], [one["on_host_bytes"] for one in told["processes"]]


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    calls=st.lists(CALLS, min_size=15, max_size=80).map(
        lambda calls: [call for call in calls if not needs_the_gpu(call) and not is_small(call)]
    )
)
def test_a_program_gets_the_same_answers(runners: tuple[Runner, Runner], calls: list[Call]) -> None:
    start: list[Call] = [
        ["init"],
        ["retain"],
        ["alloc", FILLING],
        ["alloc", 3 * MIB],
        ["ask", 1, 2],
    ]
    compare(runners, [*start, *calls])


def test_what_no_longer_fits_is_on_the_host(machine: Machine, grant: Grant, tenant: Tenant) -> None:
    full = grant.counted()
    pointer = tenant.ok("alloc", 64 * MIB)
    assert grant.counted() - full == 4 * MIB, "the page of what the driver must know of it, twice"
    assert on_host(machine, grant) == (64 * MIB, [64 * MIB])
    tenant.does("fill", pointer, 7, 64 * MIB)
    assert tenant("read", pointer + 64 * MIB - 8, 8) == [0, *[7] * 8]
    assert tenant("attribute_of", pointer, MEMORY_TYPE)[1] & 0xFFFF == ON_GPU
    assert tenant("attribute_of", pointer, MANAGED)[1] & 0xFF == 0
    tenant.does("free", pointer)
    assert on_host(machine, grant) == (0, [0])


def test_small_allocations_stay_on_the_gpu_while_there_is_room(
    grant: Grant, tenant: Tenant
) -> None:
    for _ in range(4):
        tenant.ok("alloc", MIB)
    assert grant.counted(HOST) == 0
    for _ in range(16):
        tenant.ok("alloc", MIB)
    assert 8 * MIB <= grant.counted(HOST) <= 16 * MIB, "two in a page of 2 MiB"


def test_the_host_has_a_limit_too(grant: Grant, tenant: Tenant) -> None:
    pointers = [tenant.ok("alloc", 64 * MIB) for _ in range(4)]
    assert tenant("alloc", 4 * MIB) == [OUT_OF_MEMORY, 0]
    assert tenant("alloc_pitch", 1 << 20, 64) == [OUT_OF_MEMORY, 0, 0]
    assert grant.counted(HOST) == SPILL
    tenant.does("free", pointers.pop())
    tenant.ok("alloc_pitch", 1 << 20, 64)
    assert grant.counted(HOST) == SPILL


def test_an_allocation_larger_than_both_leaves_nothing(grant: Grant, tenant: Tenant) -> None:
    before = grant.counted(), grant.counted(HOST)
    for size in (SPILL + 2 * MIB, 1 << 50, (1 << 64) - 1):
        assert tenant("alloc", size) == [OUT_OF_MEMORY, 0]
    assert (grant.counted(), grant.counted(HOST)) == before


def test_what_the_driver_takes_later_does_not_keep_the_host_from_programs(
    machine: Machine, grant: Grant, tenant: Tenant
) -> None:
    """Code that is loaded when the slice is full: the driver takes more than was left."""
    tenant.ok("alloc", 64 * MIB)
    for _ in range(20):
        tenant.ok("load_spin")
    wait_until(lambda: machine.grant_status(grant)["slices"][0]["driver_bytes"] > 30 * MIB)
    full = grant.counted()
    pointer, small = tenant.ok("alloc", 64 * MIB), tenant.ok("alloc", 8)
    assert (grant.counted(), grant.counted(HOST)) == (full, 130 * MIB)
    tenant.does("free", pointer)
    tenant.does("free", small)
    assert (grant.counted(), grant.counted(HOST)) == (full, 64 * MIB)


def test_a_program_is_told_of_both(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    assert tenant("total", 0) == [0, SLICE + SPILL]
    code, free, total = tenant("info")
    assert (code, total) == (0, SLICE + SPILL)
    assert free == SLICE - CONTEXT - SLICE // 64 + SPILL
    tenant.ok("alloc", FILLING)
    tenant.ok("alloc", 64 * MIB)
    assert tenant("info")[1] == 14 * MIB + SPILL - 64 * MIB


def test_the_end_of_a_context_gives_the_hosts_memory_back(
    machine: Machine, grant: Grant, tenant: Tenant
) -> None:
    tenant.ok("alloc", 64 * MIB)
    tenant.does("reset")
    assert (grant.counted(HOST), on_host(machine, grant)) == (0, (0, [0]))


@pytest.mark.parametrize("number", range(5))
def test_a_killed_program_gives_the_hosts_memory_back(
    machine: Machine, grant: Grant, tenant: Tenant, number: int
) -> None:
    """While it allocates on the host and frees, at whatever instruction."""
    tenant.tell("in_threads", 2, [3 * MIB, 64 * MIB, 700_000], 1_000_000)
    wait_until(lambda: grant.counted(HOST) > number * 2 * MIB)
    tenant.kill()
    wait_until(lambda: machine.grant_status(grant)["processes"] == [])
    assert grant.counted(HOST) == 0
    assert grant.counted() == 0


def test_processes_share_what_the_grant_may_have(machine: Machine, grant: Grant) -> None:
    first = machine.tenant(machine.grant(4 * GIB, name="two", spill=SPILL)).start()
    first.ok("alloc", 64 * MIB)
    tenants = [machine.tenant(grant).start()]
    tenants[0].ok("alloc", FILLING)
    tenants[0].ok("alloc", 192 * MIB)
    assert on_host(machine, grant)[0] == 192 * MIB
    assert tenants[0]("alloc", 66 * MIB) == [OUT_OF_MEMORY, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_full_host_gives_nothing(machine: Machine, tenant: Tenant, tmp_path: Path) -> None:
    """A tenth of the host stays free."""
    told = tmp_path / "meminfo"
    gibs = {"MemTotal": 100 << 20, "MemFree": 0, "MemAvailable": (10 << 20) + (63 << 10)}
    told.write_text("".join(f"{name}: {size} kB\n" for name, size in gibs.items()))
    tenant.does("mount_over", str(told), "/proc/meminfo")
    assert tenant("alloc", 64 * MIB) == [OUT_OF_MEMORY, 0]
    assert tenant("info")[1] == 18 * MIB + 63 * MIB
    tenant.ok("alloc", 62 * MIB)


def test_a_grant_gets_no_more_than_the_host_has(machine: Machine) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    with pytest.raises(control.NoHostMemoryError, match="of the host are left"):
        machine.grant(SLICE, spill=total)
    assert machine.status()["grants"] == []


def test_a_grant_gets_no_more_than_others_leave(make_machine: MakeMachine) -> None:
    machine = make_machine("h100:1", options=("--host-memory", str(512 * MIB)))
    machine.grant(SLICE, name="first", spill=300 * MIB)
    with pytest.raises(control.NoHostMemoryError, match=r"212 MiB of the host are left .* 300 MiB"):
        machine.grant(SLICE, name="second", spill=300 * MIB)
    control.end(machine.state, "first")
    machine.grant(SLICE, name="second", spill=300 * MIB)


def test_what_is_granted_outlives_the_arbiter(
    machine: Machine, grant: Grant, tenant: Tenant
) -> None:
    tenant.ok("alloc", 64 * MIB)
    machine.kill_arbiter("pid", "serving_pid", "guard_pid")
    machine.start_arbiter()
    assert on_host(machine, grant) == (64 * MIB, [64 * MIB])
    tenant.ok("alloc", 192 * MIB)
    tenant.kill()
    wait_until(lambda: on_host(machine, grant) == (0, []))


def test_memory_that_is_preferred_moves_to_the_gpu(machine: Machine, grant: Grant) -> None:
    """At the same address, with the same bytes and answers, once the slice has room."""
    tenant = machine.tenant(grant).start()
    filling, pointer = tenant.ok("alloc", FILLING), tenant.ok("alloc", 64 * MIB)
    tenant.does("fill", pointer, 7, 64 * MIB)
    tenant.does("fill", pointer + 64 * MIB - 8, 9, 8)
    asked = [*range(1, 5), *range(6, 10), *range(11, 22)]  # but IPC handles, which it has then
    before = tenant("attributes_of", pointer + 5, asked)
    assert tenant("prefer", pointer) == [False]
    assert on_host(machine, grant)[0] == 64 * MIB
    tenant.does("free", filling)
    free = grant.counted()
    assert tenant("prefer", pointer + 5) == [True]
    assert (grant.counted() - free, grant.counted(HOST)) == (62 * MIB, 0), "less the spare page"
    assert tenant("read", pointer + 64 * MIB - 12, 12) == [0, *[7] * 4, *[9] * 8]
    assert tenant("attributes_of", pointer + 5, asked) == before
    assert tenant("prefer", pointer) == [True]
    tenant.does("free", pointer)
    assert (grant.counted(), grant.counted(HOST)) == (free - 4 * MIB, 0)


def test_small_allocations_on_the_host_stay_there(grant: Grant, tenant: Tenant) -> None:
    pointers = [tenant.ok("alloc", MIB) for _ in range(16)]
    there = grant.counted(HOST)
    assert there
    assert tenant("prefer", pointers[-1]) == [False]
    assert tenant("prefer", pointers[0]) == [True], "it was never on the host"
    assert grant.counted(HOST) == there


def test_memory_on_the_host_has_no_ipc_handles(tenant: Tenant) -> None:
    assert tenant("ipc_handle", tenant.ok("alloc", 64 * MIB))[0] == 801


def test_without_spill_a_full_slice_is_full(machine: Machine) -> None:
    tenant = machine.tenant(machine.grant(SLICE)).start()
    tenant.ok("alloc", FILLING)
    assert tenant("alloc", 64 * MIB) == [OUT_OF_MEMORY, 0]
    assert tenant("total", 0) == [0, SLICE]
