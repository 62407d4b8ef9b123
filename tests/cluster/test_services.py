"""Deployments that get their GPUs back, with the real kube-scheduler and controllers; by kwok."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster import gangs
from cluster.cluster import Cluster
from cluster.gangs import Stage
from cluster.manifests import pod
from cluster.servers import page

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

QUEUE = "aliquot.io/queue"


@pytest.fixture(scope="module")
def whole() -> Iterator[Stage]:
    with gangs.running_stage(replicas=1) as stage:
        yield stage


@pytest.fixture
def stage(whole: Stage) -> Iterator[Stage]:
    yield whole
    whole.cluster.kubectl("delete", "queues", "--all")
    whole.clear()


@pytest.fixture
def cluster(whole: Stage) -> Cluster:
    """This file's own, in place of the session's."""
    return whole.cluster


def set_quotas(stage: Stage, **quotas: int) -> None:
    for name, quota in quotas.items():
        queue = {"apiVersion": "aliquot.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
        stage.cluster.apply({**queue, "spec": {"quota": {"gpus": quota}}})


def deploy(stage: Stage, namespace: str, name: str, replicas: int, queue: str, **more: Any) -> None:
    """A Deployment whose pods have one GPU each."""
    limits = {"aliquot.io/gpu": 1, **more.pop("limits", {})}
    labels = {"app": name, QUEUE: queue}
    spec = {"nodeSelector": {"type": "kwok"}, "restartPolicy": "Always", **more}
    one = pod(name, limits=limits, labels=labels, **spec)
    template = {"metadata": {"labels": labels}, "spec": one["spec"]}
    stage.cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": template,
            },
        }
    )


def have_gpus(stage: Stage, namespace: str) -> dict[str, int]:
    """How many pods of each Deployment have nodes."""
    found: dict[str, int] = {}
    for one in stage.pods(namespace).values():
        if one["spec"].get("nodeName") and not one["metadata"].get("deletionTimestamp"):
            name = one["metadata"]["labels"]["app"]
            found[name] = found.get(name, 0) + 1
    return found


def wait_gpus(stage: Stage, namespace: str, seconds: float = 30.0, **wanted: int) -> None:
    what = f"pods have GPUs: {wanted}"
    stage.cluster.wait_until(lambda: have_gpus(stage, namespace) == wanted, seconds, what)


def reasons(stage: Stage, namespace: str, component: str) -> set[str]:
    events = stage.cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return {
        one["reason"]
        for one in events
        if component in {one.get("reportingComponent"), one.get("source", {}).get("component")}
    }


def test_a_deployment_reclaims_its_quota_as_it_is_scaled_up(stage: Stage, namespace: str) -> None:
    stage.add_nodes(2, gpus=2)
    set_quotas(stage, owner=3, borrower=0)
    deploy(stage, namespace, "guest", 4, "borrower")
    wait_gpus(stage, namespace, guest=4)
    deploy(stage, namespace, "web", 1, "owner")
    wait_gpus(stage, namespace, web=1, guest=3)
    stage.cluster.kubectl("scale", "deployment", "web", "--replicas=4", f"-n{namespace}")
    wait_gpus(stage, namespace, web=3, guest=1)
    told = stage.cluster.kubectl("events", f"--namespace={namespace}")
    assert "since queue borrower borrows from the quota of queue owner" in told
    assert f"preempted for {namespace}/pod.web-" in told
    stage.check_gpus(namespace)


def test_a_disruption_budget_protects_a_borrower(stage: Stage, namespace: str) -> None:
    stage.add_nodes(1, gpus=2)
    set_quotas(stage, owner=2, borrower=0)
    for name in ("db", "batch"):
        deploy(stage, namespace, name, 1, "borrower")
    budget = ("kept", f"-n{namespace}", "--selector=app=db", "--max-unavailable=0")
    stage.cluster.kubectl("create", "poddisruptionbudget", *budget)
    wait_gpus(stage, namespace, db=1, batch=1)
    deploy(stage, namespace, "web", 2, "owner")
    wait_gpus(stage, namespace, db=1, web=1)
    waits = "disruption budgets protect pod"
    what = "the other replica says why it waits"
    gangs_of = ("get", "gangs", f"-n{namespace}", "-oyaml")
    stage.cluster.wait_until(lambda: waits in stage.cluster.kubectl(*gangs_of), 30, what)
    assert have_gpus(stage, namespace) == {"db": 1, "web": 1}


def test_only_our_scheduler_evicts_pods_with_gpus(stage: Stage, namespace: str) -> None:
    """The node has CPU for one of them, and kube-scheduler would evict by priority alone."""
    (node,) = stage.nodes.add(1, capacity={"cpu": 4, "memory": "16Gi", "pods": 10})
    stage.add_gpus(node, 2)
    set_quotas(stage, owner=1, borrower=1)
    deploy(stage, namespace, "guest", 1, "borrower", limits={"cpu": 3})
    wait_gpus(stage, namespace, guest=1)
    vetoes = metric(stage, "refused")
    deploy(stage, namespace, "web", 1, "owner", limits={"cpu": 3}, priorityClassName="high")
    what = "kube-scheduler asks whether it may evict"
    stage.cluster.wait_until(lambda: metric(stage, "refused") > vetoes, 30, what)
    assert have_gpus(stage, namespace) == {"guest": 1}
    assert "Preempted" not in reasons(stage, namespace, "default-scheduler")
    stage.cluster.kubectl("delete", "deployment", "guest", f"-n{namespace}")
    wait_gpus(stage, namespace, web=1)


def test_a_pod_that_lacks_cpu_too_gets_it_with_the_gpu(stage: Stage, namespace: str) -> None:
    """kube-scheduler offers no node at all, and asks whether it may evict the guest."""
    (node,) = stage.nodes.add(1, capacity={"cpu": 4, "memory": "16Gi", "pods": 10})
    stage.add_gpus(node, 1)
    set_quotas(stage, owner=1, borrower=0)
    deploy(stage, namespace, "guest", 1, "borrower", limits={"cpu": 3})
    wait_gpus(stage, namespace, guest=1)
    deploy(stage, namespace, "web", 1, "owner", limits={"cpu": 3}, priorityClassName="high")
    wait_gpus(stage, namespace, web=1)
    assert "Preempted" in reasons(stage, namespace, "aliquot")
    assert "Preempted" not in reasons(stage, namespace, "default-scheduler")


def metric(stage: Stage, result: str) -> float:
    """How often kube-scheduler's preemptions were answered so."""
    wanted = f'aliquot_scheduler_decisions_total{{result="{result}",verb="preempt"}}'
    lines = (page(f"{stage.replicas[0].url}/metrics") or "").splitlines()
    return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(wanted))
