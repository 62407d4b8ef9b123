"""Usable nodes: the extender, the gang planner and the job controller agree about each node."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.objects import GpuNode, Node, Pod
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
from aliquot.kubernetes.cluster.usable import (
    NO_AGENT,
    NO_DEVICES,
    NO_GPUS,
    NO_NODE,
    why_unusable,
)
from aliquot.kubernetes.cluster.view import ClusterView
from aliquot.kubernetes.extender.planner import Planner
from aliquot.kubernetes.jobs.allocations import JobAllocations
from aliquot.placement.core.demand import Gang
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.quota import Resources
from kubernetes.builders import held, make_node, make_pod

GPU = "aliquot.io/gpu"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
NOT_READY_EVICTS = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
POD = make_pod("p", gpu=1)


def node(spec: Any = None, capacity: int | None = None, allocatable: int | None = None) -> Node:
    counts = {"capacity": capacity, "allocatable": allocatable}
    status = {key: {GPU: str(count)} for key, count in counts.items() if count is not None}
    body = {"metadata": {"name": "n1"}, "spec": spec or {}, "status": status}
    return msgspec.convert(body, Node)


SERVED = node(capacity=1, allocatable=1)
GPUS, NONE = make_node("n1", 1), make_node("n1", 0)
AILING = msgspec.structs.replace(
    GPUS, status=msgspec.structs.replace(GPUS.status, problem="the arbiter is stuck")
)
UNHEALTHY = make_node("n1", 1, healthy=False)

# Node, GPUNode, why no pod can go there, and whether POD can
CASES: dict[str, tuple[Node | None, GpuNode | None, str | None, bool]] = {
    "usable": (SERVED, GPUS, None, True),
    "some devices are in use": (node(capacity=2, allocatable=1), GPUS, None, True),
    "its kubelet has not counted devices yet": (node(), GPUS, NO_DEVICES, False),
    "its agent is gone for long": (node(capacity=0, allocatable=0), GPUS, NO_DEVICES, False),
    "it never had an agent": (node(), None, NO_AGENT, False),
    "its GPUNode was deleted": (SERVED, None, NO_AGENT, False),
    "its agent is gone": (node(capacity=1, allocatable=0), GPUS, NO_DEVICES, False),
    "its agent reports no GPUs": (SERVED, NONE, NO_GPUS, False),
    "its agent reports a problem": (
        SERVED,
        AILING,
        "its agent can give no GPUs: the arbiter is stuck",
        False,
    ),
    "its GPU is unhealthy": (SERVED, UNHEALTHY, None, False),
    "its Node was deleted": (None, GPUS, NO_NODE, False),
    "cordoned": (node({"unschedulable": True}, 1, 1), GPUS, None, False),
    "not ready": (node({"taints": [NOT_READY]}, 1, 1), GPUS, None, False),
    "not ready for long": (node({"taints": [NOT_READY_EVICTS]}, 1, 1), GPUS, None, False),
}


def fed(view: ClusterView, one: Node | None, gpu_node: GpuNode | None) -> ClusterView:
    view.set_node("n1", one)
    view.set_gpu_node("n1", gpu_node)
    return view


def extender_uses(view: ClusterView) -> bool:
    """kube-scheduler offers nodes by their taints, and the extender chooses among these."""
    offered = [
        name for name, one in view.nodes.items() if not (one.spec.taints or one.spec.unschedulable)
    ]
    found = Planner(view.cluster).filter(POD, offered)
    view.cluster.forget(POD.metadata.uid)
    return bool(found.names)


def planner_uses(view: ClusterView, pod: Pod = POD) -> bool:
    """Both the gang planner and the job controller plan on such a snapshot of their view."""
    limits = NodeConstraints.of(pod)
    snapshot = ClusterSnapshot(view.topology, [limits])
    demand = snapshot.demand(Planner(view.cluster).requests(pod), limits)
    return plan_gang(snapshot.allocations, Gang("g", (demand,)), snapshot.by) is not None


@pytest.mark.parametrize("case", CASES)
def test_extender_gangs_and_jobs_agree_about_a_node(case: str) -> None:
    one, gpu_node, why, usable = CASES[case]
    assert why_unusable(one, gpu_node, [GPU]) == why
    assert extender_uses(fed(ClusterView(), one, gpu_node)) is usable
    assert planner_uses(fed(ClusterView(), one, gpu_node)) is usable
    assert planner_uses(fed(JobAllocations(), one, gpu_node)) is usable


def test_only_the_last_state_of_a_node_counts() -> None:
    for before, now in itertools.product(CASES, CASES):
        for view in (ClusterView(), JobAllocations()):
            planner_uses(fed(view, *CASES[before][:2]))
            one, gpu_node, why, usable = CASES[now]
            view.set_gpu_node("n1", gpu_node)
            view.set_node("n1", one)
            assert view.cluster.why_unusable("n1") == why, (before, now)
            assert planner_uses(view) is usable, (before, now)
            assert extender_uses(view) is usable, (before, now)


def test_pods_that_tolerate_a_cordon_may_be_planned_there() -> None:
    view = fed(ClusterView(), *CASES["cordoned"][:2])
    body = msgspec.to_builtins(POD)
    body["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert planner_uses(view, msgspec.convert(body, Pod))


def test_pods_on_a_node_without_its_agent_still_count_for_quotas() -> None:
    pod = make_pod("a", gpu=1, node="n1")
    taken = make_node("n1", 1, kind="whole", grants=(held(pod, memory=80 << 30),))
    whole = Resources(1000, 80 << 30)
    for view in (ClusterView(), JobAllocations()):
        view.set_pod(pod.metadata.uid, pod)
        for case in ("usable", "its agent is gone"):
            fed(view, CASES[case][0], taken)
            assert view.by_workload.used(0.0)["default"] == whole, case
        view.set_node("n1", None)
        assert view.by_workload.used(0.0)["default"] == Resources()


def test_the_largest_gpu_of_all_nodes_bounds_queues() -> None:
    view = ClusterView()
    for name in ("a", "b"):
        view.set_node(name, Node())
    view.set_gpu_node("a", make_node("a", 2, memory=40))
    view.set_gpu_node("b", make_node("b", 2, memory=80))
    assert view.queues.largest_gpu == 80
    view.set_node("b", None)
    assert view.queues.largest_gpu == 40, "its GPUNode may outlive a Node"
    view.set_node("b", Node())
    assert view.queues.largest_gpu == 80
    view.set_gpu_node("b", make_node("b", 2, memory=20))
    assert view.queues.largest_gpu == 40
    view.set_gpu_node("a", None)
    view.set_gpu_node("b", None)
    assert view.queues.largest_gpu == 0
