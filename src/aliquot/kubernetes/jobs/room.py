"""Whether jobs of these sizes would fit on the cluster together: the room of `placement.elastic`.

Who keeps its size stays where it is. A job that changes it gives back what its workers have, all of
them or, where it changes size as it runs, those of the highest ranks, and is placed anew as a gang.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.placement.demand import Gang, Kind, Running
from aliquot.placement.gangs import plan_gang

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Demand
    from aliquot.placement.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Party:
    """A job, or something else that waits: `members` are the demands of each of its units.

    `held` is what its workers have, by rank. `size` is what it has in place: None where it is on
    its way to another. `live`: it changes size as it runs.
    """

    name: str
    member: tuple[Demand, ...]
    held: tuple[Running, ...] = ()
    size: int | None = None
    live: bool = False

    def keeps(self, size: int) -> int:
        """How many workers stay where they are when it gets another size."""
        if self.size == size:
            return size
        return min(size, self.size) if self.live and self.size else 0


@dataclass
class ClusterRoom:
    """The books with all parties, of which those without a place yet are put into them."""

    books: Books
    by: Strategy
    parties: Mapping[str, Party]
    _known: dict[tuple[tuple[str, int], ...], bool] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is a place for all workers of these jobs."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            self._known[key] = self._holds(sizes)
        return self._known[key]

    def moved(self, name: str, size: int) -> ClusterRoom | None:
        """The room after this job alone got another size now; None where it cannot."""
        books = self.books.copy()
        if not _put(books, self.by, [(self.parties[name], size)]):
            return None
        return ClusterRoom(books, self.by, self.parties)

    def arrived(self, sizes: Mapping[str, int]) -> ClusterRoom:
        """The room when jobs on their way to these sizes have them, so that they stay there.

        One that finds no place now is left to the scheduler, and takes none.
        """
        books, parties = self.books.copy(), dict(self.parties)
        for name, size in sizes.items():
            party = parties[name]
            for one in party.held:
                books.give_gang(one)
            gang = Gang(name, party.member * size)
            held = tuple(
                Running(Gang(name, party.member), (place,), 0.0, 1.0)
                for place in plan_gang(books, gang, self.by) or ()
            )
            for one in held:
                books.take_gang(one)
            parties[name] = replace(party, held=held, size=size)
        return ClusterRoom(books, self.by, parties)

    def _holds(self, sizes: Mapping[str, int]) -> bool:
        moved = [
            (party, size)
            for name, size in sizes.items()
            if (party := self.parties.get(name)) is not None and party.size != size
        ]
        return _put(self.books.copy(), self.by, moved)


def _put(books: Books, by: Strategy, moved: list[tuple[Party, int]]) -> bool:
    """Give back what these have, and place them at their sizes; whether all fit."""
    for party, size in moved:
        for one in party.held[party.keeps(size) :]:
            books.give_gang(one)
    wanted = [(party, party.member * (size - party.keeps(size))) for party, size in moved]
    for party, members in sorted(wanted, key=_order):
        if not members:
            continue
        gang = Gang(party.name, members)
        placements = plan_gang(books, gang, by)
        if placements is None:
            return False
        books.take_gang(Running(gang, placements, 0.0, 1.0), known_to_fit=True)
    return True


def _order(pair: tuple[Party, tuple[Demand, ...]]) -> tuple[bool, int, str]:
    """Whole GPUs first, and large gangs before small ones."""
    party, members = pair
    return (
        any(one.kind is not Kind.WHOLE for one in members),
        -sum(one.total_milli for one in members),
        party.name,
    )
