"""The names of jobs and commands in decisions, and how people see them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.model.owner import Owner
    from aliquot.pool.runs import RunRequest
    from aliquot.pool.store import StoredJob

_NAMED = re.compile(r"\b(?:job|run) \d+\b")  # `scheduled_name` and `run_name`


def run_name(run: RunRequest) -> str:
    """The name of a run in decisions; people see another one (`DecisionNames`)."""
    return f"run {run.number}"


def scheduled_name(stored: StoredJob) -> str:
    """The name of a job in decisions: names of jobs are per user, and private."""
    return job_name(stored.job.number)


def job_name(number: int) -> str:
    """The same of the job with that number."""
    return f"job {number}"


@dataclass(frozen=True, slots=True)
class DecisionNames:
    """The jobs and commands of a decision, by their names there."""

    jobs: Mapping[str, StoredJob]
    runs: Mapping[str, RunRequest]

    def owner(self, name: str) -> Owner:
        """Whose job or command it is."""
        return self.runs[name].owner if name in self.runs else self.jobs[name].owner

    def told(self, why: str, to: Owner) -> str:
        """A reason that names jobs and commands as that user sees them in `aliquot jobs`."""
        return _NAMED.sub(lambda match: self._shown(match[0], to), why)

    def _shown(self, name: str, to: Owner) -> str:
        if name in self.jobs:
            stored = self.jobs[name]
            own = stored.owner.uid == to.uid
            return f"job {stored.job}" if own else f"{name} of {stored.owner}"
        if name in self.runs:
            run = self.runs[name]
            own = run.owner.uid == to.uid
            return f"command {run.shown_name}" if own else f"a command of {run.owner}"
        return name
