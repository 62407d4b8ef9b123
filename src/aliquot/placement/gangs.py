"""A gang to GPUs: all members or none, as near to each other as can be.

Places are tried from near to far: one node, one rack, one block, anywhere; the first in which all
members fit has the best slowest link there is between nodes. On one node the GPUs are chosen for
the best slowest link among them. Of equally near places the strategy's lean decides: what has the
least to spare first, or the most, or any; and chance (under a seed) where they are equal.

Members are placed largest first. Where that fails and the case is small (16 members, 32 nodes), a
search over all ways follows, so that a small gang is refused only if there is no way. For a gang of
few members all sets of a node's GPUs are weighed, and not only the first that fits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.chooser import Chooser, drawn
from aliquot.placement.demand import WHOLE_MILLI, Demand, Kind, Placement
from aliquot.placement.fit import all_rows, gpus_that_fit, nodes_that_fit, rows_of
from aliquot.placement.links import closest, near_sets, slowest_within
from aliquot.placement.ways import Part, Steps, largest_first, search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Gang
    from aliquot.placement.links import Links
    from aliquot.placement.outlook import Floats
    from aliquot.placement.snapshot import Bools, Hardware, Ints
    from aliquot.placement.strategies import Strategy

SEARCH_STEPS = 20_000
SEARCHED_MEMBERS, SEARCHED_NODES = 16, 32
ANY_NUMBER = 1 << 31  # more than there are members, and the sum over all nodes is an int64
SMALL = 4
NODES_WEIGHED = 64
STEPS_ON_A_NODE = 200

Room = dict[Demand, "Ints"]


def plan_gang(
    books: Books, gang: Gang, by: Strategy | None = None, *, seed: int = 0
) -> tuple[Placement, ...] | None:
    """Placements for all members, in their order; None where no way is found. Takes nothing.

    A gang of one goes where the strategy says, if there is one. Without one, what has the least to
    spare comes first, and of equals the first.
    """
    if by is not None and len(gang.members) == 1:
        alone = Chooser(books, by, seed=seed).choose(gang.members[0])
        return None if alone is None else (alone,)
    counts = Counter(gang.members)
    room = {demand: capacity(books, demand) for demand in counts} if may_hold(books, gang) else {}
    if _too_many(room, counts):
        return None
    return _together(books, gang, room, counts, _Taste(books, by, seed))


def _together(
    books: Books, gang: Gang, room: Room, counts: Counter[Demand], taste: _Taste
) -> tuple[Placement, ...] | None:
    trial = books.copy()
    if len(gang.members) <= SMALL:
        near = _on_one_node(trial, gang.members, room, counts, taste)
        if near is not None:
            return near
    for domain in _domains(books.hardware, room, counts, taste):
        placed = _fill(trial, domain, room, counts, taste)
        if placed is not None:
            return _in_order(gang.members, placed)
    if len(counts) == 1:
        return None  # equal members fill what there is room for: no other way can do more
    return search(trial, gang.members, Steps(SEARCH_STEPS)) if _is_small(books, gang) else None


def may_hold(books: Books, gang: Gang) -> bool:
    """Whether there is enough in all, wherever it is: quick to say no."""
    present = books.hardware.present
    whole = sum(member.gpus for member in gang.members if member.kind is Kind.WHOLE)
    return (
        int(books.milli_left[present].sum()) >= gang.milli
        and int((present & (books.kind == Kind.FREE)).sum()) >= whole
    )


def has_no_way(books: Books, gang: Gang) -> bool:
    """Whether a gang that `plan_gang` found no way for has none: False where not all were tried."""
    counts = Counter(gang.members)
    room = {demand: capacity(books, demand) for demand in counts}
    if len(counts) == 1 or _too_many(room, counts):
        return True
    steps = Steps(SEARCH_STEPS)
    return (
        _is_small(books, gang)
        and search(books.copy(), gang.members, steps) is None
        and steps.left >= 0
    )


class _Taste:
    """Which of equally near places comes first."""

    def __init__(self, books: Books, by: Strategy | None, seed: int) -> None:
        self.lean = 1 if by is None else by.lean
        self._random = (
            None if by is None else np.random.default_rng(drawn(books, seed).getrandbits(64))
        )

    def order(self, *keys: Ints | Floats) -> Ints:
        """Positions by these keys, the first decides first; of equals any, or the first."""
        size = len(keys[0])
        ties = np.arange(size) if self._random is None else self._random.permutation(size)
        return np.lexsort((ties, *reversed(keys)))


def _too_many(room: Room, counts: Counter[Demand]) -> bool:
    return not room or any(int(room[one].sum()) < count for one, count in counts.items())


def _is_small(books: Books, gang: Gang) -> bool:
    return len(gang.members) <= SEARCHED_MEMBERS and books.hardware.size <= SEARCHED_NODES


def capacity(books: Books, demand: Demand) -> Ints:
    """How many of one demand fit on each node."""
    rows = all_rows(books)
    fits = gpus_that_fit(rows, demand)
    models = books.hardware.models_allowed(demand.models) if demand.models else None
    nodes = nodes_that_fit(rows, demand, fits, models)
    limit = np.full(len(rows.index), ANY_NUMBER)
    if demand.cpu_milli:
        limit = np.minimum(limit, rows.cpu // demand.cpu_milli)
    if demand.ram_bytes:
        limit = np.minimum(limit, rows.ram // demand.ram_bytes)
    if demand.gpus:
        limit = np.minimum(
            limit, _by_gpus(demand, _parts_of_gpus(rows.milli, rows.bytes, demand, fits))
        )
    return np.where(nodes, limit, 0)


def _parts_of_gpus(milli: Ints, left: Ints, demand: Demand, fits: Bools) -> Ints:
    """How many parts of a demand each GPU can give."""
    if demand.kind is Kind.WHOLE:
        return fits.astype(np.int64)
    parts = np.full(milli.shape, WHOLE_MILLI, dtype=np.int64)
    if demand.milli:
        parts = np.minimum(parts, milli // demand.milli)
    if demand.gpu_bytes:
        parts = np.minimum(parts, left // demand.gpu_bytes)
    return np.where(fits, parts, 0)


def _by_gpus(demand: Demand, parts: Ints) -> Ints:
    """The most demands such that each gets its parts of different GPUs."""
    low, high = np.zeros(len(parts), dtype=np.int64), parts.sum(axis=1) // demand.gpus
    while (low < high).any():
        middle = (low + high + 1) // 2
        enough = np.minimum(parts, middle[:, None]).sum(axis=1) >= demand.gpus * middle
        low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
    return low


def _domains(
    hardware: Hardware, room: Room, counts: Counter[Demand], taste: _Taste
) -> Iterator[Ints]:
    """Sets of nodes that may have room for all, near ones first, then as it is liked."""
    for node in _nodes_in_order(hardware, room, counts, taste)[0]:
        yield np.array([node])
    for groups in (hardware.rack, hardware.block, np.zeros_like(hardware.rack)):
        found, spare = _with_room(groups, room, counts)
        for group in found[taste.order(taste.lean * spare)]:
            yield np.flatnonzero(groups == group)


def _with_room(groups: Ints, room: Room, counts: Counter[Demand]) -> tuple[Ints, Floats]:
    """The groups of nodes that have room for each demand by itself; and what each has in all."""
    size = int(groups.max(initial=0)) + 1
    enough = np.ones(size, dtype=bool)
    spare = np.zeros(size)
    for demand, count in counts.items():
        inside = np.bincount(groups, weights=room[demand], minlength=size)
        enough &= inside >= count
        spare += inside * demand.total_milli
    found = np.flatnonzero(enough)
    return found, spare[found]


def _nodes_in_order(
    hardware: Hardware, room: Room, counts: Counter[Demand], taste: _Taste
) -> tuple[Ints, Ints]:
    """Nodes with room for all, by the best slowest link that they could have; and these links."""
    nodes, spare = _with_room(np.arange(hardware.size), room, counts)
    if not len(nodes):
        return nodes, nodes
    apart = [demand.gpus * n for demand, n in counts.items() if demand.kind is Kind.WHOLE]
    wanted = max(sum(apart), *(demand.gpus for demand in counts))  # others may share GPUs
    best = np.array([_best_link(links, wanted) for links in hardware.link_tables])
    links = best[hardware.link_table[nodes]]
    order = taste.order(-links, taste.lean * spare)
    return nodes[order], links[order]


def _best_link(links: Links, count: int) -> int:
    gpus = closest(links, dict.fromkeys(range(len(links)), 0), min(count, len(links)))
    return slowest_within(links, gpus)


def _fill(
    trial: Books, domain: Ints, room: Room, counts: Counter[Demand], taste: _Taste
) -> dict[Demand, list[Placement]] | None:
    """Place all in these nodes, the roomiest first, or leave the books as they were."""
    placed: dict[Demand, list[Placement]] = {demand: [] for demand in counts}
    for demand in sorted(counts, key=largest_first):
        roomy = -room[demand][domain] if taste.lean else np.zeros_like(domain)
        for node in domain[taste.order(roomy)]:
            _put_on_node(trial, int(node), demand, counts[demand], placed[demand])
            if len(placed[demand]) == counts[demand]:
                break
        else:
            _undo(trial, placed)
            return None
    _undo(trial, placed)
    return placed


def _put_on_node(
    trial: Books, node: int, demand: Demand, count: int, placed: list[Placement]
) -> None:
    if demand.kind is Kind.WHOLE and demand.gpus:
        members = min(count - len(placed), _whole_members(trial, node, demand))
        for gpus in _sets_of_whole(trial, node, demand.gpus, members):
            placed.append(Placement(node, gpus))
            trial.take(placed[-1], demand)
        return
    while len(placed) < count:
        parts = _even(trial, node, demand)
        if parts is None:
            return
        placed.append(Placement(node, parts))
        trial.take(placed[-1], demand)


def _whole_members(trial: Books, node: int, demand: Demand) -> int:
    rows = rows_of(trial, np.array([node]))
    fits = gpus_that_fit(rows, demand)
    if demand.models and trial.hardware.models[int(rows.model[0])] not in demand.models:
        return 0
    members = int(fits.sum()) // demand.gpus
    if demand.cpu_milli:
        members = min(members, int(rows.cpu[0]) // demand.cpu_milli)
    if demand.ram_bytes:
        members = min(members, int(rows.ram[0]) // demand.ram_bytes)
    return members


def _sets_of_whole(trial: Books, node: int, each: int, members: int) -> Iterator[tuple[int, ...]]:
    """Free GPUs for some members on one node: well linked in all, and then each by itself."""
    free = (trial.kind[node] == Kind.FREE) & trial.hardware.present[node]
    links = trial.hardware.links[node]
    left = dict.fromkeys((int(gpu) for gpu in np.flatnonzero(free)), 0)
    together = closest(links, left, each * members)
    rest = dict.fromkeys(together, 0)
    for _ in range(members):
        chosen = closest(links, rest, each)
        for gpu in chosen:
            del rest[gpu]
        yield chosen


def _even(trial: Books, node: int, demand: Demand) -> tuple[int, ...] | None:
    """GPUs for one member of parts.

    One GPU is the tightest; several are those that can give the most parts, since they must differ.
    """
    rows = rows_of(trial, np.array([node]))
    fits = gpus_that_fit(rows, demand)
    models = trial.hardware.models_allowed(demand.models) if demand.models else None
    if not nodes_that_fit(rows, demand, fits, models)[0]:
        return None
    parts = _parts_of_gpus(rows.milli, rows.bytes, demand, fits)[0]
    sign = 1 if demand.gpus == 1 else -1
    left = {int(gpu): sign * int(parts[gpu]) for gpu in np.flatnonzero(fits[0])}
    return closest(trial.hardware.links[node], left, demand.gpus) if demand.gpus else ()


def _on_one_node(
    trial: Books,
    members: Sequence[Demand],
    room: Room,
    counts: Counter[Demand],
    taste: _Taste,
) -> tuple[Placement, ...] | None:
    """All members on the one node and the set of its GPUs with the best slowest link."""
    best: tuple[Placement, ...] | None = None
    best_link = -1
    seen: set[tuple[object, ...]] = set()
    for node, at_best in zip(*_nodes_in_order(trial.hardware, room, counts, taste), strict=True):
        if at_best <= best_link or len(seen) == NODES_WEIGHED:
            break
        state = _state(trial, int(node))
        if state in seen:
            continue
        seen.add(state)
        for link, gpus in _sets_of_gpus(trial.hardware, int(node)):
            if link <= best_link:
                break
            found = search(trial, members, Steps(STEPS_ON_A_NODE), Part(int(node), gpus))
            if found is not None:
                best, best_link = found, link
                break
    return best


def _state(trial: Books, node: int) -> tuple[object, ...]:
    arrays = (trial.milli_left, trial.bytes_left, trial.kind)
    of_node = (trial.cpu_left, trial.ram_left, trial.hardware.model, trial.hardware.link_table)
    return *(array[node].tobytes() for array in arrays), *(int(one[node]) for one in of_node)


def _sets_of_gpus(hardware: Hardware, node: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Sets of a node's GPUs, those without a slow link first; without links, all GPUs."""
    links = hardware.links[node]
    if not links:
        every = tuple(range(int(hardware.gpu_count[node])))
        yield slowest_within(links, every), every
    for link, sets in near_sets(links):
        for gpus in sets:
            yield link, gpus


def _undo(trial: Books, placed: dict[Demand, list[Placement]]) -> None:
    for demand, placements in placed.items():
        for placement in placements:
            trial.give(placement, demand)


def _in_order(
    members: Sequence[Demand], placed: dict[Demand, list[Placement]]
) -> tuple[Placement, ...]:
    left = {demand: iter(placements) for demand, placements in placed.items()}
    return tuple(next(left[member]) for member in members)
