"""A gang to GPUs: all members or none, as near to each other as can be.

Places are tried from near to far: one node, one rack, one block, anywhere; the first in which all
members fit has the best slowest link there is between nodes. On one node the GPUs are chosen for
the best slowest link among them. Of equally near places the one with the least to spare is taken.

Members are placed largest first. Where that fails and the case is small (16 members, 32 nodes), a
search over all ways follows, so that a small gang is refused only if there is no way. For a gang of
few members every set of a node's GPUs is weighed, and not only the first that fits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.chooser import Chooser
from aliquot.placement.demand import WHOLE_MILLI, Demand, Kind, Placement
from aliquot.placement.fit import gpus_that_fit, nodes_that_fit, rows_of
from aliquot.placement.links import closest, slowest_within

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


def plan_gang(books: Books, gang: Gang, by: Strategy | None = None) -> tuple[Placement, ...] | None:
    """Placements for all members, in their order; None where no way is found. Takes nothing.

    A gang of one goes where the strategy says, if there is one.
    """
    if by is not None and len(gang.members) == 1:
        alone = Chooser(books, by).choose(gang.members[0])
        return None if alone is None else (alone,)
    counts = Counter(gang.members)
    room = {demand: capacity(books, demand) for demand in counts}
    if _too_many(room, counts):
        return None
    trial = books.copy()
    if len(gang.members) <= SMALL:
        near = _on_one_node(trial, gang.members, room, counts)
        if near is not None:
            return near
    for domain in _domains(books.hardware, room, counts):
        placed = _fill(trial, domain, room, counts)
        if placed is not None:
            return _in_order(gang.members, placed)
    if len(counts) == 1:
        return None  # equal members fill what there is room for: no other way can do more
    return _search(trial, gang.members, _Steps()) if _is_small(books, gang) else None


def has_no_way(books: Books, gang: Gang) -> bool:
    """Whether a gang that `plan_gang` found no way for has none: False where not all were tried."""
    counts = Counter(gang.members)
    room = {demand: capacity(books, demand) for demand in counts}
    if len(counts) == 1 or _too_many(room, counts):
        return True
    steps = _Steps()
    return (
        _is_small(books, gang)
        and _search(books.copy(), gang.members, steps) is None
        and steps.left >= 0
    )


def _too_many(room: dict[Demand, Ints], counts: Counter[Demand]) -> bool:
    return any(int(room[demand].sum()) < count for demand, count in counts.items())


def _is_small(books: Books, gang: Gang) -> bool:
    return len(gang.members) <= SEARCHED_MEMBERS and books.hardware.size <= SEARCHED_NODES


@dataclass(slots=True)
class _Steps:
    """How many more ways a search may try; below 0 it has given up."""

    left: int = SEARCH_STEPS


def capacity(books: Books, demand: Demand) -> Ints:
    """How many of one demand fit on each node."""
    rows = rows_of(books, np.arange(books.hardware.size))
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
    if demand.gpus == 1:
        return np.asarray(parts.sum(axis=1))
    most = np.asarray(parts.sum(axis=1) // demand.gpus)
    while True:
        enough = np.minimum(parts, most[:, None]).sum(axis=1) >= demand.gpus * most
        if enough.all():
            return most
        most = np.where(enough, most, most - 1)


def _domains(
    hardware: Hardware, room: dict[Demand, Ints], counts: Counter[Demand]
) -> Iterator[Ints]:
    """Sets of nodes that may have room for all, near ones first, those with less to spare first."""
    nodes, spare = _with_room(np.arange(hardware.size), room, counts)
    for node in _well_linked(hardware, nodes, spare, counts):
        yield np.array([node])
    for groups in (hardware.rack, hardware.block, np.zeros_like(hardware.rack)):
        found, spare = _with_room(groups, room, counts)
        for group in found[np.argsort(spare[found], kind="stable")]:
            yield np.flatnonzero(groups == group)


def _with_room(
    groups: Ints, room: dict[Demand, Ints], counts: Counter[Demand]
) -> tuple[Ints, Floats]:
    """The groups of nodes that have room for each demand by itself; and what each has in all."""
    size = int(groups.max(initial=0)) + 1
    enough = np.ones(size, dtype=bool)
    spare = np.zeros(size)
    for demand, count in counts.items():
        inside = np.bincount(groups, weights=room[demand], minlength=size)
        enough &= inside >= count
        spare += inside * demand.total_milli
    return np.flatnonzero(enough), spare


def _well_linked(
    hardware: Hardware, nodes: Ints, spare: Floats, counts: Counter[Demand]
) -> list[int]:
    """Nodes in the order of their slowest link between as many GPUs as are wanted."""
    wanted = sum(demand.gpus * count for demand, count in counts.items())

    def order(node: int) -> tuple[int, float]:
        links = hardware.links[node]
        gpus = closest(links, dict.fromkeys(range(len(links)), 0), min(wanted, len(links)))
        return -slowest_within(links, gpus), float(spare[node])

    return sorted((int(node) for node in nodes), key=order)


def _fill(
    trial: Books, domain: Ints, room: dict[Demand, Ints], counts: Counter[Demand]
) -> dict[Demand, list[Placement]] | None:
    """Place all in these nodes, or leave the books as they were."""
    placed: dict[Demand, list[Placement]] = {demand: [] for demand in counts}
    for demand in sorted(counts, key=_largest_first):
        order = domain[np.argsort(-room[demand][domain], kind="stable")]
        for node in order:
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
    trial: Books, members: Sequence[Demand], room: dict[Demand, Ints], counts: Counter[Demand]
) -> tuple[Placement, ...] | None:
    """All members on the one node and the set of its GPUs with the best slowest link."""
    nodes, spare = _with_room(np.arange(trial.hardware.size), room, counts)
    best: tuple[Placement, ...] | None = None
    best_link = -1
    seen = set()
    for node in _well_linked(trial.hardware, nodes, spare, counts):
        state = _state(trial, node)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > NODES_WEIGHED:
            break
        for link, gpus in _sets_of_gpus(trial.hardware.links[node], trial, node):
            if link <= best_link:
                break
            found = _search(trial, members, _Steps(STEPS_ON_A_NODE), (node, gpus))
            if found is not None:
                best, best_link = found, link
                break
    return best


def _state(trial: Books, node: int) -> tuple[object, ...]:
    arrays = (trial.milli_left, trial.bytes_left, trial.kind)
    rest = (int(trial.cpu_left[node]), int(trial.ram_left[node]), int(trial.hardware.model[node]))
    return (trial.hardware.links[node], *(array[node].tobytes() for array in arrays), *rest)


def _sets_of_gpus(links: Links, trial: Books, node: int) -> list[tuple[int, tuple[int, ...]]]:
    """Sets of a node's GPUs by their slowest link; where all links are equal, all GPUs."""
    every = tuple(range(int(trial.hardware.gpu_count[node])))
    if len({links[a][b] for a, b in combinations(range(len(links)), 2)}) < 2:
        return [(slowest_within(links, every), every)]
    return _ordered_sets(links)


@lru_cache(maxsize=64)
def _ordered_sets(links: Links) -> list[tuple[int, tuple[int, ...]]]:
    gpus = range(len(links))
    sets = [chosen for size in range(1, len(links) + 1) for chosen in combinations(gpus, size)]
    rated = [(slowest_within(links, chosen), chosen) for chosen in sets]
    return sorted(rated, key=lambda one: (-one[0], len(one[1]), one[1]))


def _search(
    trial: Books,
    members: Sequence[Demand],
    steps: _Steps,
    within: tuple[int, tuple[int, ...]] | None = None,
) -> tuple[Placement, ...] | None:
    """Every way, until one is found or the steps are used up."""
    order = sorted(range(len(members)), key=lambda i: _largest_first(members[i]))
    found: list[Placement] = []

    def descend(depth: int) -> bool:
        if depth == len(order):
            return True
        for placement in _ways(trial, members[order[depth]], within):
            steps.left -= 1
            if steps.left < 0:
                return False
            trial.take(placement, members[order[depth]])
            found.append(placement)
            done = descend(depth + 1)
            trial.give(placement, members[order[depth]])
            if done:
                return True
            found.pop()
        return False

    if not descend(0):
        return None
    by_member = dict(zip(order, found, strict=True))
    return tuple(by_member[i] for i in range(len(members)))


def _ways(
    trial: Books, demand: Demand, within: tuple[int, tuple[int, ...]] | None
) -> Iterator[Placement]:
    """All placements of a demand that differ in more than which of two equal GPUs they take."""
    index = np.arange(trial.hardware.size) if within is None else np.array([within[0]])
    rows = rows_of(trial, index)
    fits = gpus_that_fit(rows, demand)
    models = trial.hardware.models_allowed(demand.models) if demand.models else None
    for row in np.flatnonzero(nodes_that_fit(rows, demand, fits, models)):
        seen = set()
        usable = np.flatnonzero(fits[row]) if within is None else within[1]
        gpus = [int(gpu) for gpu in usable if fits[row, gpu]]
        for chosen in combinations(gpus, demand.gpus):
            states = sorted(
                (int(rows.milli[row, g]), int(rows.bytes[row, g]), int(rows.kind[row, g]))
                for g in chosen
            )
            if within is None and tuple(states) in seen:
                continue
            seen.add(tuple(states))
            yield Placement(int(index[row]), chosen)


def _largest_first(demand: Demand) -> tuple[int, int, int, int]:
    return -demand.total_milli, -demand.gpus, -demand.gpu_bytes, -demand.cpu_milli


def _undo(trial: Books, placed: dict[Demand, list[Placement]]) -> None:
    for demand, placements in placed.items():
        for placement in placements:
            trial.give(placement, demand)


def _in_order(
    members: Sequence[Demand], placed: dict[Demand, list[Placement]]
) -> tuple[Placement, ...]:
    left = {demand: iter(placements) for demand, placements in placed.items()}
    return tuple(next(left[member]) for member in members)
