"""Which waiting jobs may not start yet, whatever is free: dependencies, and limits of arrays. Pure.

A job that waits for another one to succeed can never start once that one has failed or was
cancelled. `Hold.never` says so, and the controller cancels the job with that reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.job import JobPhase, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.model.job import Dependency
    from aliquot.pool.store import StoredJob


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a job may not start. `never`: that will not change."""

    why: str
    never: bool = False


def held(jobs: Sequence[StoredJob], phase_of: Callable[[int], JobPhase | None]) -> dict[int, Hold]:
    """The holds of the jobs that have no workers yet, by their numbers."""
    waiting = [one for one in jobs if one.state.phase.inactive and not one.state.slots]
    found = {}
    for stored in waiting:
        if (hold := _dependencies(stored, phase_of)) is not None:
            found[stored.job.number] = hold
    free = [one for one in waiting if one.job.number not in found]
    return found | _arrays(free, jobs)


def _dependencies(stored: StoredJob, phase_of: Callable[[int], JobPhase | None]) -> Hold | None:
    first: Hold | None = None
    for one in stored.job.after:
        hold = _dependency(one, phase_of(int(one.job)))
        if hold is not None and hold.never:
            return hold
        first = first or hold
    return first


def _dependency(one: Dependency, phase: JobPhase | None) -> Hold | None:
    if phase is None:
        return Hold(f"job {one.job}, which it starts after, does not exist any more", never=True)
    if not phase.final:
        return Hold(f"it starts after job {one.job}, which is {phase}")
    if one.needs is Needs.OK and phase is not JobPhase.SUCCEEDED:
        return Hold(f"job {one.job}, which it starts after, is {phase}", never=True)
    return None


def _arrays(waiting: Sequence[StoredJob], jobs: Sequence[StoredJob]) -> dict[int, Hold]:
    """The jobs of arrays that run as many at once as they may."""
    active: defaultdict[tuple[int, str, float], int] = defaultdict(int)
    for stored in jobs:
        if stored.job.array is not None and not stored.state.phase.inactive:
            active[_array(stored)] += 1
    found = {}
    for stored in sorted(waiting, key=lambda one: one.job.number):
        array = stored.job.array
        if array is None or array.at_once is None or stored.state.phase is not JobPhase.PENDING:
            continue
        if active[_array(stored)] >= array.at_once:
            found[stored.job.number] = Hold(
                f"array {array.name} runs {array.at_once} of its jobs at once"
            )
        active[_array(stored)] += 1
    return found


def _array(stored: StoredJob) -> tuple[int, str, float]:
    assert stored.job.array is not None  # noqa: S101 - its callers have checked it
    return stored.owner.uid, stored.job.array.name, stored.job.array_begun
