"""Memory of cuMemAlloc that processes share by IPC handle, as torch.multiprocessing does.

The same in a slice whose memory can leave the GPU: there the driver has no such handles, and the
stand-in makes them.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from standin.machine import GIB, MIB, Grant, Machine, Tenant
from support import wait_until

LIMIT = 2 * GIB
PIECE = 64 * MIB
NOBODY = 65534
WORDS = struct.Struct("7Q")  # of a handle: what it is, socket, key, piece, its bytes, offset, user
INVALID_VALUE, INVALID_CONTEXT = 1, 201
IPC_CAPABLE = 10  # an attribute of pointers


def start(machine: Machine, grant: Grant) -> Tenant:
    """A program that has a small allocation: the first one takes a page."""
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", 512)
    return tenant


@pytest.fixture(params=[False, True], ids=["plain", "swap"])
def grant(machine: Machine, request: pytest.FixtureRequest) -> Grant:
    return machine.grant(LIMIT, swap=request.param)


@pytest.fixture
def swappable(machine: Machine) -> Grant:
    return machine.grant(LIMIT, name="swappable", swap=True)


@pytest.fixture
def tenant(machine: Machine, grant: Grant) -> Tenant:
    return start(machine, grant)


@pytest.fixture
def other(machine: Machine, grant: Grant) -> Tenant:
    return start(machine, grant)


def used(tenant: Tenant) -> int:
    """What the slice has in use: programs and the driver."""
    _, free, total = tenant("info")
    return int(total - free)


def handle_of(tenant: Tenant, pointer: int) -> str:
    code, handle = tenant("ipc_handle", pointer)
    assert code == 0
    return str(handle)


def test_memory_opened_by_ipc_handle_is_charged_once_in_either_order_of_release(
    grant: Grant, tenant: Tenant, other: Tenant
) -> None:
    before = used(tenant)
    for last in ("exporter", "importer"):
        pointer = tenant.ok("alloc", PIECE)
        tenant.does("fill", pointer, 7, PIECE)
        handle = handle_of(tenant, pointer)
        opened = other.ok("open_ipc", handle)
        assert other.ok("open_ipc", handle) == opened
        assert other("read", opened, 4) == [0, 7, 7, 7, 7]
        assert used(tenant) - before == PIECE
        if last == "importer":
            tenant.does("free", pointer)
            wait_until(lambda: used(tenant) - before == PIECE)
        other.does("close_ipc", opened)
        other.does("close_ipc", opened)
        if last == "exporter":
            assert used(tenant) - before == PIECE
            tenant.does("free", pointer)
        wait_until(lambda: used(tenant) == before)


def test_a_process_that_opened_memory_is_charged_once_its_creator_is_dead(
    machine: Machine, grant: Grant, other: Tenant
) -> None:
    before = used(other)
    tenant = start(machine, grant)
    opened = other.ok("open_ipc", handle_of(tenant, tenant.ok("alloc", PIECE)))
    tenant.kill()
    wait_until(lambda: used(other) == before + PIECE)
    other.does("close_ipc", opened)
    wait_until(lambda: used(other) == before)


def test_a_parent_and_two_children_exchange_a_thousand_tensors(
    machine: Machine, grant: Grant, tenant: Tenant, other: Tenant
) -> None:
    """As torch.multiprocessing does: the receiver opens, uses and closes what the sender made."""
    children = [other, start(machine, grant)]
    before, peak = used(tenant), 0
    for number in range(1000):
        child = children[number % 2]
        giver, taker = (tenant, child) if number % 4 < 2 else (child, tenant)
        pointer = giver.ok("alloc", 8 * MIB if number % 3 else 4096)
        giver.does("fill", pointer, number % 251, 4096)
        opened = taker.ok("open_ipc", handle_of(giver, pointer))
        assert taker("read", opened, 1) == [0, number % 251]
        if number % 5 == 0:
            peak = max(peak, used(tenant))
        taker.does("close_ipc", opened)
        giver.does("free", pointer)
    wait_until(lambda: used(tenant) == before)
    assert peak - before <= 8 * MIB + 2 * MIB


def test_both_see_what_the_other_writes(tenant: Tenant, other: Tenant) -> None:
    large, small = tenant.ok("alloc", PIECE), tenant.ok("alloc", 4096)
    for pointer in (large, small):
        opened = other.ok("open_ipc", handle_of(tenant, pointer))
        other.does("fill", opened, 9, 4096)
        other.does("synchronize")
        assert tenant("read", pointer, 2) == [0, 9, 9]
        other.does("close_ipc", opened)
        assert other("close_ipc", opened)[0] == INVALID_VALUE


def test_a_handle_stays_the_same_while_its_memory_lives(tenant: Tenant) -> None:
    pointer = tenant.ok("alloc", PIECE)
    first = handle_of(tenant, pointer)
    assert handle_of(tenant, pointer) == first
    assert tenant("attribute_of", pointer, IPC_CAPABLE)[1] & 0xFF == 1
    assert tenant("open_ipc", first)[0] == INVALID_CONTEXT, "not in the process that made it"


# --- memory that can leave the GPU


def test_a_handle_of_freed_memory_opens_nothing(machine: Machine, swappable: Grant) -> None:
    giver, taker = start(machine, swappable), start(machine, swappable)
    pointer = giver.ok("alloc", PIECE)
    stale = handle_of(giver, pointer)
    giver.does("free", pointer)
    assert taker("open_ipc", stale)[0] == INVALID_VALUE
    for _ in range(4):  # the addresses are used again
        again = giver.ok("alloc", PIECE)
        assert handle_of(giver, again) != stale
        assert taker("open_ipc", stale)[0] == INVALID_VALUE
        giver.does("free", again)


def test_a_handle_of_a_dead_process_opens_nothing(machine: Machine, swappable: Grant) -> None:
    giver, taker = start(machine, swappable), start(machine, swappable)
    handle = handle_of(giver, giver.ok("alloc", PIECE))
    giver.kill()
    assert taker("open_ipc", handle)[0] == INVALID_VALUE


@pytest.mark.parametrize("byte", range(0, 48, 4))
def test_a_changed_handle_is_refused(machine: Machine, swappable: Grant, byte: int) -> None:
    giver, taker = start(machine, swappable), start(machine, swappable)
    handle = bytearray.fromhex(handle_of(giver, giver.ok("alloc", PIECE)))
    handle[byte + 3] ^= 0x55
    assert taker("open_ipc", handle.hex())[0] != 0
    giver.does("synchronize")
    assert taker("open_ipc", handle_of(giver, giver.ok("alloc", PIECE)))[0] == 0


def test_shared_memory_is_fixed(machine: Machine, swappable: Grant) -> None:
    tenant = start(machine, swappable)
    pointer = tenant.ok("alloc", PIECE)

    def fixed() -> int:
        (process,) = machine.grant_status(swappable)["processes"]
        return int(process["fixed_bytes"])

    before = fixed()
    handle_of(tenant, pointer)
    assert fixed() - before == PIECE
    handle_of(tenant, pointer)
    assert fixed() - before == PIECE
    tenant.does("free", pointer)
    assert fixed() == before


# --- who asks, and who answers


def address_of(handle: str) -> str:
    """The socket that a handle names."""
    _, name, *_ = WORDS.unpack_from(bytes.fromhex(handle))
    return f"\0aliquot-ipc-{name:016x}"


def ask(handle: str, *, offset: int | None = None) -> list[int]:
    """Ask for the memory of a handle as a program may do by itself; the descriptors."""
    magic, _, key, piece, _, right, _ = WORDS.unpack_from(bytes.fromhex(handle))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(address_of(handle))
        asking.send(struct.pack("4Q", magic, key, piece, right if offset is None else offset))
        _, descriptors, _, _ = socket.recv_fds(asking, 8, 1)
        return descriptors


@pytest.mark.parametrize("lie", ["none", "inside", "far away", "another"])
def test_memory_stays_charged_while_the_asker_has_a_descriptor(
    machine: Machine, swappable: Grant, lie: str
) -> None:
    tenant = start(machine, swappable)
    pointer, other = tenant.ok("alloc", PIECE), tenant.ok("alloc", PIECE)
    offsets = {"inside": 4096, "far away": 1 << 40, "another": (other - pointer) % (1 << 64)}
    before = swappable.counted()
    got = ask(handle_of(tenant, pointer), offset=offsets.get(lie))
    assert bool(got) == (lie == "none")
    tenant.does("free", pointer)
    assert before - swappable.counted() == (0 if got else PIECE)
    for descriptor in got:
        os.close(descriptor)


def test_a_page_of_small_memory_stays_charged_while_a_descriptor_of_it_is_open(
    machine: Machine, swappable: Grant
) -> None:
    tenant = machine.tenant(swappable).start()
    first, last = tenant.ok("alloc", 4096), tenant.ok("alloc", 4096)
    before = swappable.counted()
    (descriptor,) = ask(handle_of(tenant, first))
    tenant.does("free", first)
    tenant.does("free", last)
    shadows = 2 * MIB  # the page of what the driver made for both (swappable.h)
    assert before - swappable.counted() == shadows
    os.close(descriptor)

    def is_settled() -> bool:
        tenant.does("synchronize")
        return before - swappable.counted() == shadows + 2 * MIB

    wait_until(is_settled)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to be another user")
def test_memory_of_another_user_in_place_of_a_dead_process_is_refused(
    machine: Machine, swappable: Grant, short_tmp: Path
) -> None:
    """Another user who reads the names of sockets could take one that is free again."""
    giver, taker, thief = (start(machine, swappable) for _ in range(3))
    handle = handle_of(giver, giver.ok("alloc", PIECE))
    giver.kill()
    descriptor = thief.ok("export_physical", thief.ok("create_shareable", PIECE))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as into:
        into.bind(str(short_tmp / "socket"))
        thief.does("send_descriptor", str(short_tmp / "socket"), descriptor)
        _, (trap,), _, _ = socket.recv_fds(into, 1, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        os.seteuid(NOBODY)
        try:
            listener.bind(address_of(handle))
            listener.listen()
        finally:
            os.seteuid(0)
        taker.tell("open_ipc", handle)
        with listener.accept()[0] as asked:
            if asked.recv(64):
                socket.send_fds(asked, [struct.pack("Q", 1)], [trap])
        assert taker.answer()[0] == INVALID_VALUE
    os.close(trap)
