"""How near the GPUs of a node are to each other. Needs no numpy.

Only the order of ranks means something. A set of GPUs is as good as its slowest link; of equal
sets, the one with the better links in all, then the one that leaves the better rest.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Links = tuple[tuple[int, ...], ...]


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
    def quality(chosen: tuple[int, ...]) -> tuple[int, int, int]:
        taken = (*sure, *chosen)
        rest = [gpu for gpu in open_ if gpu not in chosen]
        return slowest_within(links, taken), _summed(links, taken), _summed(links, rest)

    best = max(combinations(open_, count - len(sure)), key=quality)
    return tuple(sorted((*sure, *best)))


def slowest_within(links: Links, gpus: Sequence[int]) -> int:
    """The slowest link between GPUs of one node."""
    if not links:
        return int(Reach.SYS)
    return min((links[a][b] for a, b in combinations(gpus, 2)), default=int(Reach.NVLINK) + 99)


def _summed(links: Links, gpus: Sequence[int]) -> int:
    return sum(links[a][b] for a, b in combinations(gpus, 2))
