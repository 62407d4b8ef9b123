"""`aliquot submit`, `aliquot resubmit` and `aliquot logs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.job_logs import LogOptions, LogPrinter, PoolOrFiles, WaitingNotes
from aliquot.cli.jobs import client_of
from aliquot.cli.keys import INTERRUPTED
from aliquot.cli.tables import print_text
from aliquot.cli.wait import summary
from aliquot.devices import parse_shape
from aliquot.model.errors import InvalidValueError
from aliquot.pool.client import NoPoolError, SeveralPoolsError
from aliquot.pool.kept_logs import find_kept_logs
from aliquot.pool.submission import resubmit_jobs, submit_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model.job import Indices, Job
    from aliquot.pool.client import PoolClient


def submit(
    job: Job,
    array: Indices | None,
    *,
    simulate: str | None,
    follow: bool,
) -> int:
    """Submit a job or an array to the pool that is up, and print the names.

    The exit code is 0, or that of the job if it is followed.
    """
    client = client_of(simulate)
    jobs = submit_job(client, job, array, Path.cwd(), os.environ)
    if not follow:
        print_text(f"{_name(jobs)}\n")
        return 0
    sys.stderr.write(f"aliquot: submitted {_name(jobs)} (job {jobs[0]['number']})\n")
    sys.stderr.flush()
    several = job.sizes.most > 1
    return _follow(client, jobs, LogOptions(rank=None if several else 0, follow=True))


def resubmit(names: Sequence[str], name: str | None, simulate: str | None) -> None:
    """Submit finished jobs again, and print the numbers of the new ones."""
    for old, new in resubmit_jobs(client_of(simulate), names, name, os.environ):
        print_text(
            f"{old['name']} ({old['number']}): submitted again as {new['name']} ({new['number']})\n"
        )


def show_log(name: str, options: LogOptions, simulate: str | None) -> None:
    """Print the output of a job or of the jobs of an array; if no pool is up, from its files."""
    try:
        client = client_of(simulate)
        jobs = client.members(name)
    except SeveralPoolsError:
        raise
    except NoPoolError as error:
        _show_kept_log(name, options, simulate, error)
        return
    _check_rank(jobs, options.rank)
    try:
        LogPrinter(PoolOrFiles(client, jobs), jobs, options, _notes(client, jobs)).run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _show_kept_log(
    name: str, options: LogOptions, simulate: str | None, no_pool: NoPoolError
) -> None:
    kept = find_kept_logs(parse_shape(simulate) if simulate else None, name)
    if kept is None:
        raise NoPoolError(
            f"{no_pool.message}, and no job {name} of yours is known from before", no_pool.hint
        ) from no_pool
    jobs = kept.rows()
    _check_rank(jobs, options.rank)
    try:
        LogPrinter(kept, jobs, options).run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if options.follow:
        sys.stderr.write(
            f"aliquot: {no_pool.message}, so this is the output until now, and it is not followed\n"
            f"  When a pool is up: aliquot logs -f {name}\n"
        )


def _check_rank(jobs: list[dict[str, Any]], rank: int | None) -> None:
    """InvalidValueError if no job can have a worker of that rank."""
    last = max(job["sizes"][-1] for job in jobs) - 1
    if rank is not None and rank > last:
        raise InvalidValueError(
            f"job {jobs[0]['name']} has no worker of rank {rank}",
            f"Give --rank {'0' if last == 0 else f'0 to {last}'}, or --rank all.",
        )


def _follow(client: PoolClient, jobs: list[dict[str, Any]], options: LogOptions) -> int:
    """Print the output of jobs until they are finished; the first exit code that is not 0."""
    numbers = [str(job["number"]) for job in jobs]
    try:
        LogPrinter(PoolOrFiles(client, jobs), jobs, options, _notes(client, jobs)).run()
    except KeyboardInterrupt:
        name = _name(jobs)
        sys.stderr.write(
            f"\naliquot: {name} keeps running, and is not followed any more\n"
            f"  Continue with: aliquot logs -f {name}\n"
            f"  Cancel it with: aliquot cancel {name}\n"
        )
        return INTERRUPTED
    ended = [client.job(number) for number in numbers]
    for job in ended:
        if job["exit_code"]:
            sys.stderr.write(f"aliquot: {summary(job)}\n")
    return next((job["exit_code"] for job in ended if job["exit_code"]), 0)


def _name(jobs: list[dict[str, Any]]) -> str:
    """The name of the job, or of the array."""
    array = jobs[0]["array"]
    return str(array["name"] if array else jobs[0]["name"])


def _notes(client: PoolClient, jobs: list[dict[str, Any]]) -> WaitingNotes:
    return WaitingNotes(client.job, [str(job["number"]) for job in jobs])
