"""Pools are charged to the right slice by what they reserve, and use what they keep first."""

from __future__ import annotations

from standin.conftest import MakeMachine
from standin.driver import RELEASE_THRESHOLD, RESERVED_NOW
from standin.machine import GIB, MIB, OUT_OF_MEMORY, Machine

LIMIT = 2 * GIB


def test_an_allocation_in_a_stream_of_another_gpu_is_charged_there(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine("h100:2")
    grant = machine.grant(LIMIT, LIMIT)
    tenant = machine.tenant(grant).start(1)
    stream = tenant.ok("create_stream")
    tenant.start(0)
    before = grant.counted(0)
    tenant.ok("alloc_async", GIB, stream)
    assert grant.counted(1) >= GIB
    assert grant.counted(0) == before
    assert tenant("alloc_async", GIB, stream)[0] == OUT_OF_MEMORY


def test_a_pool_uses_what_it_keeps_before_pools_give_memory_up(machine: Machine) -> None:
    tenant = machine.tenant(machine.grant(LIMIT)).start()
    pool = tenant.ok("default_pool")
    tenant.does("set_pool_attribute", pool, RELEASE_THRESHOLD, 1 << 62)
    piece = tenant.ok("alloc_async", GIB)
    tenant.does("free_async", piece)
    tenant.does("synchronize")
    while tenant("alloc", 64 * MIB)[0] == 0 and tenant("info")[1] > 96 * MIB:
        pass
    kept = tenant.ok("pool_attribute", pool, RESERVED_NOW)
    assert kept >= GIB
    for _ in range(8):
        tenant.ok("alloc_async", 32 * MIB)
    assert tenant.ok("pool_attribute", pool, RESERVED_NOW) == kept


def test_the_number_of_pools_is_not_limited(machine: Machine) -> None:
    grant = machine.grant(64 * GIB)
    tenant = machine.tenant(grant).start()
    pools = [tenant.ok("create_pool") for _ in range(300)]
    before = grant.counted()
    tenant.ok("alloc_from", pools[-1], MIB)
    assert grant.counted() == before + 32 * MIB
