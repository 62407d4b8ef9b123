"""Starting, going into the background, refusing, ending; and silent clients."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from arbiter import wire
from arbiter.rig import GPU, GPU_BYTES, OTHER_GPU, RESERVED_BYTES
from support import GIB, MIB, on_this_machine, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Owner

    Owners = Callable[[Path, str], Owner]

USABLE = GPU_BYTES - RESERVED_BYTES


class TestStart:
    def test_reports_ready_and_answers(self, arbiter: Arbiter) -> None:
        status = arbiter.status()
        assert arbiter.process
        assert status["version"] == 1
        assert status["pid"] == arbiter.process.pid
        assert status["state"] == str(arbiter.state)
        assert status["grants"] == []
        assert (arbiter.state / "arbiter.pid").read_text() == f"{arbiter.process.pid}\n"

    def test_shows_the_memory_that_programs_can_use(self, arbiter: Arbiter) -> None:
        first, second = arbiter.status()["gpus"]
        assert first == {
            "index": 0,
            "uuid": GPU,
            "name": 'Fake "GPU" 0',
            "pci_bus_id": "00000000:00:00.0",
            "mig": False,
            "instance_of": None,
            "gone": False,
            "memory_bytes": USABLE,
            "used_bytes": 0,
            "answers": True,
            "granted_bytes": 0,
            "context_bytes": 0,
            "context_is_measured": False,
            "mover": None,
            "overcommit_percent": 100,
            "moving_permille": 0,
            "allows_mps": True,
            "figures": {
                "cores": 2560,
                "clock_mhz": 1590,
                "capability": [7, 5],
                "bus": 256,
                "memory_mhz": 5001,
            },
            "strangers": [],
            "compute": {"contended": False},
        }
        assert second["uuid"] == OTHER_GPU

    def test_a_second_arbiter_is_refused(self, arbiter: Arbiter) -> None:
        second = subprocess.run(
            arbiter.command(),
            env=arbiter.machine.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert second.returncode == 3
        assert f"an arbiter already runs for {arbiter.state}" in second.stderr

    def test_goes_into_the_background_when_it_listens(self, stopped_arbiter: Arbiter) -> None:
        started = subprocess.run(
            stopped_arbiter.command(),
            env=stopped_arbiter.machine.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (started.returncode, started.stdout, started.stderr) == (0, "ready\n", "")
        pid = stopped_arbiter.status()["pid"]
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/fd/2").readlink() == stopped_arbiter.state / "arbiter.log"
        end = os.pidfd_open(pid)
        assert stopped_arbiter.ask("stop") == {"stopped": True}
        assert select.select([end], [], [], 20)[0]
        os.close(end)
        assert not (stopped_arbiter.state / "control").exists()
        assert not (stopped_arbiter.state / "arbiter.pid").exists()

    @pytest.mark.parametrize("where", ["background", "foreground"])
    def test_a_missing_nvml_is_reported(self, stopped_arbiter: Arbiter, where: str) -> None:
        command = [*stopped_arbiter.command(), "--nvml", "/nonexistent/libnvidia-ml.so.1"]
        failed = subprocess.run(
            command + ["--foreground"] * (where == "foreground"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert "NVML cannot be loaded: /nonexistent/libnvidia-ml.so.1" in failed.stderr

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--nvml", "x"], "--state is missing"),
            (["--state", "x"], "--nvml is missing"),
            (["--state"], "a value is missing after --state"),
            (["--state", "x", "--nvml", "x", "--linger", "-1"], "not a number of seconds: -1"),
            (["--state", "x", "--nvml", "x", "--verbose"], "unknown option --verbose"),
        ],
    )
    def test_an_invalid_command_line_is_explained(
        self, stopped_arbiter: Arbiter, options: list[str], reason: str
    ) -> None:
        failed = subprocess.run(
            [str(stopped_arbiter.program), *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert failed.returncode == 2
        assert reason in failed.stderr

    def test_a_directory_that_others_can_write_is_refused(self, stopped_arbiter: Arbiter) -> None:
        stopped_arbiter.state.mkdir()
        stopped_arbiter.state.chmod(0o777)
        failed = subprocess.run(
            stopped_arbiter.command("--foreground"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert failed.returncode == 1
        assert "writable by nobody else" in failed.stderr

    def test_a_state_directory_may_have_a_long_path(
        self, stopped_arbiter: Arbiter, tmp_path: Path
    ) -> None:
        stopped_arbiter.state = tmp_path / ("long" * 40)
        stopped_arbiter.start()
        directory = stopped_arbiter.make()
        assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME

    def test_ends_after_its_last_grant(self, stopped_arbiter: Arbiter, owners: Owners) -> None:
        stopped_arbiter.start("--linger", "1")
        owner = owners(stopped_arbiter.state, f"make name=a slice={GPU},memory={GIB}")
        assert stopped_arbiter.process
        with pytest.raises(subprocess.TimeoutExpired):
            stopped_arbiter.process.wait(1.5)
        owner.kill()
        assert stopped_arbiter.process.wait(60) == 0

    def test_shows_the_simulated_machine(
        self, stopped_arbiter: Arbiter, native_dir: Path, sim_env: dict[str, str]
    ) -> None:
        stopped_arbiter.machine.library = native_dir / "sim" / "libnvidia-ml.so.1"
        stopped_arbiter.machine.variables.update(sim_env)
        stopped_arbiter.start()
        (gpu,) = stopped_arbiter.status()["gpus"]
        assert "H100" in gpu["name"]
        assert stopped_arbiter.make("a", gpu["memory_bytes"], gpu["uuid"]).is_dir()

    def test_an_idle_arbiter_uses_no_cpu(self, arbiter: Arbiter) -> None:
        arbiter.make()
        switches = Path(f"/proc/{arbiter.serving_pid()}/status")

        def count() -> list[str]:
            return [line for line in switches.read_text().splitlines() if "ctxt" in line]

        def is_still() -> bool:
            before = count()
            select.select([], [], [], 0.7)  # longer than any period of its
            return count() == before

        wait_until(is_still)


class TestSlowClients:
    @pytest.mark.shares
    def test_a_silent_client_is_closed_and_blocks_nobody(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        with ExitStack() as ends:
            control = ends.enter_context(
                wire.connected(arbiter.state, "control", socket.SOCK_STREAM)
            )
            control.sendall(b"stat")
            tenant = ends.enter_context(wire.connected(directory, "socket", socket.SOCK_SEQPACKET))
            begun = time.monotonic()
            assert arbiter.grant("a")
            assert wire.exchange(directory, wire.hello_message()).kind == wire.WELCOME
            took = time.monotonic() - begun
            assert took < on_this_machine(2)
            assert control.recv(100) == b""
            assert wire.receive(tenant) is None
            took = time.monotonic() - begun
            assert 0.8 < took < on_this_machine(4)

    @pytest.mark.shares
    def test_a_first_message_extends_the_timeout(self, arbiter: Arbiter) -> None:
        directory = arbiter.make()
        with wire.connected(directory, "socket", socket.SOCK_SEQPACKET) as tenant:
            begun = time.monotonic()
            tenant.send(wire.hello_message())
            answer = wire.receive(tenant)
            assert answer
            wire.Holding.of(answer)
            assert wire.receive(tenant) is None
            took = time.monotonic() - begun
            assert 4 < took < on_this_machine(9)

    def test_clients_above_the_limit_wait(self, arbiter: Arbiter) -> None:
        with ExitStack() as ends:
            silent = [
                ends.enter_context(wire.connected(arbiter.state, "control", socket.SOCK_STREAM))
                for _ in range(300)
            ]
            late = ends.enter_context(wire.connected(arbiter.state, "control", socket.SOCK_STREAM))
            late.sendall(b"status\n")
            silent[0].close()
            for connection in silent[1:100]:
                connection.close()
            assert wire.read_reply(late)["version"] == 1

    @staticmethod
    def take_places(ends: ExitStack, directory: Path, count: int) -> list[socket.socket]:
        return [
            ends.enter_context(wire.connected(directory, "socket", socket.SOCK_SEQPACKET))
            for _ in range(count)
        ]

    @pytest.mark.shares
    def test_a_tenant_at_its_limit_blocks_only_itself(self, arbiter: Arbiter) -> None:
        greedy, other = arbiter.make("greedy"), arbiter.make("other")
        descriptors = Path(f"/proc/{arbiter.serving_pid()}/fd")
        before = len(list(descriptors.iterdir()))
        with ExitStack() as ends:
            silent = self.take_places(ends, greedy, 300)
            begun = time.monotonic()
            assert wire.exchange(other, wire.hello_message()).kind == wire.WELCOME
            assert len(arbiter.status()["grants"]) == 2
            took = time.monotonic() - begun
            assert took < on_this_machine(0.7)
            wait_until(lambda: len(list(descriptors.iterdir())) > before + 20)
            assert len(list(descriptors.iterdir())) < before + 40
            for connection in silent[:32]:
                assert wire.receive(connection) is None
            for connection in silent[32:]:
                connection.close()
            assert wire.exchange(greedy, wire.measure_message()).kind == wire.REFUSED

    @pytest.mark.shares
    def test_tenants_never_block_the_control_socket(self, arbiter: Arbiter) -> None:
        grants = [arbiter.make(f"g{number}", MIB) for number in range(18)]
        with ExitStack() as ends:
            for directory in grants:
                self.take_places(ends, directory, 80)
            begun = time.monotonic()
            for _ in range(3):
                assert len(arbiter.status()["grants"]) == 18
            took = time.monotonic() - begun
            assert took < on_this_machine(0.7)
        for directory in grants:
            answer = wire.exchange(directory, wire.measure_message())
            assert answer.kind == wire.REFUSED

    def test_a_request_may_come_in_pieces(self, arbiter: Arbiter) -> None:
        with wire.connected(arbiter.state, "control", socket.SOCK_STREAM) as connection:
            for byte in b"status\n":
                connection.send(bytes([byte]))
            assert wire.read_reply(connection)["version"] == 1
