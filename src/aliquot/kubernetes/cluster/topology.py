"""The racks and blocks of nodes, and which pods a node accepts; cached while nodes do not change.

Every decision asks for these, and labels, taints and GPUs of nodes change seldom: results are
computed again only after such a change. No input or output.
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

CONSTRAINTS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels that name a node's rack and block; the first one that a node has counts."""

    racks: tuple[str, ...] = RACKS
    blocks: tuple[str, ...] = BLOCKS

    @classmethod
    def preferring(cls, rack: str = "", block: str = "") -> Labels:
        """The usual labels after these two; an empty one is left out."""
        return cls((rack, *RACKS) if rack else RACKS, (block, *BLOCKS) if block else BLOCKS)


class Topology:
    """Racks, blocks and accepted pods for all rows of a cluster's allocations."""

    def __init__(
        self, cluster: Cluster, nodes: Callable[[], Mapping[str, Node]], labels: Labels
    ) -> None:
        self.cluster = cluster
        self._nodes = nodes
        self._labels = labels
        self._seen: dict[str, Node | None] = {}
        self._base: Hardware | None = None
        self._hardware: Hardware | None = None
        self._accepting: dict[NodeConstraints, Bools] = {}

    def hardware(self) -> Hardware:
        """The cluster's hardware, with racks and blocks."""
        self._refresh()
        if self._hardware is None:
            self._hardware = self._with_racks(self.cluster.chooser.allocations.hardware)
        return self._hardware

    def allowed_rows(self, limits: NodeConstraints) -> Bools:
        """The rows of nodes that accept pods of these constraints."""
        self._refresh()
        found = self._accepting.get(limits)
        if found is None:
            found = np.ones(self.cluster.chooser.allocations.hardware.size, dtype=bool)
            for name, row in self.cluster.rows.items():
                found[row] = limits.allow(name, self._seen.get(name))
            while len(self._accepting) >= CONSTRAINTS_KEPT:
                del self._accepting[next(iter(self._accepting))]
            self._accepting[limits] = found
        return found

    def untolerated_taints(self, limits: NodeConstraints) -> set[str]:
        """The taints of nodes with GPUs that pods of these constraints do not tolerate."""
        self._refresh()
        nodes = ((name, self._seen.get(name)) for name in self.cluster.rows)
        return {
            taint
            for name, node in nodes
            if node is not None
            for taint in limits.untolerated_taints(name, node)
        }

    def _refresh(self) -> None:
        """Drop cached results if a node has changed."""
        base, nodes = self.cluster.chooser.allocations.hardware, self._nodes()
        same = base is self._base
        self._base = base
        for name in self.cluster.rows:
            before, now = self._seen.get(name), nodes.get(name)
            if before is not now:
                self._seen[name] = now
                same = same and _relevant(before) == _relevant(now)
        if not same:
            self._hardware = None
            self._accepting.clear()
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


def _relevant(node: Node | None) -> object:
    """The part of a Node that results depend on."""
    return None if node is None else (node.metadata.labels, node.spec)
