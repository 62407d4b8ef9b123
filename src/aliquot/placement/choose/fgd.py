"""Fragmentation gradient descent, as a reference ("Beware of Fragmentation", USENIX ATC 2023).

A node's fragmentation for one demand is what is left of the GPUs that the demand cannot use: all of
them where the node cannot hold it, else those GPUs that are too small for a part of it. A node's
fragmentation is the mean over the mix. The place is taken where it falls most or grows least, in
whole points of 100 / (1 + exp(-fall / 1000)). Ties between nodes are decided by what is
left of them (three parts CPU, seven parts GPU, the least first): without that, a mix in which no
demand needs a whole GPU leaves most choices to chance. The authors' simulator takes the first of
them by name, which packs too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aliquot.placement.choose.lowest import lowest, tightest
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aliquot.placement.choose.forecast import Mix
    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.snapshot import Bools, Hardware, Ints

    Floats = NDArray[np.float64]

_SCALE = 1000.0
_TIE = 1e-4
_CPU_PART = 0.3


class Fgd:
    """The gradient of the expected fragmentation."""

    lean = 1
    about = 0.0

    def __init__(self, hardware: Hardware, mix: Mix) -> None:
        shapes = list(mix)
        weights = np.array([mix[shape] for shape in shapes])
        self._weight = weights / weights.sum()
        parts = np.array([_part(shape) for shape in shapes], dtype=np.int64)
        self._sizes, self._size_of = np.unique(parts, return_inverse=True)
        self._gpus = np.array([shape.gpus for shape in shapes], dtype=np.int64)
        self._cpu = np.array([shape.cpu_milli for shape in shapes], dtype=np.int64)
        self._ram = np.array([shape.ram_bytes for shape in shapes], dtype=np.int64)
        self._access = np.array(
            [hardware.suiting_models(shape) for shape in shapes], dtype=bool
        ).T.reshape(len(hardware.models), len(shapes))
        self._most_cpu = max(1, int(hardware.cpu_milli.max(initial=0)))
        self._most_gpu = WHOLE_MILLI * max(1, int(hardware.gpu_count.max(initial=0)))

    def prepare(self, rows: Rows) -> tuple[NDArray[Any], ...]:  # noqa: ARG002 - Strategy
        """Nothing."""
        return ()

    def one(self, rows: Rows, demand: Demand, fits: Bools) -> tuple[Floats, Ints]:
        """For each GPU that fits and differs from those before it; the others cost no less."""
        left = np.where(rows.present, rows.size_left, 0)
        tried = fits & _first_of_its_size(rows, left, fits)
        row, gpu = np.nonzero(tried)
        after = left[row].copy()
        after[np.arange(len(row)), gpu] -= _part(demand)
        fall = self._measure(rows, left)[row] - self._measure(
            rows, after, row, demand.cpu_milli, demand.ram_bytes
        )
        cost = np.full(fits.shape, np.inf)
        cost[row, gpu] = _points(fall) + self._tie(rows, left)[row]
        return lowest(cost, rows, demand, fits)

    def several(self, rows: Rows, demand: Demand, fits: Bools) -> Floats:
        """The same for a set of GPUs."""
        chosen = tightest(rows, demand, fits)
        left = np.where(rows.present, rows.size_left, 0)
        after = left - chosen * _part(demand)
        every = np.arange(len(rows.index))
        later = self._measure(rows, after, every, demand.cpu_milli, demand.ram_bytes)
        return _points(self._measure(rows, left) - later) + self._tie(rows, left)

    def _tie(self, rows: Rows, left: Ints) -> Floats:
        share = _CPU_PART * rows.cpu / self._most_cpu
        return np.asarray(_TIE * (share + (1 - _CPU_PART) * left.sum(axis=1) / self._most_gpu))

    def _measure(
        self, rows: Rows, left: Ints, row: Ints | None = None, cpu: int = 0, ram: int = 0
    ) -> Floats:
        """The fragmentation of these states, which are rows (all, or these) less CPU and memory."""
        index = np.arange(len(left)) if row is None else row
        holds = (rows.cpu[index, None] - cpu >= self._cpu) & self._access[rows.model[index]]
        holds &= rows.ram[index, None] - ram >= self._ram
        holds &= self._gpus > 0
        small = left[:, None, :] < self._sizes[None, :, None]
        enough = left.shape[1] - small.sum(axis=2)
        lost = np.einsum("rg,rsg->rs", left, small)
        holds &= enough[:, self._size_of] >= self._gpus
        lost_by_shape = np.where(holds, lost[:, self._size_of], left.sum(axis=1)[:, None])
        return np.asarray(lost_by_shape @ self._weight, dtype=np.float64)


def _part(demand: Demand) -> int:
    if not demand.gpus:
        return 0
    return WHOLE_MILLI if demand.kind is Kind.WHOLE else demand.milli


def _points(fall: Floats) -> Floats:
    return np.asarray(-np.floor(100 / (1 + np.exp(-fall / _SCALE))), dtype=np.float64)


def _first_of_its_size(rows: Rows, left: Ints, fits: Bools) -> Bools:
    """Which GPUs have none before them that fits and has as much left."""
    key = np.where(rows.free, -1 - left, left)
    same = key[:, :, None] == key[:, None, :]
    earlier = np.tri(left.shape[1], k=-1, dtype=bool)
    return np.asarray(~(same & earlier & fits[:, None, :]).any(axis=2))
