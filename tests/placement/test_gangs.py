"""Gangs: all or none, near each other, and in time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.model.errors import BadValueError
from aliquot.placement.backfill import plan_starts
from aliquot.placement.books import Books
from aliquot.placement.demand import Demand, Gang, Kind, Placement, Running, sliced, whole
from aliquot.placement.gangs import plan_gang
from aliquot.placement.links import Reach, rank
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.topology import slowest_link
from aliquot.simulate.trace import links
from placement.builders import cluster, demands, gang, node, node_specs


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


@pytest.mark.parametrize("order", [("four", "two"), ("two", "four")])
def test_with_two_free_gpus_the_small_job_runs_while_the_big_one_waits(
    order: tuple[str, str],
) -> None:
    books = cluster(2, 2)
    busy = Running(gang("busy", whole(2), seconds=600), (placed_on(books, 0),), 0, 600)
    jobs = {
        "four": gang("four", *[whole()] * 4, seconds=1000, submitted=1),
        "two": gang("two", *[whole()] * 2, seconds=500, submitted=2),
    }
    plan = plan_starts(books, [busy], (), [jobs[name] for name in order], now=10)
    assert [one.gang.name for one in plan.starts] == ["two"]
    assert [(one.gang.name, one.start) for one in plan.reservations] == [("four", 600)]


def test_work_that_would_push_back_a_promise_waits() -> None:
    books = cluster(2, 2)
    busy = Running(gang("busy", whole(2), seconds=600), (placed_on(books, 0),), 0, 600)
    four = gang("four", *[whole()] * 4, seconds=1000)
    two = gang("two", *[whole()] * 2, seconds=5000)
    plan = plan_starts(books, [busy], (), [four, two], now=10)
    assert plan.starts == ()
    assert {one.gang.name: one.start for one in plan.reservations} == {"four": 600, "two": 1600}
    assert "600" in plan.reasons["four"]


def test_two_gangs_that_each_need_most_of_the_cluster_take_turns() -> None:
    books = cluster(2, 2)
    first = gang("first", *[whole()] * 3, seconds=100)
    second = gang("second", *[whole()] * 3, seconds=100)
    plan = plan_starts(books, [], (), [first, second], now=0)
    assert [one.gang.name for one in plan.starts] == ["first"]
    assert [(one.gang.name, one.start) for one in plan.reservations] == [("second", 100)]


def test_a_gang_that_can_never_run_is_told_so() -> None:
    plan = plan_starts(cluster(2), [], (), [gang("big", whole(3))], now=0)
    assert plan.reasons == {"big": "it asks for 3 GPUs, and there are 2"}


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_gang_that_runs_for_no_time_or_for_ever_is_refused(seconds: float) -> None:
    with pytest.raises(BadValueError, match="'g' cannot run for"):
        gang("g", whole(), seconds=seconds)


def test_a_gang_without_members_is_refused() -> None:
    with pytest.raises(BadValueError, match="no members"):
        gang("g")


def only_cpu(milli: int) -> Demand:
    return Demand(gpus=0, kind=Kind.FREE, milli=0, cpu_milli=milli)


@pytest.mark.parametrize("nodes", [3, 8])
def test_members_that_need_nothing_fit_on_any_number_of_nodes(nodes: int) -> None:
    books = cluster(*[1] * nodes)
    assert plan_gang(books, gang("g", only_cpu(0), only_cpu(0), whole())) is not None


def test_a_large_gang_without_a_place_is_told_that_not_all_ways_were_tried() -> None:
    large = gang("large", *[only_cpu(60)] * 600, *[only_cpu(61)] * 600)
    small = gang("small", only_cpu(40_000), only_cpu(41_000))
    plan = plan_starts(cluster(1), [], (), [large, small], now=0)
    assert plan.starts == ()
    assert plan.reasons["large"].startswith("no way was found")
    assert plan.reasons["small"].startswith("not all its members fit")


def test_what_starts_now_takes_nobodys_reservation() -> None:
    books = cluster(2, 2)
    busy = Running(gang("busy", whole(2), seconds=600), (placed_on(books, 0),), 0, 600)
    four, other = (gang(name, *[whole()] * 4, seconds=1000) for name in ("four", "other"))
    small = [gang(f"s{i}", sliced(10), seconds=10) for i in range(70)]
    plan = plan_starts(books, [busy], (), [four, *small, other], now=10)
    assert len(plan.starts) == 70
    assert {one.gang.name: one.start for one in plan.reservations} == {"four": 600, "other": 1600}


def test_with_all_reservations_given_the_next_is_told_how_many_there_are() -> None:
    waiting = [gang(f"g{i}", whole(), seconds=10) for i in range(66)]
    plan = plan_starts(cluster(1), [], (), waiting, now=0)
    assert len(plan.reservations) == 64
    assert plan.reasons["g65"] == "64 gangs are promised a start before it"


gangs_ = st.builds(
    lambda members, seconds: (tuple(members), seconds),
    st.lists(demands(), min_size=1, max_size=2),
    st.sampled_from([10.0, 25.0, 60.0]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=node_specs(),
    arriving=st.lists(st.tuples(gangs_, st.sampled_from([0.3, 0.8, 1.0])), max_size=7),
)
def test_a_promise_is_never_pushed_back_by_backfill(
    nodes: list[NodeSpec], arriving: list[tuple[tuple[tuple[Demand, ...], float], float]]
) -> None:
    """Work ends when it said or earlier; a gang comes every 5 s; promises only move forward."""
    books = Books(empty(nodes))
    running: list[Running] = []
    ends: dict[str, float] = {}
    waiting: list[Gang] = []
    promised: tuple[Running, ...] = ()
    for tick in range(len(arriving) * 2 + 1):
        now = 5.0 * tick
        for one in [each for each in running if ends[each.gang.name] <= now]:
            running.remove(one)
            for placement, member in zip(one.placements, one.gang.members, strict=True):
                books.give(placement, member)
        if tick < len(arriving):
            (members, seconds), part = arriving[tick]
            waiting.append(Gang(f"g{tick}", members, seconds, submitted=now))
            ends[f"g{tick}"] = part * seconds
        plan = plan_starts(books, running, promised, waiting, now)
        was = {one.gang.name: one.start for one in promised}
        for one in (*plan.starts, *plan.reservations):
            assert one.start <= max(now, was.get(one.gang.name, one.start))
        for name in was:
            assert name in {one.gang.name for one in (*plan.starts, *plan.reservations)}
        for one in plan.starts:
            for placement, member in zip(one.placements, one.gang.members, strict=True):
                books.take(placement, member)
            ends[one.gang.name] += now
            running.append(one)
            waiting.remove(one.gang)
        promised = plan.reservations


def placed_on(books: Books, where: int) -> Placement:
    placement = plan_gang(books, gang("busy", whole(2)))
    assert placement is not None
    assert placement[0].node == where
    books.take(placement[0], whole(2))
    return placement[0]
