"""A program's memory leaves the GPU and comes back while its threads use it."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aliquot.devices import CUDA
from aliquot.model import GrantState, Residence
from aliquot.slices import control
from standin.conftest import MakeMachine
from standin.machine import GIB, MIB, Grant, Machine
from storm.test_storm import SANITIZERS, headers, sanitizer_of
from support import wait_until

SOURCE = Path(__file__).parent.parent / "native" / "cuda" / "moving.c"
THREADS, ROUNDS = 4, 6
SLICE = 704 * MIB  # with a context
CU_LIMIT_MALLOC_HEAP_SIZE = 2


@pytest.fixture(scope="session")
def program(native_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moving") / "moving"
    flags = ["-std=gnu11", "-O1", "-g", "-pthread", f"-I{headers()}"]
    command = ["gcc", *flags, *sanitizer_of(native_dir), str(SOURCE), "-o", str(path), "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def machine(make_machine: MakeMachine, native_dir: Path) -> Machine:
    return make_machine("h100:1", options=("--cuda", str(native_dir / "sim" / CUDA)))


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(SLICE, swap=True)


class Program:
    """Threads that use memory (moving.c), and where that memory is."""

    def __init__(self, machine: Machine, grant: Grant, path: Path, counts: Path) -> None:
        self.machine, self.grant, self._counts = machine, grant, counts
        counts.write_bytes(bytes(16))
        # The stand-in by its path: a sanitizer's library must come before anything preloaded.
        environment = machine.inside(grant, LD_PRELOAD=None, LD_LIBRARY_PATH=None)
        self.process = subprocess.Popen(
            [str(path), str(machine.library / CUDA), str(THREADS), str(counts)],
            env={**environment, **SANITIZERS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"
        self.goes_on()

    def counts(self) -> tuple[int, int]:
        """Rounds of its threads, and its questions about the GPU."""
        rounds, questions = struct.unpack("<QQ", self._counts.read_bytes())
        return rounds, questions

    def goes_on(self, rounds: int = 50) -> None:
        """Its threads continue to use their memory."""
        until = self.counts()[0] + rounds
        wait_until(lambda: self.process.poll() is not None or self.counts()[0] >= until)
        assert self.process.poll() is None, self.process.communicate()

    def keeps_asking(self) -> None:
        """Its questions are answered, though its memory is away and its other threads wait."""
        rounds, questions = self.counts()
        wait_until(lambda: self.counts()[1] > questions + 100)
        assert self.counts()[0] == rounds

    def status(self) -> dict[str, Any]:
        (found,) = self.machine.grant_status(self.grant)["processes"]
        return dict(found)

    def is_settled(self) -> bool:
        return bool(self.status()["settled"])

    def ask(self, place: Residence) -> None:
        control.set_state(self.machine.state, self.grant.name, GrantState.SWITCHING)
        control.move(self.machine.state, self.grant.name, place)

    def leave(self) -> None:
        self.ask(Residence.HOST)
        wait_until(self.is_settled)
        status = self.status()
        assert status["move_failed"] is None, status
        control.set_state(self.machine.state, self.grant.name, GrantState.PARKED)

    def come_back(self) -> None:
        self.ask(Residence.GPU)
        wait_until(self.is_settled)
        assert self.status()["away_bytes"] == 0
        control.set_state(self.machine.state, self.grant.name, GrantState.ACTIVE)

    def descriptors(self) -> list[str]:
        """What it has open: the memory that it sends, too."""
        found = []
        for one in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(f"{one.name} {one.readlink()}")
        return found

    def end(self) -> None:
        """Let it compare its memory once more and exit."""
        assert self.process.communicate(timeout=120) == ("done\n", "")
        assert self.process.returncode == 0


@pytest.fixture
def running(machine: Machine, grant: Grant, program: Path, tmp_path: Path) -> Iterator[Program]:
    one = Program(machine, grant, program, tmp_path / "counts")
    yield one
    one.process.kill()
    one.process.communicate()


def mover(machine: Machine) -> dict[str, Any]:
    (gpu,) = machine.status()["gpus"]
    return dict(gpu["mover"])


def test_memory_leaves_and_returns_while_threads_use_it(running: Program) -> None:
    for _ in range(ROUNDS):
        running.goes_on()
        running.leave()
        assert running.status()["away_bytes"] > THREADS * 8 * MIB
        running.come_back()
    running.end()


def test_memory_that_has_left_is_free_for_others(running: Program) -> None:
    def on_gpu() -> int:
        (gpu,) = running.machine.status()["gpus"]
        return int(gpu["used_bytes"])

    before = on_gpu()
    running.leave()
    away = running.status()["away_bytes"]
    wait_until(lambda: on_gpu() <= before - away + mover(running.machine)["bytes"])
    running.come_back()


def test_questions_about_the_gpu_never_wait(running: Program) -> None:
    running.leave()
    running.keeps_asking()
    running.come_back()
    running.end()


def test_moves_that_are_called_off_lose_nothing(running: Program) -> None:
    for turn in range(ROUNDS):
        running.ask(Residence.HOST)
        if turn % 3:
            wait_until(lambda: running.status()["away_bytes"] > 0)
        running.come_back()
        running.goes_on()
    running.end()


def test_a_mover_that_dies_loses_nothing(running: Program) -> None:
    for place in (Residence.HOST, Residence.GPU) * 3:
        running.goes_on() if place is Residence.HOST else running.keeps_asking()
        pid = mover(running.machine)["pid"]
        running.ask(place)
        if pid:
            os.kill(pid, signal.SIGKILL)
        wait_until(running.is_settled)
        assert running.status()["move_failed"] is None
    running.end()
    wait_until(lambda: mover(running.machine)["copies"] == 0)


def test_a_move_with_a_mover_that_hangs_can_be_called_off(running: Program) -> None:
    running.leave()
    running.come_back()
    wait_until(lambda: mover(running.machine)["connections"] == 0)  # it has forgotten its copies
    pid = mover(running.machine)["pid"]
    before = set(running.descriptors())
    os.kill(pid, signal.SIGSTOP)
    try:
        running.ask(Residence.HOST)
        wait_until(lambda: any("memfd" in one for one in set(running.descriptors()) - before))
        running.ask(Residence.GPU)
        running.goes_on()
        wait_until(running.is_settled)
    finally:
        os.kill(pid, signal.SIGCONT)
    running.leave()
    running.come_back()
    running.end()


@pytest.fixture
def impatient(
    make_machine: MakeMachine, native_dir: Path, program: Path, tmp_path: Path
) -> Iterator[Program]:
    """A program whose arbiter replaces a mover that has made no progress for a second."""
    options = ("--cuda", str(native_dir / "sim" / CUDA))
    machine = make_machine("h100:1", options=options, ALIQUOT_MOVER_PATIENCE="1")
    one = Program(machine, machine.grant(SLICE, swap=True), program, tmp_path / "counts")
    yield one
    one.process.kill()
    one.process.communicate()


def test_a_mover_that_hangs_while_memory_moves_is_replaced(impatient: Program) -> None:
    impatient.leave()
    impatient.come_back()
    for before in (True, False):
        for place in (Residence.HOST, Residence.GPU):
            pid = mover(impatient.machine)["pid"]
            if before:
                os.kill(pid, signal.SIGSTOP)
            impatient.ask(place)
            if not before:
                os.kill(pid, signal.SIGSTOP)
            wait_until(impatient.is_settled)
            assert impatient.status()["move_failed"] is None
            impatient.goes_on() if place is Residence.GPU else impatient.keeps_asking()
    assert mover(impatient.machine)["hangs"] >= 2
    impatient.end()


@pytest.mark.parametrize("place", Residence)
def test_a_program_killed_while_its_memory_moves_leaves_nothing(
    running: Program, place: Residence
) -> None:
    if place is Residence.GPU:
        running.leave()
    running.ask(place)
    running.process.kill()
    running.process.communicate()
    wait_until(lambda: running.machine.grant_status(running.grant)["processes"] == [])
    wait_until(lambda: mover(running.machine)["copies"] == 0)
    assert mover(running.machine)["held_bytes"] == 0


def test_a_stopped_program_does_not_hang_a_move(running: Program) -> None:
    running.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: are_stopped(running.process.pid))
    running.ask(Residence.HOST)
    running.ask(Residence.GPU)
    assert not running.is_settled()
    running.process.send_signal(signal.SIGCONT)
    wait_until(running.is_settled)
    running.end()


def test_a_program_can_exit_while_its_memory_is_away(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", 8 * MIB)
    control.set_state(machine.state, grant.name, GrantState.SWITCHING)
    control.move(machine.state, grant.name, Residence.HOST)
    wait_until(lambda: machine.grant_status(grant)["processes"][0]["away_bytes"] >= 8 * MIB)
    assert tenant.end() == ""
    assert tenant.process.returncode == 0
    wait_until(lambda: mover(machine)["copies"] == 0)


@pytest.mark.parametrize(
    "call",
    [
        ("set_limit", CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB),
        ("load_spin",),
        ("create_stream",),
    ],
    ids=lambda call: call[0],
)
def test_a_program_whose_memory_is_away_takes_no_other(
    machine: Machine, grant: Grant, call: tuple[Any, ...]
) -> None:
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", 8 * MIB)
    control.set_state(machine.state, grant.name, GrantState.SWITCHING)
    control.move(machine.state, grant.name, Residence.HOST)
    wait_until(lambda: machine.grant_status(grant)["processes"][0]["settled"])
    control.set_state(machine.state, grant.name, GrantState.PARKED)
    tenant.tell(*call)
    wait_until(lambda: tenant.has_answered() or waits_for_memory(tenant.pid))
    assert not tenant.has_answered()
    control.set_state(machine.state, grant.name, GrantState.SWITCHING)
    control.move(machine.state, grant.name, Residence.GPU)
    assert tenant.answer()[0] == 0


def are_stopped(pid: int) -> bool:
    """Whether all its threads are stopped."""
    stats = [one.read_text() for one in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def waits_for_memory(pid: int) -> bool:
    """Whether its main thread sleeps in futex()."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] in {"202", "98"}


def test_managed_memory_keeps_a_program_on_the_gpu(machine: Machine, grant: Grant) -> None:
    tenant = machine.tenant(grant).start()
    tenant.ok("alloc", 8 * MIB)
    tenant.ok("alloc_managed", MIB)
    control.move(machine.state, grant.name, Residence.HOST)
    wait_until(lambda: machine.grant_status(grant)["processes"][0]["settled"])
    assert machine.grant_status(grant)["processes"][0]["move_failed"] == "unswappable"
    tenant.ok("alloc", 8 * MIB)


def test_the_host_provides_what_programs_have_had_and_not_what_they_may_have(
    machine: Machine,
) -> None:
    def wanted() -> int:
        mover: dict[str, Any] = control.status(machine.state).answer["gpus"][0]["mover"]
        return int(mover["wanted_bytes"])

    grant = machine.grant(60 * GIB, swap=True)
    assert wanted() <= MIB
    tenant = machine.tenant(grant).start()
    pointer = tenant.ok("alloc", 48 * MIB)
    wait_until(lambda: 48 * MIB <= wanted() < GIB)
    tenant.does("free", pointer)
    before = wanted()
    tenant.ok("alloc", 96 * MIB)
    wait_until(lambda: 96 * MIB <= wanted() < GIB)
    assert before >= 48 * MIB, "a program that freed memory may have it again soon"
