"""Containers that take turns with memory: what the agent gives, and what it says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aliquot.kubernetes.api.gpunode import OverCommit
from aliquot.kubernetes.api.names import MEMORY_UNIT, OVERCOMMIT, PLAN, SWAP
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.api.requests import requests_of
from aliquot.kubernetes.node.grants.allocations import (
    DoesNotFitError,
    HostGpu,
    NodeAllocations,
)
from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation, SliceSettings
from aliquot.kubernetes.node.grants.swap import (
    NodeSwap,
    node_turns,
    overcommit_asked,
    overcommit_of,
)
from aliquot.kubernetes.node.pods import ContainerRef
from aliquot.placement.core.turns import NodeTurns
from aliquot.slices import control
from kubernetes.builders import GIB, make_pod
from kubernetes.node.fake_kubelet import AdmissionError
from kubernetes.node.rig import NODE, Node, grant_of, on_node

UNITS = 40  # 10 GiB; a T4 has 15
HOST = ("--host-memory", "64GiB")


def planned(node: Node, name: str, *, overcommit: float | None, swap: bool = True) -> Pod:
    """A pod that the scheduler has put on the node's first GPU."""
    gpu = control.status(node.state).gpus[0].gpu.uuid
    plan = Plan({"main": ContainerPlan("sliced", (gpu,), UNITS * MEMORY_UNIT, 0, overcommit)})
    notes = {PLAN: plan.encode(), **({SWAP: "true"} if swap else {})}
    return make_pod(name, memory=UNITS, annotations=notes)


def factor_of(node: Node) -> float | None:
    """What the node's GPUNode says."""
    said = node.gpunode().get("overcommit") or {}
    return said.get("factor")


def test_containers_take_turns_where_the_node_allows_it(short_tmp: Path) -> None:
    async def turns(node: Node) -> None:
        node.start_agent(*HOST, "--overcommit", "1.5")
        await node.ready()
        await node.until(lambda: factor_of(node) == 1.5)
        first, second = (planned(node, name, overcommit=0.0) for name in "ab")
        for one in (first, second):
            await node.run(one)
            node.set_phase(one, "Running")
        held = node.grants()
        for one in (first, second):
            assert held[grant_of(node, one)].turns is not None
        status = control.status(node.state)
        assert status.gpus[0].granted_bytes > status.gpus[0].gpu.memory_bytes
        await node.until(lambda: "TakesTurns" in dict(node.events(second)))
        text = dict(node.events(second))["TakesTurns"]
        assert text.startswith("container 'main' takes turns with memory on GPU 0: slices have ")
        await node.until(lambda: len(node.holders()) == 2)
        (gpu,) = node.gpunode()["gpus"]
        assert [one["overcommit"] for one in gpu["grants"]] == [0.0, 0.0]
        for one in (first, second):
            node.end(one)
        await node.until(lambda: not node.grants())

    on_node(turns, short_tmp, shape="t4:1", agent=False)


def test_a_container_that_may_not_take_turns_keeps_the_wall(short_tmp: Path) -> None:
    async def wall(node: Node) -> None:
        node.start_agent(*HOST, "--overcommit", "1.5")
        await node.ready()
        await node.until(lambda: factor_of(node) == 1.5)
        await node.run(planned(node, "a", overcommit=0.0))
        for number, (overcommit, swap) in enumerate(((None, True), (0.0, False), (1.1, True))):
            pod = planned(node, f"b{number}", overcommit=overcommit, swap=swap)
            node.bind(pod)
            with pytest.raises(AdmissionError):
                await node.kubelet.admit(pod)
            node.end(pod)

    on_node(wall, short_tmp, shape="t4:1", agent=False)


def test_nothing_moves_of_a_container_that_swaps_only_by_the_nodes_default(
    short_tmp: Path,
) -> None:
    """The arbiter can move it, so nobody beside it needs a turn."""

    async def default(node: Node) -> None:
        node.start_agent(*HOST, "--overcommit", "2", "--swap")
        await node.ready()
        await node.until(lambda: factor_of(node) == 2)
        first = make_pod("a", memory=8)
        await node.run(first)
        await node.run(planned(node, "b", overcommit=0.0))
        (gpu,) = control.status(node.state).gpus
        assert gpu.granted_bytes <= gpu.gpu.memory_bytes
        crowding = planned(node, "c", overcommit=0.0)
        node.bind(crowding)
        with pytest.raises(AdmissionError):
            await node.kubelet.admit(crowding)
        node.end(crowding)
        node.end(first)
        await node.until(lambda: len(node.grants()) == 1)
        await node.run(planned(node, "d", overcommit=0.0))

    on_node(default, short_tmp, shape="t4:1", agent=False)


def test_a_container_too_small_to_swap_is_reported_as_one_that_stays(short_tmp: Path) -> None:
    async def small(node: Node) -> None:
        node.start_agent(*HOST, "--overcommit", "2")
        await node.ready()
        await node.until(lambda: factor_of(node) == 2)
        gpu = control.status(node.state).gpus[0].gpu.uuid
        plan = Plan({"main": ContainerPlan("sliced", (gpu,), MEMORY_UNIT, 0, 0.0)})
        pod = make_pod("a", memory=1, annotations={PLAN: plan.encode(), SWAP: "true"})
        await node.run(pod)
        await node.until(lambda: "SwapNotPossible" in dict(node.events(pod)))
        await node.until(lambda: node.holders().get("a"))
        (only,) = node.gpunode()["gpus"][0]["grants"]
        assert only.get("overcommit") is None

    on_node(small, short_tmp, shape="t4:1", agent=False)


def test_a_smaller_factor_counts_before_the_arbiter_is_replaced(short_tmp: Path) -> None:
    async def smaller(node: Node) -> None:
        node.start_agent(*HOST, "--overcommit", "2")
        await node.ready()
        await node.until(lambda: factor_of(node) == 2)
        status = control.status(node.state)
        lowered, none = node_turns(status, 1.25), node_turns(status, 1.0)
        assert lowered is not None
        assert lowered.factor == 1.25
        assert none is None

    on_node(smaller, short_tmp, shape="t4:1", agent=False)


def test_a_forged_plan_asks_for_no_more_than_a_queue_can() -> None:
    (request,) = requests_of(make_pod(memory=UNITS, annotations={SWAP: "true"}))
    for said, counts in ((1e308, 10.0), (-1.0, 1.0), (0.5, 1.0), (0.0, 0.0)):
        plan = ContainerPlan("sliced", ("g",), UNITS * MEMORY_UNIT, 0, said)
        assert overcommit_asked(request, plan) == counts


def test_the_nodes_label_comes_before_the_option(short_tmp: Path) -> None:
    async def label(node: Node) -> None:
        node.api.put("nodes", {"metadata": {"name": NODE, "labels": {OVERCOMMIT: "1.25"}}})
        node.start_agent(*HOST, "--overcommit", "2")
        await node.ready()
        await node.until(lambda: factor_of(node) == 1.25)
        assert control.status(node.state).gpus[0].overcommit == 1.25

    on_node(label, short_tmp, shape="t4:1", agent=False)


@pytest.mark.parametrize(
    ("labels", "factor"), [({}, 1.5), ({OVERCOMMIT: "2"}, 2.0), ({OVERCOMMIT: "1"}, 1.0)]
)
def test_what_a_label_says(labels: dict[str, str], factor: float) -> None:
    assert overcommit_of(NodeSwap(GIB, overcommit=1.5), labels) == (factor, "")


@pytest.mark.parametrize("label", ["0.5", "much", "nan", "11", "", "1e309", "-1", "1.5x"])
def test_an_invalid_label_changes_nothing_and_is_named(label: str) -> None:
    found, problem = overcommit_of(NodeSwap(GIB, overcommit=1.5), {OVERCOMMIT: label})
    assert found == 1.5
    assert OVERCOMMIT in problem
    assert repr(label) in problem


def test_without_memory_of_the_host_nothing_takes_turns() -> None:
    assert overcommit_of(NodeSwap(0), {OVERCOMMIT: "2"}) == (1.0, "")


# --- the allocations ------------------------------------------------------------------------------


def grant(name: str, gib: int, overcommit: float | None = 0.0) -> ContainerGrant:
    size = gib * GIB
    settings = SliceSettings((size,))
    return ContainerGrant(
        name=name,
        owner=ContainerRef(name, "ns", name, "main"),
        kind="sliced",
        allocated=(GpuAllocation("g", size),),
        requested=settings,
        current=settings,
        device_ids={},
        carrier="",
        overcommit=overcommit,
    )


def allocations(factor: float = 1.5, host: int = 512 * GIB) -> NodeAllocations:
    found = NodeAllocations([HostGpu("g", 0, 80 * GIB)], 2)
    found.set_turns(NodeTurns(factor, host, 2 * GIB), {})
    return found


def test_grants_take_turns_by_the_rule_of_the_scheduler() -> None:
    found = allocations()
    found.add(grant("a", 60))
    with pytest.raises(DoesNotFitError):
        found.add(grant("b", 60, None))
    found.add(grant("b", 60))
    with pytest.raises(DoesNotFitError):
        found.add(grant("c", 1))
    found.release("a")
    found.add(grant("c", 20, None))


def test_a_grant_of_a_strict_queue_bounds_the_others() -> None:
    found = allocations(2.0)
    found.add(grant("a", 60, 1.25))
    assert found.turn_room("g") == 40 * GIB
    with pytest.raises(DoesNotFitError):
        found.add(grant("b", 41))


def test_a_small_grant_of_a_strict_queue_bounds_the_others_too() -> None:
    """As the arbiter has it, for all grants that can take turns."""
    found = allocations(2.0)
    found.add(grant("a", 2, 1.25))
    found.add(grant("b", 60))
    assert found.turn_room("g") == 38 * GIB


def test_what_cannot_leave_and_the_host_bound_the_room() -> None:
    found = allocations(2.0, host=20 * GIB)
    found.add(grant("a", 60))
    assert found.turn_room("g") == 30 * GIB
    found.set_turns(NodeTurns(2.0, None, 2 * GIB), {"a": 30 * GIB})
    assert found.turn_room("g") == 50 * GIB
    found.set_turns(None, {})
    assert found.turn_room("g") == 0


def test_an_earlier_agents_checkpoint_has_no_turns() -> None:
    old = msgspec.json.decode(msgspec.json.encode(grant("a", 60)))
    del old["overcommit"]
    assert msgspec.convert(old, ContainerGrant).overcommit is None
    assert OverCommit(1.5).host_memory == 0
