"""What will be free when: the books from now on, as work ends and what is promised begins.

Only some moments are looked at: now, every start that is promised, the next ends, and ever fewer of
those farther away. What ends between two of them counts until the later one. So nothing is promised
that is not there, a promise that was possible stays so, and a start may be promised somewhat late:
as it comes nearer, the ends before it are told apart, and it moves forward. The number of moments
grows with the logarithm of the number of gangs that run, and memory with the number of their
members.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from aliquot.placement.books import Bundle
from aliquot.placement.demand import Running
from aliquot.placement.gangs import may_hold, plan_gang

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from aliquot.placement.books import Books, Left
    from aliquot.placement.demand import Demand, Gang
    from aliquot.placement.snapshot import Hardware
    from aliquot.placement.strategies import Strategy

EXACT_ENDS, COARSER = 16, 1.25
MOST_MOMENTS = 192
OVERRUN = 0.1


class Timeline:
    """The books now, and what changes them later.

    `promises` are by the name of their gang; of those it is made with, the ones that are possible.
    """

    def __init__(  # noqa: PLR0913 - the whole question
        self,
        books: Books,
        running: Sequence[Running],
        promised: Sequence[Running],
        now: float,
        *,
        by: Strategy | None = None,
        seed: int = 0,
    ) -> None:
        due = [_not_before(now, one) for one in promised]
        ends = [_expected_end(one, now) for one in running]
        far = _some_of({*ends, *(one.end for one in due)})
        self.now = now
        self.promises: dict[str, Running] = {}
        self._by = by
        self._seed = seed
        self._no_room_now: set[tuple[tuple[Demand, ...], float]] = set()
        self._falls: list[tuple[float, Left]] | None = None
        self._books = books.copy()
        self._times = sorted({now, *far, *(one.start for one in due)})
        self._ran = _Events(books.hardware)
        self._begins = _Events(books.hardware)
        self._ends = _Events(books.hardware)
        for one, end in zip(running, ends, strict=True):
            self._ran.add(self._times[bisect_left(self._times, end)], one)
        for one in sorted(due, key=lambda each: each.start):
            self.promise(one)
        for one in self._impossible():
            self.withdraw(one)

    def start(self, one: Running) -> None:
        """Write in what starts now; it has room."""
        self._falls = None
        self._books.take_gang(one, known_to_fit=True)
        self._ends.add(self._moment(one.end), one)

    def promise(self, one: Running) -> None:
        """Write in what begins later; it has room."""
        self._falls = None
        self.promises[one.gang.name] = one
        self._begins.add(self._moment(one.start), one)
        self._ends.add(self._moment(one.end), one)

    def withdraw(self, one: Running) -> None:
        """Take a promise out again."""
        del self.promises[one.gang.name]
        self._falls = None
        self._no_room_now.clear()
        self._begins.remove(one)
        self._ends.remove(one)

    def fits_now(self, gang: Gang) -> Running | None:
        """A start of the gang now, where there is room for all of its time."""
        shape = gang.members, gang.seconds
        if shape in self._no_room_now:
            return None
        found = self._at(*next(self._walk()), gang)
        if found is None:
            self._no_room_now.add(shape)
        return found

    def earliest(self, gang: Gang, before: float = math.inf) -> Running | None:
        """The first start at which the gang fits, if there is one before this."""
        for time, books in self._walk():
            if time >= before:
                return None
            found = self._at(time, books, gang)
            if found is not None:
                return found
        return None

    def at_last(self) -> Books:
        """The books when all has ended."""
        *_, (_, books) = self._walk()
        return books

    def _at(self, time: float, books: Books, gang: Gang) -> Running | None:
        """A start at this time, with the books as they are then."""
        least = self._least(books, time, gang) if may_hold(books, gang) else None
        placements = None if least is None else plan_gang(least, gang, self._by, seed=self._seed)
        if placements is None:
            return None
        return Running(gang, placements, time, time + gang.seconds)

    def _walk(self) -> Iterator[tuple[float, Books]]:
        """Each moment with the books as they are then: one copy that goes along."""
        books = self._books.copy()
        for time in list(self._times):
            self._step(books, time)
            yield time, books

    def _step(self, books: Books, time: float) -> None:
        for ended in (self._ran.at(time), self._ends.at(time)):
            if ended is not None:
                books.give_all(ended)
        begun = self._begins.at(time)
        if begun is not None:
            books.take_all(begun)

    def _least(self, books: Books, time: float, gang: Gang) -> Books | None:
        """What is left while a gang runs, which falls where something begins; None: too little."""
        if self._falls is None:
            self._falls = list(self._begin_by_begin())
        end = time + gang.seconds
        falls = [left for at, left in self._falls if time < at < end]
        if not falls:
            return books
        least = books.copy()
        for left in falls:
            least.lower_to(left)
        return least if may_hold(least, gang) else None

    def _begin_by_begin(self) -> Iterator[tuple[float, Left]]:
        """Each moment at which promises begin, with what is left on their nodes then."""
        last = max(self._begins.times, default=-math.inf)
        for time, books in self._walk():
            if time > last:
                return
            begun = self._begins.at(time)
            if begun is not None:
                yield time, books.left_on(begun.nodes)

    def _impossible(self) -> list[Running]:
        """The promises for which there is no room, if those that begin before them are kept."""
        books = self._books.copy()
        broken: list[Running] = []
        last = max(self._begins.times, default=-math.inf)
        for time in self._times[: bisect_right(self._times, last)]:
            ended = self._ran.at(time)
            if ended is not None:
                books.give_all(ended)
            for one in self._ends.gangs(time):
                if one not in broken:
                    books.give_gang(one)
            begins = self._begins.gangs(time)
            broken += [one for one in begins if not books.take_gang_if_it_fits(one)]
        return broken

    def _moment(self, time: float) -> float:
        """The moment that stands for this time: itself, or where there are too many the next."""
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

    def gangs(self, time: float) -> Sequence[Running]:
        return self._gangs.get(time, ())

    def at(self, time: float) -> Bundle | None:
        """All of one moment, added up."""
        if time not in self._gangs:
            return None
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


def _not_before(now: float, one: Running) -> Running:
    start = max(one.start, now)
    return Running(one.gang, one.placements, start, start + one.gang.seconds)


def _expected_end(one: Running, now: float) -> float:
    """Work that runs longer than it said is expected to go on for a tenth of its time so far."""
    return one.end if one.end > now else now + max(1.0, OVERRUN * (now - one.start))


def _some_of(times: Collection[float]) -> set[float]:
    """The first of these, ever fewer of the later ones, and the last."""
    ordered = sorted(times)
    kept = set(ordered[:EXACT_ENDS] + ordered[-1:])
    at = float(EXACT_ENDS)
    while at < len(ordered):
        kept.add(ordered[int(at)])
        at *= COARSER
    return kept
