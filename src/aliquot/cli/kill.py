"""`aliquot kill`."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot import slices
from aliquot.cli.ps import pids_of, user_name
from aliquot.cli.tables import print_text
from aliquot.devices import parse_shape
from aliquot.model import Life, format_count
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.pool.client import NoPoolError, connect
from aliquot.slices.grant_facts import command_of
from aliquot.slices.grant_kill import kill_grant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Grant
    from aliquot.slices import LocalMachine

_WORKER = re.compile(r"(?P<job>[^.]+)\.(?P<number>\d+)\.\d+\.\d+")


def kill(names: Sequence[str], grace: float, simulate: str | None, *, sure: bool) -> int:
    """End the programs of grants; the exit code. If one is refused, the others are still ended."""
    shape = parse_shape(simulate) if simulate else None
    addresses = [slices.check_address(name) for name in names]
    failed = 0
    for name in dict.fromkeys(addresses):
        found = slices.survey(shape)
        try:
            if found.silent and not found.found:
                raise found.silent[0].error
            _refuse_job(found.found, name)
            machine, grant = slices.find_grant(found.found, name)
            _refuse_worker(machine, grant)
            if not sure and not _confirmed(grant):
                raise InvalidValueError(
                    f"grant {slices.shown_name(grant.name)} was not ended",
                    "Answer y to end it, or give --yes.",
                )
            _kill(machine, grant, grace)
        except AliquotError as error:
            sys.stderr.write(f"aliquot: {error}\n")
            failed = 1
    return failed


def _kill(machine: LocalMachine, grant: Grant, grace: float) -> None:
    done = kill_grant(machine, grant, grace)
    hard = f", {done.killed} of them with SIGKILL after {grace:g} s" if done.killed else ""
    kept = "; the grant is kept until its container ends" if grant.life is Life.KEPT else ""
    ended = format_count(done.ended, "process") if done.ended else "no process"
    print_text(f"grant {slices.shown_name(grant.name)}: {ended} ended{hard}{kept}\n")


def _confirmed(grant: Grant) -> bool:
    """Ask root before it ends another user's programs, if there is somebody to ask."""
    if grant.owner_uid == os.geteuid() or not (sys.stdin and sys.stdin.isatty()):
        return True
    what = f"{user_name(grant.owner_uid)}'s grant {grant.plain_name} (PID {pids_of(grant)}"
    sys.stderr.write(f"End {what}: {command_of(grant) or 'no command'})? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _refuse_job(found: Sequence[LocalMachine], name: str) -> None:
    """Refuse the name of a job that has workers, if no grant has that name."""
    names = [grant.plain_name for machine in found for grant in machine.status.grants]
    workers = (match for one in names if (match := _WORKER.fullmatch(one)) is not None)
    if name not in names and any(match["job"] == name for match in workers):
        raise InvalidValueError(
            f"there is no grant named {name}, but a job", f"To end the job: aliquot cancel {name}"
        )


def _refuse_worker(machine: LocalMachine, grant: Grant) -> None:
    """Refuse a worker's grant while its pool is up: the pool would take it for a failure."""
    match = _WORKER.fullmatch(grant.plain_name)
    if match is None:
        return
    with suppress(NoPoolError):
        jobs = connect(machine.state.shape).jobs(with_finished=False)
        if any(
            (job["name"], str(job["number"])) == (match["job"], match["number"]) for job in jobs
        ):
            raise InvalidValueError(
                f"grant {slices.shown_name(grant.name)} is of a worker of job {match['job']}",
                f"To end the job: aliquot cancel {match['number']}",
            )
