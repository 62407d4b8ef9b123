"""Who makes room for a gang that has a right to it: whole gangs, and the least work lost.

A gang may ask back what its queue's quota covers from queues that borrow, down to their quota; and
in its own queue it goes before lower priorities. Work lost is thousandths times seconds run. With
few candidates all ways are weighed; with many, the cheapest are added one by one and those that
turn out not to be needed are spared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from aliquot.placement.gangs import plan_gang
from aliquot.placement.queues import Resources, borrows, needs, queue_of, takes, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Gang, Placement, Running
    from aliquot.placement.queues import Queue
    from aliquot.placement.strategies import Strategy

ALL_WAYS = 10


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who is to end, where the gang goes then, and what both sides are told."""

    victims: tuple[Running, ...]
    placements: tuple[Placement, ...]
    lost: float
    to_gang: str
    to_victims: Mapping[str, str]


def preempt(  # noqa: PLR0913 - the whole question
    books: Books,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
    *,
    by: Strategy | None = None,
    seed: int = 0,
) -> Preemption | None:
    """The way to make room that loses the least work; None without a right, a way, or a need."""
    case = _Case(books, gang, running, queues, now)
    reasons = case.rights()
    candidates = sorted((one for one in running if one.gang.name in reasons), key=case.work)
    if not candidates or case.has_room(()) or not case.has_room(candidates):
        return None
    if len(candidates) <= ALL_WAYS:
        victims = next(_all_ways(case, candidates), ())
    else:
        victims = _cheapest_first(case, candidates)
    placements = plan_gang(case.without(victims), gang, by, seed=seed) if victims else None
    if placements is None:
        return None
    lost = sum(case.work(one) for one in victims)
    names = ", ".join(one.gang.name for one in victims)
    return Preemption(
        victims=victims,
        placements=placements,
        lost=lost,
        to_gang=f"starts in place of {names}: {lost / 3.6e6:.2f} GPU hours of work are lost",
        to_victims={one.gang.name: reasons[one.gang.name] for one in victims},
    )


class _Case:
    """A gang that asks, and all that runs."""

    def __init__(
        self,
        books: Books,
        gang: Gang,
        running: Sequence[Running],
        queues: Mapping[str, Queue],
        now: float,
    ) -> None:
        self._books = books
        self._gang = gang
        self._running = running
        self._queues = queues
        self._now = now
        self._used = usage(running, books.hardware)

    def work(self, one: Running) -> float:
        """What is lost if it ends."""
        return one.gang.milli * max(0.0, self._now - one.start)

    def rights(self) -> dict[str, str]:
        """Whom this gang may ask to end, and why."""
        gang = self._gang
        own = self._used.get(gang.queue, Resources())
        quota = queue_of(self._queues, gang.queue).quota
        covered = quota.covers(own + needs(gang, self._books.hardware))
        reasons = {}
        for one in self._running:
            other = one.gang
            if other.queue == gang.queue:
                if other.priority < gang.priority:
                    reasons[other.name] = (
                        f"ended for {gang.name}, whose priority {gang.priority} is above"
                        f" {other.priority}"
                    )
            elif covered and borrows(queue_of(self._queues, other.queue), self._used[other.queue]):
                reasons[other.name] = (
                    f"ended for {gang.name}: queue {other.queue!r} borrowed what is"
                    f" {gang.queue!r}'s own"
                )
        return reasons

    def fair(self, victims: Sequence[Running]) -> bool:
        """Whether no other queue gives more than it borrows, but for the gang that ends last."""
        for name in {one.gang.queue for one in victims} - {self._gang.queue}:
            taken = [takes(one, self._books.hardware) for one in victims if one.gang.queue == name]
            left = self._used[name]
            for one in taken:
                left -= one
            queue = queue_of(self._queues, name)
            if not any(borrows(queue, left + last) for last in taken):
                return False
        return True

    def has_room(self, victims: Sequence[Running]) -> bool:
        """Whether the gang fits when these have ended."""
        return plan_gang(self.without(victims), self._gang) is not None

    def without(self, victims: Sequence[Running]) -> Books:
        """The books when these have ended."""
        trial = self._books.copy()
        for one in victims:
            trial.give_gang(one)
        return trial


def _all_ways(case: _Case, candidates: Sequence[Running]) -> Iterator[tuple[Running, ...]]:
    """All fair ways that make room, the one that loses the least first."""
    ways = sorted(
        (way for size in range(1, len(candidates) + 1) for way in combinations(candidates, size)),
        key=lambda way: (sum(map(case.work, way)), len(way)),
    )
    return (way for way in ways if case.fair(way) and case.has_room(way))


def _cheapest_first(case: _Case, candidates: Sequence[Running]) -> tuple[Running, ...]:
    victims: list[Running] = []
    for one in candidates:
        if not case.fair([*victims, one]):
            continue
        victims.append(one)
        if case.has_room(victims):
            break
    else:
        return ()
    for one in reversed(victims[:-1]):
        fewer = [other for other in victims if other is not one]
        if case.has_room(fewer):
            victims = fewer
    return tuple(victims)
