"""How near the members of a gang are: by links on one node, else by rack and block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.placement.core.links import Reach, slowest_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.placement.core.demand import Placement
    from aliquot.placement.core.snapshot import Hardware


def slowest_link(hardware: Hardware, placements: Sequence[Placement]) -> int:
    """The slowest link of a gang."""
    by_node: dict[int, set[int]] = {}
    for one in placements:
        by_node.setdefault(one.node, set()).update(one.gpus)
    within = [slowest_within(hardware.links[n], sorted(g)) for n, g in by_node.items()]
    return min([*within, across(hardware, list(by_node))])


def across(hardware: Hardware, nodes: Sequence[int]) -> int:
    """The slowest way between these nodes."""
    if len(nodes) < 2:
        return int(Reach.ITSELF)
    if len({int(hardware.rack[node]) for node in nodes}) == 1:
        return int(Reach.RACK)
    if len({int(hardware.block[node]) for node in nodes}) == 1:
        return int(Reach.BLOCK)
    return int(Reach.APART)
