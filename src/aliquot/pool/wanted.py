"""What idle grants shall give up for those that wait: `control.want` tells the arbiter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.model.errors import NoCapacityError
from aliquot.pool.capacity import place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from aliquot.model import Grant, Request, Slice
    from aliquot.pool.capacity import MachinePlan


def wanted_slices(
    plan: MachinePlan, request: Request, count: int = 1, parked: Collection[Grant] = ()
) -> list[Slice]:
    """The slices that `count` workers, or these parked ones, get if idle grants are parked.

    Empty if nothing is gained: they do not fit then either, or no grant is idle.
    """
    left = plan.without_idle()
    if left is plan:
        return []
    try:
        placed = place(left, request, count, parked)
    except NoCapacityError:
        return []
    before = len(left.grants)
    return _summed(part for grant in placed.grants[before:] for part in grant.slices)


def _summed(slices: Iterable[Slice]) -> list[Slice]:
    """One slice for each GPU."""
    found: dict[str, Slice] = {}
    for part in slices:
        has = found.get(part.gpu_uuid)
        found[part.gpu_uuid] = part if has is None else _added(has, part)
    return list(found.values())


def _added(one: Slice, other: Slice) -> Slice:
    return replace(
        one,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        compute_percent=min(100, one.compute_percent + other.compute_percent),
    )
