"""GPUs that are planned for pods which the kubelet has not admitted yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.kubernetes.api.plan import ContainerPlan, Plan
from aliquot.kubernetes.api.presets import ALIQUOT
from aliquot.kubernetes.node.grants.allocations import NodeAllocations
from aliquot.kubernetes.node.grants.placement import with_planned_pods
from aliquot.kubernetes.node.pods import NodePods
from kubernetes.builders import container, make_pod
from kubernetes.node.builders import MEMORY, make_grant, make_host_gpu

if TYPE_CHECKING:
    from typing import Any

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.plan import Kind

GPUS = [make_host_gpu(0), make_host_gpu(1)]


def make_allocations() -> NodeAllocations:
    return NodeAllocations(GPUS, 2)


def make_plan(kind: Kind = "sliced", gpus: tuple[str, ...] = (GPUS[0].uuid,)) -> ContainerPlan:
    return ContainerPlan(kind, gpus, 80 * MEMORY_UNIT)


def planned_pod(*containers: Any, plans: dict[str, ContainerPlan], **about: Any) -> Pod:
    notes = {"aliquot.io/plan": Plan(plans).encode()}
    return make_pod("a", *containers, annotations=notes, **about)


def used_with_plans(allocations: NodeAllocations, *pods: Pod) -> list[int]:
    """Units of memory of each GPU that are allocated or planned."""
    node_pods = NodePods([ALIQUOT], lambda: True)
    for pod in pods:
        node_pods.observe(None, pod)
    before = allocations.saved()
    after = with_planned_pods(allocations, node_pods.live())
    assert allocations.saved() == before
    return [after.used(gpu.uuid).memory // MEMORY_UNIT for gpu in GPUS]


def test_a_pending_pod_counts_on_the_gpus_of_its_plan() -> None:
    pod = planned_pod(plans={"main": make_plan()}, memory=30)
    assert used_with_plans(make_allocations(), pod) == [30, 0], (
        "as much as it requests, whatever the plan says"
    )


@pytest.mark.parametrize(
    "pod",
    [
        make_pod("a", memory=30),
        make_pod("a", memory=30, annotations={"aliquot.io/plan": "nonsense"}),
        planned_pod(plans={"main": make_plan()}, memory=30, phase="Running"),
        planned_pod(plans={"main": make_plan()}, memory=30, phase="Failed"),
        planned_pod(plans={"main": make_plan("whole")}, memory=30),
        planned_pod(plans={"main": make_plan(gpus=("GPU-elsewhere",))}, memory=30),
        planned_pod(plans={"main": make_plan(gpus=tuple(gpu.uuid for gpu in GPUS))}, memory=30),
        planned_pod(plans={"other": make_plan()}, memory=30),
        planned_pod(plans={"main": make_plan()}, memory=87),
        planned_pod(plans={"main": make_plan()}, core=30),
    ],
)
def test_a_plan_that_the_agent_would_not_follow_counts_nothing(pod: Pod) -> None:
    assert used_with_plans(make_allocations(), pod) == [0, 0]


def test_a_container_with_a_grant_is_not_counted_twice() -> None:
    allocations = make_allocations()
    allocations.add(make_grant("sliced", GPUS[1:], "uid-a", memory=30, units={MEMORY: ["m0"]}))
    pods = [container("main", memory=30), container("more", memory=7)]
    pod = planned_pod(*pods, plans={"main": make_plan(), "more": make_plan()})
    assert used_with_plans(allocations, pod) == [7, 30]


@pytest.mark.parametrize(("first", "units"), [(40, 40), (20, 30)])
def test_an_init_container_ends_before_the_others_start(first: int, units: int) -> None:
    init = (container("first", memory=first),)
    plans = {"first": make_plan(), "main": make_plan()}
    pod = planned_pod(container("main", memory=30), init=init, plans=plans)
    assert used_with_plans(make_allocations(), pod) == [units, 0]


def test_plans_that_do_not_fit_together_count_in_order() -> None:
    pods = [
        make_pod(
            name, memory=50, annotations={"aliquot.io/plan": Plan({"main": make_plan()}).encode()}
        )
        for name in ("a", "b")
    ]
    assert used_with_plans(make_allocations(), *pods) == [50, 0]
