"""Gangs: all or none, and near each other."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from aliquot.model.errors import InvalidValueError
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Kind, Placement, sliced, whole
from aliquot.placement.core.links import Reach, rank
from aliquot.placement.core.snapshot import empty
from aliquot.placement.core.topology import slowest_link
from aliquot.placement.gangs.plan import may_hold, plan_gang
from aliquot.simulate.trace import links
from placement.builders import cluster, gang, node, only_cpu


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    allocations = cluster(2, 1)
    assert plan_gang(allocations, gang("four", whole(), whole(), whole(), whole())) is None
    assert plan_gang(allocations, gang("three", whole(), whole(), whole())) is not None


def test_a_gpu_of_two_kinds_at_two_times_counts_as_taken_and_not_as_less() -> None:
    now, then = cluster(2), cluster(2)
    there = Placement(0, (0,))
    shared = Demand(gpus=1, kind=Kind.SHARED, milli=500)
    now.take(there, sliced(100))
    then.take(there, shared)
    now.lower_to(then.free_on(np.array([0])))
    assert may_hold(now, gang("g", whole()))
    assert plan_gang(now, gang("g", whole())) == (Placement(0, (1,)),)
    now.lower_to(now.free_on(np.array([0])))
    for each in (sliced(1), sliced(0, 1), shared, whole()):
        assert not now.fits(there, each)


def test_a_gang_stays_on_one_node_where_it_fits() -> None:
    allocations = cluster(2, 4, 8)
    placed = plan_gang(allocations, gang("g", whole(2), whole(2)))
    assert placed is not None
    assert {one.node for one in placed} == {1}


def test_a_gang_stays_in_one_rack_where_it_fits() -> None:
    nodes = [node(f"n{i}", 2, rack=rack) for i, rack in enumerate("ababb")]
    allocations = Allocations(empty(nodes))
    placed = plan_gang(allocations, gang("g", whole(2), whole(2)))
    assert placed is not None
    assert {one.node for one in placed} == {0, 2}
    assert slowest_link(allocations.hardware, placed) == Reach.RACK


def test_a_pair_gets_a_pair_with_a_link() -> None:
    allocations = Allocations(empty([node("n", 4, links=links("nvlink-pairs", 4))]))
    allocations.take(plan_gang(allocations, gang("one", whole()))[0], whole())  # type: ignore[index]
    placed = plan_gang(allocations, gang("two", whole(), whole()))
    assert placed is not None
    assert {gpu for one in placed for gpu in one.gpus} == {2, 3}
    assert slowest_link(allocations.hardware, placed) == rank("NV4")


def test_different_members_are_found_a_way_by_search() -> None:
    allocations = Allocations(empty([node("n", 1, cpu_milli=4000), node("m", 1, cpu_milli=1000)]))
    members = (sliced(500, cpu_milli=3000), sliced(500, cpu_milli=1000), sliced(400), sliced(600))
    assert plan_gang(allocations, gang("g", *members)) is not None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_gang_that_runs_for_no_time_or_for_ever_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidValueError, match="'g' cannot run for"):
        gang("g", whole(), seconds=seconds)


def test_a_gang_without_members_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="no members"):
        gang("g")


@pytest.mark.parametrize("nodes", [3, 8])
def test_members_that_need_nothing_fit_on_any_number_of_nodes(nodes: int) -> None:
    allocations = cluster(*[1] * nodes)
    assert plan_gang(allocations, gang("g", only_cpu(0), only_cpu(0), whole())) is not None


@pytest.mark.parametrize("members", [2, 6])
@pytest.mark.parametrize(
    ("by", "expected"),
    [("fragmentation", {1}), ("pack", {1}), ("spread", {0}), ("random", {0, 1, 2})],
)
def test_of_equally_near_places_the_strategy_and_the_seed_decide(
    by: str, expected: set[int], members: int
) -> None:
    allocations = cluster(8, 8, 8)
    allocations.take(Placement(1, (0, 1)), whole(2))
    allocations.take(Placement(2, (0,)), whole())
    chosen = strategy(by, allocations.hardware)
    found = {
        one.node
        for seed in range(30)
        for one in plan_gang(allocations, gang("g", *[whole()] * members), chosen, seed=seed) or ()
    }
    assert found == expected


def test_the_seed_decides_between_equal_placements() -> None:
    allocations = cluster(4, 4, 4)
    by = strategy("fragmentation", allocations.hardware)
    asked = gang("g", whole(2), whole(2))
    assert {plan_gang(allocations, asked, by, seed=seed)[0].node for seed in range(30)} == {0, 1, 2}  # type: ignore[index]
    assert plan_gang(allocations, asked, by, seed=7) == plan_gang(allocations, asked, by, seed=7)


def test_slices_of_a_gang_fill_a_sliced_gpu_first() -> None:
    allocations = cluster(4)
    allocations.take(Placement(0, (2,)), sliced(300))
    placed = plan_gang(allocations, gang("g", sliced(300), sliced(300)))
    assert placed == (Placement(0, (2,)), Placement(0, (2,)))


@pytest.mark.parametrize("by", [None, "fragmentation", "pack"])
def test_what_remains_of_a_gang_goes_to_the_tightest_node_that_holds_it(by: str | None) -> None:
    allocations = Allocations(empty([node(f"n{i}", 8, rack="r") for i in range(4)]))
    allocations.take(Placement(2, tuple(range(7))), whole(7))
    allocations.take(Placement(3, tuple(range(5))), whole(5))
    chosen = None if by is None else strategy(by, allocations.hardware)
    for members, expected in ((9, [1, 8]), (11, [3, 8]), (10, [2, 8]), (17, [1, 8, 8])):
        placed = plan_gang(allocations, gang("g", *[whole()] * members), chosen)
        assert placed is not None
        on_each = Counter(one.node for one in placed)
        assert sorted(on_each.values()) == expected
        assert set(on_each) <= {0, 1, 2 if members in (9, 17) else 3}


def test_thrifty_gangs_take_the_weaker_of_equally_near_places() -> None:
    thrifty = Demand(kind=Kind.SLICED, milli=500, thrifty=True)
    nodes = [node("strong", 2, model="H", strength=1.0), node("weak", 4, model="T")]
    allocations = Allocations(empty(nodes))
    by = strategy("fragmentation", allocations.hardware)
    for members, expected in (((thrifty,) * 2, {1}), ((sliced(500),) * 2, {0})):
        found = [plan_gang(allocations, gang("g", *members), by, seed=seed) for seed in range(10)]
        assert {one.node for placed in found for one in placed or ()} == expected


def test_thrifty_gangs_fill_the_weaker_nodes_of_a_rack_and_of_racks_the_weaker() -> None:
    one = Demand(thrifty=True)
    mixed = [("H", 1.0), ("T", 0.0), ("H", 1.0), ("T", 0.0)]
    nodes = [
        node(f"n{i}", 4 if model == "T" else 8, model=model, strength=strength, rack="r")
        for i, (model, strength) in enumerate(mixed)
    ]
    placed = plan_gang(Allocations(empty(nodes)), gang("g", *[one] * 9))
    assert placed is not None
    assert sorted(Counter(each.node for each in placed).items()) == [(0, 1), (1, 4), (3, 4)]
    racks = [node(f"n{i}", 4, rack=f"r{i // 2}", strength=1.0 - i // 2) for i in range(4)]
    placed = plan_gang(Allocations(empty(racks)), gang("g", *[one] * 6))
    assert placed is not None
    assert {each.node for each in placed} == {2, 3}


def test_nodes_that_cannot_hold_all_are_not_tried_one_by_one() -> None:
    """Each kind of member has room on each of 5,000 nodes, and both together on none."""
    free = cluster(*[8] * 5000)
    cut = cluster(*[8] * 2000)
    for where in range(2000):
        for gpu in range(8):
            cut.take(Placement(where, (gpu,)), sliced(1 + (where * 8 + gpu) % 400))
    begun = time.thread_time()
    for allocations, members in (
        (free, (whole(8), sliced(500))),
        (cut, (sliced(550), *[sliced(560)] * 7, sliced(90))),
    ):
        assert plan_gang(allocations, gang("g", *members)) is not None
    assert time.thread_time() - begun < 1
