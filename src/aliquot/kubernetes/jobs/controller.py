"""The controller of elastic jobs. Only the leading replica runs it.

`round` takes every unfinished job through one step:

1. Observe: read the job's pods, gangs and saved state.
2. Step: compute the state that follows (`step.advance`).
3. Write that state into the job's status.
4. Apply: carry out the actions that are due (`apply`).

`decide` runs concurrently with the rounds and chooses sizes: it observes all jobs, decides, and
writes the changed states. The next rounds carry them out.

The controller may end between any two requests. What it did not write did not happen; the next
leader continues from what it wrote. Watches lag behind, so the controller remembers the objects it
wrote and uses whichever version is newer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.elasticjob import JOBS, ElasticJobStatus
from aliquot.kubernetes.api.names import SCHEDULER
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import GangKey
from aliquot.kubernetes.cluster.snapshot import as_one
from aliquot.kubernetes.cluster.workloads import single_name
from aliquot.kubernetes.jobs.apply import JobApplier, JobContext, check_lead
from aliquot.kubernetes.jobs.codec import decode_state
from aliquot.kubernetes.jobs.manifests import gang_name
from aliquot.kubernetes.jobs.observe import observe_job, slot_of
from aliquot.kubernetes.jobs.sizes import Candidate, Sizer
from aliquot.kubernetes.jobs.spec import parse_job, worker_pod, worker_requests
from aliquot.kubernetes.jobs.step import (
    StepInput,
    advance,
    invalid_status,
    no_capacity,
    problem_in,
    start_overdue,
    status_of,
)
from aliquot.model import lifecycle
from aliquot.model.actions import due_actions
from aliquot.model.errors import AliquotError, InvalidValueError, StateError
from aliquot.model.job import JobPhase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.elasticjob import ElasticJob, JobPod
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.jobs.allocations import JobAllocations
    from aliquot.kubernetes.jobs.sizes import SizeChange
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState
    from aliquot.placement.elastic.resize import Rules

    Name = tuple[str, str]  # namespace and name, or UID
    Step = Callable[[ElasticJob, Mapping[str, JobPod]], Awaitable[None]]

MADE_SECONDS = 10.0  # after this a created pod that no watch reported does not exist
REFUSED_SECONDS = 30.0  # before retrying what the API server refused
SIZE_LIMIT_SECONDS = 300.0  # before retrying a size that failed; doubles each time
DOUBLINGS = 8
FINAL = {phase for phase in JobPhase if phase.final}
WARNING_PHASES = {JobPhase.FAILED}
STEADY = {JobPhase.RUNNING, JobPhase.SUSPENDED}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WatchedObjects:
    """The objects as the watches last reported them."""

    jobs: Callable[[], Mapping[Name, ElasticJob]]
    pods: Callable[[], Mapping[Name, JobPod]]
    gangs: Callable[[], Mapping[Name, GangObject]]


@dataclass(frozen=True, slots=True)
class _Attempts:
    """What this replica learned from starting a job. It is not saved: a new leader learns it again.

    - `refused`: the generation whose pods the API server refused, and why.
    - `not_before`: when to retry after that.
    - `size_limit`: the largest size to try, and until when.
    - `failures`: the last generation whose size failed, and how many failed in a row.
    - `error`: the last error, to log it only once.
    """

    refused: tuple[int, str] | None = None
    not_before: float = 0.0
    size_limit: tuple[int, float] | None = None
    failures: tuple[int, int] = 0, 0
    error: str = ""

    def after_failed_size(self, job: Job, state: JobState, now: float) -> _Attempts:
        """Limit the size below the one that failed, longer after each failure in a row."""
        generation, failures = self.failures
        below = job.sizes.below(state.size)
        if below is None or generation == state.generation:
            return self
        until = now + SIZE_LIMIT_SECONDS * 2.0 ** min(failures, DOUBLINGS)
        return replace(self, size_limit=(below, until), failures=(state.generation, failures + 1))

    def after_refusal(self, job: Job, state: JobState, why: str, now: float) -> _Attempts:
        """The API server refused the pods of this generation."""
        limited = self.after_failed_size(job, state, now)
        return replace(limited, refused=(state.generation, why), not_before=now + REFUSED_SECONDS)

    def after_running(self, size: int) -> _Attempts:
        """A size above the limit runs: the limit and the failures are forgotten."""
        if self.size_limit is None or size <= self.size_limit[0]:
            return self
        return replace(self, size_limit=None, failures=(0, 0))


@dataclass
class Controller:
    """Runs all elastic jobs of a cluster."""

    client: Client
    watched: WatchedObjects
    allocations: JobAllocations
    rules: Rules
    recorder: Recorder | None = None
    scheduler: str = SCHEDULER
    now: Callable[[], float] = time.time
    may: Callable[[], bool] = lambda: True
    _written: dict[str, ElasticJob] = field(default_factory=dict)
    _created: dict[Name, tuple[JobPod, float]] = field(default_factory=dict)
    _attempts: dict[str, _Attempts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._applier = JobApplier(self.client, self._remember_created, self.scheduler, self.may)
        self._sizer = Sizer(self.allocations, self.rules)

    def counts(self) -> Counter[str]:
        """How many jobs are in each phase."""
        return Counter(one.status.phase for one in self.watched.jobs().values())

    async def round(self) -> bool:
        """Take every job through one step; whether a change is under way."""
        jobs, pods = self._jobs(), self._pods()
        finished = [(one, pods[_home(one)]) for one in self._jobs(finished=True)]
        self._applier.forget(
            {one.metadata.uid for one in jobs},
            {pod.metadata.uid for mine in pods.values() for pod in mine.values()},
        )
        await asyncio.gather(
            *(self._try(self._step, one, pods[_home(one)]) for one in jobs),
            *(
                self._try(self._clean_up, one, mine)
                for one, mine in finished
                if any(not pod.ended for pod in mine.values())
            ),
        )
        return any(one.status.phase not in STEADY for one in self._jobs())

    # --- observe ---

    def _jobs(self, *, finished: bool = False) -> list[ElasticJob]:
        """The unfinished or the finished jobs, each in its newest known version."""
        watched = {one.metadata.uid: one for one in self.watched.jobs().values()}
        self._written = {uid: one for uid, one in self._written.items() if uid in watched}
        self._attempts = {uid: one for uid, one in self._attempts.items() if uid in watched}
        newest = [_newer(one, self._written.get(uid)) for uid, one in watched.items()]
        return [
            one
            for one in newest
            if (one.status.phase in FINAL) == finished and not one.metadata.deletion_timestamp
        ]

    def _pods(self) -> defaultdict[Name, dict[str, JobPod]]:
        """The pods of each job, by the job's namespace and UID, then by pod name."""
        watched, now = self.watched.pods(), self.now()
        self._created = {
            key: (pod, at)
            for key, (pod, at) in self._created.items()
            if key not in watched and now - at < MADE_SECONDS
        }
        every = {**watched, **{key: pod for key, (pod, _) in self._created.items()}}
        found: defaultdict[Name, dict[str, JobPod]] = defaultdict(dict)
        for pod in every.values():
            for owner in pod.metadata.owner_references:
                if owner.controller and slot_of(pod) is not None:
                    found[pod.metadata.namespace, owner.uid][pod.metadata.name] = pod
        return found

    def _remember_created(self, pod: JobPod) -> None:
        self._created[pod.metadata.namespace, pod.metadata.name] = pod, self.now()

    def _attempts_of(self, one: ElasticJob) -> _Attempts:
        return self._attempts.get(one.metadata.uid, _Attempts())

    # --- one job ---

    async def _try(self, step: Step, one: ElasticJob, pods: Mapping[str, JobPod]) -> None:
        """Run a job's step. An error does not stop the other jobs; the next round retries."""
        try:
            await step(one, pods)
            error = ""
        except AliquotError as failure:
            error = failure.message
            if self._attempts_of(one).error != error:
                _log.warning("step failed; will retry", job=str(one), why=error)
        except Exception:  # noqa: BLE001 - as above, for unforeseen errors
            _log.exception("step failed; will retry", job=str(one))
            return
        self._attempts[one.metadata.uid] = replace(self._attempts_of(one), error=error)

    async def _step(self, one: ElasticJob, pods: Mapping[str, JobPod]) -> None:
        try:
            saved, job = decode_state(one.status.controller_state, self.now()), parse_job(one)
        except (InvalidValueError, StateError) as error:
            await self._write(one, invalid_status(one.status, _sentence(error), self.now()))
            return
        # 1. Observe.
        given = self._step_input(one, job, saved.state, pods)
        self._learn_from_start(one, given, saved.state)
        # 2. Step.
        saved, observed = advance(given, saved, self.now())
        # 3. Write.
        written = await self._write(one, status_of(one, given, saved, self.now()))
        if written is None:
            return  # the object has changed: the next round reads it again
        # 4. Apply.
        context = JobContext(written, job, saved.state, pods, self.now())
        refused = await self._applier.apply(context, due_actions(saved.state, observed))
        if refused is not None:
            attempts = self._attempts_of(one)
            self._attempts[one.metadata.uid] = attempts.after_refusal(
                job, saved.state, refused, self.now()
            )

    async def _clean_up(self, one: ElasticJob, pods: Mapping[str, JobPod]) -> None:
        """Stop the workers that a finished job still has."""
        saved = decode_state(one.status.controller_state, self.now())
        if not saved.state.phase.final:
            return  # somebody else wrote the phase
        context = JobContext(one, parse_job(one), saved.state, pods, self.now())
        observed = observe_job(saved, pods.values(), None)
        await self._applier.apply(context, due_actions(saved.state, observed))

    def _step_input(
        self, one: ElasticJob, job: Job, state: JobState, pods: Mapping[str, JobPod]
    ) -> StepInput:
        refused = None
        attempts = self._attempts_of(one)
        if attempts.refused is not None and attempts.refused[0] == state.generation:
            refused = attempts.refused[1]
        name = gang_name(one.metadata.name, state.generation)
        gang = self.watched.gangs().get((one.metadata.namespace, name))
        return StepInput(
            job=job,
            suspend=one.spec.suspend,
            pods=list(pods.values()),
            gang=gang.status if gang is not None else None,
            refused=refused,
            problem=self._problem(one) or (refused or ""),
            evictions=dict(self._evictions(one, state)),
        )

    def _evictions(
        self, one: ElasticJob, state: JobState
    ) -> Iterator[tuple[int, tuple[str, float]]]:
        """The generations that the scheduler is going to evict, each with why and when."""
        gangs = self.watched.gangs()
        for generation in {slot.generation for slot in state.slots}:
            name = gang_name(one.metadata.name, generation)
            gang = gangs.get((one.metadata.namespace, name))
            until = seconds_at(gang.status.eviction_time) if gang is not None else None
            if gang is not None and until is not None:
                yield generation, (gang.status.eviction_reason, until)

    def _problem(self, one: ElasticJob) -> str:
        """Why its spec cannot be started; empty if it can."""
        try:
            pod = worker_pod(one)
            as_one(worker_requests(pod, self.allocations.presets))
        except (InvalidValueError, InvalidRequestError) as error:
            return _sentence(error)
        return self.allocations.queues.refusal_of(pod)

    def _learn_from_start(self, one: ElasticJob, given: StepInput, state: JobState) -> None:
        """Note whether the size that was tried could start."""
        attempts, now = self._attempts_of(one), self.now()
        if (
            no_capacity(given, state, now) is not None
            or start_overdue(given, state, now) is not None
        ):
            attempts = attempts.after_failed_size(given.job, state, now)
        elif state.phase is JobPhase.RUNNING:
            attempts = attempts.after_running(state.size)
        self._attempts[one.metadata.uid] = attempts

    async def _write(self, one: ElasticJob, status: ElasticJobStatus) -> ElasticJob | None:
        """The job with this status; None if the object has changed since it was read."""
        if status == one.status:
            return one
        check_lead(self.may)
        namespace, name = one.key
        version = {"resourceVersion": one.metadata.resource_version}
        patch = {"metadata": version, "status": msgspec.to_builtins(status)}
        try:
            written = await self.client.patch(JOBS, name, patch, namespace=namespace, sub="status")
        except ApiError as error:
            if error.conflict or error.not_found:
                return None
            raise
        self._written[written.metadata.uid] = written
        self._record_events(written, one.status, status)
        return written

    def _record_events(
        self, one: ElasticJob, before: ElasticJobStatus, after: ElasticJobStatus
    ) -> None:
        """Record an event for a new problem and for a new phase, but not the same text twice."""
        problem = problem_in(after)
        if problem and problem != problem_in(before):
            self._record_event(one, "Refused", problem, warning=True)
        if after.phase != before.phase and after.reason != problem:
            warning = after.phase in WARNING_PHASES
            self._record_event(one, after.phase, after.reason, warning=warning)

    def _record_event(self, one: ElasticJob, reason: str, text: str, *, warning: bool) -> None:
        _log.info("job", job=str(one), now=reason, why=text)
        if self.recorder is not None:
            self.recorder.record(JOBS, one, "Warning" if warning else "Normal", reason, text)

    # --- sizes of all jobs ---

    async def decide(self) -> None:
        """Decide which jobs start, grow and shrink, and write the changed states."""
        # 1. Observe.
        jobs = {f"job {one}": one for one in self._jobs()}
        pods = self._pods()
        candidates = [
            found
            for name, one in jobs.items()
            if (found := self._candidate(name, one, pods[_home(one)])) is not None
        ]
        if not candidates:
            return
        gangs = list(self.watched.gangs().values())
        self.allocations.count_reserved(gangs)
        # 2. Decide.
        changes = await self._sizer.changes(candidates, gangs, self.now())
        # 3. Write.
        for change in changes:
            await self._change_size(jobs[change.name], change)

    def _candidate(
        self, name: str, one: ElasticJob, pods: Mapping[str, JobPod]
    ) -> Candidate | None:
        attempts, now = self._attempts_of(one), self.now()
        try:
            job, pod = parse_job(one), worker_pod(one)
            requests = worker_requests(pod, self.allocations.presets)
            as_one(requests)
            saved = decode_state(one.status.controller_state, now)
        except (InvalidValueError, InvalidRequestError, StateError):
            return None
        state, limit = saved.state, attempts.size_limit
        if not one.status.controller_state or self._must_wait(one, state):
            return None
        gang = GangKey(one.metadata.namespace, gang_name(one.metadata.name, state.generation))
        found = self.watched.gangs().get((gang.namespace, gang.name))
        workers = sorted(pods.values(), key=lambda each: (slot_of(each) or (0, 0))[1])
        return Candidate(
            name=name,
            job=job,
            saved=saved,
            pod=pod,
            requests=requests,
            workers=tuple(map(single_name, workers)),
            gang=gang,
            gang_status=found.status if found is not None else None,
            priority=max((each.spec.priority or 0 for each in workers), default=0),
            size_limit=limit[0] if limit and limit[1] > now else None,
        )

    def _must_wait(self, one: ElasticJob, state: JobState) -> bool:
        """Whether a job gets no other size now: also while new workers could not start."""
        paused = state.phase.inactive and self._attempts_of(one).not_before > self.now()
        return paused or bool(self._problem(one))

    async def _change_size(self, one: ElasticJob, change: SizeChange) -> None:
        """Start or resize a job, unless it has changed since the decision."""
        saved, job = decode_state(one.status.controller_state, self.now()), parse_job(one)
        state, now = saved.state, self.now()
        if state.phase is JobPhase.PENDING:
            changed = lifecycle.start(job, state, change.generation, change.size, now)
            if changed != state and change.why:
                changed = replace(changed, reason=change.why)
        else:
            changed = lifecycle.resize(job, state, change.generation, change.size, now, change.why)
        if changed == state:
            return
        pods = self._pods()[_home(one)]
        saved = msgspec.structs.replace(saved, state=changed)
        given = replace(self._step_input(one, job, changed, pods), refused=None, gang=None)
        try:
            await self._write(one, status_of(one, given, saved, now))
        except (ApiError, StateError) as error:
            _log.warning("size was not changed", job=str(one), why=error.message)


def _home(one: ElasticJob) -> Name:
    return one.metadata.namespace, one.metadata.uid


def _newer(watched: ElasticJob, written: ElasticJob | None) -> ElasticJob:
    if written is None:
        return watched
    ours, theirs = written.metadata.resource_version, watched.metadata.resource_version
    newer = ours.isdecimal() and theirs.isdecimal() and int(ours) > int(theirs)
    return written if newer else watched


def _sentence(error: AliquotError) -> str:
    return f"{error.message}. {error.hint}" if error.hint else error.message
