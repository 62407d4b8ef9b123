"""Cards and what containers hold of them, in few words."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import support
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.node.held import Held, Owner, Part, Settings
from aliquot.kubernetes.node.units import Card

if TYPE_CHECKING:
    from aliquot.kubernetes.api.plan import Kind

GPU, SGPU = "aliquot.io/gpu", "aliquot.io/sgpu"
MEMORY, CORE = "aliquot.io/vcuda-memory", "aliquot.io/vcuda-core"

_names = itertools.count()


def make_card(index: int, units: int = 86, *, more: int = 0) -> Card:
    """A card of so many memory units, and some bytes that are no unit."""
    return Card(support.uuid_of(index), index, units * MEMORY_UNIT + more)


def make_owner(uid: str, container: str = "") -> Owner:
    return Owner(uid, "default", f"pod-{uid}", container)


def make_held(
    kind: Kind,
    cards: list[Card],
    owner: str = "a",
    *,
    units: dict[str, list[str]],
    memory: int = 0,
    core: int = 0,
    shares: int = 2,
    container: str = "main",
    after: tuple[Held, ...] = (),
) -> Held:
    """`memory` and `core` are units on each card."""
    parts = tuple(
        Part(
            card.uuid,
            {"whole": card.memory, "shared": card.memory // shares}.get(kind, memory * MEMORY_UNIT),
            core,
        )
        for card in cards
    )
    settings = Settings(tuple(part.memory for part in parts), core)
    return Held(
        name=f"grant-{next(_names)}",
        owner=make_owner(owner, container),
        kind=kind,
        parts=parts,
        asked=settings,
        now=settings,
        units={name: tuple(sorted(ids)) for name, ids in units.items() if ids},
        after=tuple(one.name for one in after),
        by=next((name for name in (MEMORY, GPU, SGPU) if name in units), ""),
    )
