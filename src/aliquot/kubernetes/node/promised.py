"""The room that is promised: what pods have by their plans that were bound here and wait.

The scheduler has chosen cards for such a pod, and the kubelet has not asked for it yet: between the
two the books do not know of it. A plan counts as far as the agent would follow it: for as much as
the pod asks for, on cards that have it. So a forged one promises nothing that its pod would not be
given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.node.books import Books
from aliquot.kubernetes.node.held import Held, Settings
from aliquot.kubernetes.node.match import Wanted
from aliquot.kubernetes.node.place import parts_on, planned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aliquot.kubernetes.node.roster import Guest


def with_promised(books: Books, guests: Iterable[Guest]) -> Books:
    """The books as they will be once these pods have what their plans say."""
    after = Books(books.cards.values(), tuple(books.offers.values()), books.shares, books.mark())
    for guest in guests:
        if guest.live and guest.waits:
            for held in _promised(after, guest):
                if after.why_not(held) is None:
                    after.take(held)
    return after


def _promised(books: Books, guest: Guest) -> Iterator[Held]:
    """What a pod's containers will hold that hold nothing yet, in their order."""
    has = {held.owner.container: held for held in books.of_pod(guest.uid)}
    before: list[tuple[str, frozenset[str]]] = []  # its init containers: grant and resources
    for request in guest.requests:
        resources = frozenset(dict(request.units))
        held = has.get(request.container)
        if held is None:
            wanted = Wanted(guest, request)
            gpus = planned(books, request, wanted.plan)
            given_on = tuple(name for name, others in before if resources & others)
            held = _held(books, wanted, gpus, given_on)
            if gpus:
                yield held
        if request.init:
            before.append((held.name, resources))


def _held(books: Books, wanted: Wanted, gpus: tuple[str, ...], after: tuple[str, ...]) -> Held:
    parts = parts_on(books, wanted.request, gpus)
    settings = Settings(tuple(part.memory for part in parts), wanted.request.compute)
    return Held(
        name=f"promised-{wanted.guest.uid}-{wanted.request.container}",
        owner=wanted.owner,
        kind=wanted.request.kind,
        parts=parts,
        asked=settings,
        now=settings,
        units={},
        by="",
        after=after,
    )
