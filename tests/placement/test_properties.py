"""What holds for any cluster and any stream of events."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, consumes, initialize, invariant, rule

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.choose.explain import explain
from aliquot.placement.choose.strategies import STRATEGIES, strategy
from aliquot.placement.core.allocations import Allocations, Bundle
from aliquot.placement.core.demand import Demand, Gang, Kind, Placement, Running
from aliquot.placement.core.fit import lacks_of
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.core.wishes import Wishes
from aliquot.placement.gangs.domains import capacity
from aliquot.placement.gangs.plan import plan_gang
from placement.builders import demands, node_specs
from placement.oracle import (
    all_labels,
    can_be_placed_so,
    can_place,
    machines,
    placements,
    true_lacks,
)

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Events(RuleBasedStateMachine):
    """Requests and gangs come and go; the allocations are checked by adding up what is held."""

    held = stateful.Bundle("held")

    @initialize(nodes=node_specs(), name=st.sampled_from(sorted(STRATEGIES)))
    def begin(self, nodes: list[NodeHardware], name: str) -> None:
        self.allocations = Allocations(empty(nodes))
        self.by = strategy(name, self.allocations.hardware)
        self.chooser = Chooser(self.allocations, self.by, seed=1)
        self.alive: dict[int, list[tuple[Placement, Demand]]] = {}
        self.count = 0

    @rule(target=held, demand=demands())
    def request(self, demand: Demand) -> int:
        possible = set(placements(self.allocations, demand))
        placement = self.chooser.place(demand)
        assert (placement in possible) if possible else placement is None
        return self._hold([] if placement is None else [(placement, demand)])

    @rule(target=held, members=st.lists(demands(), min_size=1, max_size=3))
    def gang(self, members: list[Demand]) -> int:
        before = self.allocations.snapshot()
        one = Gang("g", tuple(members))
        placed = plan_gang(self.allocations, one, self.by, seed=1)
        assert plan_gang(Allocations(before), one, self.by, seed=1) == placed
        assert np.array_equal(before.milli_free, self.allocations.milli_free)
        assert (placed is not None) == can_place(self.allocations, members)
        assert placed is None or can_be_placed_so(self.allocations, members, placed)
        pairs = list(zip(placed or (), members, strict=False))
        assert len(pairs) in (0, len(members))
        if placed is not None:
            assert self.allocations.take_gang_if_it_fits(Running(one, placed, 0.0, 1.0))
        return self._hold(pairs)

    @rule(one=consumes(held))
    def end(self, one: int) -> None:
        for placement, demand in self.alive.pop(one):
            self.allocations.give(placement, demand)

    @rule(demand=demands())
    def every_refusal_is_true(self, demand: Demand) -> None:
        said = explain(self.chooser, demand)
        fits = {one.node for one in placements(self.allocations, demand)}
        refused = self.allocations.hardware.size - len(fits)
        assert sum(count for _, count in said.lacks) == refused
        lacks = lacks_of(self.allocations, demand)
        assert {node for node, lack in enumerate(lacks) if lack is None} == fits
        every = machines(self.allocations)
        for machine, lack in zip(every, lacks, strict=True):
            assert lack == next(iter(true_lacks(machine, demand, all_labels(every))), None)

    @rule(demand=demands())
    def the_remembered_is_the_fresh(self, demand: Demand) -> None:
        """Another that knows the picture and nothing of what led to it gives the same answer."""
        fresh = Chooser(Allocations(self.allocations.snapshot()), self.by, seed=1)
        assert np.array_equal(self.chooser.costs(demand), fresh.costs(demand))
        assert fresh.choose(demand) == self.chooser.choose(demand)

    @rule(target=held, demand=demands())
    def what_is_explained_comes_next(self, demand: Demand) -> int:
        said = explain(self.chooser, demand)
        placement = self.chooser.place(demand)
        assert said.placement == placement
        return self._hold([] if placement is None else [(placement, demand)])

    def _hold(self, pairs: list[tuple[Placement, Demand]]) -> int:
        self.count += 1
        self.alive[self.count] = pairs
        return self.count

    @invariant()
    def no_gpu_is_weaker_than_asked(self) -> None:
        for placement, demand in (
            pair for pairs in getattr(self, "alive", {}).values() for pair in pairs
        ):
            strength = self.allocations.hardware.strength[placement.node]
            assert not placement.gpus or strength >= demand.min_strength

    @invariant()
    def no_slice_is_beside_one_that_it_avoids(self) -> None:
        on_gpu: dict[tuple[int, int], list[Wishes]] = {}
        for placement, demand in (
            pair for pairs in getattr(self, "alive", {}).values() for pair in pairs
        ):
            wishes = demand.wishes or Wishes()
            for gpu in placement.gpus:
                uuid = self.allocations.hardware.uuids[placement.node][gpu]
                assert not wishes.named or uuid.startswith(tuple(wishes.named))
                assert not uuid.startswith(tuple(wishes.excluded))
                on_gpu.setdefault((placement.node, gpu), []).append(wishes)
        for there in on_gpu.values():
            for one, other in permutations(there, 2):
                assert not other.label or other.label not in one.apart_from
        for at, there in on_gpu.items():
            told = [(one.label, one.apart_from) for one in self.allocations.marks.on(*at)]
            left = [(one.label, one.apart_from) for one in there if one.label or one.apart_from]
            assert Counter(told) == Counter(left)

    @invariant()
    def nothing_is_over(self) -> None:
        if not hasattr(self, "allocations"):
            return
        hardware = self.allocations.hardware
        milli = np.where(hardware.present, 1000, -1)
        memory = np.where(hardware.present, hardware.gpu_bytes[:, None], -1)
        cpu, ram = hardware.cpu_milli.copy(), hardware.ram_bytes.copy()
        kinds: dict[tuple[int, int], set[Kind]] = {}
        for placement, demand in (pair for pairs in self.alive.values() for pair in pairs):
            whole = demand.kind is Kind.WHOLE
            cpu[placement.node] -= demand.cpu_milli
            ram[placement.node] -= demand.ram_bytes
            for gpu in placement.gpus:
                gpu_at = placement.node, gpu
                milli[gpu_at] -= 1000 if whole else demand.milli
                memory[gpu_at] -= hardware.gpu_bytes[placement.node] if whole else demand.gpu_bytes
                kinds.setdefault(gpu_at, set()).add(demand.kind)
        assert (milli[hardware.present] >= 0).all()
        assert (memory[hardware.present] >= 0).all()
        assert (cpu >= 0).all()
        assert (ram >= 0).all()
        assert np.array_equal(cpu, self.allocations.cpu_free)
        assert np.array_equal(ram, self.allocations.ram_free)
        assert all(len(one) == 1 for one in kinds.values())
        assert np.array_equal(milli, self.allocations.milli_free)
        assert np.array_equal(memory, self.allocations.bytes_free)
        for gpu_at in zip(*np.nonzero(hardware.present), strict=True):
            assert self.allocations.kind[gpu_at] == next(iter(kinds.get(gpu_at, {Kind.FREE})))


TestEvents = Events.TestCase
TestEvents.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@QUICK
@given(nodes=node_specs(), stream=st.lists(demands(), max_size=8), demand=demands())
def test_every_lack_that_is_named_is_true_and_the_most_lasting(
    nodes: list[NodeHardware], stream: list[Demand], demand: Demand
) -> None:
    allocations = Allocations(empty(nodes))
    chooser = Chooser(allocations, strategy("random", allocations.hardware))
    for one in stream:
        chooser.place(one)
    every = machines(allocations)
    for machine, lack in zip(every, lacks_of(allocations, demand), strict=True):
        assert lack == next(iter(true_lacks(machine, demand, all_labels(every))), None)


@QUICK
@given(nodes=node_specs(), demand=demands())
def test_capacity_is_how_many_really_fit(nodes: list[NodeHardware], demand: Demand) -> None:
    if not (demand.gpus and (demand.milli or demand.gpu_bytes or demand.cpu_milli)):
        return
    if demand.wishes and demand.wishes.joins_itself:  # the first decides where the others may go
        return
    allocations = Allocations(empty(nodes))
    for number, room in enumerate(capacity(allocations, demand)):
        alone = Allocations(empty([nodes[number]]))
        if room <= 6:
            assert can_place(alone, [demand] * int(room))
            assert not can_place(alone, [demand] * int(room + 1))


@QUICK
@given(nodes=node_specs(), stream=st.lists(demands(), max_size=12), seed=st.integers(0, 3))
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_the_same_snapshot_and_seed_give_the_same_answer(
    name: str, nodes: list[NodeHardware], stream: list[Demand], seed: int
) -> None:
    def answers(asked_before: int) -> list[Placement | None]:
        allocations = Allocations(empty(nodes))
        chooser = Chooser(allocations, strategy(name, allocations.hardware), seed=seed)
        found = []
        for demand in stream:
            for _ in range(asked_before):
                chooser.choose(demand)
            found.append(chooser.place(demand))
        return found

    assert answers(0) == answers(2)


@QUICK
@given(nodes=node_specs(), stream=st.lists(demands(), max_size=8))
def test_equal_pictures_have_equal_fingerprints(
    nodes: list[NodeHardware], stream: list[Demand]
) -> None:
    allocations = Allocations(empty(nodes))
    known = allocations.fingerprint
    chooser = Chooser(allocations, strategy("random", allocations.hardware))
    pairs = [(placement, one) for one in stream if (placement := chooser.place(one))]
    taken = [Running(Gang("g", (one,)), (placement,), 0, 1) for placement, one in pairs]
    full = allocations.snapshot()
    assert Allocations(full).fingerprint == allocations.fingerprint
    allocations.give_all(Bundle.of(allocations.hardware, taken))
    allocations.take_all(Bundle.of(allocations.hardware, taken))
    assert allocations.fingerprint == Allocations(full).fingerprint
    assert np.array_equal(allocations.kind, full.kind)
    assert allocations.marks == full.marks
    allocations.give_all(Bundle.of(allocations.hardware, taken))
    assert allocations.fingerprint == known
    assert (allocations.kind == Kind.FREE).all()
    assert not allocations.marks
    assert np.array_equal(allocations.bytes_free, empty(nodes).bytes_free)


def test_random_takes_every_gpu_in_the_end() -> None:
    """Also where every request takes what the last one gave back, and no seed changes."""
    allocations = Allocations(empty([NodeHardware(f"n{i}", 2) for i in range(4)]))
    chooser = Chooser(allocations, strategy("random", allocations.hardware), seed=3)
    half = Demand(kind=Kind.SLICED, milli=500)
    held = [chooser.place(half) for _ in range(8)]
    seen = set(held)
    for _ in range(60):
        first = held.pop(0)
        assert first is not None
        allocations.give(first, half)
        held.append(chooser.place(half))
        seen.add(held[-1])
    assert len(seen) == 8
