"""Gangs: all or none, and near each other."""

from __future__ import annotations

import pytest

from aliquot.model.errors import BadValueError
from aliquot.placement.books import Books
from aliquot.placement.demand import Placement, sliced, whole
from aliquot.placement.gangs import plan_gang
from aliquot.placement.links import Reach, rank
from aliquot.placement.snapshot import empty
from aliquot.placement.strategies import strategy
from aliquot.placement.topology import slowest_link
from aliquot.simulate.trace import links
from placement.builders import cluster, gang, node, only_cpu


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    books = cluster(2, 1)
    assert plan_gang(books, gang("four", whole(), whole(), whole(), whole())) is None
    assert plan_gang(books, gang("three", whole(), whole(), whole())) is not None


def test_a_gang_stays_on_one_node_where_it_fits() -> None:
    books = cluster(2, 4, 8)
    placed = plan_gang(books, gang("g", whole(2), whole(2)))
    assert placed is not None
    assert {one.node for one in placed} == {1}


def test_a_gang_stays_in_one_rack_where_it_fits() -> None:
    nodes = [node(f"n{i}", 2, rack=rack) for i, rack in enumerate("ababb")]
    books = Books(empty(nodes))
    placed = plan_gang(books, gang("g", whole(2), whole(2)))
    assert placed is not None
    assert {one.node for one in placed} == {0, 2}
    assert slowest_link(books.hardware, placed) == Reach.RACK


def test_a_pair_gets_a_pair_with_a_link() -> None:
    books = Books(empty([node("n", 4, links=links("nvlink-pairs", 4))]))
    books.take(plan_gang(books, gang("one", whole()))[0], whole())  # type: ignore[index]
    placed = plan_gang(books, gang("two", whole(), whole()))
    assert placed is not None
    assert {gpu for one in placed for gpu in one.gpus} == {2, 3}
    assert slowest_link(books.hardware, placed) == rank("NV4")


def test_different_members_are_found_a_way_by_search() -> None:
    books = Books(empty([node("n", 1, cpu_milli=4000), node("m", 1, cpu_milli=1000)]))
    members = (sliced(500, cpu_milli=3000), sliced(500, cpu_milli=1000), sliced(400), sliced(600))
    assert plan_gang(books, gang("g", *members)) is not None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_gang_that_runs_for_no_time_or_for_ever_is_refused(seconds: float) -> None:
    with pytest.raises(BadValueError, match="'g' cannot run for"):
        gang("g", whole(), seconds=seconds)


def test_a_gang_without_members_is_refused() -> None:
    with pytest.raises(BadValueError, match="no members"):
        gang("g")


@pytest.mark.parametrize("nodes", [3, 8])
def test_members_that_need_nothing_fit_on_any_number_of_nodes(nodes: int) -> None:
    books = cluster(*[1] * nodes)
    assert plan_gang(books, gang("g", only_cpu(0), only_cpu(0), whole())) is not None


@pytest.mark.parametrize("members", [2, 6])
@pytest.mark.parametrize(
    ("by", "expected"),
    [("fragmentation", {1}), ("pack", {1}), ("spread", {0}), ("random", {0, 1, 2})],
)
def test_of_equally_near_places_the_strategy_and_the_seed_decide(
    by: str, expected: set[int], members: int
) -> None:
    books = cluster(8, 8, 8)
    books.take(Placement(1, (0, 1)), whole(2))
    books.take(Placement(2, (0,)), whole())
    chosen = strategy(by, books.hardware)
    found = {
        one.node
        for seed in range(30)
        for one in plan_gang(books, gang("g", *[whole()] * members), chosen, seed=seed) or ()
    }
    assert found == expected


def test_equal_places_are_left_to_the_seed() -> None:
    books = cluster(4, 4, 4)
    by = strategy("fragmentation", books.hardware)
    asked = gang("g", whole(2), whole(2))
    assert {plan_gang(books, asked, by, seed=seed)[0].node for seed in range(30)} == {0, 1, 2}  # type: ignore[index]
    assert plan_gang(books, asked, by, seed=7) == plan_gang(books, asked, by, seed=7)


def test_slices_of_a_gang_fill_a_cut_card_first() -> None:
    books = cluster(4)
    books.take(Placement(0, (2,)), sliced(300))
    placed = plan_gang(books, gang("g", sliced(300), sliced(300)))
    assert placed == (Placement(0, (2,)), Placement(0, (2,)))
