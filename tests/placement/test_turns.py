"""Slices that take turns with memory, on the nodes of a cluster."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.strategies import STRATEGIES, strategy
from aliquot.placement.core.allocations import Allocations, Bundle, NodeFree
from aliquot.placement.core.demand import Demand, Gang, Kind, Placement, Running
from aliquot.placement.core.overcommit import COPIES, FIXED_BYTES
from aliquot.placement.core.turns import NodeTurns, Swap
from aliquot.placement.gangs.domains import capacity
from aliquot.placement.gangs.plan import plan_gang
from placement.builders import GIB, cluster

SIZE = 80 * GIB


def slice_of(size: int, most: float | None = None, *, milli: int = 0) -> Demand:
    return Demand(1, Kind.SLICED, milli, size, swap=Swap(most))


def rigid(size: int) -> Demand:
    return Demand(1, Kind.SLICED, 0, size)


def machine(*factors: float, gpus: int = 2, host: int | None = None) -> Allocations:
    found = cluster(*[gpus] * len(factors), gpu_bytes=SIZE)
    for node, factor in enumerate(factors):
        free = NodeFree(
            (1000,) * gpus,
            (SIZE,) * gpus,
            (Kind.FREE,) * gpus,
            (0,) * gpus,
            turns=NodeTurns(factor, host) if factor > 1 else None,
        )
        found.set_node(node, free)
    return found


def chooser(allocations: Allocations, name: str = "fragmentation") -> Chooser:
    return Chooser(allocations, strategy(name, allocations.hardware))


def test_slices_with_swap_may_have_more_together_than_the_gpu_has() -> None:
    found = chooser(machine(1.5, gpus=1))
    assert found.place(slice_of(60 * GIB)) == Placement(0, (0,))
    assert found.place(slice_of(60 * GIB)) == Placement(0, (0,))
    assert found.place(slice_of(GIB)) is None  # 1.5 times is full


def test_a_slice_without_swap_never_takes_turns() -> None:
    found = chooser(machine(2.0, gpus=1))
    assert found.place(slice_of(60 * GIB)) is not None
    assert found.place(rigid(21 * GIB)) is None
    assert found.place(rigid(20 * GIB)) is not None


def test_the_smaller_factor_of_node_and_queues_holds() -> None:
    found = chooser(machine(2.0, gpus=1))
    assert found.place(slice_of(60 * GIB, 1.25)) is not None
    assert found.choose(slice_of(41 * GIB)) is None  # whichever of both came first
    assert found.choose(slice_of(41 * GIB, 1.5)) is None
    assert found.choose(slice_of(40 * GIB)) is not None
    assert found.choose(slice_of(40 * GIB, 1.0)) is None


def test_the_host_has_room_for_what_leaves_all_gpus_of_a_node() -> None:
    found = chooser(machine(2.0, gpus=2, host=COPIES * 30 * GIB))
    for _ in range(2):
        assert found.place(slice_of(60 * GIB)) is not None
    assert found.place(slice_of(40 * GIB)) is not None  # 20 GiB leave
    assert found.place(slice_of(40 * GIB)) is None
    assert found.place(slice_of(30 * GIB)) is not None  # 10 GiB leave


def test_a_gpu_where_it_fits_beside_others_is_preferred() -> None:
    for name in sorted(STRATEGIES):
        found = machine(2.0, 1.0, gpus=1)
        found.take(Placement(0, (0,)), slice_of(60 * GIB))
        assert chooser(found, name).choose(slice_of(60 * GIB)) == Placement(1, (0,)), name


def test_of_crowded_gpus_the_one_where_least_leaves_is_taken() -> None:
    found = machine(2.0, gpus=3)
    for gpu, size in enumerate((70, 50, 60)):
        found.take(Placement(0, (gpu,)), slice_of(size * GIB))
    assert chooser(found).choose(slice_of(60 * GIB)) == Placement(0, (1,))


def test_a_gang_of_slices_takes_turns() -> None:
    found = machine(1.5, gpus=2)
    members = tuple([slice_of(60 * GIB)] * 4)
    placed = plan_gang(found, Gang("g", members))
    assert placed is not None
    assert sorted(one.gpus[0] for one in placed) == [0, 0, 1, 1]
    assert plan_gang(found, Gang("g", (*members, slice_of(60 * GIB)))) is None


def test_what_is_possible_at_two_moments_counts_the_fuller_one() -> None:
    now = machine(1.5, gpus=1)
    later = now.copy()
    later.take(Placement(0, (0,)), slice_of(60 * GIB))
    now.lower_to(later.free_on(np.array([0])))
    assert chooser(now).choose(slice_of(60 * GIB)) is not None
    assert chooser(now).choose(slice_of(61 * GIB)) is None


def test_a_slice_that_stays_where_it_is_may_have_no_turns() -> None:
    found = chooser(machine(2.0, gpus=1))
    assert found.place(rigid(SIZE)) is not None
    assert found.place(slice_of(FIXED_BYTES)) is None


sizes = st.integers(1, 90).map(lambda gib: gib * GIB)
swaps = st.one_of(
    st.none(),
    st.builds(
        Swap, st.sampled_from([None, 1.0, 1.2, 1.5, 2.0]), st.sampled_from([0, 2 * GIB, 9 * GIB])
    ),
)
slices = st.builds(
    lambda size, swap, milli: Demand(1, Kind.SLICED, milli, size, swap=swap),
    sizes,
    swaps,
    st.sampled_from([0, 0, 100, 300]),
)
nodes = st.lists(
    st.tuples(st.sampled_from([1.0, 1.2, 1.5, 2.0]), st.sampled_from([None, 16 * GIB, 64 * GIB])),
    min_size=1,
    max_size=2,
)


def _build(specs: list[tuple[float, int | None]]) -> Allocations:
    found = cluster(*[2] * len(specs), gpu_bytes=SIZE)
    for node, (factor, host) in enumerate(specs):
        turns = NodeTurns(factor, host) if factor > 1 else None
        free = NodeFree((1000,) * 2, (SIZE,) * 2, (Kind.FREE,) * 2, (0,) * 2, turns=turns)
        found.set_node(node, free)
    return found


@settings(max_examples=80, deadline=None)
@given(nodes, st.lists(slices, max_size=12), st.randoms(use_true_random=False))
def test_what_is_granted_keeps_all_rules_in_any_order(
    specs: list[tuple[float, int | None]], wanted: list[Demand], ends: Random
) -> None:
    """Added up a second time, from the rules as docs/swap.md has them."""
    allocations = _build(specs)
    found = chooser(allocations)
    held: list[tuple[Placement, Demand]] = []
    for demand in wanted:
        placement = found.place(demand)
        fresh = chooser(Allocations(allocations.snapshot()))
        if placement is None:
            assert fresh.choose(demand) is None
        else:
            held.append((placement, demand))
        if held and ends.randrange(2):
            allocations.give(*held.pop(ends.randrange(len(held))))
        _check(specs, held)
    for placement, demand in held:
        allocations.give(placement, demand)
    assert np.array_equal(allocations.bytes_free, _build(specs).bytes_free)
    assert allocations.turns == _build(specs).turns


def _check(specs: list[tuple[float, int | None]], held: list[tuple[Placement, Demand]]) -> None:
    for node, (factor, host) in enumerate(specs):
        leaves = 0
        for gpu in range(2):
            here = [one for place, one in held if (place.node, place.gpus) == (node, (gpu,))]
            every = sum(one.gpu_bytes for one in here)
            assert sum(one.milli for one in here) <= 1000
            if every <= SIZE:
                continue
            moving = [
                (one, max(FIXED_BYTES, one.swap.fixed))
                for one in here
                if one.swap is not None and one.gpu_bytes > max(FIXED_BYTES, one.swap.fixed)
            ]
            allowed = [one.swap.most for one, _ in moving if one.swap and one.swap.most]
            assert moving
            assert every <= SIZE * min([factor, *allowed])
            stay = sum(fixed for _, fixed in moving)
            away = sum(one.gpu_bytes for one, _ in moving)
            alone = max(one.gpu_bytes - fixed for one, fixed in moving)
            assert every - away + stay + alone <= SIZE
            leaves += every - SIZE
        assert host is None or COPIES * leaves <= host


@settings(max_examples=60, deadline=None)
@given(nodes, st.lists(slices, max_size=6), slices, st.integers(1, 6))
def test_as_many_fit_as_are_counted(
    specs: list[tuple[float, int | None]], before: list[Demand], demand: Demand, count: int
) -> None:
    allocations = _build(specs)
    for one in before:
        chooser(allocations).place(one)
    room = int(capacity(allocations, demand).sum())
    placed = plan_gang(allocations, Gang("g", (demand,) * count))
    assert (placed is not None) == (count <= room)
    if placed is not None:
        running = Running(Gang("g", (demand,) * count), placed, 0.0, 1.0)
        state = Allocations(allocations.snapshot())
        assert allocations.take_gang_if_it_fits(running)
        bundle = Bundle.of(allocations.hardware, [running])
        allocations.give_all(bundle)
        assert np.array_equal(allocations.bytes_free, state.bytes_free)
        rooms = [int(capacity(each, demand).sum()) for each in (allocations, state)]
        assert rooms[0] == rooms[1]
