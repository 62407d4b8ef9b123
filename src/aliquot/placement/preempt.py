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
from aliquot.placement.queues import Queue, Resources, borrows, needs, usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Gang, Placement, Running

ALL_WAYS = 10


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who is to end, where the gang goes then, and what both sides are told."""

    victims: tuple[Running, ...]
    placements: tuple[Placement, ...]
    lost: float
    to_gang: str
    to_victims: Mapping[str, str]


def preempt(
    books: Books,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
) -> Preemption | None:
    """The way to make room that loses the least work; None without a right, a way, or a need."""
    if plan_gang(books, gang) is not None:
        return None
    reasons = _rights(gang, running, queues)
    candidates = sorted(
        (one for one in running if one.gang.name in reasons), key=lambda one: _work(one, now)
    )
    if not candidates or not _makes_room(books, gang, candidates):
        return None
    victims = (
        _least(books, gang, candidates, queues, running, now)
        if len(candidates) <= ALL_WAYS
        else _cheapest_first(books, gang, candidates, queues, running)
    )
    if not victims:
        return None
    placements = plan_gang(_without(books, victims), gang)
    if placements is None:
        return None
    lost = sum(_work(one, now) for one in victims)
    names = ", ".join(one.gang.name for one in victims)
    return Preemption(
        victims=tuple(victims),
        placements=placements,
        lost=lost,
        to_gang=f"starts in place of {names}: {lost / 3.6e6:.2f} GPU hours of work are lost",
        to_victims={one.gang.name: reasons[one.gang.name] for one in victims},
    )


def _rights(gang: Gang, running: Sequence[Running], queues: Mapping[str, Queue]) -> dict[str, str]:
    """Whom this gang may ask to end, and why."""
    used = usage(one.gang for one in running)
    own = queues.get(gang.queue, Queue(gang.queue))
    covered = (used.get(gang.queue, Resources()) + needs(gang)).within(own.quota)
    reasons = {}
    for one in running:
        other = one.gang
        if other.queue == gang.queue:
            if other.priority < gang.priority:
                reasons[other.name] = (
                    f"ended for {gang.name}, whose priority {gang.priority} is above"
                    f" {other.priority}"
                )
        elif covered and borrows(queues.get(other.queue, Queue(other.queue)), used[other.queue]):
            reasons[other.name] = (
                f"ended for {gang.name}: queue {other.queue!r} borrowed what is"
                f" {gang.queue!r}'s own"
            )
    return reasons


def _least(  # noqa: PLR0913, PLR0917 - the same question with one thing more
    books: Books,
    gang: Gang,
    candidates: Sequence[Running],
    queues: Mapping[str, Queue],
    running: Sequence[Running],
    now: float,
) -> list[Running]:
    ways = sorted(
        (way for size in range(1, len(candidates) + 1) for way in combinations(candidates, size)),
        key=lambda way: (sum(_work(one, now) for one in way), len(way)),
    )
    for way in ways:
        if _fair(way, gang, queues, running) and _makes_room(books, gang, way):
            return list(way)
    return []


def _cheapest_first(
    books: Books,
    gang: Gang,
    candidates: Sequence[Running],
    queues: Mapping[str, Queue],
    running: Sequence[Running],
) -> list[Running]:
    victims: list[Running] = []
    for one in candidates:
        if not _fair([*victims, one], gang, queues, running):
            continue
        victims.append(one)
        if _makes_room(books, gang, victims):
            break
    else:
        return []
    for one in reversed(victims[:-1]):
        fewer = [other for other in victims if other is not one]
        if _makes_room(books, gang, fewer):
            victims = fewer
    return victims


def _fair(
    victims: Sequence[Running],
    gang: Gang,
    queues: Mapping[str, Queue],
    running: Sequence[Running],
) -> bool:
    """Whether each victim of another queue was borrowing when its turn to end came."""
    ended: set[str] = set()
    for one in victims:
        if one.gang.queue != gang.queue:
            used = usage(each.gang for each in running if each.gang.name not in ended)
            queue = queues.get(one.gang.queue, Queue(one.gang.queue))
            if not borrows(queue, used.get(one.gang.queue, Resources())):
                return False
        ended.add(one.gang.name)
    return True


def _makes_room(books: Books, gang: Gang, victims: Sequence[Running]) -> bool:
    return plan_gang(_without(books, victims), gang) is not None


def _without(books: Books, victims: Sequence[Running]) -> Books:
    trial = books.copy()
    for one in victims:
        for placement, member in zip(one.placements, one.gang.members, strict=True):
            trial.give(placement, member)
    return trial


def _work(one: Running, now: float) -> float:
    return one.gang.milli * max(0.0, now - one.start)
