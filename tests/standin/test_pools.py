"""Pools are charged to the right slice by what they reserve, and use what they keep first."""

from __future__ import annotations

from pathlib import Path

from standin.changed import changed_driver
from standin.conftest import MakeMachine
from standin.driver import RELEASE_THRESHOLD, RESERVED_NOW
from standin.machine import GIB, MIB, OUT_OF_MEMORY, Machine, fitted_library

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


def test_an_exported_pool_stays_charged_for_what_importers_may_keep(machine: Machine) -> None:
    grant = machine.grant(LIMIT)
    tenant = machine.tenant(grant).start()
    before = grant.counted()
    pool = tenant.ok("create_pool")
    tenant.ok("export_pool", pool)
    for _ in range(3):  # what it is charged is used again
        pieces = [tenant.ok("alloc_from", pool, 256 * MIB) for _ in range(3)]
        assert grant.counted() - before == 768 * MIB
        for piece in pieces:
            tenant.does("free_async", piece)
        tenant.does("synchronize")
        tenant.does("trim_pool", pool)
        assert tenant.ok("pool_attribute", pool, RESERVED_NOW) == 0
        assert grant.counted() - before == 768 * MIB
    tenant.does("destroy_pool", pool)
    assert grant.counted() == before


GRAPHS = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
struct parameters { int type, handles, location, device; char rest[72]; void *access;
    size_t count, bytes; uint64_t pointer; };
static uint64_t reserved[2];
int cuGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    for (size_t i = 0; nodes && i < 2; i++)
        nodes[i] = (void *)(i + 1);
    *count = 2;
    return 0;
}
int cuGraphNodeGetType(void *node, int *type) { *type = 10; return 0; }
int cuGraphMemAllocNodeGetParams(void *node, struct parameters *out)
{
    memset(out, 0, sizeof(*out));
    out->location = 1;
    out->device = (int)(uintptr_t)node - 1;
    out->bytes = (uintptr_t)node * 512 << 20;
    return 0;
}
int cuGraphInstantiateWithFlags(void **executable, void *graph, uint64_t flags)
{
    *executable = (void *)0x1000;
    return 0;
}
int cuGraphLaunch(void *executable, void *stream)
{
    for (uint64_t i = 0; i < 2; i++)
        reserved[i] = (i + 1) * 512 << 20;
    return 0;
}
int cuDeviceGetGraphMemAttribute(int device, int attribute, uint64_t *value)
{
    *value = reserved[device];
    return 0;
}
int cuDeviceGraphMemTrim(int device) { reserved[device] = 0; return 0; }
"""
REPLACED = [
    "cuGraphGetNodes",
    "cuGraphNodeGetType",
    "cuGraphMemAllocNodeGetParams",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuDeviceGetGraphMemAttribute",
    "cuDeviceGraphMemTrim",
]


def test_a_graph_that_allocates_on_two_gpus_is_charged_on_both(
    make_machine: MakeMachine, native_dir: Path, tmp_path: Path
) -> None:
    driver = changed_driver(tmp_path / "driver", native_dir / "sim", GRAPHS, defined=REPLACED)
    fitted = fitted_library(tmp_path / "fitted", native_dir, driver)
    machine = make_machine("h100:2", driver=driver, fitted=fitted)
    grant = machine.grant(LIMIT, LIMIT)
    tenant = machine.tenant(grant).start(1)
    tenant.start(0)
    before = [grant.counted(device) for device in (0, 1)]
    graph = tenant.ok("instantiate", 1)
    tenant.does("launch_graph", graph)
    assert [grant.counted(device) - before[device] for device in (0, 1)] == [512 * MIB, GIB]
    for device in (0, 1):
        tenant.does("trim_graphs", device)
    assert [grant.counted(device) for device in (0, 1)] == before
    tenant.ok("alloc", GIB)  # too little is left on the first, and the second is charged nothing
    tenant.ok("alloc", 256 * MIB)
    assert tenant("launch_graph", graph)[0] == OUT_OF_MEMORY
    assert grant.counted(1) == before[1]
