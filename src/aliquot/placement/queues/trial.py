"""Would a gang fit now, if some that run ended: one working copy for all such questions.

From one question to the next only what differs is given back or taken again. Promises that are to
be kept are minded: what is left counts as the least there is until the gang has ended.

For a gang of equal members room is counted, which is exact. Where members differ, it is counted for
each shape and all that need no less, which can say no; otherwise a way is planned. After `FAILURES`
plans without a way the answer is no.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.core.demand import Kind
from aliquot.placement.gangs.domains import capacity
from aliquot.placement.gangs.plan import may_hold, plan_gang
from aliquot.placement.gangs.timeline import expected_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations, Left
    from aliquot.placement.core.demand import Demand, Gang, Placement, Running

FAILURES = 8


class Trial:
    """The allocations, when some have ended, beside promises that are kept."""

    def __init__(
        self,
        allocations: Allocations,
        gang: Gang,
        running: Sequence[Running],
        kept: Iterable[Running],
        now: float,
    ) -> None:
        self.failures_left = FAILURES
        self._gang = gang
        self._asked = gang.milli
        self._now = now
        shapes = Counter(gang.members)
        self._no_less = {
            shape: sum(count for other, count in shapes.items() if _needs_no_less(other, shape))
            for shape in shapes
        }
        self._books = allocations.copy()
        self._falls = [
            _Fall(time, left)
            for time, left in _begin_by_begin(allocations, running, kept, now, now + gang.seconds)
        ]
        self._falls_on: defaultdict[int, list[_Fall]] = defaultdict(list)
        for fall in self._falls:
            for node in fall.left.nodes.tolist():
                self._falls_on[node].append(fall)
        self._ended: dict[str, Running] = {}
        self._free = int(allocations.milli_free[allocations.hardware.present].sum())
        self._milli = {one.gang.name: one.gang.milli for one in running}

    def has_room(self, ended: Sequence[Running]) -> bool:
        """Whether the gang fits when exactly these have ended."""
        if self._free + sum(self._milli[one.gang.name] for one in ended) < self._asked:
            return False
        left = self._left(ended)
        if not may_hold(left, self._gang):
            return False
        if any(int(capacity(left, one).sum()) < count for one, count in self._no_less.items()):
            return False
        if len(self._no_less) == 1:
            return True
        if self.failures_left and plan_gang(left, self._gang) is not None:
            return True
        self.failures_left = max(0, self.failures_left - 1)
        return False

    def placements(
        self, ended: Sequence[Running], by: Strategy | None, seed: int
    ) -> tuple[Placement, ...] | None:
        """Where the gang goes when these have ended."""
        return plan_gang(self._left(ended), self._gang, by, seed=seed)

    def books_after(self, ended: Sequence[Running]) -> Allocations:
        """The allocations when these have ended, whatever is promised."""
        self._end_exactly(ended)
        return self._books.copy()

    def _left(self, ended: Sequence[Running]) -> Allocations:
        self._end_exactly(ended)
        if not self._falls:
            return self._books
        least = self._books.copy()
        for fall in self._falls:
            least.lower_to(fall.left)
        return least

    def _end_exactly(self, ended: Sequence[Running]) -> None:
        wanted = {one.gang.name: one for one in ended}
        for name in self._ended.keys() - wanted.keys():
            one = self._ended.pop(name)
            self._books.take_gang(one, known_to_fit=True)
            self._change_falls(one, 1)
        for name in wanted.keys() - self._ended.keys():
            one = self._ended[name] = wanted[name]
            self._books.give_gang(one)
            self._change_falls(one, -1)

    def _change_falls(self, one: Running, sign: int) -> None:
        end = expected_end(one, self._now)
        for placement, member in zip(one.placements, one.gang.members, strict=True):
            taken = self._books.hardware.taken_of_each(placement.node, member)
            for fall in self._falls_on.get(placement.node, ()):
                if fall.time < end:
                    fall.add(placement, member, taken, sign)


class _Fall:
    """A moment at which a promise begins, and what is left on its nodes then."""

    def __init__(self, time: float, left: Left) -> None:
        self.time = time
        self.left = left
        self._rows = {node: row for row, node in enumerate(left.nodes.tolist())}

    def add(self, placement: Placement, member: Demand, taken: tuple[int, int], sign: int) -> None:
        """A member runs there then too (1), or not (-1); what is taken is of each GPU."""
        left, row, (milli, size) = self.left, self._rows[placement.node], taken
        left.cpu_free[row] -= sign * member.cpu_milli
        left.ram_free[row] -= sign * member.ram_bytes
        for gpu in placement.gpus:
            left.milli_free[row, gpu] -= sign * milli
            left.bytes_free[row, gpu] -= sign * size
            left.holders[row, gpu] += sign
            left.kind[row, gpu] = int(member.kind if left.holders[row, gpu] > 0 else Kind.FREE)


def _needs_no_less(one: Demand, other: Demand) -> bool:
    """Whether the other fits wherever this one does."""
    return (
        (one.kind is other.kind or not other.gpus)
        and one.gpus >= other.gpus
        and one.milli >= other.milli
        and one.gpu_bytes >= other.gpu_bytes
        and one.cpu_milli >= other.cpu_milli
        and one.ram_bytes >= other.ram_bytes
        and (not other.models or (bool(one.models) and one.models <= other.models))
    )


def _begin_by_begin(
    allocations: Allocations,
    running: Sequence[Running],
    kept: Iterable[Running],
    now: float,
    until: float,
) -> Iterator[tuple[float, Left]]:
    """Each start of a promise before this, with what is left on its nodes then."""
    begins = sorted((one for one in kept if one.start < until), key=lambda one: one.start)
    if not begins:
        return
    nodes = {placement.node for one in begins for placement in one.placements}
    ends = [
        (expected_end(one, now), number, one)
        for number, one in enumerate(running)
        if not nodes.isdisjoint(placement.node for placement in one.placements)
    ]
    heapq.heapify(ends)
    going = allocations.copy()
    for number, one in enumerate(begins, len(running)):
        time = max(one.start, now)
        while ends and ends[0][0] <= time:
            going.give_gang(heapq.heappop(ends)[2])
        if going.take_gang_if_it_fits(one):
            heapq.heappush(ends, (time + one.gang.seconds, number, one))
            yield time, going.left_on(np.array(sorted({p.node for p in one.placements})))
