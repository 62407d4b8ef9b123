"""How far gangs are from the best there is: the slowest link found, against all ways tried.

    python bench/placement/gap.py [--cases 300]

Small random clusters, partly full, with racks and NVLink pairs; gangs of two to four members.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from aliquot.placement.books import Books
from aliquot.placement.demand import Demand, Gang, Placement, sliced, whole
from aliquot.placement.gangs import plan_gang
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.topology import slowest_link
from aliquot.simulate.trace import links

DEMANDS = (whole(1), whole(2), sliced(300), sliced(600), sliced(500, gpus=2))


def ways(books: Books, members: Sequence[Demand]) -> Iterator[tuple[Placement, ...]]:
    if not members:
        yield ()
        return
    for node in range(books.hardware.size):
        for gpus in combinations(range(int(books.hardware.gpu_count[node])), members[0].gpus):
            place = Placement(node, gpus)
            if books.fits(place, members[0]):
                books.take(place, members[0])
                for rest in ways(books, members[1:]):
                    yield (place, *rest)
                books.give(place, members[0])


def case(chance: random.Random) -> tuple[Books, tuple[Demand, ...]]:
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
    return books, tuple(chance.choice(DEMANDS) for _ in range(chance.randint(2, 3)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=300)
    chance = random.Random(1)  # noqa: S311 - cases, not secrets
    found: Counter[str] = Counter()
    for _ in range(options.parse_args().cases):
        books, members = case(chance)
        ours = plan_gang(books, Gang("g", members))
        best = max((slowest_link(books.hardware, way) for way in ways(books, members)), default=-1)
        if ours is None:
            found["no way, and said so" if best < 0 else "a way was missed"] += 1
        else:
            mine = slowest_link(books.hardware, ours)
            found["the best link" if mine == best else f"link {mine}, best {best}"] += 1
    for what, count in found.most_common():
        print(f"{count:6}  {what}")


if __name__ == "__main__":
    main()
