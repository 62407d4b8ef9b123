"""Submitting a job as a user does: what the pool is told besides the job itself."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot import slices
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import Job, Needs, check_job_name
from aliquot.pool.client import NoPoolError
from aliquot.pool.encoding import Submission, decode_submission
from aliquot.pool.peers import this_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.model.job import Indices
    from aliquot.pool.client import PoolClient

_OURS = frozenset({"ALIQUOT_SIMULATE", "ALIQUOT_STATE"})
_OF_A_SUBMISSION = (*(one.name for one in fields(Job)), "program", "directory")


def submit_job(
    client: PoolClient,
    job: Job,
    array: Indices | None,
    directory: Path,
    environment: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Submit the job, or one for each index, to run in that directory with that environment.

    The pool's answer for each. The pool names a job without a name after its command.
    """
    program = Path(slices.find_command(job.command[0])).absolute()
    return _submit(client, job, array, program, directory, environment)


def resubmit_jobs(
    client: PoolClient, names: Sequence[str], name: str | None, environment: Mapping[str, str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Submit finished jobs again as they were; the pool's answers for the old and the new jobs.

    Refuses all of them before it submits the first, if one cannot run again. Then the pool may
    still refuse one: the answers before that error are of jobs that it has.

    The pool keeps no environment of a finished job, so they get this one. `name`: another name for
    the only one. Jobs of one array are an array again, or join their array if it is not finished. A
    job that starts after another of these jobs starts after the new one.
    """
    batches = _batches(client, names)
    if name is not None and sum(map(len, batches)) > 1:
        raise InvalidValueError("one name cannot be that of several jobs", "Leave out --name.")
    olds = [old for batch in batches for old in batch]
    for old in olds:
        _check_can_run_again(client, old, {str(one["number"]) for one in olds})
    again: dict[str, str] = {}
    for batch in batches:
        made = _submit_again(client, batch, name, again, environment)
        for old, new in zip(batch, made, strict=True):
            again[str(old["number"])] = str(new["number"])
            yield old, new


def _batches(client: PoolClient, names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The jobs of these names, oldest first; those of one array together."""
    found = {row["number"]: row for name in names for row in client.members(name)}
    batches: dict[Any, list[dict[str, Any]]] = {}
    for number, row in sorted(found.items()):
        batches.setdefault(_array_of(row) or number, []).append(row)
    return list(batches.values())


def _array_of(row: dict[str, Any]) -> tuple[str, float] | None:
    """The array that a job belongs to: its name may be used again later."""
    if (array := row["array"]) is None:
        return None
    begun = array.get("begun")  # an earlier pool has none
    return array["name"], row["submitted"] if begun is None else begun


def _check_can_run_again(client: PoolClient, old: dict[str, Any], with_these: set[str]) -> None:
    """Raise AliquotError unless the job is this user's and finished, and could start again."""
    name, number = f"{old['name']} ({old['number']})", old["number"]
    if old["uid"] != this_user().uid:
        raise AliquotError(
            f"job {name} belongs to {old['user']}", f"Only {old['user']} can submit it again."
        )
    if old["exit_code"] is None:
        raise AliquotError(
            f"job {name} cannot be submitted again: it is {old['state']['phase']}",
            f"Wait for it with: aliquot wait {number}, or end it with: aliquot cancel {number}. To"
            " run its command twice at a time, use: aliquot submit",
        )
    slices.find_command(old["program"])
    for one in old["after"]:
        if one["needs"] != Needs.OK or one["job"] in with_these:
            continue
        earlier = _found(client, one["job"])
        if earlier is not None and earlier["exit_code"]:
            raise AliquotError(
                f"job {name} starts after job {one['job']}, which is {earlier['state']['phase']}",
                f"Submit both again with: aliquot resubmit {one['job']} {number}",
            )


def _submit_again(
    client: PoolClient,
    batch: list[dict[str, Any]],
    name: str | None,
    again: Mapping[str, str],
    environment: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Submit a job, or jobs of an array, again. `again` has new numbers by old ones."""
    first = batch[0]
    job = decode_submission(
        {**{key: first[key] for key in _OF_A_SUBMISSION}, "environment": {}}, this_user(), 0
    ).job
    after = (
        replace(one, job=again.get(one.job, one.job))
        for one in job.after
        if one.job in again or _found(client, one.job) is not None
    )
    array = job.array
    job = replace(
        job,
        name=name or (array.name if array else job.name),
        after=tuple(after),
        array=None,
    )
    indices = (tuple(one["array"]["index"] for one in batch), array.at_once) if array else None
    program, directory = Path(first["program"]), Path(first["directory"])
    joins = array is not None and name is None and _is_unfinished(client, array.name)
    return _submit(client, job, indices, program, directory, environment, joins=joins)


def _is_unfinished(client: PoolClient, array: str) -> bool:
    try:
        return any(one["exit_code"] is None for one in client.members(array))
    except NoPoolError:
        raise
    except AliquotError:  # the pool has forgotten it
        return False


def _found(client: PoolClient, number: str) -> dict[str, Any] | None:
    """The job of that number; None if the pool has forgotten it."""
    try:
        return client.job(number)
    except NoPoolError:
        raise
    except AliquotError:
        return None


def _submit(  # noqa: PLR0913, PLR0917 - all of a submission
    client: PoolClient,
    job: Job,
    array: Indices | None,
    program: Path,
    directory: Path,
    environment: Mapping[str, str],
    *,
    joins: bool = False,
) -> list[dict[str, Any]]:
    slices.refuse_nested(os.environ)
    if job.name:
        check_job_name(job.name)
    kept = {key: value for key, value in environment.items() if key not in _OURS}
    submission = Submission(this_user(), job, str(program), str(directory), kept)
    if array is None:
        return [client.submit(submission)]
    return client.submit_array(submission, *array, joins=joins)
