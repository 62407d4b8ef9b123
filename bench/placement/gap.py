"""How far decisions are from the best there is, against all ways tried on small random clusters.

    python bench/placement/gap.py [--cases 300]

Gangs of two or three members, and of five or six: the slowest link. Requests for two or three GPUs
by `fragmentation`: what the choice costs by that strategy's own measure, in thousandths of a GPU.
Moves that make room: the bytes to be moved. Clusters have three nodes, partly full, with racks and
NVLink pairs.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import numpy as np

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.defragment import Held, plan_moves
from aliquot.placement.choose.forecast import ANYTHING, outlook
from aliquot.placement.choose.strategies import Fragmentation
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, sliced, whole
from aliquot.placement.core.fit import rows_of
from aliquot.placement.core.links import Reach
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.core.topology import slowest_link
from aliquot.placement.gangs.plan import plan_gang
from aliquot.simulate.trace import links

GIB = 1 << 30
DEMANDS = (whole(1), whole(2), sliced(300), sliced(600), sliced(500, gpus=2))
SEVERAL = (whole(2), whole(3), sliced(300, gpus=2), sliced(500, gpus=3), sliced(600, gpus=2))
SLICES, MOVABLE = 10, 4
NO_WAY, MISSED, BEST = "no way, and said so", "a way was missed", "the best"


def placements(allocations: Allocations, demand: Demand) -> Iterator[Placement]:
    for node in range(allocations.hardware.size):
        for gpus in combinations(range(int(allocations.hardware.gpu_count[node])), demand.gpus):
            if allocations.fits(Placement(node, gpus), demand):
                yield Placement(node, gpus)


def best_link(allocations: Allocations, members: Sequence[Demand]) -> int:
    """The best slowest link of all ways; -1 where there is none."""
    on_nodes = {link for table in allocations.hardware.links for row in table for link in row}
    order = sorted(members, key=lambda one: (-one.total_milli, str(one)))
    levels = sorted({*on_nodes, *map(int, Reach)}, reverse=True)
    return next((level for level in levels if can_place(allocations, order, (), level)), -1)


def can_place(
    allocations: Allocations, members: Sequence[Demand], placed: tuple[Placement, ...], least: int
) -> bool:
    """Whether there is a way without a slower link; equal members are told apart by their place."""
    if len(placed) == len(members):
        return True
    member = members[len(placed)]
    is_equal = bool(placed) and members[len(placed) - 1] == member
    for place in placements(allocations, member):
        before = is_equal and (place.node, place.gpus) < (placed[-1].node, placed[-1].gpus)
        if before or slowest_link(allocations.hardware, (*placed, place)) < least:
            continue
        allocations.take(place, member)
        found = can_place(allocations, members, (*placed, place), least)
        allocations.give(place, member)
        if found:
            return True
    return False


def partly_full(chance: random.Random) -> Allocations:
    nodes = [
        NodeHardware(f"n{i}", 4, rack=f"r{chance.randrange(2)}", links=links("nvlink-pairs", 4))
        for i in range(3)
    ]
    allocations = Allocations(empty(nodes))
    for _ in range(chance.randrange(8)):
        demand = chance.choice(DEMANDS)
        place = Placement(chance.randrange(3), tuple(chance.sample(range(4), demand.gpus)))
        if allocations.fits(place, demand):
            allocations.take(place, demand)
    return allocations


def gang(chance: random.Random) -> str:
    return gang_of(chance, chance.randint(2, 3))


def large_gang(chance: random.Random) -> str:
    return gang_of(chance, chance.randint(5, 6))


def gang_of(chance: random.Random, size: int) -> str:
    allocations = partly_full(chance)
    members = tuple(chance.choice(DEMANDS) for _ in range(size))
    ours = plan_gang(allocations, Gang("g", members))
    best = best_link(allocations, members)
    if ours is None:
        return NO_WAY if best < 0 else MISSED
    mine = slowest_link(allocations.hardware, ours)
    return BEST if mine == best else f"link {mine}, best {best}"


def request(chance: random.Random) -> str:
    allocations, demand = partly_full(chance), chance.choice(SEVERAL)
    by = Fragmentation(outlook(ANYTHING, allocations.hardware))

    def cost(place: Placement) -> float:
        rows = rows_of(allocations, np.array([place.node]))
        chosen = np.zeros_like(rows.present)
        chosen[0, list(place.gpus)] = True
        return float(by.several(rows, demand, chosen)[0])

    ours = Chooser(allocations, by).choose(demand)
    every = list(placements(allocations, demand))
    if ours is None or not every:
        return MISSED if every else NO_WAY
    least = min(map(cost, every))
    more = cost(ours) - least
    if more < 1e-6:
        return BEST
    cheapest_links = [
        slowest_link(allocations.hardware, [p]) for p in every if cost(p) - least < 1e-6
    ]
    is_nearer = slowest_link(allocations.hardware, [ours]) > max(cheapest_links)
    most = next(n for n in (10, 50, 1000) if more < n)
    return f"at most {most} more{', for a better link' if is_nearer else ''}"


def moves(chance: random.Random) -> str:
    allocations = Allocations(
        empty([NodeHardware(f"n{i}", 2, gpu_bytes=80 * GIB) for i in range(3)])
    )
    held = []
    for number in range(SLICES):
        demand = sliced(chance.choice((200, 400, 600)), chance.choice((5, 10, 20, 40)) * GIB)
        place = Placement(chance.randrange(3), (chance.randrange(2),))
        if allocations.fits(place, demand):
            allocations.take(place, demand)
            held.append(Held(f"h{number}", demand, place))
    wanted = chance.choice((whole(2), sliced(700, 50 * GIB), sliced(900, 70 * GIB, gpus=2)))
    held = held[:MOVABLE]
    best, ours = cheapest(allocations, wanted, held), plan_moves(allocations, wanted, held)
    if ours is None or best is None:
        return NO_WAY if best is None else MISSED
    if not best:
        return "it fits as it is"
    return BEST if ours.bytes == best else "more bytes than the best"


def cheapest(allocations: Allocations, wanted: Demand, held: Sequence[Held]) -> int | None:
    """The fewest bytes that, moved in any order to any places, make room."""
    subsets = (way for size in range(len(held) + 1) for way in combinations(held, size))
    costs = sorted((moved_bytes(way), i, way) for i, way in enumerate(subsets))
    for cost, _, way in costs:
        if any(can_move(allocations.copy(), wanted, order) for order in permutations(way)):
            return cost
    return None


def moved_bytes(way: Sequence[Held]) -> int:
    return sum(one.demand.gpu_bytes for one in way)


def can_move(allocations: Allocations, wanted: Demand, order: Sequence[Held]) -> bool:
    if not order:
        return any(True for _ in placements(allocations, wanted))
    first = order[0]
    for place in list(placements(allocations, first.demand)):
        allocations.take(place, first.demand)
        allocations.give(first.placement, first.demand)
        found = can_move(allocations, wanted, order[1:])
        allocations.take(first.placement, first.demand, known_to_fit=True)
        allocations.give(place, first.demand)
        if found:
            return True
    return False


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=300)
    cases = options.parse_args().cases
    for name, case in (
        ("gangs of 2 or 3", gang),
        ("gangs of 5 or 6", large_gang),
        ("requests", request),
        ("moves", moves),
    ):
        chance = random.Random(1)  # noqa: S311 - cases, not secrets
        found = Counter(case(chance) for _ in range(cases))
        print(name)
        for what, count in found.most_common():
            print(f"{count:6}  {what}")


if __name__ == "__main__":
    main()
