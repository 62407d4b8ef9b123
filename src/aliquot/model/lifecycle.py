"""The life cycle of a job: which of its workers start and stop, and when. A pure state machine.

The pool and Kubernetes use the same one. It decides what a start, a resize, a migration, a
suspension, a failure or the end of a job means for its workers: which of them stay, how the others
are stopped, and when a failed job is tried again. A `live` job that shrinks loses its workers of
the highest ranks; any other job stops as a whole and starts at its new size. How many workers a job
should have is decided in `placement.elastic`.

A controller repeats four steps: it reads the job's state, observes its workers, writes the state
that `advance` returns, and does the actions that `actions.due_actions` returns. It may die between
any two steps and is started again. Its actions may be lost, repeated or late. The machine relies on
these rules:

- *Slots.* A worker runs in a slot, named by its generation and rank. The platform guarantees that a
  slot runs at most one worker ever, and that a closed slot (its worker ended, or it was voided
  before one started) stays closed. So a repeated start finds the slot in use, and a late one finds
  it closed.
- *Levels, not edges.* Actions depend only on the stored state and on what is observed. An action
  that was lost is due again until it is observed to be done.
- *Generations.* Each set of workers has a number larger than all before it. A request to start or
  resize names the generation it was decided for, and has no effect on any other.
- *Freezing.* Where the platform can, a running job is suspended by freezing its workers: the
  processes stay and their GPU memory moves to the host (`JobState.frozen`). Their GPUs are given
  back when all workers are frozen, and are reserved again before the first is thawed. If one worker
  cannot be frozen, all are asked to save and stop. If one does not survive, all start again, which
  costs no retry.
- *One way to stop.* Workers get a notice, then SIGTERM, then SIGKILL (`Stopping`). The job enters
  its next phase only when their slots are closed and have no GPUs.
- *Time limits.* The time in which a job has workers that are not suspended counts. At its limit the
  workers get a notice and are stopped, and the job has failed. A run that was lost with its machine
  does not count.
- *Idle jobs.* A job that uses no GPU is reported and, if its queue's rule says so, stopped like one
  at its time limit (`follow_idle`). The time before its current phase does not count.
- *Ends.* A job ends when its last worker did, also if the controller was down then
  (`ObservedWorker.ended_at`).

It follows that no rank has two workers, that a job without running workers has no GPUs, and that
workers are gone before their GPUs are given away. How a worker ends while it is stopped for a
resize, a migration or a suspension does not matter: it is no failure and costs no retry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model.idle import IdleAction
from aliquot.model.job import Desired, JobPhase
from aliquot.model.job_state import (
    TIMED_OUT_CODE,
    UNRUNNABLE_CODE,
    Slot,
    Stage,
    Stopping,
    WorkerPhase,
)
from aliquot.model.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.model.idle import IdleRule
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState, ObservedJob, ObservedWorker

BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0


# --- requests from users and schedulers -----------------------------------------------------------


def start(job: Job, state: JobState, generation: int, size: int, now: float) -> JobState:
    """Give a pending job its workers. No effect if it is not pending any more."""
    waits = (
        state.phase is JobPhase.PENDING and state.desired is Desired.RUN and now >= state.not_before
    )
    if not waits or state.stopping is not None or generation != state.generation:
        return state
    if size not in job.sizes.allowed or (state.frozen and size != state.size):
        return state
    why = f"GPUs are free for {_workers(size)}"
    if state.frozen:
        return _thaw(replace(state, resized_at=now), now, why)
    return _add_workers(state, JobPhase.STARTING, size, now, why)


def resize(  # noqa: PLR0913, PLR0917 - all that a resize must say
    job: Job, state: JobState, generation: int, size: int, now: float, why: str
) -> JobState:
    """Resize a running job. No effect if it has changed since `generation`."""
    if not _can_change(state, generation) or size not in job.sizes.allowed or size == state.size:
        return state
    phase = JobPhase.GROWING if size > state.size else JobPhase.SHRINKING
    state = replace(state, resizes=state.resizes + 1)
    if job.live and size > state.size:
        return _add_workers(state, phase, size, now, why)
    keep = size if job.live else 0
    return _stop(job, state, phase, JobPhase.STARTING, now, why, keep=keep, size=size)


def migrate(job: Job, state: JobState, generation: int, now: float, why: str) -> JobState:
    """Restart a running job on other GPUs, at the same size."""
    if not _can_change(state, generation):
        return state
    state = replace(state, resizes=state.resizes + 1)
    return _stop(job, state, JobPhase.MIGRATING, JobPhase.STARTING, now, why, size=state.size)


def set_desired(state: JobState, desired: Desired) -> JobState:
    """Set what the user wants; `advance` brings it about. A cancelled job stays cancelled."""
    if state.phase.final or state.desired is Desired.CANCEL:
        return state
    return replace(state, desired=desired)


def abandon(state: JobState, now: float, why: str) -> JobState:
    """Cancel a job that waits for what will never happen. No effect if it has or had workers."""
    waits = state.phase in {JobPhase.PENDING, JobPhase.SUSPENDED} and not state.slots
    if not waits or state.stopping is not None:
        return state
    return _enter(replace(state, desired=Desired.CANCEL), JobPhase.CANCELLED, now, why)


def follow_idle(
    job: Job, state: JobState, idle_seconds: float | None, rule: IdleRule | None, now: float
) -> JobState:
    """Report or end a running job that uses no GPU, as its queue's rule says.

    A rule has no effect while it is not known for how long it has used none.
    """
    if not _can_change(state, state.generation) or (rule and idle_seconds is None):
        return state
    idle = min(idle_seconds or 0.0, now - state.since)
    if rule is None or idle < rule.after_seconds:
        if state.idle_reported is None:
            return state
        again = "" if rule is None else ": it uses its GPUs again"
        why = f"running with {_workers(state.size)}{again}"
        return replace(state, idle_reported=None, reason=why)
    report = rule.report(job.queue)
    if state.idle_reported is None or state.reason != report:
        return replace(state, idle_reported=now, reason=report)
    # By both: the clock may be set forward, and the rule may be new.
    grace = min(idle - rule.after_seconds, now - state.idle_reported)
    if rule.action is IdleAction.REPORT or grace < rule.grace_seconds:
        return state
    ended, why = replace(state, exit_code=TIMED_OUT_CODE), rule.why_ended(job.queue, idle)
    return _stop(job, ended, state.phase, JobPhase.FAILED, now, why)


def _can_change(state: JobState, generation: int) -> bool:
    return (
        state.phase is JobPhase.RUNNING
        and state.stopping is None
        and state.desired is Desired.RUN
        and state.generation == generation
    )


# --- one step -------------------------------------------------------------------------------------


def advance(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    """The state that follows from what is observed; the same state if nothing changes."""
    if state.phase.final:
        return state
    if state.stopping is not None:
        return _continue_stopping(job, state, state.stopping, observed, now)
    if state.frozen:
        return _keep_frozen(job, state, observed, now)
    if state.phase.inactive:
        return _wait(job, state, now)
    if state.desired is not Desired.RUN:
        return _fulfil_request(job, state, observed, now)
    after = _check_workers(job, state, observed, now)
    return _time_out(job, state, now) if after is state and _out_of_time(job, state, now) else after


def _wait(job: Job, state: JobState, now: float) -> JobState:
    """A pending or suspended job has no running workers, so a request takes effect at once."""
    match state.desired, state.phase:
        case Desired.CANCEL, _:
            return _enter(state, JobPhase.CANCELLED, now, "cancelled")
        case Desired.SUSPEND, JobPhase.PENDING:
            why = "suspended again" if state.frozen else "suspended before it ran"
            return _enter(state, JobPhase.SUSPENDED, now, why)
        case Desired.RUN, JobPhase.SUSPENDED:
            return _enter(state, JobPhase.PENDING, now, "resumed")
        case Desired.RUN, _ if _out_of_time(job, state, now) and not state.frozen:
            ended = replace(state, exit_code=TIMED_OUT_CODE)
            return _enter(ended, JobPhase.FAILED, now, _limit_reached(job))
        case _:
            return state


def _fulfil_request(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    """The user wants a job suspended or cancelled that has workers."""
    if state.desired is Desired.SUSPEND and _freezable(state, observed):
        why = "suspending: its GPU memory moves to the host"
        asked = replace(state, frozen=True, generation=state.generation + 1)
        return _enter(asked, JobPhase.SUSPENDING, now, why)
    if state.desired is Desired.SUSPEND:
        return _ask_to_save(job, state, observed.unfreezable or "", now)
    then, why = JobPhase.CANCELLED, "cancelled"
    return _stop(job, state, JobPhase.CANCELLING, then, now, why, stage=Stage.TERM)


def _out_of_time(job: Job, state: JobState, now: float) -> bool:
    return job.time_seconds is not None and state.used(now) >= job.time_seconds


def _time_out(job: Job, state: JobState, now: float) -> JobState:
    """Stop a job that has reached its time limit, with notice."""
    ended = replace(state, exit_code=TIMED_OUT_CODE)
    return _stop(job, ended, state.phase, JobPhase.FAILED, now, _limit_reached(job))


def _limit_reached(job: Job) -> str:
    return f"it has reached its time limit of {format_duration(job.time_seconds or 0.0)}"


def _check_workers(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    """Follow workers that start, run and end by themselves."""
    ended = _ended(state, observed)
    if (failed := _first_failed(ended)) is not None:
        return _fail(job, state, failed, ended[failed], now)
    if len(ended) == state.size:
        return _succeed(job, state, observed, now)
    if state.phase is JobPhase.RUNNING:
        return state
    return _await_start(job, state, observed, now)


def _await_start(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    """Wait until new workers run and frozen ones are thawed; give up if that is impossible."""
    frozen = [slot for slot in state.slots if observed.frozen(slot)]
    if (error := _first_freeze_error(frozen, observed)) is not None:
        rank, why = error
        return _restart_after_freeze(job, state, rank, f"could not be thawed ({why})", now)
    whole = all(slot in observed.slots for slot in state.slots)
    wanting = [*_newest(state), *frozen]
    trouble = None if all(slot in observed.allocated for slot in wanting) else observed.refused
    if trouble is None and not whole:
        trouble = observed.blocked
    if trouble is not None:
        return _abandon_start(job, state, trouble, now)
    if frozen or not whole:
        return _tell_why_late(state, frozen, observed)
    return _enter(state, JobPhase.RUNNING, now, f"running with {_workers(state.size)}")


def _tell_why_late(state: JobState, frozen: list[Slot], observed: ObservedJob) -> JobState:
    found = (observed.slots[slot].late for slot in frozen)
    late = next((why for why in found if why is not None), None)
    why = state.reason if late is None else f"not resumed yet: {late}"
    return state if why == state.reason else replace(state, reason=why)


def _fail(job: Job, state: JobState, rank: int, worker: ObservedWorker, now: float) -> JobState:
    """A worker failed: start all again, or fail the job."""
    if _is_thawing(state):
        return _restart_after_freeze(job, state, rank, _how_it_ended(worker), now)
    what, at = f"worker {rank} {_how_it_ended(worker)}", _end_of([worker], state, now)
    if worker.phase is WorkerPhase.VOID or worker.disrupted:  # not the job's fault
        lost = state if state.active_since is None else replace(state, active_since=now)
        return _stop(job, lost, state.phase, JobPhase.PENDING, now, what, stage=Stage.TERM)
    if worker.unrunnable is not None or state.retries >= job.retries:
        used = f" ({state.retries} of {job.retries} retries used)" if job.retries else ""
        failed = replace(state, exit_code=_exit_code(worker))
        why = f"{what}{used}"
        return _stop(job, failed, state.phase, JobPhase.FAILED, now, why, stage=Stage.TERM, at=at)
    number = state.retries + 1
    pause = min(BACKOFF_SECONDS * 2.0 ** min(state.retries, 16), LONGEST_BACKOFF_SECONDS)
    again = replace(state, retries=number, not_before=now + pause)
    why = f"{what}: retry {number} of {job.retries}"
    return _stop(job, again, state.phase, JobPhase.PENDING, now, why, stage=Stage.TERM, at=at)


def _succeed(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    why = "its worker has finished" if state.size == 1 else "all workers have finished"
    at = _end_of(_ended(state, observed).values(), state, now)
    return _stop(job, state, state.phase, JobPhase.SUCCEEDED, now, why, stage=Stage.KILL, at=at)


def _abandon_start(job: Job, state: JobState, why: str, now: float) -> JobState:
    """Stop waiting for new workers. Older workers keep running; frozen ones stay frozen."""
    if _is_thawing(state):
        again = replace(state, frozen=True, not_before=now + BACKOFF_SECONDS)
        return _enter(again, JobPhase.SUSPENDING, now, why)
    keep = state.size - len(_newest(state))
    then = JobPhase.STARTING if keep else JobPhase.PENDING
    later = replace(state, not_before=now + BACKOFF_SECONDS)
    return _stop(job, later, state.phase, then, now, why, stage=Stage.KILL, keep=keep, size=keep)


# --- freezing -------------------------------------------------------------------------------------


def _freezable(state: JobState, observed: ObservedJob) -> bool:
    """Whether freezing is supported and all workers have started."""
    whole = state.stopping is None and all(slot in observed.slots for slot in state.slots)
    return observed.unfreezable is None and whole


def _keep_frozen(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    """Workers are frozen or are being frozen."""
    ended = _ended(state, observed)
    if state.desired is Desired.CANCEL:
        then, why = JobPhase.CANCELLED, "cancelled"
        return _stop(job, state, JobPhase.CANCELLING, then, now, why, stage=Stage.KILL)
    if (failed := _first_failed(ended)) is not None:
        return _restart_after_freeze(job, state, failed, _how_it_ended(ended[failed]), now)
    if len(ended) == state.size:
        return _succeed(job, state, observed, now)
    if state.phase.inactive:
        return _wait(job, state, now)
    return _continue_freezing(job, state, observed, now)


def _continue_freezing(job: Job, state: JobState, observed: ObservedJob, now: float) -> JobState:
    alive = [slot for slot in state.slots if observed.alive(slot)]
    running = [slot for slot in alive if not observed.stays_frozen(slot)]
    if (error := _first_freeze_error(running, observed)) is not None:
        return _abandon_freeze(job, state, error[1], now)
    if running or any(slot in observed.allocated for slot in alive):
        return state
    return _enter(state, JobPhase.SUSPENDED, now, "suspended: its GPU memory is on the host")


def _abandon_freeze(job: Job, state: JobState, why: str, now: float) -> JobState:
    """One worker cannot be frozen: thaw the others, then ask all to save unless they may run.

    Swappable ones run: their memory may leave another time.
    """
    if state.desired is Desired.RUN:
        return _thaw(state, now, f"resumed: {why}")
    if job.request.swap:  # its user chose that it is never stopped for this
        return _thaw(set_desired(state, Desired.RUN), now, f"not suspended: {why}")
    return _ask_to_save(job, replace(state, frozen=False), why, now)


def _ask_to_save(job: Job, state: JobState, unfreezable: str, now: float) -> JobState:
    because = f", because it cannot be frozen: {unfreezable}" if unfreezable else ""
    why = f"suspended by the user: asked to save{because}"
    return _stop(job, state, JobPhase.SUSPENDING, JobPhase.SUSPENDED, now, why)


def _restart_after_freeze(job: Job, state: JobState, rank: int, how: str, now: float) -> JobState:
    """A worker did not survive being frozen: all start again. That is not the job's fault."""
    then = JobPhase.SUSPENDED if state.desired is Desired.SUSPEND else JobPhase.PENDING
    why = f"worker {rank} {how} while it was suspended: restarting from its last checkpoint"
    return _stop(job, state, state.phase, then, now, why, stage=Stage.KILL)


def _thaw(state: JobState, now: float, why: str) -> JobState:
    again = replace(state, frozen=False, generation=state.generation + 1)
    return _enter(again, JobPhase.STARTING, now, why)


# --- stopping workers -----------------------------------------------------------------------------

_PRECEDENCE = {
    JobPhase.STARTING: 0,
    JobPhase.PENDING: 1,
    JobPhase.SUSPENDED: 2,
    JobPhase.CANCELLED: 3,
    JobPhase.FAILED: 4,
    JobPhase.SUCCEEDED: 4,
}


def _continue_stopping(
    job: Job, state: JobState, stopping: Stopping, observed: ObservedJob, now: float
) -> JobState:
    stopped = state.slots[stopping.keep :]
    if state.desired is not Desired.RUN:
        wanted = JobPhase.SUSPENDED if state.desired is Desired.SUSPEND else JobPhase.CANCELLED
        timed_out = stopping.then is JobPhase.FAILED and stopping.stage is Stage.NOTICE
        if _PRECEDENCE[wanted] > _PRECEDENCE[stopping.then] or (
            timed_out and wanted is JobPhase.CANCELLED
        ):
            return _fulfil_request(job, state, observed, now)
    elif stopping.then is JobPhase.STARTING and _out_of_time(job, state, now):
        return _time_out(job, state, now)
    if stopping.stage is Stage.NOTICE and _all_succeeded(state, observed):
        why = "all workers finished before they were stopped"
        at = _end_of(_ended(state, observed).values(), state, now)
        return _stop(job, state, state.phase, JobPhase.SUCCEEDED, now, why, stage=Stage.KILL, at=at)
    if all(observed.gone(slot) for slot in stopped):
        at = _end_of([observed.slots[slot] for slot in stopped], state, now)
        return _finish_stopping(state, stopping, now, at)
    addressed = state.slots if stopping.stage is Stage.NOTICE else stopped
    if stopping.stage is Stage.NOTICE and all(
        slot not in observed.slots or observed.ready(slot) for slot in addressed
    ):
        return _escalate(job, state, stopping, now)
    return _escalate(job, state, stopping, now) if now >= stopping.until else state


def _all_succeeded(state: JobState, observed: ObservedJob) -> bool:
    """Whether all workers ended with exit code 0 and none of them because of the notice."""
    workers = [observed.slots.get(slot) for slot in state.slots]
    return all(
        worker is not None
        and worker.phase is WorkerPhase.ENDED
        and worker.code == 0
        and not worker.ready
        for worker in workers
    )


def _escalate(job: Job, state: JobState, stopping: Stopping, now: float) -> JobState:
    if stopping.stage is Stage.KILL:
        return state
    stage = Stage(stopping.stage + 1)
    until = now + (job.grace_seconds if stage is Stage.TERM else 0.0)
    return replace(state, stopping=replace(stopping, stage=stage, until=until))


def _finish_stopping(state: JobState, stopping: Stopping, now: float, ended: float) -> JobState:
    """The workers were gone at the time `ended`."""
    kept = replace(state, slots=state.slots[: stopping.keep], stopping=None, frozen=False)
    if stopping.then is not JobPhase.STARTING:
        return _enter(kept, stopping.then, ended, state.reason)
    if stopping.size == stopping.keep:  # a live job runs on with the workers it keeps
        again = replace(kept, generation=state.generation + 1, resized_at=now)
        return _enter(again, JobPhase.RUNNING, now, f"running on with {_workers(stopping.size)}")
    return _add_workers(kept, JobPhase.STARTING, stopping.size, now, state.reason)


def _stop(  # noqa: PLR0913, PLR0917 - one for each part of the state
    job: Job,
    state: JobState,
    phase: JobPhase,
    then: JobPhase,
    now: float,
    why: str,
    *,
    stage: Stage = Stage.NOTICE,
    keep: int = 0,
    size: int = 0,
    at: float | None = None,
) -> JobState:
    """Begin to stop workers now; `at`: the job has been in that phase since then."""
    if state.stopping is not None:  # a later stage is never taken back
        stage = max(stage, state.stopping.stage)
    wait = {Stage.NOTICE: job.notice_seconds, Stage.TERM: job.grace_seconds, Stage.KILL: 0.0}
    stopping = Stopping(then, stage, now + wait[stage], keep, size)
    return _enter(replace(state, stopping=stopping), phase, now if at is None else at, why)


# --- helpers --------------------------------------------------------------------------------------


def _add_workers(state: JobState, phase: JobPhase, size: int, now: float, why: str) -> JobState:
    number = state.generation + 1
    more = tuple(Slot(number, rank) for rank in range(state.size, size))
    return _enter(
        replace(state, generation=number, slots=state.slots + more, resized_at=now),
        phase,
        now,
        why,
    )


def _ended(state: JobState, observed: ObservedJob) -> dict[int, ObservedWorker]:
    return {slot.rank: observed.slots[slot] for slot in state.slots if observed.closed(slot)}


def _end_of(workers: Collection[ObservedWorker], state: JobState, now: float) -> float:
    """When the last of these workers ended; now, unless all ends are known."""
    ends = [worker.ended_at for worker in workers if worker.ended_at is not None]
    if not ends or len(ends) < len(workers):
        return now
    return min(now, max(state.since, *ends))


def _first_freeze_error(slots: list[Slot], observed: ObservedJob) -> tuple[int, str] | None:
    """The rank of the first worker that cannot be frozen or thawed, and why."""
    found = ((slot.rank, observed.slots[slot].freeze_error) for slot in slots)
    return next(((rank, why) for rank, why in found if why is not None), None)


def _first_failed(ended: Mapping[int, ObservedWorker]) -> int | None:
    """The rank that caused the failure, disrupted ones first; None if none failed."""
    failed = [rank for rank, worker in ended.items() if worker.code != 0]
    return min(failed, key=lambda rank: (not ended[rank].disrupted, rank), default=None)


def _newest(state: JobState) -> list[Slot]:
    return [slot for slot in state.slots if slot.generation == state.generation]


def _enter(state: JobState, phase: JobPhase, now: float, why: str) -> JobState:
    """The state in that phase. The time of its limit runs while the phase is not inactive."""
    ended = phase in {JobPhase.SUCCEEDED, JobPhase.FAILED}
    if ended and state.started is None:  # it ended before all its workers were seen to run
        state = replace(state, started=state.active_since)
    if phase.inactive:
        state = replace(state, used_seconds=state.used(now), active_since=None)
    elif state.active_since is None:
        state = replace(state, active_since=now)
    if phase is JobPhase.RUNNING and state.started is None:
        state = replace(state, started=now)
    return replace(state, phase=phase, since=now, reason=why, idle_reported=None)


def _is_thawing(state: JobState) -> bool:
    """Whether it is starting by thawing the workers it had."""
    return state.phase is JobPhase.STARTING and not _newest(state)


def _exit_code(worker: ObservedWorker) -> int:
    """The exit code of a job whose worker failed so; a signal counts as in a shell."""
    if worker.unrunnable is not None:
        return UNRUNNABLE_CODE
    if worker.code is None:
        return 1
    return 128 - worker.code if worker.code < 0 else worker.code


def _how_it_ended(worker: ObservedWorker) -> str:
    if worker.unrunnable is not None:
        return f"could not run: {worker.unrunnable}"
    if worker.phase is WorkerPhase.VOID:
        return "was never started"
    if worker.disrupted:
        return worker.note or "ended when its machine went down"
    if worker.code is None:
        return f"ended: {worker.note}" if worker.note else "was lost: how it ended is unknown"
    more = f" ({worker.note})" if worker.note else ""
    if worker.code < 0:
        return f"was killed by signal {-worker.code}{more}"
    return f"ended with exit code {worker.code}{more}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
