"""Why jobs and commands wait, and when they start at the latest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from aliquot.model import GrantState, format_count, format_duration
from aliquot.model.job import JobPhase
from aliquot.placement.elastic.resize import DOES_NOT_FIT, NOT_OVERTAKEN
from aliquot.pool.decision_input import worker_grants
from aliquot.pool.expected import WaitingTurn, expected_starts
from aliquot.pool.workers import grant_prefix, requested_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.model import Grant, Request
    from aliquot.model.job import Job
    from aliquot.placement.elastic.resize import SizeDecision
    from aliquot.pool.capacity import MachinePlan, RequestKinds
    from aliquot.pool.decision_names import DecisionNames
    from aliquot.pool.store import StoredJob
    from aliquot.slices.arbiter_status import Status

OCCUPIED = "other jobs are giving its GPUs back"


def waiting_reasons(
    decision: SizeDecision, names: DecisionNames, status: Status, now: float
) -> dict[str, str]:
    """Why jobs and commands wait: what has the GPUs, or when others may be resized for them."""
    users = _users(names.jobs, status) if DOES_NOT_FIT in decision.waits.values() else ""
    found = {}
    for name, why in decision.waits.items():
        left = decision.until.get(name, 0.0) - now
        more = f"in {format_duration(left)}" if left > 0 else users * (why == DOES_NOT_FIT)
        told = names.told(why, names.owner(name))
        found[name] = f"{told}: {more}" if more else told
    return found


def _users(jobs: Mapping[str, StoredJob], status: Status) -> str:
    """What has GPUs now: jobs by their numbers, and how many grants besides."""
    found = {name: worker_grants(stored, status) for name, stored in jobs.items()}
    names = [name.removeprefix("job ") for name, grants in found.items() if grants]
    words = [f"job{'s' * (len(names) > 1)} {', '.join(names)}"] if names else []
    theirs = {grant for grants in found.values() for grant in grants}
    others = sum(
        1
        for grant in status.grants
        if grant.name not in theirs and grant.state is not GrantState.PARKED
    )
    words += [f"{format_count(others, 'grant')} of aliquot run"] if others else []
    return " and ".join(words)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Why others wait and when they start at the latest, after what starts now is in the `plan`."""

    names: DecisionNames
    plan: MachinePlan
    now: float
    kinds: RequestKinds
    _choices: dict[tuple[Request, int | None, int], str | None] = field(
        default_factory=dict, init=False
    )

    def reasons(self, decision: SizeDecision, occupied: Sequence[str]) -> dict[str, str]:
        """Why they wait, where the decision does not say it; `occupied` fit, but not yet."""
        found = {name: self._why_not_yet(name, decision) for name in occupied}
        for name, why in decision.waits.items():
            if (more := self.reason(name, why)) != why:
                found[name] = more
        return found

    def reason(self, name: str, why: str) -> str:
        """Why one waits: its choice of GPUs or neighbours if that is in the way, else `why`."""
        if self._is_frozen(name) or not (_is_by_place(why) or why == OCCUPIED):
            return why
        turn = self._turn(name)
        asked = self.kinds.kind(turn.request), turn.request.owner, turn.workers
        if asked not in self._choices:
            request = replace(asked[0], owner=asked[1])
            self._choices[asked] = self.plan.why_choice_waits(request, turn.workers)
        return self._choices[asked] or why

    def _is_frozen(self, name: str) -> bool:
        """Whether it returns to the GPUs that it had."""
        return name in self.jobs and self.jobs[name].state.frozen

    def _why_not_yet(self, name: str, decision: SizeDecision) -> str:
        """Why one that would fit does not start: jobs give GPUs back, or others came first."""
        if self._is_frozen(name):
            return OCCUPIED
        giving = tuple(
            grant_prefix(stored)
            for one, stored in self.jobs.items()
            if self._gives_back(stored, decision.resizes.get(one))
        )
        given = [one.name for one in self.plan.grants if one.name.startswith(giving)]
        if self.plan.without(given).holds(self._turn(name).request, decision.starts[name]):
            return OCCUPIED
        return self.reason(name, DOES_NOT_FIT)

    def _gives_back(self, stored: StoredJob, resize: tuple[int, str] | None) -> bool:
        """Whether a job stops, shrinks, or still has workers above its size."""
        state = stored.state
        if state.stopping is not None or (resize is not None and resize[0] < state.size):
            return True
        prefix = grant_prefix(stored)
        has = sum(one.name.startswith(prefix) for one in self.plan.grants if one.slices)
        return has > state.target_size

    @property
    def jobs(self) -> Mapping[str, StoredJob]:
        """The jobs, by their names in decisions."""
        return self.names.jobs

    def starts(self, decision: SizeDecision, occupied: Sequence[str]) -> dict[str, float]:
        """The latest starts that are known; `occupied` wait for GPUs that jobs give back now."""
        if occupied:
            freed = self._given_back(decision)
            return {} if freed is None else dict.fromkeys(occupied, freed)
        first = next(iter(decision.waits), "")
        if first in decision.until:
            return {first: decision.until[first] + self._longest_stop()}
        known = takewhile(lambda name: _is_by_place(decision.waits[name]), decision.waits)
        turns = map(self._turn, known)
        return expected_starts(turns, self.plan, self._ends(), self.now)

    def _turn(self, name: str) -> WaitingTurn:
        if name in self.names.runs:
            return WaitingTurn(name, self.names.runs[name].request)
        job, state = self.jobs[name].job, self.jobs[name].state
        limit = job.time_seconds
        left = None if limit is None else limit - state.used_seconds + _stop_seconds(job)
        return WaitingTurn(name, requested_by(self.jobs[name]), job.sizes.least, left)

    def _ends(self) -> Iterator[tuple[float, Sequence[Grant]]]:
        """When jobs that have workers have ended at the latest, and what they have until then."""
        for stored in self.jobs.values():
            if not stored.state.phase.inactive and (when := self._end(stored)) is not None:
                prefix = grant_prefix(stored)
                yield when, [one for one in self.plan.grants if one.name.startswith(prefix)]

    def _end(self, stored: StoredJob) -> float | None:
        job, state = stored.job, stored.state
        if state.stopping is not None and state.stopping.then is not JobPhase.STARTING:
            return state.stopping.until + job.grace_seconds
        if job.time_seconds is None:
            return None
        since = self.now if state.active_since is None else state.active_since
        return since + job.time_seconds - state.used_seconds + _stop_seconds(job)

    def _given_back(self, decision: SizeDecision) -> float | None:
        """When the jobs that are stopped or made smaller now have given their GPUs back."""
        stopping = [
            stored.state.stopping.until + stored.job.grace_seconds
            for stored in self.jobs.values()
            if stored.state.stopping is not None
        ]
        shrinking = [
            self.now + _stop_seconds(self.jobs[name].job)
            for name, (size, _) in decision.resizes.items()
            if size < self.jobs[name].state.size
        ]
        return max([*stopping, *shrinking], default=None)

    def _longest_stop(self) -> float:
        """How long a job needs to become smaller."""
        elastic = [
            one.job for one in self.jobs.values() if one.state.slots and one.job.sizes.elastic
        ]
        return max(map(_stop_seconds, elastic), default=0.0)


def _stop_seconds(job: Job) -> float:
    return job.notice_seconds + job.grace_seconds


def _is_by_place(why: str) -> bool:
    """Whether one waits for GPUs only, and not for a quota."""
    return why == DOES_NOT_FIT or why.endswith(NOT_OVERTAKEN)
