"""What a job does next: one pure state machine for the pool and for Kubernetes.

The controller of a job repeats four steps: it reads the record, looks at the world, writes the
record that `advance` answers, and does what `due` says. It may die between any two of them and is
started again; what it does may be lost, done twice or done late. The machine lives with that:

- *Slots.* A worker runs in a slot, named by the generation that made it and by its rank. The world
  promises that a slot runs at most one worker ever, and that a slot that is closed (its worker
  ended, or it was voided before one came) stays closed. All else follows from names: what is done
  twice finds the slot taken, what is done late finds it closed.
- *Levels, not edges.* `due` looks only at the record as it was written and at the world. What was
  lost is said again until it is seen to be done.
- *Generations.* Each set of workers has a number of its own, larger than all before. Whoever asks
  for a start or a resize names the generation that was looked at; for another one nothing happens.
- *One way out.* Workers that must go are told, then sent SIGTERM, then killed (`Leaving`). A job
  enters the state that comes after only when their slots are closed and nothing is held for them.

So no rank has two workers, a job without workers holds nothing, and what was asked to go is gone
before its place is given away. A worker that is stopped for a resize, a move or a suspension may
end as it likes: that is no failure and costs no retry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model.job import State, Wish
from aliquot.model.record import Action, Leaving, Phase, Slot, Stage, Verb

if TYPE_CHECKING:
    from aliquot.model.job import Job
    from aliquot.model.record import Record, Seen, Sight

BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0


# --- what others ask for --------------------------------------------------------------------------


def start(job: Job, record: Record, generation: int, size: int, now: float) -> Record:
    """Give a waiting job its workers; nothing where it does not wait any more."""
    waits = record.state is State.PENDING and record.wish is Wish.RUN and now >= record.not_before
    if not waits or generation != record.generation or size not in job.sizes.allowed:
        return record
    return _with_workers(record, State.STARTING, size, now, f"there is room for {_workers(size)}")


def resize(  # noqa: PLR0913, PLR0917 - all that a word about a size must say
    job: Job, record: Record, generation: int, size: int, now: float, why: str
) -> Record:
    """Ask a running job for another size; nothing where it is not that job any more."""
    if not _movable(record, generation) or size not in job.sizes.allowed or size == record.size:
        return record
    state = State.GROWING if size > record.size else State.SHRINKING
    record = replace(record, resizes=record.resizes + 1)
    if job.live and size > record.size:
        return _with_workers(record, state, size, now, why)
    keep = size if job.live else 0
    return _leave(job, record, state, State.STARTING, now, why, keep=keep, size=size)


def migrate(job: Job, record: Record, generation: int, now: float, why: str) -> Record:
    """Ask a running job to start again elsewhere, at the size it has."""
    if not _movable(record, generation):
        return record
    record = replace(record, resizes=record.resizes + 1)
    return _leave(job, record, State.MIGRATING, State.STARTING, now, why, size=record.size)


def want(record: Record, wish: Wish) -> Record:
    """What its user wants now. `advance` brings it about; a cancelled job stays cancelled."""
    if record.state.final or record.wish is Wish.CANCEL:
        return record
    return replace(record, wish=wish)


def _movable(record: Record, generation: int) -> bool:
    return (
        record.state is State.RUNNING
        and record.leaving is None
        and record.wish is Wish.RUN
        and record.generation == generation
    )


# --- one step -------------------------------------------------------------------------------------


def advance(job: Job, record: Record, seen: Seen, now: float) -> Record:
    """The record after one look at the world; the same one where nothing has changed."""
    if record.state.final:
        return record
    if record.leaving is not None:
        return _go_on_leaving(job, record, record.leaving, seen, now)
    if record.state.resting:
        return _rest(record, now)
    if record.wish is not Wish.RUN:
        return _obey(job, record, now)
    return _watch(job, record, seen, now)


def due(record: Record, seen: Seen) -> list[Action]:
    """What must be done now for the world to become what the record says."""
    actions = _clear_up(record, seen)
    leaving = record.leaving
    keep = record.size if leaving is None else leaving.keep
    if leaving is not None:
        actions += _see_off(record.slots, keep, leaving, seen)
    else:
        actions += _bring_in(record.slots, seen)
    return [action for action in actions if action.slots]


def _rest(record: Record, now: float) -> Record:
    """Pending and suspended jobs have nothing that could be in the way."""
    match record.wish, record.state:
        case Wish.CANCEL, _:
            return _enter(record, State.CANCELLED, now, "cancelled")
        case Wish.SUSPEND, State.PENDING:
            return _enter(record, State.SUSPENDED, now, "suspended before it ran")
        case Wish.RUN, State.SUSPENDED:
            return _enter(record, State.PENDING, now, "resumed")
        case _:
            return record


def _obey(job: Job, record: Record, now: float) -> Record:
    """Its user wants it suspended or cancelled."""
    if record.wish is Wish.SUSPEND:
        return _leave(
            job, record, State.SUSPENDING, State.SUSPENDED, now, "suspended: asked to save"
        )
    return _leave(job, record, record.state, State.CANCELLED, now, "cancelled", stage=Stage.TERM)


def _watch(job: Job, record: Record, seen: Seen, now: float) -> Record:
    """Workers come, run and end by themselves."""
    ended = {slot.rank: seen.slots[slot] for slot in record.slots if seen.closed(slot)}
    if failed := {rank: sight for rank, sight in ended.items() if sight.code != 0}:
        first = min(failed, key=lambda rank: (not failed[rank].excused, rank))
        return _fail(job, record, first, failed[first], now)
    if len(ended) == record.size:
        why = "its worker has finished" if record.size == 1 else "all workers have finished"
        return _leave(job, record, record.state, State.SUCCEEDED, now, why, stage=Stage.KILL)
    if record.state is State.RUNNING:
        return record
    whole = all(slot in seen.slots for slot in record.slots)
    trouble = None if all(slot in seen.held for slot in _new(record)) else seen.refused
    if trouble is None and not whole:
        trouble = seen.stuck
    if trouble is not None:
        return _give_up_start(job, record, trouble, now)
    if not whole:
        return record
    return _enter(record, State.RUNNING, now, f"runs with {_workers(record.size)}")


def _fail(job: Job, record: Record, rank: int, sight: Sight, now: float) -> Record:
    """A worker ended as it should not: all start again, or the job has failed."""
    what = f"worker {rank} {_how(sight)}"
    if sight.phase is Phase.VOID or sight.excused:  # no fault of the job's
        return _leave(job, record, record.state, State.PENDING, now, what, stage=Stage.TERM)
    if sight.unrunnable is not None or record.retries >= job.retries:
        used = f" ({record.retries} of {job.retries} retries used)" if job.retries else ""
        return _leave(
            job, record, record.state, State.FAILED, now, f"{what}{used}", stage=Stage.TERM
        )
    number = record.retries + 1
    pause = min(BACKOFF_SECONDS * 2.0 ** min(record.retries, 16), LONGEST_BACKOFF_SECONDS)
    again = replace(record, retries=number, not_before=now + pause)
    why = f"{what}: retry {number} of {job.retries}"
    return _leave(job, again, record.state, State.PENDING, now, why, stage=Stage.TERM)


def _give_up_start(job: Job, record: Record, why: str, now: float) -> Record:
    """They do not all come after all. Workers that ran before run on."""
    keep = record.size - len(_new(record))
    then = State.STARTING if keep else State.PENDING
    later = replace(record, not_before=now + BACKOFF_SECONDS)
    return _leave(job, later, record.state, then, now, why, stage=Stage.KILL, keep=keep, size=keep)


# --- leaving --------------------------------------------------------------------------------------

_FIRMNESS = {
    State.STARTING: 0,
    State.PENDING: 1,
    State.SUSPENDED: 2,
    State.CANCELLED: 3,
    State.FAILED: 4,
    State.SUCCEEDED: 4,
}


def _go_on_leaving(job: Job, record: Record, leaving: Leaving, seen: Seen, now: float) -> Record:
    going = record.slots[leaving.keep :]
    if record.wish is not Wish.RUN:
        wanted = State.SUSPENDED if record.wish is Wish.SUSPEND else State.CANCELLED
        if _FIRMNESS[wanted] > _FIRMNESS[leaving.then]:
            return _obey(job, record, now)
    if leaving.stage is Stage.NOTICE and _have_finished(record, seen):
        why = "all workers finished before they were stopped"
        return _leave(job, record, record.state, State.SUCCEEDED, now, why, stage=Stage.KILL)
    if all(seen.closed(slot) and slot not in seen.held for slot in going):
        return _are_gone(record, leaving, now)
    told = record.slots if leaving.stage is Stage.NOTICE else going
    if leaving.stage is Stage.NOTICE and all(
        slot not in seen.slots or seen.ready(slot) for slot in told
    ):
        return _press(job, record, leaving, now)
    return _press(job, record, leaving, now) if now >= leaving.until else record


def _have_finished(record: Record, seen: Seen) -> bool:
    """Whether all ended by themselves, with nothing left to do."""
    sights = [seen.slots.get(slot) for slot in record.slots]
    return all(
        sight is not None and sight.phase is Phase.ENDED and sight.code == 0 and not sight.ready
        for sight in sights
    )


def _press(job: Job, record: Record, leaving: Leaving, now: float) -> Record:
    if leaving.stage is Stage.KILL:
        return record
    stage = Stage(leaving.stage + 1)
    until = now + (job.grace_seconds if stage is Stage.TERM else 0.0)
    return replace(record, leaving=replace(leaving, stage=stage, until=until))


def _are_gone(record: Record, leaving: Leaving, now: float) -> Record:
    kept = replace(record, slots=record.slots[: leaving.keep], leaving=None)
    if leaving.then is not State.STARTING:
        return _enter(kept, leaving.then, now, record.reason)
    if leaving.size == leaving.keep:  # a live job goes on with those that stay
        again = replace(kept, generation=record.generation + 1, resized_at=now)
        return _enter(again, State.RUNNING, now, f"runs on with {_workers(leaving.size)}")
    return _with_workers(kept, State.STARTING, leaving.size, now, record.reason)


def _leave(  # noqa: PLR0913, PLR0917 - one for each part of what is remembered
    job: Job,
    record: Record,
    state: State,
    then: State,
    now: float,
    why: str,
    *,
    stage: Stage = Stage.NOTICE,
    keep: int = 0,
    size: int = 0,
) -> Record:
    if record.leaving is not None:  # what was asked firmly is not asked softly again
        stage = max(stage, record.leaving.stage)
    wait = {Stage.NOTICE: job.notice_seconds, Stage.TERM: job.grace_seconds, Stage.KILL: 0.0}
    leaving = Leaving(then, stage, now + wait[stage], keep, size)
    return _enter(replace(record, leaving=leaving), state, now, why)


# --- what is due ----------------------------------------------------------------------------------


def _clear_up(record: Record, seen: Seen) -> list[Action]:
    """Whatever is there and belongs to no worker of the record."""
    ours = set(record.slots)
    strays = sorted(slot for slot in seen.slots if slot not in ours and seen.alive(slot))
    unused = sorted(slot for slot in seen.held if slot not in ours and slot not in seen.slots)
    over = sorted(slot for slot in seen.held if seen.closed(slot))
    return [
        Action(Verb.KILL, tuple(strays)),
        Action(Verb.VOID, tuple(unused)),
        Action(Verb.RELEASE, tuple(over)),
    ]


def _see_off(slots: tuple[Slot, ...], keep: int, leaving: Leaving, seen: Seen) -> list[Action]:
    going = slots[keep:]
    verb = {Stage.NOTICE: Verb.NOTIFY, Stage.TERM: Verb.TERM, Stage.KILL: Verb.KILL}[leaving.stage]
    asked = slots if leaving.stage is Stage.NOTICE else going
    return [
        Action(Verb.VOID, tuple(slot for slot in going if slot not in seen.slots)),
        Action(verb, tuple(slot for slot in asked if seen.alive(slot))),
    ]


def _bring_in(slots: tuple[Slot, ...], seen: Seen) -> list[Action]:
    """GPUs for all that have not come yet; then, and only then, the workers."""
    missing = tuple(slot for slot in slots if slot not in seen.slots)
    if any(slot not in seen.held for slot in missing):
        return [Action(Verb.RESERVE, missing)]
    return [Action(Verb.START, missing)]


# --- small parts ----------------------------------------------------------------------------------


def _with_workers(record: Record, state: State, size: int, now: float, why: str) -> Record:
    number = record.generation + 1
    more = tuple(Slot(number, rank) for rank in range(record.size, size))
    return _enter(
        replace(record, generation=number, slots=record.slots + more, resized_at=now),
        state,
        now,
        why,
    )


def _new(record: Record) -> list[Slot]:
    return [slot for slot in record.slots if slot.generation == record.generation]


def _enter(record: Record, state: State, now: float, why: str) -> Record:
    return replace(record, state=state, since=now, reason=why)


def _how(sight: Sight) -> str:
    if sight.unrunnable is not None:
        return f"could not run: {sight.unrunnable}"
    if sight.phase is Phase.VOID:
        return "was never started"
    if sight.excused:
        return sight.note or "went when its machine went down"
    if sight.code is None:
        return f"ended: {sight.note}" if sight.note else "was lost: nobody saw how it ended"
    more = f" ({sight.note})" if sight.note else ""
    if sight.code < 0:
        return f"was killed by signal {-sight.code}{more}"
    return f"ended with exit code {sight.code}{more}"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
