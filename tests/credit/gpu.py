"""A simulated machine whose GPUs are loaded by tenants, and two measures of what each tenant got.

The GPU's own: the simulated engine counts the nanoseconds that each process's kernels ran, in
simulated time, so a slow or busy machine does not change it. The arbiter's: how long each slice
held the GPU.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from aliquot.model import Policy, Priority, Slice
from aliquot.slices import control
from credit import measuring
from credit.measuring import Figures, Shares
from sim import gpu_time
from standin.machine import GIB, TESTS, Grant, Machine


class Tenant:
    """A process of a grant that loads its GPUs (load.py)."""

    def __init__(self, grant: Grant, environment: dict[str, str], kind: str, **options: int):
        self.grant = grant
        settings = [f"{key}={value}" for key, value in options.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "credit.load", kind, *settings],
            env={**environment, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.listen() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def listen(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def go(self) -> Tenant:
        self.tell("go")
        return self

    def count(self) -> int:
        """How many bursts are done."""
        self.tell("count")
        return int(self.listen())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class LoadedGpu:
    """A machine with one or more simulated GPUs, its grants and its tenants."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.tenants: list[Tenant] = []

    def grant(
        self,
        name: str,
        compute: int = 0,
        policy: Policy = Policy.ELASTIC,
        priority: Priority = Priority.NORMAL,
        *,
        gpus: int = 1,
        first: int = 0,
    ) -> Grant:
        uuids = self.machine.uuids()[first : first + gpus]
        slices = [Slice(uuid, 8 * GIB, compute, policy, priority) for uuid in uuids]
        return self.machine.made(control.make(self.machine.state, name, slices))

    def pair_that_meets(self, folder: Path, together: str | None) -> tuple[Tenant, Tenant]:
        """Two grants of a quarter each whose kernels wait for each other, one on each GPU if there
        are two."""
        meeting = folder / "meeting"
        meeting.write_bytes(bytes(mmap.PAGESIZE))
        uuids = self.machine.uuids()
        tenants = []
        for rank in (0, 1):
            group = f" together={together}" if together else ""
            part = f"{uuids[rank % len(uuids)]},memory={8 * GIB},compute=25"
            made = control.ask(self.machine.state, f"make name=rank{rank}{group} slice={part}")
            grant = self.machine.made(str(made["grant"]))
            environment = self.machine.inside(grant, ALIQUOT_TEST_MEETING=str(meeting))
            tenants.append(Tenant(grant, environment, "meet", rank=rank))
        self.tenants += tenants
        for tenant in tenants:
            tenant.go()
        return tenants[0], tenants[1]

    def tenant(
        self, grant: Grant, kind: str = "spin", *, connections: int | None = None, **options: int
    ) -> Tenant:
        changes = {"CUDA_DEVICE_MAX_CONNECTIONS": None if connections is None else str(connections)}
        tenant = Tenant(grant, self.machine.inside(grant, **changes), kind, **options)
        self.tenants.append(tenant)
        return tenant

    def share(self, name: str, compute: int = 0, kind: str = "spin", **options: int) -> Tenant:
        """A working tenant in its own grant."""
        return self.tenant(self.grant(name, compute), kind, **options).go()

    def resize(self, tenant: Tenant, **settings: object) -> None:
        changes = "".join(f",{key}={value}" for key, value in settings.items())
        slices = " ".join(f"slice={uuid}{changes}" for uuid in self.machine.uuids()[:1])
        control.ask(self.machine.state, f"resize name={tenant.grant.name} {slices}")

    # --- measures

    def compute(self, tenant: Tenant, index: int = 0) -> dict[str, Any]:
        """The arbiter's figures for a tenant's slice."""
        return dict(self.machine.grant_status(tenant.grant)["slices"][index]["compute"])

    def busy_ns(self, *tenants: Tenant, gpu: int = 0) -> int:
        """The GPU time of all of them."""
        return sum(self._busy(tenants, gpu))

    def shares(self, *tenants: Tenant, gpu_seconds: float = 2.0, settled: float = 0.3) -> Shares:
        """What they got of `gpu_seconds`, after `settled` seconds for the turns to settle."""
        return measuring.measure(
            lambda: self._figures(tenants), lambda: self.busy_ns(*tenants), gpu_seconds, settled
        )

    def measured(
        self, is_right: Callable[[Shares], bool], *tenants: Tenant, gpu_seconds: float = 2.0
    ) -> Shares:
        """The first shares that are right, or else some that nothing disturbed."""
        return measuring.until_right(
            is_right,
            lambda: self.shares(*tenants, gpu_seconds=gpu_seconds),
            lambda: self._figures(tenants).in_turn,
        )

    def assert_shares(
        self, asked: Sequence[float], *tenants: Tenant, within: float, gpu_seconds: float = 2.0
    ) -> None:
        """The tenants get these percentages of the GPU, by the arbiter's clock."""

        def is_right(found: Shares) -> bool:
            return found.is_near(asked, within)

        shares = self.measured(is_right, *tenants, gpu_seconds=gpu_seconds)
        assert is_right(shares), (asked, shares.arbiter, shares)

    def spend(self, *tenants: Tenant, gpu_seconds: float) -> None:
        """Wait until the tenants got that much GPU time together."""
        measuring.spend(lambda: self.busy_ns(*tenants), gpu_seconds)

    def _busy(self, tenants: Iterable[Tenant], gpu: int = 0) -> list[int]:
        found = gpu_time.busy_ns(self.machine.meeting_place)
        return [found.get((one.pid, gpu), 0) for one in tenants]

    def _figures(self, tenants: Sequence[Tenant]) -> Figures:
        grants = {one["name"]: one for one in self.machine.status()["grants"]}
        told = [grants[one.grant.name]["slices"][0]["compute"] for one in tenants]
        return Figures(
            self._busy(tenants),
            [int(one["used_ns"]) for one in told],
            sum(int(one["fallbacks"]) for one in told),
            not any(one["state"] in {"overdue", "exempt"} for one in told),
        )

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.kill()
