"""A node's cards, who holds what of them, and how many device ids of each resource are healthy.

Cards come from plans, ids are for counting. The kubelet chooses ids and adds them up; which card a
container gets has nothing to do with them. So an id belongs to a container, or to nobody, and these
hold:

- A card has one kind while somebody holds it, and never more memory or compute given away than it
  has. Where the kubelet gives ids on, from an init container to what runs after it, the larger of
  both counts.
- Healthy are the ids that containers have, and as many others as there are free units: of cards
  that are free or of the resource's own kind, and well. So a card that is locked to a kind leaves
  the counts of the others, an id in use is never unhealthy, and what somebody holds without an id
  (more by a resize; a pod that ended, whose ids the kubelet gave to another while its processes
  still die) is not offered a second time.
- No id ever leaves the list: it only turns unhealthy.

Pure: nothing here reads a clock, a file or the network.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.names import CORE_UNITS
from aliquot.kubernetes.node.units import NOTHING, Card, Use, chains_of, use_of
from aliquot.model import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.node.held import Held, Part
    from aliquot.kubernetes.node.units import Offer


class OverTakenError(Exception):
    """More was to be taken than there is, or a card of another kind."""


class Books:
    """The cards of a node and what is held of them, in the order in which it was given."""

    def __init__(
        self,
        cards: Iterable[Card],
        offers: Sequence[Offer],
        shares: int,
        held: Iterable[Held] = (),
    ) -> None:
        self.cards = {card.uuid: card for card in sorted(cards, key=lambda card: card.index)}
        self.offers = {offer.resource: offer for offer in offers}
        self.shares = shares
        self._last: dict[str, tuple[set[str], list[tuple[str, bool]]]] = {}  # ids, as last told
        self._by_pod: dict[str, list[Held]] | None = None
        self.rewrite(held)

    # --- what there is ----------------------------------------------------------------------------

    def kind(self, gpu: str) -> Kind | None:
        """What a card is locked to; None: it is free."""
        return self._kinds.get(gpu)

    def used(self, gpu: str) -> Use:
        """What is given away of a card."""
        return self._used.get(gpu, NOTHING)

    def holder(self, id_: str) -> str | None:
        """Who has a device id, by the grant's name."""
        return self._holder.get(id_)

    def of_pod(self, uid: str) -> list[Held]:
        """What the containers of a pod hold."""
        if self._by_pod is None:
            self._by_pod = {}
            for held in self.held.values():
                self._by_pod.setdefault(held.owner.uid, []).append(held)
        return list(self._by_pod.get(uid, ()))

    def find(self, resource: str, ids: Iterable[str]) -> Held | None:
        """What was given for exactly these ids, the latest."""
        wanted = tuple(sorted(ids))
        found = (held for held in reversed(self.held.values()) if held.has(resource, wanted))
        return next(found, None)

    def not_beside(self, held: Held) -> list[Held]:
        """Those that the kubelet gave on ids to or from: they never run at the same time."""
        return [
            one for one in self.held.values() if one.name in held.after or held.name in one.after
        ]

    def ends_first(self, held: Held) -> bool:
        """Whether it is an init container's: the kubelet has given on its ids."""
        return any(held.name in one.after for one in self.held.values())

    def free(self, resource: str) -> int:
        """Units that the kubelet may still give."""
        offer = self.offers[resource]
        return sum(
            max(0, offer.free(card, self.kind(card.uuid), self.used(card.uuid), self.shares))
            for card in self.cards.values()
            if card.healthy
        )

    def ids(self, resource: str) -> list[tuple[str, bool]]:
        """All device ids of a resource, and whether each is healthy.

        Those that were healthy stay so, as long as they are as many as they should be.
        """
        in_use = self._in_use.get(resource, set())
        count = len(in_use) + self.free(resource)
        last = self._last.get(resource)
        if last is None or len(last[0]) != count or not in_use <= last[0]:
            names = self._listed(resource)
            free = (id_ for id_ in names if id_ not in in_use)
            healthy = in_use.union(islice(free, count - len(in_use)))
            last = self._last[resource] = (healthy, [(id_, id_ in healthy) for id_ in names])
        return last[1]

    def counts(self) -> dict[str, int]:
        """How many ids of each resource are healthy: what a node has to give, or has given."""
        return {name: len(self._in_use.get(name, ())) + self.free(name) for name in self.offers}

    def left_for(self, held: Held, gpu: str) -> Use:
        """What it could have of a card, were that of the right kind.

        What those have that it gets ids from is there for it: they have ended when it begins.
        """
        capacity = Use(self.cards[gpu].memory, CORE_UNITS, self.shares)
        chain = self._chain(held)
        own = use_of(chain).most.get(gpu, NOTHING)
        beside = use_of([*chain, msgspec.structs.replace(held, parts=())]).last
        return capacity - (self.used(gpu) - own) - beside.get(gpu, NOTHING)

    def fits_kind(self, held: Held, gpu: str) -> bool:
        """Whether it may come to a card, given what the card is used as."""
        if self.kind(gpu) not in {None, held.kind}:
            return False
        return held.kind != "whole" or self.left_for(held, gpu).parts == self.shares

    def why_not(self, held: Held) -> str | None:
        """What keeps it from its cards; None: it can be taken."""
        if len({part.gpu for part in held.parts}) != len(held.parts):
            return "the same GPU twice"
        return next(filter(None, (self._refuses(held, part) for part in held.parts)), None)

    def _refuses(self, held: Held, part: Part) -> str | None:
        card = self.cards.get(part.gpu)
        if card is None:
            return f"there is no GPU {part.gpu}"
        if card.why:
            return f"{card} is not healthy: {card.why}"
        if not self.fits_kind(held, part.gpu):
            return f"{card} is in use as {self.kind(part.gpu)}"
        left = self.left_for(held, part.gpu)
        if left.memory < part.memory or (held.kind == "shared" and left.parts < 1):
            there, asked = format_bytes(max(0, left.memory)), format_bytes(part.memory)
            return f"{card} has {there} of memory left, and {asked} is asked for"
        if held.kind == "sliced" and left.reserved < part.reserved:
            return f"{card} has {left.reserved}% of compute left, {part.reserved}% is asked for"
        return None

    # --- changes ----------------------------------------------------------------------------------

    def take(self, held: Held) -> None:
        """Write in what a container got; OverTakenError where it cannot be, and nothing changes."""
        if why := self.why_not(held):
            raise OverTakenError(why)
        if held.after:
            self.rewrite([*self.held.values(), held])
        else:
            self._append(held)

    def change(self, to: Held) -> None:
        """Put another in the place of what a grant holds; growth is checked as by `take`."""
        before = self.held[to.name]
        if (to.parts, to.units) == (before.parts, before.units):
            self._rename(to)
            return
        grows = any(
            new.memory > old.memory or new.reserved > old.reserved
            for new, old in zip(to.parts, before.parts, strict=True)
        )
        mark = self.mark()
        if grows:
            self.release(to.name)
            why = self.why_not(to)
            self.reset(mark)
            if why:
                raise OverTakenError(why)
        self.rewrite(to if held.name == to.name else held for held in list(self.held.values()))

    def strip(self, resource: str, ids: Iterable[str], but: Iterable[Held] = ()) -> None:
        """Take ids from who has them: the kubelet has the last word, and gave them to another."""
        gone, kept = frozenset(ids), {held.name for held in but}
        now = [
            held if held.name in kept else _without(held, resource, gone)
            for held in self.held.values()
        ]
        if any(new is not old for new, old in zip(now, self.held.values(), strict=True)):
            self.rewrite(now)

    def release(self, name: str) -> None:
        """Take out what a grant holds."""
        self.rewrite(held for held in list(self.held.values()) if held.name != name)

    def rewrite(self, held: Iterable[Held]) -> None:
        """Write all anew; nothing is checked."""
        self.held = {one.name: one for one in held}
        self._by_pod = None
        self._holder: dict[str, str] = {}
        self._in_use: dict[str, set[str]] = {}
        self._kinds: dict[str, Kind] = {}
        for one in self.held.values():
            self._index(one)
        self._chains = chains_of(self.held.values())
        self._used: dict[str, Use] = {}
        for chain in self._chains:
            self._add_use(chain)

    def _append(self, held: Held) -> None:
        """The same for one more, with no ids that were given on."""
        self.held[held.name] = held
        self._by_pod = None
        self._index(held)
        self._chains.append([held])
        self._add_use([held])

    def _rename(self, held: Held) -> None:
        """The same where nothing has changed that counts."""
        old = self.held[held.name]
        self.held[held.name] = held
        self._by_pod = None
        self._chains = [[held if one is old else one for one in chain] for chain in self._chains]

    def _index(self, held: Held) -> None:
        for resource, ids in held.units.items():
            self._in_use.setdefault(resource, set()).update(ids)
            self._holder.update(dict.fromkeys(ids, held.name))
        for part in held.parts:
            self._kinds[part.gpu] = held.kind

    def _add_use(self, chain: Sequence[Held]) -> None:
        for gpu, use in use_of(chain).most.items():
            self._used[gpu] = self._used.get(gpu, NOTHING) + use

    def set_health(self, gpu: str, why: str) -> bool:
        """A card turned sick, or well again (`why` empty); whether that is new."""
        card = self.cards[gpu]
        self.cards[gpu] = Card(card.uuid, card.index, card.memory, why)
        return why != card.why

    def mark(self) -> list[Held]:
        """What is written now, to come back to."""
        return list(self.held.values())

    def reset(self, mark: list[Held]) -> None:
        """As it was then."""
        self.rewrite(mark)

    # --- inside -----------------------------------------------------------------------------------

    def _chain(self, held: Held) -> list[Held]:
        """All that are of its pod by the ids it is given on, in their order; without itself."""
        return [
            one
            for chain in self._chains
            if any(one.name in held.after or one.name == held.name for one in chain)
            for one in chain
            if one.name != held.name
        ]

    def _listed(self, resource: str) -> list[str]:
        """All ids: one for each unit, and whatever somebody has since there were more."""
        offer = self.offers[resource]
        units = sum(offer.units(card, self.shares) for card in self.cards.values())
        in_use = (int(id_[len(offer.prefix) :]) for id_ in self._in_use.get(resource, ()))
        return [offer.id(number) for number in range(max(units, 1 + max(in_use, default=-1)))]


def _without(held: Held, resource: str, ids: frozenset[str]) -> Held:
    if ids.isdisjoint(held.units.get(resource, ())):
        return held
    left = tuple(id_ for id_ in held.units[resource] if id_ not in ids)
    units = {**held.units, resource: left}
    return msgspec.structs.replace(held, units={name: some for name, some in units.items() if some})
