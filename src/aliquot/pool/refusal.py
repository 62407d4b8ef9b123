"""What `aliquot run` says if nothing fits: what is free, who has the rest, and what ends when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aliquot.model import Life, format_bytes, format_count, format_duration
from aliquot.model.errors import AliquotError, InvalidValueError, NoCapacityError
from aliquot.pool.directory import directory_of
from aliquot.pool.peers import user_name
from aliquot.pool.run_client import ask_preview
from aliquot.pool.runs import Waiting
from aliquot.slices import control
from aliquot.slices.gpu_choice import find_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.model import Grant, Request
    from aliquot.slices import StateDirectory
    from aliquot.slices.arbiter_status import SharedGpu, Status

WAIT_FOR_IT = "Wait until your turn comes with: aliquot run --wait"


def explained(  # noqa: PLR0913, PLR0917 - the request and the machine
    error: NoCapacityError,
    request: Request,
    gpus: Sequence[SharedGpu],
    state: StateDirectory,
    status: Status,
    queue: str | None = None,
) -> NoCapacityError:
    """The refusal with what this user may see of those that have the GPUs, and what ends when.

    The pool knows more than the user may see, so its refusal says only why. Who has GPUs explains
    nothing if it is the host that lacks memory.
    """
    if isinstance(error, control.NoHostMemoryError):
        return error
    try:
        find_gpus(request, gpus, status.grants)
    except NoCapacityError as found:
        message, hint = found.message, error.hint or found.hint
    else:
        message, hint = not_admitted(error.message), WAIT_FOR_IT
    uuids = {one.gpu.uuid for one in gpus}
    holders = [*_commands(status.grants, gpus, uuids), *_jobs(state), *_turn(state, request, queue)]
    return NoCapacityError("\n".join([message, *(f"  {line}" for line in holders)]), hint)


def not_admitted(why: str) -> str:
    """The refusal of a command that would fit, by the pool's reason."""
    return f"what is free is not for this command now: {why}"


def no_queue(name: str) -> InvalidValueError:
    """The refusal of a queue where no pool is up."""
    return InvalidValueError(
        f"no pool is up, so there is no queue {name!r}",
        "Leave out --queue, or start a pool with: aliquot up",
    )


def describe_place(place: Waiting, now: float) -> str:
    """A place in the queue and the start."""
    return f"place {place.place} of {place.of}, {_start(place, now)}"


def with_wait(place: Waiting) -> str:
    """What `--wait` would do for a command that is refused."""
    return f"With --wait: {describe_place(place, time.time())}"


def _start(place: Waiting, now: float) -> str:
    if place.expected is None:
        return "start not known"
    return f"starts by {_clock(place.expected, now)}"


def _clock(when: float, now: float) -> str:
    """A time of day in this time zone, with the date if that is not today's."""
    there, here = time.localtime(when), time.localtime(now)
    today = there[:3] == here[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", there)


def _turn(state: StateDirectory, request: Request, queue: str | None) -> Iterator[str]:
    """Where it would be in the queue, and when it would start; nothing without a pool."""
    try:
        place = ask_preview(state, request, queue)
    except AliquotError:
        return
    if isinstance(place, Waiting):
        yield with_wait(place)


def _commands(grants: Sequence[Grant], gpus: Sequence[SharedGpu], uuids: set[str]) -> Iterator[str]:
    """The grants that no job has: whose they are, and for how long."""
    indexes = {one.gpu.uuid: one.gpu.index for one in gpus}
    for grant in grants:
        here = [part for part in grant.slices if part.gpu_uuid in uuids]
        if grant.life is not Life.OWNED or not here:
            continue
        age = format_duration(time.time() - grant.created)
        parts = ", ".join(
            f"{format_bytes(part.memory_bytes)} of GPU {indexes[part.gpu_uuid]}" for part in here
        )
        name = "A command" if grant.is_hidden else grant.plain_name
        yield f"{name} of {user_name(grant.owner_uid)} has had {parts} for {age}"


def _jobs(state: StateDirectory) -> Iterator[str]:
    """The jobs that have GPUs, and when they may give some back; none without a pool."""
    from aliquot.pool.client import PoolClient  # noqa: PLC0415 - imported when needed

    try:
        rows = PoolClient(directory_of(state)).jobs(with_finished=False)
    except AliquotError:
        return
    for row in rows:
        if row["state"]["slots"]:
            yield _job(row)


def _job(row: dict[str, Any]) -> str:
    workers, least = len(row["state"]["slots"]), min(row["sizes"])
    name = f"Job {row['number']}" if row["name"] is None else f"Job {row['name']}"
    text = f"{name} of {row['user']} has {format_count(workers, 'worker')}"
    if workers > least:
        text += f", and gives {workers - least} of them up for a command that waits (--wait)"
    if (left := _seconds_left(row)) is not None:
        text += f"; it ends in {format_duration(left)} at the latest"
    return text


def _seconds_left(row: dict[str, Any]) -> float | None:
    """How long a job may still run, if it has a time limit that the caller may see."""
    limit, state = row.get("time_seconds"), row["state"]
    since = state.get("active_since")
    if limit is None or since is None:
        return None
    used = float(state.get("used_seconds") or 0.0) + time.time() - float(since)
    return max(0.0, float(limit) - used)
