"""The jobs that a pool makes of a submission: their names and dependencies, and what is refused.

`submission` is the other side: what a user's command sends.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model import format_bytes
from aliquot.model.errors import (
    InvalidValueError,
    NameInUseError,
    NoCapacityError,
    UserLimitError,
)
from aliquot.model.job import MAX_ARRAY, ArrayIndex, check_job_name
from aliquot.pool.access import parse_wanted
from aliquot.pool.capacity import MachinePlan
from aliquot.pool.encoding import encode_submission
from aliquot.pool.peers import group_names
from aliquot.pool.policy import DEFAULT_JOBS
from aliquot.pool.queue_defaults import with_swap_default
from aliquot.pool.workers import job_label
from aliquot.slices.named_gpus import with_named_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.model.job import Dependency, Job
    from aliquot.model.owner import Owner
    from aliquot.pool.access import Caller
    from aliquot.pool.encoding import Submission
    from aliquot.pool.policy import PolicyFile, UserQuota
    from aliquot.pool.store import JobStore, StoredJob
    from aliquot.pool.workers import LocalWorkers

MOST_BYTES = 16 << 20  # of the unfinished jobs of a user, as stored
MOST_GRACE_SECONDS = 3600.0  # a job that is cancelled has its GPUs that long
MOST_NOTICE_SECONDS = 86400.0
MOST_DEPENDENCIES = MAX_ARRAY
MOST_NAMES = 64  # in a submission's --after: each is looked up among all jobs of its user


@dataclass(frozen=True, slots=True)
class NewJobs:
    """Makes and checks the jobs of submissions to one pool.

    `quota_of` says what a user may have, `members_of` which jobs a caller means by a name.
    """

    store: JobStore
    workers: LocalWorkers
    policies: PolicyFile
    quota_of: Callable[[Owner], UserQuota]
    members_of: Callable[[Caller, str], list[StoredJob]]

    def made(
        self,
        submission: Submission,
        indices: Sequence[int] | None,
        at_once: int | None,
        *,
        joins: bool = False,
    ) -> list[Submission]:
        """The jobs of a submission under names that are free, within the limits of their user.

        `joins`: an array of that name with unfinished jobs gets these in place of finished ones.
        """
        uid, job = submission.owner.uid, submission.job
        job = replace(job, name=job.name or self._free_name(uid, job.command[0]))
        begun = self._unfinished_array(uid, job.name) if joins and indices is not None else None
        made = [job] if indices is None else _members(job, indices, at_once, begun)
        for one in made if begun is not None else (job, *made):
            self._check_name_is_free(uid, check_job_name(one.name), arrays=one is job)
        submissions = [replace(submission, job=one) for one in made]
        self._check_not_too_many(submissions)
        return submissions

    def numbered(self, caller: Caller, after: Sequence[Dependency]) -> tuple[Dependency, ...]:
        """Dependencies with the numbers of the jobs that they name, all of an array's."""
        found: dict[Dependency, None] = {}
        asked = dict.fromkeys(after)
        names = sum(parse_wanted(one.job).number is None for one in asked)
        if names > MOST_NAMES:
            raise InvalidValueError(
                f"--after gives {names} names, and may give {MOST_NAMES}",
                "Name an array instead of its jobs, or let a job between wait for some of them.",
            )
        _check_not_too_many_dependencies(len(asked))
        for one in asked:
            for stored in self.members_of(caller, one.job):
                found[replace(one, job=str(stored.job.number))] = None
            _check_not_too_many_dependencies(len(found))
        return tuple(found)

    def check_queue(self, caller: Caller, queue: str) -> None:
        """Raise InvalidValueError unless the queue exists and the caller may use it."""
        self.policies.policy.check_queue(queue, caller, group_names(caller.groups))

    @staticmethod
    def check_stops_in_time(submission: Submission) -> None:
        """Raise UserLimitError if the job would keep GPUs from others for too long."""
        job = submission.job
        if submission.owner.uid == os.geteuid():
            return
        if job.grace_seconds > MOST_GRACE_SECONDS:
            raise UserLimitError(
                f"--grace {job.grace_seconds:g} s is too long: in this pool it is at most an hour",
                f"Give at most --grace {MOST_GRACE_SECONDS:g}.",
            )
        if job.notice_seconds > MOST_NOTICE_SECONDS:
            raise UserLimitError(
                f"--notice {job.notice_seconds:g} s is too long: in this pool it is at most a day",
                f"Give at most --notice {MOST_NOTICE_SECONDS:g}.",
            )

    def with_named_gpus(self, job: Job) -> Job:
        """The job with the UUIDs of the GPUs that it names: indexes may change with a reboot."""
        if not job.request.which:
            return job
        gpus = [one.gpu for one in self.workers.arbiter_status().gpus]
        return replace(job, request=with_named_gpus(job.request, gpus))

    def with_swap_default(self, job: Job) -> Job:
        """The job with what its queue adds to its request."""
        default = self.policies.swap_default(job.queue)
        if default is None and not job.request.overcommit:
            return job
        status = self.workers.arbiter_status()
        return replace(
            job, request=with_swap_default(job.request, default, status, job.sizes.least)
        )

    def check_fits_empty_machine(self, job: Job, owner: Owner) -> None:
        """Raise NoCapacityError if its smallest size does not fit the empty machine."""
        status = self.workers.arbiter_status()
        plan = MachinePlan.of_empty(status)
        if job.name:
            check_job_name(job.name)
        request = job.request.of_owner(owner.uid, job_label(job))
        try:
            plan.put(request, job.sizes.least)
        except NoCapacityError as error:
            if job.sizes.least == 1:
                raise
            most = next(
                count for count in reversed(range(job.sizes.least)) if plan.holds(request, count)
            )
            raise NoCapacityError(
                f"{job.sizes.least} workers of {_describe_request(job)} each do not fit this"
                f" machine: at most {most} do",
                "Ask for fewer with --workers, or for less with --gpus and --memory.",
            ) from error

    def _unfinished_array(self, uid: int, name: str) -> float | None:
        """When the user's array of that name was submitted; None if it has no unfinished job."""
        found = self.store.array(uid, name)
        unfinished = any(not one.state.phase.final for one in found)
        return found[0].job.array_begun if unfinished else None

    def _free_name(self, uid: int, command: str) -> str:
        """A name made of a command and the first free number."""
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", command.rpartition("/")[2], flags=re.ASCII)
        base = base.lstrip("_-")[:20] or "job"
        used = self.store.names_like(uid, base)
        return next(name for n in itertools.count(1) if (name := f"{base}-{n}") not in used)

    def _check_name_is_free(self, uid: int, name: str, *, arrays: bool) -> None:
        other = self.store.named(uid, name)
        found = [other] if other is not None else self.store.array(uid, name) if arrays else []
        running = [one for one in found if not one.state.phase.final]
        if running:
            kind = "a job" if other is not None else "an array"
            raise NameInUseError(
                f"{kind} named {name} exists and is {running[0].state.phase}",
                "Choose another --name.",
            )

    def _check_not_too_many(self, more: Sequence[Submission]) -> None:
        """Raise UserLimitError if these jobs are too many, with the unfinished ones of the user."""
        owner = more[0].owner
        if owner.uid == os.geteuid():
            return
        jobs, size = self.store.unfinished_of(owner.uid)
        most = self.quota_of(owner).jobs
        most = DEFAULT_JOBS if most is None else most
        each = len(json.dumps(encode_submission(more[0])))  # those of an array differ by an index
        if jobs + len(more) > most or size + each * len(more) > MOST_BYTES:
            raise UserLimitError(
                f"{owner} has {jobs} unfinished jobs of {format_bytes(size)}, and may"
                f" have {most} of {format_bytes(MOST_BYTES)}",
                "Cancel some with: aliquot cancel",
            )


def _check_not_too_many_dependencies(jobs: int) -> None:
    if jobs > MOST_DEPENDENCIES:
        raise InvalidValueError(
            f"--after names {jobs} jobs, and a job waits for at most {MOST_DEPENDENCIES}",
            "Let a job between wait for some of them.",
        )


def _members(
    job: Job, indices: Sequence[int], at_once: int | None, begun: float | None
) -> list[Job]:
    """The jobs of an array, NAME-INDEX each."""
    return [
        replace(job, name=f"{job.name}-{index}", array=ArrayIndex(job.name, index, at_once, begun))
        for index in indices
    ]


def _describe_request(job: Job) -> str:
    request = job.request
    part = "whole" if request.is_whole else f"{request.amount} of each"
    return f"{request.gpus} GPU{'s' if request.gpus > 1 else ''} ({part})"
