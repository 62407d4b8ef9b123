"""The programs of a benchmark, where they run, and what they are told.

A program is started once per benchmark: in a grant of its own (`aliquot run`, with or without
`--swap`, or with `--isolation mps`), on the GPU as it is, or as a client of MPS. Shares are changed
between cases on the running grants, as `aliquot resize` does. The grants are of an arbiter of this
benchmark's own; the MPS daemon is its own too, in a private folder. When the stage closes, all that
it started has ended.

Every wait has a deadline, and what programs write to standard error goes to files.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.devices import parse_shape
from aliquot.model import Policy, Priority
from aliquot.model.errors import AliquotError, ArbiterError
from aliquot.slices import control

if TYPE_CHECKING:
    from aliquot.slices.arbiter_status import Status

HERE = Path(__file__).parent
GRANT, SWAP, PLAIN, MPS, MPS_LOW = "grant", "swap", "plain", "mps", "mps-low"
MPS_GRANT, MPS_GRANT_LOW = "mps-grant", "mps-grant-low"  # the latter begins in the background
IN_GRANTS = frozenset({GRANT, SWAP, MPS_GRANT, MPS_GRANT_LOW})
START_SECONDS = 80.0
STOP_SECONDS = 15.0
PATIENCE_SECONDS = 30.0  # beyond what a command should take
MPS_CONTROL = "nvidia-cuda-mps-control"

# What each workload is given; contexts, modules and workspaces included.
MEMORY = {
    "train": "20GiB",
    "forty": "5GiB",
    "memory": "5GiB",
    "decode": "4GiB",
    "gather": "66GiB",
}
ENOUGH = "3GiB"


class TenantError(Exception):
    """A program that ended, or did not answer."""


@dataclass(frozen=True)
class Spec:
    """A program: what it works on, where, and which of several like it."""

    workload: str
    number: int = 1
    where: str = GRANT
    framework: str = "torch"
    queues: int = 0  # hardware queues (CUDA_DEVICE_MAX_CONNECTIONS); 0: the driver's default
    processes: int = 1

    @property
    def kind(self) -> str:
        """Its name among different ones: programs of one kind have the same speed alone."""
        words = [] if self.framework == "torch" else [self.framework]
        words += [self.workload]
        words += [f"{self.processes}p"] if self.processes > 1 else []
        words += [f"{self.queues}q"] if self.queues else []
        return "-".join(words)

    @property
    def name(self) -> str:
        where = "" if self.where == GRANT else f"-{self.where}"
        return f"{self.kind}{where}-{self.number}"


@dataclass(frozen=True)
class Share:
    """What a grant's slice is to have; 0: an equal part of what the others leave."""

    compute: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL


class Tenant:
    """One program that runs."""

    def __init__(self, spec: Spec, command: list[str], environment: dict[str, str], log: Path):
        self.spec, self.log, self.ready, self.version = spec, log, False, ""
        self.pending = 0  # commands without an answer
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that it is ended with all its processes
            )
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):
            for line in self.process.stdout:
                self.answers.put(json.loads(line))
        self.answers.put(None)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            self.pending += 1
        except OSError as error:
            raise TenantError(f"{self.spec.name} has ended: {self.last_words()}") from error

    def answer(self, seconds: float) -> dict[str, Any]:
        try:
            said = self.answers.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            self.kill()
            raise TenantError(f"{self.spec.name} does not answer: {self.last_words()}") from None
        if said is None:
            self.answers.put(None)
            raise TenantError(f"{self.spec.name} has ended: {self.last_words()}")
        self.pending -= 1
        return said

    def wait_ready(self, seconds: float) -> None:
        if not self.ready:
            self.version = self.answer(seconds)["version"]
            self.ready, self.pending = True, 0

    def last_words(self) -> str:
        return self.log.read_text(errors="replace").strip()[-400:]

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)


class Stage:
    """All programs of one benchmark."""

    def __init__(self, simulate: str | None) -> None:
        self.simulate = simulate
        self.folder = Path(tempfile.mkdtemp(prefix="aliquot-bench-"))
        os.environ["ALIQUOT_STATE"] = str(self.folder / "state")
        self.state = slices.locate(parse_shape(simulate) if simulate else None)
        self.tenants: dict[Spec, Tenant] = {}
        self.shares: dict[Spec, Share] = {}
        self.mps_runs = False
        self._gpu = ""

    # --- starting and ending

    def need(self, specs: Iterable[Spec]) -> None:
        """Have these programs running and ready; those that ended before are started again."""
        wanted = dict.fromkeys(specs)
        for spec in wanted:
            if spec not in self.tenants or not self[spec].alive:
                self._start(spec)
        deadline = time.monotonic() + START_SECONDS
        failures = []
        for spec in wanted:
            try:
                self[spec].wait_ready(deadline - time.monotonic())
            except TenantError as error:
                failures.append(str(error))
                self.end([spec])
        if failures:
            raise TenantError("; ".join(failures))

    def keep(self, specs: Iterable[Spec]) -> None:
        """End all but these."""
        kept = set(specs)
        self.end([spec for spec in self.tenants if spec not in kept])

    def end_pending(self) -> None:
        """End those that were told something and have not answered."""
        self.end([spec for spec, tenant in self.tenants.items() if tenant.pending])

    def end(self, specs: Iterable[Spec]) -> None:
        ending = [self.tenants.pop(spec) for spec in list(specs) if spec in self.tenants]
        for tenant in ending:
            tenant.kill()
        deadline = time.monotonic() + STOP_SECONDS
        for tenant in ending:
            self.shares.pop(tenant.spec, None)
            with suppress(subprocess.TimeoutExpired):
                tenant.process.wait(max(deadline - time.monotonic(), 0.01))

    def close(self) -> None:
        self.end(list(self.tenants))
        if self.mps_runs:
            self._mps("quit\n")
        self._stop_arbiter()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __getitem__(self, spec: Spec) -> Tenant:
        return self.tenants[spec]

    def _start(self, spec: Spec) -> None:
        framework = "spin" if self.simulate and spec.framework != "allocate" else spec.framework
        command = [sys.executable, str(HERE / "worker.py"), framework, spec.workload]
        command += [str(spec.processes)] if spec.processes > 1 else []
        if spec.where in IN_GRANTS:
            command = [*self._aliquot_run(spec), "--", *command]
        low = spec.where == MPS_GRANT_LOW
        self.shares[spec] = Share(priority=Priority.BACKGROUND) if low else Share()
        log = self.folder / f"{spec.name}.log"
        self.tenants[spec] = Tenant(spec, command, self._environment(spec), log)

    def _aliquot_run(self, spec: Spec) -> list[str]:
        memory = MEMORY.get(spec.workload, ENOUGH)
        where = ["--simulate", self.simulate] if self.simulate else []
        command = [sys.executable, "-m", "aliquot", "run", *where]
        command += ["--swap"] if spec.where == SWAP else []
        command += ["--isolation", "mps"] if spec.where in {MPS_GRANT, MPS_GRANT_LOW} else []
        command += ["--priority", "background"] if spec.where == MPS_GRANT_LOW else []
        return [*command, "--name", spec.name, "--memory", memory]

    def _environment(self, spec: Spec) -> dict[str, str]:
        environment = dict(os.environ)
        if spec.queues:
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = str(spec.queues)
        if spec.where in {MPS, MPS_LOW}:
            if not self.mps_runs:
                self._start_mps()
            environment |= self._mps_environment()
        if spec.where == MPS_LOW:
            environment["CUDA_MPS_CLIENT_PRIORITY"] = "1"
        if spec.where not in IN_GRANTS and self.simulate:
            driver = self.state.driver()
            slices.prepare(self.state)
            environment |= {**driver.variables, "LD_LIBRARY_PATH": str(driver.cuda.parent)}
        return environment

    # --- MPS

    def _mps_environment(self) -> dict[str, str]:
        pipes, logs = self.folder / "mps", self.folder / "mps-log"
        return {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}

    def _start_mps(self) -> None:
        if self.simulate or shutil.which(MPS_CONTROL) is None:
            raise TenantError(f"there is no {MPS_CONTROL} here")
        for folder in self._mps_environment().values():
            Path(folder).mkdir(exist_ok=True)
        self.mps_runs = True
        self._mps(None)
        time.sleep(1)  # it says nowhere when it listens

    def _mps(self, words: str | None) -> None:
        command = [MPS_CONTROL] if words else [MPS_CONTROL, "-d"]
        environment = {**os.environ, **self._mps_environment()}
        output = (self.folder / "mps.log").open("a")
        with output, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                input=words,
                env=environment,
                stdout=output,
                stderr=output,
                text=True,
                timeout=STOP_SECONDS,
                check=False,
            )

    # --- the arbiter

    def status(self) -> Status:
        return control.status(self.state.directory)

    def set_shares(self, shares: Mapping[Spec, Share]) -> None:
        """What each grant is to have; those that are not named get an equal part of the rest.

        What is lowered goes first: at no time are more than 100 percent asked for.
        """
        granted = [spec for spec in self.tenants if spec.where in IN_GRANTS]
        wanted = {spec: shares.get(spec, Share()) for spec in granted}
        changed = [spec for spec, share in wanted.items() if share != self.shares[spec]]
        for spec in sorted(changed, key=lambda s: wanted[s].compute - self.shares[s].compute):
            self.resize(spec, wanted[spec])

    def resize(self, spec: Spec, share: Share) -> None:
        change = control.SliceChange(
            self.gpu(),
            compute_percent=share.compute,
            policy=share.policy,
            priority=share.priority,
        )
        control.resize(self.state.directory, spec.name, [change])
        self.shares[spec] = share

    def gpu(self) -> str:
        self._gpu = self._gpu or self.status().gpus[0].gpu.uuid
        return self._gpu

    def _stop_arbiter(self) -> None:
        """End it when its last grant is over; one that cannot be asked is ended by its number."""
        deadline = time.monotonic() + STOP_SECONDS
        processes: list[int] = []
        while time.monotonic() < deadline:
            try:
                processes = arbiter_processes(self.status())
                control.stop(self.state.directory)
            except control.NoArbiterError:
                return
            except (ArbiterError, AliquotError):
                time.sleep(0.05)
        for number in processes:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def arbiter_processes(status: Status) -> list[int]:
    """The arbiter's guard, its parent, and the arbiter itself."""
    return [status.answer[key] for key in ("guard_pid", "pid", "serving_pid")]
