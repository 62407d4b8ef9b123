"""Whether jobs of these sizes would fit on the cluster together: the room of `placement.elastic`.

Who keeps its size stays where it is. Who gets smaller gives back what its last workers have, and
who grows is placed beside what it has, as a gang. Where that finds no place, all that change are
placed anew, as they are when their workers are started again, but for those that change size as
they run; that takes long, and is done for the first `PLACED_ANEW` jobs only.

Workers that are alike can have each other's places, so where no more than one kind of them grows in
number it is enough to count: for whole GPUs one by one that is the whole answer. From the first
question on that needs more, who would be where is kept for the last ones that were answered yes:
the next mostly differs from one of them by a job or two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Gang, Kind, Running
from aliquot.placement.gangs.domains import capacity
from aliquot.placement.gangs.plan import plan_gang

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand

PLACED_ANEW = 100
LAYOUTS = 4

Sizes = frozenset[tuple[str, int]]
Places = dict[str, tuple[Running, ...]]


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
    """The allocations with all parties, of which those without a place yet are put into them."""

    allocations: Allocations
    by: Strategy
    parties: Mapping[str, Party]
    _known: dict[Sizes, bool] = field(default_factory=dict)
    _room_for: dict[Demand, int] = field(default_factory=dict)
    _alike: dict[str, str | None] = field(default_factory=dict)
    _firsts: dict[tuple[Demand, ...], str] = field(default_factory=dict)
    _layouts: list[_Layout] = field(default_factory=list)
    _to_place_anew: int = PLACED_ANEW

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is a place for all workers of these jobs."""
        key = frozenset(sizes.items())
        if key not in self._known:
            self._known[key] = self._holds(key, sizes)
        return self._known[key]

    def free_milli(self, sizes: Mapping[str, int]) -> int:
        """How many thousandths of GPUs nobody has beside these."""
        free = int(self.allocations.milli_free[self.allocations.hardware.present].sum())
        for party, size in self._moved(sizes):
            each = sum(one.total_milli for one in party.member)
            free += each * (len(party.held) - size)
        return free

    def moved(self, name: str, size: int) -> ClusterRoom | None:
        """The room after this job alone got another size now; None where it cannot."""
        allocations = self.allocations.copy()
        if _put(allocations, self.by, [(self.parties[name], size)]) is None:
            return None
        return ClusterRoom(allocations, self.by, self.parties)

    def arrived(self, sizes: Mapping[str, int]) -> ClusterRoom:
        """The room when jobs on their way to these sizes have them, so that they stay there.

        One that finds no place now is left to the scheduler, and takes none.
        """
        allocations, parties = self.allocations.copy(), dict(self.parties)
        for name, size in sizes.items():
            party = parties[name]
            for one in party.held:
                allocations.give_gang(one)
            gang = Gang(name, party.member * size)
            held = tuple(
                Running(Gang(name, party.member), (place,), 0.0, 1.0)
                for place in plan_gang(allocations, gang, self.by) or ()
            )
            for one in held:
                allocations.take_gang(one)
            parties[name] = replace(party, held=held, size=size)
        return ClusterRoom(allocations, self.by, parties)

    def _moved(self, sizes: Mapping[str, int]) -> Iterator[tuple[Party, int]]:
        for name, size in sizes.items():
            party = self.parties.get(name)
            if party is not None and party.size != size:
                yield party, size

    def _counted(self, moved: Iterable[tuple[Party, int]]) -> bool | None:
        """The answer by how many workers of each kind there are more; None where that is none."""
        units: Counter[str] = Counter()
        for party, size in moved:
            alike = self._first_alike(party)
            if alike is None:
                return None
            units[alike] += size - len(party.held)
        more: Counter[Demand] = Counter()
        for name, count in units.items():
            for one in self.parties[name].member:
                more[one] += count
        grown = [one for one, count in more.items() if count > 0]
        if not grown or (len(grown) == 1 and more[grown[0]] <= self._left(grown[0])):
            return True
        return False if len(more) == 1 and _is_one_gpu(grown[0]) else None

    def _first_alike(self, party: Party) -> str | None:
        """The name of the first party whose units are the same; None where a GPU of it is gone."""
        if party.name not in self._alike:
            present = self.allocations.hardware.present
            places = [place for one in party.held for place in one.placements]
            whole = all(present[place.node, gpu] for place in places for gpu in place.gpus)
            first = self._firsts.setdefault(party.member, party.name) if whole else None
            self._alike[party.name] = first
        return self._alike[party.name]

    def _left(self, member: Demand) -> int:
        if member not in self._room_for:
            self._room_for[member] = int(capacity(self.allocations, member).sum())
        return self._room_for[member]

    def _holds(self, key: Sizes, sizes: Mapping[str, int]) -> bool:
        if not self._layouts:
            counted = self._counted(self._moved(sizes))
            if counted is not None:
                return counted
            self._layouts.append(_Layout(self, frozenset(), self.allocations, {}))
        near = min(self._layouts, key=lambda one: (len(key - one.sizes), not one.is_placed))
        found = near.changed(key, sizes)
        if found is None:
            moved = list(self._moved(sizes))
            self._to_place_anew -= len(moved)
            if self._to_place_anew >= 0:
                found = self._anew(key, moved)
        if found is not None:
            self._layouts.remove(near)
            self._layouts[:0] = [found, near]
            del self._layouts[LAYOUTS:]
        return found is not None

    def _anew(self, key: Sizes, moved: list[tuple[Party, int]]) -> _Layout | None:
        allocations = self.allocations.copy()
        places = _put(allocations, self.by, moved)
        return None if places is None else _Layout(self, key, allocations, places)


class _Layout:
    """Who would be where with some sizes: `places` has those that are not where they are now.

    Jobs that have `more` to get than the layout it was made from are placed when it is needed.
    """

    def __init__(
        self,
        room: ClusterRoom,
        sizes: Sizes,
        allocations: Allocations,
        places: Places,
        more: tuple[Party, int] | None = None,
    ) -> None:
        self.room, self.sizes = room, sizes
        self._books, self._places, self._more = allocations, places, more
        self._left: dict[Demand, int] = {}
        self._given: dict[Sizes, _Layout | None] = {}

    def changed(self, key: Sizes, sizes: Mapping[str, int]) -> _Layout | None:
        """The layout with these sizes; None where there is no place for all."""
        self._place()
        changes = [
            (party, size)
            for name, size in key - self.sizes
            if (party := self.room.parties.get(name)) is not None
        ]
        changes += [(self.room.parties[name], 0) for name in self._places.keys() - sizes.keys()]
        less, more = [], []
        for party, size in changes:
            has = len(self._has(party))
            if size == party.size or size < has:
                less.append((party, size))
            elif size > has:
                more.append((party, size - has))
        given = self._with_less(less)
        return None if given is None else given.with_more(key, more)

    @property
    def is_placed(self) -> bool:
        """Whether nobody is yet to be placed."""
        return self._more is None

    def _has(self, party: Party) -> tuple[Running, ...]:
        return self._places.get(party.name, party.held)

    def _with_less(self, less: list[tuple[Party, int]]) -> _Layout | None:
        """The same when these have given back; one that keeps its size must have its own place."""
        key = frozenset((party.name, size) for party, size in less)
        if not key:
            return self
        if key not in self._given:
            self._given[key] = self._give_back(less)
        return self._given[key]

    def _give_back(self, less: list[tuple[Party, int]]) -> _Layout | None:
        allocations, places = self._books.copy(), dict(self._places)
        for party, size in less:
            stays = size == party.size
            for one in self._has(party)[0 if stays else size :]:
                allocations.give_gang(one)
            places[party.name] = self._has(party)[:size]
        for party, size in less:
            if size == party.size:
                del places[party.name]
                if not all(allocations.take_gang_if_it_fits(one) for one in party.held):
                    return None
        return _Layout(self.room, self.sizes, allocations, places)

    def with_more(self, key: Sizes, more: list[tuple[Party, int]]) -> _Layout | None:
        """The same when these have got so many workers more."""
        if not all(self._may_hold(party, count) for party, count in more):
            return None
        if len(more) == 1 and len(set(more[0][0].member)) == 1:
            return _Layout(self.room, key, self._books, self._places, more[0])
        allocations, places = self._books.copy(), dict(self._places)
        for party, members in sorted(_gangs(more), key=_order):
            found = _placed(allocations, self.room.by, party, members)
            if found is None:
                return None
            places[party.name] = self._has(party) + found
        return _Layout(self.room, key, allocations, places)

    def _may_hold(self, party: Party, count: int) -> bool:
        """Whether each kind of worker has room by itself: it is so where all are alike."""
        for one in set(party.member):
            if one not in self._left:
                self._left[one] = int(capacity(self._books, one).sum())
            if self._left[one] < count * party.member.count(one):
                return False
        return True

    def _place(self) -> None:
        if self._more is None:
            return
        party, count = self._more
        self._more = None
        self._books = self._books.copy()
        found = _placed(self._books, self.room.by, party, party.member * count) or ()
        self._places = {**self._places, party.name: self._has(party) + found}


def _is_one_gpu(member: Demand) -> bool:
    """Whether any GPU that nobody has will do."""
    needs_more = member.models or member.gpu_bytes or member.cpu_milli or member.ram_bytes
    return member.kind is Kind.WHOLE and member.gpus == 1 and not needs_more


def _put(allocations: Allocations, by: Strategy, moved: list[tuple[Party, int]]) -> Places | None:
    """Give back what these have, and place them at their sizes; None where not all fit."""
    for party, size in moved:
        for one in party.held[party.keeps(size) :]:
            allocations.give_gang(one)
    places: Places = {party.name: party.held[: party.keeps(size)] for party, size in moved}
    wanted = _gangs((party, size - party.keeps(size)) for party, size in moved)
    for party, members in sorted(wanted, key=_order):
        found = _placed(allocations, by, party, members)
        if found is None:
            return None
        places[party.name] += found
    return places


def _gangs(more: Iterable[tuple[Party, int]]) -> list[tuple[Party, tuple[Demand, ...]]]:
    return [(party, party.member * count) for party, count in more if count]


def _placed(
    allocations: Allocations, by: Strategy, party: Party, members: tuple[Demand, ...]
) -> tuple[Running, ...] | None:
    """Workers of a party, put into the allocations; None where they do not all fit."""
    placements = plan_gang(allocations, Gang(party.name, members), by)
    if placements is None:
        return None
    unit, each = Gang(party.name, party.member), len(party.member)
    found = tuple(
        Running(unit, placements[at : at + each], 0.0, 1.0)
        for at in range(0, len(placements), each)
    )
    for one in found:
        allocations.take_gang(one, known_to_fit=True)
    return found


def _order(pair: tuple[Party, tuple[Demand, ...]]) -> tuple[bool, int, str]:
    """Whole GPUs first, and large gangs before small ones."""
    party, members = pair
    return (
        any(one.kind is not Kind.WHOLE for one in members),
        -sum(one.total_milli for one in members),
        party.name,
    )
