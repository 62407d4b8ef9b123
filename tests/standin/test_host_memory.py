"""Memory of the host that no copy needs goes to the GPU whose programs need it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from aliquot.devices import CUDA
from aliquot.model import GrantState, Residence
from aliquot.slices import control
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, Grant, Machine, Tenant
from support import wait_until

LIMIT = 256 * MIB  # of the host, for both GPUs
PIECE = 60 * MIB


class User:
    """A program with memory on one of the GPUs."""

    def __init__(self, machine: Machine, gpu: int) -> None:
        self.machine, self.gpu = machine, gpu
        self.grant: Grant = machine.grant(GIB, on=(gpu,), name=f"on{gpu}", swap=True)
        self.tenant: Tenant = machine.tenant(self.grant).start()

    def allocate(self, pieces: int) -> None:
        for _ in range(pieces):
            self.tenant.ok("alloc", PIECE)

    def host_bytes(self) -> int:
        return int(self.machine.status()["gpus"][self.gpu]["mover"]["host_bytes"])

    def move(self, place: Residence) -> dict[str, Any]:
        """What it says when its memory is there, or has not left."""
        control.set_state(self.machine.state, self.grant.name, GrantState.SWITCHING)
        control.move(self.machine.state, self.grant.name, place)
        wait_until(lambda: self.status()["settled"])
        return self.status()

    def status(self) -> dict[str, Any]:
        (found,) = self.machine.grant_status(self.grant)["processes"]
        return dict(found)

    def leaves(self) -> None:
        status = self.move(Residence.HOST)
        assert status["move_failed"] is None, status
        assert status["away_bytes"] >= PIECE

    def returns(self) -> None:
        assert self.move(Residence.GPU)["away_bytes"] == 0
        control.set_state(self.machine.state, self.grant.name, GrantState.ACTIVE)


@pytest.fixture
def machine(make_machine: MakeMachine, native_dir: Path) -> Machine:
    cuda = str(native_dir / "sim" / CUDA)
    return make_machine("h100:2", options=("--cuda", cuda, "--host-memory", str(LIMIT)))


def test_memory_that_no_copy_needs_is_given_to_another_gpu(machine: Machine) -> None:
    first, second = User(machine, 0), User(machine, 1)
    first.allocate(3)
    wait_until(lambda: first.host_bytes() + second.host_bytes() == LIMIT)
    before = first.host_bytes()
    second.allocate(2)
    second.leaves()
    assert first.host_bytes() < before
    assert first.move(Residence.HOST)["move_failed"] == "host-full"  # copies are not given up
    first.returns()
    second.returns()
    first.leaves()
    first.returns()


def test_the_mover_of_the_other_gpu_is_killed_meanwhile(machine: Machine) -> None:
    first, second = User(machine, 0), User(machine, 1)
    first.allocate(3)
    wait_until(lambda: first.host_bytes() + second.host_bytes() == LIMIT)
    second.allocate(2)
    os.kill(machine.status()["gpus"][0]["mover"]["pid"], signal.SIGKILL)
    second.leaves()
    second.returns()
