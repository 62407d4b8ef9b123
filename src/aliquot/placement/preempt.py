"""Who makes room for a gang that has a right to it: whole gangs, and the least work lost.

A gang may ask back what its queue's quota covers from queues that borrow, down to their quota; and
in its own queue it goes before lower priorities. In a tree this is between the two queues, one of
each side, where the paths of both part: what is below the one is asked, those that borrow there
first, and what the other has left of its own is for all below it. A limit holds when all is done:
who is refused at it may ask lower priorities of its queue, since what they have comes back to it.

Promises are asked like what runs: those of lower priorities in the queue, and those with which
another queue will borrow when they start. They are withdrawn where they cannot be kept; if that is
all it takes, nobody ends. All other promises stay possible.

Work lost is thousandths times seconds run; what was to start now and does not loses none. With few
candidates all ways are weighed; with many, the cheapest are added as long as there is no room, and
those that turn out not to be needed are spared. Where a gang's members differ, ways are tried
as often as `trial` allows; then what is known to make room is taken.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from aliquot.placement.demand import Running
from aliquot.placement.queues import Bound, Resources, Tree, borrows, needs, takes, upto, usage
from aliquot.placement.timeline import Timeline, expected_end
from aliquot.placement.trial import FAILURES, Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Gang, Placement
    from aliquot.placement.queues import Path, Queue, Sums
    from aliquot.placement.snapshot import Hardware
    from aliquot.placement.strategies import Strategy

ALL_WAYS = 10


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who is to end, where the gang goes then, and what all sides are told.

    `withdrawn` are promises that are no more, `to_victims` is for their gangs too, by name.
    """

    victims: tuple[Running, ...]
    placements: tuple[Placement, ...]
    lost: float
    to_gang: str
    to_victims: Mapping[str, str]
    withdrawn: tuple[Running, ...] = ()


def preempt(  # noqa: PLR0913 - the whole question
    books: Books,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
    *,
    promised: Sequence[Running] = (),
    by: Strategy | None = None,
    seed: int = 0,
) -> Preemption | None:
    """The way to make room that loses the least work; None without a right, a way, or a need.

    `promised` are all promises, in their turns. What is to start now can be given as running since
    now: if it is among the victims, it does not start.
    """
    others = [one for one in promised if one.gang.name != gang.name]
    case = _Case(books, gang, running, others, queues=queues, now=now)
    rights, withdrawable = case.rights(), case.rights_over_promises()
    if not rights and not withdrawable:
        return None
    search = beside_all = _Search(case, others)
    if withdrawable:
        if beside_all.is_enough(()):
            return None
        search = _Search(case, [one for one in others if one.gang.name not in withdrawable])
    candidates = sorted((one for one in running if one.gang.name in rights), key=case.work)
    is_free = search.is_enough(())
    victims = () if is_free else search.victims(candidates)
    if not (victims or (is_free and withdrawable)):
        return None
    placements = beside_all.trial.placements(victims, by, seed)
    if placements is None and withdrawable:
        placements = search.trial.placements(victims, by, seed)
    if placements is None:
        return None
    start = Running(gang, placements, now, now + gang.seconds)
    withdrawn = case.withdrawn(search.trial, victims, start, withdrawable)
    reasons = rights | withdrawable
    lost = sum(case.work(one) for one in victims)
    return Preemption(
        victims=victims,
        placements=placements,
        lost=lost,
        to_gang=case.told(victims, withdrawn, lost),
        to_victims={one.gang.name: reasons[one.gang.name] for one in (*victims, *withdrawn)},
        withdrawn=withdrawn,
    )


def rights(
    books: Books,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
) -> dict[str, str]:
    """Whom of all that runs a gang may ask to end, by name, and why."""
    return _Case(books, gang, running, (), queues=queues, now=now).rights()


def entitled(
    waiting: Iterable[Gang],
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    hardware: Hardware,
    promised: Sequence[Running] = (),
) -> list[Gang]:
    """Those that may have a right over somebody, in their order: only they need ask `preempt`."""
    tree = Tree(queues)
    used = tree.summed(usage(running, hardware))
    has = tree.summed(usage([*running, *promised], hardware))
    over: defaultdict[Path, set[Path]] = defaultdict(set)
    for path, most in has.items():
        if borrows(tree.queue(path), most):
            over[path[:-1]].add(path)
    lowest: dict[str, int] = {}
    for one in (*running, *promised):
        queue, priority = one.gang.queue, one.gang.priority
        lowest[queue] = min(priority, lowest.get(queue, priority))

    def may_ask(gang: Gang) -> bool:
        more = needs(gang, hardware)
        return gang.priority > lowest.get(gang.queue, gang.priority) or any(
            over[path[:-1]] - {path} and tree.queue(path).quota.covers(used[path] + more)
            for path in upto(tree.path(gang.queue))
        )

    return [gang for gang in waiting if may_ask(gang)]


class _Case:
    """A gang that asks, all that runs, and all that others were promised."""

    def __init__(  # noqa: PLR0913 - the whole question
        self,
        books: Books,
        gang: Gang,
        running: Sequence[Running],
        promised: Sequence[Running],
        *,
        queues: Mapping[str, Queue],
        now: float,
    ) -> None:
        hardware = books.hardware
        self.books = books
        self.gang = gang
        self.running = running
        self.now = now
        self.tree = Tree(queues)
        self._promised = promised
        self._path = self.tree.path(gang.queue)
        self._takes = {one.gang.name: takes(one, hardware) for one in (*running, *promised)}
        self._used: Sums = defaultdict(Resources)
        for one in running:
            self.tree.add(self._used, one.gang.queue, self.takes(one))
        self._more = needs(gang, hardware)
        self._covers = {
            path: self.tree.queue(path).quota.covers(self._used[path] + self._more)
            for path in upto(self._path)
        }

    def takes(self, one: Running) -> Resources:
        """What a gang has."""
        return self._takes[one.gang.name]

    def work(self, one: Running) -> float:
        """What is lost if it ends."""
        return one.gang.milli * max(0.0, self.now - one.start)

    def rights(self) -> dict[str, str]:
        """Whom this gang may ask to end, and why."""
        queues = {one.gang.queue for one in self.running}
        claims = {queue: self._claim(queue, self._used) for queue in queues}
        reasons = {
            one.gang.name: self._right_over(one.gang, claims[one.gang.queue])
            for one in self.running
        }
        return {name: f"ended for {why}" for name, why in reasons.items() if why}

    def rights_over_promises(self) -> dict[str, str]:
        """Whose promise may be withdrawn for this gang, and why."""
        reasons = {}
        used = self._used.copy()
        ends = [(expected_end(one, self.now), n, one) for n, one in enumerate(self.running)]
        heapq.heapify(ends)
        begins = sorted(self._promised, key=lambda one: one.start)
        for number, one in enumerate(begins, len(self.running)):
            while ends and ends[0][0] <= one.start:
                ended = heapq.heappop(ends)[2]
                self.tree.add(used, ended.gang.queue, Resources() - self.takes(ended))
            self.tree.add(used, one.gang.queue, self.takes(one))
            heapq.heappush(ends, (max(one.start, self.now) + one.gang.seconds, number, one))
            why = self._right_over(one.gang, self._claim(one.gang.queue, used))
            if why:
                reasons[one.gang.name] = f"its promised start was withdrawn for {why}"
        return reasons

    def _right_over(self, other: Gang, claim: str) -> str:
        gang = self.gang
        if other.queue != gang.queue:
            return f"{gang.name}: {claim}" if claim else ""
        if other.priority < gang.priority:
            return f"{gang.name}, whose priority {gang.priority} is above {other.priority}"
        return ""

    def _claim(self, name: str, used: Sums) -> str:
        """Why this queue has to give; nothing where it has not."""
        apart = self.apart(name)
        if not apart:  # the gang's own
            return ""
        ours, theirs = self._path[: len(apart[0])], apart[0]
        if not (self._covers[ours] and self.is_over(theirs, used)):
            return ""
        for path in apart[1:]:
            beside = [one for one in used if one[:-1] == path[:-1]]
            if not self.is_over(path, used) and any(self.is_over(one, used) for one in beside):
                return ""
        return f"queue {_name(theirs)} borrows from the quota of queue {_name(ours)}"

    def apart(self, name: str) -> list[Path]:
        """The queues above this one that are not above the gang's, and itself; topmost first."""
        return [path for path in upto(self.tree.path(name)) if path not in self._covers]

    def is_over(self, path: Path, used: Sums | None = None) -> bool:
        """Whether a queue has more than its own."""
        has = self._used if used is None else used
        return borrows(self.tree.queue(path), has.get(path, Resources()))

    def has_at_first(self, path: Path) -> Resources:
        """What a queue has before anybody ends."""
        return self._used[path]

    def is_within_limits(self, ended: Iterable[Running], kept: Sequence[Running]) -> bool:
        """Whether no limit is passed, when these have ended and these promises count too."""
        if all(self.tree.queue(path).limit == Bound() for path in upto(self._path)):
            return True
        has = self._used.copy()
        self._count(has, ended, kept)
        return self.tree.over(self.gang.queue, self._more, has) is None

    def _count(self, has: Sums, ended: Iterable[Running], kept: Iterable[Running]) -> None:
        for one in ended:
            self.tree.add(has, one.gang.queue, Resources() - self.takes(one))
        for one in kept:
            self.tree.add(has, one.gang.queue, needs(one.gang, self.books.hardware))

    def withdrawn(
        self,
        trial: Trial,
        victims: Sequence[Running],
        start: Running,
        withdrawable: Mapping[str, str],
    ) -> tuple[Running, ...]:
        """The promises that cannot be kept beside the gang, by their places or by a limit."""
        if not withdrawable:
            return ()
        books = trial.books_after(victims)
        books.take_gang(start)
        broken = self._broken(books, [*_without(self.running, victims), start], withdrawable)
        has = self._used.copy()
        kept = [one for one in self._promised if one.gang.name not in withdrawable]
        self._count(has, victims, kept)
        self.tree.add(has, self.gang.queue, self._more)
        gone = []
        for one in self._promised:
            if one.gang.name not in withdrawable:
                continue
            more = needs(one.gang, self.books.hardware)
            if one.gang.name in broken or self.tree.over(one.gang.queue, more, has) in self._covers:
                gone.append(one)
            else:
                self.tree.add(has, one.gang.queue, more)
        return tuple(gone)

    def _broken(
        self, books: Books, running: Sequence[Running], withdrawable: Mapping[str, str]
    ) -> set[str]:
        """The names of those that may be withdrawn and have to be, so that the others are kept."""
        gone: set[str] = set()
        while True:
            left = [one for one in self._promised if one.gang.name not in gone]
            broken = Timeline(books, running, left, self.now).broken
            kept = [one for one in broken if one.gang.name not in withdrawable]
            gone |= {one.gang.name for one in broken} & withdrawable.keys()
            nodes = {place.node for one in kept for place in one.placements}
            beside = {
                one.gang.name
                for one in left
                if one.gang.name in withdrawable and any(p.node in nodes for p in one.placements)
            }
            if beside <= gone:
                return gone
            gone |= beside

    def told(self, victims: Sequence[Running], withdrawn: Sequence[Running], lost: float) -> str:
        """What the gang is told."""
        ended = [one.gang.name for one in victims if one.start < self.now]
        put_off = [one.gang.name for one in victims if one.start >= self.now]
        put_off += [one.gang.name for one in withdrawn]
        parts = []
        if put_off:
            parts.append(f"before {', '.join(put_off)}")
        if ended:
            hours = f"{lost / 3.6e6:.2f} GPU hours of work are lost"
            parts.append(f"in place of {', '.join(ended)}: {hours}")
        return f"starts {', and '.join(parts)}" if parts else "starts: no promise is in its way"


class _Giving:
    """No other queue gives more than it borrows, but for the gang that ends last."""

    def __init__(self, case: _Case) -> None:
        self._case = case
        self._left: dict[Path, tuple[Resources, Resources]] = {}

    def allows(self, one: Running) -> bool:
        """Whether this gang may end too, after those that were allowed before; then it counts."""
        case, part = self._case, self._case.takes(one)
        after = {}
        for path in case.apart(one.gang.queue):
            if not case.is_over(path):
                continue  # no queue beside it borrows either, and the one above them does
            left, most = self._left.get(path) or (case.has_at_first(path), Resources())
            left, most = left - part, most.at_least(part)
            if not borrows(case.tree.queue(path), left + most):
                return False
            after[path] = left, most
        self._left |= after
        return True


class _Search:
    """The search for who has to end, with the promises that are kept."""

    def __init__(self, case: _Case, kept: Sequence[Running]) -> None:
        self.trial = Trial(case.books, case.gang, case.running, kept, case.now)
        self._case = case
        self._kept = kept

    def is_enough(self, ended: Sequence[Running]) -> bool:
        """Whether the gang can start when these have ended."""
        return self._case.is_within_limits(ended, self._kept) and self.trial.has_room(ended)

    def victims(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        """Who has to end, in the order of their work; nobody where there is no way."""
        found: tuple[Running, ...] = ()
        if len(candidates) <= ALL_WAYS:
            if not candidates or not self.is_enough(candidates):
                return ()
            found = self._of_all_ways(candidates)
            self.trial.failures_left = FAILURES
        return found or self._cheapest_first(candidates)

    def _of_all_ways(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        """Of all fair ways that make room, the one that loses the least."""
        needed = [one for one in candidates if not self.is_enough(_without(candidates, [one]))]
        rest = _without(candidates, needed)
        ways = sorted(
            ((*needed, *way) for size in range(len(rest) + 1) for way in combinations(rest, size)),
            key=lambda way: (sum(map(self._case.work, way)), len(way)),
        )
        found = (way for way in ways if way and self._is_fair(way) and self.is_enough(way))
        return tuple(sorted(next(found, ()), key=self._case.work))

    def _is_fair(self, way: Iterable[Running]) -> bool:
        giving = _Giving(self._case)
        return all(giving.allows(one) for one in way)

    def _cheapest_first(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        giving = _Giving(self._case)
        fair = [one for one in candidates if giving.allows(one)]
        enough = 1
        while not self.is_enough(fair[:enough]):
            if enough >= len(fair):
                return ()
            enough *= 2
        fewer = range(enough // 2 + 1, min(enough, len(fair)))
        found = bisect_left(fewer, 1, key=lambda number: int(self.is_enough(fair[:number])))
        return self._spared(fair[: fewer.start + found])

    def _spared(self, victims: Sequence[Running]) -> tuple[Running, ...]:
        """Without those that are not needed; who would lose the most is spared first."""
        blocks = [list(reversed(victims[:-1]))]
        while blocks:
            block = blocks.pop()
            fewer = _without(victims, block)
            if self.is_enough(fewer):
                victims = fewer
            elif len(block) > 1:
                middle = len(block) // 2
                blocks += [block[middle:], block[:middle]]
        return tuple(victims)


def _without(some: Sequence[Running], others: Iterable[Running]) -> list[Running]:
    names = {one.gang.name for one in others}
    return [one for one in some if one.gang.name not in names]


def _name(path: Path) -> str:
    return path[-1] if path[-1] or len(path) == 1 else path[-2]
