"""Which GPUs of a node are near each other."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import whole
from aliquot.placement.core.links import Links, closest, near_sets, slowest_within
from aliquot.placement.core.snapshot import empty
from aliquot.placement.core.topology import slowest_link
from aliquot.placement.gangs.plan import plan_gang
from placement.builders import gang, node


def made_up(gpus: int, ranks: tuple[int, ...], seed: int) -> Links:
    chance = random.Random(seed)  # noqa: S311 - links, not secrets
    table = [[0] * gpus for _ in range(gpus)]
    for a, b in combinations(range(gpus), 2):
        table[a][b] = table[b][a] = chance.choice(ranks)
    return tuple(map(tuple, table))


def every_way(links: Links, left: Mapping[int, int], count: int) -> tuple[int, int]:
    """The best slowest link and the best sum of links that the tightest GPUs can have."""
    edge = sorted(left.values())[count - 1]
    sure = [gpu for gpu in left if left[gpu] < edge]
    ways = combinations([gpu for gpu in left if left[gpu] == edge], count - len(sure))
    return max(quality(links, (*sure, *way)) for way in ways)


def quality(links: Links, gpus: tuple[int, ...]) -> tuple[int, int]:
    return slowest_within(links, gpus), sum(links[a][b] for a, b in combinations(gpus, 2))


@given(
    gpus=st.integers(2, 7),
    ranks=st.sampled_from([(10,), (12, 104), (10, 12, 104, 118)]),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_the_closest_gpus_are_the_best_of_all_sets(
    gpus: int, ranks: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    links = made_up(gpus, ranks, seed)
    left = {gpu: data.draw(st.sampled_from([0, 0, 5])) for gpu in range(gpus)}
    count = data.draw(st.integers(2, gpus))
    assert quality(links, closest(links, left, count)) == every_way(links, left, count)


@given(gpus=st.integers(1, 6), seed=st.integers(0, 99))
def test_every_set_of_gpus_is_in_a_near_set_that_is_as_fast(gpus: int, seed: int) -> None:
    links = made_up(gpus, (10, 104, 118), seed)
    for size in range(2, gpus + 1):
        for chosen in combinations(range(gpus), size):
            slowest = slowest_within(links, chosen)
            sets = dict(near_sets(links))[slowest]
            assert any(set(chosen) <= set(near) for near in sets)


def test_a_node_of_16_gpus_has_few_near_sets() -> None:
    """There are 65,535 sets of its GPUs, and 12,870 of 8 of them."""
    links = made_up(16, (10, 12, 104, 118), seed=1)
    assert sum(len(sets) for _, sets in near_sets(links)) < 250
    allocations = Allocations(empty([node("big", 16, links=links)]))
    placed = plan_gang(allocations, gang("g", whole(4), whole(4)))
    assert placed is not None
    assert (
        slowest_link(allocations.hardware, placed)
        == every_way(links, dict.fromkeys(range(16), 0), 8)[0]
    )
