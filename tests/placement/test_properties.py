"""What holds for any cluster and any stream of events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, consumes, initialize, invariant, rule

from aliquot.placement.books import Books, Bundle
from aliquot.placement.chooser import Chooser
from aliquot.placement.demand import Demand, Gang, Kind, Placement, Running
from aliquot.placement.explain import explain
from aliquot.placement.fit import lacks_of
from aliquot.placement.gangs import plan_gang
from aliquot.placement.places import capacity
from aliquot.placement.snapshot import NodeSpec, empty
from aliquot.placement.strategies import STRATEGIES, strategy
from placement.builders import demands, node_specs
from placement.oracle import can_place, machines, placements, true_lacks

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Events(RuleBasedStateMachine):
    """Requests and gangs come and go; the books are checked by adding up what is held."""

    held = stateful.Bundle("held")

    @initialize(nodes=node_specs(), name=st.sampled_from(sorted(STRATEGIES)))
    def begin(self, nodes: list[NodeSpec], name: str) -> None:
        self.books = Books(empty(nodes))
        self.by = strategy(name, self.books.hardware)
        self.chooser = Chooser(self.books, self.by, seed=1)
        self.alive: dict[int, list[tuple[Placement, Demand]]] = {}
        self.count = 0

    @rule(target=held, demand=demands())
    def request(self, demand: Demand) -> int:
        possible = any(True for _ in placements(self.books, demand))
        placement = self.chooser.place(demand)
        assert (placement is not None) == possible
        return self._hold([] if placement is None else [(placement, demand)])

    @rule(target=held, members=st.lists(demands(), min_size=1, max_size=3))
    def gang(self, members: list[Demand]) -> int:
        before = self.books.snapshot()
        one = Gang("g", tuple(members))
        placed = plan_gang(self.books, one, self.by, seed=1)
        assert plan_gang(Books(before), one, self.by, seed=1) == placed
        assert np.array_equal(before.milli_left, self.books.milli_left)
        assert (placed is not None) == can_place(self.books, members)
        pairs = list(zip(placed or (), members, strict=False))
        assert len(pairs) in (0, len(members))
        for placement, demand in pairs:
            self.books.take(placement, demand)
        return self._hold(pairs)

    @rule(one=consumes(held))
    def end(self, one: int) -> None:
        for placement, demand in self.alive.pop(one):
            self.books.give(placement, demand)

    @rule(demand=demands())
    def every_refusal_is_true(self, demand: Demand) -> None:
        said = explain(self.chooser, demand)
        fits = {one.node for one in placements(self.books, demand)}
        refused = self.books.hardware.size - len(fits)
        assert sum(count for _, count in said.lacks) == refused
        lacks = lacks_of(self.books, demand)
        assert {node for node, lack in enumerate(lacks) if lack is None} == fits
        for machine, lack in zip(machines(self.books), lacks, strict=True):
            assert lack == next(iter(true_lacks(machine, demand)), None)

    @rule(demand=demands())
    def the_remembered_is_the_fresh(self, demand: Demand) -> None:
        """Another that knows the picture and nothing of what led to it gives the same answer."""
        fresh = Chooser(Books(self.books.snapshot()), self.by, seed=1)
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
    def nothing_is_over(self) -> None:
        if not hasattr(self, "books"):
            return
        hardware = self.books.hardware
        milli = np.where(hardware.present, 1000, -1)
        memory = np.where(hardware.present, hardware.gpu_bytes[:, None], -1)
        cpu, ram = hardware.cpu_milli.copy(), hardware.ram_bytes.copy()
        kinds: dict[tuple[int, int], set[Kind]] = {}
        for placement, demand in (pair for pairs in self.alive.values() for pair in pairs):
            whole = demand.kind is Kind.WHOLE
            cpu[placement.node] -= demand.cpu_milli
            ram[placement.node] -= demand.ram_bytes
            for gpu in placement.gpus:
                card = placement.node, gpu
                milli[card] -= 1000 if whole else demand.milli
                memory[card] -= hardware.gpu_bytes[placement.node] if whole else demand.gpu_bytes
                kinds.setdefault(card, set()).add(demand.kind)
        assert (milli[hardware.present] >= 0).all()
        assert (memory[hardware.present] >= 0).all()
        assert (cpu >= 0).all()
        assert (ram >= 0).all()
        assert np.array_equal(cpu, self.books.cpu_left)
        assert np.array_equal(ram, self.books.ram_left)
        assert all(len(one) == 1 for one in kinds.values())
        assert np.array_equal(milli, self.books.milli_left)
        assert np.array_equal(memory, self.books.bytes_left)
        for card in zip(*np.nonzero(hardware.present), strict=True):
            assert self.books.kind[card] == next(iter(kinds.get(card, {Kind.FREE})))


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
    nodes: list[NodeSpec], stream: list[Demand], demand: Demand
) -> None:
    books = Books(empty(nodes))
    chooser = Chooser(books, strategy("random", books.hardware))
    for one in stream:
        chooser.place(one)
    for machine, lack in zip(machines(books), lacks_of(books, demand), strict=True):
        assert lack == next(iter(true_lacks(machine, demand)), None)


@QUICK
@given(nodes=node_specs(), demand=demands())
def test_capacity_is_how_many_really_fit(nodes: list[NodeSpec], demand: Demand) -> None:
    if not (demand.gpus and (demand.milli or demand.gpu_bytes or demand.cpu_milli)):
        return
    books = Books(empty(nodes))
    for number, room in enumerate(capacity(books, demand)):
        alone = Books(empty([nodes[number]]))
        if room <= 6:
            assert can_place(alone, [demand] * int(room))
            assert not can_place(alone, [demand] * int(room + 1))


@QUICK
@given(nodes=node_specs(), stream=st.lists(demands(), max_size=12), seed=st.integers(0, 3))
@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_the_same_snapshot_and_seed_give_the_same_answer(
    name: str, nodes: list[NodeSpec], stream: list[Demand], seed: int
) -> None:
    def answers(asked_before: int) -> list[Placement | None]:
        books = Books(empty(nodes))
        chooser = Chooser(books, strategy(name, books.hardware), seed=seed)
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
    nodes: list[NodeSpec], stream: list[Demand]
) -> None:
    books = Books(empty(nodes))
    known = books.fingerprint
    chooser = Chooser(books, strategy("random", books.hardware))
    pairs = [(placement, one) for one in stream if (placement := chooser.place(one))]
    taken = [Running(Gang("g", (one,)), (placement,), 0, 1) for placement, one in pairs]
    full = books.snapshot()
    assert Books(full).fingerprint == books.fingerprint
    books.give_all(Bundle.of(books.hardware, taken))
    books.take_all(Bundle.of(books.hardware, taken))
    assert books.fingerprint == Books(full).fingerprint
    assert np.array_equal(books.kind, full.kind)
    books.give_all(Bundle.of(books.hardware, taken))
    assert books.fingerprint == known
    assert (books.kind == Kind.FREE).all()
    assert np.array_equal(books.bytes_left, empty(nodes).bytes_left)


def test_random_takes_every_gpu_in_the_end() -> None:
    """Also where every request takes what the last one gave back, and no seed changes."""
    books = Books(empty([NodeSpec(f"n{i}", 2) for i in range(4)]))
    chooser = Chooser(books, strategy("random", books.hardware), seed=3)
    half = Demand(kind=Kind.SLICED, milli=500)
    held = [chooser.place(half) for _ in range(8)]
    seen = set(held)
    for _ in range(60):
        first = held.pop(0)
        assert first is not None
        books.give(first, half)
        held.append(chooser.place(half))
        seen.add(held[-1])
    assert len(seen) == 8
