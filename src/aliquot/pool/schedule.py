"""Decides which jobs of the pool start, grow and shrink, with `placement.elastic`.

The decision is a goal. This module compares it with what is free now: a job starts or grows only
if its GPUs are free at this moment, after what other jobs are about to take. Shrinking is always
possible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

from aliquot.model import GrantState, format_count, format_duration, lifecycle
from aliquot.model.errors import NoCapacityError
from aliquot.model.job import JobPhase, Sizes
from aliquot.model.strength import UNKNOWN
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import DOES_NOT_FIT, NOT_OVERTAKEN, Rules, decide
from aliquot.placement.queues.users import user_queue, with_users
from aliquot.pool.capacity import MachineCapacity, MachinePlan, RequestKinds, place
from aliquot.pool.expected import WaitingTurn, expected_starts
from aliquot.pool.progress import pause_after_resize
from aliquot.pool.runs import RunMode, Waiting
from aliquot.pool.workers import (
    allocated_slots,
    grant_name,
    grant_prefix,
    parked_grants,
    requested_by,
)
from aliquot.slices.gpu_choice import neighbours_matter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from aliquot.model import Grant, Request, Slice
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState
    from aliquot.model.owner import Owner
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.elastic.resize import SizeDecision
    from aliquot.placement.queues.quota import Bound, Queue
    from aliquot.placement.queues.users import PastUse
    from aliquot.pool.runs import RunRequest
    from aliquot.pool.store import StoredJob
    from aliquot.slices.control import Status

OCCUPIED = "other jobs are giving its GPUs back"
WOULD_SHRINK = "jobs above their smallest size give GPUs up for a command that waits"

_NAMED = re.compile(r"\b(?:job|run) \d+\b")  # `scheduled_name` and `run_name`


@dataclass(frozen=True, slots=True)
class AdmittedGrant:
    """The grant of a command that the pool admitted, and the user and queue that pay for it."""

    grant: Grant
    owner: Owner
    queue: str


@dataclass
class PoolScheduler:
    """Decides sizes. Between decisions it keeps since when each job could have grown.

    `waiting` says why each waiting job or run waits, and `turns` in which order their turns come.
    `expected` is when they start at the latest, as far as the time limits of running jobs say so.
    """

    rules: Rules = field(default_factory=Rules)
    waiting: dict[str, str] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)
    expected: dict[str, float] = field(default_factory=dict)
    admitted: list[tuple[RunRequest, list[Slice]]] = field(default_factory=list)
    refused: list[tuple[RunRequest, str]] = field(default_factory=list)
    previewed: list[tuple[RunRequest, list[Slice] | Waiting]] = field(default_factory=list)
    _could_grow: dict[str, tuple[float, int]] = field(default_factory=dict)

    def changes(  # noqa: PLR0913, PLR0917 - the whole snapshot
        self,
        jobs: Sequence[StoredJob],
        status: Status,
        now: float,
        shares: UserShares,
        runs: Sequence[RunRequest] = (),
        held: Mapping[int, str] = MappingProxyType({}),
        charged: Sequence[AdmittedGrant] = (),
    ) -> Iterator[tuple[StoredJob, JobState]]:
        """The jobs to change and their new states, in this order.

        After that `admitted` has the `runs` that start now, with their slices, and `refused` those
        that do not wait and cannot start, with the reasons. `previewed` has the answers to those
        that only ask. `held` says why jobs may not start, by their numbers. `charged` are the
        commands that run: they count for their queues and users, and nothing ends for others.
        """
        self.admitted, self.refused, self.previewed = [], [], []
        names = _Names(
            {scheduled_name(one): one for one in jobs}, {run_name(one): one for one in runs}
        )
        by_name, requests = names.jobs, names.runs
        free = [
            stored
            for stored in jobs
            if stored.job.number not in held and stored.state.is_schedulable(now)
        ]
        kinds = _kinds(jobs, status, runs)
        elastic = [_elastic(stored, status, kinds) for stored in free]
        elastic += [_elastic_run(run, status, kinds) for run in runs if run.mode is RunMode.WAIT]
        elastic += [_elastic_grant(one, status) for one in charged if _counts(one.grant)]
        check, hardware = _feasibility(jobs, status, runs, kinds), _hardware(status)
        queues = shares.queues_of(
            [
                *((stored.job.queue, stored.owner.name) for stored in jobs),
                *((run.queue, run.owner.name) for run in runs),
                *((one.queue, one.owner.name) for one in charged),
            ]
        )
        decision = decide(elastic, check, queues, hardware, now, self.rules, self._could_grow)
        self._could_grow = decision.could
        self.waiting = {
            **_reasons(decision, names, status, now),
            **{_name(number): why for number, why in held.items()},
        }
        plan, grown = _reserved(jobs, status), dict[str, int]()
        for name, (size, why) in decision.resizes.items():
            stored = by_name[name]
            state = stored.state
            if size > state.size:
                if (more := _resized(plan, stored, status, size)) is None:
                    continue
                plan, grown[name] = more, size
            yield stored, lifecycle.resize(stored.job, state, state.generation, size, now, why)
        for name, size in _start_order(decision, names, status, plan, kinds):
            if name in requests:
                plan = self._admit(requests[name], plan)
                continue
            stored = by_name[name]
            try:
                plan = _placed(plan, stored, status, size)
            except NoCapacityError:
                self.waiting[name] = OCCUPIED
                continue
            state = stored.state
            yield stored, lifecycle.start(stored.job, state, state.generation, size, now)
        first = [name for name in decision.starts if name in self.waiting]
        self.turns = [*first, *(name for name in decision.waits if name not in first)]
        outlook = _Outlook(names, plan, now, kinds)
        self.waiting.update(outlook.reasons(decision, first))
        self.expected = outlook.starts(decision, first)
        sizes = grown | {one: size for one, size in decision.starts.items() if one not in first}
        elastic = [replace(one, size=sizes.get(one.name, one.size)) for one in elastic]
        for run in (one for one in runs if one.mode is not RunMode.WAIT):
            new = _elastic_run(run, status, kinds)
            said = decide([*elastic, new], check, queues, hardware, now, self.rules, {})
            if run.mode is RunMode.NOW:
                plan = self._admit_now(run, said, replace(outlook, plan=plan))
                if self.admitted and self.admitted[-1][0] is run:
                    elastic.append(replace(new, size=1))
            else:
                self.previewed.append((run, self._preview(run, said, plan, outlook, first)))

    def waiting_of(self, name: str) -> Waiting | None:
        """The place of a job or run in the queue; None if it has none."""
        turns = self.turns  # another thread may decide meanwhile
        if name not in turns:
            return None
        why, expected = self.waiting.get(name, OCCUPIED), self.expected.get(name)
        return Waiting(why, turns.index(name) + 1, len(turns), expected)

    def _preview(
        self,
        run: RunRequest,
        said: SizeDecision,
        plan: MachinePlan,
        outlook: _Outlook,
        first: list[str],
    ) -> list[Slice] | Waiting:
        """What a run would get now, or where it would be in the queue if it waited."""
        name = run_name(run)
        if name not in said.starts:
            turns = [*first, *(one for one in said.waits if one not in first)]
            expected = outlook.starts(said, first).get(name)
            why = outlook.names.told(outlook.reason(name, said.waits[name]), run.owner)
            return Waiting(why, turns.index(name) + 1, len(turns), expected)
        try:
            return plan.put(run.request, 1)[1][0]
        except NoCapacityError:
            expected = outlook.starts(said, [*first, name]).get(name)
            return Waiting(WOULD_SHRINK, len(first) + 1, len(self.turns) + 1, expected)

    def _admit_now(self, run: RunRequest, said: SizeDecision, outlook: _Outlook) -> MachinePlan:
        """The plan with a run that does not wait: nobody shrinks for it."""
        name = run_name(run)
        if name in said.starts:
            plan = self._admit(run, outlook.plan)
            if name not in self.waiting:
                return plan
        why = self.waiting.pop(name, said.waits.get(name, OCCUPIED))
        self.refused.append((run, outlook.names.told(outlook.reason(name, why), run.owner)))
        return outlook.plan

    def _admit(self, run: RunRequest, plan: MachinePlan) -> MachinePlan:
        """The plan with a run, if it fits now; else it is among those that wait."""
        try:
            plan, (slices,) = plan.put(run.request, 1)
        except NoCapacityError:
            self.waiting[run_name(run)] = OCCUPIED
            return plan
        self.admitted.append((run, slices))
        return plan


def _start_order(
    decision: SizeDecision, names: _Names, status: Status, plan: MachinePlan, kinds: RequestKinds
) -> Iterable[tuple[str, int]]:
    """The starts in the order in which GPUs are chosen for them.

    If all fit so, those that may use few GPUs choose first. Else the order is that of their turns.
    """

    def choice(name: str) -> float:
        run = names.runs.get(name)
        return kinds.choice(requested_by(names.jobs[name]) if run is None else run.request)

    turns = list(decision.starts.items())
    order = sorted(turns, key=lambda start: choice(start[0]))
    if order == turns:
        return turns
    try:
        for name, size in order:
            if name in names.runs:
                plan, _ = plan.put(names.runs[name].request, 1)
            else:
                plan = _placed(plan, names.jobs[name], status, size)
    except NoCapacityError:
        return turns
    return order


def run_name(run: RunRequest) -> str:
    """The name of a run in decisions; people see another one (`_Names`)."""
    return f"run {run.number}"


@dataclass(frozen=True, slots=True)
class UserShares:
    """The queues; what users have used lately, and may have in all queues together, by name."""

    queues: Mapping[str, Queue] = field(default_factory=dict)
    past: Mapping[str, PastUse] = field(default_factory=dict)
    limits: Mapping[str, Bound] = field(default_factory=dict)

    def queues_of(self, members: Iterable[tuple[str, str]]) -> dict[str, Queue]:
        """The queues with one below each for each user of it; `members` are queues and users."""
        users: dict[str, set[str]] = {}
        for queue, user in members:
            users.setdefault(queue, set()).add(user)
        return with_users(self.queues, users, self.past, self.limits)


def scheduled_name(stored: StoredJob) -> str:
    """The name of a job in decisions: names of jobs are per user, and private."""
    return _name(stored.job.number)


def _name(number: int) -> str:
    return f"job {number}"


@dataclass(frozen=True, slots=True)
class _Names:
    """The jobs and commands of a decision, by their names there."""

    jobs: Mapping[str, StoredJob]
    runs: Mapping[str, RunRequest]

    def owner(self, name: str) -> Owner:
        """Whose job or command it is."""
        return self.runs[name].owner if name in self.runs else self.jobs[name].owner

    def told(self, why: str, to: Owner) -> str:
        """A reason that names jobs and commands as that user sees them in `aliquot jobs`."""
        return _NAMED.sub(lambda match: self._shown(match[0], to), why)

    def _shown(self, name: str, to: Owner) -> str:
        if name in self.jobs:
            stored = self.jobs[name]
            own = stored.owner.uid == to.uid
            return f"job {stored.job}" if own else f"{name} of {stored.owner}"
        if name in self.runs:
            run = self.runs[name]
            own = run.owner.uid == to.uid
            return f"command {run.shown_name}" if own else f"a command of {run.owner}"
        return name


def _reasons(decision: SizeDecision, names: _Names, status: Status, now: float) -> dict[str, str]:
    """Why jobs and commands wait: what has the GPUs, or when others may be resized for them."""
    users = _users(names.jobs, status) if DOES_NOT_FIT in decision.waits.values() else ""
    found = {}
    for name, why in decision.waits.items():
        left = decision.until.get(name, 0.0) - now
        more = f"in {format_duration(left)}" if left > 0 else users * (why == DOES_NOT_FIT)
        told = names.told(why, names.owner(name))
        found[name] = f"{told}: {more}" if more else told
    return found


def _users(jobs: Mapping[str, StoredJob], status: Status) -> str:
    """What has GPUs now: jobs by their numbers, and how many grants besides."""
    found = {name: _grants(stored, status) for name, stored in jobs.items()}
    names = [name.removeprefix("job ") for name, grants in found.items() if grants]
    words = [f"job{'s' * (len(names) > 1)} {', '.join(names)}"] if names else []
    theirs = {grant for grants in found.values() for grant in grants}
    others = sum(
        1
        for grant in status.grants
        if grant.name not in theirs and grant.state is not GrantState.PARKED
    )
    words += [f"{format_count(others, 'grant')} of aliquot run"] if others else []
    return " and ".join(words)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """Why others wait and when they start at the latest, after what starts now is in the `plan`."""

    names: _Names
    plan: MachinePlan
    now: float
    kinds: RequestKinds
    _choices: dict[tuple[Request, int | None, int], str | None] = field(
        default_factory=dict, init=False
    )

    def reasons(self, decision: SizeDecision, occupied: Sequence[str]) -> dict[str, str]:
        """Why they wait, where the decision does not say it; `occupied` fit, but not yet."""
        found = {name: self._why_not_yet(name, decision) for name in occupied}
        for name, why in decision.waits.items():
            if (more := self.reason(name, why)) != why:
                found[name] = more
        return found

    def reason(self, name: str, why: str) -> str:
        """Why one waits: its choice of GPUs or neighbours if that is in the way, else `why`."""
        if self._is_frozen(name) or not (_is_by_place(why) or why == OCCUPIED):
            return why
        turn = self._turn(name)
        asked = self.kinds.kind(turn.request), turn.request.owner, turn.workers
        if asked not in self._choices:
            request = replace(asked[0], owner=asked[1])
            self._choices[asked] = self.plan.why_choice_waits(request, turn.workers)
        return self._choices[asked] or why

    def _is_frozen(self, name: str) -> bool:
        """Whether it returns to the GPUs that it had."""
        return name in self.jobs and self.jobs[name].state.frozen

    def _why_not_yet(self, name: str, decision: SizeDecision) -> str:
        """Why one that would fit does not start: jobs give GPUs back, or others came first."""
        if self._is_frozen(name):
            return OCCUPIED
        giving = tuple(
            grant_prefix(stored)
            for one, stored in self.jobs.items()
            if self._gives_back(stored, decision.resizes.get(one))
        )
        given = [one.name for one in self.plan.grants if one.name.startswith(giving)]
        if self.plan.without(given).holds(self._turn(name).request, decision.starts[name]):
            return OCCUPIED
        return self.reason(name, DOES_NOT_FIT)

    def _gives_back(self, stored: StoredJob, resize: tuple[int, str] | None) -> bool:
        """Whether a job stops, shrinks, or still has workers above its size."""
        state = stored.state
        if state.stopping is not None or (resize is not None and resize[0] < state.size):
            return True
        prefix = grant_prefix(stored)
        has = sum(one.name.startswith(prefix) for one in self.plan.grants if one.slices)
        return has > state.target_size

    @property
    def jobs(self) -> Mapping[str, StoredJob]:
        """The jobs, by their names in decisions."""
        return self.names.jobs

    def starts(self, decision: SizeDecision, occupied: Sequence[str]) -> dict[str, float]:
        """The latest starts that are known; `occupied` wait for GPUs that jobs give back now."""
        if occupied:
            freed = self._given_back(decision)
            return {} if freed is None else dict.fromkeys(occupied, freed)
        first = next(iter(decision.waits), "")
        if first in decision.until:
            return {first: decision.until[first] + self._longest_stop()}
        known = takewhile(lambda name: _is_by_place(decision.waits[name]), decision.waits)
        turns = map(self._turn, known)
        return expected_starts(turns, self.plan, self._ends(), self.now)

    def _turn(self, name: str) -> WaitingTurn:
        if name in self.names.runs:
            return WaitingTurn(name, self.names.runs[name].request)
        job, state = self.jobs[name].job, self.jobs[name].state
        limit = job.time_seconds
        left = None if limit is None else limit - state.used_seconds + _stop_seconds(job)
        return WaitingTurn(name, requested_by(self.jobs[name]), job.sizes.least, left)

    def _ends(self) -> Iterator[tuple[float, Sequence[Grant]]]:
        """When jobs that have workers have ended at the latest, and what they have until then."""
        for stored in self.jobs.values():
            if not stored.state.phase.inactive and (when := self._end(stored)) is not None:
                prefix = grant_prefix(stored)
                yield when, [one for one in self.plan.grants if one.name.startswith(prefix)]

    def _end(self, stored: StoredJob) -> float | None:
        job, state = stored.job, stored.state
        if state.stopping is not None and state.stopping.then is not JobPhase.STARTING:
            return state.stopping.until + job.grace_seconds
        if job.time_seconds is None:
            return None
        since = self.now if state.active_since is None else state.active_since
        return since + job.time_seconds - state.used_seconds + _stop_seconds(job)

    def _given_back(self, decision: SizeDecision) -> float | None:
        """When the jobs that are stopped or made smaller now have given their GPUs back."""
        stopping = [
            stored.state.stopping.until + stored.job.grace_seconds
            for stored in self.jobs.values()
            if stored.state.stopping is not None
        ]
        shrinking = [
            self.now + _stop_seconds(self.jobs[name].job)
            for name, (size, _) in decision.resizes.items()
            if size < self.jobs[name].state.size
        ]
        return max([*stopping, *shrinking], default=None)

    def _longest_stop(self) -> float:
        """How long a job needs to become smaller."""
        elastic = [
            one.job for one in self.jobs.values() if one.state.slots and one.job.sizes.elastic
        ]
        return max(map(_stop_seconds, elastic), default=0.0)


def _stop_seconds(job: Job) -> float:
    return job.notice_seconds + job.grace_seconds


def _is_by_place(why: str) -> bool:
    """Whether one waits for GPUs only, and not for a quota."""
    return why == DOES_NOT_FIT or why.endswith(NOT_OVERTAKEN)


def _kinds(jobs: Sequence[StoredJob], status: Status, runs: Sequence[RunRequest]) -> RequestKinds:
    asked = [*(requested_by(stored) for stored in jobs), *(run.request for run in runs)]
    return RequestKinds.of(asked, MachinePlan.of(status))


def _elastic(stored: StoredJob, status: Status, kinds: RequestKinds) -> Elastic:
    job, state, request = stored.job, stored.state, requested_by(stored)
    return Elastic(
        name=scheduled_name(stored),
        sizes=Sizes((state.size,))
        if state.frozen
        else job.sizes,  # frozen workers keep their number
        member=_demand(job.request, status),
        queue=user_queue(job.queue, stored.owner.name),
        priority=job.urgency,
        submitted=job.submitted,
        size=state.target_size,
        resized_at=state.resized_at,
        settled=state.settled,
        speeds=stored.speeds,
        rest_seconds=pause_after_resize(stored.progress),
        bound=state.frozen,
        terms=kinds.kind(request),
        gpus=kinds.usable(request),
    )


def _elastic_run(run: RunRequest, status: Status, kinds: RequestKinds) -> Elastic:
    return Elastic(
        name=run_name(run),
        sizes=Sizes((1,)),
        member=_demand(run.request, status),
        queue=user_queue(run.queue, run.owner.name),
        submitted=run.submitted,
        terms=kinds.kind(run.request),
        gpus=kinds.usable(run.request),
    )


def _counts(grant: Grant) -> bool:
    """Whether a grant has GPUs that limits count."""
    return bool(grant.slices) and grant.state is not GrantState.PARKED


def _elastic_grant(one: AdmittedGrant, status: Status) -> Elastic:
    """A command that runs. Its size is fixed, and it stays where it is."""
    sizes = {shared.gpu.uuid: shared.gpu.memory_bytes for shared in status.gpus}
    parts = [
        max(
            WHOLE_MILLI * part.memory_bytes // max(1, sizes.get(part.gpu_uuid, 0)),
            part.compute_percent * 10,
        )
        for part in one.grant.slices
    ]
    largest = max(part.memory_bytes for part in one.grant.slices)
    milli = min(WHOLE_MILLI, max(parts))
    if one.grant.neighbours.alone:
        largest = max(sizes.get(part.gpu_uuid, 0) for part in one.grant.slices)
        milli = WHOLE_MILLI
    return Elastic(
        name=f"grant {one.grant.name}",
        sizes=Sizes((1,)),
        member=Demand(len(parts), Kind.SLICED, milli=milli, gpu_bytes=largest),
        queue=user_queue(one.queue, one.owner.name),
        size=1,
    )


def _feasibility(
    jobs: Sequence[StoredJob], status: Status, runs: Sequence[RunRequest], kinds: RequestKinds
) -> Feasibility[Grant]:
    grants = {grant.name: grant for grant in status.grants}
    parked: dict[str, Collection[Grant]] = {
        scheduled_name(one): parked_grants(one, status).values() for one in jobs
    }
    asked = [*(stored.job.request for stored in jobs), *(run.request for run in runs)]
    neighbours = any(neighbours_matter(one, status.grants) for one in asked)
    requests = {scheduled_name(stored): requested_by(stored) for stored in jobs}
    requests |= {run_name(run): run.request for run in runs}
    workers: dict[str, JobWorkers[Grant]] = {
        name: JobWorkers(
            name=name,
            member=(_demand(request, status),),
            choosy=neighbours,
            terms=kinds.kind(request),
            choice=kinds.choice(request),
        )
        for name, request in requests.items()
    }
    for stored in jobs:
        name = scheduled_name(stored)
        workers[name] = replace(
            workers[name],
            held=tuple(grants[one] for one in _grants(stored, status)),
            size=stored.state.size if _has_its_gpus(stored, status) else None,
            pinned=bool(parked[name]),
        )
    parked |= {run_name(run): () for run in runs}
    return Feasibility(MachineCapacity(MachinePlan.of(status), requests, parked), workers)


def _has_its_gpus(stored: StoredJob, status: Status) -> bool:
    """Whether it has the GPUs for its size."""
    state = stored.state
    if state.stopping is not None or state.phase.inactive:
        return False
    allocated = allocated_slots(stored, status)
    return state.phase is JobPhase.RUNNING or all(slot in allocated for slot in state.slots)


def _reserved(jobs: Sequence[StoredJob], status: Status) -> MachinePlan:
    """The machine as it is, plus the GPUs that starting jobs still need."""
    plan = MachinePlan.of(status)
    parked_first = sorted(jobs, key=lambda one: not parked_grants(one, status))
    for stored in parked_first:
        state = stored.state
        size = state.target_size
        if state.phase.inactive or _has_its_gpus(stored, status):
            continue
        if size > len(_grants(stored, status)):
            plan = _resized(plan, stored, status, size) or plan
    return plan


def _resized(plan: MachinePlan, stored: StoredJob, status: Status, size: int) -> MachinePlan | None:
    """The plan with this job at another size; None if that is impossible now."""
    try:
        return _placed(plan.without(_grants(stored, status)), stored, status, size)
    except NoCapacityError:
        return None


def _placed(plan: MachinePlan, stored: StoredJob, status: Status, size: int) -> MachinePlan:
    return place(plan, requested_by(stored), size, parked_grants(stored, status).values())


def _grants(stored: StoredJob, status: Status) -> list[str]:
    return [grant_name(stored, slot) for slot in allocated_slots(stored, status)]


def _demand(request: Request, status: Status) -> Demand:
    """What one worker counts against its queue's quota: all of GPUs on which it is alone."""
    if request.is_whole or request.neighbours.alone:
        return Demand(gpus=request.gpus, min_strength=request.min_strength)
    largest = max((one.gpu for one in status.gpus), key=lambda gpu: gpu.memory_bytes)
    size = request.bytes_on(largest)
    part = WHOLE_MILLI * size // max(1, largest.memory_bytes)
    milli = min(WHOLE_MILLI, max(part, request.compute_percent * 10))
    return Demand(
        gpus=request.gpus,
        kind=Kind.SLICED,
        milli=milli,
        gpu_bytes=size,
        min_strength=request.min_strength,
    )


def _hardware(status: Status) -> Hardware:
    largest = max((one.gpu.memory_bytes for one in status.gpus), default=0)
    strongest = max((one.gpu.strength for one in status.gpus), default=UNKNOWN)
    here = NodeHardware("here", len(status.gpus), gpu_bytes=largest, strength=strongest)
    return empty([here]).hardware
