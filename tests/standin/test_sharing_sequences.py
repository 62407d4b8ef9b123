"""Random sequences of sharing between two processes: the ledger is what the GPU holds, always.

Both processes create, export, import, map, release and free memory, by handle and by IPC handle, in
any order. At every quiet point the slice has in use what the simulated GPU says, and at the end
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standin.machine import GIB, MIB, Grant, Machine, Tenant
from standin.test_sharing import hand_over, used
from support import wait_until

LIMIT = 8 * GIB
SIZES = (2 * MIB, 32 * MIB, 64 * MIB)

CALLS = "create export hand_over close import map unmap release alloc open_ipc close_ipc free"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(CALLS.split()),
        st.integers(0, 1),
        st.integers(0, 1 << 16),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Side:
    """One process and what it has."""

    tenant: Tenant
    handles: list[tuple[int, int]] = field(default_factory=list)  # with their sizes
    descriptors: list[tuple[int, int]] = field(default_factory=list)
    mappings: list[tuple[int, int]] = field(default_factory=list)
    pointers: list[int] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)

    def step(self, what: str, number: int, other: Side, place: Path) -> None:
        do = getattr(self, "do_" + what)
        do(number, other, place)

    def do_create(self, number: int, _other: Side, _place: Path) -> None:
        size = SIZES[number % len(SIZES)]
        self.handles.append((self.tenant.ok("create_shareable", size), size))

    def do_export(self, number: int, _other: Side, _place: Path) -> None:
        if self.handles:
            handle, size = self.handles[number % len(self.handles)]
            self.descriptors.append((self.tenant.ok("export_physical", handle), size))

    def do_hand_over(self, number: int, other: Side, place: Path) -> None:
        if self.descriptors:
            descriptor, size = self.descriptors[number % len(self.descriptors)]
            got = hand_over(place, self.tenant, other.tenant, descriptor)
            other.descriptors.append((got, size))

    def do_close(self, number: int, _other: Side, _place: Path) -> None:
        if self.descriptors:
            descriptor, _ = self.descriptors.pop(number % len(self.descriptors))
            self.tenant.does("close_descriptor", descriptor)

    def do_import(self, number: int, _other: Side, _place: Path) -> None:
        if self.descriptors:
            descriptor, size = self.descriptors[number % len(self.descriptors)]
            self.handles.append((self.tenant.ok("import_physical", descriptor), size))

    def do_map(self, number: int, _other: Side, _place: Path) -> None:
        if self.handles:
            handle, size = self.handles[number % len(self.handles)]
            address = self.tenant.ok("reserve_addresses", size)
            self.tenant.does("map", address, size, handle)
            self.mappings.append((address, size))

    def do_unmap(self, number: int, _other: Side, _place: Path) -> None:
        if self.mappings:
            address, size = self.mappings.pop(number % len(self.mappings))
            self.tenant.does("unmap", address, size)

    def do_release(self, number: int, _other: Side, _place: Path) -> None:
        if self.handles:
            handle, _ = self.handles.pop(number % len(self.handles))
            self.tenant.does("release_physical", handle)

    def do_alloc(self, number: int, _other: Side, _place: Path) -> None:
        size = (4096, 3 * MIB)[number % 2]
        self.pointers.append(self.tenant.ok("alloc", size))

    def do_open_ipc(self, number: int, other: Side, _place: Path) -> None:
        if other.pointers:
            pointer = other.pointers[number % len(other.pointers)]
            code, handle = other.tenant("ipc_handle", pointer)
            assert code == 0
            self.opened.append(self.tenant.ok("open_ipc", handle))

    def do_close_ipc(self, number: int, _other: Side, _place: Path) -> None:
        if self.opened:
            self.tenant.does("close_ipc", self.opened.pop(number % len(self.opened)))

    def do_free(self, number: int, _other: Side, _place: Path) -> None:
        if self.pointers:
            self.tenant.does("free", self.pointers.pop(number % len(self.pointers)))

    def end(self) -> None:
        """Let go of everything."""
        for descriptor, _ in self.descriptors:
            self.tenant.does("close_descriptor", descriptor)
        for address, size in self.mappings:
            self.tenant.does("unmap", address, size)
        for handle, _ in self.handles:
            self.tenant.does("release_physical", handle)
        for pointer in self.opened:
            self.tenant.does("close_ipc", pointer)
        for pointer in self.pointers:
            self.tenant.does("free", pointer)


@pytest.fixture(params=[False, True], ids=["plain", "swap"])
def grant(machine: Machine, request: pytest.FixtureRequest) -> Grant:
    return machine.grant(LIMIT, swap=request.param)


def on_gpu(stranger: Tenant) -> int:
    """What the whole GPU has in use."""
    _, free, total = stranger("info")
    return int(total - free)


def test_the_slice_has_in_use_what_the_gpu_holds(
    machine: Machine, grant: Grant, short_tmp: Path
) -> None:
    tenants = [machine.tenant(grant).start() for _ in range(2)]
    stranger = machine.stranger().start()
    slice_before, gpu_before = used(tenants[0]), on_gpu(stranger)
    counted_before = grant.counted()

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def run(steps: list[tuple[str, int, int]]) -> None:
        sides = [Side(tenant) for tenant in tenants]
        for what, who, number in steps:
            sides[who].step(what, number, sides[1 - who], short_tmp)
        for side in sides:  # a descriptor holds memory, which the simulated GPU does not count
            for descriptor, _ in side.descriptors:
                side.tenant.does("close_descriptor", descriptor)
            side.descriptors.clear()
        wait_until(is_equal)
        for side in sides:
            side.end()
        wait_until(is_zero)

    def is_equal() -> bool:
        in_use = {used(tenant) - slice_before for tenant in tenants}
        return in_use == {on_gpu(stranger) - gpu_before}

    def is_zero() -> bool:
        return is_equal() and grant.counted() == counted_before

    run()
