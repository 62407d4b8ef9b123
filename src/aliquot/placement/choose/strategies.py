"""How good a place is: small, named strategies over rows of nodes.

A strategy gives a cost to a node for a demand; the lowest cost is taken, and equal costs are left
to chance (under a seed). For a demand of one GPU it says which GPU has that cost, since the choice
of the GPU is most of the decision; for several, the tightest GPUs that fit are meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aliquot.model.errors import InvalidValueError
from aliquot.placement.choose.fgd import Fgd
from aliquot.placement.choose.forecast import ANYTHING, carried, outlook
from aliquot.placement.choose.lowest import CUT_FIRST, lowest, lowest_of, tightest
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.fit import first_of, sizes_left

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from aliquot.placement.choose.forecast import Forecast, Mix, Table
    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.snapshot import Bools, Hardware, Ints

    Floats = NDArray[np.float64]


PACKED = 1e-3  # of what is left of a node, in a measure of thousandths
GPU_WEIGHT = 1e-12  # of what is free on a GPU, out of 1: decides between GPUs, not nodes


class Strategy(Protocol):
    """Costs of places."""

    lean: int
    """1: the fuller first; -1: the emptier first; 0: any, and the GPU is left to chance too.

    So GPUs are taken where several are asked for, and places of a gang that are equally near."""

    about: float
    """Costs that differ by less are about equal: between such nodes the links decide, where several
    GPUs are asked for, and whether a node already has GPUs of the same kind."""

    def prepare(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        """Columns of its own that depend on no demand; rows may have them as `prepared`."""

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> tuple[Floats, Ints]:
        """For each node, the lowest cost of taking one of the GPUs that fit, and that GPU.

        Infinite where none fits. A thrifty demand takes a GPU that is cut wherever one fits.
        """

    def several(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:
        """For each node on which enough GPUs fit, the cost of taking the tightest of them.

        What it says of the other nodes means nothing. No GPU may be asked for.
        """


class Random:
    """Anywhere."""

    lean = 0
    about = 0.0

    def prepare(self, rows: Rows) -> tuple[NDArray[Any], ...]:  # noqa: ARG002 - Strategy
        """Nothing."""
        return ()

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> tuple[Floats, Ints]:
        """All the same."""
        return lowest(np.zeros(fits.shape), rows, demand, fits)

    def several(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:  # noqa: ARG002
        """All the same."""
        return np.zeros(len(rows.index))


class BestFit:
    """The node with the least CPU and GPU left, in equal parts, and its tightest GPU.

    `pack` looks at GPUs first and `spread` is its opposite.
    """

    about = 1e-6

    def __init__(self, hardware: Hardware, *, cpu: float, gpu: float, lean: int = 1) -> None:
        self.lean = lean
        self._cpu = lean * cpu / max(1, int(hardware.cpu_milli.max(initial=0)))
        self._gpu = lean * gpu / (WHOLE_MILLI * max(1, int(hardware.gpu_count.max(initial=0))))

    def prepare(self, rows: Rows) -> tuple[NDArray[Any], ...]:  # noqa: ARG002 - Strategy
        """Nothing."""
        return ()

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> tuple[Floats, Ints]:
        """The node's cost, and a little for what stays free on the GPU."""
        cost = self._node(rows)[:, None] + self.lean * GPU_WEIGHT * rows.size_left
        return lowest(cost, rows, demand, fits)

    def several(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:  # noqa: ARG002
        """The node's cost; what the demand itself takes is the same everywhere."""
        return self._node(rows)

    def _node(self, rows: Rows) -> Floats:
        return np.asarray(self._cpu * rows.cpu + self._gpu * _left(rows), dtype=np.float64)


class Fragmentation:
    """The place where the least is lost of what is likely to come (see `outlook`).

    Places that lose about the same differ by the links of the GPUs, where several are asked
    for; then by what is left of the node, the least first.
    """

    lean = 1
    about = 10.0

    def __init__(self, ahead: Forecast) -> None:
        self._ahead = ahead
        self._holes, self._idle = _flat(ahead.holes), _flat(ahead.idle)
        self._sizes, self._counts = ahead.holes.fill.shape[1], ahead.idle.fill.shape[1]

    def prepare(self, rows: Rows) -> tuple[NDArray[Any], ...]:
        """The node's cost as it is, its free GPUs, and for fill, CPU and memory what it is worth.

        `total` is what it is worth in all, `rest` what without each of its GPUs: if the GPU is
        free, what with one free GPU less.
        """
        holes, sums, idle = self._before(rows)
        fewer = np.maximum(idle - 1, rows.model * self._counts)
        rest = []
        for total, hole, of_idle in zip(sums, holes, self._idle, strict=True):
            less = total - (of_idle.take(idle) - of_idle.take(fewer))
            rest.append(np.where(rows.free, less[:, None], total[:, None] - hole))
        return (self._before_cost(rows, sums), idle, *sums, *rest)

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> tuple[Floats, Ints]:
        """The worth that each choice takes from the node; of free GPUs the first stands for all."""
        prepared = rows.prepared or self.prepare(rows)
        gpus = np.flatnonzero((fits & ~rows.free) | first_of(fits & rows.free))
        row = gpus // fits.shape[1]
        cost = self._cost_of(rows, demand, prepared[0], prepared[5:], (gpus, row))
        if demand.thrifty:
            cost += CUT_FIRST * rows.free.take(gpus)
        return lowest_of(cost, gpus, row, fits.shape)

    def several(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:
        """The same, for a set of GPUs or none."""
        before, idle, *later = (rows.prepared or self.prepare(rows))[:5]
        if demand.kind is Kind.WHOLE:  # all of them are free, and nothing is left of them
            after = rows.model * self._sizes
            later = [
                total + demand.gpus * of_hole.take(after)
                for total, of_hole in zip(later, self._holes, strict=True)
            ]
            fewer = idle - demand.gpus
        else:
            chosen = tightest(rows, demand, fits)
            sizes = np.where(chosen, _sizes_after(rows, demand), 0)
            after = rows.model[:, None] * self._sizes + sizes
            holes = self._before(rows)[0]
            later = [
                total + (chosen * (of_hole.take(after) - hole)).sum(axis=1)
                for total, hole, of_hole in zip(later, holes, self._holes, strict=True)
            ]
            fewer = idle - (chosen & rows.free).sum(axis=1)
        later = [
            total - of_idle.take(idle) + of_idle.take(fewer)
            for total, of_idle in zip(later, self._idle, strict=True)
        ]
        left = rows.cpu - demand.cpu_milli, rows.ram - demand.ram_bytes
        return before - self._worth(later, left)

    def lost(self, rows: Rows) -> float:
        """The part of what is left that nothing likely to come will use."""
        left = int(_left(rows).sum())
        worth = float(self._worth(self._before(rows)[1], (rows.cpu, rows.ram)).sum())
        return max(0.0, 1 - worth / left) if left else 0.0

    def _before(self, rows: Rows) -> tuple[list[Floats], list[Floats], Ints]:
        """The forecast of fill, CPU and memory before a placement.

        Returns three tables by GPU (zero for GPUs that are not cut), their sums by node with the
        idle GPUs included, and each node's index into the flat tables of idle GPUs.
        """
        cut = rows.present & ~rows.free
        size = rows.model[:, None] * self._sizes + np.where(cut, rows.size_left, 0)
        idle = rows.model * self._counts + rows.free.sum(axis=1)
        holes = [cut * of_hole.take(size) for of_hole in self._holes]
        sums = [
            hole.sum(axis=1) + of_idle.take(idle)
            for hole, of_idle in zip(holes, self._idle, strict=True)
        ]
        return holes, sums, idle

    def _before_cost(self, rows: Rows, sums: list[Floats]) -> Floats:
        return self._worth(sums, (rows.cpu, rows.ram)) + PACKED * _left(rows)

    def _worth(self, sums: list[Floats], left: tuple[Ints, Ints]) -> Floats:
        return self._ahead.worth(sums[0], (sums[1], sums[2]), left)

    def _cost_of(
        self,
        rows: Rows,
        demand: Demand,
        before: Floats,
        rest: Sequence[Floats],
        gpus: tuple[Ints, Ints],
    ) -> Floats:
        """The cost of taking each of these GPUs, given by its index and its row."""
        flat, row = gpus
        after = _size_after(rows, demand, row, flat)
        if len(self._holes[0]) > self._sizes:
            after += rows.model.take(row) * self._sizes
        left = [rows.cpu - demand.cpu_milli, rows.ram - demand.ram_bytes]
        later = rest[0].take(flat)
        later += self._holes[0].take(after)
        for number, there in enumerate(left):
            if not self._ahead.uses[number]:  # then it only matters that there is some
                if not (there > 0).all():
                    later *= np.sign(there).take(row)
                continue
            need = rest[1 + number].take(flat)
            need += self._holes[1 + number].take(after)
            later *= carried(there.take(row), need)
        return np.asarray(np.subtract(before.take(row), later, out=later))


def _left(rows: Rows) -> Ints:
    return np.asarray(np.where(rows.present, rows.size_left, 0).sum(axis=1))


def _flat(table: Table) -> list[Floats]:
    """One row after the other: numpy is faster with one index than with two."""
    return [np.ravel(column) for column in (table.fill, table.cpu, table.ram)]


def _sizes_after(rows: Rows, demand: Demand) -> Ints:
    if demand.kind is Kind.WHOLE:
        return np.zeros_like(rows.size_left)
    return sizes_left(
        rows.milli - demand.milli, rows.bytes - demand.gpu_bytes, rows.gpu_bytes[:, None]
    )


def _size_after(rows: Rows, demand: Demand, row: Ints, gpus: Ints) -> Ints:
    """The same for some GPUs."""
    if demand.kind is Kind.WHOLE:
        return np.zeros_like(gpus)
    total = rows.gpu_bytes
    return sizes_left(
        rows.milli.take(gpus) - demand.milli,
        rows.bytes.take(gpus) - demand.gpu_bytes,
        total[:1] if len(total) and (total == total[0]).all() else total.take(row),
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
        raise InvalidValueError(
            f"there is no strategy {name!r}", f"There are: {', '.join(STRATEGIES)}."
        )
    return STRATEGIES[name](hardware, mix or ANYTHING)
