"""Whether a gang would fit now if some running gangs were evicted.

One working copy of the allocations serves all questions: from one to the next only what differs is
freed or allocated again. Planned starts that are kept count: what is free is the least that stays
free until the gang has ended.

For a gang of equal members the answer is counted, which is exact. If members differ, counting each
shape together with all larger ones can say no; otherwise placements are planned. After `FAILURES`
plans that fail the answer is no.
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
    from aliquot.placement.core.allocations import Allocations, FreeOnNodes
    from aliquot.placement.core.demand import Demand, Gang, Placement, Running

FAILURES = 8


class EvictionTrial:
    """The allocations after some evictions, with the planned starts that are kept."""

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
        self._joins = any(one.joins for one in shapes)
        self._no_less = {
            shape: sum(count for other, count in shapes.items() if _needs_no_less(other, shape))
            for shape in shapes
        }
        self._allocations = allocations.copy()
        self._falls = [
            _Fall(time, free)
            for time, free in _begin_by_begin(allocations, running, kept, now, now + gang.seconds)
        ]
        self._falls_on: defaultdict[int, list[_Fall]] = defaultdict(list)
        for fall in self._falls:
            for node in fall.free.nodes.tolist():
                self._falls_on[node].append(fall)
        self._ended: dict[str, Running] = {}
        self._least: Allocations | None = None  # with the planned starts
        self._changed: set[int] = set()  # rows that it does not know yet
        self._free = int(allocations.milli_free[allocations.hardware.present].sum())
        self._milli = {one.gang.name: one.gang.milli for one in running}

    def fits(self, ended: Sequence[Running]) -> bool:
        """Whether the gang fits after exactly these evictions."""
        if self._free + sum(self._milli[one.gang.name] for one in ended) < self._asked:
            return False
        free = self._free_after(ended)
        if not may_hold(free, self._gang):
            return False
        if any(int(capacity(free, one).sum()) < count for one, count in self._no_less.items()):
            return False
        if len(self._no_less) == 1 and not self._joins:
            return True
        if self.failures_left and plan_gang(free, self._gang) is not None:
            return True
        self.failures_left = max(0, self.failures_left - 1)
        return False

    def placements(
        self, ended: Sequence[Running], by: Strategy | None, seed: int
    ) -> tuple[Placement, ...] | None:
        """Where the gang goes after these evictions."""
        return plan_gang(self._free_after(ended), self._gang, by, seed=seed)

    def allocations_after(self, ended: Sequence[Running]) -> Allocations:
        """The allocations after these evictions, without planned starts."""
        self._end_exactly(ended)
        return self._allocations.copy()

    def _free_after(self, ended: Sequence[Running]) -> Allocations:
        self._end_exactly(ended)
        if not self._falls:
            return self._allocations
        if self._least is None:
            self._least = self._allocations.copy()
            for fall in self._falls:
                self._least.lower_to(fall.free)
        elif self._changed:
            rows = np.array(sorted(self._changed), dtype=np.int64)
            self._least.put(self._allocations.free_on(rows))
            for fall in self._falls:
                if part := fall.on(self._changed):
                    self._least.lower_to(part)
        self._changed.clear()
        return self._least

    def _end_exactly(self, ended: Sequence[Running]) -> None:
        wanted = {one.gang.name: one for one in ended}
        for name in self._ended.keys() - wanted.keys():
            one = self._ended.pop(name)
            self._allocations.take_gang(one, known_to_fit=True)
            self._change_falls(one, 1)
        for name in wanted.keys() - self._ended.keys():
            one = self._ended[name] = wanted[name]
            self._allocations.give_gang(one)
            self._change_falls(one, -1)

    def _change_falls(self, one: Running, sign: int) -> None:
        self._changed.update(placement.node for placement in one.placements)
        end = expected_end(one, self._now)
        for placement, member in zip(one.placements, one.gang.members, strict=True):
            taken = self._allocations.hardware.taken_of_each(placement.node, member)
            for fall in self._falls_on.get(placement.node, ()):
                if fall.time < end:
                    fall.add(placement, member, taken, sign)


class _Fall:
    """A moment of a planned start, and what is free on its nodes then."""

    def __init__(self, time: float, free: FreeOnNodes) -> None:
        self.time = time
        self.free = free
        self._rows = {node: row for row, node in enumerate(free.nodes.tolist())}

    def on(self, nodes: set[int]) -> FreeOnNodes | None:
        """What is free on those of its nodes that are among these; None without any."""
        here = self._rows.keys() & nodes
        return self.free.part([self._rows[node] for node in sorted(here)]) if here else None

    def add(self, placement: Placement, member: Demand, taken: tuple[int, int], sign: int) -> None:
        """A member runs there then too (1), or not (-1); `taken` is of each GPU."""
        free, row, (milli, size) = self.free, self._rows[placement.node], taken
        free.cpu_free[row] -= sign * member.cpu_milli
        free.ram_free[row] -= sign * member.ram_bytes
        for gpu in placement.gpus:
            free.milli_free[row, gpu] -= sign * milli
            free.bytes_free[row, gpu] -= sign * size
            free.holders[row, gpu] += sign
            free.kind[row, gpu] = int(member.kind if free.holders[row, gpu] > 0 else Kind.FREE)
        if member.wishes is not None and member.wishes.mark is not None:
            change = free.marks.add if sign > 0 else free.marks.remove
            change(placement.node, placement.gpus, member.wishes.mark)
        for gpu in placement.gpus if member.swap is not None else ():
            free.turns.change(placement.node, gpu, member.gpu_bytes, member.swap, sign)


def _needs_no_less(one: Demand, other: Demand) -> bool:
    """Whether the other fits wherever this one does."""
    return (
        (one.kind is other.kind or not other.gpus)
        and one.gpus >= other.gpus
        and one.milli >= other.milli
        and one.gpu_bytes >= other.gpu_bytes
        and one.cpu_milli >= other.cpu_milli
        and one.ram_bytes >= other.ram_bytes
        and one.min_strength >= other.min_strength
        and (not other.models or (bool(one.models) and one.models <= other.models))
        and other.wishes in {None, one.wishes}
        and other.swap == one.swap
    )


def _begin_by_begin(
    allocations: Allocations,
    running: Sequence[Running],
    kept: Iterable[Running],
    now: float,
    until: float,
) -> Iterator[tuple[float, FreeOnNodes]]:
    """Each planned start before this time, with what is free on its nodes then."""
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
            yield time, going.free_on(np.array(sorted({p.node for p in one.placements})))
