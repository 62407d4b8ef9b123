"""On which cards a container comes: those of its plan, or the brain's choice where there is none.

A plan is a hint. One that cannot be followed (another container of the same size was quicker, a
card turned sick) is replaced by a choice, and what was given in the end is in `GPUNode`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from aliquot.kubernetes.node.held import Part
from aliquot.model import Amount, Request, format_bytes
from aliquot.model.errors import NoRoomError
from aliquot.placement.choose.machine import GpuCapacity as Choice
from aliquot.placement.choose.machine import choose_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.plan import ContainerPlan
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.books import Books
    from aliquot.kubernetes.node.held import Held
    from aliquot.kubernetes.node.units import Card
    from aliquot.model import Gpu


def parts_on(books: Books, request: ContainerRequest, gpus: tuple[str, ...]) -> tuple[Part, ...]:
    """What the request means on these cards."""
    return tuple(
        Part(gpu, request.memory_of(books.cards[gpu].memory, books.shares), request.reserved)
        for gpu in gpus
    )


def planned(books: Books, request: ContainerRequest, plan: ContainerPlan | None) -> tuple[str, ...]:
    """The cards of a plan, where it is one for this request and this node."""
    if plan is None or plan.kind != request.kind or len(plan.gpus) != request.gpus:
        return ()
    return plan.gpus if all(gpu in books.cards for gpu in plan.gpus) else ()


def chosen(
    books: Books, gpus: Mapping[str, Gpu], shape: Held, request: ContainerRequest
) -> tuple[str, ...]:
    """The brain's choice; NoRoomError says what there is.

    `shape` has the container's ids. Cards of init containers that these are given on from come
    first.
    """
    asked = _asked(request, books.shares)
    usable = [
        card for card in books.cards.values() if _is_usable(books, gpus, shape, request, card)
    ]
    own = {part.gpu for held in books.not_beside(shape) for part in held.parts}
    for cards in ([card for card in usable if card.uuid in own], usable):
        found = choose_gpus(asked, [_choice(books, gpus, shape, card) for card in cards])
        if found is not None:
            return tuple(gpu.uuid for gpu in found)
    figures = "; ".join(_figure(books, card) for card in books.cards.values())
    raise NoRoomError(f"no room for {request} ({figures})")


def _asked(request: ContainerRequest, shares: int) -> Request:
    if request.kind == "whole":
        return Request(gpus=request.gpus)
    if request.kind == "shared":
        return Request(gpus=request.gpus, memory=Amount(percent=Fraction(100, shares)))
    part = Fraction(request.memory_percent) if request.memory_percent else None
    memory = Amount(percent=part) if part else Amount(bytes=request.memory)
    return Request(
        gpus=request.gpus,
        memory=memory,
        compute_percent=request.compute,
        priority=request.priority,
    )


def _is_usable(
    books: Books, gpus: Mapping[str, Gpu], shape: Held, request: ContainerRequest, card: Card
) -> bool:
    model = gpus[card.uuid].model.lower() if card.uuid in gpus else ""
    right = not request.models or any(word.lower() in model for word in request.models)
    return card.healthy and right and books.fits_kind(shape, card.uuid)


def _choice(books: Books, gpus: Mapping[str, Gpu], shape: Held, card: Card) -> Choice:
    left = books.left_for(shape, card.uuid)
    gpu = gpus[card.uuid]
    return Choice(
        gpu=gpu,
        bytes_free=left.memory,
        percent_free=left.reserved,
        unused_bytes=max(0, gpu.memory_bytes - gpu.used_bytes),
        holders=books.shares - left.parts,
    )


def _figure(books: Books, card: Card) -> str:
    if card.why:
        return f"{card}: not healthy"
    used, kind = books.used(card.uuid), books.kind(card.uuid)
    left = format_bytes(card.memory - used.memory)
    return f"{card}: {kind}, {left} and {100 - used.reserved}% left" if kind else f"{card}: free"
