"""Where a demand fits, for many nodes at once, and what the other nodes lack."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.snapshot import ABSENT
from aliquot.placement.core.wishes import Wishes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.snapshot import Bools, Ints


_FREE = int(Kind.FREE)  # numpy is slow with an enum's members
_A_WORD = 8  # truths in a number of 64 bits


class Lack(StrEnum):
    """Why a request cannot go to a node, the most permanent reason first.

    TAKEN_OUT is for a node where the request would fit by its resources alone.
    """

    MODEL = "another GPU model"
    WEAK = "GPUs that are weaker than asked for"
    TOO_FEW = "fewer GPUs than asked for"
    NAMED = "too few of the GPUs that it may use"
    TOO_SMALL = "GPUs with less memory than asked for"
    CPU = "not enough CPU free"
    RAM = "not enough memory of the node free"
    SHARED = "not enough free on sliced or unused GPUs, and shared ones take no slices"
    SLICED = "not enough free on shared or unused GPUs, and sliced ones take no shares"
    GPU = "not enough free on enough GPUs"
    NEIGHBOURS = "not enough free on GPUs with neighbours that it may have"
    TAKEN_OUT = "excluded: the request must be near, or away from, other work"


@dataclass(frozen=True, slots=True)
class Rows:
    """Some nodes of the allocations, as they are now.

    `size_left` is what counts of a GPU: thousandths of compute or of memory, whichever is less.
    `prepared` are a strategy's own columns, where `KeptRows` keeps them.
    """

    index: Ints
    model: Ints
    present: Bools
    milli: Ints
    bytes: Ints
    gpu_bytes: Ints
    free: Bools
    kind: NDArray[np.int8]
    size_left: Ints
    cpu: Ints
    ram: Ints
    source: Allocations
    prepared: tuple[NDArray[Any], ...] = ()

    def part(self, some: Ints) -> Rows:
        """Some of these rows, copied."""
        parts = {name: getattr(self, name).take(some, axis=0) for name in BY_ROW}
        prepared = tuple(column.take(some, axis=0) for column in self.prepared)
        return Rows(**parts, source=self.source, prepared=prepared)

    def with_prepared(self, columns: tuple[NDArray[Any], ...]) -> Rows:
        """The same rows with columns of a strategy."""
        return replace(self, prepared=columns)


BY_ROW = tuple(one.name for one in fields(Rows) if one.name not in {"source", "prepared"})


def rows_of(allocations: Allocations, index: Ints) -> Rows:
    """These rows of the allocations, as they are now."""
    return _rows(allocations, index, index)


def all_rows(allocations: Allocations) -> Rows:
    """All rows, for use before the allocations change: nothing is copied."""
    return _rows(allocations, np.arange(allocations.hardware.size), slice(None))


def _rows(allocations: Allocations, index: Ints, part: Ints | slice) -> Rows:
    hardware = allocations.hardware
    milli, left = allocations.milli_free[part], allocations.bytes_free[part]
    total = hardware.gpu_bytes[part]
    present = hardware.present[part]
    kind = allocations.kind[part]
    return Rows(
        index=index,
        model=hardware.model[part],
        present=present,
        milli=milli,
        bytes=left,
        gpu_bytes=total,
        free=present & (kind == _FREE),
        kind=kind,
        size_left=sizes_left(milli, left, total[:, None]),
        cpu=allocations.cpu_free[part],
        ram=allocations.ram_free[part],
        source=allocations,
    )


def sizes_left(milli: Ints, left: Ints, total: Ints) -> Ints:
    """Thousandths of compute or of memory, whichever is less; nodes may not know their memory."""
    if not total.any():
        return milli
    is_known = total > 0
    # Exact up to 2^53, and several times faster than the division of whole numbers.
    share = np.floor(np.maximum(left, 0) * WHOLE_MILLI / np.maximum(total, 1)).astype(np.int64)
    least = np.minimum(milli, share)
    return least if is_known.all() else np.where(is_known, least, milli)


def hashed(table: Ints) -> NDArray[np.uint64]:
    """A number for each row, which equal rows share and others do not."""
    columns = np.arange(1, table.shape[1] + 1, dtype=np.uint64)
    weights = columns * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(0xBF58476D1CE4E5B9)
    mixed = (table.astype(np.uint64) + np.uint64(1)) * weights
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((mixed ^ (mixed >> np.uint64(32))).sum(axis=1))


def gpus_that_fit(rows: Rows, demand: Demand) -> Bools:
    """Which GPUs can give one part of the demand, whatever their node's CPU."""
    enough = rows.bytes >= demand.gpu_bytes
    if demand.kind is Kind.WHOLE:
        fits = rows.free & (rows.milli == WHOLE_MILLI) & enough
    else:
        usable = rows.free | (rows.present & (rows.kind == int(demand.kind)))
        fits = usable & (rows.milli >= demand.milli)
        fits &= enough if demand.swap is None else enough | _in_turns(rows, demand, fits & ~enough)
    if demand.wishes is not None:
        fits = fits & _allowed(rows, demand.wishes)
    return np.asarray(fits)


def _in_turns(rows: Rows, demand: Demand, asked: Bools) -> Bools:
    """Which of these GPUs have the memory for a demand if their slices take turns with it."""
    found, source = np.zeros_like(asked), rows.source
    if source.turns:
        for row, gpu in np.argwhere(asked).tolist():
            found[row, gpu] = source.fits_in_turns(int(rows.index[row]), gpu, demand)
    return found


def without_turns_first(rows: Rows, demand: Demand, fits: Bools) -> tuple[Bools, Bools]:
    """Of the GPUs that fit, the best of each node by its memory, and the nodes with over-commit.

    Where a slice fits beside all others on some GPU, no GPU counts where it would take turns.
    Otherwise those count on which least must leave.
    """
    beside = fits & (rows.bytes >= demand.gpu_bytes)
    has, any_fits = any_of(beside), any_of(fits)
    crowded = any_fits & ~has
    if not crowded.any():
        return beside, crowded
    free = np.where(fits, np.maximum(rows.bytes, 0), ABSENT)
    least = fits & (free == free.max(axis=1, initial=ABSENT)[:, None])
    return np.where(crowded[:, None], least, beside), crowded


def excess_of(rows: Rows, demand: Demand, gpu: Ints) -> NDArray[np.float64]:
    """How much more the slices of one GPU of each row would have, as a part of the GPU."""
    free = np.maximum(rows.bytes[np.arange(len(gpu)), gpu], 0)
    return np.asarray((demand.gpu_bytes - free) / np.maximum(rows.gpu_bytes, 1))


def _allowed(rows: Rows, wishes: Wishes) -> Bools:
    """Which GPUs the wishes of a demand leave."""
    marks, uuids = rows.source.marks, rows.source.hardware.uuids
    return marks.allowed(wishes, uuids, rows.index, rows.kind.shape[1])


def nodes_that_fit(rows: Rows, demand: Demand, gpus: Bools, nodes: Bools | None) -> Bools:
    """Which nodes can hold the demand, given the GPUs that can and `Hardware.nodes_for` it."""
    fits = (rows.cpu >= demand.cpu_milli) & (rows.ram >= demand.ram_bytes)
    if demand.gpus:
        fits &= any_of(gpus) if demand.gpus == 1 else count_of(gpus) >= demand.gpus
    return fits if nodes is None else fits & nodes[rows.index]


def any_of(gpus: Bools) -> Bools:
    """Whether some GPU of each row is true; for few columns faster than `any(axis=1)`."""
    if gpus.shape[1] == _A_WORD:
        return np.asarray(_words(gpus) != 0)
    found = np.zeros(len(gpus), dtype=bool)
    for column in gpus.T:
        found |= column
    return found


def first_of(gpus: Bools) -> Bools:
    """The first GPU of each row that is true."""
    if gpus.shape[1] == _A_WORD and sys.byteorder == "little":
        words = _words(gpus)
        return np.asarray((words & -words).view(bool).reshape(gpus.shape))
    before, found = np.zeros(len(gpus), dtype=bool), np.zeros_like(gpus)
    for column, first in zip(gpus.T, found.T, strict=True):
        np.greater(column, before, out=first)
        before |= column
    return found


def _words(gpus: Bools) -> NDArray[np.uint64]:
    """Each row of 8 truths as one number, which numpy compares at once."""
    return np.ascontiguousarray(gpus).view(np.uint64).ravel()


def count_of(gpus: Bools) -> Ints:
    """How many GPUs of each row are true; for few columns faster than `sum(axis=1)`."""
    found = np.zeros(len(gpus), dtype=np.int64)
    for column in gpus.T:
        found += column
    return found


def lacks_of(allocations: Allocations, demand: Demand) -> list[Lack | None]:
    """What each node lacks for the demand; None if it fits there."""
    rows = all_rows(allocations)
    any_neighbours, named = demand, rows.present
    if demand.wishes is not None:
        only = Wishes(named=demand.wishes.named, excluded=demand.wishes.excluded)
        any_neighbours = replace(demand, wishes=only)
        named = named & _allowed(rows, only)
    would_fit = named & (rows.kind != Kind.WHOLE)
    would_fit &= (rows.milli >= demand.milli) & (rows.bytes >= demand.gpu_bytes)
    too_few = gpus_that_fit(rows, any_neighbours).sum(axis=1) < demand.gpus
    lacks: list[tuple[Lack, Bools]] = [
        (Lack.TOO_FEW, rows.present.sum(axis=1) < demand.gpus),
        (Lack.TOO_SMALL, (rows.gpu_bytes < demand.gpu_bytes) & bool(demand.gpus)),
        (Lack.CPU, rows.cpu < demand.cpu_milli),
        (Lack.RAM, rows.ram < demand.ram_bytes),
        (
            Lack.SHARED if demand.kind is Kind.SLICED else Lack.SLICED,
            (demand.kind is not Kind.WHOLE) & too_few & (would_fit.sum(axis=1) >= demand.gpus),
        ),
        (Lack.GPU, too_few),
    ]
    if demand.wishes is not None:
        lacks.insert(1, (Lack.NAMED, named.sum(axis=1) < demand.gpus))
        fits = gpus_that_fit(rows, demand).sum(axis=1) >= demand.gpus
        lacks.append((Lack.NEIGHBOURS, ~fits))
    if demand.needs_strength:
        lacks.insert(0, (Lack.WEAK, allocations.hardware.too_weak(demand)))
    if demand.models:
        lacks.insert(0, (Lack.MODEL, ~allocations.hardware.right_model(demand)))
    found = np.full(len(rows.index), None, dtype=object)
    for lack, nodes in reversed(lacks):
        found[nodes] = lack
    return list(found)
