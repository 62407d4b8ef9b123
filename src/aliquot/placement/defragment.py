"""Room by moving: which slices to move so that a waiting request fits, and what that costs.

A plan, nothing more: who moves is told from where to where, in an order in which each move fits
when it comes. The cost is the bytes that are moved; the cheapest nodes are tried first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.chooser import Chooser, Relation
from aliquot.placement.demand import Kind, Near, Placement
from aliquot.placement.fit import Lack, gpus_that_fit, lack_of, rows_of
from aliquot.placement.strategies import strategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Demand

NODES_TRIED = 32


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


def plan_moves(books: Books, demand: Demand, held: Sequence[Held]) -> Moves | None:
    """The cheapest moves that make room on one node; None where there are none."""
    best: Moves | None = None
    by_node: dict[int, list[Held]] = {}
    for one in held:
        by_node.setdefault(one.placement.node, []).append(one)
    never = (Lack.MODEL, Lack.TOO_FEW, Lack.TOO_SMALL)
    nodes = [node for node in by_node if lack_of(books, node, demand) not in never]
    offers = [offer for node in nodes for offer in _ways(books, demand, node, by_node[node])]
    offers.sort(key=lambda offer: (offer[0], offer[1].node, offer[1].gpus))
    for cost, target, leaving in offers[:NODES_TRIED]:
        if best is not None and cost >= best.bytes:
            break
        found = _carry_out(books, demand, target, leaving)
        if found is not None and (best is None or found.bytes < best.bytes):
            best = found
    return best


def _ways(
    books: Books, demand: Demand, node: int, held: Sequence[Held]
) -> Iterator[tuple[int, Placement, tuple[Held, ...]]]:
    """Ways to empty enough of one node: the GPUs that cost the least, cleared as far as needed."""
    costs = []
    for gpu in np.flatnonzero(books.hardware.present[node]):
        leaving = _leaving(books, demand, node, int(gpu), held)
        if leaving is not None:
            costs.append((sum(_bytes(books, one) for one in leaving), int(gpu), leaving))
    costs.sort(key=lambda cost: cost[:2])
    if len(costs) < demand.gpus:
        return
    chosen = costs[: demand.gpus]
    unique = {one.name: one for _, _, leaving in chosen for one in leaving}
    total = sum(_bytes(books, one) for one in unique.values())
    yield total, Placement(node, tuple(sorted(gpu for _, gpu, _ in chosen))), tuple(unique.values())


def _leaving(
    books: Books, demand: Demand, node: int, gpu: int, held: Sequence[Held]
) -> tuple[Held, ...] | None:
    """Who must leave a GPU for a part of the demand, the smallest first; None: it is not enough."""
    trial = books.copy()
    index = np.array([node])
    there = sorted(
        (one for one in held if gpu in one.placement.gpus), key=lambda one: _bytes(books, one)
    )
    for count in range(len(there) + 1):
        if gpus_that_fit(rows_of(trial, index), demand)[0, gpu]:
            return tuple(there[:count])
        if count < len(there):
            trial.give(there[count].placement, there[count].demand)
    return None


def _carry_out(
    books: Books, demand: Demand, target: Placement, leaving: Sequence[Held]
) -> Moves | None:
    """Move each away in turn, beside all the others, and see whether the request fits then."""
    trial = books.copy()
    chooser = Chooser(trial, strategy("best-fit", trial.hardware))
    elsewhere = (Relation(Near.OTHER_GPU, (target,)),)
    moves = []
    for one in sorted(leaving, key=lambda held: -_bytes(books, held)):
        place = chooser.place(one.demand, elsewhere)
        if place is None:
            return None
        moves.append(Move(one.name, one.placement, place, _bytes(books, one)))
        trial.give(one.placement, one.demand)
    return Moves(tuple(moves), target) if trial.fits(target, demand) else None


def _bytes(books: Books, one: Held) -> int:
    if one.demand.kind is Kind.WHOLE:
        each = int(books.hardware.gpu_bytes[one.placement.node])
    else:
        each = one.demand.gpu_bytes
    return each * one.demand.gpus
