"""A node's GPUs as `placement` knows them, before anything runs there. Pure.

kube-scheduler checks the CPU and memory of nodes: here every node has more than enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model.strength import strength_of
from aliquot.placement.core.demand import WHOLE_MILLI, Kind
from aliquot.placement.core.links import rank
from aliquot.placement.core.snapshot import NodeHardware

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aliquot.kubernetes.api import plan
    from aliquot.kubernetes.api.gpunode import NodeGpu
    from aliquot.kubernetes.api.objects import GpuNode
    from aliquot.placement.core.links import Links

ENOUGH = 1 << 40

KINDS: dict[plan.Kind, Kind] = {
    "whole": Kind.WHOLE,
    "shared": Kind.SHARED,
    "sliced": Kind.SLICED,
}
MIXED = " + "  # between the models of a node that has several
CLASS = "\0"  # between the name of a model and the number of its nodes' class


def spec_of(node: GpuNode) -> NodeHardware:
    """The empty node. If its GPUs differ, all count as the smallest and weakest."""
    gpus = node.status.gpus
    return NodeHardware(
        name=node.metadata.name,
        gpus=len(gpus),
        model=MIXED.join(sorted({one.model for one in gpus})),
        cpu_milli=ENOUGH,
        ram_bytes=ENOUGH,
        gpu_bytes=min((one.memory for one in gpus), default=0),
        links=_links(gpus),
        strength=min((one.strength or strength_of(one.model) for one in gpus), default=0.0),
        unhealthy=frozenset(column for column, one in enumerate(gpus) if not one.healthy),
        uuids=tuple(one.uuid for one in gpus),
    )


Ranked = tuple[str, float]  # a model, and a strength that nodes with it have


def strength_ranks(nodes: Iterable[NodeHardware]) -> dict[Ranked, float]:
    """The rank of each model, the weakest first; at equal strength the smallest memory is first.

    Nodes of one model to which people gave another strength have a rank of their own.
    """
    keys: dict[Ranked, tuple[float, int, str]] = {}
    for one in nodes:
        key = one.strength, one.gpu_bytes, one.model
        keys[ranked(one)] = max(keys.get(ranked(one), key), key)
    return {one: float(rank) for rank, one in enumerate(sorted(keys, key=keys.__getitem__))}


def ranked(node: NodeHardware) -> Ranked:
    """What a node's rank goes by."""
    return node.model, node.strength


def milli_of(kind: plan.Kind, reserved: int, shares: int) -> int:
    """Thousandths of a GPU that a part of this kind takes."""
    if kind == "whole":
        return WHOLE_MILLI
    return WHOLE_MILLI // shares if kind == "shared" else 10 * reserved


def _links(gpus: Iterable[NodeGpu]) -> Links:
    """The rank of the link between each pair of GPUs; empty if no GPU reports links."""
    every = tuple(gpus)
    if not any(one.links for one in every):
        return ()
    columns = {one.index: column for column, one in enumerate(every)}
    table = [[0] * len(every) for _ in every]
    for column, one in enumerate(every):
        for link in one.links:
            if link.gpu in columns:
                table[column][columns[link.gpu]] = rank(link.kind)
    return tuple(tuple(row) for row in table)
