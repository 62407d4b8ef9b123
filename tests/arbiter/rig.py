"""An arbiter over a machine that a text file describes, and tenants and owners in processes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import support
from arbiter import wire

if TYPE_CHECKING:
    from collections.abc import Callable

_NATIVE = Path(__file__).parents[1] / "native" / "arbiter"
FAKE_SOURCE = _NATIVE / "fake_nvml.c"
KILLER_SOURCE = _NATIVE / "kill_at.c"
GPU_BYTES = 80 * support.GIB
RESERVED_BYTES = support.GIB
GPU = support.uuid_of(0)
OTHER_GPU = support.uuid_of(1)


class Machine:
    """Two GPUs; a test writes what NVML reports of them."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.library = library
        self.variables: dict[str, str] = {}  # more for the arbiter's environment
        self._file = folder / "machine.txt"
        self._lines: dict[tuple[str, int], str] = {}
        self._gpus = [GPU, OTHER_GPU]
        self._settings: dict[str, str] = {}
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {**support.environment(FAKE_NVML=str(self._file)), **self.variables}

    def list_process(
        self, pid: int, size: int | str, gpu: str = GPU, kind: str = "process"
    ) -> None:
        self._lines[gpu, pid] = f"{kind} {gpu} {pid} {size}"
        self._write()

    def drop_process(self, pid: int, gpu: str = GPU) -> None:
        del self._lines[gpu, pid]
        self._write()

    def fail_lists(self, *, fail: bool = True) -> None:
        self._set("broken", "broken" if fail else None)

    def fail_mps_lists(self, *, fail: bool = True) -> None:
        self._set("no-mps", "no-mps" if fail else None)

    def hang(self, *, hung: bool = True) -> None:
        """Make NVML answer nothing, or answer again."""
        self._set("hung", "hung" if hung else None)

    def list_more_once(self, mib: int) -> None:
        """Let one list show so much more for its first process."""
        self._set("more", f"more {mib}")

    def lose_gpu(self, gpu: str, *, lost: bool = True) -> None:
        """Let a GPU fall off the bus, or work again for sessions of NVML that begin later."""
        self._set("lost", f"lost {gpu}" if lost else None)

    def set_driver(self, version: str) -> None:
        self._set("driver", f"driver {version}")

    def set_entry_size(self, size: int) -> None:
        """Set the bytes of an entry in NVML's lists of processes; 24 is right."""
        self._set("entries", f"entries {size}")

    def count_lists(self) -> int:
        """How often the arbiter has called for the list of compute processes."""
        calls = self._file.with_name(f"{self._file.name}.calls")
        return calls.stat().st_size if calls.exists() else 0

    def _set(self, key: str, line: str | None) -> None:
        if line is None:
            self._settings.pop(key, None)
        else:
            self._settings[key] = line
        self._write()

    def lose_nvml(self) -> None:
        """Remove NVML, so that no arbiter can start."""
        self._file.unlink()

    def remove_gpu(self, gpu: str) -> None:
        self._gpus.remove(gpu)
        self._write()

    def _write(self) -> None:
        gpus = [f"gpu {gpu} {GPU_BYTES} {RESERVED_BYTES}" for gpu in self._gpus]
        lines = [*gpus, *self._lines.values(), *self._settings.values()]
        new = self._file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self._file)


@dataclass
class Arbiter:
    """An arbiter in the foreground, and requests to it."""

    state: Path
    program: Path
    machine: Machine
    process: subprocess.Popen[str] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.state.with_suffix(".log")

    def command(self, *options: str) -> list[str]:
        nvml = str(self.machine.library)
        return [str(self.program), "--state", str(self.state), "--nvml", nvml, *options]

    def start(
        self,
        *options: str,
        preexec_fn: Callable[[], object] | None = None,
        user: int | None = None,
    ) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command("--foreground", *options),
                env=self.machine.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                user=user,
                preexec_fn=preexec_fn,  # noqa: PLW1509 - it sets a limit and nothing else
            )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()

    def end(self) -> int:
        """End it with SIGTERM; the exit code."""
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def kill(self) -> None:
        """Kill all of its processes at once."""
        pids = self.pids()
        fds = [os.pidfd_open(pids[name]) for name in ("guard", "parent", "arbiter")]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none sees another die
            for fd in fds:
                signal.pidfd_send_signal(fd, number)
        for fd in fds:
            os.close(fd)
        self._reap()

    def pause_parent(self) -> None:
        """Stop the parent, so that it restarts no arbiter."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def resume_parent(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def kill_is_done(self) -> None:
        """Tell the rig that the parent has ended already."""
        self._reap()

    def _reap(self) -> int:
        assert self.process
        assert self.process.stdout
        code = self.process.wait(60)
        self.process.stdout.close()
        self.process = None
        return code

    def close(self) -> None:
        if self.process:
            self.end()
        log = self.log.read_text() if self.log.exists() else ""
        assert "Sanitizer" not in log, log
        assert "runtime error" not in log, log

    def ask(self, request: str) -> dict[str, Any]:
        return wire.ask(self.state, request.encode() + b"\n")

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def serving_pid(self) -> int:
        return int(self.status()["serving_pid"])

    def record(self, name: str = "a") -> Path:
        """The arbiter's own record of a grant."""
        return Path(self.status()["records"]) / name / "record"

    def pages(self, name: str = "a") -> Path:
        """The folder with the pages of a grant's processes."""
        return Path(self.status()["pages"]) / name

    def pids(self) -> dict[str, int]:
        """Its three processes."""
        status = self.status()
        keys = {"parent": "pid", "arbiter": "serving_pid", "guard": "guard_pid"}
        return {name: int(status[key]) for name, key in keys.items()}

    def grant(self, name: str) -> dict[str, Any] | None:
        return next((one for one in self.status()["grants"] if one["name"] == name), None)

    def compute(self, name: str = "a", index: int = 0) -> dict[str, Any]:
        """The compute figures of a grant's slice."""
        grant = self.grant(name)
        assert grant
        compute = grant["slices"][index]["compute"]
        assert isinstance(compute, dict)
        return compute

    def is_contended(self, index: int = 0) -> bool:
        return bool(self.status()["gpus"][index]["compute"]["contended"])

    def counted(self, name: str = "a") -> int:
        """Bytes in the ledger of the grant's first slice."""
        grant = self.grant(name)
        assert grant
        return int(grant["slices"][0]["counted_bytes"])

    def states(self, name: str = "a") -> list[str]:
        """The states of the grant's processes, by slot."""
        grant = self.grant(name)
        return [one["state"] for one in grant["processes"]] if grant else []

    def set_state(self, state: str, name: str = "a") -> None:
        assert self.ask(f"set-state name={name} to={state}") == {"name": name, "state": state}

    def grant_state(self, name: str = "a") -> str:
        grant = self.grant(name)
        assert grant
        return str(grant["state"])

    def granted(self) -> list[int]:
        """The granted bytes of each GPU."""
        return [one["granted_bytes"] for one in self.status()["gpus"]]

    def answers(self) -> bool:
        try:
            self.status()
        except (OSError, AssertionError):
            return False
        return True

    def make(self, name: str = "a", memory: int = 8 * support.GIB, gpu: str = GPU) -> Path:
        answer = self.ask(f"make name={name} slice={gpu},memory={memory}")
        assert answer.get("name") == name, answer
        return Path(answer["directory"])


class BackgroundArbiter(Arbiter):
    """An arbiter in the background, as `aliquot run` starts it: its guard takes over."""

    def start(self, *options: str, **_: object) -> None:
        subprocess.run(
            self.command(*options),
            env=self.machine.environment,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )

    def end(self) -> int:
        """End all three processes with SIGTERM to the parent."""
        pids = self.pids()
        ends = [os.pidfd_open(pid) for pid in pids.values()]
        os.kill(pids["parent"], signal.SIGTERM)
        for end in ends:
            assert select.select([end], [], [], 20)[0]
            os.close(end)
        return 0

    def pause_parent(self) -> None:
        self._paused = self.pids()["parent"]
        os.kill(self._paused, signal.SIGSTOP)

    def resume_parent(self) -> None:
        os.kill(self._paused, signal.SIGCONT)

    def close(self) -> None:
        if self.answers():
            self.end()
        log = (self.state / "arbiter.log").read_text()
        assert "Sanitizer" not in log, log
        assert "runtime error" not in log, log


class Tenant:
    """A process of a grant that runs commands of the test."""

    def __init__(self, directory: Path) -> None:
        program = str(Path(__file__).with_name("tenant_program.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-S", program, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        self.directory = directory
        self._children: list[int] = []
        self._await_here()

    def _await_here(self) -> None:
        _, stdout = self._pipes()
        assert stdout.readline() == "here\n"

    def tell(self, *words: object) -> str:
        stdin, stdout = self._pipes()
        stdin.write(" ".join(map(str, words)) + "\n")
        stdin.flush()
        return stdout.readline().rstrip("\n")

    def hello(self) -> int:
        """Join the grant; the slot."""
        kind, slot, *text = self.tell("hello").split()
        assert int(kind) == wire.WELCOME, text
        return int(slot)

    def run(self, index: int = 0) -> None:
        """Join and keep working."""
        self.hello()
        assert self.tell("run", index) == "runs"

    def credit(self, index: int = 0) -> wire.CreditWords:
        credit, pace, ring = map(int, self.tell("credit", index).split())
        return wire.CreditWords(credit, pace, ring, 0)

    def done(self, index: int = 0) -> int:
        """The number of quanta that are done."""
        return int(self.tell("done", index))

    def opened_at(self, index: int = 0) -> int:
        """When its gates opened, in ns of the monotonic clock."""
        return int(self.tell("await-open", index))

    def exec(self, directory: Path | None = None) -> None:
        """Exec the same program again, as a tenant of that grant."""
        assert self.tell("exec", directory or self.directory) == "here"

    def become_cat(self) -> None:
        """Exec a program that never calls CUDA."""
        assert self.tell("become-cat") == "here"

    def fork(self) -> tuple[int, int]:
        """Fork; the slot and pid of the child, which lives until it is killed."""
        slot, pid = map(int, self.tell("fork").split())
        self._children.append(pid)
        return slot, pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def close(self) -> None:
        for child in self._children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.kill()
        for pipe in self._pipes():
            pipe.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin
        assert self._process.stdout
        return self._process.stdin, self._process.stdout


class Owner:
    """A process that makes a grant and lives until it is killed; with `uid` as that user."""

    def __init__(self, state: Path, request: str, uid: int | None = None) -> None:
        script = (
            "import socket, sys, os\n"
            "if sys.argv[3]:\n"
            "    os.setgroups([])\n"
            "    os.setgid(int(sys.argv[3]))\n"
            "    os.setuid(int(sys.argv[3]))\n"
            "f = os.open(sys.argv[1], os.O_PATH)\n"
            "def ask(request):\n"
            "    s = socket.socket(socket.AF_UNIX)\n"
            "    s.connect(f'/proc/self/fd/{f}/control')\n"
            "    s.sendall(request.encode() + b'\\n')\n"
            "    while part := s.recv(65536):\n"
            "        print(part.decode(), end='', flush=True)\n"
            "ask(sys.argv[2])\n"
            "for line in sys.stdin:\n"
            "    ask(line.strip())\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-E", "-S", "-c", script, str(state), request, str(uid or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.answer = json.loads(self.process.stdout.readline())

    def ask(self, request: str) -> dict[str, Any]:
        """Another request of the same process."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{request}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    @property
    def directory(self) -> Path:
        return Path(self.answer["directory"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


class Rounds:
    """Arbiters of one machine, each killed one step later than the one before.

    `with_parent`: the parent is killed at the same moment, and the guard takes over.
    """

    def __init__(
        self, folder: Path, program: Path, nvml: Path, killer: Path, *, with_parent: bool
    ) -> None:
        self._kind = BackgroundArbiter if with_parent else Arbiter
        self._folder = folder
        self._program = program
        self._order = folder / "kill_at"
        self._machine = Machine(folder, nvml)
        self._machine.variables.update(LD_PRELOAD=str(killer), KILL_AT=str(self._order))
        if with_parent:
            self._machine.variables["KILL_PARENT"] = "1"

    def start(self, number: int) -> Arbiter:
        arbiter = self._kind(self._folder / f"state{number}", self._program, self._machine)
        arbiter.start()
        return arbiter

    def kill_at(self, step: int) -> None:
        self._order.write_text(str(step))

    def was_killed(self, arbiter: Arbiter) -> bool:
        """Whether the arbiter was killed at that step; afterwards an arbiter answers."""
        try:
            self._order.unlink()
            killed = False
        except FileNotFoundError:
            killed = True
        support.wait_until(arbiter.answers)
        return killed


def check_whole(arbiter: Arbiter) -> None:
    """Check that each directory is a valid grant, and each grant a directory."""
    grants = arbiter.status()["grants"]
    folders = (arbiter.state / "grants", arbiter.state / "kept")
    names = sorted(name for folder in folders for name in os.listdir(folder))  # noqa: PTH208 - dotted names too
    assert names == sorted(one["name"] for one in grants)
    assert [one["broken"] for one in grants] == [None] * len(grants)


def contend(
    arbiter: Arbiter, tenants: Callable[[Path], Tenant], shares: tuple[int, int] = (0, 0)
) -> tuple[Tenant, Tenant]:
    """Two grants of one GPU, `a` and `b`, with a process each, that take turns."""
    pair = []
    for name, share in zip("ab", shares, strict=True):
        answer = arbiter.ask(
            f"make name={name} slice={GPU},memory={64 * support.MIB},compute={share}"
        )
        assert "directory" in answer, answer
        pair.append(tenants(Path(answer["directory"])))
        pair[-1].run()
    support.wait_until(arbiter.is_contended)
    for tenant in pair:
        support.wait_until(lambda: tenant.credit().credit < wire.OPEN)  # noqa: B023 - called here
    return pair[0], pair[1]
