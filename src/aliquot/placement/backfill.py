"""When waiting gangs start: reservations in order, and small work in the gaps before them.

Conservative backfill over a timeline of what will be free. Each gang, in its queue's order, gets
the earliest start at which all its members fit for as long as it runs, with everything that was
promised before it left in place. So a start that was promised is only ever moved forward by this
module: later and smaller work runs in the gaps, or waits. What can move it back is work that runs
longer than it said, and a preemption; that is told in the reason.

No gang holds anything before all of it can start, so gangs cannot wait for each other's halves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.books import Books
from aliquot.placement.demand import Gang, Kind, Running
from aliquot.placement.gangs import has_no_way, plan_gang
from aliquot.placement.snapshot import ABSENT, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.placement.strategies import Strategy


RESERVATIONS = 64
OVERRUN = 0.1
OVERRAN = "other work runs longer than it said"


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts now, what is promised for later, and a sentence for each gang that waits."""

    starts: tuple[Running, ...] = ()
    reservations: tuple[Running, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def plan_starts(  # noqa: PLR0913 - the whole question
    books: Books,
    running: Sequence[Running],
    promised: Sequence[Running],
    waiting: Sequence[Gang],
    now: float,
    *,
    by: Strategy | None = None,
    blame: str = OVERRAN,
) -> Plan:
    """Decide for all that wait, in their order; `promised` is what the last plan reserved.

    A gang of one goes where the strategy says. `blame` is what a promise that can no longer be kept
    was broken by.
    """
    after = books.copy()
    starts = [] if promised else _fitting_now(after, waiting, now, by)
    if len(starts) == len(waiting):
        return Plan(tuple(starts))
    line = Timeline(after, [*running, *starts], now)
    kept = _still_possible(line, promised, waiting)
    moved = {one.gang.name for one in promised} - set(kept)
    reasons: dict[str, str] = {}
    for gang in waiting[len(starts) :]:
        before = kept.pop(gang.name, None)
        if before is not None:
            line.give(before)
        found = line.earliest(gang, before, by)
        if found is None:
            reasons[gang.name] = _why_never(line.at_last, gang)
            continue
        if found.start <= now:
            line.take(found)
            starts.append(found)
        elif before is not None or len(line.promises) < RESERVATIONS:
            line.take(found)
            reasons[gang.name] = _why_later(gang, found, blame if gang.name in moved else "")
        else:
            reasons[gang.name] = f"{len(line.promises)} gangs are promised a start before it"
    return Plan(tuple(starts), line.promises, reasons)


def _fitting_now(
    books: Books, waiting: Sequence[Gang], now: float, by: Strategy | None
) -> list[Running]:
    """The first gangs as long as each fits, taken: where nothing is promised yet, that is safe."""
    starts = []
    for gang in waiting:
        placements = plan_gang(books, gang, by)
        if placements is None:
            break
        starts.append(Running(gang, placements, now, now + gang.seconds))
        for placement, member in zip(placements, gang.members, strict=True):
            books.take(placement, member)
    return starts


def _still_possible(
    line: Timeline, promised: Sequence[Running], waiting: Sequence[Gang]
) -> dict[str, Running]:
    """Put the old promises into the timeline, all but those that can no longer be kept."""
    names = {gang.name: gang for gang in waiting}
    kept = {}
    for one in sorted(promised, key=lambda each: each.start):
        if names.get(one.gang.name) != one.gang:
            continue
        start = max(one.start, line.now)
        later = Running(one.gang, one.placements, start, start + one.gang.seconds)
        if line.has_room(later):
            line.take(later)
            kept[one.gang.name] = later
    return kept


class Timeline:
    """The books at each moment at which something is expected to end or begin."""

    def __init__(self, books: Books, running: Iterable[Running], now: float) -> None:
        self.now = now
        self.reserved: list[Running] = []
        self._times = [now]
        self._states = [books.copy()]
        for one in sorted(running, key=lambda each: _expected_end(each, now)):
            at = self._index_of(_expected_end(one, now))
            for state in self._states[at:]:
                _give(state, one)

    @property
    def promises(self) -> tuple[Running, ...]:
        """What is reserved for later: not what starts now."""
        return tuple(one for one in self.reserved if one.start > self.now)

    @property
    def at_last(self) -> Books:
        """The books when all has ended."""
        return self._states[-1]

    def take(self, one: Running) -> None:
        """Write a start or a reservation in."""
        for state in self._between(one):
            for placement, member in zip(one.placements, one.gang.members, strict=True):
                state.take(placement, member, known_to_fit=True)
        self.reserved.append(one)

    def give(self, one: Running) -> None:
        """Take it out again."""
        for state in self._between(one):
            _give(state, one)
        self.reserved.remove(one)

    def has_room(self, one: Running) -> bool:
        """Whether these placements are free for all of its time."""
        trial = self._least(self._index_of(one.start), one.end).copy()
        for placement, member in zip(one.placements, one.gang.members, strict=True):
            if not trial.fits(placement, member):
                return False
            trial.take(placement, member, known_to_fit=True)
        return True

    def earliest(self, gang: Gang, promised: Running | None, by: Strategy | None) -> Running | None:
        """The first start at which the gang fits; never later than what was promised to it."""
        for index, start in enumerate(list(self._times)):
            if promised is not None and start >= promised.start:
                return promised
            if _milli_left(self._states[index]) < gang.milli:
                continue
            placements = plan_gang(self._least(index, start + gang.seconds), gang, by)
            if placements is not None:
                return Running(gang, placements, start, start + gang.seconds)
        return promised

    def _least(self, index: int, end: float) -> Books:
        """What is left all the time until `end`: it only falls where something reserved begins."""
        begins = {one.start for one in self.reserved}
        later = range(index + 1, self._end_index(end))
        return _least_of(
            [self._states[index], *(self._states[i] for i in later if self._times[i] in begins)]
        )

    def _between(self, one: Running) -> list[Books]:
        return self._states[self._index_of(one.start) : self._index_of(one.end)]

    def _end_index(self, time: float) -> int:
        return next((i for i, at in enumerate(self._times) if at >= time), len(self._times))

    def _index_of(self, time: float) -> int:
        """The state that begins at this moment, made where there is none."""
        index = self._end_index(time)
        if index == len(self._times) or self._times[index] != time:
            self._times.insert(index, time)
            self._states.insert(index, self._states[index - 1].copy())
        return index


def _expected_end(one: Running, now: float) -> float:
    """Work that runs longer than it said is expected to go on for a tenth of its time so far."""
    return one.end if one.end > now else now + max(1.0, OVERRUN * (now - one.start))


def _milli_left(state: Books) -> int:
    return int(state.milli_left[state.hardware.present].sum())


def _give(state: Books, one: Running) -> None:
    for placement, member in zip(one.placements, one.gang.members, strict=True):
        state.give(placement, member)


def _least_of(states: Sequence[Books]) -> Books:
    """Books in which only that is left which is left in all of these."""
    if len(states) == 1:
        return states[0]
    kinds = np.stack([state.kind for state in states])
    kind = kinds.max(axis=0)
    mixed = ((kinds != Kind.FREE) & (kinds != kind)).any(axis=0)
    milli = np.minimum.reduce([state.milli_left for state in states])
    return Books(
        Snapshot(
            hardware=states[0].hardware,
            milli_left=np.where(mixed, ABSENT, milli),
            bytes_left=np.minimum.reduce([state.bytes_left for state in states]),
            kind=kind,
            holders=np.maximum.reduce([state.holders for state in states]),
            cpu_left=np.minimum.reduce([state.cpu_left for state in states]),
            ram_left=np.minimum.reduce([state.ram_left for state in states]),
        )
    )


def _why_never(books: Books, gang: Gang) -> str:
    total = books.hardware.total_milli
    if gang.milli > total:
        return f"it asks for {gang.milli / 1000:g} GPUs, and there are {total / 1000:g}"
    if has_no_way(books, gang):
        return "not all its members fit together, even when all that runs has ended"
    return "no way was found to fit all its members together, even when all that runs has ended"


def _why_later(gang: Gang, found: Running, blame: str) -> str:
    wait = f"{blame}; " if blame else ""
    return f"{wait}all {len(gang.members)} members fit together at {found.start:g} s"
