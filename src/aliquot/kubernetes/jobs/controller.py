"""Elastic jobs, again and again: look, write, act, decide. Works in the replica that leads.

Each round takes every job that is not over through one step: what is seen, the record that follows,
written into the job's status before anything is done by it, then the deeds that are due. Then sizes
are decided. It may end between any two requests: what was not written did not happen, and what was
is read by whoever leads next, which goes on from there.

Watches are late. What was written here is known here at once: the newer of the two counts.
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
from aliquot.kubernetes.jobs.apply import Applier, Order, check_lead
from aliquot.kubernetes.jobs.codec import read_memory
from aliquot.kubernetes.jobs.form import asked_by, job_of, pod_in
from aliquot.kubernetes.jobs.manifests import gang_name
from aliquot.kubernetes.jobs.observe import look, slot_of
from aliquot.kubernetes.jobs.sizes import Candidate, Sizer
from aliquot.kubernetes.jobs.step import (
    View,
    advance,
    no_room,
    not_whole,
    problem_in,
    refused_status,
    status_of,
)
from aliquot.model import lifecycle
from aliquot.model.due import due
from aliquot.model.errors import AliquotError, BadValueError, StateError
from aliquot.model.job import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.elasticjob import ElasticJob, JobPod
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.jobs.allocations import Ledger
    from aliquot.kubernetes.jobs.codec import Memory
    from aliquot.kubernetes.jobs.sizes import Change
    from aliquot.model.job import Job
    from aliquot.model.status import Record
    from aliquot.placement.elastic.resize import Rules

    Name = tuple[str, str]  # namespace and name, or UID
    Step = Callable[[ElasticJob, Mapping[str, JobPod]], Awaitable[None]]

MADE_SECONDS = 10.0  # after which a pod that no watch has told of is not there
REFUSED_SECONDS = 30.0  # between two tries of what the API server does not take
CAP_SECONDS = 300.0  # for which a size that failed is not tried again; twice that the next time
DOUBLINGS = 8
FINAL = {state for state in State if state.final}
TROUBLE = {State.FAILED}
CALM = {State.RUNNING, State.SUSPENDED}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Views:
    """What watches have told."""

    jobs: Callable[[], Mapping[Name, ElasticJob]]
    pods: Callable[[], Mapping[Name, JobPod]]
    gangs: Callable[[], Mapping[Name, GangObject]]


@dataclass
class _Notes:
    """What is known of a job only here: who leads next finds it out again."""

    refused: tuple[int, str] | None = None
    not_before: float = 0.0
    most: tuple[int, float] | None = None
    failed_size: tuple[int, int] = 0, 0  # the generation that did, and how many in a row
    trouble: str = ""


@dataclass
class Controller:
    """All elastic jobs of a cluster."""

    client: Client
    views: Views
    ledger: Ledger
    rules: Rules
    recorder: Recorder | None = None
    scheduler: str = SCHEDULER
    now: Callable[[], float] = time.time
    may: Callable[[], bool] = lambda: True
    _saved: dict[str, ElasticJob] = field(default_factory=dict)
    _made: dict[Name, tuple[JobPod, float]] = field(default_factory=dict)
    _notes: defaultdict[str, _Notes] = field(default_factory=lambda: defaultdict(_Notes))

    def __post_init__(self) -> None:
        self._deeds = Applier(self.client, self._has_made, self.scheduler, self.may)
        self._sizer = Sizer(self.ledger, self.rules)

    def counts(self) -> Counter[str]:
        """How many jobs are in each phase."""
        return Counter(one.status.phase for one in self.views.jobs().values())

    async def round(self) -> bool:
        """One step of every job; whether something is on its way."""
        jobs, pods = self._jobs(), self._pods()
        over = [(one, pods[_home(one)]) for one in self._jobs(over=True)]
        self._deeds.forget(
            {one.metadata.uid for one in jobs},
            {pod.metadata.uid for mine in pods.values() for pod in mine.values()},
        )
        await asyncio.gather(
            *(self._try(self._step, one, pods[_home(one)]) for one in jobs),
            *(
                self._try(self._clear_up, one, mine)
                for one, mine in over
                if any(not pod.ended for pod in mine.values())
            ),
        )
        return any(one.status.phase not in CALM for one in self._jobs())

    # --- what is so ---

    def _jobs(self, *, over: bool = False) -> list[ElasticJob]:
        """Those that are not over, or those that are, as they were last seen or written."""
        found = []
        seen = {one.metadata.uid: one for one in self.views.jobs().values()}
        self._saved = {uid: one for uid, one in self._saved.items() if uid in seen}
        for gone in [uid for uid in self._notes if uid not in seen]:
            del self._notes[gone]
        for uid, one in seen.items():
            newer = _newer(one, self._saved.get(uid))
            if (newer.status.phase in FINAL) == over and not newer.metadata.deletion_timestamp:
                found.append(newer)
        return found

    def _pods(self) -> defaultdict[Name, dict[str, JobPod]]:
        """The pods of each job, by its namespace and UID, and by their names."""
        seen, now = self.views.pods(), self.now()
        self._made = {
            key: (pod, at)
            for key, (pod, at) in self._made.items()
            if key not in seen and now - at < MADE_SECONDS
        }
        every = {**seen, **{key: pod for key, (pod, _) in self._made.items()}}
        found: defaultdict[Name, dict[str, JobPod]] = defaultdict(dict)
        for pod in every.values():
            for owner in pod.metadata.owner_references:
                if owner.controller and slot_of(pod) is not None:
                    found[pod.metadata.namespace, owner.uid][pod.metadata.name] = pod
        return found

    def _has_made(self, pod: JobPod) -> None:
        self._made[pod.metadata.namespace, pod.metadata.name] = pod, self.now()

    # --- one job ---

    async def _try(self, step: Step, one: ElasticJob, pods: Mapping[str, JobPod]) -> None:
        """What goes wrong for one job does not stop the others; it is tried again."""
        try:
            await step(one, pods)
            self._notes[one.metadata.uid].trouble = ""
        except AliquotError as error:
            notes = self._notes[one.metadata.uid]
            if notes.trouble != error.message:
                _log.warning("will be tried again", job=str(one), why=error.message)
            notes.trouble = error.message
        except Exception:  # noqa: BLE001 - as above, for what nobody thought of
            _log.exception("a job's step failed; it is tried again", job=str(one))

    async def _step(self, one: ElasticJob, pods: Mapping[str, JobPod]) -> None:
        try:
            memory, job = read_memory(one.status.record, self.now()), job_of(one)
        except (BadValueError, StateError) as error:
            await self._complain(one, _sentence(error))
            return
        view = self._view(one, job, memory, pods)
        self._remember_size(one, view, memory.record)
        memory, seen = advance(view, memory, self.now())
        saved = await self._save(one, status_of(one, view, memory, self.now()))
        if saved is None:
            return  # somebody was quicker: the next round sees to it
        order = Order(saved, job, memory.record, pods, self.now())
        refused = await self._deeds.do(order, due(memory.record, seen))
        if refused is not None:
            self._refuse(saved, job, memory, refused)

    async def _clear_up(self, one: ElasticJob, pods: Mapping[str, JobPod]) -> None:
        """A job that is over has no workers, whoever made them, and when."""
        memory = read_memory(one.status.record, self.now())
        if not memory.record.state.final:
            return  # its phase is not by the controller
        order = Order(one, job_of(one), memory.record, pods, self.now())
        await self._deeds.do(order, due(memory.record, look(memory, pods.values(), None)))

    def _view(self, one: ElasticJob, job: Job, memory: Memory, pods: Mapping[str, JobPod]) -> View:
        notes, record = self._notes[one.metadata.uid], memory.record
        refused = None
        if notes.refused is not None and notes.refused[0] == record.generation:
            refused = notes.refused[1]
        name = gang_name(one.metadata.name, record.generation)
        gang = self.views.gangs().get((one.metadata.namespace, name))
        return View(
            job=job,
            suspend=one.spec.suspend,
            pods=list(pods.values()),
            gang=gang.status if gang is not None else None,
            refused=refused,
            problem=self._problem(one) or (refused or ""),
            ending=dict(self._ending(one, record)),
        )

    def _ending(self, one: ElasticJob, record: Record) -> Iterator[tuple[int, tuple[str, float]]]:
        """The generations of workers that the scheduler will evict for others; why, and when."""
        gangs = self.views.gangs()
        for generation in {slot.generation for slot in record.slots}:
            name = gang_name(one.metadata.name, generation)
            gang = gangs.get((one.metadata.namespace, name))
            until = seconds_at(gang.status.eviction_time) if gang is not None else None
            if gang is not None and until is not None:
                yield generation, (gang.status.eviction_reason, until)

    def _problem(self, one: ElasticJob) -> str:
        """Why it cannot be started as it is written."""
        try:
            pod = pod_in(one)
            as_one(asked_by(pod, self.ledger.presets))
        except (BadValueError, InvalidRequestError) as error:
            return _sentence(error)
        return self.ledger.queues.problem_of(self.ledger.queues.queue_of(pod))

    def _remember_size(self, one: ElasticJob, view: View, record: Record) -> None:
        """Which size did not come about; one that did makes good for those before."""
        notes, now = self._notes[one.metadata.uid], self.now()
        if no_room(view, record, now) is not None or not_whole(view, record, now) is not None:
            self._cap(notes, view.job, record)
        elif notes.most and record.state is State.RUNNING and record.size > notes.most[0]:
            notes.most, notes.failed_size = None, (0, 0)

    def _cap(self, notes: _Notes, job: Job, record: Record) -> None:
        generation, failures = notes.failed_size
        below = job.sizes.below(record.size)
        if below is None or generation == record.generation:
            return
        notes.most = below, self.now() + CAP_SECONDS * 2.0 ** min(failures, DOUBLINGS)
        notes.failed_size = record.generation, failures + 1

    def _refuse(self, one: ElasticJob, job: Job, memory: Memory, why: str) -> None:
        notes = self._notes[one.metadata.uid]
        self._cap(notes, job, memory.record)
        notes.refused = memory.record.generation, why
        notes.not_before = self.now() + REFUSED_SECONDS

    async def _complain(self, one: ElasticJob, problem: str) -> None:
        """Nothing can be done with what is written there but to say so."""
        await self._save(one, refused_status(one.status, problem, self.now()))

    async def _save(self, one: ElasticJob, status: ElasticJobStatus) -> ElasticJob | None:
        """The job with this status; None where it has changed since it was read."""
        if status == one.status:
            return one
        check_lead(self.may)
        namespace, name = one.key
        version = {"resourceVersion": one.metadata.resource_version}
        patch = {"metadata": version, "status": msgspec.to_builtins(status)}
        try:
            saved = await self.client.patch(JOBS, name, patch, namespace=namespace, sub="status")
        except ApiError as error:
            if error.conflict or error.not_found:
                return None
            raise
        self._saved[saved.metadata.uid] = saved
        self._tell_change(saved, one.status, status)
        return saved

    def _tell_change(
        self, one: ElasticJob, before: ElasticJobStatus, after: ElasticJobStatus
    ) -> None:
        """What is not taken, and a new phase; not the same words twice."""
        problem = problem_in(after)
        if problem and problem != problem_in(before):
            self._tell(one, "Refused", problem, warning=True)
        if after.phase != before.phase and after.reason != problem:
            self._tell(one, after.phase, after.reason, warning=after.phase in TROUBLE)

    def _tell(self, one: ElasticJob, reason: str, text: str, *, warning: bool) -> None:
        _log.info("job", job=str(one), now=reason, why=text)
        if self.recorder is not None:
            self.recorder.record(JOBS, one, "Warning" if warning else "Normal", reason, text)

    # --- all jobs ---

    async def decide(self) -> None:
        """Who starts, who grows and who gives back; the next rounds bring it about."""
        jobs = {f"job {one}": one for one in self._jobs()}
        pods = self._pods()
        candidates = [
            found
            for name, one in jobs.items()
            if (found := self._candidate(name, one, pods[_home(one)])) is not None
        ]
        if not candidates:
            return
        gangs = list(self.views.gangs().values())
        self.ledger.count_reserved(gangs)
        for change in await self._sizer.changes(candidates, gangs, self.now()):
            await self._change(jobs[change.name], change)

    def _candidate(
        self, name: str, one: ElasticJob, pods: Mapping[str, JobPod]
    ) -> Candidate | None:
        notes, now = self._notes[one.metadata.uid], self.now()
        try:
            job, pod = job_of(one), pod_in(one)
            asked = asked_by(pod, self.ledger.presets)
            as_one(asked)
            memory = read_memory(one.status.record, now)
        except (BadValueError, InvalidRequestError, StateError):
            return None
        if not one.status.record or (memory.record.state.resting and self._must_wait(one)):
            return None
        record = memory.record
        gang = GangKey(one.metadata.namespace, gang_name(one.metadata.name, record.generation))
        found = self.views.gangs().get((gang.namespace, gang.name))
        workers = sorted(pods.values(), key=lambda each: (slot_of(each) or (0, 0))[1])
        return Candidate(
            name=name,
            job=job,
            memory=memory,
            pod=pod,
            asked=asked,
            workers=tuple(map(single_name, workers)),
            gang=gang,
            gang_status=found.status if found is not None else None,
            priority=max((each.spec.priority or 0 for each in workers), default=0),
            most=notes.most[0] if notes.most and notes.most[1] > now else None,
        )

    def _must_wait(self, one: ElasticJob) -> bool:
        notes = self._notes[one.metadata.uid]
        return notes.not_before > self.now() or bool(self._problem(one))

    async def _change(self, one: ElasticJob, change: Change) -> None:
        """Start a job or give it another size, if it is still as it was looked at."""
        memory, job, now = read_memory(one.status.record, self.now()), job_of(one), self.now()
        record = memory.record
        if record.state is State.PENDING:
            changed = lifecycle.start(job, record, change.generation, change.size, now)
            if changed != record and change.why:
                changed = replace(changed, reason=change.why)
        else:
            changed = lifecycle.resize(job, record, change.generation, change.size, now, change.why)
        if changed == record:
            return
        pods = self._pods()[_home(one)]
        memory = msgspec.structs.replace(memory, record=changed)
        view = replace(self._view(one, job, memory, pods), refused=None, gang=None)
        try:
            await self._save(one, status_of(one, view, memory, now))
        except (ApiError, StateError) as error:
            _log.warning("a job was not changed", job=str(one), why=error.message)


def _home(one: ElasticJob) -> Name:
    return one.metadata.namespace, one.metadata.uid


def _newer(seen: ElasticJob, saved: ElasticJob | None) -> ElasticJob:
    if saved is None:
        return seen
    ours, theirs = saved.metadata.resource_version, seen.metadata.resource_version
    newer = ours.isdecimal() and theirs.isdecimal() and int(ours) > int(theirs)
    return saved if newer else seen


def _sentence(error: AliquotError) -> str:
    return f"{error.message}. {error.way_out}" if error.way_out else error.message
