"""What will be free when: the allocations from now on, as work ends and planned starts begin.

Only some moments are looked at: now, every planned start, the next ends, and ever fewer of those
farther away. What ends between two of them counts until the later one. So no start is planned that
is impossible, a planned start that was possible stays so, and a start may be planned somewhat late:
as it comes nearer, the ends before it are told apart, and it moves forward. The number of moments
grows with the logarithm of the number of running gangs, and memory with the number of their
members.

Asking a moment after a planned start breaks nothing: what was due starts now, and later planned
starts move back by no more than that moment, if they must.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from aliquot.placement.core.allocations import Bundle
from aliquot.placement.core.demand import Running
from aliquot.placement.gangs.plan import may_hold, plan_gang

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations, FreeOnNodes
    from aliquot.placement.core.demand import Demand, Gang
    from aliquot.placement.core.snapshot import Hardware

EXACT_ENDS, COARSER = 16, 1.25
MOST_MOMENTS = 192
OVERRUN = 0.1
SHORTEST_OVERRUN = 10.0  # seconds that work runs at least, once it has overrun
ROUNDING = 1e-3


class Timeline:
    """The allocations now, and what changes them later.

    `planned` are the possible planned starts by the name of their gang; the others that it is made
    with are `broken`. They are given in fair-share order. `late` is how long ago the first was due.
    """

    def __init__(  # noqa: PLR0913 - the whole question
        self,
        allocations: Allocations,
        running: Sequence[Running],
        planned: Sequence[Running],
        now: float,
        *,
        by: Strategy | None = None,
        seed: int = 0,
    ) -> None:
        due = [_begun_at(max(one.start, now), one) for one in planned]
        ends = [expected_end(one, now) for one in running]
        far = _some_of({*ends, *(one.end for one in due)})
        self.now = now
        self.late = max((now - one.start for one in planned if one.start < now), default=0.0)
        self.planned: dict[str, Running] = {}
        self._by = by
        self._seed = seed
        self._does_not_fit_now: set[tuple[tuple[Demand, ...], float]] = set()
        self._falls: list[tuple[float, FreeOnNodes]] | None = None
        self._allocations = allocations.copy()
        self._times = sorted({now, *far, *(one.start for one in due)})
        self._ran = _Events(allocations.hardware)
        self._begins = _Events(allocations.hardware)
        self._ends = _Events(allocations.hardware)
        for one, end in zip(running, ends, strict=True):
            self._ran.add(self._times[bisect_left(self._times, end)], one)
        kept, self.broken = self._possible(planned)
        self._times = sorted({*self._times, *(one.start for one in kept)})
        for one in kept:
            self.plan(one)

    def start(self, one: Running) -> None:
        """Add a gang that starts now, and fits."""
        self._falls = None
        self._allocations.take_gang(one, known_to_fit=True)
        self._ran.add(self._moment(one.end), one)

    def plan(self, one: Running) -> None:
        """Add a planned start that fits."""
        self._falls = None
        self.planned[one.gang.name] = one
        self._begins.add(self._moment(one.start), one)
        self._ends.add(self._moment(one.end), one)

    def withdraw(self, one: Running) -> None:
        """Remove a planned start."""
        del self.planned[one.gang.name]
        self._falls = None
        self._does_not_fit_now.clear()
        self._begins.remove(one)
        self._ends.remove(one)

    def fits_now(self, gang: Gang) -> Running | None:
        """A start of the gang now, if it fits for all of its time; else None."""
        shape = gang.members, gang.seconds
        if shape in self._does_not_fit_now:
            return None
        found = self._at(*next(self._walk()), gang)
        if found is None:
            self._does_not_fit_now.add(shape)
        return found

    def free_for(self, seconds: float) -> Allocations:
        """What is free now and stays so for this long, whatever starts meanwhile."""
        time, allocations = next(self._walk())
        return self._lowered(allocations, time, time + seconds)

    def starts_within(self, seconds: float) -> int:
        """How many moments of planned starts come in this time; `free_for` depends on no more."""
        return sum(self.now < at < self.now + seconds for at, _ in self._known_falls())

    def earliest(self, gang: Gang, before: float = math.inf) -> Running | None:
        """The first start at which the gang fits before this time; None if there is none."""
        for time, allocations in self._walk():
            if time >= before:
                return None
            found = self._at(time, allocations, gang)
            if found is not None:
                return found
        return None

    def still_holds(self, one: Running) -> bool:
        """Whether a planned start that was removed is still possible as it was."""
        for time, allocations in self._walk():
            if time >= one.start:
                least = self._least(allocations, time, one.gang)
                return least is not None and least.take_gang_if_it_fits(one)
        return False

    def at_last(self) -> Allocations:
        """The allocations when all has ended."""
        *_, (_, allocations) = self._walk()
        return allocations

    def _at(self, time: float, allocations: Allocations, gang: Gang) -> Running | None:
        """A start at this time, with the allocations as they are then."""
        least = self._least(allocations, time, gang) if may_hold(allocations, gang) else None
        placements = None if least is None else plan_gang(least, gang, self._by, seed=self._seed)
        if placements is None:
            return None
        return Running(gang, placements, time, time + gang.seconds)

    def _walk(self) -> Iterator[tuple[float, Allocations]]:
        """Each moment with the allocations as they are then: one copy that goes along."""
        allocations = self._allocations.copy()
        for time in list(self._times):
            self._step(allocations, time)
            yield time, allocations

    def _step(self, allocations: Allocations, time: float) -> None:
        for ended in (self._ran.at(time), self._ends.at(time)):
            if ended is not None:
                allocations.give_all(ended)
        begun = self._begins.at(time)
        if begun is not None:
            allocations.take_all(begun)

    def _least(self, allocations: Allocations, time: float, gang: Gang) -> Allocations | None:
        """What stays free while a gang runs; None if that is too little."""
        least = self._lowered(allocations, time, time + gang.seconds)
        return least if least is allocations or may_hold(least, gang) else None

    def _lowered(self, allocations: Allocations, time: float, end: float) -> Allocations:
        """What stays free until then: less at each planned start."""
        falls = [free for at, free in self._known_falls() if time < at < end]
        if not falls:
            return allocations
        least = allocations.copy()
        for free in falls:
            least.lower_to(free)
        return least

    def _known_falls(self) -> list[tuple[float, FreeOnNodes]]:
        if self._falls is None:
            self._falls = list(self._begin_by_begin())
        return self._falls

    def _begin_by_begin(self) -> Iterator[tuple[float, FreeOnNodes]]:
        """Each moment of planned starts, with what is free on their nodes then."""
        last = max(self._begins.times, default=-math.inf)
        for time, allocations in self._walk():
            if time > last:
                return
            begun = self._begins.at(time)
            if begun is not None:
                yield time, allocations.free_on(begun.nodes)

    def _possible(self, planned: Sequence[Running]) -> tuple[list[Running], list[Running]]:
        """The possible planned starts, moved back by up to as much as we are late; and the others.

        They are tried by start, equals in fair-share order. If all were moved back, all would be
        possible, provided that running work ends in time.
        """
        allocations = self._allocations.copy()
        ran = sorted(self._ran.times, reverse=True)
        ends: list[tuple[float, int]] = []
        begins = [(max(one.start, self.now), turn) for turn, one in enumerate(planned)]
        heapq.heapify(begins)
        kept, broken = [], []
        while begins:
            time, turn = heapq.heappop(begins)
            while ran and ran[-1] <= time:
                allocations.give_all(self._ran.bundle(ran.pop()))
            while ends and ends[0][0] <= time:
                allocations.give_gang(planned[heapq.heappop(ends)[1]])
            one = planned[turn]
            if allocations.take_gang_if_it_fits(one):
                kept.append(_begun_at(time, one))
                heapq.heappush(ends, (kept[-1].end, turn))
            elif ends and ends[0][0] <= one.start + self.late + ROUNDING:
                heapq.heappush(begins, (ends[0][0], turn))
            else:
                broken.append(one)
        return kept, broken

    def _moment(self, time: float) -> float:
        """The moment for this time: the time itself, or the next moment if there are too many."""
        at = bisect_left(self._times, time)
        if at == len(self._times) or (self._times[at] != time and len(self._times) < MOST_MOMENTS):
            self._times.insert(at, time)
        return self._times[at]


class _Events:
    """Gangs by the moment at which they begin, or have ended."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._gangs: dict[float, list[Running]] = {}
        self._bundles: dict[float, Bundle] = {}
        self._time_of: dict[str, float] = {}

    @property
    def times(self) -> Iterable[float]:
        return self._gangs.keys()

    def at(self, time: float) -> Bundle | None:
        """The sum of all gangs of one moment; None if there are none."""
        return self.bundle(time) if time in self._gangs else None

    def bundle(self, time: float) -> Bundle:
        """The sum of all gangs of one moment, which must have some; kept until they change."""
        if time not in self._bundles:
            self._bundles[time] = Bundle.of(self._hardware, self._gangs[time])
        return self._bundles[time]

    def add(self, time: float, one: Running) -> None:
        self._gangs.setdefault(time, []).append(one)
        self._time_of[one.gang.name] = time
        self._bundles.pop(time, None)

    def remove(self, one: Running) -> None:
        time = self._time_of.pop(one.gang.name)
        self._gangs[time].remove(one)
        if not self._gangs[time]:
            del self._gangs[time]
        self._bundles.pop(time, None)


def _begun_at(start: float, one: Running) -> Running:
    return Running(one.gang, one.placements, start, start + one.gang.seconds)


def expected_end(one: Running, now: float) -> float:
    """When work ends; work that overran is expected to run for another tenth of its time, again.

    The expected end stays until it has passed: so planned starts behind it do not move with the
    clock, and nobody is told of a new one at every look.
    """
    if one.end > now:
        return one.end
    ran, elapsed = max(one.end - one.start, SHORTEST_OVERRUN), now - one.start
    steps = math.floor(math.log(elapsed / ran) / math.log1p(OVERRUN)) + 1 if elapsed >= ran else 0
    return max(one.start + round(ran * (1 + OVERRUN) ** steps, 3), now + ROUNDING)


def _some_of(times: Collection[float]) -> set[float]:
    """The first of these, ever fewer of the later ones, and the last."""
    ordered = sorted(times)
    kept = set(ordered[:EXACT_ENDS] + ordered[-1:])
    at = float(EXACT_ENDS)
    while at < len(ordered):
        kept.add(ordered[int(at)])
        at *= COARSER
    return kept
