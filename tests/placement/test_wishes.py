"""GPUs chosen by name and by neighbours: gangs, moves, planned starts and preemption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.defragment import Held, plan_moves
from aliquot.placement.choose.explain import never_fits
from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Gang, Placement, Running, sliced, whole
from aliquot.placement.core.fit import Lack, lacks_of
from aliquot.placement.core.snapshot import empty
from aliquot.placement.core.wishes import Wishes
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.gangs.timeline import Timeline
from aliquot.placement.queues.eviction_trial import EvictionTrial
from placement.builders import cluster, gang, node


def wishing(demand: Demand, label: str = "", beside: str = "", **lists: list[str]) -> Demand:
    sets = {name: frozenset(words) for name, words in lists.items()}
    return replace(demand, wishes=Wishes(label=label, beside=beside, **sets))


def running(name: str, demand: Demand, place: Placement, end: float = 100.0) -> Running:
    return Running(Gang(name, (demand,), end), (place,), 0.0, end)


X = wishing(sliced(100), label="x")
NOT_X = wishing(sliced(500), apart_from=["x"])


def named_nodes(count: int) -> Allocations:
    return Allocations(
        empty([node(f"n{i}", 2, uuids=(f"GPU-{i}a", f"GPU-{i}b")) for i in range(count)])
    )


def test_a_gpu_is_chosen_by_its_uuid_or_the_beginning_of_it() -> None:
    allocations = named_nodes(3)
    chooser = Chooser(allocations, strategy("fragmentation", allocations.hardware))
    exact = wishing(sliced(500), named=["GPU-1b"])
    assert chooser.place(exact) == Placement(1, (1,))
    assert chooser.place(wishing(whole(2), named=["GPU-2"])) == Placement(2, (0, 1))
    assert chooser.place(wishing(whole(), excluded=["GPU-0a", "GPU-1"])) == Placement(0, (1,))
    assert chooser.place(wishing(whole(2), named=["GPU-0"])) is None
    assert lacks_of(allocations, wishing(sliced(500), named=["GPU-1a"])) == [
        Lack.NAMED,
        None,
        Lack.NAMED,
    ]


def test_no_gpu_of_a_node_without_names_can_be_named() -> None:
    allocations = cluster(2)
    chooser = Chooser(allocations, strategy("fragmentation", allocations.hardware))
    assert chooser.choose(wishing(whole(), named=["GPU-1"])) is None
    assert chooser.choose(wishing(whole(), excluded=["GPU-1"])) is not None


def test_a_gang_that_names_a_gpu_which_is_not_there_can_never_run() -> None:
    why = never_fits(named_nodes(1), gang("g", wishing(whole(), named=["GPU-9"])))
    assert why is not None
    assert "too few of the GPUs that it may use (on GPU-9)" in why


def test_a_gang_takes_the_gpu_that_its_other_member_cannot_use() -> None:
    allocations = cluster(2)
    allocations.take(Placement(0, (1,)), X)
    allocations.take(Placement(0, (0,)), sliced(100))
    placed = plan_gang(allocations, gang("g", sliced(700), NOT_X))
    assert placed == (Placement(0, (1,)), Placement(0, (0,)))


def test_nodes_that_differ_only_in_neighbours_are_both_tried() -> None:
    allocations = cluster(2, 2, rack="r")
    for at, gpu, what in ((0, 0, sliced(100)), (0, 1, X), (1, 0, X), (1, 1, sliced(100))):
        allocations.take(Placement(at, (gpu,)), what)
    for at in (0, 1):
        allocations.take(Placement(at, (1,)), sliced(400))
    placed = plan_gang(allocations, gang("g", sliced(800), NOT_X))
    assert placed == (Placement(1, (0,)), Placement(1, (1,)))


@pytest.mark.parametrize("members", [2, 12])
def test_members_that_avoid_each_other_get_different_gpus(members: int) -> None:
    each = wishing(sliced(100), label="x", apart_from=["x"])
    placed = plan_gang(cluster(4, 4, 4), gang("g", *[each] * members))
    assert placed is not None
    assert len({(one.node, one.gpus) for one in placed}) == members
    assert plan_gang(cluster(4, 4, 4), gang("g", *[each] * 13)) is None


def test_members_that_join_each_other_share_the_one_gpu_that_holds_all() -> None:
    allocations = cluster(3)
    for gpu in (0, 2):
        allocations.take(Placement(0, (gpu,)), sliced(700))
    each = wishing(sliced(100), label="x", beside="x")
    placed = plan_gang(allocations, gang("g", *[each] * 10))
    assert placed == (Placement(0, (1,)),) * 10
    assert plan_gang(allocations, gang("g", *[each] * 11)) is None


def test_members_with_whole_gpus_cannot_join_each_other() -> None:
    both = gang("g", *[wishing(whole(1), label="x", beside="x")] * 2)
    assert plan_gang(cluster(2, 2), both) is None


def test_a_member_joins_another_though_the_label_is_elsewhere_too() -> None:
    allocations = cluster(2)
    allocations.take(Placement(0, (0,)), wishing(sliced(900), label="x"))
    joins = wishing(sliced(500), beside="x")
    assert plan_gang(allocations, gang("g", joins)) is None
    both = gang("g", joins, wishing(sliced(400), label="x"))
    placed = plan_gang(allocations, both)
    assert placed == (Placement(0, (1,)),) * 2
    assert allocations.take_gang_if_it_fits(Running(both, placed, 0.0, 1.0))


def test_a_slice_moves_away_for_one_that_avoids_it() -> None:
    allocations = cluster(2)
    here = Placement(0, (0,))
    allocations.take(here, X)
    allocations.take(Placement(0, (1,)), sliced(600))
    moves = plan_moves(allocations, NOT_X, [Held("x", X, here)])
    assert moves is not None
    assert [(one.name, one.target) for one in moves.moves] == [("x", Placement(0, (1,)))]
    assert moves.placement == here


def test_a_slice_does_not_move_to_a_gpu_that_it_avoids() -> None:
    allocations = cluster(2)
    here = Placement(0, (0,))
    avoiding = wishing(sliced(100), apart_from=["y"])
    allocations.take(here, avoiding)
    allocations.take(Placement(0, (1,)), wishing(sliced(100), label="y"))
    assert plan_moves(allocations, whole(), [Held("one", avoiding, here)]) is None


def test_a_start_is_planned_for_when_the_neighbour_has_ended() -> None:
    allocations = cluster(1)
    place = Placement(0, (0,))
    allocations.take(place, X)
    line = Timeline(allocations, [running("x", X, place)], [], 0.0)
    asked = Gang("g", (NOT_X,), 50.0)
    assert line.fits_now(asked) is None
    start = line.earliest(asked)
    assert start is not None
    assert start.start == 100.0


def test_nothing_starts_now_that_a_planned_neighbour_would_meet() -> None:
    allocations = cluster(1)
    place = Placement(0, (0,))
    later = replace(running("x", X, place), start=50.0, end=150.0)
    line = Timeline(allocations, [], [later], 0.0)
    assert line.fits_now(Gang("short", (NOT_X,), 50.0)) is not None
    assert line.fits_now(Gang("long", (NOT_X,), 60.0)) is None
    assert line.fits_now(Gang("plain", (sliced(500),), 60.0)) is not None


def test_nobody_is_with_a_slice_that_has_not_come_yet() -> None:
    allocations = cluster(2)
    allocations.take(Placement(0, (0,)), X)
    allocations.take(Placement(0, (1,)), sliced(200))
    later = replace(running("late", X, Placement(0, (1,))), start=50.0, end=150.0)
    line = Timeline(allocations, [], [later], 0.0)
    start = line.fits_now(Gang("g", (wishing(sliced(500), beside="x"),), 60.0))
    assert start is not None
    assert start.placements == (Placement(0, (0,)),)


def test_an_eviction_frees_a_gpu_of_its_neighbours() -> None:
    allocations = cluster(1)
    place = Placement(0, (0,))
    x = running("x", X, place)
    plain = running("plain", sliced(100), place)
    allocations.take_gang(x)
    allocations.take_gang(plain)
    trial = EvictionTrial(allocations, Gang("g", (NOT_X,)), [x, plain], [], 0.0)
    assert not trial.fits([plain])
    assert trial.fits([x])
    assert not trial.fits([])


def test_a_gang_with_neighbours_counts_its_members_after_an_eviction() -> None:
    allocations = cluster(2)
    x = running("x", X, Placement(0, (0,)))
    allocations.take_gang(x)
    each = wishing(sliced(100), label="y", apart_from=["x", "y"])
    trial = EvictionTrial(allocations, gang("g", each, each), [x], [], 0.0)
    assert not trial.fits([])
    assert trial.fits([x])
    too_many = EvictionTrial(allocations, gang("g", each, each, each), [x], [], 0.0)
    assert not too_many.fits([x])


def test_members_that_differ_in_wishes_are_counted_apart_after_an_eviction() -> None:
    allocations = cluster(2)
    stays, victim = (running(name, sliced(500), Placement(0, (1,))) for name in "ab")
    x = running("x", X, Placement(0, (0,)))
    for one in (x, stays, victim):
        allocations.take_gang(one)
    asked = gang("g", sliced(500), NOT_X)
    trial = EvictionTrial(allocations, asked, [x, stays, victim], [], 0.0)
    assert not trial.fits([])
    assert trial.fits([victim])
