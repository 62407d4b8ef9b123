"""Decides which jobs of the pool start, grow and shrink, with `placement.elastic`.

The decision is a goal. This module compares it with what is free now: a job starts or grows only
if its GPUs are free at this moment, after what other jobs are about to take. Shrinking is always
possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from aliquot.model import lifecycle
from aliquot.model.errors import NoCapacityError
from aliquot.placement.elastic.resize import DOES_NOT_FIT, Rules, decide
from aliquot.placement.queues.users import with_users
from aliquot.pool.capacity import MachinePlan, place
from aliquot.pool.decision_input import (
    counts,
    elastic_grant,
    elastic_job,
    elastic_run,
    feasibility,
    hardware_of,
    has_its_gpus,
    request_kinds,
    worker_grants,
)
from aliquot.pool.decision_names import DecisionNames, job_name, run_name, scheduled_name
from aliquot.pool.outlook import OCCUPIED, Outlook, waiting_reasons
from aliquot.pool.runs import RunMode, Waiting
from aliquot.pool.wanted import wanted_slices
from aliquot.pool.workers import parked_grants, requested_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aliquot.model import Slice
    from aliquot.model.job_state import JobState
    from aliquot.placement.elastic.resize import SizeDecision
    from aliquot.placement.queues.quota import Bound, Queue
    from aliquot.placement.queues.users import PastUse
    from aliquot.pool.capacity import RequestKinds
    from aliquot.pool.decision_input import AdmittedGrant
    from aliquot.pool.runs import RunRequest
    from aliquot.pool.store import StoredJob
    from aliquot.slices.arbiter_status import Status

WOULD_SHRINK = "jobs above their smallest size give GPUs up for a command that waits"


@dataclass
class PoolScheduler:
    """Decides sizes. Between decisions it keeps since when each job could have grown.

    `waiting` says why each waiting job or run waits, and `turns` in which order their turns come.
    `expected` is when they start at the latest, as far as the time limits of running jobs say so.
    `wanted` are slices that the first of them gets if idle grants give up theirs. `placed` has the
    GPUs of jobs that start.
    """

    rules: Rules = field(default_factory=Rules)
    waiting: dict[str, str] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)
    expected: dict[str, float] = field(default_factory=dict)
    admitted: list[tuple[RunRequest, list[Slice]]] = field(default_factory=list)
    refused: list[tuple[RunRequest, str]] = field(default_factory=list)
    previewed: list[tuple[RunRequest, list[Slice] | Waiting]] = field(default_factory=list)
    wanted: list[Slice] = field(default_factory=list)
    placed: dict[str, list[str]] = field(default_factory=dict)
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
        self.admitted, self.refused, self.previewed, self.placed = [], [], [], {}
        names = DecisionNames(
            {scheduled_name(one): one for one in jobs}, {run_name(one): one for one in runs}
        )
        by_name, requests = names.jobs, names.runs
        free = [
            stored
            for stored in jobs
            if stored.job.number not in held and stored.state.is_schedulable(now)
        ]
        kinds = request_kinds(jobs, status, runs)
        elastic = [elastic_job(stored, status, kinds) for stored in free]
        elastic += [elastic_run(run, status, kinds) for run in runs if run.mode is RunMode.WAIT]
        elastic += [elastic_grant(one, status) for one in charged if counts(one.grant)]
        check, hardware = feasibility(jobs, status, runs, kinds), hardware_of(status)
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
            **waiting_reasons(decision, names, status, now),
            **{job_name(number): why for number, why in held.items()},
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
                after = _placed(plan, stored, status, size)
            except NoCapacityError:
                self.waiting[name] = OCCUPIED
                continue
            self.placed[name] = after.added_since(plan)
            plan, state = after, stored.state
            yield stored, lifecycle.start(stored.job, state, state.generation, size, now)
        first = [name for name in decision.starts if name in self.waiting]
        self.turns = [*first, *(name for name in decision.waits if name not in first)]
        outlook = Outlook(names, plan, now, kinds)
        self.waiting.update(outlook.reasons(decision, first))
        self.expected = outlook.starts(decision, first)
        self.wanted = _wanted(decision, names, status, plan)
        sizes = grown | {one: size for one, size in decision.starts.items() if one not in first}
        elastic = [replace(one, size=sizes.get(one.name, one.size)) for one in elastic]
        for run in (one for one in runs if one.mode is not RunMode.WAIT):
            new = elastic_run(run, status, kinds)
            said = decide([*elastic, new], check, queues, hardware, now, self.rules, {})
            if run.mode is RunMode.NOW:
                plan = self._admit_now(run, said, replace(outlook, plan=plan))
                if self.admitted and self.admitted[-1][0] is run:
                    elastic.append(replace(new, size=1))
            else:
                self.previewed.append((run, self._preview(run, said, plan, outlook, first)))

    def copy(self) -> PoolScheduler:
        """A scheduler that would decide the same now; what it decides changes nothing here."""
        return PoolScheduler(self.rules, _could_grow=dict(self._could_grow))

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
        outlook: Outlook,
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

    def _admit_now(self, run: RunRequest, said: SizeDecision, outlook: Outlook) -> MachinePlan:
        """The plan with a run that does not wait: nobody shrinks for it."""
        name = run_name(run)
        if name in said.starts:
            plan = self._admit(run, outlook.plan)
            if name not in self.waiting:
                return plan
        why = self.waiting.pop(name, said.waits.get(name, OCCUPIED))
        if why == DOES_NOT_FIT and not self.wanted:
            self.wanted = wanted_slices(outlook.plan, run.request)
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


def _wanted(
    decision: SizeDecision, names: DecisionNames, status: Status, plan: MachinePlan
) -> list[Slice]:
    """The slices of the first that waits for room and gets it if idle grants give up theirs."""
    for name, why in decision.waits.items():
        if why != DOES_NOT_FIT:
            continue
        if name in names.runs:
            found = wanted_slices(plan, names.runs[name].request)
        else:
            stored = names.jobs[name]
            parked = parked_grants(stored, status).values()
            found = wanted_slices(plan, requested_by(stored), stored.job.sizes.least, parked)
        if found:
            return found
    return []


def _start_order(
    decision: SizeDecision,
    names: DecisionNames,
    status: Status,
    plan: MachinePlan,
    kinds: RequestKinds,
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


def _reserved(jobs: Sequence[StoredJob], status: Status) -> MachinePlan:
    """The machine as it is, plus the GPUs that starting jobs still need."""
    plan = MachinePlan.of(status)
    parked_first = sorted(jobs, key=lambda one: not parked_grants(one, status))
    for stored in parked_first:
        state = stored.state
        size = state.target_size
        if state.phase.inactive or has_its_gpus(stored, status):
            continue
        if size > len(worker_grants(stored, status)):
            plan = _resized(plan, stored, status, size) or plan
    return plan


def _resized(plan: MachinePlan, stored: StoredJob, status: Status, size: int) -> MachinePlan | None:
    """The plan with this job at another size; None if that is impossible now."""
    try:
        return _placed(plan.without(worker_grants(stored, status)), stored, status, size)
    except NoCapacityError:
        return None


def _placed(plan: MachinePlan, stored: StoredJob, status: Status, size: int) -> MachinePlan:
    return place(plan, requested_by(stored), size, parked_grants(stored, status).values())
