"""`aliquot submit`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.tables import print_text
from aliquot.devices import parse_shape
from aliquot.model.job import check_job_name
from aliquot.pool.client import connect
from aliquot.pool.encoding import Submission

if TYPE_CHECKING:
    from aliquot.model.job import Job
    from aliquot.pool.client import PoolClient


def submit(job: Job, *, simulate: str | None) -> None:
    """Submit a job to the pool that is up, and print its name."""
    slices.refuse_nested(os.environ)
    if job.name:
        check_job_name(job.name)
    program = Path(slices.find_command(job.command[0])).absolute()
    client = connect(parse_shape(simulate) if simulate else None)
    environment = {key: value for key, value in os.environ.items() if not _is_ours(key)}
    answer = client.submit(
        Submission(
            job if job.name else _named(job, client),
            str(program),
            str(Path.cwd()),
            environment,
        )
    )
    print_text(f"{answer['name']}\n")


def _named(job: Job, client: PoolClient) -> Job:
    """The job with a name made of its command and the first free number."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(job.command[0]).name, flags=re.ASCII)
    base = base.lstrip("_-")[:20] or "job"
    used = {one["name"] for one in client.jobs(with_finished=True)}
    number = next(n for n in range(1, len(used) + 2) if f"{base}-{n}" not in used)
    return replace(job, name=f"{base}-{number}")


def _is_ours(variable: str) -> bool:
    return variable in {"ALIQUOT_SIMULATE", "ALIQUOT_STATE"}
