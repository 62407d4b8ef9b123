"""The nodes as gangs see them: rack, block, and which pods may go there; kept while nodes stay so.

Nodes change seldom, in labels, taints and GPUs, and are asked about with every decision. So what
follows from them is made anew only when one of them is another. No input or output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.cluster.constraints import BLOCKS, RACKS, label_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.kubernetes.api.objects import Node
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.constraints import NodeConstraints
    from aliquot.placement.core.snapshot import Bools, Hardware

LIMITS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Labels:
    """Which labels of nodes name their rack and their block; the first that one has counts."""

    racks: tuple[str, ...] = RACKS
    blocks: tuple[str, ...] = BLOCKS


class Topology:
    """All rows of a cluster's allocations, by what their nodes say."""

    def __init__(
        self, cluster: Cluster, nodes: Callable[[], Mapping[str, Node]], labels: Labels
    ) -> None:
        self.cluster = cluster
        self._nodes = nodes
        self._labels = labels
        self._seen: dict[str, Node | None] = {}
        self._base: Hardware | None = None
        self._hardware: Hardware | None = None
        self._open: dict[NodeConstraints, Bools] = {}

    def hardware(self) -> Hardware:
        """The cluster's, with racks and blocks."""
        self._look()
        if self._hardware is None:
            self._hardware = self._with_racks(self.cluster.chooser.allocations.hardware)
        return self._hardware

    def open_to(self, limits: NodeConstraints) -> Bools:
        """The rows of nodes that pods of these limits may go to."""
        self._look()
        found = self._open.get(limits)
        if found is None:
            found = np.ones(self.cluster.chooser.allocations.hardware.size, dtype=bool)
            for name, row in self.cluster.rows.items():
                found[row] = limits.allow(name, self._seen.get(name))
            while len(self._open) >= LIMITS_KEPT:
                del self._open[next(iter(self._open))]
            self._open[limits] = found
        return found

    def kept_by(self, limits: NodeConstraints) -> set[str]:
        """The taints that keep pods of these limits from nodes with GPUs."""
        self._look()
        nodes = ((name, self._seen.get(name)) for name in self.cluster.rows)
        return {
            taint
            for name, node in nodes
            if node is not None
            for taint in limits.kept_by(name, node)
        }

    def _look(self) -> None:
        """Forget what is no longer so."""
        base, nodes = self.cluster.chooser.allocations.hardware, self._nodes()
        same = base is self._base
        self._base = base
        for name in self.cluster.rows:
            before, now = self._seen.get(name), nodes.get(name)
            if before is not now:
                self._seen[name] = now
                same = same and _says(before) == _says(now)
        if not same:
            self._hardware = None
            self._open.clear()
            self._seen = {name: self._seen.get(name) for name in self.cluster.rows}

    def _with_racks(self, hardware: Hardware) -> Hardware:
        racks: dict[tuple[str, str], int] = {}
        blocks: dict[str, int] = {}
        rack, block = np.zeros_like(hardware.rack), np.zeros_like(hardware.block)
        for row, name in enumerate(hardware.names):
            node = self._seen.get(name)
            there = label_of(node, self._labels.blocks)
            block[row] = blocks.setdefault(there, len(blocks))
            here = there, label_of(node, self._labels.racks) or name
            rack[row] = racks.setdefault(here, len(racks))
        return replace(hardware, rack=rack, block=block)


def _says(node: Node | None) -> object:
    """What of a node is looked at."""
    return None if node is None else (node.metadata.labels, node.spec)
