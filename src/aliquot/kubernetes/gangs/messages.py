"""What people are told of gangs: why they wait and until when, and how near their members are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.api.times import clock
from aliquot.placement.core.demand import Kind
from aliquot.placement.core.links import Reach
from aliquot.placement.core.topology import slowest_link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Placement, Running
    from aliquot.placement.core.snapshot import Hardware


def asked(gang: Gang) -> str:
    """How much."""
    count = gang.milli / 1000
    return "1 GPU asked" if count == 1 else f"{count:g} GPUs asked"


def why_later(
    gang: Gang,
    allocations: Allocations,
    promise: Running | None,
    running: Sequence[Running],
    now: float,
) -> str:
    """Why a gang waits, and until when: "4 GPUs asked; 2 free; planned for about 14:05 UTC"."""
    text = f"{asked(gang)}; {_free(allocations)}"
    if promise is None:
        return text
    text += f"; planned for about {clock(promise.start, now)}"
    after = _before(promise, running)
    return f"{text}, after {after}" if after else text


def _free(allocations: Allocations) -> str:
    hardware = allocations.hardware
    free = (hardware.present & (allocations.kind == Kind.FREE)).sum(axis=1)
    text = f"{int(free.sum())} free"
    rows = hardware.present.any(axis=1)
    if len(np.unique(hardware.rack[rows])) in {0, 1, int(rows.sum())}:
        return text  # no racks are known, or all is in one
    return f"{text}, {int(np.bincount(hardware.rack, weights=free).max())} of them in one rack"


def _before(promise: Running, running: Sequence[Running]) -> str:
    """What must end first where a gang is to go: the last of it."""
    nodes = {one.node for one in promise.placements}
    first = sorted(
        (
            one
            for one in running
            if one.end <= promise.start and nodes & {place.node for place in one.placements}
        ),
        key=lambda one: (one.end, one.gang.name),
    )
    if not first:
        return ""
    others = len(first) - 1
    more = "" if not others else f" and {others} other{'s' if others > 1 else ''}"
    return f"{first[-1].gang.name}{more}"


def nearness(hardware: Hardware, placements: Sequence[Placement]) -> str:
    """How near members are to each other."""
    rows = sorted({one.node for one in placements})
    link = slowest_link(hardware, placements)
    if len(rows) == 1:
        gpus = {gpu for one in placements for gpu in one.gpus}
        return "one node, NVLink" if link >= Reach.NVLINK and len(gpus) > 1 else "one node"
    racks, blocks = set(hardware.rack[rows].tolist()), set(hardware.block[rows].tolist())
    if len(racks) == 1:
        return f"{len(rows)} nodes of one rack"
    if len(blocks) > 1:
        return f"{len(blocks)} blocks"
    named = len(np.unique(hardware.block)) > 1
    many = f"{len(racks)} racks" if len(racks) < len(rows) else f"{len(rows)} nodes"
    return f"{many} of one block" if named else many
