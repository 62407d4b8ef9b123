"""A simulated machine with a real arbiter, grants on it, and tenants in them.

The test's process owns the grants it makes. A tenant gets the environment that `aliquot run` gives
a program, and nothing else tells it from any other program.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import support
from aliquot.devices import CUDA, NVML, elf
from aliquot.model import Slice
from aliquot.model.parking_rule import ParkingRule
from aliquot.slices import control
from aliquot.slices.stand_in_symbols import fit_symbols
from standin import pages

TESTS = Path(__file__).parent.parent
GIB = 1 << 30
MIB = 1 << 20
CONTEXT = 518 * MIB  # of the simulated H100 (shapes.conf)

OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
SYSTEM_NOT_READY = 802

# For builds with ThreadSanitizer: a report ends the process, so that it is seen. It does not know
# the locks inside the dynamic linker, whose memory dladdr hands to another thread.
TSAN_OPTIONS = "halt_on_error=1:ignore_noninstrumented_modules=1"


def fitted_library(folder: Path, native: Path, driver: Path) -> Path:
    """Stand-ins under all their names, fitted to the libraries in the folder `driver`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CUDA, NVML):
        stand_in = (native / "lib" / name).read_bytes()
        data = fit_symbols(stand_in, elf.read_file(driver / name)).data
        (folder / name).write_bytes(stand_in if data is None else data)
        (folder / name).chmod(0o755)
        (folder / name.removesuffix(".1")).symlink_to(name)
    return folder


@dataclass(frozen=True)
class Grant:
    """A grant that the test's process owns."""

    name: str
    directory: Path
    marked: str = ""  # told from a later one of the same name

    def limits(self) -> pages.Limits:
        return pages.map_page(self.directory / "limits", pages.Limits)

    def usage(self) -> pages.Usage:
        return pages.map_page(self.directory / "usage", pages.Usage)

    def counted(self, slice_index: int = 0) -> int:
        """What the ledger says that programs use of a slice."""
        return pages.bytes_in(self.usage().slices[slice_index].word)


class Tenant:
    """A process in a grant that makes the calls it is told to make (client.py)."""

    def __init__(self, environment: dict[str, str], library: str = CUDA) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "standin.client", library],
            env={**environment, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, method: str, *arguments: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()

    def __call__(self, method: str, *arguments: object) -> Any:
        self.tell(method, *arguments)
        return self.answer()

    def has_answered(self) -> bool:
        assert self.process.stdout
        return can_read(self.process.stdout)

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the tenant ended: {self.end()}")
        return json.loads(line)

    def start(self, device: int = 0) -> Tenant:
        """Init, and the primary context of a device made current."""
        assert self("start", device) == [0]
        return self

    def ok(self, method: str, *arguments: object) -> int:
        """A call that must succeed. Returns what it made."""
        code, made, *_ = self(method, *arguments)
        assert code == 0, f"{method}{arguments} gave {code}"
        return int(made)

    def does(self, method: str, *arguments: object) -> None:
        """A call that must succeed and makes nothing."""
        assert self(method, *arguments) == [0], f"{method}{arguments}"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        """Let it exit. Returns what it wrote to stderr."""
        _, said = self.process.communicate(timeout=60)
        return said


@dataclass
class Machine:
    """One simulated machine: its shape, its arbiter, its grants."""

    native: Path
    library: Path
    state: Path
    meeting_place: Path
    shape: str
    driver: Path
    variables: dict[str, str] = field(default_factory=dict)  # more for the arbiter's environment
    options: tuple[str, ...] = ()  # of the arbiter
    arbiter: subprocess.Popen[str] | None = None
    tenants: list[Tenant] = field(default_factory=list)

    # --- the arbiter

    def start_arbiter(self) -> None:
        program = self.native / "bin" / "aliquot-arbiter"
        command = [str(program), "--state", str(self.state), "--foreground"]
        command += ["--nvml", str(self.driver / NVML), *self.options]
        with (self.state.parent / "arbiter.err").open("a") as log:
            self.arbiter = subprocess.Popen(
                command,
                env=self.bare(**self.variables),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.arbiter.stdout
        assert self.arbiter.stdout.readline() == "ready\n", self.said()

    def said(self) -> str:
        """What the arbiters of this machine wrote."""
        return (self.state.parent / "arbiter.err").read_text("utf-8")

    def stop_arbiter(self, number: int = signal.SIGTERM) -> int:
        """End the arbiter and its parent. Returns the exit code."""
        assert self.arbiter
        serving = self.status()["serving_pid"] if number == signal.SIGKILL else None
        self.arbiter.send_signal(number)
        if serving:
            gone = os.pidfd_open(serving)
            signal.pidfd_send_signal(gone, number)
            support.wait_until(lambda: not _lives(gone))
            os.close(gone)
        self.arbiter.communicate(timeout=60)
        code = self.arbiter.returncode
        self.arbiter = None
        return code

    def kill_arbiter(self, *keys: str) -> None:
        """Kill these of its processes at once, as `status` names them, and wait for all to end."""
        assert self.arbiter
        status = self.status()
        fds = {key: os.pidfd_open(status[key]) for key in ("guard_pid", "pid", "serving_pid")}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for key in keys:
                signal.pidfd_send_signal(fds[key], number)
        self.arbiter.communicate(timeout=60)
        for fd in fds.values():
            support.wait_until(lambda: not _lives(fd))  # noqa: B023 - called here
            os.close(fd)
        self.arbiter = None

    @contextmanager
    def stopped_arbiter(self) -> Iterator[None]:
        """Stop the arbiter and its parent: the parent would start another."""
        assert self.arbiter
        pids = self.arbiter.pid, self.status()["serving_pid"]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def status(self) -> dict[str, Any]:
        return control.ask(self.state, "status")

    def grant_status(self, grant: Grant) -> dict[str, Any]:
        (found,) = [one for one in self.status()["grants"] if one["name"] == grant.name]
        return dict(found)

    # --- grants

    def uuids(self) -> list[str]:
        return [gpu["uuid"] for gpu in self.status()["gpus"]]

    def uuids_by_an_arbiter(self) -> list[str]:
        """In hexadecimal digits, from an arbiter that is started for that alone."""
        self.start_arbiter()
        uuids = [uuid.removeprefix("GPU-").replace("-", "") for uuid in self.uuids()]
        self.stop_arbiter()
        return uuids

    def grant(
        self,
        *memory: int,
        on: tuple[int, ...] = (),
        name: str = "one",
        swap: bool = False,
        park_after: ParkingRule | None = None,
        spill: int = 0,
    ) -> Grant:
        """A grant with that many bytes of each GPU: of the first ones, or those named by `on`."""
        uuids = self.uuids()
        slices = [
            Slice(gpu_uuid=uuids[index], memory_bytes=size)
            for index, size in zip(on or range(len(memory)), memory, strict=True)
        ]
        return self.made(
            control.make(self.state, name, slices, swap=swap, park_after=park_after, spill=spill)
        )

    @staticmethod
    def made(marked: str) -> Grant:
        """The grant that the arbiter's answer names."""
        directory = Path(marked.partition("#")[0])
        return Grant(directory.name, directory, marked)

    # --- programs

    def bare(self, **changes: str | None) -> dict[str, str]:
        """The environment of a program on the simulated driver itself, with no slice."""
        wanted: dict[str, str | None] = {
            "LD_LIBRARY_PATH": str(self.driver),
            "ALIQUOT_SIMULATE": self.shape,
            "ALIQUOT_SIMULATE_STATE": str(self.meeting_place),
            "TSAN_OPTIONS": TSAN_OPTIONS,
        }
        return support.environment(**{**wanted, **changes})

    def inside(self, grant: Grant | None, **changes: str | None) -> dict[str, str]:
        """The environment of a program in a grant."""
        wanted: dict[str, str | None] = {
            "LD_LIBRARY_PATH": str(self.library),
            "LD_PRELOAD": str(self.library / CUDA),
            "ALIQUOT_DRIVER_DIR": str(self.driver),
            "ALIQUOT_GRANT": grant.marked or str(grant.directory) if grant else None,
        }
        return self.bare(**{**wanted, **changes})

    def tenant(self, grant: Grant | None, **changes: str | None) -> Tenant:
        return self._remember(Tenant(self.inside(grant, **changes)))

    def stranger(self) -> Tenant:
        """A program on the driver itself, past every grant."""
        return self._remember(Tenant(self.bare(), str(self.driver / CUDA)))

    def run(
        self, grant: Grant | None, *command: str, **changes: str | None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a grant, until it exits."""
        return subprocess.run(
            command,
            env=self.inside(grant, **changes),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def python(self, grant: Grant | None, code: str, **changes: str | None) -> Any:
        """Run Python code in a grant. Returns what it prints as JSON."""
        done = self.run(grant, sys.executable, "-c", code, **changes)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _remember(self, tenant: Tenant) -> Tenant:
        self.tenants.append(tenant)
        return tenant

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.kill()
        if self.arbiter and self.arbiter.poll() is None:
            self.stop_arbiter()


def can_read(pipe: IO[str]) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


def _lives(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    return True
