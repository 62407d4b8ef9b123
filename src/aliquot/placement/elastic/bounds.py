"""Bounds on the value of jobs with more GPUs than they have, without checking what fits."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from aliquot.placement.elastic.job import Elastic
    from aliquot.placement.elastic.sizes import JobSizes, Scales

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Upwards:
    """The sizes of a job above its present one, in ascending order.

    `more` and `milli` are the additional workers and thousandths of GPUs of each. `best[i]` and
    `worst[i]` are the highest and the lowest value of the present size and the first i larger ones:
    more workers may be slower.
    """

    more: list[int]
    milli: list[int]
    best: list[float]
    worst: list[float]

    @classmethod
    def of(cls, scales: Scales, job: Elastic, has: int) -> Upwards:
        """From this size on."""
        value = scales.value(job, has)
        found = cls([], [], [value], [value])
        for size in (one for one in job.sizes.allowed if one > has):
            value = scales.value(job, size)
            found.more.append(size - has)
            found.milli.append(scales.milli_between(job, has, size))
            found.best.append(max(found.best[-1], value))
            found.worst.append(min(found.worst[-1], value))
        return found

    def top(self, milli: float, refused: float = math.inf) -> float:
        """The highest value with up to `milli` more and fewer than `refused` more workers."""
        return self.best[min(bisect_right(self.milli, milli), bisect_left(self.more, refused))]

    def floor(self, milli: float) -> float:
        """The lowest value that the job could end up with if it grows within `milli`."""
        return self.worst[bisect_right(self.milli, milli)]


class Prospects:
    """What each job could gain at most; tables are kept while sizes stay the same."""

    def __init__(self, scales: Scales, jobs: Sequence[Elastic]) -> None:
        self._scales, self._jobs = scales, jobs
        self._upwards: dict[tuple[str, int], Upwards] = {}
        self._sizes = [0] * len(jobs)
        width = max((len(job.sizes.allowed) for job in jobs), default=0)
        self._milli: Floats = np.full((len(jobs), width), math.nan)
        self._best: Floats = np.zeros((len(jobs), width + 1))
        self._worst: Floats = np.zeros((len(jobs), width + 1))

    def upwards(self, job: Elastic, has: int) -> Upwards:
        """The sizes of a job above this one."""
        key = job.name, has
        found = self._upwards.get(key)
        if found is None:
            found = self._upwards[key] = Upwards.of(self._scales, job, has)
        return found

    def most(self, standing: JobSizes, losses: Mapping[str, Mapping[int, float]]) -> Floats:
        """An upper bound for each job on the net gain from any one exchange.

        `losses` has, for each queue of a taker, the lowest loss of a giver by the thousandths that
        it gives.
        """
        self._stand(standing)
        given = sorted({milli for known in losses.values() for milli in known})
        if not given:
            return np.full(len(self._jobs), -math.inf)
        costs = {
            queue: [known.get(milli, math.inf) for milli in given]
            for queue, known in losses.items()
        }
        reached = [self._reached(standing.free + milli) for milli in given]
        tops = np.take_along_axis(self._best, np.stack(reached, axis=1), 1)
        floors = np.take_along_axis(self._worst, self._reached(standing.free)[:, None], 1)
        gains = tops - floors - np.array([costs[job.queue] for job in self._jobs])
        return np.asarray(gains.max(axis=1))

    def _reached(self, milli: float) -> NDArray[np.int64]:
        """How many of its larger sizes each job could reach with `milli` more."""
        return np.asarray((self._milli <= milli).sum(axis=1))

    def _stand(self, standing: JobSizes) -> None:
        """Update the rows of jobs whose size has changed."""
        for place, job in enumerate(self._jobs):
            has = standing.sizes[job.name]
            if has != self._sizes[place]:
                self._sizes[place] = has
                up = self.upwards(job, has)
                self._milli[place] = math.nan  # which nothing reaches
                self._milli[place, : len(up.milli)] = up.milli
                self._best[place, : len(up.best)] = up.best
                self._worst[place, : len(up.worst)] = up.worst
