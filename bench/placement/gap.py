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

from aliquot.placement.books import Books
from aliquot.placement.chooser import Chooser
from aliquot.placement.defragment import Held, plan_moves
from aliquot.placement.demand import Demand, Gang, Placement, sliced, whole
from aliquot.placement.fit import rows_of
from aliquot.placement.gangs import plan_gang
from aliquot.placement.links import Reach
from aliquot.placement.outlook import ANYTHING, outlook
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.strategies import Fragmentation
from aliquot.placement.topology import slowest_link
from aliquot.simulate.trace import links

GIB = 1 << 30
DEMANDS = (whole(1), whole(2), sliced(300), sliced(600), sliced(500, gpus=2))
SEVERAL = (whole(2), whole(3), sliced(300, gpus=2), sliced(500, gpus=3), sliced(600, gpus=2))
SLICES, MOVABLE = 10, 4
NO_WAY, MISSED, BEST = "no way, and said so", "a way was missed", "the best"


def placements(books: Books, demand: Demand) -> Iterator[Placement]:
    for node in range(books.hardware.size):
        for gpus in combinations(range(int(books.hardware.gpu_count[node])), demand.gpus):
            if books.fits(Placement(node, gpus), demand):
                yield Placement(node, gpus)


def best_link(books: Books, members: Sequence[Demand]) -> int:
    """The best slowest link of all ways; -1 where there is none."""
    on_nodes = {link for table in books.hardware.links for row in table for link in row}
    order = sorted(members, key=lambda one: (-one.total_milli, str(one)))
    levels = sorted({*on_nodes, *map(int, Reach)}, reverse=True)
    return next((level for level in levels if can_place(books, order, (), level)), -1)


def can_place(
    books: Books, members: Sequence[Demand], placed: tuple[Placement, ...], least: int
) -> bool:
    """Whether there is a way without a slower link; equal members are told apart by their place."""
    if len(placed) == len(members):
        return True
    member = members[len(placed)]
    is_equal = bool(placed) and members[len(placed) - 1] == member
    for place in placements(books, member):
        before = is_equal and (place.node, place.gpus) < (placed[-1].node, placed[-1].gpus)
        if before or slowest_link(books.hardware, (*placed, place)) < least:
            continue
        books.take(place, member)
        found = can_place(books, members, (*placed, place), least)
        books.give(place, member)
        if found:
            return True
    return False


def partly_full(chance: random.Random) -> Books:
    nodes = [
        NodeSpec(f"n{i}", 4, rack=f"r{chance.randrange(2)}", links=links("nvlink-pairs", 4))
        for i in range(3)
    ]
    books = Books(empty(nodes))
    for _ in range(chance.randrange(8)):
        demand = chance.choice(DEMANDS)
        place = Placement(chance.randrange(3), tuple(chance.sample(range(4), demand.gpus)))
        if books.fits(place, demand):
            books.take(place, demand)
    return books


def gang(chance: random.Random) -> str:
    return gang_of(chance, chance.randint(2, 3))


def large_gang(chance: random.Random) -> str:
    return gang_of(chance, chance.randint(5, 6))


def gang_of(chance: random.Random, size: int) -> str:
    books = partly_full(chance)
    members = tuple(chance.choice(DEMANDS) for _ in range(size))
    ours = plan_gang(books, Gang("g", members))
    best = best_link(books, members)
    if ours is None:
        return NO_WAY if best < 0 else MISSED
    mine = slowest_link(books.hardware, ours)
    return BEST if mine == best else f"link {mine}, best {best}"


def request(chance: random.Random) -> str:
    books, demand = partly_full(chance), chance.choice(SEVERAL)
    by = Fragmentation(outlook(ANYTHING, books.hardware))

    def cost(place: Placement) -> float:
        rows = rows_of(books, np.array([place.node]))
        chosen = np.zeros_like(rows.present)
        chosen[0, list(place.gpus)] = True
        return float(by.several(rows, demand, chosen)[0])

    ours = Chooser(books, by).choose(demand)
    every = list(placements(books, demand))
    if ours is None or not every:
        return MISSED if every else NO_WAY
    least = min(map(cost, every))
    more = cost(ours) - least
    if more < 1e-6:
        return BEST
    cheapest_links = [slowest_link(books.hardware, [p]) for p in every if cost(p) - least < 1e-6]
    is_nearer = slowest_link(books.hardware, [ours]) > max(cheapest_links)
    most = next(n for n in (10, 50, 1000) if more < n)
    return f"at most {most} more{', for a better link' if is_nearer else ''}"


def moves(chance: random.Random) -> str:
    books = Books(empty([NodeSpec(f"n{i}", 2, gpu_bytes=80 * GIB) for i in range(3)]))
    held = []
    for number in range(SLICES):
        demand = sliced(chance.choice((200, 400, 600)), chance.choice((5, 10, 20, 40)) * GIB)
        place = Placement(chance.randrange(3), (chance.randrange(2),))
        if books.fits(place, demand):
            books.take(place, demand)
            held.append(Held(f"h{number}", demand, place))
    wanted = chance.choice((whole(2), sliced(700, 50 * GIB), sliced(900, 70 * GIB, gpus=2)))
    held = held[:MOVABLE]
    best, ours = cheapest(books, wanted, held), plan_moves(books, wanted, held)
    if ours is None or best is None:
        return NO_WAY if best is None else MISSED
    if not best:
        return "it fits as it is"
    return BEST if ours.bytes == best else "more bytes than the best"


def cheapest(books: Books, wanted: Demand, held: Sequence[Held]) -> int | None:
    """The fewest bytes that, moved in any order to any places, make room."""
    subsets = (way for size in range(len(held) + 1) for way in combinations(held, size))
    costs = sorted((moved_bytes(way), i, way) for i, way in enumerate(subsets))
    for cost, _, way in costs:
        if any(can_move(books.copy(), wanted, order) for order in permutations(way)):
            return cost
    return None


def moved_bytes(way: Sequence[Held]) -> int:
    return sum(one.demand.gpu_bytes for one in way)


def can_move(books: Books, wanted: Demand, order: Sequence[Held]) -> bool:
    if not order:
        return any(True for _ in placements(books, wanted))
    first = order[0]
    for place in list(placements(books, first.demand)):
        books.take(place, first.demand)
        books.give(first.placement, first.demand)
        found = can_move(books, wanted, order[1:])
        books.take(first.placement, first.demand, known_to_fit=True)
        books.give(place, first.demand)
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
