"""Which job should give a step to which other job: the pair with the largest joint gain.

With n jobs there are n * n pairs, and checking each takes too long. So pairs are checked in the
order of an upper bound on their gain: the taker's value if it got all free GPUs and all that the
giver gives, within the limits of its queue. The search ends at the first pair whose real gain is at
least the bound of all remaining pairs. It starts with one entry for each taker, with the bound of
its best possible pair, and lists the pairs of a taker only when that entry is reached.

A check that failed is not repeated for pairs of the same kind: a giver gives as many workers of the
same kind, and a taker wants at least as many of the same. If GPUs are merely counted, one refusal
decides for the kind. Otherwise it matters which job has which GPUs, so up to `TRIES` pairs of each
kind are checked, until there were `REFUSALS` in all.
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

    from aliquot.placement.elastic.job import Elastic, WorkerKind
    from aliquot.placement.elastic.sizes import JobSizes, Scales

NOTHING = 1e-9
REFUSALS = 200


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a giver gives: of which queue and kind (by number), how many workers and GPUs."""

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
    """Finds the best exchange between these jobs, again after each change of their sizes."""

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
        numbers: dict[WorkerKind, int] = {}
        self._members = [numbers.setdefault(job.kind, len(numbers)) for job in jobs]
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
        """The gain of the best exchange and the sizes after it; None if none gains anything."""
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
        """Continue from these sizes."""
        before, self._standing = self._standing, standing
        if standing.milli < before.milli:  # more is free: what was refused may be possible
            self._refused.clear()
        self._alone.clear()
        for name, _ in standing.sizes.items() - before.sizes.items():
            place = self._places[name]
            self._leave_line(place, before.sizes[name])
            self._stand_in_line(place)

    # --- givers ---

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
        """Add a job to the line of givers of its kind, which is sorted by loss."""
        found = self._line_of(place, self._standing.sizes[self._jobs[place].name])
        if found is not None:
            insort(self._lines[found[0]], found[1])

    def _leave_line(self, place: int, has: int) -> None:
        found = self._line_of(place, has)
        if found is not None:
            self._lines[found[0]].remove(found[1])

    def _open_to(self, queue: str) -> dict[int, float]:
        """The lines that may give to a queue, and how much a job of it could grow after each."""
        found, standing = {}, self._standing
        willing: dict[str, bool] = {}
        for number, (kind, line) in enumerate(zip(self._kinds, self._lines, strict=True)):
            if kind.queue not in willing:
                willing[kind.queue] = standing.reluctance(kind.queue, queue) is not None
            if line and willing[kind.queue]:
                until = standing.milli_until_limit(queue, kind.queue, kind.milli)
                found[number] = min(standing.free + kind.milli, until)
        return found

    # --- takers ---

    def _takers(self) -> list[_Pair]:
        """An entry for each job that may gain by some pair, with an upper bound of its gain."""
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
        """For one taker, its pair with the first giver of each line, if that may gain something."""
        alone = self._worth(to, self._grown(self._standing, to, None))
        self._alone[to] = max(alone, self._worth(to, self._standing))  # some are slower when larger
        for line in self._open[self._jobs[to].queue]:
            if (pair := self._pair(to, line, 0)) is not None:
                yield pair

    def _pair(self, to: int, number: int, at: int) -> _Pair | None:
        """The pair with the giver at this place of a line, or the next if that is the taker.

        None at the end of the line, or if the pair cannot gain anything.
        """
        line = self._lines[number]
        if at < len(line) and line[at].place == to:
            at += 1
        if at >= len(line):
            return None
        bound = self._bound(to, number, line[at])
        return (-bound, line[at].place, to, number, at) if bound > NOTHING else None

    def _bound(self, to: int, line: int, giver: _Giver) -> float:
        """An upper bound on the joint gain of both."""
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
        """These sizes with the taker as large as fits.

        `line` is the line whose giver has already given in `trial`; None if no job gave.
        """
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
        """These sizes with the taker one step larger each time, below the size `refused`.

        Ends at what is known to be free and at the limits of the queue; whether it fits is not
        checked.
        """
        while (size := taker.sizes.above(trial.sizes[taker.name])) is not None:
            more = self._scales.milli_between(taker, trial.sizes[taker.name], size)
            if more > trial.free or size >= refused:
                break
            trial = trial.changed(taker, size)
            if not trial.is_allowed(taker.queue):
                break
            yield trial

    def _refusal(self, key: tuple[int, int, int]) -> float:
        """The number of additional workers from which on this kind counts as refused."""
        refused = self._refused.get(key, ())
        tries = TRIES if self._refusals < REFUSALS else 1
        return math.inf if len(refused) < tries else sorted(refused)[tries - 1]
