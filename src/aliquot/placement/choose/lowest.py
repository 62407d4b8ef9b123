"""The lowest cost of each node by its GPUs, and the tightest GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.core.demand import WHOLE_MILLI, Demand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.snapshot import Bools, Ints

    Floats = NDArray[np.float64]

CUT_FIRST = 1e6  # a GPU of the right kind comes before any step of strength


def tightest(rows: Rows, demand: Demand, fits: Bools) -> Bools:
    """The GPUs with the least left that fit, as many as asked for; the first of equal ones."""
    if not demand.gpus:
        return np.zeros_like(fits)
    width = fits.shape[1]
    left = np.where(fits, rows.size_left, 2 * WHOLE_MILLI) * width + np.arange(width)
    last = np.sort(left, axis=1)[:, min(demand.gpus, width) - 1]
    return np.asarray(fits & (left <= last[:, None]))


def lowest(cost: Floats, rows: Rows, demand: Demand, fits: Bools) -> tuple[Floats, Ints]:
    """The lowest cost of each node, by GPU, and the first GPU that has it."""
    cost = np.where(fits, cost, np.inf)
    if demand.thrifty:
        cost += CUT_FIRST * rows.free
    gpu = cost.argmin(axis=1)
    return cost[np.arange(len(gpu)), gpu], gpu


def lowest_of(
    of_gpus: Floats, gpus: Ints, row: Ints, shape: tuple[int, int]
) -> tuple[Floats, Ints]:
    """The same where costs are known of some GPUs only; infinite without any.

    `gpus` are indexes in the flat table of GPUs, in order, and `row` has the row of each.
    """
    table = np.full(shape, np.inf)
    table.ravel()[gpus] = of_gpus
    least = table[:, 0].copy()
    for other in table.T[1:]:
        np.minimum(least, other, out=least)
    is_least = np.flatnonzero(of_gpus == least.take(row))
    first, at = first_of_each(row.take(is_least), gpus.take(is_least), row.take(is_least))
    column = np.zeros(len(least), dtype=np.int64)
    column[at] = first - at * shape[1]
    return least, column


def first_of_each(row: Ints, *columns: Ints) -> list[Ints]:
    """The first entry of each row; the entries are in order of rows."""
    is_first = np.ones(len(row), dtype=bool)
    np.not_equal(row[1:], row[:-1], out=is_first[1:])
    return [column[is_first] for column in columns]
