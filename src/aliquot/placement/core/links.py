"""How near the GPUs of a node are to each other. Needs no numpy.

Only the order of ranks means something. A set of GPUs is as good as its slowest link; of equal
sets, the one with the better links in all, then the one that leaves the better rest.

The sets in which no link is slower than a given one are the cliques of a graph: few, also on nodes
of 16 GPUs. GPUs that can change places without a difference are tried once. Where more than
`SETS_WEIGHED` are left, which no machine we know of has, the first of them are weighed.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from itertools import combinations, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Links = tuple[tuple[int, ...], ...]
SETS_WEIGHED = 2000


class Reach(IntEnum):
    """The ways between two GPUs; NVLinks are NVLINK and their number more."""

    APART = 0
    BLOCK = 1
    RACK = 2
    SYS = 10
    NODE = 11
    PHB = 12
    PXB = 13
    PIX = 14
    NVLINK = 100
    ITSELF = 199


def rank(kind: str) -> int:
    """The rank of what `nvidia-smi topo` prints."""
    if kind.startswith("NV"):
        return Reach.NVLINK + int(kind[2:] or 0)
    return int(Reach[kind]) if kind in Reach.__members__ else int(Reach.SYS)


def closest(links: Links, left: Mapping[int, int], count: int) -> tuple[int, ...]:
    """Which GPUs of a node to take: the tightest, and among equally tight ones the best linked."""
    order = sorted(left, key=lambda gpu: (left[gpu], gpu))
    if not links or count < 2:
        return tuple(sorted(order[:count]))
    edge = left[order[count - 1]]
    sure = tuple(sorted(gpu for gpu in order if left[gpu] < edge))
    open_ = tuple(sorted(gpu for gpu in order if left[gpu] == edge))
    return _best_set(links, sure, open_, count)


@lru_cache(maxsize=4096)
def _best_set(
    links: Links, sure: tuple[int, ...], open_: tuple[int, ...], count: int
) -> tuple[int, ...]:
    def quality(chosen: tuple[int, ...]) -> tuple[int, int]:
        rest = [gpu for gpu in open_ if gpu not in chosen]
        return _summed(links, (*sure, *chosen)), _summed(links, rest)

    groups = _interchangeable(links, sure, open_)
    ways: list[tuple[int, ...]] = []
    for _, sets in near_sets(links):
        for near in sets:
            if set(sure) <= set(near):
                within = [[gpu for gpu in group if gpu in near] for group in groups]
                ways += islice(picks(within, count - len(sure)), SETS_WEIGHED - len(ways))
        if ways:
            break
    return tuple(sorted((*sure, *max(ways, key=quality))))


@lru_cache(maxsize=256)
def near_sets(links: Links) -> tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]:
    """For each rank of link, the best first: all maximal sets of GPUs without a slower link.

    The first entry has each GPU by itself, with the rank ITSELF.
    """
    alone = tuple((gpu,) for gpu in range(len(links)))
    ranks = {links[a][b] for a, b in combinations(range(len(links)), 2)}
    levels = ((least, tuple(_cliques(links, least))) for least in sorted(ranks, reverse=True))
    return ((int(Reach.ITSELF), alone), *levels)


def picks(groups: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    """All ways to take `count` GPUs from groups of interchangeable GPUs.

    Only how many come from each group differs: from a group its first GPUs are taken.
    """
    if count > sum(map(len, groups)):
        return
    if not count:
        yield ()
        return
    first, *rest = groups
    for taken in range(min(count, len(first)), -1, -1):
        for more in picks(rest, count - taken):
            yield (*first[:taken], *more)


def slowest_within(links: Links, gpus: Sequence[int]) -> int:
    """The slowest link between GPUs of one node."""
    if not links:
        return int(Reach.SYS)
    return min((links[a][b] for a, b in combinations(gpus, 2)), default=int(Reach.ITSELF))


def _cliques(links: Links, least: int) -> Iterator[tuple[int, ...]]:
    """The largest sets of GPUs that have no link slower than this (Bron and Kerbosch)."""
    near = [
        {b for b, link in enumerate(row) if b != a and link >= least} for a, row in enumerate(links)
    ]

    def grow(chosen: tuple[int, ...], may: set[int], done: set[int]) -> Iterator[tuple[int, ...]]:
        if not may and not done:
            yield tuple(sorted(chosen))
            return
        pivot = max(may | done, key=lambda gpu: (len(near[gpu] & may), -gpu))
        for gpu in sorted(may - near[pivot]):
            yield from grow((*chosen, gpu), may & near[gpu], done & near[gpu])
            may, done = may - {gpu}, done | {gpu}

    return grow((), set(range(len(links))), set())


def _interchangeable(
    links: Links, sure: tuple[int, ...], open_: tuple[int, ...]
) -> list[list[int]]:
    """The open GPUs in groups; GPUs of one group have the same links to all others."""
    every = (*sure, *open_)
    groups: list[list[int]] = []
    for gpu in open_:
        for group in groups:
            one = group[0]
            if all(links[gpu][x] == links[one][x] for x in every if x not in (gpu, one)):
                group.append(gpu)
                break
        else:
            groups.append([gpu])
    return groups


def _summed(links: Links, gpus: Sequence[int]) -> int:
    return sum(links[a][b] for a, b in combinations(gpus, 2))
