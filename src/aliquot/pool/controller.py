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

import math
import os
import re
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aliquot.model import Life, format_duration, lifecycle
from aliquot.model.actions import due_actions
from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    NoSuchJobError,
)
from aliquot.model.job import Desired, JobPhase
from aliquot.model.job_state import JobState
from aliquot.placement.elastic.job import plausible
from aliquot.placement.queues.quota import Bound
from aliquot.pool.access import Access, RefusedError, parse_wanted
from aliquot.pool.arbiter_limits import publish_limits, republish_limits
from aliquot.pool.capacity import held_gpus
from aliquot.pool.decision_names import run_name, scheduled_name
from aliquot.pool.forgetting import Forgetting
from aliquot.pool.holds import held as held_jobs
from aliquot.pool.idle import idle_names
from aliquot.pool.index import JobIndex
from aliquot.pool.new_jobs import NewJobs
from aliquot.pool.parked_jobs import ParkedJobs
from aliquot.pool.past_use import PastUses
from aliquot.pool.peers import group_ids, groups_of
from aliquot.pool.progress import REPORTED, updated_progress
from aliquot.pool.retention import Retention
from aliquot.pool.runs import RunRequest
from aliquot.pool.schedule import PoolScheduler, UserShares
from aliquot.pool.slots import SlotFolder
from aliquot.pool.what_if import Inputs, answer
from aliquot.pool.worker_files import read_report
from aliquot.pool.workers import grants_of
from aliquot.slices import control

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aliquot.model.job import JobChange
    from aliquot.model.owner import Owner
    from aliquot.placement.elastic.resize import Rules
    from aliquot.pool.access import Caller
    from aliquot.pool.admission import RunAdmission
    from aliquot.pool.directory import PoolDirectory
    from aliquot.pool.encoding import Submission
    from aliquot.pool.peers import Peer
    from aliquot.pool.policy import PolicyFile, UserQuota
    from aliquot.pool.runs import Waiting
    from aliquot.pool.store import JobStore, StoredJob
    from aliquot.pool.what_if import Question
    from aliquot.pool.workers import LocalWorkers
    from aliquot.slices.arbiter_status import Status

BUSY_SECONDS = 0.1  # between two rounds while a change is under way
CALM_SECONDS = 0.5
RETRY_SECONDS = 1.0
PROGRESS_SECONDS = 2.0
PRUNE_SECONDS = 600.0
GROUP_SECONDS = 60.0  # until a change of a group's members counts

_GRANT_NAME = re.compile(r".+\.(\d+)\.\d+\.\d+", re.ASCII)


class RefusedRequestError(AliquotError):
    """The job is in a phase in which this is impossible."""


@dataclass
class PoolController:
    """Runs all jobs of one machine."""

    directory: PoolDirectory
    store: JobStore
    workers: LocalWorkers
    rules: Rules
    policies: PolicyFile
    say: Callable[[str], None]
    runs: RunAdmission | None = None
    _woken: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _progress_saved: dict[int, float] = field(default_factory=dict)
    _errors: dict[int, str] = field(default_factory=dict)
    _publish_policy: bool = False
    status: Status | None = None  # the arbiter's, in the last round
    _final: dict[int, JobPhase] = field(default_factory=dict)
    _prune_at: float = 0.0
    _groups_at: float = 0.0
    _submitting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.workers.on_change = self.wake
        self._scheduler = PoolScheduler(self.rules)
        self._past_use = PastUses(self.store)
        self._parked = ParkedJobs()
        self._new_jobs = NewJobs(
            self.store, self.workers, self.policies, self._quota_of, self.members
        )
        self._index = JobIndex(self.directory.path, self.store, self.say)
        self._forgetting = Forgetting(self.directory, self.store, self._index, self.say)
        self._use_policy()

    # --- operations of the API ---

    def admit(self, peer: Peer) -> Caller:
        """The caller behind a connection, by the rules of now; RefusedError if it may not ask."""
        return self.access.admit(peer)

    def admit_run(self, peer: Peer, queue: str) -> None:
        """Raise RefusedError or InvalidValueError if this peer may not ask in this queue."""
        self._new_jobs.check_queue(self.admit(peer), queue)

    def submit(
        self,
        caller: Caller,
        submission: Submission,
        indices: Sequence[int] | None = None,
        at_once: int | None = None,
        *,
        joins: bool = False,
    ) -> list[StoredJob]:
        """Add a job, or the jobs of an array with these indices; refuse what could never run.

        `joins`: an array of that name with unfinished jobs gets these in place of finished ones.
        """
        now = time.time()
        job = replace(submission.job, submitted=now, array=None)
        job = replace(job, after=self._new_jobs.numbered(caller, job.after))
        self._new_jobs.check_queue(caller, job.queue)
        self._new_jobs.check_stops_in_time(submission)
        job = self._new_jobs.with_named_gpus(job)
        asked, job = job.request, self._new_jobs.with_swap_default(job)
        self._new_jobs.check_fits_empty_machine(job, submission.owner)
        with self._submitting:  # two at once would get one name, or pass a limit together
            made = self._new_jobs.made(replace(submission, job=job), indices, at_once, joins=joins)
            added = self.store.add_all(made, JobState(since=now))
            if job.request.swap_options != asked.swap_options:
                for one in added:
                    why = f"by default of queue {job.queue} it has {job.request.swap_options}"
                    self.store.add_event(one.job.number, one.state, why)
        self.wake()
        return added

    def request(self, caller: Caller, wanted: str, desired: Desired) -> tuple[StoredJob, str]:
        """Request that a job runs, is suspended or is cancelled; and what that does."""
        while True:
            stored = self.find(caller, wanted)
            if (already := _already(stored, desired)) is not None:
                return stored, already
            saved = self.store.save(stored, lifecycle.set_desired(stored.state, desired))
            if saved is not None:
                self.wake()
                return saved, _DOING[desired]

    def update(self, caller: Caller, wanted: str, change: JobChange) -> StoredJob:
        """Change a job. What its workers have cannot change while it has some."""
        while True:
            stored = self.find(caller, wanted)
            job, state = stored.job, stored.state
            if state.phase.final:
                raise RefusedRequestError(
                    f"job {job} cannot change: it is {state.phase}",
                    f"Submit it again with: aliquot resubmit {job.number}",
                )
            if state.slots and (fixed := change.needs_waiting):
                raise RefusedRequestError(
                    f"{', '.join(fixed)} cannot change while job {job} has workers:"
                    f" it is {state.phase}",
                    "Change it while it waits. A grant of a running job: aliquot resize",
                )
            after = change.apply(job)
            if after.time_seconds is not None and after.time_seconds <= state.used(time.time()):
                used = format_duration(state.used(time.time()))
                limit = format_duration(after.time_seconds)
                raise InvalidValueError(
                    f"job {job} cannot have the time limit {limit}: it has already run for {used}",
                    "Give more with --time, or end it with: aliquot cancel",
                )
            self._new_jobs.check_queue(caller, after.queue)
            self._new_jobs.check_fits_empty_machine(after, stored.owner)
            if after == job:
                return stored
            saved = self.store.update(stored, after, f"changed by {caller.owner.name}")
            if saved is not None:
                self.wake()
                return saved

    def prune(self, caller: Caller, seconds: float) -> list[int]:
        """Forget the caller's jobs that finished longer ago than that; their numbers.

        For an admin, those of all users.
        """
        uid = None if caller.admin else caller.owner.uid
        return self._forgetting.forget(Retention(seconds=seconds), uid)

    def what_if(self, caller: Caller, question: Question) -> dict[str, Any]:
        """What would be decided now if something were different; nothing is changed."""
        self._new_jobs.check_queue(caller, question.queue)
        status = self.workers.arbiter_status()
        jobs = [one for one in self.store.all(unfinished=True) if not one.state.phase.final]
        phases = {one.job.number: one.state.phase for one in jobs}
        holds = held_jobs(jobs, lambda number: phases.get(number) or self._phase_of(number))
        runs = [] if self.runs is None else self.runs.accepted()
        owners = {stored.owner for stored in jobs} | {run.owner for run in runs}
        shares = self._shares(owners | {caller.owner})
        held = {number: hold.why for number, hold in holds.items()}
        charged = [] if self.runs is None else self.runs.charged(status, forget=False)
        inputs = Inputs(jobs, status, time.time(), shares, runs, held, charged)
        return answer(question, inputs, self._scheduler, caller)

    def jobs(
        self, caller: Caller, *, unfinished: bool = False, finished_since: float | None = None
    ) -> list[StoredJob]:
        """The jobs in the caller's list: own ones, and unfinished ones of others."""
        if unfinished or caller.admin:
            return self.store.all(unfinished=unfinished, finished_since=finished_since)
        own = self.store.all(of_user=caller.owner.uid, finished_since=finished_since)
        if finished_since is None:
            return own
        others = self.store.all(unfinished=True)
        more = [one for one in others if one.owner.uid != caller.owner.uid]
        return sorted([*own, *more], key=lambda one: one.job.number)

    def waiting_runs(self, caller: Caller, *, own: bool = False) -> list[RunRequest]:
        """The commands of `aliquot run --wait` in the caller's list; `own`: no other users'.

        An admin's list has those of all.
        """
        found = [] if self.runs is None else self.runs.waiting()
        return [run for run in found if not own or caller.may_see(run.owner)]

    def runs_named(self, caller: Caller, wanted: str) -> list[RunRequest]:
        """The waiting commands of that name that the caller may see and cancel."""
        key = parse_wanted(wanted)
        if key.number is not None or not caller.may_name(key):
            return []
        users = {caller.owner.name} if key.user is None else {key.user}
        return [
            run
            for run in self.waiting_runs(caller, own=True)
            if run.shown_name == key.name and users & {run.owner.name, str(run.owner.uid)}
        ]

    def cancel_runs(self, caller: Caller, wanted: str) -> list[RunRequest]:
        """End the wait of the commands of that name; those that were ended."""
        found = self.runs_named(caller, wanted)
        if self.runs is None or not found:
            raise NoSuchJobError(
                f"no such command: {wanted}", "List those that wait with: aliquot jobs"
            )
        ended = [run for run in found if self.runs.desk.cancel(run, caller.owner.name)]
        if not ended:
            raise RefusedRequestError(
                f"command {wanted} does not wait any more: it starts now or has ended",
                f"If it runs, end it with: aliquot kill {found[0].shown_name}",
            )
        return ended

    def members(self, caller: Caller, wanted: str) -> list[StoredJob]:
        """The job of that name or number, or the jobs of the array of that name."""
        try:
            return [self.find(caller, wanted)]
        except NoSuchJobError:
            key = parse_wanted(wanted)
            if not caller.may_name(key):
                raise
            if key.user is None:
                found = self.store.array(caller.owner.uid, key.name)
            else:
                found = self.store.array_of(key.user, key.name)
            if found and all(caller.may_see(one.owner) for one in found):
                return found
            raise

    def find(self, caller: Caller, wanted: str) -> StoredJob:
        """A job that the caller may see and change."""
        key = parse_wanted(wanted)
        if not caller.may_name(key):  # a search takes longer if it finds something
            stored = None
        elif key.number is not None:
            stored = self.store.numbered(key.number)
        elif key.user is None:
            stored = self.store.named(caller.owner.uid, key.name)
        else:
            stored = self.store.named_of(key.user, key.name)
        if stored is not None and caller.may_see(stored.owner):
            return stored
        if stored is not None and key.number is not None and not stored.state.phase.final:
            raise RefusedError(
                f"job {key.number} belongs to {stored.owner}",
                f"Only {stored.owner} and admins may see or change it.",
            )
        if self.runs_named(caller, wanted):
            raise NoSuchJobError(
                f"{wanted} is no job, but a command of aliquot run that waits",
                f"See it with: aliquot jobs {wanted}, or end it with: aliquot cancel {wanted}",
            )
        raise NoSuchJobError(f"no such job: {wanted}", self._namesakes(caller, key.name))

    def _namesakes(self, caller: Caller, name: str) -> str:
        """What to do about a name that is no job of the caller's."""
        if caller.admin and name:
            runs = self.waiting_runs(caller)
            commands = {run.owner.name for run in runs if run.shown_name == name}
            if users := sorted({*self.store.users_with(name), *commands}):
                return f"Choose one of {', '.join(f'{user}:{name}' for user in users)}."
        return "List all jobs with: aliquot jobs --all"

    def why_waiting(self, stored: StoredJob) -> str | None:
        """Why a job waits; None if it does not."""
        state = stored.state
        if state.phase is not JobPhase.PENDING:
            return None
        left = state.not_before - time.time()
        if left > 0:
            return f"{state.reason}; starts again in {left:.0f} s"
        return self._scheduler.waiting.get(scheduled_name(stored), state.reason)

    def place_of(self, one: StoredJob | RunRequest) -> Waiting | None:
        """The place of a job or command among all that wait; None if it does not wait."""
        if isinstance(one, RunRequest):
            return self._scheduler.waiting_of(run_name(one))
        if one.state.phase is not JobPhase.PENDING:
            return None
        return self._scheduler.waiting_of(scheduled_name(one))

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
            except Exception as error:  # noqa: BLE001 - the pool serves all users, whatever one does
                if str(error) != last_error:
                    self.say(f"will retry: {_explain(error)}")
                last_error, pause = str(error), RETRY_SECONDS
            self._woken.wait(pause)

    def round(self) -> bool:
        """Take every job through one step and decide sizes; whether a change is under way."""
        self.workers.reap()
        if self.policies.refresh(self.say):
            self._use_policy()
        self._prune()
        jobs = self.store.all(unfinished=True)
        self._index.include(jobs)  # before their workers start
        status = self.workers.arbiter_status()
        if self._publish_policy:
            problem = publish_limits(self.directory.state.directory, self.policies.policy)
            self._publish_policy = False  # if the arbiter did not answer, the next round retries
            if problem:
                self.say(problem)
        self._follow_groups()
        self._count_use(jobs, status)
        for stored in self._leftovers(jobs, status):
            self._try(stored, lambda one: self._clean_up(one, status))
        runs = [] if self.runs is None else self.runs.requests(status)
        if not jobs and not runs:
            return False
        # Those that may use few GPUs reserve theirs first, as the scheduler has planned it.
        by_choice = sorted(jobs, key=lambda one: _choice(one, status))
        stepped = {
            stored.job.number: self._try(stored, lambda one: self._step(one, status))
            for stored in by_choice
        }
        jobs = [one for job in jobs if not (one := stepped[job.job.number]).state.phase.final]
        jobs, holds = self._without_abandoned(jobs)
        self._decide(jobs, runs, holds)
        return any(
            stored.state.phase is not JobPhase.RUNNING and not stored.state.phase.inactive
            for stored in jobs
        )

    def _try(self, stored: StoredJob, step: Callable[[StoredJob], StoredJob]) -> StoredJob:
        """Run a job's step. An error does not stop the other jobs; the next round retries."""
        try:
            stored = step(stored)
            self._errors.pop(stored.job.number, None)
        except Exception as error:  # noqa: BLE001 - a defect that one job meets is that job's alone
            if self._errors.get(stored.job.number) != str(error):
                self.say(f"{stored.job}: will retry: {_explain(error)}")
            self._errors[stored.job.number] = str(error)
        return stored

    def _step(self, stored: StoredJob, status: Status) -> StoredJob:
        # 1. Observe.
        observed = self.workers.observe(stored, status)
        # 2. Step.
        job, now = stored.job, time.time()
        state = lifecycle.advance(job, stored.state, observed, now)
        rule = self.policies.policy.idle_rules.get(job.queue)
        state = lifecycle.follow_idle(job, state, observed.idle_seconds, rule, now)
        # 3. Write.
        saved = self._save(stored, state)
        if saved is None:
            return stored  # its user changed it: the next round reads it again
        if saved.state.phase is JobPhase.RUNNING:
            for reason in self._parked.changes(saved, status):
                self.store.add_event(saved.job.number, saved.state, reason)
        # 4. Apply.
        for action in due_actions(saved.state, observed):
            self.workers.apply(action, saved)
        if saved.job.live and saved.state.phase is JobPhase.RUNNING:
            self.workers.announce_size(saved)
        return self._save_progress(saved)

    def _clean_up(self, stored: StoredJob, status: Status) -> StoredJob:
        for action in due_actions(stored.state, self.workers.observe(stored, status)):
            self.workers.apply(action, stored)
        return stored

    def _without_abandoned(self, jobs: list[StoredJob]) -> tuple[list[StoredJob], dict[int, str]]:
        """The jobs without those that can never start, which are cancelled; and what is held."""
        phases = {stored.job.number: stored.state.phase for stored in jobs}
        holds = held_jobs(jobs, lambda number: phases.get(number) or self._phase_of(number))
        left = []
        for stored in jobs:
            hold = holds.get(stored.job.number)
            if hold is not None and hold.never:
                self._save(stored, lifecycle.abandon(stored.state, time.time(), hold.why))
            else:
                left.append(stored)
        return left, {number: hold.why for number, hold in holds.items() if not hold.never}

    def _phase_of(self, number: int) -> JobPhase | None:
        """The phase of a job. A final phase never changes."""
        phase = self._final.get(number) or self.store.phase_of(number)
        if phase is not None and phase.final:
            self._final[number] = phase
        return phase

    def _decide(
        self, jobs: list[StoredJob], runs: list[RunRequest], holds: Mapping[int, str]
    ) -> None:
        self.status = self.workers.arbiter_status()  # the actions have changed it
        owners = {stored.owner for stored in jobs} | {run.owner for run in runs}
        shares = self._shares(owners)
        now = time.time()
        charged = [] if self.runs is None else self.runs.charged(self.status)
        changes = self._scheduler.changes(jobs, self.status, now, shares, runs, holds, charged)
        for stored, state in changes:
            self._save(stored, state)
        if self.runs is not None:
            self.runs.apply(self._scheduler, runs)
        if self._scheduler.wanted:
            control.want(self.directory.state.directory, self._scheduler.wanted)

    def _shares(self, owners: Collection[Owner]) -> UserShares:
        return UserShares(
            self.policies.policy.queues,
            {owner.name: self._past_use.of(owner.uid) for owner in owners},
            {one.name: bound for one in owners if (bound := self._quota_of(one).bound) != Bound()},
        )

    def _use_policy(self) -> None:
        """Follow another policy from now on."""
        policy = self.policies.policy
        self.access = Access(os.geteuid(), group_ids(*policy.admin_groups))
        self._publish_policy = self.directory.shared and self.policies.path is not None
        self.workers.limit_processes(policy.worker_processes)

    def _follow_groups(self) -> None:
        """Tell the arbiter now and then who is in the groups; their server may answer slowly."""
        shared = self.directory.shared and self.policies.path is not None
        if not shared or not self.policies.policy.groups or time.monotonic() < self._groups_at:
            return
        self._groups_at = time.monotonic() + GROUP_SECONDS
        threading.Thread(target=self._try_follow_groups, daemon=True).start()

    def _try_follow_groups(self) -> None:
        try:
            republish_limits(self.directory.state.directory, self.policies.policy)
        except Exception as error:  # noqa: BLE001 - nobody waits for this thread
            self.say(f"will retry to read who is in the groups: {error!r}")

    def _count_use(self, jobs: list[StoredJob], status: Status) -> None:
        """Count what each user has now, by the arbiter's word and not by names of grants."""
        policy = self.policies.policy
        idle = self._idle(jobs, status) if policy.idle_weight != 1 else set[str]()
        held: dict[int, float] = {}
        for grant in status.grants:
            weight = policy.idle_weight if grant.name in idle else 1.0
            gpus = weight * held_gpus(grant, status.gpus)
            held[grant.owner_uid] = held.get(grant.owner_uid, 0.0) + gpus
        self._past_use.count(held, time.time(), policy.half_life_seconds)

    def _idle(self, jobs: list[StoredJob], status: Status) -> set[str]:
        """The names of the grants of jobs and commands that are idle by their queues' rules."""
        rules = self.policies.policy.idle_rules
        workers = (
            (grant, stored.job.queue)
            for stored in jobs
            for grant in grants_of(stored, status).values()
        )
        charged = [] if self.runs is None else self.runs.charged(status)
        return idle_names([*workers, *((one.grant, one.queue) for one in charged)], rules)

    def _prune(self) -> None:
        """Forget what the pool does not keep, now and then; a user's many files take a while."""
        if time.monotonic() < self._prune_at:
            return
        self._prune_at = time.monotonic() + PRUNE_SECONDS
        self._final.clear()  # some of these jobs are forgotten now
        threading.Thread(target=self._forgetting.try_forget, daemon=True).start()

    def _save(self, stored: StoredJob, state: JobState) -> StoredJob | None:
        saved = self.store.save(stored, state)
        if saved is not None and state.idle_reported and state != stored.state:
            self.say(f"{stored.job}: {state.reason}")
        if saved is not None and state.phase is not stored.state.phase:
            self.say(f"{stored.job}: {state.phase}: {state.reason}")
            if state.phase.final:
                self.workers.forget(stored.job.number)
                self._parked.forget(stored.job.number)
            self.wake()
        return saved

    def _leftovers(self, jobs: list[StoredJob], status: Status) -> list[StoredJob]:
        """Finished jobs that still have grants."""
        numbers = {
            int(match[1])
            for one in status.grants
            if one.life is not Life.OWNED  # by a program, which has any name
            and (match := _GRANT_NAME.fullmatch(one.name))
        }
        numbers -= {stored.job.number for stored in jobs}
        found = (self.store.numbered(number) for number in sorted(numbers))
        return [stored for stored in found if stored is not None and stored.state.phase.final]

    def _save_progress(self, stored: StoredJob) -> StoredJob:
        """Save what rank 0 reported, at most every `PROGRESS_SECONDS`."""
        state, number = stored.state, stored.job.number
        since = time.monotonic() - self._progress_saved.get(number, 0.0)
        if not state.slots or since < PROGRESS_SECONDS:
            return stored
        folder = SlotFolder(self.directory.job(number) / str(state.slots[0]))
        if (read := read_report(folder.worker)) is None:
            return stored
        report = asdict(read)
        if all(report[key] == stored.progress.get(key) for key in REPORTED):
            return stored
        self._progress_saved[number] = time.monotonic()
        progress = updated_progress(stored.progress, report, state.slots[0].generation)
        speed, size = progress["samples_per_second"], _size(stored, report)
        speeds = stored.speeds
        if isinstance(speed, int | float) and isinstance(size, int) and plausible(size, speed):
            speeds = {**speeds, size: float(speed)}
        self.store.save_progress(number, progress, speeds)
        return replace(stored, progress=progress, speeds=speeds)

    def _quota_of(self, owner: Owner) -> UserQuota:
        policy = self.policies.policy
        # The server that knows the groups may be slow: it is asked only where groups matter.
        groups = groups_of(owner) if policy.groups else frozenset[str]()
        return policy.quota_of(owner.name, owner.uid, groups)


def _choice(stored: StoredJob, status: Status) -> float:
    """How many GPUs a job may use; infinite if it names none."""
    which = stored.job.request.which
    return sum(which.allows(one.gpu) for one in status.gpus) if which else math.inf


_DOING = {Desired.RUN: "resuming", Desired.SUSPEND: "suspending", Desired.CANCEL: "cancelling"}


def _already(stored: StoredJob, desired: Desired) -> str | None:
    """Why a request changes nothing; None if it does. RefusedRequestError if it is impossible."""
    job, state = stored.job, stored.state
    if desired is Desired.CANCEL:
        if state.phase.final:
            return f"already finished: {state.phase}"
        return "already being cancelled" if state.desired is Desired.CANCEL else None
    verb = "suspended" if desired is Desired.SUSPEND else "resumed"
    if state.phase.final:
        raise RefusedRequestError(
            f"job {job} cannot be {verb}: it is {state.phase}", f"Why it ended: {state.reason}"
        )
    if state.desired is Desired.CANCEL:
        raise RefusedRequestError(
            f"job {job} cannot be {verb}: it is being cancelled",
            f"When it is cancelled, submit it again with: aliquot resubmit {job.number}",
        )
    if state.desired is not desired:
        return None
    if desired is Desired.RUN:
        return f"not suspended: it is {state.phase}"
    return f"already {'suspended' if state.phase is JobPhase.SUSPENDED else 'being suspended'}"


def _size(stored: StoredJob, report: dict[str, Any]) -> object:
    """The number of workers of a report; under torchrun `size` counts processes."""
    return report.get("size") if stored.job.live else len(stored.state.slots)


def _explain(error: Exception) -> str:
    """The message of an error that we raise; of any other one the traceback too."""
    if isinstance(error, AliquotError | OSError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()
