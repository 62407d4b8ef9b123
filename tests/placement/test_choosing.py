"""One request: which GPU, and why."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from aliquot.model.errors import InvalidValueError
from aliquot.placement.choose.chooser import Chooser, Relation
from aliquot.placement.choose.explain import explain
from aliquot.placement.choose.forecast import Forecast, Mix, outlook
from aliquot.placement.choose.strategies import STRATEGIES, Fragmentation, strategy
from aliquot.placement.core.allocations import Allocations, NodeFree, OverallocatedError
from aliquot.placement.core.demand import Demand, Kind, Near, Placement, sliced, whole
from aliquot.placement.core.fit import Lack, rows_of
from aliquot.placement.core.snapshot import empty
from aliquot.simulate.trace import links
from placement.builders import GIB, cluster, node, only_cpu


def chooser(
    allocations: Allocations, name: str = "fragmentation", mix: Mix | None = None
) -> Chooser:
    return Chooser(allocations, strategy(name, allocations.hardware, mix), seed=1)


def test_whole_gpus_are_kept_for_requests_that_need_them() -> None:
    allocations = cluster(8, 2)
    asks = chooser(allocations, mix={whole(8): 1, sliced(500): 3})
    assert [asks.place(sliced(500)).node for _ in range(4)] == [1, 1, 1, 1]  # type: ignore[union-attr]
    assert asks.place(whole(8)) is not None


def test_a_sliced_gpu_is_filled_before_another_is_sliced() -> None:
    asks = chooser(cluster(4))
    first = asks.place(sliced(500))
    assert asks.place(sliced(500)) == first


HALF, SHARE = sliced(500), Demand(gpus=1, kind=Kind.SHARED, milli=500, thrifty=True)
DAY = {whole(8): 1.0, whole(): 5.0, sliced(500): 3.0, sliced(250): 2.0}


@pytest.mark.parametrize("mix", [None, {HALF: 1.0}, {whole(2): 1.0}, {whole(4): 1.0}, DAY])
@pytest.mark.parametrize(
    ("demand", "of_a_node"), [(HALF, 8), (SHARE, 8), (sliced(250), 16), (whole(), 4), (whole(2), 2)]
)
def test_a_node_is_filled_before_another_is_opened(
    demand: Demand, of_a_node: int, mix: Mix | None
) -> None:
    for name in ("fragmentation", "pack"):
        asks = chooser(cluster(4, 4, 4, 4), name, mix)
        nodes = [asks.place(demand).node for _ in range(4 * of_a_node)]  # type: ignore[union-attr]
        runs = [(node, len(list(run))) for node, run in itertools.groupby(nodes)]
        assert sorted(runs) == [(node, of_a_node) for node in range(4)], name


def test_a_node_that_has_the_kind_is_filled_before_one_that_is_as_full_of_another() -> None:
    allocations = cluster(4, 4, 4)
    allocations.take(Placement(1, (0,)), whole())
    allocations.take(Placement(2, (0,)), SHARE)
    allocations.take(Placement(2, (0,)), SHARE)
    assert chooser(allocations).choose(SHARE).node == 2  # type: ignore[union-attr]
    assert chooser(allocations).choose(whole()).node == 1  # type: ignore[union-attr]


def used(milli: int, *busy: int) -> NodeFree:
    """Sliced GPUs with so much free, of which these eighths of the time are really used."""
    count = len(busy)
    return NodeFree((milli,) * count, (0,) * count, (Kind.SLICED,) * count, (1,) * count, (), busy)


@pytest.mark.parametrize("name", ["fragmentation", "fgd", "pack", "best-fit", "spread"])
def test_of_equal_gpus_a_part_goes_to_the_one_that_is_used_the_least(name: str) -> None:
    allocations = cluster(3, 3)
    allocations.set_node(0, used(500, 5, 8, 5))
    allocations.set_node(1, used(500, 7, 7, 3))
    asks = chooser(allocations, name)
    assert asks.choose(sliced(300)) == Placement(1, (2,))
    assert asks.gpus_on(0, sliced(300)) == (0,)
    assert asks.costs(sliced(300)).argmin() == 1


def test_an_idle_gpu_is_no_reason_to_open_another() -> None:
    allocations = cluster(2, 2)
    allocations.set_node(0, used(500, 8, 8))
    for name in ("fragmentation", "pack"):
        assert chooser(allocations, name).choose(sliced(300)) == Placement(0, (0,))


def test_fgd_takes_the_gpu_that_fits_and_not_its_like_of_another_kind() -> None:
    allocations = cluster(2)
    allocations.take(Placement(0, (0,)), Demand(gpus=1, kind=Kind.SHARED, milli=500))
    allocations.take(Placement(0, (1,)), sliced(500))
    assert chooser(allocations, "fgd").choose(sliced(300)) == Placement(0, (1,))


def test_thrifty_work_goes_to_the_weaker_gpu() -> None:
    nodes = [node("strong", 2, model="H100", strength=1.0), node("weak", 2, model="T4")]
    asks = chooser(Allocations(empty(nodes)))
    small = Demand(gpus=1, kind=Kind.SLICED, milli=300, thrifty=True)
    assert {asks.place(small).node for _ in range(6)} == {1}  # type: ignore[union-attr]


def test_whole_gpus_are_taken_of_the_stronger_model() -> None:
    nodes = [node("weak", 4, model="T4"), node("strong", 4, model="H100", strength=1.0)]
    asks = chooser(Allocations(empty(nodes)))
    assert [asks.place(whole()).node for _ in range(5)] == [1, 1, 1, 1, 0]  # type: ignore[union-attr]


def test_a_gpu_of_its_kind_comes_before_a_weaker_free_one() -> None:
    nodes = [node("weak", 2, model="T4"), node("strong", 2, model="H100", strength=1.0)]
    allocations = Allocations(empty(nodes))
    small = Demand(gpus=1, kind=Kind.SLICED, milli=300, thrifty=True)
    allocations.take(Placement(1, (0,)), small)
    assert chooser(allocations).choose(small) == Placement(1, (0,))


def test_spread_takes_the_emptiest_node_and_pack_the_fullest() -> None:
    for name, expected in (("spread", 1), ("pack", 0)):
        allocations = cluster(4, 4)
        allocations.take(Placement(0, (0,)), whole())
        found = chooser(allocations, name).choose(sliced(500))
        assert found is not None
        assert found.node == expected


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        (Near.SAME_GPU, {(0, (1,))}),
        (Near.OTHER_GPU, {(0, (0,)), (1, (0,)), (1, (1,))}),
        (Near.SAME_NODE, {(0, (0,)), (0, (1,))}),
        (Near.OTHER_NODE, {(1, (0,)), (1, (1,))}),
    ],
)
def test_a_request_can_be_near_or_far_from_a_grant(
    near: Near, expected: set[tuple[int, tuple[int, ...]]]
) -> None:
    allocations = cluster(2, 2)
    grant = Placement(0, (1,))
    allocations.take(grant, sliced(100))
    found = {
        (one.node, one.gpus)
        for seed in range(20)
        if (
            one := Chooser(allocations, strategy("random", allocations.hardware), seed=seed).choose(
                sliced(100), [Relation(near, (grant,))]
            )
        )
    }
    assert found == expected


def test_a_gpu_is_locked_to_the_kind_that_came_first() -> None:
    allocations = cluster(1)
    asks = chooser(allocations)
    shared = Demand(gpus=1, kind=Kind.SHARED, milli=250)
    place = asks.place(shared)
    assert place is not None
    assert asks.choose(sliced(100)) is None
    assert dict(explain(asks, sliced(100)).lacks) == {Lack.SHARED: 1}
    assert dict(explain(asks, sliced(800)).lacks) == {Lack.GPU: 1}  # the kind is not in the way
    allocations.give(place, shared)
    assert asks.choose(sliced(100)) is not None


def test_nothing_goes_to_a_gpu_that_is_not_healthy() -> None:
    allocations = Allocations(empty([node("n", 2, unhealthy=frozenset({0}))]))
    asks = chooser(allocations)
    assert asks.choose(whole(2)) is None
    assert asks.choose(sliced(0)) == asks.choose(whole()) == Placement(0, (1,))
    assert allocations.hardware.total_milli == 1000


def test_free_capacity_is_lost_if_no_likely_request_can_use_it() -> None:
    allocations = cluster(1)
    measure = Fragmentation(outlook({sliced(600): 1.0}, allocations.hardware))
    allocations.take(Placement(0, (0,)), sliced(300))
    assert measure.lost(rows_of(allocations, np.array([0]))) == pytest.approx(
        1 - 600 / 700, abs=0.01
    )
    allocations.take(Placement(0, (0,)), sliced(200))
    assert measure.lost(rows_of(allocations, np.array([0]))) == 1


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_costs_after_changes_are_those_of_a_new_chooser(name: str) -> None:
    chance = random.Random(name)  # noqa: S311 - a mix, not a secret
    shapes = [whole(), whole(2), sliced(250, 3 * GIB), replace(SHARE, gpus=2), only_cpu(1000)]
    allocations = cluster(4, 2, 1, gpu_bytes=80 * GIB)
    by = strategy(name, allocations.hardware, DAY)
    asks = Chooser(allocations, by, seed=1)
    held: list[tuple[Placement, Demand]] = []
    for number in range(40):
        demand = chance.choice(shapes)
        place = asks.place(demand)
        if place is not None:
            held.append((place, demand))
        if held and chance.random() < 0.4:
            allocations.give(*held.pop(chance.randrange(len(held))))
        if number == 20:  # another node comes into a row
            held = [one for one in held if one[0].node != 2]
            half = NodeFree(
                (1000, 500), (40 * GIB, 30 * GIB), (Kind.FREE, Kind.SLICED), (0, 1), busy=(0, 5)
            )
            allocations.set_node(2, half, node("other", 2, gpu_bytes=40 * GIB))
        for shape in shapes:
            new = Chooser(allocations, by, seed=1)
            assert asks.costs(shape).tolist() == new.costs(shape).tolist()
            assert asks.choose(shape) == new.choose(shape)


def worth(ahead: Forecast, allocations: Allocations, at: int) -> float:
    """What a node is worth, GPU by GPU, as `forecast` has it."""
    hardware, kinds = allocations.hardware, allocations.kind[at]
    model, there = int(hardware.model[at]), hardware.present[at]
    idle = int(sum(there & (kinds == Kind.FREE)))
    total = [float(one[model, idle]) for one in (ahead.idle.fill, ahead.idle.cpu, ahead.idle.ram)]
    for gpu in np.flatnonzero(there & (kinds != Kind.FREE)):
        size = size_of(allocations, at, int(gpu))
        for number, one in enumerate((ahead.holes.fill, ahead.holes.cpu, ahead.holes.ram)):
            total[number] += float(one[model, size])
    found = total[0]
    for needs, need, left in zip(
        ahead.uses, total[1:], (allocations.cpu_free[at], allocations.ram_free[at]), strict=True
    ):
        ratio = min(1.6 * left / max(need, 1e-9), 1e6)
        found *= ratio / (1 + ratio**6) ** (1 / 6) if needs else np.sign(left)
    return float(found)


def size_of(allocations: Allocations, at: int, gpu: int) -> int:
    milli, left = int(allocations.milli_free[at, gpu]), int(allocations.bytes_free[at, gpu])
    memory = int(allocations.hardware.gpu_bytes[at])
    return min(milli, left * 1000 // memory) if memory else milli


def straightforward(ahead: Forecast, allocations: Allocations, at: int, demand: Demand) -> float:
    """The cost of one GPU on a node: what the node is worth less afterwards, by trying each."""
    here = allocations.hardware.present[at]
    left = sum(size_of(allocations, at, int(gpu)) for gpu in np.flatnonzero(here))
    costs = [np.inf]
    for gpu in range(len(here)):
        place, trial = Placement(at, (gpu,)), allocations.copy()
        if not trial.fits(place, demand):
            continue
        opens = allocations.kind[at, gpu] == Kind.FREE
        trial.take(place, demand)
        loss = worth(ahead, allocations, at) + left / 1000 - worth(ahead, trial, at)
        costs.append(loss + 1e6 * (demand.thrifty and opens))
    return min(costs) + 10 * (demand.kind not in allocations.kind[at])


@pytest.mark.parametrize("width", [1, 4, 8, 16])
def test_a_cost_is_what_the_node_is_worth_less_afterwards(width: int) -> None:
    chance = random.Random(width)  # noqa: S311 - a mix, not a secret
    shapes = [
        Demand(1, kind, milli, milli * 16 * GIB // 1000, cpu, cpu * GIB // 4000, thrifty=thrifty)
        for kind, milli in ((Kind.SLICED, 250), (Kind.SHARED, 400), (Kind.WHOLE, 1000))
        for cpu, thrifty in ((1000, False), (3000, True))
    ]
    allocations = cluster(width, width, max(1, width - 2), gpu_bytes=16 * GIB, cpu_milli=16_000)
    ahead = outlook(dict.fromkeys(shapes, 1.0), allocations.hardware)
    held: list[tuple[Placement, Demand]] = []
    for _ in range(30):
        asks = Chooser(allocations, Fragmentation(ahead), seed=1)
        for shape in shapes:
            costs = [straightforward(ahead, allocations, at, shape) for at in range(3)]
            assert asks.costs(shape) == pytest.approx(costs, abs=1e-6)
        demand = chance.choice(shapes)
        place = asks.place(demand)
        if place is not None:
            held.append((place, demand))
        if held and chance.random() < 0.3:
            allocations.give(*held.pop(chance.randrange(len(held))))


def test_a_request_larger_than_a_gpu_is_not_expected_on_it() -> None:
    allocations = Allocations(empty([node("t4", 1, gpu_bytes=16 * GIB)]))
    holes = outlook(
        {sliced(100, 40 * GIB): 1.0, sliced(100, 8 * GIB): 1.0}, allocations.hardware
    ).holes
    assert holes.fill[0][[400, 500, 1000]].tolist() == [0, 500, 1000]
    none = outlook({sliced(100, 40 * GIB): 1.0}, allocations.hardware).holes
    assert not none.fill.any()


def test_a_snapshot_cannot_be_changed() -> None:
    picture = empty([node("a", 2), node("b", 2)])
    changed = picture.hardware.with_node(1, node("c", 1))
    for array in (picture.milli_free, picture.hardware.present, changed.cpu_milli, changed.rack):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("by", ["fragmentation", "pack", "best-fit", "spread"])
def test_of_nodes_that_cost_the_same_the_one_with_the_better_link_is_taken(by: str) -> None:
    pairs = [node(name, 4, links=links("nvlink-pairs", 4)) for name in ("cross", "pair", "other")]
    allocations = Allocations(empty(pairs))
    for where, gpus in enumerate([(1, 3), (2, 3), (0, 2)]):
        allocations.take(Placement(where, gpus), whole(2))
    costs = strategy(by, allocations.hardware)
    found = {Chooser(allocations, costs, seed=seed).choose(whole(2)) for seed in range(20)}
    assert found == {Placement(1, (0, 1))}


def test_four_gpus_go_to_a_switch_and_one_goes_anywhere() -> None:
    allocations = Allocations(
        empty([node("pcie", 8), node("switch", 8, links=links("nvswitch", 8))])
    )
    by = strategy("fragmentation", allocations.hardware)
    for demand, expected in ((whole(4), {1}), (sliced(500, gpus=2), {1}), (whole(), {0, 1})):
        found = [Chooser(allocations, by, seed=seed).choose(demand) for seed in range(20)]
        assert {one.node for one in found if one} == expected


def test_a_better_link_is_not_worth_a_broken_up_node() -> None:
    nodes = [node("switch", 8, links=links("nvswitch", 8)), node("pcie", 2)]
    asks = chooser(Allocations(empty(nodes)), mix={whole(8): 1})
    assert asks.choose(whole(2)) == Placement(1, (0, 1))


def test_what_does_not_fit_cannot_be_taken() -> None:
    allocations = cluster(1)
    allocations.take(Placement(0, (0,)), sliced(600))
    with pytest.raises(OverallocatedError):
        allocations.take(Placement(0, (0,)), sliced(600))


def test_every_node_is_accounted_for() -> None:
    nodes = [
        node("small", 1, gpu_bytes=8 * GIB, model="T4"),
        node("other", 1, gpu_bytes=80 * GIB, model="A100"),
        node("busy", 1, gpu_bytes=80 * GIB, model="T4", cpu_milli=500),
        node("none", 0, model="T4"),
        node("full", 1, gpu_bytes=80 * GIB, model="T4"),
        node("crowded", 1, gpu_bytes=80 * GIB, model="T4", ram_bytes=GIB),
        node("shared", 1, gpu_bytes=80 * GIB, model="T4"),
    ]
    allocations = Allocations(empty(nodes))
    allocations.take(Placement(4, (0,)), sliced(900, 70 * GIB))
    allocations.take(Placement(6, (0,)), Demand(kind=Kind.SHARED, milli=100))
    ask = Demand(
        gpus=1,
        kind=Kind.SLICED,
        milli=500,
        gpu_bytes=16 * GIB,
        cpu_milli=1000,
        ram_bytes=2 * GIB,
        models=frozenset({"T4"}),
    )
    said = explain(chooser(allocations), ask)
    assert said.placement is None
    assert dict(said.examples) == {
        Lack.TOO_SMALL: 0,
        Lack.MODEL: 1,
        Lack.CPU: 2,
        Lack.TOO_FEW: 3,
        Lack.GPU: 4,
        Lack.RAM: 5,
        Lack.SHARED: 6,
    }


def test_a_reason_names_nodes_excluded_by_affinity() -> None:
    """Costs, the next best and the lacks are those of the nodes that the affinity leaves."""
    allocations = cluster(4, 4, 4, 1)
    grant = Placement(0, (0,))
    allocations.take(grant, whole())
    away = [Relation(Near.OTHER_NODE, (grant,))]
    said = explain(chooser(allocations, "pack"), whole(2), away)
    assert said.placement is not None
    assert said.placement.node in (1, 2)
    assert [(node, cost) for node, cost in said.runners_up] == [(3 - said.placement.node, 0.0)]
    assert dict(said.lacks) == {Lack.TAKEN_OUT: 1, Lack.TOO_FEW: 1}
    assert dict(said.examples) == {Lack.TAKEN_OUT: 0, Lack.TOO_FEW: 3}
    near = [Relation(Near.SAME_GPU, (grant,))]
    assert dict(explain(chooser(allocations), sliced(100), near).lacks) == {Lack.TAKEN_OUT: 4}


def test_spread_takes_the_emptiest_gpus_for_several_too() -> None:
    allocations = cluster(4)
    for gpu, milli in enumerate((300, 100, 0, 200)):
        allocations.take(Placement(0, (gpu,)), sliced(milli))
    two = sliced(500, gpus=2)
    assert chooser(allocations, "spread").choose(two) == Placement(0, (1, 2))
    assert chooser(allocations, "pack").choose(two) == Placement(0, (0, 3))


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match="luck"):
        strategy("luck", cluster(1).hardware)
