"""Restarting the arbiter, and files that cannot be trusted."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU
from support import GIB, MIB, on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Machine, Owner, Tenant

    Tenants = Callable[[Path], Tenant]
    Owners = Callable[[Path, str], Owner]


class TestRecovery:
    @pytest.mark.shares
    def test_a_killed_arbiter_is_restarted(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        before = arbiter.serving_pid()
        os.kill(before, signal.SIGKILL)
        killed_at = time.monotonic()
        wait_until(arbiter.answers)
        took = time.monotonic() - killed_at
        assert took < on_this_machine(2)
        assert arbiter.serving_pid() != before
        assert arbiter.states() == ["live"]
        assert arbiter.counted() == GIB
        grant = arbiter.grant("a")
        assert grant
        assert (grant["owner_pid"], grant["owner_alive"]) == (os.getpid(), True)
        assert tenants(directory).hello() == 1
        tenant.kill()
        wait_until(lambda: arbiter.counted() == 0)

    def test_processes_that_died_meanwhile_are_cleaned_up(
        self, arbiter: Arbiter, machine: Machine, tenants: Tenants, owners: Owners
    ) -> None:
        directory = arbiter.make()
        orphan = owners(arbiter.state, f"make name=orphan slice={GPU},memory={GIB}")
        dead, ending, alive = (tenants(directory) for _ in range(3))
        for tenant in (dead, ending, alive):
            tenant.hello()
            tenant.tell("hold", 0, GIB)
        machine.list_process(ending.pid, GIB + MIB)
        assert ending.tell("measure") == "measured"
        ending.kill()
        wait_until(lambda: "ending" in arbiter.states())
        arbiter.kill()
        dead.kill()
        orphan.kill()
        arbiter.start()
        wait_until(lambda: arbiter.states() == ["ending", "live"])
        assert arbiter.counted() == 2 * GIB
        machine.drop_process(ending.pid)
        wait_until(lambda: arbiter.states() == ["live"])
        assert arbiter.counted() == GIB
        assert arbiter.grant("orphan") is None
        assert not orphan.directory.exists()

    def test_a_clean_end_keeps_the_grants(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        tenant.tell("hold", 0, GIB)
        assert arbiter.end() == 0
        with pytest.raises(ConnectionRefusedError):
            wire.exchange(directory, wire.hello_message())
        arbiter.start()
        assert arbiter.states() == ["live"]
        assert arbiter.counted() == GIB
        assert tenant.tell("measure") == "measured"

    def test_incomplete_directories_are_removed(self, arbiter: Arbiter) -> None:
        arbiter.make()
        arbiter.kill()
        grants = arbiter.state / "grants"
        for name in (".making-b", ".ending-c"):
            (grants / name).mkdir()
            (grants / name / "limits").write_bytes(b"half")
        (grants / "a file").write_text("not ours")
        arbiter.start()
        assert sorted(path.name for path in grants.iterdir()) == ["a", "a file"]
        assert [one["name"] for one in arbiter.status()["grants"]] == ["a"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start it as another user")
    def test_an_arbiter_without_root_recovers_its_grants(
        self, stopped_arbiter: Arbiter, short_tmp: Path, fake_nvml: Path
    ) -> None:
        stopped_arbiter.program = Path(shutil.copy(stopped_arbiter.program, short_tmp))
        stopped_arbiter.machine.library = Path(shutil.copy(fake_nvml, short_tmp))
        os.chown(short_tmp, 65534, 65534)
        stopped_arbiter.start(user=65534)
        directory = stopped_arbiter.make()
        assert (directory / "limits").stat().st_mode & 0o777 == 0o444
        assert (stopped_arbiter.state / "control").stat().st_mode & 0o777 == 0o600
        stopped_arbiter.kill()
        stopped_arbiter.start(user=65534)
        assert (stopped_arbiter.grant("a") or {})["broken"] is None
        assert (directory / "limits").stat().st_mode & 0o777 == 0o444
        assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME

    def test_grants_of_an_earlier_boot_are_removed(self, arbiter: Arbiter) -> None:
        arbiter.make()
        arbiter.end()
        (arbiter.state / "boot").write_text("00000000-0000-0000-0000-000000000000")
        arbiter.start()
        assert arbiter.status()["grants"] == []
        arbiter.make()

    def test_the_arbiter_ends_with_its_parent(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        serving = os.pidfd_open(arbiter.serving_pid())
        assert arbiter.process
        arbiter.process.kill()
        assert select.select([serving], [], [], 20)[0]
        os.close(serving)
        arbiter.kill_is_done()
        arbiter.start()
        assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME

    def test_an_arbiter_that_keeps_dying_is_not_restarted(self, arbiter: Arbiter) -> None:
        parent = arbiter.process
        assert parent
        for _ in range(10):
            os.kill(arbiter.serving_pid(), signal.SIGKILL)
            wait_until(lambda: arbiter.answers() or parent.poll() is not None)
        assert parent.wait(60) == 1
        assert "giving up" in arbiter.log.read_text()
        arbiter.kill_is_done()


class TestBrokenFiles:
    @staticmethod
    def break_and_restart(arbiter: Arbiter, file: Path, content: bytes, at: int = 0) -> None:
        arbiter.kill()
        file.chmod(0o600)
        if content:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(content)
        else:
            os.truncate(file, at)
        arbiter.start()

    @pytest.mark.parametrize(
        ("content", "at", "why"),
        [
            (b"rubbish!", 0, "usage: not a ledger"),
            (b"\x09", 8, "usage: written by another version of Aliquot"),
            (b"", 100, "usage: shorter than its layout"),
            (b"", 0, "usage: shorter than its layout"),
        ],
    )
    def test_a_broken_ledger_refuses_processes_and_harms_no_other_grant(
        self, arbiter: Arbiter, tenants: Tenants, content: bytes, at: int, why: str
    ) -> None:
        directory = arbiter.make("a", 8 * GIB)
        tenant = tenants(directory)
        tenant.hello()
        self.break_and_restart(arbiter, directory / "usage", content, at)
        grant = arbiter.grant("a")
        assert grant
        assert grant["broken"] == why
        assert grant["slices"][0]["memory_bytes"] == 8 * GIB
        assert arbiter.states() == ["live"]
        assert arbiter.status()["gpus"][0]["granted_bytes"] == 8 * GIB
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.BROKEN)
        assert why in answer.text
        assert tenant.tell("measure") == "measured"
        arbiter.make("sound", GIB)
        tenant.kill()
        wait_until(lambda: arbiter.states() == [])

    @pytest.mark.parametrize(
        ("content", "at", "why"),
        [
            (b"rubbish!", 0, "limits: not a limits file"),
            (b"\xff", 80, "limits: invalid number of slices"),
            (b"other", 16, "limits: it belongs to a grant of another name"),
            (b"", 5000, "limits: shorter than its layout"),
        ],
    )
    def test_broken_limits_are_shown_until_removed(
        self, arbiter: Arbiter, content: bytes, at: int, why: str
    ) -> None:
        directory = arbiter.make()
        self.break_and_restart(arbiter, arbiter.record(), content, at)
        grant = arbiter.grant("a")
        assert grant
        assert grant["broken"] == why
        assert (grant["slices"], grant["processes"]) == ([], [])
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.BROKEN)
        assert why in arbiter.ask(f"make name=a slice={GPU},memory={GIB}")["error"]
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
        arbiter.make("a")

    def test_a_missing_record_breaks_the_grant(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        record = arbiter.record()
        arbiter.kill()
        record.unlink()
        arbiter.start()
        assert (arbiter.grant("a") or {})["broken"] == "limits: its record is missing"
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.BROKEN)

    def test_a_ledger_truncated_while_in_use(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        serving = arbiter.serving_pid()
        os.truncate(directory / "usage", 0)
        wait_until(lambda: (arbiter.grant("a") or {})["broken"])
        grant = arbiter.grant("a")
        assert grant
        assert grant["broken"] == "usage: truncated while in use"
        tenant.kill()
        wait_until(lambda: arbiter.states() == [])
        assert arbiter.serving_pid() == serving

    def test_a_corrupt_ledger_is_bounded(self, arbiter: Arbiter, tenants: Tenants) -> None:
        directory = arbiter.make()
        tenant = tenants(directory)
        tenant.hello()
        holding = wire.Holding.of(wire.exchange(directory, wire.hello_message()))
        holding.usage.scribble(b"\xff" * (wire.USAGE_SIZE - 64), 64)
        assert wire.exchange(directory, wire.measure_message()).kind == wire.MEASURED
        arbiter.status()
        tenant.kill()
        wait_until(lambda: arbiter.states() == ["live"])
        sound = tenants(arbiter.make("sound", GIB))
        assert sound.hello() == 0

    def test_a_grant_on_a_missing_gpu_is_broken(self, arbiter: Arbiter, machine: Machine) -> None:
        directory = arbiter.make()
        arbiter.end()
        machine.remove_gpu(GPU)
        arbiter.start()
        grant = arbiter.grant("a")
        assert grant
        assert grant["broken"] == "limits: a slice is of a GPU that this machine no longer has"
        assert grant["slices"][0]["index"] is None
        answer = wire.exchange(directory, wire.hello_message())
        assert (answer.kind, answer.value) == (wire.REFUSED, wire.BROKEN)
