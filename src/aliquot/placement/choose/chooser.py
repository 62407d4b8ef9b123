"""One request to GPUs: the cheapest place by a strategy, kept up to date as the allocations change.

For each shape of demand the cost of every node is remembered; a decision brings up to date the rows
that changed since the shape was last asked for, and takes the lowest. So a decision costs what has
changed, not the size of the cluster, and the answer is the same as if all were computed anew.

Nodes that cost about the same differ by two things that are part of the cost, and small beside what
the strategy counts. Where several GPUs are asked for, the node whose GPUs have the better slowest
link is taken. And a node that already has GPUs of the demand's kind is filled before another node
is opened for that kind, unless the strategy spreads or leaves the node to chance.

Of places that cost the same, a part of a GPU goes to the GPU whose time is used the least, as far
as that is known: so a second heavy program comes beside a light one. Programs that have just begun
count as idle.

A slice that may take turns with memory goes to a GPU where it fits beside all others, if there is
one anywhere; otherwise to the one where the least must leave.

Chance decides between equal costs. It is drawn from the seed and the allocations' fingerprint, so
asking changes nothing: the same snapshot, seed and request have one answer, however often they are
asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.choose.kept_rows import KeptRows
from aliquot.placement.core.demand import Demand, Kind, Near, Placement
from aliquot.placement.core.fit import (
    any_of,
    excess_of,
    gpus_that_fit,
    hashed,
    nodes_that_fit,
    rows_of,
    without_turns_first,
)
from aliquot.placement.core.links import Reach, closest, slowest_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.snapshot import Bools, Ints

SHAPES_KEPT = 512
EQUAL = 1e-8
NOT_FITTING = 1 << 20
BUSY = 1e-7  # of an eighth of a GPU's time: more than what is equal, less than any strategy counts
MOST = np.iinfo(np.int8).max
STRENGTH = 1000.0  # a step of it weighs more than any cost of a strategy
OVERCOMMITTED = 1e9  # more than anything else weighs: only where no slice fits beside others
NEARNESS = (Reach.SYS, Reach.PIX, Reach.NVLINK, Reach.ITSELF), (0.0, 0.4, 0.6, 1.0)


@dataclass(slots=True)
class _Remembered:
    version: int
    cost: NDArray[np.float64]
    gpu: Ints
    nodes: Bools | None  # that the demand may use at all


@dataclass(frozen=True, slots=True)
class Relation:
    """Where to be, seen from the placements of another grant."""

    near: Near
    others: tuple[Placement, ...]


class Chooser:
    """A strategy at work on allocations."""

    def __init__(
        self, allocations: Allocations, by: Strategy, *, seed: int = 0, shapes: int = SHAPES_KEPT
    ) -> None:
        self.allocations = allocations
        self._shapes_kept = shapes
        self._by = by
        self._seed = seed
        self._shapes: dict[Demand, _Remembered] = {}
        self._rows = KeptRows(allocations, by.prepare)

    def choose(
        self, demand: Demand, relations: Sequence[Relation] = (), among: Bools | None = None
    ) -> Placement | None:
        """The cheapest place for the demand, `among` these nodes; None where there is none.

        Takes nothing.
        """
        cost, gpu, allowed = self._weigh(demand, relations)
        if among is not None:
            cost = np.where(among, cost, np.inf)
        return self._pick(demand, cost, gpu, allowed)

    def gpus_on(self, node: int, demand: Demand) -> tuple[int, ...]:
        """The GPUs that are best on a node that fits the request."""
        known = self._known(demand)
        return self._gpus(node, demand, known.gpu, None, drawn(self.allocations, self._seed))

    def place(self, demand: Demand, relations: Sequence[Relation] = ()) -> Placement | None:
        """Choose, and take it."""
        placement = self.choose(demand, relations)
        if placement is not None:
            self.allocations.take(placement, demand)
        return placement

    def costs(self, demand: Demand, relations: Sequence[Relation] = ()) -> NDArray[np.float64]:
        """The cost of placing a demand on each node; infinite if it does not fit there."""
        return self._weigh(demand, relations)[0].copy()

    def _weigh(
        self, demand: Demand, relations: Sequence[Relation]
    ) -> tuple[NDArray[np.float64], Ints, Bools | None]:
        """The cost of each node, the GPU meant there, and which GPUs the relations leave."""
        known = self._known(demand)
        if not relations:
            return known.cost, known.gpu, None
        allowed = _allowed(self.allocations, relations)
        every = np.arange(self.allocations.hardware.size)
        return *self._costs(demand, every, known.nodes, allowed), allowed

    def _known(self, demand: Demand) -> _Remembered:
        allocations = self.allocations
        known = self._shapes.pop(demand, None)
        if demand.joins:
            known = None  # a slice anywhere may change where it may go
        rows = None if known is None else allocations.changed_since(known.version)
        if known is None or rows is None or len(rows) == allocations.hardware.size:
            nodes = allocations.hardware.nodes_for(demand)
            rows = np.arange(allocations.hardware.size)
            known = _Remembered(0, *self._costs(demand, rows, nodes, None), nodes)
        elif len(rows):
            if known.nodes is not None:  # a row may have another node since
                known.nodes = allocations.hardware.nodes_for(demand)
            known.cost[rows], known.gpu[rows] = self._costs(demand, rows, known.nodes, None)
        known.version = allocations.version
        self._shapes[demand] = known  # the last asked for is the last to be forgotten
        if len(self._shapes) > self._shapes_kept:
            del self._shapes[next(iter(self._shapes))]
        return known

    def _costs(
        self, demand: Demand, index: Ints, usable: Bools | None, allowed: Bools | None
    ) -> tuple[NDArray[np.float64], Ints]:
        is_all = len(index) == self.allocations.hardware.size
        rows = self._rows.all() if is_all else self._rows.some(index)
        fits = gpus_that_fit(rows, demand)
        if allowed is not None:
            fits &= allowed[index]
        nodes = nodes_that_fit(rows, demand, fits, usable)
        if allowed is not None and not demand.gpus:
            nodes &= allowed[index].any(axis=1)
        cost, gpu = np.full(len(index), np.inf), np.zeros(len(index), dtype=np.int64)
        some = np.flatnonzero(nodes)
        if len(some) == len(index):
            return self._costs_where_it_fits(demand, rows, fits)
        if demand.gpus == 1 and 2 * len(some) > len(index):  # faster than to pick them out
            fits &= nodes[:, None]
            return self._costs_where_it_fits(demand, rows, fits)
        if len(some):
            cost[some], gpu[some] = self._costs_where_it_fits(
                demand, rows.part(some), fits.take(some, axis=0)
            )
        return cost, gpu

    def _costs_where_it_fits(
        self, demand: Demand, rows: Rows, fits: Bools
    ) -> tuple[NDArray[np.float64], Ints]:
        if demand.swap is None:
            return self._costs_beside(demand, rows, fits)
        fits, crowded = without_turns_first(rows, demand, fits)
        if not crowded.any():
            return self._costs_beside(demand, rows, fits)
        gpu = fits.argmax(axis=1)
        cost = OVERCOMMITTED + excess_of(rows, demand, gpu)
        if demand.strength_sign:
            rank = self.allocations.hardware.rank[rows.index]
            cost = cost + demand.strength_sign * STRENGTH * rank
        some = np.flatnonzero(~crowded)
        if len(some):
            cost[some], gpu[some] = self._costs_beside(demand, rows.part(some), fits[some])
        return cost, gpu

    def _costs_beside(
        self, demand: Demand, rows: Rows, fits: Bools
    ) -> tuple[NDArray[np.float64], Ints]:
        if demand.gpus == 1:
            best, gpu = self._by.one(rows, demand, fits)
            if self.allocations.knows_use and demand.kind is not Kind.WHOLE:
                best, gpu = self._least_busy(rows, fits, best, gpu)
        else:
            gpu = np.zeros(len(rows.index), dtype=np.int64)
            best = self._by.several(rows, demand, fits)
            if demand.gpus and self._by.about and any(self.allocations.hardware.link_tables):
                best = best + self._by.about * self._farness(rows, demand, fits)
        if demand.gpus and self._by.lean > 0:
            best = best + self._by.about * ~any_of(rows.kind == int(demand.kind))
        if demand.strength_sign:
            rank = self.allocations.hardware.rank[rows.index]
            best = best + demand.strength_sign * STRENGTH * rank
        return best, gpu

    def _least_busy(
        self, rows: Rows, fits: Bools, best: NDArray[np.float64], gpu: Ints
    ) -> tuple[NDArray[np.float64], Ints]:
        """The same costs and GPUs; of GPUs of a node in the same state the least busy one."""
        busy = self.allocations.busy
        some = np.flatnonzero(busy[rows.index, gpu])  # the others cannot be less busy
        if not (len(some) and self._by.lean):  # else the GPU is left to chance
            return best, gpu
        like, gpu = fits[some], gpu.copy()
        for column in (rows.kind, rows.milli, rows.bytes):
            like &= column[some] == column[some, gpu[some]][:, None]
        gpu[some] = np.where(like, busy[rows.index[some]], MOST).argmin(axis=1)
        return best + BUSY * busy[rows.index, gpu], gpu

    def _farness(self, rows: Rows, demand: Demand, fits: Bools) -> NDArray[np.float64]:
        """How slow the slowest link is between the GPUs meant on each node, from 0 to 1."""
        hardware = self.allocations.hardware
        sizes = np.where(fits, self._by.lean * rows.size_left, NOT_FITTING)
        table = hardware.link_table[rows.index]
        _, first, alike = np.unique(
            hashed(np.column_stack((sizes, table))), return_index=True, return_inverse=True
        )
        slowest = []
        for row in map(int, first):
            links = hardware.link_tables[int(table[row])]
            left = {int(gpu): int(sizes[row, gpu]) for gpu in np.flatnonzero(fits[row])}
            slowest.append(slowest_within(links, closest(links, left, demand.gpus)))
        return np.asarray(1 - np.interp(slowest, *NEARNESS))[alike]

    def _pick(
        self, demand: Demand, cost: NDArray[np.float64], gpu: Ints, allowed: Bools | None
    ) -> Placement | None:
        lowest = cost.min(initial=np.inf)
        if lowest == np.inf:
            return None
        equal = np.flatnonzero(cost <= lowest + EQUAL)
        chance = drawn(self.allocations, self._seed)
        node = int(equal[chance.randrange(len(equal))])
        return Placement(node, self._gpus(node, demand, gpu, allowed, chance))

    def _gpus(
        self, node: int, demand: Demand, gpu: Ints, allowed: Bools | None, chance: Random
    ) -> tuple[int, ...]:
        if not demand.gpus:
            return ()
        if demand.gpus == 1 and self._by.lean:
            return (int(gpu[node]),)
        rows = rows_of(self.allocations, np.array([node]))
        fits = gpus_that_fit(rows, demand)
        if allowed is not None:
            fits &= allowed[node]
        if demand.swap is not None:
            fits, _ = without_turns_first(rows, demand, fits)
        candidates = [int(gpu) for gpu in np.flatnonzero(fits[0])]
        if not self._by.lean:
            return tuple(sorted(chance.sample(candidates, demand.gpus)))
        left = {gpu: self._by.lean * int(rows.size_left[0, gpu]) for gpu in candidates}
        return closest(self.allocations.hardware.links[node], left, demand.gpus)


def drawn(allocations: Allocations, seed: int) -> Random:
    """Chance that is the same for the same snapshot and seed."""
    return Random(seed << 64 ^ allocations.fingerprint)  # noqa: S311 - ties, not secrets


def _allowed(allocations: Allocations, relations: Sequence[Relation]) -> Bools:
    """The GPUs that all relations leave."""
    allowed = allocations.hardware.present.copy()
    for relation in relations:
        nodes = [one.node for one in relation.others]
        gpus = [(one.node, gpu) for one in relation.others for gpu in one.gpus]
        mask = np.zeros_like(allowed)
        if relation.near in (Near.SAME_NODE, Near.OTHER_NODE):
            mask[nodes] = True
        for at in gpus if relation.near in (Near.SAME_GPU, Near.OTHER_GPU) else ():
            mask[at] = True
        allowed &= mask if relation.near in (Near.SAME_GPU, Near.SAME_NODE) else ~mask
    return allowed
