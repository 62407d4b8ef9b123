"""Which job should give a step to which other: the pair that is better off by most.

With n jobs there are n * n pairs, and to check each takes too long. So pairs are
looked at in the order of what they could gain at most: what the other would be worth if it got all
that is free and all that is given, as far as its queue may grow. The first pair that does gain more
than all others could is the best, and the rest is not asked about. Jobs come first, each with the
best that any pair could bring it, and only the pairs of those that come before a best one is found.

What did not fit is not checked again for others of the same kind: those that need as much of
the same, after as much of the same was given. Where GPUs are counted, one refusal is enough to
know; where they are not, it matters who has which, and so up to `TRIES` are made of each kind,
until there were `REFUSALS` in all.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.elastic.bounds import Prospects
from aliquot.placement.elastic.sizes import TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.placement.core.demand import Demand
    from aliquot.placement.elastic.job import Elastic
    from aliquot.placement.elastic.sizes import JobSizes, Scales

NOTHING = 1e-9
REFUSALS = 200


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is given: by which queue, and how many workers of what, by its number."""

    queue: str
    member: int
    count: int
    milli: int


@dataclass(frozen=True, slots=True, order=True)
class _Giver:
    """A job that could be smaller; `place` is its place among all jobs."""

    loss: float
    place: int
    size: int


_Pair = tuple[float, int, int, int, int]  # bound, giver, taker; which line, and where in it
_NO_LINE = -1


class Exchange:
    """The best exchange between these jobs, standing by standing."""

    def __init__(
        self,
        scales: Scales,
        holds: Callable[[JobSizes], bool],
        jobs: Sequence[Elastic],
        standing: JobSizes,
    ) -> None:
        self._scales, self._holds, self._jobs = scales, holds, jobs
        self._prospects = Prospects(scales, jobs)
        self._places = {job.name: place for place, job in enumerate(jobs)}
        numbers: dict[Demand, int] = {}
        self._members = [numbers.setdefault(job.member, len(numbers)) for job in jobs]
        self._refused: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        self._refusals = 0
        self._alone: dict[int, float] = {}
        self._numbers: dict[_Kind, int] = {}
        self._kinds: list[_Kind] = []
        self._lines: list[list[_Giver]] = []
        self._open: dict[str, dict[int, float]] = {}
        self._standing = standing
        for place in range(len(jobs)):
            self._stand_in_line(place)

    def best(self) -> tuple[float, JobSizes] | None:
        """What is gained, and the standing after it; None where nothing is."""
        self._open = {queue: self._open_to(queue) for queue in {job.queue for job in self._jobs}}
        heap, best, found = self._takers(), (0.0, 0, 0), None
        heapq.heapify(heap)
        while heap:
            bound, by, to, line, at = heapq.heappop(heap)
            if found is not None and (bound, by, to) >= best:
                break
            if line == _NO_LINE:
                for pair in self._pairs(to):
                    heapq.heappush(heap, pair)
                continue
            giver = self._lines[line][at]
            now = -self._bound(to, line, giver)
            if now > bound:
                if now < -NOTHING:
                    heapq.heappush(heap, (now, by, to, line, at))
                continue
            smaller = self._standing.changed(self._jobs[giver.place], giver.size)
            trial = self._grown(smaller, to, line)
            loss = -(self._worth(to, trial) - self._alone[to] - giver.loss)
            if loss < -NOTHING and (found is None or (loss, by, to) < best):
                best, found = (loss, by, to), trial
            if (following := self._pair(to, line, at + 1)) is not None:
                heapq.heappush(heap, following)
        return None if found is None else (-best[0], found)

    def go_on(self, standing: JobSizes) -> None:
        """From here on this is how they stand."""
        before, self._standing = self._standing, standing
        if standing.milli < before.milli:  # more is free: what was refused may be possible
            self._refused.clear()
        self._alone.clear()
        for name, _ in standing.sizes.items() - before.sizes.items():
            place = self._places[name]
            self._leave_line(place, before.sizes[name])
            self._stand_in_line(place)

    # --- who could give ---

    def _line_of(self, place: int, has: int) -> tuple[int, _Giver] | None:
        job = self._jobs[place]
        size = job.sizes.below(has)
        if size is None:
            return None
        loss = self._scales.value(job, has) - self._scales.value(job, size)
        milli = self._scales.milli_between(job, size, has)
        kind = _Kind(job.queue, self._members[place], has - size, milli)
        if kind not in self._numbers:
            self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
            self._lines.append([])
        return self._numbers[kind], _Giver(loss, place, size)

    def _stand_in_line(self, place: int) -> None:
        """Among those that would give the same; who loses least comes first."""
        found = self._line_of(place, self._standing.sizes[self._jobs[place].name])
        if found is not None:
            insort(self._lines[found[0]], found[1])

    def _leave_line(self, place: int, has: int) -> None:
        found = self._line_of(place, has)
        if found is not None:
            self._lines[found[0]].remove(found[1])

    def _open_to(self, queue: str) -> dict[int, float]:
        """The lines that may give to a queue, and how much it could have more after each."""
        found, standing = {}, self._standing
        willing: dict[str, bool] = {}
        for number, (kind, line) in enumerate(zip(self._kinds, self._lines, strict=True)):
            if kind.queue not in willing:
                willing[kind.queue] = standing.reluctance(kind.queue, queue) is not None
            if line and willing[kind.queue]:
                until = standing.milli_until_limit(queue, kind.queue, kind.milli)
                found[number] = min(standing.free + kind.milli, until)
        return found

    # --- who could gain ---

    def _takers(self) -> list[_Pair]:
        """All that may gain by some pair, each with the most that it could."""
        losses: dict[str, dict[int, float]] = {}
        for queue, lines in self._open.items():
            found = losses[queue] = dict[int, float]()
            for number, more in lines.items():
                milli, loss = self._kinds[number].milli, self._lines[number][0].loss
                if more > 0 or loss < 0:  # some are faster with fewer workers
                    found[milli] = min(found.get(milli, math.inf), loss)
        bounds = self._prospects.most(self._standing, losses)
        able = np.flatnonzero(bounds > NOTHING).tolist()
        return [(-float(bounds[to]), -1, to, _NO_LINE, 0) for to in able]

    def _pairs(self, to: int) -> Iterator[_Pair]:
        """The first of each line for one taker, where that may gain something."""
        alone = self._worth(to, self._grown(self._standing, to, None))
        self._alone[to] = max(alone, self._worth(to, self._standing))  # some are slower when larger
        for line in self._open[self._jobs[to].queue]:
            if (pair := self._pair(to, line, 0)) is not None:
                yield pair

    def _pair(self, to: int, number: int, at: int) -> _Pair | None:
        """A pair from this place of a line on; None where it ends, or nothing can be gained."""
        line = self._lines[number]
        if at < len(line) and line[at].place == to:
            at += 1
        if at >= len(line):
            return None
        bound = self._bound(to, number, line[at])
        return (-bound, line[at].place, to, number, at) if bound > NOTHING else None

    def _bound(self, to: int, line: int, giver: _Giver) -> float:
        """The most that both could gain together."""
        taker, kind = self._jobs[to], self._kinds[line]
        upwards = self._prospects.upwards(taker, self._standing.sizes[taker.name])
        refused = self._refusal((kind.member, kind.count, self._members[to]))
        top = upwards.top(self._open[taker.queue][line], refused)
        return top - self._alone[to] - giver.loss

    def _worth(self, to: int, trial: JobSizes) -> float:
        taker = self._jobs[to]
        return self._scales.value(taker, trial.sizes[taker.name])

    # --- what fits ---

    def _grown(self, trial: JobSizes, to: int, line: int | None) -> JobSizes:
        """The same with this job as large as fits, after a line gave or nobody."""
        taker = self._jobs[to]
        has = self._standing.sizes[taker.name]
        kind = None if line is None else self._kinds[line]
        given = (-1, 0) if kind is None else (kind.member, kind.count)
        key = *given, self._members[to]
        larger = list(self._allowed(trial, taker, has + self._refusal(key)))
        if len(larger) > 1 and self._holds(larger[-1]):
            return larger[-1]
        for one in larger:
            if not self._holds(one):
                self._refusals += 1
                self._refused[key].append(one.sizes[taker.name] - has)
                break
            trial = one
        return trial

    def _allowed(self, trial: JobSizes, taker: Elastic, refused: float) -> Iterator[JobSizes]:
        """The same with larger sizes of this job below that, as far as it is known what is free."""
        while (size := taker.sizes.above(trial.sizes[taker.name])) is not None:
            more = self._scales.milli_between(taker, trial.sizes[taker.name], size)
            if more > trial.free or size >= refused:
                break
            trial = trial.changed(taker, size)
            if not trial.is_allowed(taker.queue):
                break
            yield trial

    def _refusal(self, key: tuple[int, int, int]) -> float:
        """From how many more workers on it does not fit."""
        refused = self._refused.get(key, ())
        tries = TRIES if self._refusals < REFUSALS else 1
        return math.inf if len(refused) < tries else sorted(refused)[tries - 1]
