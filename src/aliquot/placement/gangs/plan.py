"""Choose GPUs for a gang: for all members or none, as near to each other as possible.

Domains are tried from near to far: one node, one rack, one block, all nodes. The first domain in
which all members fit wins, so it has the best slowest link between nodes that was found. On one
node the GPUs with the best slowest link are chosen. Among equally near domains, thrifty members
prefer weaker models. Then the strategy's lean decides: the least to spare first, the most first, or
no preference. Remaining ties are broken at random, by the seed. Across nodes, the nodes that hold
the most members are filled first, and the last members go to the tightest node that holds them.

Members are placed largest first. Nodes in the same state are tried once, and at most 64 nodes,
racks and blocks each. If this fails in a domain and the case is small (16 members, 32 nodes), a
search follows there, and in the end one over all nodes: a small gang is refused only if no
placement exists, or none was found in `SEARCH_STEPS`. For a gang of up to 8 members all sets of a
node's GPUs are weighed, and not only the first that fits. The searches before the last one have
smaller budgets of steps.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.core.demand import Demand, Kind, Placement
from aliquot.placement.core.fit import (
    gpus_that_fit,
    nodes_that_fit,
    rows_of,
    without_turns_first,
)
from aliquot.placement.core.links import closest, near_sets, slowest_within
from aliquot.placement.gangs.domains import (
    Nodes,
    Preference,
    capacity,
    domains,
    nodes_in_order,
    parts_of_gpus,
)
from aliquot.placement.gangs.search import GpuSet, Steps, search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang
    from aliquot.placement.core.links import Links
    from aliquot.placement.core.snapshot import Hardware, Ints
    from aliquot.placement.gangs.domains import Slots

SEARCH_STEPS = 20_000
SEARCHED_MEMBERS, SEARCHED_NODES = 16, 32
SMALL = 8
STEPS_ON_NODES, STEPS_IN_A_PLACE, STEPS_ON_A_SET = 4000, 1000, 200


def plan_gang(
    allocations: Allocations, gang: Gang, by: Strategy | None = None, *, seed: int = 0
) -> tuple[Placement, ...] | None:
    """Placements for all members, in their order; None where no way is found. Takes nothing.

    A gang of one goes where the strategy says, if there is one. Without one, what has the least to
    spare comes first, and of equals the first.
    """
    if by is not None and len(gang.members) == 1:
        alone = Chooser(allocations, by, seed=seed).choose(gang.members[0])
        return None if alone is None else (alone,)
    counts = Counter(gang.members)
    slots = (
        {demand: capacity(allocations, demand) for demand in counts}
        if may_hold(allocations, gang)
        else {}
    )
    if _too_many(slots, counts):
        return None
    return _together(allocations, gang, slots, counts, Preference(allocations, by, seed))


def _together(
    allocations: Allocations,
    gang: Gang,
    slots: Slots,
    counts: Counter[Demand],
    preference: Preference,
) -> tuple[Placement, ...] | None:
    trial = allocations.copy()
    if len(gang.members) <= SMALL:
        near = _on_one_node(trial, gang.members, slots, counts, preference)
        if near is not None:
            return near
    left, is_counted = STEPS_ON_NODES, _is_counted(counts)
    for domain in domains(trial, slots, counts, preference):
        placed = _fill(trial, domain, slots, counts, preference)
        if placed is not None:
            return _in_order(gang.members, placed)
        is_searched = not is_counted and 1 < len(domain) <= SEARCHED_NODES and left > 0
        if is_searched and len(gang.members) <= SEARCHED_MEMBERS:
            steps = Steps(min(left, STEPS_IN_A_PLACE))
            left -= steps.remaining
            found = search(trial, gang.members, steps, nodes=domain)
            left += max(0, steps.remaining)
            if found is not None:
                return found
    if is_counted:
        return None  # equal members fill everything that fits them: no other way can do more
    return (
        search(trial, gang.members, Steps(SEARCH_STEPS)) if _is_small(allocations, gang) else None
    )


def may_hold(allocations: Allocations, gang: Gang) -> bool:
    """Whether there is enough in all, wherever it is: quick to say no."""
    present = allocations.hardware.present
    whole = sum(member.gpus for member in gang.members if member.kind is Kind.WHOLE)
    return (
        int(allocations.milli_free[present].sum()) >= gang.milli
        and int((present & (allocations.kind == Kind.FREE)).sum()) >= whole
    )


def has_no_way(allocations: Allocations, gang: Gang) -> bool:
    """Whether a gang that `plan_gang` found no way for has none: False where not all were tried."""
    counts = Counter(gang.members)
    slots = {demand: capacity(allocations, demand) for demand in counts}
    if _is_counted(counts) or _too_many(slots, counts):
        return True
    steps = Steps(SEARCH_STEPS)
    return (
        _is_small(allocations, gang)
        and search(allocations.copy(), gang.members, steps) is None
        and steps.remaining >= 0
    )


def _is_counted(counts: Counter[Demand]) -> bool:
    """Whether it is enough to fill node after node: members are equal, and do not join theirs."""
    return len(counts) == 1 and not any(one.wishes and one.wishes.joins_itself for one in counts)


def _too_many(slots: Slots, counts: Counter[Demand]) -> bool:
    return not slots or any(int(slots[one].sum()) < count for one, count in counts.items())


def _is_small(allocations: Allocations, gang: Gang) -> bool:
    return len(gang.members) <= SEARCHED_MEMBERS and allocations.hardware.size <= SEARCHED_NODES


def _fill(
    trial: Allocations, domain: Ints, slots: Slots, counts: Counter[Demand], preference: Preference
) -> dict[Demand, list[Placement]] | None:
    """Place all in these nodes, or leave the allocations as they were."""
    placed: dict[Demand, list[Placement]] = {demand: [] for demand in counts}
    for demand in sorted(counts, key=lambda demand: demand.turn):
        nodes = Nodes(trial.hardware, domain, demand, slots[demand][domain], preference)
        while len(placed[demand]) < counts[demand]:
            node = nodes.next(counts[demand] - len(placed[demand]))
            if node is None:
                _undo(trial, placed)
                return None
            _put_on_node(trial, node, demand, counts[demand], placed[demand])
    _undo(trial, placed)
    return placed


def _put_on_node(
    trial: Allocations, node: int, demand: Demand, count: int, placed: list[Placement]
) -> None:
    if demand.kind is Kind.WHOLE and demand.gpus:
        free, members = _whole_members(trial, node, demand)
        joins = demand.wishes is not None and demand.wishes.joins_itself
        members = min(members, 1 if joins else count - len(placed))  # the next must find the first
        for gpus in _sets_of_whole(trial.hardware.links[node], free, demand.gpus, members):
            placed.append(Placement(node, gpus))
            trial.take(placed[-1], demand)
        return
    while len(placed) < count:
        parts = _even(trial, node, demand)
        if parts is None:
            return
        placed.append(Placement(node, parts))
        trial.take(placed[-1], demand)


def _whole_members(trial: Allocations, node: int, demand: Demand) -> tuple[list[int], int]:
    """The GPUs of a node that fit whole members, and how many members fit there."""
    rows = rows_of(trial, np.array([node]))
    fits = gpus_that_fit(rows, demand)
    if not trial.hardware.suits(node, demand):
        return [], 0
    members = int(fits.sum()) // demand.gpus
    if demand.cpu_milli:
        members = min(members, int(rows.cpu[0]) // demand.cpu_milli)
    if demand.ram_bytes:
        members = min(members, int(rows.ram[0]) // demand.ram_bytes)
    return np.flatnonzero(fits[0]).tolist(), members


def _sets_of_whole(
    links: Links, free: Sequence[int], each: int, members: int
) -> Iterator[tuple[int, ...]]:
    """Free GPUs for some members on one node: well linked in all, and then each by itself."""
    together = closest(links, dict.fromkeys(free, 0), each * members)
    rest = dict.fromkeys(together, 0)
    for _ in range(members):
        chosen = closest(links, rest, each)
        for gpu in chosen:
            del rest[gpu]
        yield chosen


def _even(trial: Allocations, node: int, demand: Demand) -> tuple[int, ...] | None:
    """GPUs for one member of parts.

    A member of one GPU gets the tightest; for several, which must differ, those with most parts.
    """
    rows = rows_of(trial, np.array([node]))
    fits = gpus_that_fit(rows, demand)
    if not nodes_that_fit(rows, demand, fits, trial.hardware.nodes_for(demand))[0]:
        return None
    if demand.swap is not None:
        fits, crowded = without_turns_first(rows, demand, fits)
        if crowded[0]:
            return (int(fits[0].argmax()),)
    parts = parts_of_gpus(rows.milli, rows.bytes, demand, fits)[0]
    sign = 1 if demand.gpus == 1 else -1
    left = {int(gpu): sign * int(parts[gpu]) for gpu in np.flatnonzero(fits[0])}
    return closest(trial.hardware.links[node], left, demand.gpus) if demand.gpus else ()


def _on_one_node(
    trial: Allocations,
    members: Sequence[Demand],
    slots: Slots,
    counts: Counter[Demand],
    preference: Preference,
) -> tuple[Placement, ...] | None:
    """All members on the one node and the set of its GPUs with the best slowest link."""
    best: tuple[Placement, ...] | None = None
    best_link, left = -1, STEPS_ON_NODES
    for node, at_best in zip(*nodes_in_order(trial, slots, counts, preference), strict=True):
        if at_best <= best_link or left <= 0:
            break
        for link, gpus in _sets_of_gpus(trial.hardware, int(node)):
            if link <= best_link:
                break
            if not _may_hold_here(trial, int(node), gpus, counts):
                continue
            steps = Steps(STEPS_ON_A_SET)
            found = search(trial, members, steps, GpuSet(int(node), gpus))
            left -= STEPS_ON_A_SET - max(0, steps.remaining)
            if found is not None:
                best, best_link = found, link
                break
    return best


def _may_hold_here(
    trial: Allocations, node: int, gpus: tuple[int, ...], counts: Counter[Demand]
) -> bool:
    """Whether these GPUs have enough in all."""
    free = sum(int(trial.kind[node, gpu]) == Kind.FREE for gpu in gpus)
    whole = sum(demand.gpus * n for demand, n in counts.items() if demand.kind is Kind.WHOLE)
    milli = sum(int(trial.milli_free[node, gpu]) for gpu in gpus)
    wanted = sum(demand.total_milli * n for demand, n in counts.items())
    return free >= whole and milli >= wanted and len(gpus) >= max(d.gpus for d in counts)


def _sets_of_gpus(hardware: Hardware, node: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Sets of a node's GPUs, those without a slow link first; without links, all GPUs."""
    links = hardware.links[node]
    if not links:
        every = tuple(range(int(hardware.gpu_count[node])))
        yield slowest_within(links, every), every
    for link, sets in near_sets(links):
        for gpus in sets:
            yield link, gpus


def _undo(trial: Allocations, placed: dict[Demand, list[Placement]]) -> None:
    for demand, placements in placed.items():
        for placement in placements:
            trial.give(placement, demand)


def _in_order(
    members: Sequence[Demand], placed: dict[Demand, list[Placement]]
) -> tuple[Placement, ...]:
    left = {demand: iter(placements) for demand, placements in placed.items()}
    return tuple(next(left[member]) for member in members)
