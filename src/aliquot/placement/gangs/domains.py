"""Where a gang could go: how many members fit on each node, and which domains to try first.

A domain is a set of nodes: one node, the nodes of a rack, of a block, or all. A domain is offered
if all members of each kind would fit there without the other kinds, and the sums of free GPUs, CPU
and memory cover all members together. Nodes in the same state are offered once, and at most 64
nodes, racks and blocks each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.choose.chooser import drawn
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.fit import all_rows, gpus_that_fit, hashed, nodes_that_fit
from aliquot.placement.core.links import closest, slowest_within
from aliquot.placement.core.marks import Marks
from aliquot.placement.core.wishes import Wishes

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from aliquot.placement.choose.forecast import Floats
    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.links import Links
    from aliquot.placement.core.snapshot import Bools, Hardware, Ints

ANY_NUMBER = 1 << 31  # more than there are members, and the sum over all nodes is an int64
PLACES_TRIED = 64

Slots = dict[Demand, "Ints"]


class Preference:
    """Which of equally near domains comes first."""

    def __init__(self, allocations: Allocations, by: Strategy | None, seed: int) -> None:
        self.lean = 1 if by is None else by.lean
        self._random = (
            None if by is None else np.random.default_rng(drawn(allocations, seed).getrandbits(64))
        )

    def order(self, *keys: Ints | Floats) -> Ints:
        """The indices in ascending order of these keys; later keys break ties of earlier ones.

        Equal entries keep their order, or with a strategy come in random order (by the seed).
        """
        size = len(keys[0])
        ties = np.arange(size) if self._random is None else self._random.permutation(size)
        return np.lexsort((ties, *reversed(keys)))


class Nodes:
    """The order in which nodes of a domain are filled with members of one demand.

    Nodes that hold the most members come first. If the strategy packs, the last members go to the
    node with the fewest slots that still holds all of them. Thrifty demands take nodes of weaker
    models first, whole GPUs those of stronger ones. Without a lean the order is random.
    """

    def __init__(
        self, hardware: Hardware, domain: Ints, demand: Demand, slots: Ints, preference: Preference
    ) -> None:
        roomiest_first = -slots if preference.lean else np.zeros_like(slots)
        strong = hardware.rank[domain] * demand.strength_sign
        order = preference.order(strong, roomiest_first)
        self._nodes = domain[order].tolist()
        self._slots = slots[order].tolist()
        self._strong = strong[order].tolist()
        self._next = 0
        self._is_tight = preference.lean > 0

    def next(self, wanted: int) -> int | None:
        """The next node to fill when `wanted` members are left; None after the last node."""
        at = self._next
        if at == len(self._nodes):
            return None
        if self._is_tight and self._slots[at] > wanted:
            at = self._tightest(at, wanted)
            self._move_to_front(at)
        self._next += 1
        return int(self._nodes[self._next - 1])

    def _tightest(self, at: int, wanted: int) -> int:
        """The index, from `at` on, of the first node with the fewest slots that holds `wanted`.

        Only nodes as strong as the one at `at` count; they are sorted, with the most slots first.
        """
        best = at
        for one in range(at + 1, len(self._nodes)):
            if self._strong[one] > self._strong[at] or self._slots[one] < wanted:
                break
            if self._slots[one] < self._slots[best]:
                best = one
        return best

    def _move_to_front(self, at: int) -> None:
        for column in (self._nodes, self._slots):
            column.insert(self._next, column.pop(at))


def capacity(allocations: Allocations, demand: Demand) -> Ints:
    """How many of one demand fit on each node.

    Whom the demand asks to be with does not count: members of its own gang may be there first.
    """
    if demand.wishes is not None and demand.joins:
        demand = replace(demand, wishes=replace(demand.wishes, beside=""))
    rows = all_rows(allocations)
    fits = gpus_that_fit(rows, demand)
    nodes = nodes_that_fit(rows, demand, fits, allocations.hardware.nodes_for(demand))
    limit = np.full(len(rows.index), ANY_NUMBER)
    if demand.cpu_milli:
        limit = np.minimum(limit, rows.cpu // demand.cpu_milli)
    if demand.ram_bytes:
        limit = np.minimum(limit, rows.ram // demand.ram_bytes)
    if demand.gpus:
        parts = parts_of_gpus(rows.milli, rows.bytes, demand, fits)
        most = _by_gpus(demand, parts)
        if demand.swap is not None and allocations.turns:
            _count_turns(rows, demand, fits, most)
        limit = np.minimum(limit, most)
    return np.where(nodes, limit, 0)


def parts_of_gpus(milli: Ints, left: Ints, demand: Demand, fits: Bools) -> Ints:
    """How many parts of a demand each GPU can give."""
    if demand.kind is Kind.WHOLE:
        return fits.astype(np.int64)
    parts = np.full(milli.shape, WHOLE_MILLI, dtype=np.int64)
    if demand.milli:
        parts = np.minimum(parts, milli // demand.milli)
    if demand.gpu_bytes:
        parts = np.minimum(parts, left // demand.gpu_bytes)
    if demand.wishes is not None and demand.wishes.avoids_itself:
        parts = np.minimum(parts, 1)
    return np.where(fits, parts, 0)


def _count_turns(rows: Rows, demand: Demand, fits: Bools, most: Ints) -> None:
    """Count again on nodes that allow over-commit how many of a demand fit."""
    source = rows.source
    by_compute = parts_of_gpus(rows.milli, rows.bytes, replace(demand, gpu_bytes=0), fits)
    for row, node in enumerate(rows.index.tolist()):
        here = source.turns.on(node)
        if here is None or demand.swap is None:
            continue
        memory, free = int(rows.gpu_bytes[row]), rows.bytes[row].tolist()
        most[row] = here.count(
            memory, free, by_compute[row].tolist(), demand.gpu_bytes, demand.swap
        )


def _by_gpus(demand: Demand, parts: Ints) -> Ints:
    """The most demands such that each gets its parts of different GPUs."""
    low, high = np.zeros(len(parts), dtype=np.int64), parts.sum(axis=1) // demand.gpus
    while (low < high).any():
        middle = (low + high + 1) // 2
        enough = np.minimum(parts, middle[:, None]).sum(axis=1) >= demand.gpus * middle
        low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
    return low


def domains(
    allocations: Allocations, slots: Slots, counts: Counter[Demand], preference: Preference
) -> Iterator[Ints]:
    """Sets of nodes that may hold all, near ones first, then by preference."""
    hardware = allocations.hardware
    for node in nodes_in_order(allocations, slots, counts, preference)[0]:
        yield np.array([node])
    for groups in (hardware.rack, hardware.block, np.zeros_like(hardware.rack)):
        found, strong, spare = _that_hold(allocations, groups, slots, counts)
        order = preference.order(strong, preference.lean * spare)[:PLACES_TRIED]
        for group in found[order]:
            yield np.flatnonzero(groups == group)


def _that_hold(
    allocations: Allocations, groups: Ints, slots: Slots, counts: Counter[Demand]
) -> tuple[Ints, Floats, Floats]:
    """The groups of nodes that fit each demand by itself, and have enough in all.

    With each comes how strong its models are, smaller is better, and what it has to spare.
    """
    size = int(groups.max(initial=0)) + 1

    def inside(values: Ints | Floats) -> Floats:
        return np.bincount(groups, weights=values, minlength=size).astype(np.float64)

    enough = np.ones(size, dtype=bool)
    spare, strong = np.zeros(size), np.zeros(size)
    for demand, count in counts.items():
        places = inside(slots[demand])
        enough &= places >= count
        spare += places * demand.total_milli
        if demand.strength_sign:
            strength = inside(slots[demand] * allocations.hardware.rank)
            strong += demand.strength_sign * count * strength / np.maximum(places, 1)
    for left, wanted in _in_all(allocations, counts):
        enough &= inside(left) >= wanted
    found = np.flatnonzero(enough)
    return found, strong[found], spare[found]


def _in_all(allocations: Allocations, counts: Counter[Demand]) -> Iterator[tuple[Ints, int]]:
    """What is free on each node, and how much of that all members together need."""
    pairs = counts.items()
    present = allocations.hardware.present
    whole = sum(demand.gpus * n for demand, n in pairs if demand.kind is Kind.WHOLE)
    yield (present & (allocations.kind == Kind.FREE)).sum(axis=1), whole
    milli = sum(demand.total_milli * n for demand, n in pairs)
    yield np.where(present, allocations.milli_free, 0).sum(axis=1), milli
    yield allocations.cpu_free, sum(demand.cpu_milli * n for demand, n in pairs)
    yield allocations.ram_free, sum(demand.ram_bytes * n for demand, n in pairs)


def nodes_in_order(
    allocations: Allocations, slots: Slots, counts: Counter[Demand], preference: Preference
) -> tuple[Ints, Ints]:
    """Nodes that may hold all, by the best slowest link that they could have; and these links."""
    hardware = allocations.hardware
    nodes, strong, spare = _that_hold(allocations, np.arange(hardware.size), slots, counts)
    if not len(nodes):
        return nodes, nodes
    apart = [demand.gpus * n for demand, n in counts.items() if demand.kind is Kind.WHOLE]
    wanted = max(sum(apart), *(demand.gpus for demand in counts))  # others may share GPUs
    best = np.array([_best_link(links, wanted) for links in hardware.link_tables])
    links = best[hardware.link_table[nodes]]
    order = preference.order(-links, strong, preference.lean * spare)
    wishes = [one.wishes for one in counts if one.wishes is not None]
    _, first = np.unique(_states(allocations, nodes[order], wishes), return_index=True)
    order = order[np.sort(first)][:PLACES_TRIED]
    return nodes[order], links[order]


def _states(allocations: Allocations, nodes: Ints, wishes: Sequence[Wishes]) -> NDArray[np.uint64]:
    """A number for each node, which those in the same state share; it depends on the wishes."""
    hardware = allocations.hardware
    arrays = (allocations.milli_free, allocations.bytes_free, allocations.kind)
    of_node = (allocations.cpu_free, allocations.ram_free, hardware.model, hardware.link_table)
    columns = [array[nodes] for array in (*arrays, *of_node)]
    if wishes:
        columns.append(_seen_by(allocations, nodes, wishes))
    if allocations.turns:
        numbers: dict[object, int] = {}
        turns = (allocations.turns.on(node) for node in nodes.tolist())
        columns.append(np.array([numbers.setdefault(one, len(numbers)) for one in turns]))
    return hashed(np.column_stack(columns))


def _seen_by(allocations: Allocations, nodes: Ints, wishes: Sequence[Wishes]) -> Ints:
    """What tells nodes apart for demands with these wishes: the marks and names of their GPUs."""
    numbers: dict[object, int] = {}
    by_name = [Wishes(named=one.named, excluded=one.excluded) for one in wishes]
    uuids, width = allocations.hardware.uuids, allocations.kind.shape[1]
    named = [Marks().allowed(one, uuids, nodes, width) for one in by_name]
    found = []
    for row, node in enumerate(nodes.tolist()):
        marks = tuple(allocations.marks.on(node, gpu) for gpu in range(width))
        state = marks, *(one[row].tobytes() for one in named)
        found.append(numbers.setdefault(state, len(numbers)))
    return np.array(found, dtype=np.int64)


def _best_link(links: Links, count: int) -> int:
    gpus = closest(links, dict.fromkeys(range(len(links)), 0), min(count, len(links)))
    return slowest_within(links, gpus)
