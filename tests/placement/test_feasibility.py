"""Whether jobs of some sizes fit on the cluster together: against all ways there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.choose.strategies import strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Gang, Placement, Running, whole
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import ClusterCapacity, Feasibility, JobWorkers

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = "abcde"


@dataclass
class Scene:
    """Some nodes, and jobs of which some run on them."""

    gpus: list[int]
    each: dict[str, int]
    nodes: dict[str, list[int]]  # where the workers are

    def room(self, live: set[str]) -> Feasibility[Running]:
        allocations = Allocations(
            empty([NodeHardware(f"n{i}", count) for i, count in enumerate(self.gpus)])
        )
        next_gpu = [0] * len(self.gpus)
        parties = {}
        for name, each in self.each.items():
            held = []
            for node in self.nodes[name]:
                gpus = tuple(range(next_gpu[node], next_gpu[node] + each))
                next_gpu[node] += each
                gang = Gang(name, (whole(each),))
                held.append(Running(gang, (Placement(node, gpus),), 0.0, 1.0))
                allocations.take_gang(held[-1])
            size = len(held) or None
            parties[name] = JobWorkers(name, (whole(each),), tuple(held), size, name in live)
        return Feasibility(
            ClusterCapacity(allocations, strategy("fragmentation", allocations.hardware)), parties
        )

    def can_hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is any way; who keeps its size stays where it is."""
        free, workers = list(self.gpus), []
        for name, nodes in self.nodes.items():
            if not nodes and name not in sizes:
                continue
            if sizes[name] == len(nodes):
                for node in nodes:
                    free[node] -= self.each[name]
            else:
                workers += [self.each[name]] * sizes[name]
        return fit(tuple(sorted(free)), tuple(sorted(workers, reverse=True)))


@cache
def fit(free: tuple[int, ...], workers: tuple[int, ...]) -> bool:
    if not workers:
        return True
    return any(
        fit(tuple(sorted((*free[:at], one - workers[0], *free[at + 1 :]))), workers[1:])
        for at, one in enumerate(free)
        if one >= workers[0] and one not in free[:at]
    )


@st.composite
def scenes(draw: st.DrawFn, most: int = 3) -> Scene:
    gpus = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    left = list(gpus)
    each: dict[str, int] = {}
    nodes: dict[str, list[int]] = {}
    for name in NAMES:
        each[name] = draw(st.integers(1, most))
        nodes[name] = []
        for _ in range(draw(st.integers(0, 3))):
            allowed_rows = [node for node, free in enumerate(left) if free >= each[name]]
            if allowed_rows:
                nodes[name].append(draw(st.sampled_from(allowed_rows)))
                left[nodes[name][-1]] -= each[name]
    return Scene(gpus, each, nodes)


def questions(scene: Scene) -> st.SearchStrategy[list[dict[str, int]]]:
    """Sizes of jobs, one after the other: those that run are in all of them."""
    runs = {name: st.integers(1, 5) for name, nodes in scene.nodes.items() if nodes}
    waits = {name: st.integers(1, 4) for name, nodes in scene.nodes.items() if not nodes}
    sizes = st.fixed_dictionaries(runs, optional=waits)
    return st.lists(sizes, min_size=1, max_size=12)


@given(st.data(), scenes(), st.sets(st.sampled_from(NAMES)))
def test_sizes_that_fit_have_a_layout_whatever_was_asked_before(
    data: st.DataObject, scene: Scene, live: set[str]
) -> None:
    room = scene.room(live)
    for sizes in data.draw(questions(scene)):
        if room.fits(sizes):
            assert scene.can_hold(sizes), sizes
            assert room.free_milli(sizes) >= 0


@given(st.data(), scenes(most=1), st.sets(st.sampled_from(NAMES)))
def test_workers_of_one_gpu_are_counted(data: st.DataObject, scene: Scene, live: set[str]) -> None:
    room = scene.room(live)
    for sizes in data.draw(questions(scene)):
        assert room.fits(sizes) == (sum(sizes.values()) <= sum(scene.gpus))
        assert room.free_milli(sizes) == 1000 * (sum(scene.gpus) - sum(sizes.values()))


@given(st.data(), scenes(), st.sets(st.sampled_from(NAMES)))
def test_a_resize_that_is_possible_now_fits(
    data: st.DataObject, scene: Scene, live: set[str]
) -> None:
    room = scene.room(live)
    now = {name: len(nodes) for name, nodes in scene.nodes.items() if nodes}
    name = data.draw(st.sampled_from(NAMES))
    size = data.draw(st.integers(1, 5))
    if room.after_resize(name, size) is not None:
        assert room.fits({**now, name: size})
