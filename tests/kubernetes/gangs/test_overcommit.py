"""Gangs whose slices take turns with memory, through the tests' API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from aliquot.kubernetes.api.gpunode import OverCommit
from aliquot.kubernetes.api.names import PLAN, QUEUE, SWAP
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.api.requests import asks
from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.cluster.workloads import Workloads
from kubernetes.builders import GIB, make_node
from kubernetes.extender.replica import put_node
from kubernetes.extender.test_overcommit import bind, crowded, planner, pod
from kubernetes.fake_api import until
from kubernetes.gangs.world import World, is_bound, played

if TYPE_CHECKING:
    from kubernetes.extender.replica import Replica

SWAPS = {SWAP: "true"}
SIXTY = 60 * 4  # units of memory


def let_turns(world: World, gpus: int, factor: float) -> None:
    """Let the slices of the first node take turns."""
    node = make_node("n0", gpus)
    said = OverCommit(factor, 512 * GIB, 0, 2 * GIB)
    status = msgspec.structs.replace(node.status, overcommit=said)
    put_node(world.api, msgspec.structs.replace(node, status=status))


def test_a_gang_that_swaps_starts_on_gpus_that_are_too_small_for_all_of_it() -> None:
    async def play(world: World, _: Replica) -> None:
        let_turns(world, 2, 1.5)
        world.gang("rigid", 3, memory=SIXTY)
        await until(lambda: world.phase("rigid") == "Waiting")
        world.gang("a", 4, annotations=SWAPS, memory=SIXTY)
        await is_bound(world, "a", 4)
        plans = [decode_plan(one.metadata.annotations[PLAN]) for one in world.pods("a").values()]
        assert [one and one.containers["main"].overcommit for one in plans] == [0.0] * 4
        assert not world.bound("rigid")

    played(World(2), play)


def test_the_gangs_queue_bounds_its_turns() -> None:
    async def play(world: World, _: Replica) -> None:
        let_turns(world, 2, 2.0)
        world.queue("strict", overcommit=1.2)
        labels = {QUEUE: "strict"}
        world.gang("a", 4, annotations=SWAPS, memory=SIXTY, labels=labels)
        await until(lambda: world.phase("a") == "Waiting")
        world.gang("b", 4, annotations=SWAPS, memory=48 * 4, labels=labels)
        await is_bound(world, "b", 4)
        plans = [decode_plan(one.metadata.annotations[PLAN]) for one in world.pods("b").values()]
        assert [one and one.containers["main"].overcommit for one in plans] == [1.2] * 4
        assert not world.bound("a")

    played(World(2), play)


def test_giving_back_what_workloads_hold_leaves_all_gpus_free() -> None:
    of = planner(crowded("n1", 2, factor=2.0), crowded("n2", 1))
    queues = Queues()
    workloads = Workloads(queues.queue_of, lambda one: asks(one, (ALIQUOT,)), 60.0)
    held = WorkloadAllocations(of.cluster, workloads, queues)
    empty = of.cluster.chooser.allocations.copy()
    for number, (gib, swap) in enumerate(
        [(60, True), (60, True), (20, False), (50, True)] + [(40, True)] * 3
    ):
        bound = bind(of, pod(f"p{number}", gib, swap=swap))
        assert bound is not None
        workloads.change(bound.metadata.uid, bound, 0.0)
    now = of.cluster.chooser.allocations.copy()
    assert (now.bytes_free[now.hardware.present] < 0).any()
    for one in held.running(0.0):
        now.give_gang(one)
    assert np.array_equal(now.bytes_free, empty.bytes_free)
    assert now.turns == empty.turns
