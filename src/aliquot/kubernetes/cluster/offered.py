"""The nodes that kube-scheduler offered for a pod, remembered in a bit for each node. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Self

import numpy as np

from aliquot.kubernetes.cluster.cluster import NO_SIZE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.placement.core.snapshot import Bools

NO_ROW = -1


@dataclass(frozen=True, slots=True)
class OfferedNodes:
    """Nodes of a cluster, as of one moment. A node whose agent comes later is one of them.

    `closed` has a bit for each row of a node that was not offered. `layout` is that of the rows: if
    it changes, all nodes count as offered.
    """

    layout: int
    closed: bytes

    @classmethod
    def of(cls, cluster: Cluster, names: Collection[str]) -> Self:
        """The nodes of these names."""
        _ = cluster.chooser  # rows are up to date
        closed = cluster.size_of != NO_SIZE
        rows = rows_of(cluster.rows, names)
        closed[rows[rows != NO_ROW]] = False
        return cls(cluster.layout, np.packbits(closed).tobytes())

    def rows(self, cluster: Cluster) -> Bools:
        """For each row of the allocations, whether it is offered."""
        _ = cluster.chooser
        size = len(cluster.size_of)
        if self.layout != cluster.layout:
            return np.ones(size, dtype=bool)
        closed = np.frombuffer(self.closed, dtype=np.uint8)
        offered: Bools = np.unpackbits(closed, count=size) == 0
        return offered


def rows_of(rows: Mapping[str, int], names: Collection[str]) -> NDArray[np.int64]:
    """The rows of nodes by their names; `NO_ROW` for a node without GPUs."""
    found = map(rows.get, names, repeat(NO_ROW))
    return np.fromiter(found, dtype=np.int64, count=len(names))
