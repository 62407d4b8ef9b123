"""A simulated machine and an arbiter whose credit the test sets: a tenant's work waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from standin import pages
from standin.by_hand import Arbiter
from standin.machine import Grant, Machine, Tenant
from support import wait_until

LOOKS = 60  # some milliseconds of them: many times what the GPU takes for a kernel that may start


@dataclass(frozen=True)
class Gated:
    machine: Machine
    arbiter: Arbiter

    def newcomer(self, **changes: str | None) -> Tenant:
        """A process that has made no call yet."""
        return self.machine.tenant(Grant("by-hand", self.arbiter.directory), **changes)

    def tenant(self, device: int = 0, **changes: str | None) -> Tenant:
        """A process with a context, its kernels and its words."""
        tenant = self.newcomer(**changes).start(device)
        tenant.does("prepare")
        return tenant

    def take_turns(self, tenant: Tenant, *, credit: int | None = None) -> int:
        """From now on the tenant's quanta need credit: it has that much. Returns its newest.

        What it had begun before is closed and done.
        """
        self.arbiter.set_pace(pages.TURNS)
        tenant("synchronize")
        newest = int(self.arbiter.work().opened)
        self.arbiter.wait_done(newest)
        self.arbiter.give(newest if credit is None else newest + credit)
        return newest

    def leave_open(self, tenant: Tenant, stream: int = 0) -> int:
        """Take turns, and have the tenant launch into a quantum that stays open. Returns it."""
        self.take_turns(tenant, credit=100)
        while self.arbiter.work().opened == self.arbiter.work().closed:
            tenant.does("launch", "cuLaunchKernel", 0, stream)
        return int(self.arbiter.work().opened)

    def runs(self, tenant: Tenant, *words: int) -> None:
        """Assert that the kernels that write these words run, sooner or later."""
        wait_until(lambda: all(tenant("read_words", *words)))

    def stays_out(self, tenant: Tenant, *words: int) -> None:
        """Assert that the kernels that write these words do not run, though the GPU is idle."""
        for _ in range(LOOKS):
            assert not any(tenant("read_words", *words))

    def settles(self, tenant: Tenant) -> None:
        """Give unlimited credit, and assert that everything finishes."""
        self.arbiter.give(pages.OPEN)
        tenant("synchronize")
        work = self.arbiter.work()
        wait_until(lambda: self.arbiter.reached() == self.arbiter.asked())
        self.arbiter.wait_done(work.closed)

    def close(self) -> None:
        self.machine.close()
        self.arbiter.close()
