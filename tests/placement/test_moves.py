"""Moving slices: who, where to, and what it costs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.placement.choose.defragment import Held, Moves, plan_moves
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Kind, Placement, sliced, whole
from aliquot.placement.core.snapshot import empty
from placement.builders import GIB, cluster, node


def carried_out(allocations: Allocations, held: list[Held], plan: Moves, demand: Demand) -> None:
    """Each move is made beside all that is still there; then the request is taken."""
    demands = {one.name: one.demand for one in held}
    for move in plan.moves:
        allocations.take(move.target, demands[move.name])
        allocations.give(move.source, demands[move.name])
    allocations.take(plan.placement, demand)


def hold(allocations: Allocations, *slices: tuple[str, tuple[int, int], int, int]) -> list[Held]:
    held = []
    for name, (where, gpu), milli, gib in slices:
        demand, placement = sliced(milli, gib * GIB), Placement(where, (gpu,))
        allocations.take(placement, demand)
        held.append(Held(name, demand, placement))
    return held


def test_the_cheapest_moves_free_a_whole_gpu() -> None:
    allocations = Allocations(
        empty([node("a", 2, gpu_bytes=80 * GIB), node("b", 1, gpu_bytes=80 * GIB)])
    )
    held = hold(
        allocations,
        ("big", (0, 0), 400, 40),
        ("small", (0, 1), 400, 10),
        ("other", (1, 0), 400, 30),
    )
    plan = plan_moves(allocations, whole(), held)
    assert plan is not None
    assert [move.name for move in plan.moves] == ["small"]
    assert plan.bytes == 10 * GIB
    assert plan.placement == Placement(0, (1,))
    carried_out(allocations, held, plan, whole())


def test_there_is_no_plan_where_nothing_can_move() -> None:
    allocations = cluster(1)
    demand = Demand(gpus=1, kind=Kind.SLICED, milli=600)
    allocations.take(Placement(0, (0,)), demand)
    assert plan_moves(allocations, whole(), [Held("it", demand, Placement(0, (0,)))]) is None


def test_one_that_is_large_enough_leaves_rather_than_all_that_are_smaller() -> None:
    nodes = [node("a", 1, gpu_bytes=80 * GIB), node("b", 1, gpu_bytes=80 * GIB)]
    allocations = Allocations(empty(nodes))
    held = hold(
        allocations,
        ("ten", (0, 0), 100, 10),
        ("twenty", (0, 0), 100, 20),
        ("forty", (0, 0), 400, 40),
        ("other", (1, 0), 400, 40),
    )
    plan = plan_moves(allocations, sliced(700, 40 * GIB), held)
    assert plan is not None
    assert [move.name for move in plan.moves] == ["forty"]


def test_one_that_holds_two_gpus_is_moved_once_for_both() -> None:
    allocations = Allocations(
        empty([node("a", 4, gpu_bytes=80 * GIB), node("b", 2, gpu_bytes=80 * GIB)])
    )
    pair = sliced(100, 8 * GIB, gpus=2)
    allocations.take(Placement(0, (2, 3)), pair)
    held = [Held("pair", pair, Placement(0, (2, 3)))]
    held += hold(allocations, ("a", (0, 0), 100, 10), ("b", (0, 1), 100, 10))
    held += hold(allocations, ("c", (1, 0), 100, 30))
    plan = plan_moves(allocations, whole(3), held)
    assert plan is not None
    assert {move.name for move in plan.moves} == {"pair", "a"}
    assert plan.bytes == 26 * GIB


@settings(max_examples=60, deadline=None)
@given(
    slices=st.lists(
        st.tuples(
            st.tuples(st.integers(0, 2), st.integers(0, 1)),
            st.sampled_from([100, 300, 500]),
            st.sampled_from([4, 10, 40]),
        ),
        max_size=9,
    ),
    demand=st.sampled_from([whole(), whole(2), sliced(800, 60 * GIB), sliced(600, gpus=2)]),
)
def test_a_plan_can_be_carried_out_and_costs_no_more_than_to_clear_a_node(
    slices: list[tuple[tuple[int, int], int, int]], demand: Demand
) -> None:
    allocations = Allocations(empty([node(f"n{i}", 2, gpu_bytes=80 * GIB) for i in range(3)]))
    held: list[Held] = []
    for number, (where, milli, gib) in enumerate(slices):
        if allocations.fits(Placement(where[0], (where[1],)), sliced(milli, gib * GIB)):
            held += hold(allocations, (f"s{number}", where, milli, gib))
    plan = plan_moves(allocations, demand, held)
    if plan is None:
        return
    carried_out(allocations, held, plan, demand)
    on_the_node = [one for one in held if one.placement.node == plan.placement.node]
    assert plan.bytes <= sum(one.demand.gpu_bytes for one in on_the_node)
    assert len({move.name for move in plan.moves}) == len(plan.moves)
