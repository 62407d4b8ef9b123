"""The workers of all jobs on this machine: observing them, and carrying out actions on them.

This keeps the guarantees that `model.lifecycle` relies on: a slot runs at most one worker, a closed
slot stays closed, and GPUs are reserved for all slots or for none. Every action may be repeated.
Everything it must know is on disk and in the arbiter; what it keeps in memory only avoids doing
things twice.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot import slices as grants
from aliquot.model import GrantState, Life
from aliquot.model.actions import Verb
from aliquot.model.errors import ArbiterError, NameInUseError, NoCapacityError
from aliquot.model.job_state import ObservedJob, Slot
from aliquot.pool import freezer, processes, supervisor
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.json_files import read_json, write_json
from aliquot.pool.slots import FREEZE_REQUEST, GRANT, SlotFolder, folders
from aliquot.slices import arbiter_process, checkpoint, control

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.devices import Driver
    from aliquot.model import Grant
    from aliquot.model.actions import Action
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState
    from aliquot.pool.directory import PoolDirectory
    from aliquot.pool.store import StoredJob
    from aliquot.slices.control import Status

_RETRY_SECONDS = 2.0  # before a process that ended without doing its work is started again


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is needed to run programs in grants on this machine."""

    state: Path
    driver: Driver
    library: Path
    unfreezable: str | None = None  # why the driver cannot freeze programs; None if it can


@dataclass(frozen=True, slots=True)
class _Child:
    """A supervisor or freezer that this pool started."""

    process: subprocess.Popen[bytes]
    started: float

    @property
    def busy(self) -> bool:
        """Whether it runs, or ended so recently that it is too early to start another."""
        recent = time.monotonic() - self.started < _RETRY_SECONDS
        return self.process.poll() is None or recent


class LocalWorkers:
    """All slots of all jobs on this machine."""

    def __init__(self, directory: PoolDirectory, runtime: Runtime) -> None:
        self._directory, self._runtime = directory, runtime
        self._refused: dict[int, tuple[int, str]] = {}
        self._done: set[tuple[int, Slot, object]] = set()
        self._supervisors: dict[tuple[int, Slot], _Child] = {}
        self._freezers: dict[tuple[int, Slot], _Child] = {}

    # --- observe ---

    def arbiter_status(self) -> Status:
        """The arbiter's status; the arbiter is started if it is not running."""
        arbiter_process.ensure(self._runtime.state, self._runtime.driver)
        return control.status(self._runtime.state)

    def observe(self, stored: StoredJob, status: Status) -> ObservedJob:
        """A job's workers as observed on disk and in the arbiter's status."""
        job, state = stored.job, stored.state
        generation, refused = self._refused.get(job.number, (0, ""))
        workers = {
            slot: worker
            for slot, folder in folders(self._directory.job(job.number)).items()
            if (worker := folder.observe(state.generation)) is not None
        }
        return ObservedJob(
            slots=workers,
            allocated=frozenset(allocated_slots(job, status)),
            parked=frozenset(parked_grants(job, status)),
            refused=refused if generation == state.generation else None,
            unfreezable=self._runtime.unfreezable,
        )

    def reap(self) -> None:
        """Collect supervisors and freezers that have ended."""
        self._supervisors = {key: one for key, one in self._supervisors.items() if one.busy}
        self._freezers = {key: one for key, one in self._freezers.items() if one.busy}

    def forget(self, number: int) -> None:
        """Forget a finished job."""
        self._done = {key for key in self._done if key[0] != number}
        self._refused.pop(number, None)

    # --- apply ---

    def apply(self, action: Action, stored: StoredJob) -> None:
        """Carry out one action of a job."""
        if action.verb is Verb.RESERVE:
            self._reserve(stored.job, stored.state, action.slots)
            return
        carry_out = {
            Verb.START: self._start,
            Verb.NOTIFY: self._notify,
            Verb.TERM: self._term,
            Verb.KILL: self._kill,
            Verb.VOID: self._void,
            Verb.RELEASE: self._release,
            Verb.FREEZE: self._freeze,
            Verb.PARK: self._park,
            Verb.THAW: self._thaw,
        }[action.verb]
        for slot in action.slots:
            carry_out(stored, slot)

    def announce_size(self, stored: StoredJob) -> None:
        """Write the current size for programs that adapt to it while they run."""
        for slot in stored.state.slots:
            if self._once(stored.job, slot, stored.state.generation):
                content = {"generation": stored.state.generation, "size": stored.state.size}
                write_json(self._folder(stored.job, slot).worker / "size", content)

    def _reserve(self, job: Job, state: JobState, slots: tuple[Slot, ...]) -> None:
        if any(self._folder(job, slot).owned for slot in slots):
            self._reserve_parked(job, state, slots)
            return
        status = self.arbiter_status()
        made: list[str] = []
        try:
            existing = {grant.name for grant in status.grants}
            mine = {grant_name(job, slot) for slot in slots}
            plan = MachinePlan.of(status).without(mine)  # leftovers of an interrupted reservation
            placed = plan.put_with_parked(job.request, len(slots))
            for slot, parts in zip(slots, placed, strict=True):
                name, folder = grant_name(job, slot), self._folder(job, slot)
                folder.create()
                if name in existing:
                    control.end(self._runtime.state, name)
                grant = control.make(
                    self._runtime.state, name, parts, kept=True, together=_group(job)
                )
                made.append(name)
                write_json(folder.path / GRANT, {"grant": grant})
        except (NoCapacityError, NameInUseError) as error:
            self._refused[job.number] = state.generation, error.message
            self._end_all(made)
        except BaseException:
            self._end_all(made)
            raise

    def _reserve_parked(self, job: Job, state: JobState, slots: tuple[Slot, ...]) -> None:
        """Reserve the GPUs that frozen workers had, for all of them or for none."""
        directory, names = self._runtime.state, [grant_name(job, slot) for slot in slots]
        try:
            for name in names:
                control.set_state(directory, name, GrantState.SWITCHING)
            checkpoint.check_can_thaw(control.status(directory), names)
        except control.NoArbiterError:
            raise
        except (NoCapacityError, ArbiterError) as error:
            self._refused[job.number] = state.generation, error.message
            for name in names:
                with suppress(ArbiterError):  # a grant that is broken or gone has no GPUs
                    control.set_state(directory, name, GrantState.PARKED)

    def _start(self, stored: StoredJob, slot: Slot) -> None:
        job, folder = stored.job, self._folder(stored.job, slot)
        granted = read_json(folder.path / GRANT)
        if granted is None:  # the pool died while it made the grant
            control.end(self._runtime.state, grant_name(job, slot))
            return
        if (job.number, slot) in self._supervisors:
            return
        launch = self._launch(stored, slot, granted["grant"])
        write_json(folder.path / supervisor.LAUNCH, launch)
        self._supervisors[job.number, slot] = self._begin(supervisor.__name__, job, slot)

    def _begin(self, module: str, job: Job, slot: Slot) -> _Child:
        """Start a process for one slot. It outlives the pool and logs errors in the rank's log."""
        with self._directory.log(job.number, slot.rank).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(self._folder(job, slot).path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={**os.environ, **self._runtime.driver.variables},
            )
        return _Child(process, time.monotonic())

    def _launch(self, stored: StoredJob, slot: Slot, grant: str) -> dict[str, Any]:
        """What the supervisor of a slot runs."""
        job, runtime = stored.job, self._runtime
        own = {**stored.submission.environment, **self._variables(stored, slot)}
        return {
            "program": stored.submission.program,
            "command": list(job.command),
            "directory": stored.submission.directory,
            "environment": grants.tenant_environment(own, runtime.library, runtime.driver, grant),
            "state": str(runtime.state),
            "grant": grant_name(job, slot),
            "driver": {"cuda": str(runtime.driver.cuda), "nvml": str(runtime.driver.nvml)},
        }

    def _variables(self, stored: StoredJob, slot: Slot) -> dict[str, str]:
        job, state = stored.job, stored.state
        return {
            "RANK": str(slot.rank),
            "WORLD_SIZE": str(state.size),
            "LOCAL_RANK": "0",  # a worker sees its own GPUs and no others
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(slot.rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port(job, state.slots[0].generation)),
            "ALIQUOT_JOB": job.name,
            "ALIQUOT_JOB_NUMBER": str(job.number),
            "ALIQUOT_GENERATION": str(slot.generation),
            "ALIQUOT_WORKER": str(self._folder(job, slot).worker),
        }

    def _port(self, job: Job, generation: int) -> int:
        """A port that was free when the generation started; the same for all its workers."""
        path = self._directory.job(job.number) / f"port-{generation}"
        if (stored := read_json(path)) is not None:
            return int(stored["port"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        write_json(path, {"port": port})
        return port

    def _notify(self, stored: StoredJob, slot: Slot) -> None:
        state, stopping = stored.state, stored.state.stopping
        if stopping is None or not self._once(stored.job, slot, ("notice", state.generation)):
            return
        notice = {
            "generation": state.generation,
            "kind": state.phase.notice_kind,
            "size": stopping.size,
            "deadline": stopping.until,
        }
        write_json(self._folder(stored.job, slot).worker / "notice", notice)

    def _term(self, stored: StoredJob, slot: Slot) -> None:
        if self._once(stored.job, slot, Verb.TERM):
            self._folder(stored.job, slot).signal_supervisor(signal.SIGTERM)

    def _kill(self, stored: StoredJob, slot: Slot) -> None:
        """Ask the supervisor to kill its worker. If it does not respond, kill it too."""
        folder = self._folder(stored.job, slot)
        if self._once(stored.job, slot, Verb.KILL):
            folder.signal_supervisor(signal.SIGUSR1)
        elif self._is_overdue(stored):
            folder.signal_supervisor(signal.SIGKILL)

    def _void(self, stored: StoredJob, slot: Slot) -> None:
        self._folder(stored.job, slot).void()

    def _release(self, stored: StoredJob, slot: Slot) -> None:
        """End the grant. If processes are left in it, kill them: they belong to no worker."""
        name = grant_name(stored.job, slot)
        if control.end(self._runtime.state, name):
            return
        found = (one for one in control.status(self._runtime.state).grants if one.name == name)
        for process in (process for grant in found for process in grant.processes):
            if (start := processes.started_at(process.pid)) is not None:
                processes.send_signal(process.pid, start, signal.SIGKILL)

    def _freeze(self, stored: StoredJob, slot: Slot) -> None:
        self._request_freeze(stored, slot, frozen=True)

    def _thaw(self, stored: StoredJob, slot: Slot) -> None:
        self._request_freeze(stored, slot, frozen=False)

    def _request_freeze(self, stored: StoredJob, slot: Slot, *, frozen: bool) -> None:
        key, folder = (stored.job.number, slot), self._folder(stored.job, slot)
        request = {"generation": stored.state.generation, "frozen": frozen}
        if read_json(folder.path / FREEZE_REQUEST) != request:
            write_json(folder.path / FREEZE_REQUEST, request)
        if key not in self._freezers:
            self._freezers[key] = self._begin(freezer.__name__, stored.job, slot)

    def _park(self, stored: StoredJob, slot: Slot) -> None:
        control.set_state(self._runtime.state, grant_name(stored.job, slot), GrantState.PARKED)

    # --- helpers ---

    def _is_overdue(self, stored: StoredJob) -> bool:
        stopping = stored.state.stopping
        return stopping is not None and time.time() >= stopping.until + stored.job.grace_seconds

    def _end_all(self, names: list[str]) -> None:
        for name in names:
            with suppress(ArbiterError):
                control.end(self._runtime.state, name)

    def _folder(self, job: Job, slot: Slot) -> SlotFolder:
        return SlotFolder(self._directory.job(job.number) / str(slot))

    def _once(self, job: Job, slot: Slot, what: object) -> bool:
        """Whether this pool has not done this before."""
        key = (job.number, slot, what)
        if key in self._done:
            return False
        self._done.add(key)
        return True


def grant_name(job: Job, slot: Slot) -> str:
    """The name of one worker's grant."""
    return f"{job.name}.{job.number}.{slot}"


def _group(job: Job) -> str:
    """The name under which its workers hold GPUs together: their kernels wait for each other."""
    return job.request.together or f"{job.name}.{job.number}"


def allocated_slots(job: Job, status: Status) -> list[Slot]:
    """The slots of a job that have GPUs."""
    found = _grants_of(job, status).items()
    return [slot for slot, grant in found if grant.state is not GrantState.PARKED]


def parked_grants(job: Job, status: Status) -> dict[Slot, Grant]:
    """The parked grants of a job: its frozen workers have given their GPUs back."""
    found = _grants_of(job, status).items()
    return {slot: grant for slot, grant in found if grant.state is GrantState.PARKED}


def prepare_runtime(directory: PoolDirectory) -> Runtime:
    """Prepare this machine to run programs in grants."""
    state = directory.state
    driver = state.driver()
    grants.prepare(state)
    library = grants.prepare_library(driver)
    return Runtime(state.directory, driver, library, checkpoint.unsupported(driver))


def _grants_of(job: Job, status: Status) -> dict[Slot, Grant]:
    prefix = f"{job.name}.{job.number}."
    found = {}
    for grant in status.grants:
        if grant.name.startswith(prefix) and grant.life is not Life.OWNED:
            generation, _, rank = grant.name.removeprefix(prefix).partition(".")
            if generation.isdecimal() and rank.isdecimal():
                found[Slot(int(generation), int(rank))] = grant
    return found
