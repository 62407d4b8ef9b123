"""Who may preempt whom, by quotas and priorities: one gang, against all that runs or is planned.

What a queue uses decides: all running work counts, whether it may be evicted now or not. Planned
starts of earlier gangs count on the gang's own side, as if they ran: two gangs of a queue do not
reclaim the same part of its quota.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

from aliquot.placement.gangs.timeline import Timeline, expected_end
from aliquot.placement.queues.quota import Resources, Tree, borrows, needs, prefixes, takes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Running
    from aliquot.placement.queues.eviction_trial import EvictionTrial
    from aliquot.placement.queues.question import DisruptionBudget
    from aliquot.placement.queues.quota import Path, Queue, Sums


class Eligibility:
    """A gang that wants to preempt, all that runs, and all other planned starts.

    `protected` are the names of running gangs that may not be evicted. `ahead` are earlier waiting
    gangs: the gang cannot reclaim what they need. `budgets` bound how many pods are evicted.
    """

    def __init__(  # noqa: PLR0913 - the whole question
        self,
        allocations: Allocations,
        gang: Gang,
        running: Sequence[Running],
        planned: Sequence[Running],
        *,
        queues: Mapping[str, Queue],
        now: float,
        protected: Collection[str] = (),
        ahead: Iterable[Gang] = (),
        budgets: Sequence[DisruptionBudget] = (),
    ) -> None:
        hardware = allocations.hardware
        self.budgets = budgets
        self.allocations = allocations
        self.gang = gang
        self.running = running
        self.now = now
        self.tree = Tree(queues)
        self._planned = planned
        self._protected = protected
        self._path = self.tree.path(gang.queue)
        self._takes = {one.gang.name: takes(one, hardware) for one in (*running, *planned)}
        self._used: Sums = defaultdict(Resources)
        for one in running:
            self.tree.add(self._used, one.gang.queue, self.takes(one))
        self._more = needs(gang, hardware)
        before: Sums = defaultdict(Resources)
        for other in ahead:
            self.tree.add(before, other.queue, needs(other, hardware))
        self._covers = {
            path: self.tree.queue(path).quota.covers(self._used[path] + before[path] + self._more)
            for path in prefixes(self._path)
        }

    def takes(self, one: Running) -> Resources:
        """What a gang uses."""
        return self._takes[one.gang.name]

    def work(self, one: Running) -> float:
        """The work that is lost if it is evicted."""
        return one.gang.milli * max(0.0, self.now - one.start)

    def by_work(self, one: Running) -> tuple[float, str]:
        """The order of victims; the name decides between equals, so it is always the same."""
        return self.work(one), one.gang.name

    def preemptible(self) -> dict[str, str]:
        """The running gangs that this gang may preempt, by name, and why."""
        queues = {one.gang.queue for one in self.running}
        reclaims = {queue: self._reclaim(queue, self._used) for queue in queues}
        reasons = {
            one.gang.name: self._why(one.gang, reclaims[one.gang.queue])
            for one in self.running
            if one.gang.name not in self._protected and self._may_be_disrupted(one)
        }
        return {name: f"preempted for {why}" for name, why in reasons.items() if why}

    def _may_be_disrupted(self, one: Running) -> bool:
        """Whether all disruption budgets allow it to be evicted, if nobody else is."""
        mine = (budget for budget in self.budgets if one.gang.name in budget.pods)
        return all(budget.after([one]).allowed >= 0 for budget in mine)

    def withdrawable(self) -> dict[str, str]:
        """The gangs whose planned start may be withdrawn for this one, by name, and why."""
        reasons = {}
        used = self._used.copy()
        ends = [(expected_end(one, self.now), n, one) for n, one in enumerate(self.running)]
        heapq.heapify(ends)
        begins = sorted(self._planned, key=lambda one: one.start)
        for number, one in enumerate(begins, len(self.running)):
            while ends and ends[0][0] <= one.start:
                ended = heapq.heappop(ends)[2]
                self.tree.add(used, ended.gang.queue, Resources() - self.takes(ended))
            self.tree.add(used, one.gang.queue, self.takes(one))
            heapq.heappush(ends, (max(one.start, self.now) + one.gang.seconds, number, one))
            why = self._why(one.gang, self._reclaim(one.gang.queue, used))
            if why:
                reasons[one.gang.name] = f"its planned start was withdrawn for {why}"
        return reasons

    def _why(self, other: Gang, reclaim: str) -> str:
        """Why this gang may preempt another; empty if it may not."""
        gang = self.gang
        if other.queue != gang.queue:
            return f"{gang.name}: {reclaim}" if reclaim else ""
        if other.priority < gang.priority:
            return f"{gang.name}, whose priority {gang.priority} is above {other.priority}"
        return ""

    def _reclaim(self, name: str, used: Sums) -> str:
        """Why the gang may reclaim from this queue; empty if it may not."""
        apart = self.apart(name)
        if not apart:  # the gang's own
            return ""
        ours, theirs = self._path[: len(apart[0])], apart[0]
        if not (self._covers[ours] and self.is_over(theirs, used)):
            return ""
        for path in apart[1:]:
            siblings = [one for one in used if one[:-1] == path[:-1]]
            if not self.is_over(path, used) and any(self.is_over(one, used) for one in siblings):
                return ""
        return f"queue {_name(theirs)} borrows from the quota of queue {_name(ours)}"

    def apart(self, name: str) -> list[Path]:
        """This queue and its ancestors that are not the gang's own; topmost first."""
        return [path for path in prefixes(self.tree.path(name)) if path not in self._covers]

    def is_over(self, path: Path, used: Sums | None = None) -> bool:
        """Whether a queue borrows."""
        has = self._used if used is None else used
        return borrows(self.tree.queue(path), has.get(path, Resources()))

    def has_at_first(self, path: Path) -> Resources:
        """What a queue uses before any eviction."""
        return self._used[path]

    def is_within_limits(self, ended: Iterable[Running], kept: Sequence[Running]) -> bool:
        """Whether no limit is passed when these have ended and these planned starts count too."""
        if not self.tree.is_limited(self.gang.queue):
            return True
        has = self._used.copy()
        self._count(has, ended, kept)
        return self.tree.over(self.gang.queue, self._more, has) is None

    def _count(self, has: Sums, ended: Iterable[Running], kept: Iterable[Running]) -> None:
        for one in ended:
            self.tree.add(has, one.gang.queue, Resources() - self.takes(one))
        for one in kept:
            self.tree.add(has, one.gang.queue, needs(one.gang, self.allocations.hardware))

    def withdrawn(
        self,
        trial: EvictionTrial,
        victims: Sequence[Running],
        start: Running,
        withdrawable: Mapping[str, str],
    ) -> tuple[Running, ...]:
        """The planned starts that cannot be kept with the gang, by their GPUs or by a limit."""
        if not withdrawable:
            return ()
        allocations = trial.allocations_after(victims)
        allocations.take_gang(start)
        broken = self._broken(allocations, [*without(self.running, victims), start], withdrawable)
        has = self._used.copy()
        kept = [one for one in self._planned if one.gang.name not in withdrawable]
        self._count(has, victims, kept)
        self.tree.add(has, self.gang.queue, self._more)
        gone = []
        for one in self._planned:
            if one.gang.name not in withdrawable:
                continue
            more = needs(one.gang, self.allocations.hardware)
            if one.gang.name in broken or self.tree.over(one.gang.queue, more, has) in self._covers:
                gone.append(one)
            else:
                self.tree.add(has, one.gang.queue, more)
        return tuple(gone)

    def _broken(
        self, allocations: Allocations, running: Sequence[Running], withdrawable: Mapping[str, str]
    ) -> set[str]:
        """The withdrawable gangs that must be withdrawn, by name, so that all others are kept."""
        gone: set[str] = set()
        while True:
            remaining = [one for one in self._planned if one.gang.name not in gone]
            broken = Timeline(allocations, running, remaining, self.now).broken
            kept = [one for one in broken if one.gang.name not in withdrawable]
            gone |= {one.gang.name for one in broken} & withdrawable.keys()
            nodes = {place.node for one in kept for place in one.placements}
            neighbours = {
                one.gang.name
                for one in remaining
                if one.gang.name in withdrawable and any(p.node in nodes for p in one.placements)
            }
            if neighbours <= gone:
                return gone
            gone |= neighbours

    def message(self, victims: Sequence[Running], withdrawn: Sequence[Running], lost: float) -> str:
        """The message for the gang."""
        ended = [one.gang.name for one in victims if one.start < self.now]
        put_off = [one.gang.name for one in victims if one.start >= self.now]
        put_off += [one.gang.name for one in withdrawn]
        parts = []
        if put_off:
            parts.append(f"before {', '.join(put_off)}")
        if ended:
            hours = f"{lost / 3.6e6:.2f} GPU hours of work are lost"
            parts.append(f"in place of {', '.join(ended)}{self._since(victims)}: {hours}")
        return (
            f"starts {', and '.join(parts)}" if parts else "starts: no planned start is in its way"
        )

    def _since(self, victims: Sequence[Running]) -> str:
        """By which right the gang preempts those that run, as a clause to append."""
        gangs = [one.gang for one in victims if one.start < self.now]
        reclaims = {one.queue: self._reclaim(one.queue, self._used) for one in gangs}
        lower = [one.priority for one in gangs if one.queue == self.gang.queue]
        rights = list(dict.fromkeys(filter(None, reclaims.values())))
        if lower:
            rights.append(f"its priority {self.gang.priority} is above {max(lower)}")
        return f", since {' and '.join(rights)}" if rights else ""


class ReclaimBudget:
    """How much may be evicted together.

    No other queue gives more than it borrows, except with the last gang that is evicted. No
    disruption budget is exceeded.
    """

    def __init__(self, case: Eligibility) -> None:
        self._case = case
        self._disruptions = list(case.budgets)
        self._remaining: dict[Path, tuple[Resources, Resources]] = {}

    def allows(self, one: Running) -> bool:
        """Whether this gang may be evicted after those allowed before; if so, it counts."""
        case, part = self._case, self._case.takes(one)
        after = {}
        for path in case.apart(one.gang.queue):
            if not case.is_over(path):
                continue  # no sibling borrows either, and their parent does
            used, most = self._remaining.get(path) or (case.has_at_first(path), Resources())
            used, most = used - part, most.at_least(part)
            if not borrows(case.tree.queue(path), used + most):
                return False
            after[path] = used, most
        disruptions = [budget.after([one]) for budget in self._disruptions]
        if any(budget.allowed < 0 and one.gang.name in budget.pods for budget in disruptions):
            return False
        self._disruptions = disruptions
        self._remaining |= after
        return True


def without(some: Sequence[Running], others: Iterable[Running]) -> list[Running]:
    """All but these."""
    names = {one.gang.name for one in others}
    return [one for one in some if one.gang.name not in names]


def _name(path: Path) -> str:
    return path[-1] if path[-1] or len(path) == 1 else path[-2]
