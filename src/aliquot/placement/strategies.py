"""How good a place is: small, named strategies over rows of nodes.

A strategy gives a cost to a node for a demand; the lowest cost is taken, and equal costs are left
to chance (under a seed). For a demand of one GPU it gives a cost for each GPU, since the choice of
the card is most of the decision; for several, the tightest cards that fit are meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from aliquot.model.errors import BadValueError
from aliquot.placement.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.fgd import Fgd
from aliquot.placement.fit import sizes_left
from aliquot.placement.outlook import ANYTHING, outlook

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aliquot.placement.fit import Rows
    from aliquot.placement.outlook import Mix, Outlook, Table
    from aliquot.placement.snapshot import Bools, Hardware, Ints

    Floats = NDArray[np.float64]


PACKED = 1e-3  # of what is left of a node, in a measure of thousandths
CARD = 1e-12  # of what is left of a card, in a measure of 1: decides between cards, not nodes


class Strategy(Protocol):
    """Costs of places."""

    lean: int
    """1: the fuller first; -1: the emptier first; 0: any, and the card is left to chance too.

    So cards are taken where several are asked for, and places of a gang that are equally near."""

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:
        """For each node and GPU, the cost of taking the one GPU asked for there."""

    def several(self, rows: Rows, demand: Demand, chosen: Bools) -> Floats:
        """For each node, the cost of taking these GPUs, which may be none."""


def tightest(rows: Rows, demand: Demand, fits: Bools) -> Bools:
    """The GPUs with the least left that fit, as many as asked for."""
    if not demand.gpus:
        return np.zeros_like(fits)
    left = np.where(fits, rows.size_left, 2 * WHOLE_MILLI)
    order = np.argsort(left, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return fits & (rank < demand.gpus)


class Random:
    """Anywhere."""

    lean = 0

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:  # noqa: ARG002 - Strategy
        """All the same."""
        return np.zeros(fits.shape)

    def several(self, rows: Rows, demand: Demand, chosen: Bools) -> Floats:  # noqa: ARG002
        """All the same."""
        return np.zeros(len(rows.index))


class BestFit:
    """The node with the least CPU and GPU left, in equal parts, and its tightest GPU.

    `pack` looks at GPUs first and `spread` is its opposite.
    """

    def __init__(self, hardware: Hardware, *, cpu: float, gpu: float, lean: int = 1) -> None:
        self.lean = lean
        self._cpu = lean * cpu / max(1, int(hardware.cpu_milli.max(initial=0)))
        self._gpu = lean * gpu / (WHOLE_MILLI * max(1, int(hardware.gpu_count.max(initial=0))))

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:  # noqa: ARG002 - Strategy
        """The node's cost, and a little for the card's own rest."""
        return self._node(rows)[:, None] + self.lean * CARD * rows.size_left

    def several(self, rows: Rows, demand: Demand, chosen: Bools) -> Floats:  # noqa: ARG002
        """The node's cost; what the demand itself takes is the same everywhere."""
        return self._node(rows)

    def _node(self, rows: Rows) -> Floats:
        return np.asarray(self._cpu * rows.cpu + self._gpu * _left(rows), dtype=np.float64)


class Fragmentation:
    """The place where the least is lost of what is likely to come (see `outlook`).

    Places that lose about the same are told apart by what is left of the node, the least first.
    """

    lean = 1

    def __init__(self, ahead: Outlook) -> None:
        self._ahead = ahead

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:
        """The worth that each choice takes from the node."""
        holes, idle, sums, free = self._before(rows)
        model = rows.model[:, None]
        after = np.where(fits, _sizes_after(rows, demand), 0)
        fewer = np.maximum(free - 1, 0)
        parts = [
            total[:, None]
            - np.where(
                rows.free, (of_idle[rows.model, free] - of_idle[rows.model, fewer])[:, None], hole
            )
            + of_hole[model, after]
            for total, hole, of_hole, of_idle in zip(
                sums, holes, _columns(self._ahead.holes), idle, strict=True
            )
        ]
        left = rows.cpu - demand.cpu_milli, rows.ram - demand.ram_bytes
        later = self._ahead.worth(
            parts[0], (parts[1], parts[2]), (left[0][:, None], left[1][:, None])
        )
        return (self._now(rows, sums) + PACKED * _left(rows))[:, None] - later

    def several(self, rows: Rows, demand: Demand, chosen: Bools) -> Floats:
        """The same, for a set of GPUs or none."""
        holes, idle, sums, free = self._before(rows)
        after = np.where(chosen, _sizes_after(rows, demand), 0)
        cut = chosen & ~rows.free
        fewer = free - (chosen & rows.free).sum(axis=1)
        model = rows.model[:, None]
        parts = [
            total
            - (cut * hole).sum(axis=1)
            + (chosen * of_hole[model, after]).sum(axis=1)
            - of_idle[rows.model, free]
            + of_idle[rows.model, fewer]
            for total, hole, of_hole, of_idle in zip(
                sums, holes, _columns(self._ahead.holes), idle, strict=True
            )
        ]
        left = rows.cpu - demand.cpu_milli, rows.ram - demand.ram_bytes
        later = self._ahead.worth(parts[0], (parts[1], parts[2]), left)
        return self._now(rows, sums) + PACKED * _left(rows) - later

    def lost(self, rows: Rows) -> float:
        """The part of what is left that nothing likely to come will use."""
        left = int(_left(rows).sum())
        worth = float(self._now(rows, self._before(rows)[2]).sum())
        return max(0.0, 1 - worth / left) if left else 0.0

    def _before(
        self, rows: Rows
    ) -> tuple[list[Floats], tuple[Floats, Floats, Floats], list[Floats], Ints]:
        """Fill, CPU and memory: of each cut GPU, of free ones by number, summed; and how many."""
        cut = rows.present & ~rows.free
        size = np.where(cut, rows.size_left, 0)
        free = rows.free.sum(axis=1)
        idle = _columns(self._ahead.idle)
        holes = [
            cut * of_hole[rows.model[:, None], size] for of_hole in _columns(self._ahead.holes)
        ]
        sums = [
            hole.sum(axis=1) + of_idle[rows.model, free]
            for hole, of_idle in zip(holes, idle, strict=True)
        ]
        return holes, idle, sums, free

    def _now(self, rows: Rows, sums: list[Floats]) -> Floats:
        return self._ahead.worth(sums[0], (sums[1], sums[2]), (rows.cpu, rows.ram))


def _left(rows: Rows) -> Ints:
    return np.asarray(np.where(rows.present, rows.size_left, 0).sum(axis=1))


def _columns(table: Table) -> tuple[Floats, Floats, Floats]:
    return table.fill, table.cpu, table.ram


def _sizes_after(rows: Rows, demand: Demand) -> Ints:
    if demand.kind is Kind.WHOLE:
        return np.zeros_like(rows.size_left)
    return sizes_left(
        rows.milli - demand.milli, rows.bytes - demand.gpu_bytes, rows.gpu_bytes[:, None]
    )


STRATEGIES: dict[str, Callable[[Hardware, Mix], Strategy]] = {
    "fragmentation": lambda hardware, mix: Fragmentation(outlook(mix, hardware)),
    "fgd": Fgd,
    "best-fit": lambda hardware, _: BestFit(hardware, cpu=0.5, gpu=0.5),
    "pack": lambda hardware, _: BestFit(hardware, cpu=0.01, gpu=1.0),
    "spread": lambda hardware, _: BestFit(hardware, cpu=0.01, gpu=1.0, lean=-1),
    "random": lambda *_: Random(),
}


def strategy(name: str, hardware: Hardware, mix: Mix | None = None) -> Strategy:
    """The strategy of this name, for these nodes and what is likely to come to them."""
    if name not in STRATEGIES:
        raise BadValueError(
            f"there is no strategy {name!r}", f"There are: {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name](hardware, mix or ANYTHING)
