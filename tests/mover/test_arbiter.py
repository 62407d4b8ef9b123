"""Programs reach the mover of their GPU through the arbiter, whichever of its processes dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.cli import install
from aliquot.devices import Driver
from aliquot.kubernetes.node.arbiter import ArbiterSupervisor
from aliquot.model.errors import HeldMemoryError
from aliquot.slices import arbiter_process, control, state_directory
from mover import wire
from mover.arbiter_rig import PIECE, join
from mover.wire import MIB
from support import GIB, wait_until

if TYPE_CHECKING:
    from mover.arbiter_rig import Programs, Rig

TOO_OFTEN = 10  # deaths
CONTEXT = 518 * MIB  # of the simulated H100 (shapes.conf)


@pytest.fixture
def driver(sim_env: dict[str, str]) -> Driver:
    """The driver of the rigs' arbiters, for the next one."""
    library = Path(sim_env["LD_LIBRARY_PATH"])
    variables = {key: value for key, value in sim_env.items() if "SIMULATE" in key}
    return Driver(library / "libcuda.so.1", library / "libnvidia-ml.so.1", None, variables)


def test_a_program_gets_a_connection(rig: Rig, programs: Programs) -> None:
    client = join(programs, rig.make())
    pieces = [client("make", PIECE, seed) for seed in range(3)]
    client.leave(*pieces)
    assert (rig.copies(), rig.mover()["held_bytes"]) == (3, 3 * PIECE)
    client.return_(*pieces)
    assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
    client.kill()
    wait_until(lambda: rig.copies() == 0)


def test_copies_of_one_program_are_not_anothers(rig: Rig, programs: Programs) -> None:
    directory = rig.make()
    client, other = join(programs, directory), join(programs, directory)
    piece = client("make", PIECE, 1)
    client.leave(piece)
    address = other("make", PIECE, 2)
    kind, _, failure, _ = other("ask", wire.IN, address)
    assert (kind, failure) == (wire.FAILED, wire.UNKNOWN)
    assert other("ask", wire.FORGET, 0) == [wire.DONE, 0, 0, ""]
    client.return_(piece)
    assert client("is_filled", piece, 1)


class TestRefused:
    def test_without_a_driver(self, stopped_rig: Rig, programs: Programs) -> None:
        stopped_rig.arbiter.start()
        directory = stopped_rig.make()
        client = programs()
        client("join", str(directory))
        assert "without --cuda" in client("mover", str(directory))
        assert stopped_rig.arbiter.status()["gpus"][0]["mover"] is None

    def test_in_a_grant_that_is_not_swappable(self, rig: Rig, programs: Programs) -> None:
        directory = rig.make(swap=False)
        client = programs()
        client("join", str(directory))
        assert "made without swap=1" in client("mover", str(directory))

    def test_before_hello_and_for_other_slices(self, rig: Rig, programs: Programs) -> None:
        directory = rig.make()
        client = programs()
        assert client("mover", str(directory)) == "MOVER before HELLO"
        client("join", str(directory))
        assert client("mover", str(directory), 1) == "grant a has 1 slices"


class TestDeaths:
    def test_a_mover_that_is_killed_is_started_again(self, rig: Rig, programs: Programs) -> None:
        directory = rig.make()
        client = join(programs, directory)
        pieces = [client("make", PIECE, seed) for seed in range(2)]
        client.leave(pieces[0])
        rig.kill_mover()
        assert client("answer") is None
        assert client("mover", str(directory)) == ""
        client.leave(pieces[1])
        client.return_(*pieces)
        assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
        assert (rig.mover()["starts"], rig.copies()) == (2, 2)

    def test_an_arbiter_that_is_killed_changes_nothing(self, rig: Rig, programs: Programs) -> None:
        client = join(programs, rig.make())
        pieces = [client("make", PIECE, seed) for seed in range(2)]
        client.leave(pieces[0])
        mover, serving = rig.mover()["pid"], rig.arbiter.serving_pid()
        os.kill(serving, signal.SIGKILL)
        client.leave(pieces[1])
        wait_until(lambda: rig.has_replaced({"arbiter": serving}))
        assert (rig.mover()["pid"], rig.copies()) == (mover, 2)
        client.return_(*pieces)
        assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))
        client.kill()
        wait_until(lambda: rig.copies() == 0)

    @pytest.mark.parametrize("victims", [["parent"], ["parent", "arbiter"], ["guard", "arbiter"]])
    def test_copies_outlive_all_but_one_process(
        self, background_rig: Rig, programs: Programs, victims: list[str]
    ) -> None:
        rig = background_rig
        directory = rig.make()
        client = join(programs, directory)
        pieces = [client("make", PIECE, seed) for seed in range(3)]
        client.leave(*pieces)
        pids = rig.arbiter.pids()
        for name in victims:
            os.kill(pids[name], signal.SIGKILL)
        ended = {*victims, "arbiter"}  # which ends with its parent
        wait_until(lambda: rig.has_replaced({name: pids[name] for name in ended}))
        assert rig.copies() == len(pieces)
        assert client("mover", str(directory)) == ""
        client.return_(*pieces)
        assert all(client("is_filled", piece, seed) for seed, piece in enumerate(pieces))

    def test_copies_of_a_program_that_dies_with_the_arbiter(
        self, rig: Rig, programs: Programs
    ) -> None:
        client = join(programs, rig.make())
        client.leave(client("make", PIECE, 1))
        serving = rig.arbiter.serving_pid()
        rig.arbiter.pause_parent()
        os.kill(serving, signal.SIGKILL)
        client.kill()
        rig.arbiter.resume_parent()
        wait_until(lambda: rig.has_replaced({"arbiter": serving}))
        wait_until(lambda: rig.copies() == 0)

    def test_the_mover_ends_with_the_arbiter(self, rig: Rig) -> None:
        rig.make()
        wait_until(lambda: rig.mover()["pid"])
        pid = rig.mover()["pid"]
        rig.arbiter.end()
        assert not Path(f"/proc/{pid}").exists()

    def test_a_mover_that_always_dies_is_given_up_for_a_while(
        self, rig: Rig, programs: Programs
    ) -> None:
        directory = rig.make()
        client = programs()
        client("join", str(directory))
        kills = 0
        while not (why := client("mover", str(directory))):
            wait_until(lambda: rig.mover()["pid"] or rig.mover()["starts"] == TOO_OFTEN)
            if pid := rig.mover()["pid"]:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: rig.mover()["pid"] != pid)
                kills += 1
        assert "died too often" in why
        assert kills == TOO_OFTEN
        assert client("answer") is None  # nobody waits for it for ever


class TestReplaced:
    """Memory on the host outlives no arbiter that ends for good: it must not be asked to."""

    def test_it_does_not_end_while_memory_is_on_the_host(
        self, background_rig: Rig, programs: Programs
    ) -> None:
        rig = background_rig
        client, other = join(programs, rig.make("a")), join(programs, rig.make("b"))
        pieces = [one("make", PIECE, seed) for seed, one in enumerate((client, other))]
        client.leave(pieces[0])
        other.leave(pieces[1])
        for request in ("replace", "stop"):
            answer = rig.arbiter.ask(request)
            assert answer["code"] == "holds-memory"
            assert answer["error"].startswith("memory of 2 programs is on the host: ")
            assert {"a", "b"} == set(answer["error"].rpartition(": ")[2].split(", "))
        client.return_(pieces[0])
        client("ask", wire.FORGET, 0)
        assert rig.arbiter.ask("replace")["error"].endswith(": b")
        other.kill()
        wait_until(lambda: rig.copies() == 0)
        assert rig.arbiter.ask("replace") == {"stopped": True}
        wait_until(lambda: not rig.arbiter.answers())
        rig.start()
        assert rig.arbiter.states("a") == ["live"]
        assert client("is_filled", pieces[0], 0)

    def test_it_does_not_end_while_memory_is_about_to_leave(
        self, rig: Rig, programs: Programs
    ) -> None:
        join(programs, rig.make())
        rig.arbiter.set_state("switching")
        assert "name" in rig.arbiter.ask("move name=a to=host")
        assert rig.arbiter.ask("replace")["code"] == "holds-memory"
        assert "name" in rig.arbiter.ask("move name=a to=gpu")
        assert rig.arbiter.ask("replace") == {"stopped": True}
        rig.arbiter.kill_is_done()

    def test_a_signal_ends_it_and_the_log_says_what_was_lost(
        self, rig: Rig, programs: Programs
    ) -> None:
        client, other = (join(programs, rig.make(name)) for name in ("a", "b"))
        client.leave(client("make", PIECE, 1))
        rig.arbiter.end()
        log = rig.arbiter.log.read_text()
        assert f"process {client.pid}: its memory was on the host and is lost" in log
        assert f"process {other.pid}: its memory" not in log

    def test_commands_and_the_agent_ask_first(
        self,
        background_rig: Rig,
        programs: Programs,
        driver: Driver,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        rig, state = background_rig, background_rig.arbiter.state
        directory = rig.make()
        client = join(programs, directory)
        piece = client("make", PIECE, 1)
        client.leave(piece)
        pid = rig.arbiter.pids()["parent"]
        said = "is on the host: resume or cancel suspended jobs first, and let parked programs"
        with pytest.raises(HeldMemoryError, match=f"of 1 program {said} return or end: a"):
            arbiter_process.restart(state, driver)
        with pytest.raises(HeldMemoryError, match=said):
            arbiter_process.serve(state, driver, arbiter_process.ArbiterSettings())
        monkeypatch.setattr(state_directory, "SYSTEM", state)
        told: list[str] = []
        with pytest.raises(HeldMemoryError, match=said):
            install.install(install.InstallTarget(), None, dry_run=True, say=told.append)
        with pytest.raises(HeldMemoryError, match=said):
            install.uninstall(install.InstallTarget(), dry_run=True, say=told.append)
        assert not told

        async def postpones() -> None:
            supervisor = ArbiterSupervisor(state, driver, version="another")
            running = asyncio.create_task(supervisor.run())
            while not supervisor.answers:
                await asyncio.sleep(0.01)
            assert said in supervisor.postponed
            assert "driver" in supervisor.postponed
            assert supervisor.starts == 0
            running.cancel()

        asyncio.run(postpones())
        assert rig.arbiter.pids()["parent"] == pid
        assert client("mover", str(directory)) == ""
        client.return_(piece)
        assert client("is_filled", piece, 1)
        client("ask", wire.FORGET, 0)
        control.check_may_end(state)
        assert arbiter_process.restart(state, driver) != pid
        assert rig.arbiter.states() == ["live"]

    def test_an_arbiter_that_cannot_be_asked_holds_none_and_is_ended(
        self, background_rig: Rig, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig, pid = background_rig, background_rig.arbiter.pids()["parent"]
        ask = control.ask

        def does_not_know(directory: Path, line: str, timeout: float | None = None) -> Any:
            return ask(directory, "unknown" if line == "replace" else line, timeout)

        monkeypatch.setattr(control, "ask", does_not_know)
        assert arbiter_process.restart(rig.arbiter.state, driver) != pid
        assert rig.has_replaced({"parent": pid})


class TestExec:
    """A program that becomes another one while its memory is away has lost it."""

    def test_nobody_waits_for_the_old_program(self, rig: Rig, programs: Programs) -> None:
        directory = rig.make()
        client = join(programs, directory)
        client.leave(client("make", PIECE, 1))
        rig.arbiter.set_state("switching")
        rig.arbiter.ask("move name=a to=host")
        client.tell("exec")
        client.await_here()
        assert client("hello", str(directory)) == "grant a is switching or parked"
        assert rig.arbiter.states() == []
        wait_until(lambda: rig.copies() == 0)
        rig.arbiter.ask("move name=a to=gpu")
        rig.arbiter.set_state("active")
        client("join", str(directory))
        assert rig.arbiter.states() == ["live"]

    def test_nor_for_one_that_uses_no_gpu_any_more(self, rig: Rig, programs: Programs) -> None:
        client = join(programs, rig.make(memory=GIB))
        client.leave(client("make", PIECE, 1))
        wait_until(lambda: rig.driver_bytes() > 0)  # NVML lists it
        rig.arbiter.set_state("switching")
        rig.arbiter.ask("move name=a to=host")
        client.tell("sleep")
        wait_until(lambda: rig.arbiter.states() == [])
        wait_until(lambda: rig.copies() == 0)


class TestCapacity:
    def test_what_the_mover_takes_counts_as_granted(self, rig: Rig) -> None:
        (before,) = rig.arbiter.status()["gpus"]
        rig.make(memory=GIB)
        (after,) = rig.arbiter.status()["gpus"]
        taken = after["mover"]["bytes"]
        assert 500 * MIB < taken < 600 * MIB
        assert after["granted_bytes"] == GIB + taken
        wait_until(lambda: rig.arbiter.status()["gpus"][0]["used_bytes"] > CONTEXT)
        assert rig.mover()["bytes"] == CONTEXT
        assert rig.arbiter.status()["gpus"][0]["strangers"] == []
        free = before["memory_bytes"] - GIB - rig.mover()["bytes"]
        line = f"make name=b slice={rig.gpu},memory={free + MIB}"
        assert rig.arbiter.ask(line)["code"] == "no-capacity"
        assert "name" in rig.arbiter.ask(f"make name=b slice={rig.gpu},memory={free}")

    def test_a_swappable_grant_must_leave_room_for_the_mover(self, rig: Rig) -> None:
        (gpu,) = rig.arbiter.status()["gpus"]
        line = f"make name=a kept=1 slice={rig.gpu},memory={gpu['memory_bytes']}"
        assert rig.arbiter.ask(f"{line} swap=1")["code"] == "no-capacity"
        assert "name" in rig.arbiter.ask(line)

    def test_the_mover_ends_when_no_grant_needs_it(self, rig: Rig) -> None:
        rig.make()
        wait_until(lambda: rig.mover()["pid"])
        wait_until(lambda: rig.mover()["host_bytes"] == 64 * MIB)  # one step
        rig.arbiter.ask("end name=a")
        wait_until(lambda: not rig.mover()["pid"])
        assert rig.mover()["host_bytes"] == 0
        assert rig.arbiter.granted() == [0]
        rig.make("b")
        wait_until(lambda: rig.mover()["pid"])
