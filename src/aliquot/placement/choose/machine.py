"""The brain on one machine: which of its GPUs answer a request. Needs no numpy.

A card has left the smaller part of its memory and its compute time. A slice goes to a card that is
cut already, the one with the least left that still has enough, so that whole cards stay whole for
those who need all of one. A card in trouble comes last, cut or not: one that a program outside
Aliquot uses, or that has less free than the allocations say, or that lets in one process at a time.
A whole GPU is one that nobody holds, and several GPUs are chosen for the best slowest link among
those that are equally good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.placement.core.links import closest, rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.model import Gpu, Request
    from aliquot.placement.core.links import Links


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU with what a new slice can have of it.

    `unused_bytes` is what the driver itself says nobody uses, `holders` how many slices it has,
    `strangers` whether programs outside every grant use it.
    """

    gpu: Gpu
    bytes_free: int
    percent_left: int
    unused_bytes: int
    holders: int
    strangers: bool = False


def choose_gpus(request: Request, cards: Sequence[Card]) -> list[Gpu] | None:
    """The GPUs for a request, by index, as many as it asks for; None where they are too few."""
    cards = sorted(cards, key=lambda card: card.gpu.index)
    fitting = {number: card for number, card in enumerate(cards) if fits(request, card)}
    if len(fitting) < request.gpus:
        return None
    order = {number: _packed(request, card) for number, card in fitting.items()}
    steps = {key: step for step, key in enumerate(sorted(set(order.values())))}
    left = {number: steps[key] for number, key in order.items()}
    chosen = closest(_links(cards), left, request.gpus)
    return sorted((cards[number].gpu for number in chosen), key=lambda gpu: gpu.index)


def fits(request: Request, card: Card) -> bool:
    """Whether a card has enough left of memory and of compute time."""
    if request.slice_of(card.gpu).reserved_percent > card.percent_left:
        return False
    if request.memory is None:
        return card.holders == 0
    return request.bytes_on(card.gpu) <= card.bytes_free


def _packed(request: Request, card: Card) -> tuple[int, ...]:
    """Smaller is better: not in trouble, then cut already and tight; uncut, the emptiest."""
    if request.memory is None or not card.holders:
        return _in_trouble(request, card), True, -_spare(card)
    return _in_trouble(request, card), False, _spare(card)


def _in_trouble(request: Request, card: Card) -> bool:
    """Whether another card is better, cut or not."""
    not_ours = card.gpu.mig or card.gpu.exclusive
    return card.strangers or not_ours or card.unused_bytes < request.bytes_on(card.gpu)


def _spare(card: Card) -> int:
    """Percent of memory or of compute time, whichever is less."""
    free = min(card.bytes_free, card.unused_bytes)
    return min(100 * free // max(1, card.gpu.memory_bytes), card.percent_left)


def _links(cards: Sequence[Card]) -> Links:
    places = {card.gpu.index: number for number, card in enumerate(cards)}
    table = [[0] * len(cards) for _ in cards]
    for number, card in enumerate(cards):
        for link in card.gpu.links:
            if link.index in places:
                table[number][places[link.index]] = rank(link.kind)
    return tuple(tuple(row) for row in table)
