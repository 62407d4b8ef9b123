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
- *Standing still.* Where the world can, a running job is suspended by freezing its workers: they
  stay, and what they have on GPUs goes to the host (`Record.still`). Their GPUs are given back when
  all stand still, and are there again before the first is thawed. Where one cannot be frozen, all
  are asked to save and go; where one does not survive it, all start again, at no retry's cost.
- *One way out.* Workers that must go are told, then sent SIGTERM, then killed (`Leaving`). A job
  enters the state that comes after only when their slots are closed and nothing is held for them.

So no rank has two workers, a job whose workers do not run holds nothing, and what was asked to go
is gone before its place is given away. A worker that is stopped for a resize, a move or a
suspension may end as it likes: that is no failure and costs no retry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model.job import State, Wish
from aliquot.model.status import Leaving, Phase, Slot, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.model.job import Job
    from aliquot.model.status import Record, Seen, Sight

BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0


# --- what others ask for --------------------------------------------------------------------------


def start(job: Job, record: Record, generation: int, size: int, now: float) -> Record:
    """Give a waiting job its workers; nothing where it does not wait any more."""
    waits = record.state is State.PENDING and record.wish is Wish.RUN and now >= record.not_before
    if not waits or record.leaving is not None or generation != record.generation:
        return record
    if size not in job.sizes.allowed or (record.still and size != record.size):
        return record
    why = f"there is room for {_workers(size)}"
    if record.still:
        return _thaw(replace(record, resized_at=now), now, why)
    return _with_workers(record, State.STARTING, size, now, why)


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
    if record.still:
        return _stand_still(job, record, seen, now)
    if record.state.resting:
        return _rest(record, now)
    if record.wish is not Wish.RUN:
        return _obey(job, record, seen, now)
    return _watch(job, record, seen, now)


def _rest(record: Record, now: float) -> Record:
    """Pending and suspended jobs have nothing that could be in the way."""
    match record.wish, record.state:
        case Wish.CANCEL, _:
            return _enter(record, State.CANCELLED, now, "cancelled")
        case Wish.SUSPEND, State.PENDING:
            why = "suspended again" if record.still else "suspended before it ran"
            return _enter(record, State.SUSPENDED, now, why)
        case Wish.RUN, State.SUSPENDED:
            return _enter(record, State.PENDING, now, "resumed")
        case _:
            return record


def _obey(job: Job, record: Record, seen: Seen, now: float) -> Record:
    """Its user wants it suspended or cancelled."""
    if record.wish is Wish.SUSPEND and _freezable(record, seen):
        why = "suspended: what it has on GPUs moves to the host"
        asked = replace(record, still=True, generation=record.generation + 1)
        return _enter(asked, State.SUSPENDING, now, why)
    if record.wish is Wish.SUSPEND:
        return _ask_to_save(job, record, seen.unfreezable or "", now)
    return _leave(job, record, record.state, State.CANCELLED, now, "cancelled", stage=Stage.TERM)


def _watch(job: Job, record: Record, seen: Seen, now: float) -> Record:
    """Workers come, run and end by themselves."""
    ended = _ended(record, seen)
    if (failed := _first_failed(ended)) is not None:
        return _fail(job, record, failed, ended[failed], now)
    if len(ended) == record.size:
        return _succeed(job, record, now)
    if record.state is State.RUNNING:
        return record
    return _await_workers(job, record, seen, now)


def _await_workers(job: Job, record: Record, seen: Seen, now: float) -> Record:
    """Those that are new begin; frozen ones are thawed."""
    frozen = [slot for slot in record.slots if seen.frozen(slot)]
    if (stuck := _first_stuck(frozen, seen)) is not None:
        rank, why = stuck
        return _lose_frozen(job, record, rank, f"could not be thawed ({why})", now)
    whole = all(slot in seen.slots for slot in record.slots)
    wanting = [*_new(record), *frozen]
    trouble = None if all(slot in seen.held for slot in wanting) else seen.refused
    if trouble is None and not whole:
        trouble = seen.stuck
    if trouble is not None:
        return _give_up_start(job, record, trouble, now)
    if frozen or not whole:
        return record
    return _enter(record, State.RUNNING, now, f"runs with {_workers(record.size)}")


def _fail(job: Job, record: Record, rank: int, sight: Sight, now: float) -> Record:
    """A worker ended as it should not: all start again, or the job has failed."""
    if _thaws(record):
        return _lose_frozen(job, record, rank, _how(sight), now)
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


def _succeed(job: Job, record: Record, now: float) -> Record:
    why = "its worker has finished" if record.size == 1 else "all workers have finished"
    return _leave(job, record, record.state, State.SUCCEEDED, now, why, stage=Stage.KILL)


def _give_up_start(job: Job, record: Record, why: str, now: float) -> Record:
    """They do not all come after all. Workers that ran before run on; frozen ones stay so."""
    if _thaws(record):
        again = replace(record, still=True, not_before=now + BACKOFF_SECONDS)
        return _enter(again, State.SUSPENDING, now, why)
    keep = record.size - len(_new(record))
    then = State.STARTING if keep else State.PENDING
    later = replace(record, not_before=now + BACKOFF_SECONDS)
    return _leave(job, later, record.state, then, now, why, stage=Stage.KILL, keep=keep, size=keep)


# --- standing still -------------------------------------------------------------------------------


def _freezable(record: Record, seen: Seen) -> bool:
    """Whether all workers are there, and can be frozen as far as is known before it is tried."""
    whole = record.leaving is None and all(slot in seen.slots for slot in record.slots)
    return seen.unfreezable is None and whole


def _stand_still(job: Job, record: Record, seen: Seen, now: float) -> Record:
    """Workers are frozen, or are to be."""
    ended = _ended(record, seen)
    if record.wish is Wish.CANCEL:
        why = "cancelled"
        return _leave(job, record, record.state, State.CANCELLED, now, why, stage=Stage.KILL)
    if (failed := _first_failed(ended)) is not None:
        return _lose_frozen(job, record, failed, _how(ended[failed]), now)
    if len(ended) == record.size:
        return _succeed(job, record, now)
    if record.state.resting:
        return _rest(record, now)
    return _come_to_rest(job, record, seen, now)


def _come_to_rest(job: Job, record: Record, seen: Seen, now: float) -> Record:
    alive = [slot for slot in record.slots if seen.alive(slot)]
    moving = [slot for slot in alive if not seen.at_rest(slot)]
    if (stuck := _first_stuck(moving, seen)) is not None:
        return _cannot_freeze(job, record, stuck[1], now)
    if moving or any(slot in seen.held for slot in alive):
        return record
    return _enter(record, State.SUSPENDED, now, "suspended: what it had on GPUs is with the host")


def _cannot_freeze(job: Job, record: Record, why: str, now: float) -> Record:
    """Those that are frozen are thawed; all are asked to save, or run on if nobody minds."""
    if record.wish is Wish.RUN:
        return _thaw(record, now, f"resumed: {why}")
    return _ask_to_save(job, replace(record, still=False), why, now)


def _ask_to_save(job: Job, record: Record, unfreezable: str, now: float) -> Record:
    since = f", since it cannot be frozen: {unfreezable}" if unfreezable else ""
    why = f"suspended: asked to save{since}"
    return _leave(job, record, State.SUSPENDING, State.SUSPENDED, now, why)


def _lose_frozen(job: Job, record: Record, rank: int, how: str, now: float) -> Record:
    """A worker did not survive it: all start again, when they may; it was no fault of the job's."""
    then = State.SUSPENDED if record.wish is Wish.SUSPEND else State.PENDING
    why = f"worker {rank} {how} while it was suspended: starts again from what it saved"
    return _leave(job, record, record.state, then, now, why, stage=Stage.KILL)


def _thaw(record: Record, now: float, why: str) -> Record:
    again = replace(record, still=False, generation=record.generation + 1)
    return _enter(again, State.STARTING, now, why)


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
            return _obey(job, record, seen, now)
    if leaving.stage is Stage.NOTICE and _have_finished(record, seen):
        why = "all workers finished before they were stopped"
        return _leave(job, record, record.state, State.SUCCEEDED, now, why, stage=Stage.KILL)
    if all(seen.gone(slot) for slot in going):
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
    kept = replace(record, slots=record.slots[: leaving.keep], leaving=None, still=False)
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


def _ended(record: Record, seen: Seen) -> dict[int, Sight]:
    return {slot.rank: seen.slots[slot] for slot in record.slots if seen.closed(slot)}


def _first_stuck(slots: list[Slot], seen: Seen) -> tuple[int, str] | None:
    """The first that cannot be frozen or thawed, and why."""
    found = ((slot.rank, seen.slots[slot].stuck) for slot in slots)
    return next(((rank, why) for rank, why in found if why is not None), None)


def _first_failed(ended: Mapping[int, Sight]) -> int | None:
    """The rank that the failure is put down to; None where all ended well."""
    failed = [rank for rank, sight in ended.items() if sight.code != 0]
    return min(failed, key=lambda rank: (not ended[rank].excused, rank), default=None)


def _new(record: Record) -> list[Slot]:
    return [slot for slot in record.slots if slot.generation == record.generation]


def _enter(record: Record, state: State, now: float, why: str) -> Record:
    return replace(record, state=state, since=now, reason=why)


def _thaws(record: Record) -> bool:
    """Whether it starts with the workers it had."""
    return record.state is State.STARTING and not _new(record)


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
