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
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aliquot import slices as grants
from aliquot.model import GrantState, Isolation, Life, name_for
from aliquot.model.actions import Verb
from aliquot.model.errors import (
    ArbiterError,
    NameInUseError,
    NoCapacityError,
    UnsupportedError,
    UserLimitError,
)
from aliquot.model.job import Desired
from aliquot.model.job_state import ObservedJob, Slot
from aliquot.pool import freezer, processes, supervisor
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.idle import idle_together
from aliquot.pool.json_files import read_json, write_json
from aliquot.pool.slots import FREEZE_REQUEST, GRANT, SlotFolder, folders
from aliquot.slices import arbiter_process, checkpoint, control, moving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from aliquot.devices import Driver
    from aliquot.model import Grant, Request
    from aliquot.model.actions import Action
    from aliquot.model.job import Job
    from aliquot.model.job_state import ObservedWorker
    from aliquot.pool.directory import PoolDirectory
    from aliquot.pool.freezer import FreezerThread
    from aliquot.pool.pool_cgroup import WorkerCgroups
    from aliquot.pool.spawner import Spawned, Spawner
    from aliquot.pool.store import StoredJob
    from aliquot.slices.arbiter_status import Status


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is needed to run programs in grants on this machine."""

    state: Path
    driver: Driver
    library: Path
    unfreezable: str | None = None  # why the driver cannot freeze programs; None if it can


class LocalWorkers:
    """All slots of all jobs on this machine."""

    def __init__(
        self,
        directory: PoolDirectory,
        runtime: Runtime,
        spawner: Spawner,
        cgroups: WorkerCgroups,
    ) -> None:
        self._directory, self._runtime, self._spawner = directory, runtime, spawner
        self._cgroups = cgroups
        self._processes: int | None = None
        self._refused: dict[int, tuple[int, str]] = {}
        self._done: set[tuple[int, Slot, object]] = set()
        self._supervisors: dict[tuple[int, Slot], Spawned] = {}
        self._freezers: dict[tuple[int, Slot], Spawned | FreezerThread] = {}
        self.on_change: Callable[[], None] = lambda: None  # what it did may be observed at once
        self._closed: dict[int, dict[Slot, ObservedWorker]] = {}

    # --- observe ---

    def arbiter_status(self) -> Status:
        """The arbiter's status; the arbiter is started if it is not running."""
        arbiter_process.ensure(self._runtime.state, self._runtime.driver)
        return control.status(self._runtime.state)

    def observe(self, stored: StoredJob, status: Status) -> ObservedJob:
        """A job's workers as observed on disk and in the arbiter's status."""
        job, state = stored.job, stored.state
        generation, refused = self._refused.get(job.number, (0, ""))
        before = self._closed.get(job.number, {})
        workers = {
            slot: worker
            for slot, folder in folders(self._directory.job(job.number)).items()
            if (worker := before.get(slot) or folder.observe(state.generation)) is not None
        }
        self._closed[job.number] = {  # for ever, so they are not read in each round
            slot: worker
            for slot, worker in workers.items()
            if worker.closed and slot not in state.slots
        }
        return ObservedJob(
            slots=workers,
            allocated=frozenset(allocated_slots(stored, status)),
            parked=frozenset(parked_grants(stored, status)),
            refused=refused if generation == state.generation else None,
            unfreezable=self._unfreezable(job),
            idle_seconds=_idle_seconds(stored, status),
        )

    def _unfreezable(self, job: Job) -> str | None:
        if job.request.isolation is Isolation.MPS:
            return "the driver cannot freeze clients of an MPS server"
        return None if job.request.swap else self._runtime.unfreezable

    def reap(self) -> None:
        """Collect supervisors and freezers that have ended."""
        for children in (self._supervisors, self._freezers):
            for key, one in list(children.items()):
                if not one.busy:
                    one.close()
                    del children[key]

    @property
    def unlimited(self) -> str | None:
        """Why a worker can start as many processes as it likes; None: it has a limit."""
        return self._cgroups.unlimited

    def limit_processes(self, most: int | None) -> None:
        """Limit the processes and threads of each worker, also of those that run."""
        self._processes = self._cgroups.limit(most)

    def forget(self, number: int) -> None:
        """Forget a finished job."""
        self._done = {key for key in self._done if key[0] != number}
        self._refused.pop(number, None)
        self._closed.pop(number, None)

    # --- apply ---

    def apply(self, action: Action, stored: StoredJob) -> None:
        """Carry out one action of a job."""
        if action.verb is Verb.RESERVE:
            self._reserve(stored, action.slots)
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
            content = {"generation": stored.state.generation, "size": stored.state.size}
            tell = partial(self._folder(stored.job, slot).tell, "size", content, stored.owner)
            self._once(stored.job, slot, stored.state.generation, tell)

    def _reserve(self, stored: StoredJob, slots: tuple[Slot, ...]) -> None:
        job, state, owner = stored.job, stored.state, stored.owner
        if any(self._folder(job, slot).owned for slot in slots):
            self._reserve_parked(stored, slots)
            return
        status = self.arbiter_status()
        made: list[str] = []
        try:
            existing = {grant.name for grant in status.grants}
            mine = {grant_name(stored, slot) for slot in slots}
            plan = MachinePlan.of(status).without(mine)  # leftovers of an interrupted reservation
            asked = requested_by(stored)
            control.check_swap(status, asked)
            placed = plan.put_with_parked(asked, len(slots))
            # An earlier arbiter refuses a label that the job chose; the default one is left out.
            knows = status.knows_neighbours or bool(job.request.neighbours)
            for slot, parts in zip(slots, placed, strict=True):
                name, folder = grant_name(stored, slot), self._folder(job, slot)
                folder.create(owner)
                if name in existing:
                    control.end(self._runtime.state, name)
                grant = control.make(
                    self._runtime.state,
                    _plain_name(job, slot),
                    parts,
                    together=_group(job) if asked.isolation is Isolation.SOFT else None,
                    neighbours=asked.neighbours if knows else None,
                    swap=bool(asked.swap),
                    park_after=asked.park_after,
                    swap_wait=asked.swap_wait,
                    overcommit=asked.overcommit,
                    spill=asked.spill,
                    isolation=asked.isolation,
                    owner=owner.uid,
                )
                made.append(name)
                write_json(folder.path / GRANT, {"grant": grant})
        except (NoCapacityError, NameInUseError, UserLimitError, UnsupportedError) as error:
            self._refused[job.number] = state.generation, error.message
            self._end_all(made)
        except BaseException:
            self._end_all(made)
            raise

    def _reserve_parked(self, stored: StoredJob, slots: tuple[Slot, ...]) -> None:
        """Reserve the GPUs that frozen workers had, for all of them or for none."""
        job, state = stored.job, stored.state
        directory, names = self._runtime.state, [grant_name(stored, slot) for slot in slots]
        try:
            for name in names:
                moving.reserve(directory, name)
            checkpoint.check_can_thaw(control.status(directory), names)
            self.on_change()
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
            control.end(self._runtime.state, grant_name(stored, slot))
            return
        if (job.number, slot) in self._supervisors:
            return
        launch = self._launch(stored, slot, granted["grant"])
        write_json(folder.path / supervisor.LAUNCH, launch)
        self._supervisors[job.number, slot] = self._begin(supervisor, stored, slot)

    def _begin(self, module: ModuleType, stored: StoredJob, slot: Slot) -> Spawned:
        """Start a process for one slot. It outlives the pool and logs errors in the rank's log."""
        number, folder = stored.job.number, self._folder(stored.job, slot)
        log = self._directory.log(number, slot.rank)
        return self._spawner.spawn(module, folder.path, log, stored.owner.uid)

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
            "grant": grant_name(stored, slot),
            "swap": bool(job.request.swap),
            "mps": self._server(stored, slot),
            "user": {
                "uid": stored.owner.uid,
                "gid": stored.owner.gid,
                "name": stored.owner.name,
            },
            "driver": {"cuda": str(runtime.driver.cuda), "nvml": str(runtime.driver.nvml)},
            "cgroup": {
                "above": self._cgroups.above and str(self._cgroups.above),
                "processes": self._processes,
            },
        }

    def _server(self, stored: StoredJob, slot: Slot) -> dict[str, Any] | None:
        """The MPS server that its program is to be a client of; None: it is of soft slices."""
        if stored.job.request.isolation is not Isolation.MPS:
            return None
        name, shape = grant_name(stored, slot), self._directory.state.shape
        found = [one for one in self.arbiter_status().grants if one.name == name]
        return {
            "gpu": found[0].slices[0].gpu_uuid if found else None,
            "simulate": None if shape is None else str(shape),
            "priority": str(stored.job.request.priority),
        }

    def _variables(self, stored: StoredJob, slot: Slot) -> dict[str, str]:
        job, state = stored.job, stored.state
        array = job.array
        return {
            **({} if array is None else {"ALIQUOT_ARRAY_INDEX": str(array.index)}),
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
            "ALIQUOT_NOTICES": str(self._folder(job, slot).notices),
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
        if stopping is None:
            return
        notice = {
            "generation": state.generation,
            "kind": state.phase.notice_kind,
            "size": stopping.size,
            "deadline": stopping.until,
        }
        tell = partial(self._folder(stored.job, slot).tell, "notice", notice, stored.owner)
        self._once(stored.job, slot, ("notice", state.generation), tell)

    def _term(self, stored: StoredJob, slot: Slot) -> None:
        end = partial(self._folder(stored.job, slot).signal_supervisor, signal.SIGTERM)
        self._once(stored.job, slot, Verb.TERM, end)

    def _kill(self, stored: StoredJob, slot: Slot) -> None:
        """Ask the supervisor to kill its worker. If it does not respond, kill it too."""
        folder = self._folder(stored.job, slot)
        kill = partial(folder.signal_supervisor, signal.SIGUSR1)
        if not self._once(stored.job, slot, Verb.KILL, kill) and self._is_overdue(stored):
            folder.signal_supervisor(signal.SIGKILL)

    def _void(self, stored: StoredJob, slot: Slot) -> None:
        self._folder(stored.job, slot).void()

    def _release(self, stored: StoredJob, slot: Slot) -> None:
        """End the grant. If processes are left in it, kill them: they belong to no worker."""
        name = grant_name(stored, slot)
        self._folder(stored.job, slot).end_cgroup()
        if control.end(self._runtime.state, name):
            return
        processes.kill_listed(lambda: self._joined(name))

    def _joined(self, name: str) -> set[int]:
        """The processes that the arbiter lists in a grant."""
        found = (one for one in control.status(self._runtime.state).grants if one.name == name)
        return {process.pid for grant in found for process in grant.processes}

    def _freeze(self, stored: StoredJob, slot: Slot) -> None:
        self._request_freeze(stored, slot, frozen=True)

    def _thaw(self, stored: StoredJob, slot: Slot) -> None:
        self._request_freeze(stored, slot, frozen=False)

    def _request_freeze(self, stored: StoredJob, slot: Slot, *, frozen: bool) -> None:
        key, folder = (stored.job.number, slot), self._folder(stored.job, slot)
        request = {"generation": stored.state.generation, "frozen": frozen}
        if frozen and stored.job.request.swap and stored.state.desired is Desired.RUN:
            request["called_off"] = True
        if read_json(folder.path / FREEZE_REQUEST) != request:
            write_json(folder.path / FREEZE_REQUEST, request)
        if key in self._freezers:
            return
        if stored.job.request.swap:
            self._freezers[key] = freezer.FreezerThread(folder.path, self.on_change)
        else:
            self._freezers[key] = self._begin(freezer, stored, slot)

    def _park(self, stored: StoredJob, slot: Slot) -> None:
        control.set_state(self._runtime.state, grant_name(stored, slot), GrantState.PARKED)
        self.on_change()

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

    def _once(self, job: Job, slot: Slot, what: object, do: Callable[[], object]) -> bool:
        """Do what this pool has not done before; whether it did. What failed is still to do."""
        key = (job.number, slot, what)
        if key in self._done:
            return False
        do()
        self._done.add(key)
        return True


def grant_name(stored: StoredJob, slot: Slot) -> str:
    """How this process names one worker's grant."""
    return name_for(os.geteuid(), stored.owner.uid, _plain_name(stored.job, slot))


def _plain_name(job: Job, slot: Slot) -> str:
    """How the user of the job names it."""
    return f"{job.name}.{job.number}.{slot}"


def requested_by(stored: StoredJob) -> Request:
    """What each worker of a job asks for. Its label is by default the name of the job or array."""
    job = stored.job
    return job.request.of_owner(stored.owner.uid, job_label(job))


def job_label(job: Job) -> str | None:
    """The label of a job's slices if it gives none."""
    return (job.array.name if job.array is not None else job.name) or None


def _group(job: Job) -> str:
    """The name under which its workers hold GPUs together: their kernels wait for each other."""
    return job.request.together or f"{job.name}.{job.number}"


def allocated_slots(stored: StoredJob, status: Status) -> list[Slot]:
    """The slots of a job that have GPUs, or return to them by themselves."""
    found = _grants_of(stored, status).items()
    return [slot for slot, grant in found if not _is_frozen(grant)]


def parked_grants(stored: StoredJob, status: Status) -> dict[Slot, Grant]:
    """The parked grants of a job: its frozen workers have given their GPUs back."""
    found = _grants_of(stored, status).items()
    return {slot: grant for slot, grant in found if _is_frozen(grant)}


def idle_grants(stored: StoredJob, status: Status) -> list[Grant]:
    """The grants of a job that are parked because they are idle: their workers run."""
    return [grant for grant in _grants_of(stored, status).values() if grant.is_idle_parked]


def _is_frozen(grant: Grant) -> bool:
    return grant.state is GrantState.PARKED and not grant.is_idle_parked


def grants_of(stored: StoredJob, status: Status) -> dict[Slot, Grant]:
    """The grants of the workers that a job has now."""
    found = _grants_of(stored, status)
    return {slot: found[slot] for slot in stored.state.slots if slot in found}


def _idle_seconds(stored: StoredJob, status: Status) -> float | None:
    """For how long no worker of a job has used a GPU; None unless that is known of all."""
    found = grants_of(stored, status)
    return idle_together(found.values()) if len(found) == stored.state.size else None


def prepare_runtime(directory: PoolDirectory) -> Runtime:
    """Prepare this machine to run programs in grants."""
    state = directory.state
    driver = state.driver()
    grants.prepare(state)
    library = grants.prepare_library(driver)
    return Runtime(state.directory, driver, library, checkpoint.unsupported(driver))


def grant_prefix(stored: StoredJob) -> str:
    """How the names of all grants of a job begin."""
    return name_for(os.geteuid(), stored.owner.uid, f"{stored.job.name}.{stored.job.number}.")


def _grants_of(stored: StoredJob, status: Status) -> dict[Slot, Grant]:
    prefix = grant_prefix(stored)
    found = {}
    for grant in status.grants:
        if grant.name.startswith(prefix) and grant.life is not Life.OWNED:
            generation, _, rank = grant.name.removeprefix(prefix).partition(".")
            if generation.isdecimal() and rank.isdecimal():
                found[Slot(int(generation), int(rank))] = grant
    return found
