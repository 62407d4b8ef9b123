"""Cards, what is used of them, and the units in which the kubelet counts what is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.names import CORE_UNITS
from aliquot.kubernetes.api.presets import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.api.presets import Preset, Role
    from aliquot.kubernetes.node.held import Held

_LETTERS: dict[Role, str] = {"whole": "g", "shared": "s", "core": "c", "memory": "m", "slot": "n"}
_KINDS: dict[Role, Kind] = {
    "whole": "whole",
    "shared": "shared",
    "core": "sliced",
    "memory": "sliced",
    "slot": "sliced",
}


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU of this node. `why` it is not healthy is empty where it is."""

    uuid: str
    index: int
    memory: int
    why: str = ""

    @property
    def healthy(self) -> bool:
        """Whether new containers may come here."""
        return not self.why

    def __str__(self) -> str:
        return f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource that the kubelet counts in units, one device id each."""

    resource: str
    role: Role
    prefix: str
    memory_unit: int

    def units(self, card: Card, shares: int) -> int:
        """Of a card that is free."""
        return self.free(card, None, Use(), shares)

    def free(self, card: Card, kind: Kind | None, used: Use, shares: int) -> int:
        """Units of a card that is well and has this kind."""
        if kind not in {None, _KINDS[self.role]}:
            return 0
        left = card.memory - used.memory
        match self.role:
            case "whole":
                return 1 if kind is None else 0
            case "shared":
                return min(shares - used.parts, left // (card.memory // shares))
            case "core":
                return CORE_UNITS - used.reserved
            case "memory":
                return left // self.memory_unit
            case "slot":
                return max(0, SLOTS - used.parts)

    def id(self, number: int) -> str:
        """The device id of this number."""
        return f"{self.prefix}{number}"


@dataclass(frozen=True, slots=True)
class Use:
    """What is used of a card; `parts` counts the containers."""

    memory: int = 0
    reserved: int = 0
    parts: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.memory + other.memory, self.reserved + other.reserved, self.parts + other.parts
        )

    def __sub__(self, other: Use) -> Use:
        return Use(
            self.memory - other.memory, self.reserved - other.reserved, self.parts - other.parts
        )

    def most(self, other: Use) -> Use:
        """The larger of both, each figure for itself."""
        return Use(
            max(self.memory, other.memory),
            max(self.reserved, other.reserved),
            max(self.parts, other.parts),
        )


NOTHING = Use()


def offers_of(presets: Iterable[Preset]) -> tuple[Offer, ...]:
    """What these presets let the kubelet count. Ids are short, and unique across resources."""
    found = []
    for number, preset in enumerate(presets):
        first = preset.name[:2] if number else ""
        found += [
            Offer(name, role, f"{first}{_LETTERS[role]}", preset.memory_unit)
            for name, role in preset.roles.items()
        ]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ChainUse:
    """What containers of one pod use of each card, where the kubelet gave ids on between them.

    `most` is what they use at most at any time; `last`, what those use that run in the end.
    """

    most: dict[str, Use]
    last: dict[str, Use]


def use_of(chain: Sequence[Held]) -> ChainUse:
    """Of containers in the order in which the kubelet asked for them.

    The kubelet gives on ids of init containers alone, and those end before the next begins.
    """
    last: dict[str, Use] = {}
    most: dict[str, Use] = {}
    ended = {name for held in chain for name in held.after}
    for held in chain:
        for part in held.parts:
            now = last.get(part.gpu, NOTHING) + Use(part.memory, part.reserved, 1)
            most[part.gpu] = most.get(part.gpu, NOTHING).most(now)
            if held.name not in ended:
                last[part.gpu] = now
    return ChainUse(most, last)


def chains_of(helds: Iterable[Held]) -> list[list[Held]]:
    """Those between which ids were given on together, each in their order."""
    chains: dict[str, list[Held]] = {}
    for held in helds:
        joined = {id(one): one for name in held.after if (one := chains.get(name))}
        chain = [member for one in joined.values() for member in one] + [held]
        for member in chain:
            chains[member.name] = chain
    return list({id(chain): chain for chain in chains.values()}.values())
