"""One step of a job by `model.lifecycle`: from what is observed to state and status. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.elasticjob import ElasticJobStatus, Transition
from aliquot.kubernetes.api.gang import Phase as GangPhase
from aliquot.kubernetes.api.names import JOB
from aliquot.kubernetes.api.queue import Condition
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.jobs.codec import encode_state
from aliquot.kubernetes.jobs.observe import observe_job, remember_ended, slot_of
from aliquot.model import lifecycle
from aliquot.model.job import Desired, JobPhase
from aliquot.model.job_state import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.kubernetes.api.elasticjob import ElasticJob, JobPod
    from aliquot.kubernetes.api.gang import GangStatus
    from aliquot.kubernetes.jobs.codec import SavedState
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState, ObservedJob

RESTART_SECONDS = 2.0  # between two starts, whatever ended the first
LONGEST_RESTART_SECONDS = 300.0  # after many disruptions; a run this long resets their count
CAPACITY_SECONDS = 15.0  # for a gang to be placed, if the job could start smaller
START_SECONDS = 300.0  # for placed workers to run, if the job could start smaller
HISTORY = 20
ACCEPTED, INVALID = "Accepted", "InvalidSpec"
WORKERS_PENDING = {JobPhase.STARTING, JobPhase.GROWING}
HAS_WORKERS = {JobPhase.RUNNING, JobPhase.GROWING, JobPhase.SHRINKING}  # workers may have to save


@dataclass(frozen=True, slots=True)
class StepInput:
    """Everything that one step of a job depends on.

    - `gang`: the gang of its newest workers.
    - `refused`: why the API server refuses its pods.
    - `problem`: why its spec cannot be started.
    - `evictions`: the generations that the scheduler preempts, with the reason and the time of the
      eviction.
    """

    job: Job
    suspend: bool
    pods: Sequence[JobPod]
    gang: GangStatus | None = None
    refused: str | None = None
    problem: str = ""
    evictions: Mapping[int, tuple[str, float]] = field(default_factory=dict)


def advance(given: StepInput, saved: SavedState, now: float) -> tuple[SavedState, ObservedJob]:
    """The saved state after this step, and the observed workers."""
    saved = remember_ended(saved, given.pods)
    before = saved.state
    refused = given.refused or no_capacity(given, before, now)
    observed = observe_job(saved, given.pods, refused, start_overdue(given, before, now))
    state = _shrink_for_eviction(given, before, now)
    must_stop = given.suspend or _must_stop_for_eviction(given, state)
    state = lifecycle.set_desired(state, Desired.SUSPEND if must_stop else Desired.RUN)
    state = lifecycle.advance(given.job, state, observed, now)
    state = _with_eviction_deadline(given, before, _within_bounds(given.job, state, now))
    disruptions = saved.disruptions
    if _is_disrupted(before, state, observed):
        long = before.phase is JobPhase.RUNNING and now - before.since >= LONGEST_RESTART_SECONDS
        disruptions = 1 if long else disruptions + 1
        pause = min(RESTART_SECONDS * 2.0 ** min(disruptions - 1, 16), LONGEST_RESTART_SECONDS)
        state = replace(state, not_before=now + pause)
    if state.phase is JobPhase.PENDING and not before.phase.inactive:
        state = replace(state, not_before=max(state.not_before, now + RESTART_SECONDS))
    return msgspec.structs.replace(saved, state=state, disruptions=disruptions), observed


def no_capacity(given: StepInput, state: JobState, now: float) -> str | None:
    """Why workers get no GPUs although the job could start smaller; None if they still may."""
    gang = given.gang
    if gang is None or not could_start_smaller(given.job, state):
        return None
    late = now - state.since > CAPACITY_SECONDS
    if gang.phase == GangPhase.REFUSED or (late and gang.phase == GangPhase.WAITING):
        return f"not enough free GPUs for {state.size} workers: {gang.reason}"
    return None


def start_overdue(given: StepInput, state: JobState, now: float) -> str | None:
    """Why to give up on workers that have nodes but do not run, if the job could start smaller."""
    late = now - state.since > START_SECONDS and state.stopping is None
    if not late or not could_start_smaller(given.job, state):
        return None
    bound = {slot_of(pod) for pod in given.pods if pod.spec.node_name}
    if any(slot not in bound for slot in state.slots):
        return None
    why = _waiting_container(given.pods) or "no reason is known"
    return f"not all of {state.size} workers started within {START_SECONDS:.0f} s: {why}"


def could_start_smaller(job: Job, state: JobState) -> bool:
    """Whether new workers are pending and the job could run with fewer."""
    return state.size > job.sizes.least and state.phase in WORKERS_PENDING


def _is_disrupted(before: JobState, state: JobState, observed: ObservedJob) -> bool:
    """Whether this step restarts the job for a reason that is not its fault."""
    if before.stopping is not None or state.stopping is None:
        return False
    return state.stopping.then is JobPhase.PENDING and any(
        slot in observed.slots and observed.slots[slot].disrupted for slot in before.slots
    )


def _within_bounds(job: Job, state: JobState, now: float) -> JobState:
    """Resize the job into its bounds if they have changed."""
    sizes = job.sizes
    if sizes.least <= state.size <= sizes.most:
        return state
    size = sizes.most if state.size > sizes.most else sizes.least
    why = f"its workers must be {sizes}"
    return lifecycle.resize(job, state, state.generation, size, now, why)


# --- preemption by the scheduler ------------------------------------------------------------------


def _shrink_for_eviction(given: StepInput, state: JobState, now: float) -> JobState:
    """A live job shrinks below the workers that will be evicted, if it can."""
    first = _first_evicted(given, state)
    if first is None or not given.job.live or given.suspend:
        return state
    why, _ = given.evictions[state.slots[first].generation]
    return lifecycle.resize(given.job, state, state.generation, first, now, why)


def _must_stop_for_eviction(given: StepInput, state: JobState) -> bool:
    """Whether to stop all workers because some will be evicted and are not stopping yet.

    While other workers are past their notice this waits until they are gone: a worker that is
    notified now would be stopped with them, without its full notice.
    """
    first, stopping = _first_evicted(given, state), state.stopping
    if first is None or state.phase not in HAS_WORKERS:
        return False
    return stopping is None or (first < stopping.keep and stopping.stage is Stage.NOTICE)


def _first_evicted(given: StepInput, state: JobState) -> int | None:
    """The lowest rank that will be evicted."""
    ranks = (rank for rank, slot in enumerate(state.slots) if slot.generation in given.evictions)
    return next(ranks, None)


def _with_eviction_deadline(given: StepInput, before: JobState, state: JobState) -> JobState:
    """The state with the eviction's reason, and a notice that ends when the scheduler evicts."""
    first = _first_evicted(given, state)
    if first is None or state.stopping is None or state.stopping.stage is not Stage.NOTICE:
        return state
    why, until = given.evictions[state.slots[first].generation]
    stopping = replace(state.stopping, until=min(state.stopping.until, until))
    begins = state.phase is JobPhase.SUSPENDING and before.phase is not JobPhase.SUSPENDING
    reason = f"asked to save: {why}" if begins and not given.suspend else state.reason
    return replace(state, stopping=stopping, reason=reason)


# --- status ---------------------------------------------------------------------------------------


def status_of(one: ElasticJob, given: StepInput, saved: SavedState, now: float) -> ElasticJobStatus:
    """The whole status of the object."""
    state, before = saved.state, one.status
    phase, reason = str(state.phase), _reason(given, state)
    ready = sum(pod.status.phase == "Running" for pod in given.pods)
    history = before.history
    last = history[-1] if history else None
    if last is None or (last.phase, last.generation) != (phase, state.generation):
        new = Transition(stamp(state.since), phase, state.generation, state.size, state.reason)
        history = (*history, new)[-HISTORY:]
    return ElasticJobStatus(
        phase=phase,
        reason=reason,
        generation=state.generation,
        workers=state.size,
        ready=ready,
        restarts=state.retries,
        resizes=state.resizes,
        selector=f"{JOB}={one.metadata.name}",
        observed_generation=one.metadata.generation,
        conditions=_conditions(given, state, reason, before.conditions, now),
        history=history,
        controller_state=encode_state(saved),
    )


def invalid_status(status: ElasticJobStatus, problem: str, now: float) -> ElasticJobStatus:
    """The status of a job whose spec or saved state is invalid."""
    others = tuple(one for one in status.conditions if one.type != ACCEPTED)
    refused = _with_times({ACCEPTED: (False, INVALID, problem)}, status.conditions, now)
    return msgspec.structs.replace(
        status,
        phase=status.phase or JobPhase.PENDING,
        reason=problem,
        conditions=(*refused, *others),
    )


def problem_in(status: ElasticJobStatus) -> str:
    """Why a job is not accepted; empty if it is."""
    found = (one for one in status.conditions if one.type == ACCEPTED and one.status == "False")
    return next((one.message for one in found), "")


def _reason(given: StepInput, state: JobState) -> str:
    if given.problem and state.phase is JobPhase.PENDING:
        return given.problem
    if state.phase not in WORKERS_PENDING:
        return state.reason
    gang = given.gang
    if gang is not None and gang.phase in {GangPhase.WAITING, GangPhase.REFUSED}:
        return f"{gang.phase.lower()}: {gang.reason}"
    return _waiting_container(given.pods) or state.reason


def _waiting_container(pods: Sequence[JobPod]) -> str:
    """Why a container of a pod with a node is waiting; empty if none is."""
    for pod in pods:
        every = (*pod.status.init_container_statuses, *pod.status.container_statuses)
        for one in every if pod.spec.node_name else ():
            waiting = one.state.waiting
            if waiting is not None and waiting.message:
                return f"{pod.metadata.name}: {waiting.reason}: {waiting.message}"
    return ""


def _conditions(
    given: StepInput, state: JobState, reason: str, before: Sequence[Condition], now: float
) -> tuple[Condition, ...]:
    phase, gang = state.phase, given.gang
    on_its_way = phase in WORKERS_PENDING
    allocated = gang is not None and gang.phase in {GangPhase.WAITING, GangPhase.REFUSED}
    waits = on_its_way and allocated
    has_places = gang is not None and gang.phase in {GangPhase.RESERVED, GangPhase.BOUND}
    placed = not phase.inactive and (has_places or not on_its_way)
    facts = {
        ACCEPTED: (not given.problem, INVALID if given.problem else "Valid", given.problem),
        "Placed": (placed, gang.phase if gang and waits else str(phase), reason if waits else ""),
        "Suspended": (phase is JobPhase.SUSPENDED, str(phase), ""),
        "Complete": (phase is JobPhase.SUCCEEDED, str(phase), ""),
        "Failed": (
            phase is JobPhase.FAILED,
            str(phase),
            reason if phase is JobPhase.FAILED else "",
        ),
    }
    return _with_times(facts, before, now)


def _with_times(
    facts: Mapping[str, tuple[bool, str, str]], before: Sequence[Condition], now: float
) -> tuple[Condition, ...]:
    """The facts as conditions, each with the time of its last transition."""
    since = {(one.type, one.status): one.last_transition_time for one in before}
    found = []
    for kind, (holds, reason, text) in facts.items():
        status = "True" if holds else "False"
        found.append(Condition(kind, status, reason, text, since.get((kind, status), stamp(now))))
    return tuple(found)
