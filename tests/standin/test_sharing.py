"""Memory that several processes share is charged once, and nobody is charged after its end.

The driver counts such memory once too (seen on an H200): for the process that created it while that
process holds it, then for an importer. While nothing but an open descriptor holds it, NVML shows it
for no process.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from aliquot.devices import CUDA
from standin.changed import changed_driver
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, OUT_OF_MEMORY, Grant, Machine, Tenant
from support import wait_until

LIMIT = 2 * GIB
PIECE = 64 * MIB


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(LIMIT)


@pytest.fixture
def tenant(machine: Machine, grant: Grant) -> Tenant:
    return machine.tenant(grant).start()


@pytest.fixture
def other(machine: Machine, grant: Grant) -> Tenant:
    return machine.tenant(grant).start()


def hand_over(place: Path, giver: Tenant, taker: Tenant, descriptor: int) -> int:
    """Send a descriptor from one process to another. Returns its number there."""
    path = str(place / "socket")
    taker.tell("receive_descriptor", path)
    giver.does("send_descriptor", path, descriptor)
    return int(taker.answer()[1])


def export(tenant: Tenant) -> tuple[int, int]:
    """A handle of new memory, and a descriptor of it."""
    handle = tenant.ok("create_shareable", PIECE)
    return handle, tenant.ok("export_physical", handle)


def used(tenant: Tenant) -> int:
    """What the slice has in use: programs and the driver."""
    _, free, total = tenant("info")
    return int(total - free)


# --- physical memory


def test_exported_memory_is_released_with_its_last_handle(grant: Grant, tenant: Tenant) -> None:
    before = grant.counted()
    for _ in range(40):  # 2.5 GiB in a slice of 2 GiB
        handle, descriptor = export(tenant)
        tenant.does("close_descriptor", descriptor)
        tenant.does("release_physical", handle)
    assert grant.counted() == before


def test_exported_memory_stays_charged_while_a_descriptor_is_open(
    grant: Grant, tenant: Tenant, other: Tenant, short_tmp: Path
) -> None:
    before = grant.counted()
    handle, descriptor = export(tenant)
    elsewhere = hand_over(short_tmp, tenant, other, descriptor)
    tenant.does("release_physical", handle)
    tenant.does("close_descriptor", descriptor)
    tenant.does("synchronize")
    assert grant.counted() - before == PIECE
    other.does("close_descriptor", elsewhere)

    def is_settled() -> bool:
        tenant.does("synchronize")
        return grant.counted() == before

    wait_until(is_settled)


def test_descriptors_left_open_fill_the_slice_and_no_more(grant: Grant, tenant: Tenant) -> None:
    kept = []
    for _ in range(40):
        code, handle = tenant("create_shareable", PIECE)
        if code:
            break
        kept.append(tenant.ok("export_physical", handle))
        tenant.does("release_physical", handle)
    assert code == OUT_OF_MEMORY
    assert len(kept) * PIECE <= LIMIT
    for descriptor in kept:
        tenant.does("close_descriptor", descriptor)
    tenant.ok("create_shareable", LIMIT // 2)  # what closing freed is found when it is needed


# A kernel that takes long to say which descriptors are open, and writes down that it was asked.
SLOW_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { APPEND = 02101 }; /* O_WRONLY | O_CREAT | O_APPEND; <fcntl.h> declares another open */
int open(const char *path, int flags, int mode)
{
	int (*next)(const char *, int, int) = dlsym(RTLD_NEXT, "open");
	if (strcmp(path, "/proc/locks") == 0) {
		int asked = next(getenv("TEST_ASKED"), APPEND, 0600);
		write(asked, "x", 1);
		close(asked);
		usleep(20000);
	}
	return next(path, flags, mode);
}
"""


def test_calls_that_wait_rarely_ask_the_kernel_for_open_descriptors(
    machine: Machine, grant: Grant, tmp_path: Path
) -> None:
    """The answer takes milliseconds, in which nobody on the machine can lock a file."""
    asked, shim = tmp_path / "asked", tmp_path / "shim.so"
    (tmp_path / "shim.c").write_text(SLOW_LOCKS)
    command = ["gcc", "-shared", "-fPIC", "-o", str(shim), str(tmp_path / "shim.c")]
    subprocess.run(command, check=True)
    preload = f"{shim}:{machine.library / CUDA}"
    tenant = machine.tenant(grant, LD_PRELOAD=preload, TEST_ASKED=str(asked)).start()
    handle, _ = export(tenant)
    tenant.does("release_physical", handle)
    start, waits = time.monotonic(), 0
    while time.monotonic() < start + 2:
        tenant.does("synchronize")
        waits += 1
        time.sleep(0.01)
    assert waits > 20
    assert 1 <= asked.stat().st_size <= 4  # 20 ms, and then none for a second


@pytest.mark.parametrize("last", ["exporter", "importer"])
def test_memory_shared_in_a_grant_is_charged_once_whoever_releases_last(
    grant: Grant, tenant: Tenant, other: Tenant, short_tmp: Path, last: str
) -> None:
    before = used(tenant)
    handle, descriptor = export(tenant)
    elsewhere = hand_over(short_tmp, tenant, other, descriptor)
    imported = other.ok("import_physical", elsewhere)
    again = other.ok("import_physical", elsewhere)
    address = other.ok("reserve_addresses", PIECE)
    other.does("map", address, PIECE, imported)
    for process, number in ((tenant, descriptor), (other, elsewhere)):
        process.does("close_descriptor", number)
    assert used(tenant) - before == PIECE

    def exporter_leaves() -> None:
        tenant.does("release_physical", handle)

    def importer_leaves() -> None:
        other.does("release_physical", imported)
        other.does("release_physical", again)
        other.does("unmap", address, PIECE)

    leaves = [importer_leaves, exporter_leaves]
    for leave in leaves if last == "exporter" else reversed(leaves):
        wait_until(lambda: used(tenant) - before == PIECE)
        leave()
    wait_until(lambda: used(tenant) == before)
    assert used(other) == before


def test_an_importer_is_charged_once_the_exporter_is_dead(
    grant: Grant, tenant: Tenant, other: Tenant, short_tmp: Path
) -> None:
    before = used(other)
    _, descriptor = export(tenant)
    elsewhere = hand_over(short_tmp, tenant, other, descriptor)
    imported = other.ok("import_physical", elsewhere)
    other.does("close_descriptor", elsewhere)
    tenant.kill()
    one_context = (before // 2) + PIECE
    wait_until(lambda: used(other) < before + PIECE)  # the dead process's context is gone
    wait_until(lambda: abs(used(other) - one_context) <= 32 * MIB)
    with_memory = used(other)
    other.does("release_physical", imported)
    wait_until(lambda: with_memory - used(other) == PIECE)


def test_an_importer_of_another_grant_is_charged_after_the_exporter(
    machine: Machine, grant: Grant, tenant: Tenant, short_tmp: Path
) -> None:
    stranger = machine.tenant(machine.grant(LIMIT, name="theirs")).start()
    ours, theirs = used(tenant), used(stranger)
    handle, descriptor = export(tenant)
    elsewhere = hand_over(short_tmp, tenant, stranger, descriptor)
    imported = stranger.ok("import_physical", elsewhere)
    stranger.does("close_descriptor", elsewhere)
    tenant.does("close_descriptor", descriptor)
    assert (used(tenant), used(stranger)) == (ours + PIECE, theirs)
    tenant.does("release_physical", handle)
    wait_until(lambda: (used(tenant), used(stranger)) == (ours, theirs + PIECE))
    stranger.does("release_physical", imported)
    wait_until(lambda: (used(tenant), used(stranger)) == (ours, theirs))


def test_a_process_that_imports_its_own_memory_is_charged_once(
    grant: Grant, tenant: Tenant
) -> None:
    before = used(tenant)
    handle, descriptor = export(tenant)
    second = tenant.ok("import_physical", descriptor)
    tenant.does("close_descriptor", descriptor)
    assert used(tenant) - before == PIECE
    tenant.does("release_physical", handle)
    wait_until(lambda: used(tenant) - before == PIECE)
    tenant.does("release_physical", second)
    wait_until(lambda: used(tenant) == before)


def test_one_unmap_over_imported_and_own_mappings_ends_all_of_them(
    grant: Grant, tenant: Tenant, other: Tenant, short_tmp: Path
) -> None:
    _, descriptor = export(tenant)
    imported = other.ok("import_physical", hand_over(short_tmp, tenant, other, descriptor))
    before = grant.counted()
    base = other.ok("reserve_addresses", 4 * PIECE)
    other.does("map", base, PIECE, imported)
    for number in (1, 3):  # and a gap before the last
        handle = other.ok("create_physical", PIECE)
        other.does("map", base + number * PIECE, PIECE, handle)
        other.does("release_physical", handle)
    assert grant.counted() - before == 2 * PIECE
    other.does("unmap", base, 4 * PIECE)
    assert grant.counted() == before


# --- multicast objects

# A driver with one multicast object, which takes no more than one memory.
MULTICAST = """
typedef unsigned long long word;
int cuMulticastBindMem(word object, word at, word memory, word offset, word bytes, word flags)
{
	static int bound;
	return object != 12345 ? 400 : bound++ ? 2 : 0;
}
int cuMemRelease(word handle)
{
	int (*real)(word) = simulated("cuMemRelease");
	return handle == 12345 ? 0 : real(handle);
}
"""
OBJECT = 12345


def test_memory_in_a_multicast_object_stays_charged_until_the_object_ends(
    make_machine: MakeMachine, native_dir: Path, tmp_path: Path
) -> None:
    defined = ["cuMulticastBindMem", "cuMemRelease"]
    driver = changed_driver(tmp_path / "driver", native_dir / "sim", MULTICAST, defined=defined)
    machine = make_machine(driver=driver)
    grant = machine.grant(LIMIT)
    tenant = machine.tenant(grant).start()
    before = grant.counted()
    context = tenant.ok("create_context")
    bound, refused = (tenant.ok("create_physical", PIECE) for _ in range(2))
    tenant.does("bind_multicast", OBJECT, bound, PIECE)
    assert tenant("bind_multicast", OBJECT, refused, PIECE) == [OUT_OF_MEMORY]
    for handle in (bound, refused):
        tenant.does("release_physical", handle)
    tenant.does("destroy_context", context)
    assert grant.counted() - before == PIECE
    tenant.does("release_physical", OBJECT)
    assert grant.counted() == before


# --- descriptors for other devices


def test_memory_stays_charged_while_a_descriptor_for_other_devices_is_open(
    grant: Grant, tenant: Tenant
) -> None:
    before = grant.counted()
    pointer = tenant.ok("alloc", PIECE)
    descriptor = tenant.ok("range_descriptor", pointer, PIECE)
    tenant.does("free", pointer)
    assert grant.counted() - before == PIECE
    tenant.does("close_descriptor", descriptor)
    handle = tenant.ok("create_physical", PIECE)
    address = tenant.ok("reserve_addresses", PIECE)
    tenant.does("map", address, PIECE, handle)
    descriptor = tenant.ok("range_descriptor", address, PIECE)
    tenant.does("unmap", address, PIECE)
    tenant.does("release_physical", handle)
    assert grant.counted() - before == PIECE
    tenant.does("close_descriptor", descriptor)

    def is_settled() -> bool:
        tenant.does("synchronize")
        return grant.counted() == before

    wait_until(is_settled)
