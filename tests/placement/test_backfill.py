"""When gangs start: what is promised, and what runs meanwhile."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.placement import timeline
from aliquot.placement.backfill import plan_starts
from aliquot.placement.books import Books
from aliquot.placement.demand import Demand, Gang, Placement, Running, sliced, whole
from aliquot.placement.gangs import plan_gang
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.strategies import strategy
from placement.builders import cluster, demands, gang, node_specs, only_cpu


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


@pytest.mark.parametrize(("exact", "most"), [(16, 192), (1, 3)], ids=["exact", "coarse"])
@pytest.mark.parametrize("by", [None, "fragmentation", "random"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=node_specs(),
    arriving=st.lists(st.tuples(gangs_, st.sampled_from([0.3, 0.8, 1.0])), max_size=7),
)
def test_a_promise_is_possible_and_is_never_pushed_back_by_backfill(
    nodes: list[NodeSpec],
    arriving: list[tuple[tuple[tuple[Demand, ...], float], float]],
    by: str | None,
    exact: int,
    most: int,
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
            books.give_gang(one)
        if tick < len(arriving):
            (members, seconds), part = arriving[tick]
            waiting.append(Gang(f"g{tick}", members, seconds, submitted=now))
            ends[f"g{tick}"] = part * seconds
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(timeline, "EXACT_ENDS", exact)
            patched.setattr(timeline, "MOST_MOMENTS", most)
            chosen = None if by is None else strategy(by, books.hardware)
            plan = plan_starts(books, running, promised, waiting, now, by=chosen, seed=tick)
        was = {one.gang.name: one.start for one in promised}
        for one in (*plan.starts, *plan.reservations):
            assert one.start <= max(now, was.get(one.gang.name, one.start))
        for name in was:
            assert name in {one.gang.name for one in (*plan.starts, *plan.reservations)}
        let_it_happen(books, running, (*plan.starts, *plan.reservations))
        for one in plan.starts:
            books.take_gang(one)
            ends[one.gang.name] += now
            running.append(one)
            waiting.remove(one.gang)
        promised = plan.reservations


def let_it_happen(books: Books, running: list[Running], planned: tuple[Running, ...]) -> None:
    """All begin and end when they said; a take of what is not there raises."""
    trial = books.copy()
    ends = [(one.end, 0, number, one) for number, one in enumerate((*running, *planned))]
    begins = [(one.start, 1, number, one) for number, one in enumerate(planned)]
    for _, is_begin, _, one in sorted(ends + begins, key=lambda event: event[:3]):
        if is_begin:
            trial.take_gang(one)
        else:
            trial.give_gang(one)


def many(count: int) -> tuple[Books, list[Running]]:
    """A GPU each, with as many different ends."""
    books = cluster(*[8] * (count // 8))
    running = []
    for number in range(count):
        place = Placement(number // 8, (number % 8,))
        one = gang(f"r{number}", whole(), seconds=100.0 + number)
        running.append(Running(one, (place,), 0, one.seconds))
        books.take_gang(running[-1])
    return books, running


def test_thousands_of_running_gangs_need_little_memory_and_give_a_start_near_the_best() -> None:
    books, running = many(4000)
    waiting = [gang("big", *[whole(8)] * 64), gang("small", whole(8), seconds=5)]
    tracemalloc.start()
    plan = plan_starts(books, running, (), waiting, now=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    starts = {one.gang.name: one.start for one in plan.reservations}
    assert peak < 30e6  # a copy of these books is 1 MB: with one for each end it would be 4 GB
    assert 100 + 64 * 8 - 1 <= starts["big"] <= 100 + 1.3 * 64 * 8
    assert 107 <= starts["small"] <= 115


def test_a_promise_far_away_moves_forward_as_it_comes_near() -> None:
    books, running = many(400)
    waiting = [gang("big", *[whole(8)] * 20)]
    first = plan_starts(books, running, (), waiting, now=10).reservations
    best = 100.0 + 159
    assert best < first[0].start < 1.3 * best
    for one in running[:150]:
        books.give_gang(one)
    later = plan_starts(books, running[150:], first, waiting, now=249.5).reservations
    assert later[0].start == best


def placed_on(books: Books, where: int) -> Placement:
    placement = plan_gang(books, gang("busy", whole(2)))
    assert placement is not None
    assert placement[0].node == where
    books.take(placement[0], whole(2))
    return placement[0]
