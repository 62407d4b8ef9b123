"""Free GPUs go to the jobs that gain most by them, step after step, as long as all fit.

Several steps are checked at once, twice as many each time; only if they do not fit are they checked
one by one. A job whose step is refused gets no other: from then on there is only less.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from aliquot.placement.elastic.sizes import TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.placement.elastic.job import Elastic, WorkerKind
    from aliquot.placement.elastic.sizes import JobSizes, Scales

MOST_AT_ONCE = 256

Step = tuple["Elastic", "JobSizes"]  # the job that grows, and all sizes after that


class Grow:
    """Jobs that may grow."""

    def __init__(
        self, scales: Scales, holds: Callable[[JobSizes], bool], jobs: Sequence[Elastic]
    ) -> None:
        self._scales, self._holds, self._jobs = scales, holds, jobs
        self._closed: set[str] = set()
        self._refused: Counter[tuple[WorkerKind, int]] = Counter()

    def most(self, standing: JobSizes) -> JobSizes:
        """The sizes when no job can grow any more."""
        at_once = 1
        while steps := list(islice(self._steps(standing), at_once)):
            held = len(steps)
            if not self._holds(steps[-1][1]):
                held = bisect_left(steps[:-1], 1, key=lambda step: int(not self._holds(step[1])))
                self._close(steps[held][0], standing if not held else steps[held - 1][1])
            at_once = min(2 * at_once, MOST_AT_ONCE) if held == len(steps) else 1
            standing = steps[held - 1][1] if held else standing
        return standing

    def _close(self, job: Elastic, standing: JobSizes) -> None:
        """Its next step does not fit."""
        has = standing.sizes[job.name]
        self._closed.add(job.name)
        self._refused[job.kind, (job.sizes.above(has) or has) - has] += 1

    def _steps(self, standing: JobSizes) -> Iterator[Step]:
        """Step after step as if all fitted; of equals the last name comes first."""
        heap = [one for place in range(len(self._jobs)) if (one := self._next(standing, place))]
        heapq.heapify(heap)
        while heap:
            loss, place, size = heapq.heappop(heap)
            job = self._jobs[-place]
            has = standing.sizes[job.name]
            is_refused = self._refused[job.kind, size - has] >= TRIES
            more = self._scales.milli_between(job, has, size)
            if loss >= 0 or is_refused or more > standing.free:
                continue
            larger = standing.changed(job, size)
            if not larger.is_allowed(job.queue):
                continue
            standing = larger
            yield job, standing
            if (entry := self._next(standing, -place)) is not None:
                heapq.heappush(heap, entry)

    def _next(self, standing: JobSizes, place: int) -> tuple[float, int, int] | None:
        """The heap entry for the next size of a job: the best gain for each GPU comes first.

        None if the job has no larger size, or is closed.
        """
        job, scales = self._jobs[place], self._scales
        has = standing.sizes[job.name]
        size = job.sizes.above(has)
        if size is None or job.name in self._closed:
            return None
        more = scales.value(job, size) - scales.value(job, has)
        return -more / max(1, scales.milli_between(job, has, size)), -place, size
