"""Every way to place a few requests: a search that can be bounded.

Ways that differ only in which of two GPUs in the same state they take are one way, the tightest
GPUs come first, and the largest request is placed first; those that ask to be with others are
placed after all that do not. A search that ends before its steps are
used up and finds nothing has shown that there is no way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.core.demand import Demand, Placement
from aliquot.placement.core.fit import gpus_that_fit, nodes_that_fit, rows_of
from aliquot.placement.core.links import closest, picks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.fit import Rows
    from aliquot.placement.core.snapshot import Ints
    from aliquot.placement.core.wishes import Wishes


@dataclass(slots=True)
class Steps:
    """How many more ways a search may try; below 0 it has given up."""

    remaining: int


@dataclass(frozen=True, slots=True)
class GpuSet:
    """Some GPUs of one node."""

    node: int
    gpus: Collection[int]


def search(
    trial: Allocations,
    members: Sequence[Demand],
    steps: Steps,
    within: GpuSet | None = None,
    nodes: Ints | None = None,
) -> tuple[Placement, ...] | None:
    """Placements for all members, in their order; None where none was found. Takes nothing.

    On any node, on these nodes, or within a part of one.
    """
    if within is not None:
        nodes = np.array([within.node])
    elif nodes is None:
        nodes = np.arange(trial.hardware.size)
    order = sorted(range(len(members)), key=lambda i: members[i].turn)
    wishes = tuple({one.wishes: None for one in members if one.wishes is not None})
    found: list[Placement] = []

    def descend(depth: int) -> bool:
        if depth == len(order):
            return True
        member = members[order[depth]]
        for placement in _ways(trial, member, nodes, within, wishes):
            steps.remaining -= 1
            if steps.remaining < 0:
                return False
            trial.take(placement, member, known_to_fit=True)
            found.append(placement)
            done = descend(depth + 1)
            trial.give(placement, member)
            if done:
                return True
            found.pop()
        return False

    if not descend(0):
        return None
    by_member = dict(zip(order, found, strict=True))
    return tuple(by_member[i] for i in range(len(members)))


def _ways(
    trial: Allocations,
    demand: Demand,
    index: Ints,
    within: GpuSet | None,
    wishes: Sequence[Wishes],
) -> Iterator[Placement]:
    """Placements of one member; `wishes` are those of all members."""
    rows = rows_of(trial, index)
    fits = gpus_that_fit(rows, demand)
    nodes = trial.hardware.nodes_for(demand)
    for row in np.flatnonzero(nodes_that_fit(rows, demand, fits, nodes)):
        node = int(index[row])
        gpus = [int(gpu) for gpu in np.flatnonzero(fits[row])]
        if within is not None:
            gpus = [gpu for gpu in gpus if gpu in within.gpus]
        alike = _alike(rows, int(row), gpus, wishes)
        if len(alike) == 1 and len(gpus) >= demand.gpus:
            left = dict.fromkeys(gpus, 0)
            yield Placement(node, closest(trial.hardware.links[node], left, demand.gpus))
            continue
        for chosen in picks(alike, demand.gpus):
            yield Placement(node, tuple(sorted(chosen)))


def _alike(rows: Rows, row: int, gpus: Sequence[int], wishes: Sequence[Wishes]) -> list[list[int]]:
    """GPUs in groups of one state, those with the least left first."""
    groups: dict[tuple[int, int, int, object], list[int]] = {}
    for gpu in gpus:
        for_wishes = _seen_by(rows.source, int(rows.index[row]), gpu, wishes) if wishes else None
        free = int(rows.milli[row, gpu]), int(rows.bytes[row, gpu]), int(rows.kind[row, gpu])
        turns = rows.source.turns.on(int(rows.index[row]))
        here = None if turns is None else turns.on(gpu)
        groups.setdefault((*free, (for_wishes, here)), []).append(gpu)
    return [groups[state] for state in sorted(groups, key=lambda state: state[:3])]


def _seen_by(trial: Allocations, node: int, gpu: int, wishes: Sequence[Wishes]) -> object:
    """What tells one GPU from another for demands with these wishes."""
    uuids = trial.hardware.uuids[node]
    uuid = uuids[gpu] if gpu < len(uuids) else ""
    return trial.marks.on(node, gpu), tuple(one.selects(uuid) for one in wishes)
