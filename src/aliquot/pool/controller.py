"""The controller of a pool, and the operations that its API offers.

`round` takes every unfinished job through one step:

1. Observe: read the arbiter's status and the job's slots.
2. Step: compute the state that follows (`lifecycle.advance`).
3. Write that state into the database.
4. Apply: carry out the actions that are due (`workers`).

Then it decides sizes and writes the changed states, which the next round carries out. A round that
fails (no arbiter, a full disk) is reported and retried; the next round repairs what it left.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aliquot.model import lifecycle
from aliquot.model.actions import due_actions
from aliquot.model.errors import AliquotError, InvalidValueError, NameInUseError, NoCapacityError
from aliquot.model.job import Desired, JobPhase, check_job_name
from aliquot.model.job_state import JobState
from aliquot.placement.elastic.job import plausible
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.json_files import read_json
from aliquot.pool.progress import REPORTED, updated_progress
from aliquot.pool.schedule import PoolScheduler
from aliquot.pool.slots import SlotFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.model.job import Job
    from aliquot.placement.elastic.resize import Rules
    from aliquot.placement.queues.quota import Queue
    from aliquot.pool.directory import PoolDirectory
    from aliquot.pool.encoding import Submission
    from aliquot.pool.store import JobStore, StoredJob
    from aliquot.pool.workers import LocalWorkers
    from aliquot.slices.control import Status

BUSY_SECONDS = 0.1  # between two rounds while a change is under way
CALM_SECONDS = 0.5
RETRY_SECONDS = 1.0
PROGRESS_SECONDS = 2.0

_GRANT_NAME = re.compile(r".+\.(\d+)\.\d+\.\d+", re.ASCII)


class NoSuchJobError(AliquotError):
    """No job has this name or number."""


@dataclass
class PoolController:
    """Runs all jobs of one machine."""

    directory: PoolDirectory
    store: JobStore
    workers: LocalWorkers
    rules: Rules
    queues: Mapping[str, Queue]
    say: Callable[[str], None]
    _woken: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _progress_saved: dict[int, float] = field(default_factory=dict)
    _errors: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scheduler = PoolScheduler(self.rules, self.queues)

    # --- operations of the API ---

    def submit(self, submission: Submission) -> StoredJob:
        """Add a job; refuse it if it could never run."""
        job = submission.job
        check_job_name(job.name)
        if self.queues and job.queue not in self.queues:
            names = ", ".join(sorted(self.queues))
            raise InvalidValueError(
                f"queue {job.queue!r} does not exist", f"The queues are: {names}."
            )
        other = self.store.find(job.name)
        if other is not None and not other.state.phase.final:
            raise NameInUseError(
                f"a job named {job.name} exists and is {other.state.phase}",
                "Choose another --name.",
            )
        self._check_fits_empty_machine(job)
        now = time.time()
        made = replace(submission, job=replace(job, submitted=now))
        stored = self.store.add(made, JobState(since=now))
        self.wake()
        return stored

    def request(self, wanted: str, desired: Desired) -> StoredJob:
        """Request that a job runs, is suspended or is cancelled."""
        while True:
            stored = self.find(wanted)
            state = stored.state
            if state.phase.final:
                raise InvalidValueError(f"job {stored.job} is {state.phase}", state.reason)
            if state.desired is Desired.CANCEL and desired is not Desired.CANCEL:
                raise InvalidValueError(f"job {stored.job} is cancelled", "It is being stopped.")
            saved = self.store.save(stored, lifecycle.set_desired(state, desired))
            if saved is not None:
                self.wake()
                return saved

    def find(self, wanted: str) -> StoredJob:
        """A job by its name or number."""
        if (stored := self.store.find(wanted)) is None:
            raise NoSuchJobError(f"no such job: {wanted}", "List all jobs with: aliquot jobs --all")
        return stored

    def why_waiting(self, stored: StoredJob) -> str | None:
        """Why a job waits; None if it does not."""
        state = stored.state
        if state.phase is not JobPhase.PENDING:
            return None
        left = state.not_before - time.time()
        if left > 0:
            return f"{state.reason}; starts again in {left:.0f} s"
        return self._scheduler.waiting.get(stored.job.name, state.reason)

    # --- the loop ---

    def wake(self) -> None:
        """Start the next round at once."""
        self._woken.set()

    def stop(self) -> None:
        """End the loop. Jobs keep running."""
        self._stopped.set()
        self._woken.set()

    def run(self) -> None:
        """Do rounds until stopped."""
        last_error = ""
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                pause = BUSY_SECONDS if self.round() else CALM_SECONDS
                last_error = ""
            except (AliquotError, OSError) as error:
                if str(error) != last_error:
                    self.say(f"will retry: {error}")
                last_error, pause = str(error), RETRY_SECONDS
            self._woken.wait(pause)

    def round(self) -> bool:
        """Take every job through one step and decide sizes; whether a change is under way."""
        self.workers.reap()
        jobs = self.store.all(unfinished=True)
        status = self.workers.arbiter_status()
        for stored in self._leftovers(jobs, status):
            self._clean_up(stored, status)
        if not jobs:
            return False
        jobs = [self._try_step(stored, status) for stored in jobs]
        jobs = [stored for stored in jobs if not stored.state.phase.final]
        self._decide(jobs)
        return any(
            stored.state.phase is not JobPhase.RUNNING and not stored.state.phase.inactive
            for stored in jobs
        )

    def _try_step(self, stored: StoredJob, status: Status) -> StoredJob:
        """Run a job's step. An error does not stop the other jobs; the next round retries."""
        try:
            stored = self._step(stored, status)
            self._errors.pop(stored.job.number, None)
        except (AliquotError, OSError) as error:
            if self._errors.get(stored.job.number) != str(error):
                self.say(f"{stored.job}: will retry: {error}")
            self._errors[stored.job.number] = str(error)
        return stored

    def _step(self, stored: StoredJob, status: Status) -> StoredJob:
        # 1. Observe.
        observed = self.workers.observe(stored, status)
        # 2. Step.
        state = lifecycle.advance(stored.job, stored.state, observed, time.time())
        # 3. Write.
        saved = self._save(stored, state)
        if saved is None:
            return stored  # its user changed it: the next round reads it again
        # 4. Apply.
        for action in due_actions(saved.state, observed):
            self.workers.apply(action, saved)
        if saved.job.live and saved.state.phase is JobPhase.RUNNING:
            self.workers.announce_size(saved)
        return self._save_progress(saved)

    def _clean_up(self, stored: StoredJob, status: Status) -> None:
        for action in due_actions(stored.state, self.workers.observe(stored, status)):
            self.workers.apply(action, stored)

    def _decide(self, jobs: list[StoredJob]) -> None:
        status = self.workers.arbiter_status()  # the actions have changed it
        for stored, state in self._scheduler.changes(jobs, status, time.time()):
            self._save(stored, state)

    def _save(self, stored: StoredJob, state: JobState) -> StoredJob | None:
        saved = self.store.save(stored, state)
        if saved is not None and state.phase is not stored.state.phase:
            self.say(f"{stored.job}: {state.phase}: {state.reason}")
            if state.phase.final:
                self.workers.forget(stored.job.number)
            self.wake()
        return saved

    def _leftovers(self, jobs: list[StoredJob], status: Status) -> list[StoredJob]:
        """Finished jobs that still have grants."""
        numbers = {
            int(match[1]) for one in status.grants if (match := _GRANT_NAME.fullmatch(one.name))
        }
        numbers -= {stored.job.number for stored in jobs}
        found = (self.store.find(str(number)) for number in sorted(numbers))
        return [stored for stored in found if stored is not None and stored.state.phase.final]

    def _save_progress(self, stored: StoredJob) -> StoredJob:
        """Save what rank 0 reported, at most every `PROGRESS_SECONDS`."""
        state, number = stored.state, stored.job.number
        since = time.monotonic() - self._progress_saved.get(number, 0.0)
        if not state.slots or since < PROGRESS_SECONDS:
            return stored
        folder = SlotFolder(self.directory.job(number) / str(state.slots[0]))
        report = read_json(folder.worker / "report")
        if report is None or all(report.get(key) == stored.progress.get(key) for key in REPORTED):
            return stored
        self._progress_saved[number] = time.monotonic()
        progress = updated_progress(stored.progress, report, state.slots[0].generation)
        speed, size = progress["samples_per_second"], _size(stored, report)
        speeds = stored.speeds
        if isinstance(speed, int | float) and isinstance(size, int) and plausible(size, speed):
            speeds = {**speeds, size: float(speed)}
        self.store.save_progress(number, progress, speeds)
        return replace(stored, progress=progress, speeds=speeds)

    def _check_fits_empty_machine(self, job: Job) -> None:
        """Raise NoCapacityError if its smallest size does not fit the empty machine."""
        status = self.workers.arbiter_status()
        plan = MachinePlan.of_empty(status)
        try:
            plan.put(job.request, job.sizes.least)
        except NoCapacityError as error:
            if job.sizes.least == 1:
                raise
            most = next(
                count
                for count in reversed(range(job.sizes.least))
                if plan.holds(job.request, count)
            )
            raise NoCapacityError(
                f"{job.sizes.least} workers of {_describe_request(job)} each do not fit this"
                f" machine: at most {most} do",
                "Ask for fewer with --workers, or for less with --gpus and --memory.",
            ) from error


def _size(stored: StoredJob, report: dict[str, Any]) -> object:
    """The number of workers of a report; under torchrun `size` counts processes."""
    return report.get("size") if stored.job.live else len(stored.state.slots)


def _describe_request(job: Job) -> str:
    request = job.request
    part = "whole" if request.memory is None else f"{request.memory} of each"
    return f"{request.gpus} GPU{'s' if request.gpus > 1 else ''} ({part})"
