"""What follows from one look at a job: the state machine's word, and what people are told. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.elasticjob import ElasticJobStatus, Transition
from aliquot.kubernetes.api.gang import Phase as GangPhase
from aliquot.kubernetes.api.names import JOB
from aliquot.kubernetes.api.queue import Condition
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.jobs.observe import learn, look, slot_of
from aliquot.model import lifecycle
from aliquot.model.job import State, Wish
from aliquot.model.status import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.kubernetes.api.elasticjob import ElasticJob, JobPod
    from aliquot.kubernetes.api.gang import GangStatus
    from aliquot.kubernetes.jobs.codec import Memory
    from aliquot.model.job import Job
    from aliquot.model.status import Record, Seen

AGAIN_SECONDS = 2.0  # between two starts, whoever was at fault
LONGEST_SECONDS = 300.0  # the same after many excuses; a run of so long ends their row
ROOM_SECONDS = 15.0  # that a gang has for its places, where the job could run with fewer workers
WHOLE_SECONDS = 300.0  # that workers with places have to come, in the same case
HISTORY = 20
ACCEPTED, BAD = "Accepted", "BadSpec"
ON_THEIR_WAY = {State.STARTING, State.GROWING}
HEEDING = {State.RUNNING, State.GROWING, State.SHRINKING}  # has workers that may have to save


@dataclass(frozen=True, slots=True)
class View:
    """What is seen of one job.

    `gang` is that of its newest workers. `refused`: the API server does not take its pods, and why.
    `problem`: it cannot be started as it is written. `ending`: the scheduler gives the places of
    these generations to others, why, and when it will evict who is still there.
    """

    job: Job
    suspend: bool
    pods: Sequence[JobPod]
    gang: GangStatus | None = None
    refused: str | None = None
    problem: str = ""
    ending: Mapping[int, tuple[str, float]] = field(default_factory=dict)


def advance(view: View, memory: Memory, now: float) -> tuple[Memory, Seen]:
    """What is remembered after this look, and what was seen."""
    memory = learn(memory, view.pods)
    before = memory.record
    refused = view.refused or no_room(view, before, now)
    seen = look(memory, view.pods, refused, not_whole(view, before, now))
    record = _give_way(view, before, now)
    gives_way = view.suspend or _must_go(view, record)
    record = lifecycle.want(record, Wish.SUSPEND if gives_way else Wish.RUN)
    record = lifecycle.advance(view.job, record, seen, now)
    record = _told_in_time(view, before, _within_bounds(view.job, record, now))
    excuses = memory.excuses
    if _is_excused(before, record, seen):
        long = before.state is State.RUNNING and now - before.since >= LONGEST_SECONDS
        excuses = 1 if long else excuses + 1
        pause = min(AGAIN_SECONDS * 2.0 ** min(excuses - 1, 16), LONGEST_SECONDS)
        record = replace(record, not_before=now + pause)
    if record.state is State.PENDING and not before.state.resting:
        record = replace(record, not_before=max(record.not_before, now + AGAIN_SECONDS))
    return msgspec.structs.replace(memory, record=record, excuses=excuses), seen


def no_room(view: View, record: Record, now: float) -> str | None:
    """Why workers that a job could do without do not get their places; None where they may yet."""
    gang = view.gang
    if gang is None or not could_be_fewer(view.job, record):
        return None
    late = now - record.since > ROOM_SECONDS
    if gang.phase == GangPhase.REFUSED or (late and gang.phase == GangPhase.WAITING):
        return f"no room for {record.size} workers: {gang.reason}"
    return None


def not_whole(view: View, record: Record, now: float) -> str | None:
    """Why workers that have their nodes, and that a job could do without, are given up."""
    late = now - record.since > WHOLE_SECONDS and record.leaving is None
    if not late or not could_be_fewer(view.job, record):
        return None
    bound = {slot_of(pod) for pod in view.pods if pod.spec.node_name}
    if any(slot not in bound for slot in record.slots):
        return None
    why = _held_up(view.pods) or "no more is known"
    return f"not all of {record.size} workers have come in {WHOLE_SECONDS:.0f} s: {why}"


def could_be_fewer(job: Job, record: Record) -> bool:
    """Whether workers are on their way that a job could do without."""
    return record.size > job.sizes.least and record.state in ON_THEIR_WAY


def _is_excused(before: Record, record: Record, seen: Seen) -> bool:
    """Whether it starts again for what was no fault of its own."""
    if before.leaving is not None or record.leaving is None:
        return False
    return record.leaving.then is State.PENDING and any(
        slot in seen.slots and seen.slots[slot].excused for slot in before.slots
    )


def _within_bounds(job: Job, record: Record, now: float) -> Record:
    """The job as large as its bounds allow, where they have changed."""
    sizes = job.sizes
    if sizes.least <= record.size <= sizes.most:
        return record
    size = sizes.most if record.size > sizes.most else sizes.least
    why = f"its workers are to be {sizes}"
    return lifecycle.resize(job, record, record.generation, size, now, why)


# --- what others have a right to ------------------------------------------------------------------


def _give_way(view: View, record: Record, now: float) -> Record:
    """A job that changes size as it runs goes on without the workers that end, where it can."""
    first = _first_to_end(view, record)
    if first is None or not view.job.live or view.suspend:
        return record
    why, _ = view.ending[record.slots[first].generation]
    return lifecycle.resize(view.job, record, record.generation, first, now, why)


def _must_go(view: View, record: Record) -> bool:
    """Whether all are to be told: some end for others, and are not on their way out yet.

    Where others are being stopped they are told when those have gone: who is told now, beside them,
    would be stopped as they are.
    """
    first, leaving = _first_to_end(view, record), record.leaving
    if first is None or record.state not in HEEDING:
        return False
    return leaving is None or (first < leaving.keep and leaving.stage is Stage.NOTICE)


def _first_to_end(view: View, record: Record) -> int | None:
    """The lowest rank whose place others have a right to."""
    ranks = (rank for rank, slot in enumerate(record.slots) if slot.generation in view.ending)
    return next(ranks, None)


def _told_in_time(view: View, before: Record, record: Record) -> Record:
    """The same with words of why it goes, and a notice that ends when the scheduler evicts."""
    first = _first_to_end(view, record)
    if first is None or record.leaving is None or record.leaving.stage is not Stage.NOTICE:
        return record
    why, until = view.ending[record.slots[first].generation]
    leaving = replace(record.leaving, until=min(record.leaving.until, until))
    begins = record.state is State.SUSPENDING and before.state is not State.SUSPENDING
    reason = f"asked to save: {why}" if begins and not view.suspend else record.reason
    return replace(record, leaving=leaving, reason=reason)


# --- what people are told -------------------------------------------------------------------------


def status_of(one: ElasticJob, view: View, memory: Memory, now: float) -> ElasticJobStatus:
    """The whole status."""
    record, before = memory.record, one.status
    phase, reason = str(record.state), _reason(view, record)
    ready = sum(pod.status.phase == "Running" for pod in view.pods)
    history = before.history
    last = history[-1] if history else None
    if last is None or (last.phase, last.generation) != (phase, record.generation):
        new = Transition(stamp(record.since), phase, record.generation, record.size, record.reason)
        history = (*history, new)[-HISTORY:]
    return ElasticJobStatus(
        phase=phase,
        reason=reason,
        generation=record.generation,
        workers=record.size,
        ready=ready,
        restarts=record.retries,
        resizes=record.resizes,
        selector=f"{JOB}={one.metadata.name}",
        observed_generation=one.metadata.generation,
        conditions=_conditions(view, record, reason, before.conditions, now),
        history=history,
        record=memory.encode(),
    )


def refused_status(status: ElasticJobStatus, problem: str, now: float) -> ElasticJobStatus:
    """The status of a job of which nothing is known but that it makes no sense."""
    others = tuple(one for one in status.conditions if one.type != ACCEPTED)
    refused = _since({ACCEPTED: (False, BAD, problem)}, status.conditions, now)
    return msgspec.structs.replace(
        status,
        phase=status.phase or State.PENDING,
        reason=problem,
        conditions=(*refused, *others),
    )


def problem_in(status: ElasticJobStatus) -> str:
    """Why a job is not accepted, by its status."""
    found = (one for one in status.conditions if one.type == ACCEPTED and one.status == "False")
    return next((one.message for one in found), "")


def _reason(view: View, record: Record) -> str:
    if view.problem and record.state is State.PENDING:
        return view.problem
    if record.state not in ON_THEIR_WAY:
        return record.reason
    gang = view.gang
    if gang is not None and gang.phase in {GangPhase.WAITING, GangPhase.REFUSED}:
        return f"{gang.phase.lower()}: {gang.reason}"
    return _held_up(view.pods) or record.reason


def _held_up(pods: Sequence[JobPod]) -> str:
    """What keeps a pod that has its node from running."""
    for pod in pods:
        every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
        for one in every if pod.spec.node_name else ():
            waiting = one.state.waiting
            if waiting is not None and waiting.message:
                return f"{pod.metadata.name}: {waiting.reason}: {waiting.message}"
    return ""


def _conditions(
    view: View, record: Record, reason: str, before: Sequence[Condition], now: float
) -> tuple[Condition, ...]:
    state, gang = record.state, view.gang
    on_its_way = state in ON_THEIR_WAY
    held = gang is not None and gang.phase in {GangPhase.WAITING, GangPhase.REFUSED}
    waits = on_its_way and held
    has_places = gang is not None and gang.phase in {GangPhase.RESERVED, GangPhase.BOUND}
    placed = not state.resting and (has_places or not on_its_way)
    facts = {
        ACCEPTED: (not view.problem, BAD if view.problem else "Sound", view.problem),
        "Placed": (placed, gang.phase if gang and waits else str(state), reason if waits else ""),
        "Suspended": (state is State.SUSPENDED, str(state), ""),
        "Complete": (state is State.SUCCEEDED, str(state), ""),
        "Failed": (state is State.FAILED, str(state), reason if state is State.FAILED else ""),
    }
    return _since(facts, before, now)


def _since(
    facts: Mapping[str, tuple[bool, str, str]], before: Sequence[Condition], now: float
) -> tuple[Condition, ...]:
    """Facts as conditions, each with the time since which it is so."""
    since = {(one.type, one.status): one.last_transition_time for one in before}
    found = []
    for kind, (so, word, text) in facts.items():
        said = "True" if so else "False"
        found.append(Condition(kind, said, word, text, since.get((kind, said), stamp(now))))
    return tuple(found)
