"""Moving: which slices to move so that a waiting request fits, and what that costs.

This only makes a plan. Each move has a source and a target, and the moves are ordered so that each
one fits next to all slices that have not moved yet. The cost is the number of bytes moved.

For one GPU the cheapest set of slices to move is found by trying all sets (if up to 10 slices are
on it), and for a node the cheapest set of GPUs to clear (if there are up to 256 sets). The slices
are placed by best-fit, the largest first, which may find no place although there is one; then the
next cheapest offer is tried, up to 64. So a plan can always be carried out, it is the cheapest if
the slices of the cheapest offer find places, and None does not prove that there is no plan. No
slice is moved to free CPU or memory of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.choose.chooser import Chooser, Relation
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.demand import WHOLE_MILLI, Kind, Near, Placement
from aliquot.placement.core.fit import Lack, lacks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand

OFFERS_TRIED = 64
OFFERS_OF_A_NODE = 4
ALL_LEAVERS = 10
ALL_SETS = 256


@dataclass(frozen=True, slots=True)
class Held:
    """A grant that could move."""

    name: str
    demand: Demand
    placement: Placement


@dataclass(frozen=True, slots=True)
class Move:
    """One grant to another place."""

    name: str
    source: Placement
    target: Placement
    bytes: int


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves in their order, and where the request fits after them."""

    moves: tuple[Move, ...]
    placement: Placement

    @property
    def bytes(self) -> int:
        """What has to be moved."""
        return sum(move.bytes for move in self.moves)


@dataclass(frozen=True, slots=True)
class _Offer:
    """GPUs of one node that would fit the request if these slices moved away."""

    cost: int
    target: Placement
    leaving: tuple[Held, ...]


def plan_moves(allocations: Allocations, demand: Demand, held: Sequence[Held]) -> Moves | None:
    """The cheapest moves after which the request fits on one node; None if none were found."""
    by_node: dict[int, list[Held]] = {}
    for one in held:
        by_node.setdefault(one.placement.node, []).append(one)
    lacks = lacks_of(allocations, demand)
    never = (Lack.MODEL, Lack.WEAK, Lack.TOO_FEW, Lack.NAMED, Lack.TOO_SMALL, Lack.CPU, Lack.RAM)
    nodes = [node for node, lack in enumerate(lacks) if lack not in never]
    offers = [
        offer
        for node in nodes
        for offer in _offers(allocations, demand, node, by_node.get(node, []))
    ]
    offers.sort(key=lambda offer: (offer.cost, offer.target.node, offer.target.gpus))
    found = (_carry_out(allocations, demand, offer) for offer in offers[:OFFERS_TRIED])
    return next((moves for moves in found if moves is not None), None)


def _offers(
    allocations: Allocations, demand: Demand, node: int, held: Sequence[Held]
) -> Iterator[_Offer]:
    """The cheapest ways to clear enough GPUs of one node."""
    by_gpu: dict[int, tuple[Held, ...]] = {}
    for gpu in map(int, np.flatnonzero(allocations.hardware.present[node])):
        there = [one for one in held if gpu in one.placement.gpus]
        leaving = _leaving(allocations, demand, (node, gpu), there)
        if leaving is not None:
            by_gpu[gpu] = leaving
    gpus = sorted(by_gpu, key=lambda gpu: (_cost(allocations, by_gpu[gpu]), gpu))
    sets_weighed = ALL_SETS if comb(len(gpus), demand.gpus) <= ALL_SETS else 1
    offers = []
    for chosen in islice(combinations(gpus, demand.gpus), sets_weighed):
        leaving = tuple({one.name: one for gpu in chosen for one in by_gpu[gpu]}.values())
        target = Placement(node, tuple(sorted(chosen)))
        offers.append(_Offer(_cost(allocations, leaving), target, leaving))
    offers.sort(key=lambda offer: (offer.cost, offer.target.gpus))
    yield from offers[:OFFERS_OF_A_NODE]


def _leaving(
    allocations: Allocations, demand: Demand, gpu: tuple[int, int], there: Sequence[Held]
) -> tuple[Held, ...] | None:
    """The cheapest slices to move off a GPU so that a part of the demand fits on it.

    None if it would not fit even without all of them. With more than `ALL_LEAVERS` slices the
    choice may not be the cheapest.
    """
    there = sorted(there, key=lambda one: _cost(allocations, [one]))
    if not _fits_without(allocations, demand, gpu, there):
        return None
    if len(there) <= ALL_LEAVERS:
        ways = (way for size in range(len(there) + 1) for way in combinations(there, size))
        enough = [way for way in ways if _fits_without(allocations, demand, gpu, way)]
        return min(enough, key=lambda way: _cost(allocations, way))
    leaving = list(there)
    for one in reversed(there):
        fewer = [other for other in leaving if other is not one]
        if _fits_without(allocations, demand, gpu, fewer):
            leaving = fewer
    return tuple(leaving)


def _fits_without(
    allocations: Allocations, demand: Demand, gpu: tuple[int, int], leaving: Sequence[Held]
) -> bool:
    """Whether a part of the demand fits on a GPU after these slices have moved away."""
    taken = [allocations.hardware.taken_of_each(gpu[0], one.demand) for one in leaving]
    milli = int(allocations.milli_free[gpu]) + sum(one[0] for one in taken)
    left = int(allocations.bytes_free[gpu]) + sum(one[1] for one in taken)
    if demand.wishes is not None and not _is_welcome_without(allocations, demand, gpu, leaving):
        return False
    is_free = int(allocations.holders[gpu]) == len(leaving)
    if demand.kind is Kind.WHOLE:
        return is_free and milli == WHOLE_MILLI and left >= demand.gpu_bytes
    usable = is_free or int(allocations.kind[gpu]) == demand.kind
    return usable and milli >= demand.milli and left >= demand.gpu_bytes


def _is_welcome_without(
    allocations: Allocations, demand: Demand, gpu: tuple[int, int], leaving: Sequence[Held]
) -> bool:
    """Whether a demand's wishes leave a GPU after these slices have moved away."""
    marks, wishes = allocations.marks.copy(), demand.wishes
    for one in leaving:
        if one.demand.wishes is not None and one.demand.wishes.mark is not None:
            marks.remove(gpu[0], gpu[1:], one.demand.wishes.mark)
    return wishes is None or marks.allows(wishes, allocations.hardware.uuids, *gpu)


def _carry_out(allocations: Allocations, demand: Demand, offer: _Offer) -> Moves | None:
    """Move each away, with all others in place, and see whether the request fits then."""
    trial = allocations.copy()
    chooser = Chooser(trial, strategy("best-fit", trial.hardware))
    elsewhere = (Relation(Near.OTHER_GPU, (offer.target,)),)
    moves = []
    for one in sorted(offer.leaving, key=lambda held: -_cost(allocations, [held])):
        place = chooser.place(one.demand, elsewhere)
        if place is None:
            return None
        moves.append(Move(one.name, one.placement, place, _cost(allocations, [one])))
        trial.give(one.placement, one.demand)
    return Moves(tuple(moves), offer.target) if trial.fits(offer.target, demand) else None


def _cost(allocations: Allocations, leaving: Sequence[Held]) -> int:
    """The bytes that have to be moved."""
    return sum(
        one.demand.gpus * allocations.hardware.taken_of_each(one.placement.node, one.demand)[1]
        for one in leaving
    )
