"""The pool's loop: look, write, act, decide; and what the door asks of it.

Each round takes every job that is not over through one step of its state machine: what is seen, the
record that follows, written before anything is done by it, then the deeds that are due. Then sizes
are decided. A round that fails (no arbiter, a full disk, a folder that cannot be made) changes
nothing that the next round does not mend; it is reported and tried again.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aliquot.model import lifecycle
from aliquot.model.due import due
from aliquot.model.errors import AliquotError, BadValueError, NameInUseError, NoRoomError
from aliquot.model.job import State, Wish, check_job_name
from aliquot.model.status import Record
from aliquot.placement.elastic.job import plausible
from aliquot.pool.capacity import Plan
from aliquot.pool.progress import REPORTED, noted
from aliquot.pool.schedule import Scheduler
from aliquot.pool.slots import SlotFolder, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.model.job import Job
    from aliquot.placement.elastic.resize import Rules
    from aliquot.placement.queues.quota import Queue
    from aliquot.pool.forms import Submission
    from aliquot.pool.place import Place
    from aliquot.pool.store import Store, Stored
    from aliquot.pool.world import World
    from aliquot.slices.control import Status

BUSY_SECONDS = 0.1  # between two rounds while something is on its way
CALM_SECONDS = 0.5
RETRY_SECONDS = 1.0
PROGRESS_SECONDS = 2.0

_OURS = re.compile(r".+\.(\d+)\.\d+\.\d+", re.ASCII)


class NoSuchJobError(AliquotError):
    """No job has this name or number."""


@dataclass
class Pool:
    """All jobs of one machine."""

    place: Place
    store: Store
    world: World
    rules: Rules
    queues: Mapping[str, Queue]
    say: Callable[[str], None]
    _woken: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _noted: dict[int, float] = field(default_factory=dict)
    _trouble: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scheduler = Scheduler(self.rules, self.queues)

    # --- what the door asks ---

    def submit(self, submission: Submission) -> Stored:
        """Take a job in, or say why it could never run."""
        job = submission.job
        check_job_name(job.name)
        if self.queues and job.queue not in self.queues:
            names = ", ".join(sorted(self.queues))
            raise BadValueError(f"there is no queue {job.queue!r}", f"There are: {names}.")
        other = self.store.find(job.name)
        if other is not None and not other.record.state.final:
            raise NameInUseError(
                f"there is a job named {job.name}, and it is {other.record.state}",
                "Choose another --name.",
            )
        self._check_it_could_run(job)
        now = time.time()
        made = replace(submission, job=replace(job, submitted=now))
        stored = self.store.add(made, Record(since=now))
        self.wake()
        return stored

    def want(self, wanted: str, wish: Wish) -> Stored:
        """What its user wants of a job."""
        while True:
            stored = self.find(wanted)
            record = stored.record
            if record.state.final:
                raise BadValueError(f"job {stored.job} is {record.state}", record.reason)
            if record.wish is Wish.CANCEL and wish is not Wish.CANCEL:
                raise BadValueError(f"job {stored.job} is cancelled", "It is being stopped.")
            saved = self.store.save(stored, lifecycle.want(record, wish))
            if saved is not None:
                self.wake()
                return saved

    def find(self, wanted: str) -> Stored:
        """A job by its name or number."""
        if (stored := self.store.find(wanted)) is None:
            raise NoSuchJobError(
                f"there is no job {wanted}", "See what there is with: aliquot jobs --all"
            )
        return stored

    def why_waiting(self, stored: Stored) -> str | None:
        """Why a job does not run, in words; None where it does not wait."""
        record = stored.record
        if record.state is not State.PENDING:
            return None
        left = record.not_before - time.time()
        if left > 0:
            return f"{record.reason}; starts again in {left:.0f} s"
        return self._scheduler.waits.get(stored.job.name, record.reason)

    # --- the loop ---

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    def stop(self) -> None:
        """End the loop; jobs run on."""
        self._stopped.set()
        self._woken.set()

    def run(self) -> None:
        """Round after round, until stopped."""
        told = ""
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                pause = BUSY_SECONDS if self.round() else CALM_SECONDS
                told = ""
            except (AliquotError, OSError) as error:
                if str(error) != told:
                    self.say(f"will try again: {error}")
                told, pause = str(error), RETRY_SECONDS
            self._woken.wait(pause)

    def round(self) -> bool:
        """One step of every job; whether something is on its way."""
        self.world.reap()
        jobs = self.store.all(unfinished=True)
        status = self.world.status()
        for stored in self._left_over(jobs, status):
            self._act(stored, status)
        if not jobs:
            return False
        jobs = [self._try_step(stored, status) for stored in jobs]
        jobs = [stored for stored in jobs if not stored.record.state.final]
        self._decide(jobs)
        return any(
            stored.record.state is not State.RUNNING and not stored.record.state.resting
            for stored in jobs
        )

    def _try_step(self, stored: Stored, status: Status) -> Stored:
        """What goes wrong for one job does not stop the others; it is tried again."""
        try:
            stored = self._step(stored, status)
            self._trouble.pop(stored.job.number, None)
        except (AliquotError, OSError) as error:
            if self._trouble.get(stored.job.number) != str(error):
                self.say(f"{stored.job}: will try again: {error}")
            self._trouble[stored.job.number] = str(error)
        return stored

    def _step(self, stored: Stored, status: Status) -> Stored:
        seen = self.world.seen(stored, status)
        record = lifecycle.advance(stored.job, stored.record, seen, time.time())
        saved = self._save(stored, record)
        if saved is None:
            return stored  # its user was quicker: the next round sees to it
        for action in due(saved.record, seen):
            self.world.do(action, saved)
        if saved.job.live and saved.record.state is State.RUNNING:
            self.world.tell_size(saved)
        return self._note_progress(saved)

    def _act(self, stored: Stored, status: Status) -> None:
        for action in due(stored.record, self.world.seen(stored, status)):
            self.world.do(action, stored)

    def _decide(self, jobs: list[Stored]) -> None:
        status = self.world.status()  # with what the deeds have changed
        for stored, record in self._scheduler.changes(jobs, status, time.time()):
            self._save(stored, record)

    def _save(self, stored: Stored, record: Record) -> Stored | None:
        saved = self.store.save(stored, record)
        if saved is not None and record.state is not stored.record.state:
            self.say(f"{stored.job}: {record.state}: {record.reason}")
            if record.state.final:
                self.world.forget(stored.job.number)
            self.wake()
        return saved

    def _left_over(self, jobs: list[Stored], status: Status) -> list[Stored]:
        """Jobs that are over and for which something is still held."""
        numbers = {int(match[1]) for one in status.grants if (match := _OURS.fullmatch(one.name))}
        numbers -= {stored.job.number for stored in jobs}
        found = (self.store.find(str(number)) for number in sorted(numbers))
        return [stored for stored in found if stored is not None and stored.record.state.final]

    def _note_progress(self, stored: Stored) -> Stored:
        """What rank 0 reports, a few times a minute."""
        record, number = stored.record, stored.job.number
        if not record.slots or time.monotonic() - self._noted.get(number, 0.0) < PROGRESS_SECONDS:
            return stored
        folder = SlotFolder(self.place.job(number) / str(record.slots[0]))
        words = read(folder.worker / "report")
        if words is None or all(words.get(key) == stored.progress.get(key) for key in REPORTED):
            return stored
        self._noted[number] = time.monotonic()
        progress = noted(stored.progress, words, record.slots[0].generation)
        speed, size = progress["samples_per_second"], _size(stored, words)
        speeds = stored.speeds
        if isinstance(speed, int | float) and isinstance(size, int) and plausible(size, speed):
            speeds = {**speeds, size: float(speed)}
        self.store.note_progress(number, progress, speeds)
        return replace(stored, progress=progress, speeds=speeds)

    def _check_it_could_run(self, job: Job) -> None:
        """Whether the machine could hold its least size, if nothing else ran."""
        status = self.world.status()
        plan = Plan.of_empty(status)
        try:
            plan.put(job.request, job.sizes.least)
        except NoRoomError as error:
            if job.sizes.least == 1:
                raise
            most = next(
                count
                for count in reversed(range(job.sizes.least))
                if plan.holds(job.request, count)
            )
            raise NoRoomError(
                f"{job.sizes.least} workers of {_words(job)} each do not fit this machine: at most"
                f" {most} do",
                "Ask for fewer with --workers, or for less with --gpus and --memory.",
            ) from error


def _size(stored: Stored, report: dict[str, Any]) -> object:
    """How many workers had the speed of a report. Under torchrun a worker counts processes."""
    return report.get("size") if stored.job.live else len(stored.record.slots)


def _words(job: Job) -> str:
    request = job.request
    part = "whole" if request.memory is None else f"{request.memory} of each"
    return f"{request.gpus} GPU{'s' if request.gpus > 1 else ''} ({part})"
