"""Every way there is, tried: slow, plain and independent of what it judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from aliquot.placement.books import Books
from aliquot.placement.demand import Demand, Placement


def placements(books: Books, demand: Demand) -> Iterator[Placement]:
    for node in range(books.hardware.size):
        for gpus in combinations(range(int(books.hardware.gpu_count[node])), demand.gpus):
            placement = Placement(node, gpus)
            if books.fits(placement, demand):
                yield placement


def can_place(books: Books, members: Sequence[Demand]) -> bool:
    if not members:
        return True
    for placement in placements(books, members[0]):
        books.take(placement, members[0])
        found = can_place(books, members[1:])
        books.give(placement, members[0])
        if found:
            return True
    return False
