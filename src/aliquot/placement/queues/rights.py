"""Who may ask whom to end: a gang with all that runs, and all that others were promised.

What counts for a right is what queues have: all that runs, whether it may be ended now or not. What
has its turn before and was promised it counts for the gang's own side, as if it had it: two gangs
of a queue do not ask back the same part of its quota.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

from aliquot.placement.gangs.timeline import Timeline, expected_end
from aliquot.placement.queues.quota import Bound, Resources, Tree, borrows, needs, takes, upto

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Running
    from aliquot.placement.queues.quota import Path, Queue, Sums
    from aliquot.placement.queues.trial import Trial


class Case:
    """A gang that asks, all that runs, and all that others were promised.

    `spared` are the names of those that run and are not to end. `ahead` are those that wait and
    have their turn before: what they need is not the gang's to ask back.
    """

    def __init__(  # noqa: PLR0913 - the whole question
        self,
        allocations: Allocations,
        gang: Gang,
        running: Sequence[Running],
        promised: Sequence[Running],
        *,
        queues: Mapping[str, Queue],
        now: float,
        spared: Collection[str] = (),
        ahead: Iterable[Gang] = (),
    ) -> None:
        hardware = allocations.hardware
        self.allocations = allocations
        self.gang = gang
        self.running = running
        self.now = now
        self.tree = Tree(queues)
        self._promised = promised
        self._spared = spared
        self._path = self.tree.path(gang.queue)
        self._takes = {one.gang.name: takes(one, hardware) for one in (*running, *promised)}
        self._used: Sums = defaultdict(Resources)
        for one in running:
            self.tree.add(self._used, one.gang.queue, self.takes(one))
        self._more = needs(gang, hardware)
        before: Sums = defaultdict(Resources)
        for other in ahead:
            self.tree.add(before, other.queue, needs(other, hardware))
        self._covers = {
            path: self.tree.queue(path).quota.covers(self._used[path] + before[path] + self._more)
            for path in upto(self._path)
        }

    def takes(self, one: Running) -> Resources:
        """What a gang has."""
        return self._takes[one.gang.name]

    def work(self, one: Running) -> float:
        """What is lost if it ends."""
        return one.gang.milli * max(0.0, self.now - one.start)

    def by_work(self, one: Running) -> tuple[float, str]:
        """What victims are ordered by: by name where they lose the same, so in one order only."""
        return self.work(one), one.gang.name

    def rights(self) -> dict[str, str]:
        """Whom this gang may ask to end, and why."""
        queues = {one.gang.queue for one in self.running}
        claims = {queue: self._claim(queue, self._used) for queue in queues}
        reasons = {
            one.gang.name: self._right_over(one.gang, claims[one.gang.queue])
            for one in self.running
            if one.gang.name not in self._spared
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
            self.tree.add(has, one.gang.queue, needs(one.gang, self.allocations.hardware))

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
        allocations = trial.books_after(victims)
        allocations.take_gang(start)
        broken = self._broken(allocations, [*without(self.running, victims), start], withdrawable)
        has = self._used.copy()
        kept = [one for one in self._promised if one.gang.name not in withdrawable]
        self._count(has, victims, kept)
        self.tree.add(has, self.gang.queue, self._more)
        gone = []
        for one in self._promised:
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
        """The names of those that may be withdrawn and have to be, so that the others are kept."""
        gone: set[str] = set()
        while True:
            left = [one for one in self._promised if one.gang.name not in gone]
            broken = Timeline(allocations, running, left, self.now).broken
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


class Giving:
    """No other queue gives more than it borrows, but for the gang that ends last."""

    def __init__(self, case: Case) -> None:
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


def without(some: Sequence[Running], others: Iterable[Running]) -> list[Running]:
    """All but these."""
    names = {one.gang.name for one in others}
    return [one for one in some if one.gang.name not in names]


def _name(path: Path) -> str:
    return path[-1] if path[-1] or len(path) == 1 else path[-2]
