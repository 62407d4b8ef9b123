"""Which gangs to evict for a gang that may preempt: whole gangs, and the least work lost.

A gang may reclaim what its queue's quota covers from queues that borrow, down to their quota. In
its own queue it goes before lower priorities. In a tree this is decided at the level where the
paths of the two queues part: the queue on the one side gives, its borrowing children first, and
what the other side has left of its quota is for all its children. A limit holds when all is done: a
gang that is refused at a limit may preempt lower priorities of its queue, which frees its own
limit.

Planned starts can be preempted like running gangs: those of lower priorities in the queue, and
those that make another queue borrow. They are withdrawn only if they are in the way; if that is
enough, nobody is evicted. All other planned starts stay possible.

Work lost is thousandths of GPUs times seconds run; a gang that was only about to start loses none.
With few candidates all combinations are weighed. With many, the cheapest are added until the gang
fits, and those that turn out to be unneeded are spared. If a gang's members differ, combinations
are tried as often as `eviction_trial` allows; then one that is known to be enough is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Running
from aliquot.placement.queues.eligibility import Eligibility, ReclaimBudget, without
from aliquot.placement.queues.eviction_trial import FAILURES, EvictionTrial
from aliquot.placement.queues.quota import Tree, borrows, needs, prefixes, usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Placement
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.queues.question import DisruptionBudget
    from aliquot.placement.queues.quota import Path, Queue

WEIGHED = 10  # candidates of which all combinations are weighed


@dataclass(frozen=True, slots=True)
class Preemption:
    """The victims, where the gang goes then, and the messages for all sides.

    `withdrawn` are the planned starts that are withdrawn; `to_victims` has their gangs too, by
    name.
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
    planned: Sequence[Running] = (),
    protected: Collection[str] = (),
    ahead: Sequence[Gang] = (),
    budgets: Sequence[DisruptionBudget] = (),
    by: Strategy | None = None,
    seed: int = 0,
) -> Preemption | None:
    """The preemption that loses the least work; None if the gang may not, cannot or need not.

    `planned` are all planned starts in fair-share order. A gang that is about to start can be given
    as running since now: if it is a victim, it does not start. `protected` are the names of running
    gangs that may not be evicted; they count for their queues. `ahead` are waiting gangs with an
    earlier planned start: their part of a quota cannot be reclaimed. `budgets` bound how many pods
    are evicted.
    """
    others = [one for one in planned if one.gang.name != gang.name]
    case = Eligibility(
        allocations,
        gang,
        running,
        others,
        queues=queues,
        now=now,
        protected=protected,
        ahead=ahead,
        budgets=budgets,
    )
    evictable, withdrawable = case.preemptible(), case.withdrawable()
    if not evictable and not withdrawable:
        return None
    search = keeping_all = _Search(case, others)
    if withdrawable:
        if keeping_all.is_enough(()):
            return None
        search = _Search(case, [one for one in others if one.gang.name not in withdrawable])
    candidates = sorted((one for one in running if one.gang.name in evictable), key=case.by_work)
    is_free = search.is_enough(())
    victims = () if is_free else search.victims(candidates)
    if not (victims or (is_free and withdrawable)):
        return None
    placements = keeping_all.trial.placements(victims, by, seed)
    if placements is None and withdrawable:
        placements = search.trial.placements(victims, by, seed)
    if placements is None:
        return None
    start = Running(gang, placements, now, now + gang.seconds)
    withdrawn = case.withdrawn(search.trial, victims, start, withdrawable)
    reasons = evictable | withdrawable
    lost = sum(case.work(one) for one in victims)
    return Preemption(
        victims=victims,
        placements=placements,
        lost=lost,
        to_gang=case.message(victims, withdrawn, lost),
        to_victims={one.gang.name: reasons[one.gang.name] for one in (*victims, *withdrawn)},
        withdrawn=withdrawn,
    )


def preemptible(  # noqa: PLR0913 - the whole question
    allocations: Allocations,
    gang: Gang,
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    now: float,
    *,
    protected: Collection[str] = (),
    ahead: Sequence[Gang] = (),
) -> dict[str, str]:
    """The running gangs that a gang may preempt, by name, and why; arguments as for `preempt`."""
    case = Eligibility(
        allocations, gang, running, (), queues=queues, now=now, protected=protected, ahead=ahead
    )
    return case.preemptible()


def may_preempt(
    waiting: Iterable[Gang],
    running: Sequence[Running],
    queues: Mapping[str, Queue],
    hardware: Hardware,
    planned: Sequence[Running] = (),
) -> list[Gang]:
    """The waiting gangs that may preempt somebody, in their order: `preempt` is for these only."""
    tree = Tree(queues)
    used = tree.summed(usage(running, hardware))
    has = tree.summed(usage([*running, *planned], hardware))
    over: defaultdict[Path, set[Path]] = defaultdict(set)
    for path, most in has.items():
        if borrows(tree.queue(path), most):
            over[path[:-1]].add(path)
    lowest: dict[str, int] = {}
    for one in (*running, *planned):
        queue, priority = one.gang.queue, one.gang.priority
        lowest[queue] = min(priority, lowest.get(queue, priority))

    def may(gang: Gang) -> bool:
        more = needs(gang, hardware)
        return gang.priority > lowest.get(gang.queue, gang.priority) or any(
            over[path[:-1]] - {path} and tree.queue(path).quota.covers(used[path] + more)
            for path in prefixes(tree.path(gang.queue))
        )

    return [gang for gang in waiting if may(gang)]


class _Search:
    """The search for victims, with the planned starts that are kept."""

    def __init__(self, case: Eligibility, kept: Sequence[Running]) -> None:
        self.trial = EvictionTrial(case.allocations, case.gang, case.running, kept, case.now)
        self._case = case
        self._kept = kept

    def is_enough(self, ended: Sequence[Running]) -> bool:
        """Whether the gang can start when these have ended."""
        return self._case.is_within_limits(ended, self._kept) and self.trial.fits(ended)

    def victims(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        """The victims by work lost; empty if there is no way."""
        found: tuple[Running, ...] = ()
        if len(candidates) <= WEIGHED:
            if not candidates or not self.is_enough(candidates):
                return ()
            found = self._best_combination(candidates)
            self.trial.failures_left = FAILURES
        return found or self._cheapest_first(candidates)

    def _best_combination(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        """Of all fair combinations that are enough, the one that loses the least."""
        needed = [one for one in candidates if not self.is_enough(without(candidates, [one]))]
        rest = without(candidates, needed)
        ways = sorted(
            ((*needed, *way) for size in range(len(rest) + 1) for way in combinations(rest, size)),
            key=lambda way: (sum(map(self._case.work, way)), len(way)),
        )
        found = (way for way in ways if way and self._is_fair(way) and self.is_enough(way))
        return tuple(sorted(next(found, ()), key=self._case.by_work))

    def _is_fair(self, way: Iterable[Running]) -> bool:
        budget = ReclaimBudget(self._case)
        return all(budget.allows(one) for one in way)

    def _cheapest_first(self, candidates: Sequence[Running]) -> tuple[Running, ...]:
        budget, fair, enough = ReclaimBudget(self._case), list[Running](), 1
        allowed = (one for one in candidates if budget.allows(one))
        while True:
            fair += islice(allowed, enough - len(fair))  # of many, few are looked at
            if self.is_enough(fair):
                break
            if len(fair) < enough:
                return ()
            enough *= 2
        fewer = range(enough // 2 + 1, min(enough, len(fair)))
        found = bisect_left(fewer, 1, key=lambda number: int(self.is_enough(fair[:number])))
        return self._spared(fair[: fewer.start + found])

    def _spared(self, victims: Sequence[Running]) -> tuple[Running, ...]:
        """Without victims that are not needed; the one that would lose the most is spared first."""
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
