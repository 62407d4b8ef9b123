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

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Running
from aliquot.placement.queues.quota import Tree, borrows, needs, upto, usage
from aliquot.placement.queues.rights import Case, Giving, without
from aliquot.placement.queues.trial import FAILURES, Trial

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Placement
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.queues.quota import Path, Queue

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
    allocations: Allocations,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
    *,
    promised: Sequence[Running] = (),
    spared: Collection[str] = (),
    ahead: Sequence[Gang] = (),
    by: Strategy | None = None,
    seed: int = 0,
) -> Preemption | None:
    """The way to make room that loses the least work; None without a right, a way, or a need.

    `promised` are all promises, in their turns. What is to start now can be given as running since
    now: if it is among the victims, it does not start. `spared` are the names of those that run and
    are not to end: they count for their queues as ever. `ahead` are those that wait and come
    before, with a promise: what they need is theirs of their queues' quotas.
    """
    others = [one for one in promised if one.gang.name != gang.name]
    case = Case(
        allocations, gang, running, others, queues=queues, now=now, spared=spared, ahead=ahead
    )
    rights, withdrawable = case.rights(), case.rights_over_promises()
    if not rights and not withdrawable:
        return None
    search = beside_all = _Search(case, others)
    if withdrawable:
        if beside_all.is_enough(()):
            return None
        search = _Search(case, [one for one in others if one.gang.name not in withdrawable])
    candidates = sorted((one for one in running if one.gang.name in rights), key=case.by_work)
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


def rights(  # noqa: PLR0913 - the whole question
    allocations: Allocations,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
    *,
    spared: Collection[str] = (),
    ahead: Sequence[Gang] = (),
) -> dict[str, str]:
    """Whom of all that runs a gang may ask to end, by name, and why; as for `preempt`."""
    case = Case(allocations, gang, running, (), queues=queues, now=now, spared=spared, ahead=ahead)
    return case.rights()


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


class _Search:
    """The search for who has to end, with the promises that are kept."""

    def __init__(self, case: Case, kept: Sequence[Running]) -> None:
        self.trial = Trial(case.allocations, case.gang, case.running, kept, case.now)
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
        needed = [one for one in candidates if not self.is_enough(without(candidates, [one]))]
        rest = without(candidates, needed)
        ways = sorted(
            ((*needed, *way) for size in range(len(rest) + 1) for way in combinations(rest, size)),
            key=lambda way: (sum(map(self._case.work, way)), len(way)),
        )
        found = (way for way in ways if way and self._is_fair(way) and self.is_enough(way))
        return tuple(sorted(next(found, ()), key=self._case.by_work))

    def _is_fair(self, way: Iterable[Running]) -> bool:
        giving = Giving(self._case)
        return all(giving.allows(one) for one in way)

    def _cheapest_first(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        giving = Giving(self._case)
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
            fewer = without(victims, block)
            if self.is_enough(fewer):
                victims = fewer
            elif len(block) > 1:
                middle = len(block) // 2
                blocks += [block[middle:], block[:middle]]
        return tuple(victims)
