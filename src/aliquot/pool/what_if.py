"""What the pool would decide if something were different. Nothing is changed.

The answer is the decision itself (`PoolScheduler.changes`), made twice: of the machine as it is,
and of the machine as the question has it. What does not start then has the reason and the place
that people would see.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import InvalidValueError, NoSuchGpuError, NoSuchJobError
from aliquot.model.job import DEFAULT_QUEUE, Job, JobPhase, Sizes
from aliquot.model.job_state import JobState
from aliquot.placement.core.demand import WHOLE_MILLI
from aliquot.placement.queues.quota import Bound
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.decision_input import worker_grants
from aliquot.pool.decision_names import DecisionNames, run_name, scheduled_name
from aliquot.pool.encoding import Submission, decode_request
from aliquot.pool.store import StoredJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.model import Request
    from aliquot.pool.access import Caller
    from aliquot.pool.decision_input import AdmittedGrant
    from aliquot.pool.runs import RunRequest
    from aliquot.pool.schedule import PoolScheduler, UserShares
    from aliquot.slices.arbiter_status import Status

MOST_CHANGES = 64
MOST_WORKERS = 1024
_MOST_GPUS = 1_000_000.0
_NEW = 0  # the number of the job that is asked about


@dataclass(frozen=True, slots=True)
class Question:
    """What would be different.

    `limits` are the most GPUs of users, `queue_limits` and `quotas` those of queues; None: none.
    """

    add: Request | None = None
    workers: tuple[int, ...] = (1,)
    queue: str = DEFAULT_QUEUE
    gone_gpus: tuple[str, ...] = ()
    gone_jobs: tuple[int, ...] = ()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    queue_limits: Mapping[str, float | None] = field(default_factory=dict)
    quotas: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a decision is made from."""

    jobs: Sequence[StoredJob]
    status: Status
    now: float
    shares: UserShares
    runs: Sequence[RunRequest]
    held: Mapping[int, str]
    charged: Sequence[AdmittedGrant]


def decode_question(body: dict[str, Any]) -> Question:
    """The question of a request; InvalidValueError if it is none."""
    known = {one.name for one in fields(Question)}
    if unknown := sorted(body.keys() - known):
        raise InvalidValueError(f"unknown field {unknown[0][:40]!r} of a question")
    try:
        add = body.get("add")
        workers = tuple(body.get("workers", (1,)))
        if not workers or not all(type(one) is int and 0 < one <= MOST_WORKERS for one in workers):
            raise InvalidValueError(f"workers must be from 1 to {MOST_WORKERS}")
        return Question(
            None if add is None else decode_request(add),
            tuple(sorted(set(workers))),
            _text(body.get("queue", DEFAULT_QUEUE)),
            tuple(map(_text, _several(body.get("gone_gpus", ())))),
            tuple(int(one) for one in _several(body.get("gone_jobs", ()))),
            *(_bounds(body.get(name, {})) for name in ("limits", "queue_limits", "quotas")),
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"invalid question: {error!r}") from error


def _several(values: Any) -> list[Any]:
    if len(values) > MOST_CHANGES:
        raise InvalidValueError(f"a question may have {MOST_CHANGES} of each change")
    return list(values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _bounds(values: dict[str, Any]) -> dict[str, float | None]:
    found = {str(key): None if one is None else float(one) for key, one in values.items()}
    if not all(one is None or 0 <= one <= _MOST_GPUS for one in found.values()):
        raise InvalidValueError("a limit is a number of GPUs")
    _several(list(found))
    return found


def answer(
    question: Question, inputs: Inputs, scheduler: PoolScheduler, caller: Caller
) -> dict[str, Any]:
    """What jobs and commands would do now, before and after the change, as the caller may see."""
    after, ended = _changed(question, inputs, caller)
    before = _outcomes(inputs, scheduler, caller)
    then = _outcomes(after, scheduler, caller)
    old = {one.job.number: one for one in inputs.jobs}
    rows = [_row(one, before, then, caller) for one in (*inputs.jobs, *after.jobs[len(old) :])]
    rows = [row for row in rows if row["number"] != _NEW]
    gone = set(question.gone_jobs)
    for row in rows:
        row["after"] = {"does": "ends"} if row["number"] in gone else row["after"]
    commands = [
        {
            "user": run.owner.name,
            "name": run.shown_name if _sees(caller, run) else None,
            "before": before.get(run_name(run)),
            "after": then.get(run_name(run)),
        }
        for run in inputs.runs
        if run_name(run) in before or run_name(run) in then
    ]
    return {
        "asked": then.get(f"job {_NEW}") if question.add is not None else None,
        "jobs": rows,
        "commands": commands,
        "ended_grants": ended,
        "gpus": [_gpu(one, after.status) for one in inputs.status.gpus],
    }


def _sees(caller: Caller, one: StoredJob | RunRequest) -> bool:
    return caller.may_see(one.owner)


def _row(
    stored: StoredJob,
    before: Mapping[str, dict[str, Any]],
    after: Mapping[str, dict[str, Any]],
    caller: Caller,
) -> dict[str, Any]:
    name, sees = scheduled_name(stored), _sees(caller, stored)
    return {
        "number": stored.job.number,
        "name": stored.job.name if sees else None,
        "user": stored.owner.name,
        "queue": stored.job.queue if sees else None,
        "before": before.get(name),
        "after": after.get(name),
    }


def _gpu(shared: Any, status: Status) -> dict[str, Any]:
    left = next((one for one in status.gpus if one.gpu.uuid == shared.gpu.uuid), None)
    return {
        "uuid": shared.gpu.uuid,
        "index": shared.gpu.index,
        "granted_bytes": None if left is None else left.granted_bytes,
    }


def _changed(question: Question, inputs: Inputs, caller: Caller) -> tuple[Inputs, list[str]]:
    """The inputs as the question has them, and the commands whose grants would end."""
    status, jobs = inputs.status, list(inputs.jobs)
    known = {one.gpu.uuid for one in status.gpus}
    if unknown := [one for one in question.gone_gpus if one not in known]:
        raise NoSuchGpuError(f"there is no GPU {unknown[0][:80]!r}", "See them with: aliquot gpus")
    if known <= set(question.gone_gpus):
        raise InvalidValueError("a machine without GPUs decides nothing", "Leave at least one GPU.")
    numbers = {one.job.number for one in jobs}
    if strangers := [one for one in question.gone_jobs if one not in numbers]:
        raise NoSuchJobError(f"there is no unfinished job {strangers[0]}", "See: aliquot jobs")
    gone = set(question.gone_gpus)
    hit = {one.name for one in status.grants if any(part.gpu_uuid in gone for part in one.slices)}
    ended = set(hit)
    for place, stored in enumerate(jobs):
        own = set(worker_grants(stored, status))
        if own & hit:  # a worker that loses its GPU ends, and its job with it
            jobs[place] = replace(stored, state=_again(stored.state, inputs.now))
            ended |= own
            hit -= own
        elif stored.job.number in question.gone_jobs:
            ended |= own
    jobs = [one for one in jobs if one.job.number not in question.gone_jobs]
    plan = MachinePlan.of(status).without(ended)
    left = tuple(one for one in plan.gpus if one.gpu.uuid not in gone)
    commands = [
        one.plain_name
        for one in status.grants
        if one.name in hit and caller.owner.uid in {0, one.owner_uid}
    ]
    if question.add is not None:
        jobs.append(_asked(question, question.add, inputs.now, caller))
    shares = _shares(question, inputs.shares)
    charged = [one for one in inputs.charged if one.grant.name not in ended]
    changed = replace(status, gpus=left, grants=plan.grants)
    found = replace(inputs, jobs=jobs, status=changed, shares=shares, charged=charged)
    return found, sorted(commands)


def _again(state: JobState, now: float) -> JobState:
    """A job that must start again."""
    return JobState(since=now, generation=state.generation, used_seconds=state.used_seconds)


def _asked(question: Question, request: Request, now: float, caller: Caller) -> StoredJob:
    job = Job(
        number=_NEW,
        name="what-if",
        command=("what-if",),
        request=request,
        sizes=Sizes(question.workers),
        queue=question.queue,
        submitted=now,
    )
    return StoredJob(Submission(caller.owner, job, "", ""), JobState(since=now), 0, {}, {})


def _shares(question: Question, shares: UserShares) -> UserShares:
    limits, queues = dict(shares.limits), dict(shares.queues)
    for user, gpus in question.limits.items():
        limits[user] = replace(limits.get(user, Bound()), milli=_milli(gpus))
    for changes, what in ((question.queue_limits, "limit"), (question.quotas, "quota")):
        for name, gpus in changes.items():
            if name not in queues:
                raise InvalidValueError(
                    f"queue {name[:80]!r} is not in the pool's file", "See: aliquot policy"
                )
            bound = Bound(milli=_milli(gpus))
            if what == "limit":
                queues[name] = replace(queues[name], limit=bound)
            else:
                own = Bound(0, 0) if gpus is None else bound
                queues[name] = replace(queues[name], quota=own)
    return replace(shares, limits=limits, queues=queues)


def _milli(gpus: float | None) -> int | None:
    return None if gpus is None else int(gpus * WHOLE_MILLI)


def _outcomes(
    inputs: Inputs, scheduler: PoolScheduler, caller: Caller
) -> dict[str, dict[str, Any]]:
    """What each job and command does now, by its name in decisions."""
    trial = scheduler.copy()
    decided = {
        scheduled_name(stored): state
        for stored, state in trial.changes(
            inputs.jobs,
            inputs.status,
            inputs.now,
            inputs.shares,
            inputs.runs,
            inputs.held,
            inputs.charged,
        )
    }
    names = DecisionNames(
        {scheduled_name(one): one for one in inputs.jobs},
        {run_name(one): one for one in inputs.runs},
    )
    found: dict[str, dict[str, Any]] = {}
    for name, stored in names.jobs.items():
        state = stored.state
        if name in decided:
            size = decided[name].target_size
            does = "starts" if state.phase.inactive else "grows" if size > state.size else "shrinks"
            outcome = {"does": does, "size": size}
        elif state.phase is JobPhase.PENDING:
            outcome = {"does": "waits", **_place(trial, name, names, caller)}
        else:
            outcome = {"does": "runs" if state.slots else "rests", "size": state.target_size}
        places = trial.placed.get(name) if name in decided else None
        found[name] = outcome | ({} if places is None else {"gpus": _indexes(places, inputs)})
        found[name] = as_seen(found[name], sees=_sees(caller, stored))
    admitted = {run_name(run) for run, _ in trial.admitted}
    for name, run in names.runs.items():
        if name in admitted:
            found[name] = {"does": "starts", "size": 1}
        elif trial.waiting_of(name) is not None:
            outcome = {"does": "waits", **_place(trial, name, names, caller)}
            found[name] = as_seen(outcome, sees=_sees(caller, run))
    return found


def as_seen(outcome: dict[str, Any], *, sees: bool) -> dict[str, Any]:
    """An outcome as the caller may see it: of others what it does and its size (`access`)."""
    return outcome if sees else {key: outcome[key] for key in ("does", "size") if key in outcome}


def _place(trial: PoolScheduler, name: str, names: DecisionNames, caller: Caller) -> dict[str, Any]:
    place = trial.waiting_of(name)
    why = trial.waiting.get(name)
    found: dict[str, Any] = {"reason": None if why is None else names.told(why, caller.owner)}
    if place is not None:
        found |= {"place": place.place, "of": place.of, "expected_start": place.expected}
    return found


def _indexes(uuids: Sequence[str], inputs: Inputs) -> list[int]:
    indexes = {one.gpu.uuid: one.gpu.index for one in inputs.status.gpus}
    return [indexes[one] for one in uuids if one in indexes]
