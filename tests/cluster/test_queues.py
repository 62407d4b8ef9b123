"""Queues and evictions with the real API server: what it refuses, shows, and says of budgets."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from aliquot.kubernetes.api.client import connect
from aliquot.kubernetes.api.evict import Refusal, evict
from aliquot.kubernetes.api.objects import PODS, QUEUES
from aliquot.kubernetes.cluster.queues import Queues
from aliquot.kubernetes.queues.status import QueueUsage
from aliquot.kubernetes.queues.write import StatusWriter
from aliquot.placement.queues.quota import Resources
from cluster.api import ApiError
from cluster.cluster import Cluster
from cluster.manifests import pod
from kubernetes.builders import GIB, GPU_BYTES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PATH = "/apis/aliquot.io/v1alpha1/queues"
EXAMPLE = ROOT / "examples" / "kubernetes" / "queues.yaml"


@pytest.fixture(scope="module")
def queues(cluster: Cluster) -> Cluster:
    """The cluster, which knows queues now."""
    definition = ROOT / "deploy" / "crds" / "queue.yaml"
    cluster.kubectl("apply", f"--filename={definition}")
    cluster.kubectl("wait", "--for=condition=established", "crd/queues.aliquot.io")
    return cluster


def create(cluster: Cluster, spec: dict[str, Any], name: str = "tried") -> Any:
    """Ask for it, without making it."""
    one = {"apiVersion": "aliquot.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    path = f"{PATH}?dryRun=All&fieldValidation=Strict"
    return cluster.api.create(path, {**one, "spec": spec})


def both(amount: str, quota: Any, limit: Any) -> dict[str, Any]:
    return {"quota": {amount: quota}, "limit": {amount: limit}}


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"parent": "tried"}, "cannot be its own parent"),
        ({"weight": 0}, "greater than or equal to 1"),
        ({"quota": {}}, "at least 1 properties"),
        ({"quota": {"gpus": -1}}, "greater than or equal to 0"),
        (both("gpus", 4, 2), "limit.gpus is less than quota.gpus"),
        (both("compute", 50, 20), "limit.compute is less than quota.compute"),
        (both("memory", "1Ti", "999Gi"), "limit.memory is less than quota.memory"),
        ({"quota": {"memory": "much"}}, "should match"),
        ({"quota": {"memory": "-1Gi"}}, "should match"),
        ({"namespaces": ["a", "a"]}, "Duplicate value"),
        ({"colour": "red"}, "unknown field"),
    ],
)
def test_an_invalid_queue_is_refused(queues: Cluster, spec: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ApiError, match=re.escape(complaint)):
        create(queues, spec)


def test_valid_queues_are_accepted(queues: Cluster) -> None:
    assert create(queues, {})["spec"] == {"weight": 1}
    create(queues, {"quota": {"gpus": 0}, "limit": {"gpus": 0}})
    create(queues, {"quota": {"memory": "1.5Ti"}, "limit": {"memory": "1536Gi", "compute": 100}})
    create(queues, {"quota": {"gpus": 4}, "limit": {"memory": "10Gi"}}, "q" * 63)
    with pytest.raises(ApiError, match="63 characters at most"):
        create(queues, {}, "q" * 64)


def test_kubectl_shows_the_queues_of_the_example(queues: Cluster) -> None:
    queues.kubectl("apply", f"--filename={EXAMPLE}")
    loads = {
        "training": QueueUsage(Resources(11_000, 11 * GPU_BYTES), pods=11, gangs=2),
        "notebooks": QueueUsage(Resources(500, 10 * GIB), pods=2, waiting_pods=1, since=1.0),
    }

    async def write() -> None:
        async with connect(queues.kubeconfig) as client:
            known = Queues()
            known.set_largest_gpu(GPU_BYTES)
            for one in (await client.list(QUEUES)).items:
                known.set_queue(one.metadata.name, one)
            writer = StatusWriter(client, known, lambda: loads)
            writer.change()
            writing = asyncio.create_task(writer.run())
            async with asyncio.timeout(80):
                while not all(one.status.conditions for one in known.objects.values()):
                    await asyncio.sleep(0.01)
            writing.cancel()
            await asyncio.wait([writing])

    asyncio.run(write())
    rows = [line.split() for line in queues.kubectl("get", "queues").splitlines()]
    shown = {row[0]: row[1:] for row in rows}
    assert shown["training"] == ["research", "2", "10", "11", "880Gi", "1", "11", "0", "True"]
    assert shown["notebooks"][:9] == ["research", "1", "2", "4", "0.5", "10Gi", "0", "2", "1"]
    assert shown["research"][:7] == ["3", "12", "11.5", "890Gi", "0", "13", "1"]
    queues.kubectl("delete", "queues", "--all")


def test_a_budget_refuses_an_eviction_until_it_allows_it(cluster: Cluster, namespace: str) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "at-least-one", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}},
    }
    cluster.apply(pod("held", namespace=namespace, labels={"app": "held"}), budget)
    cluster.wait_for_pod("held", namespace, "Running")

    async def ask() -> Refusal | None:
        async with connect(cluster.kubeconfig) as client:
            found = await client.get(PODS, "held", namespace)
            return await evict(client, found, grace_seconds=1)

    async def ask_twice() -> list[Refusal | None]:
        async with connect(cluster.kubeconfig) as client:
            found = await client.get(PODS, "held", namespace)
            path = f"/api/v1/namespaces/{namespace}/pods"
            first = await evict(client, found, grace_seconds=0)
            await asyncio.to_thread(
                cluster.wait_until, lambda: not cluster.api.get(path)["items"], 20, "it is gone"
            )
            return [first, await evict(client, found)]

    refused = asyncio.run(ask())
    assert refused is not None
    assert refused.budget == "at-least-one"
    assert refused.pod == f"{namespace}/held"
    cluster.kubectl("delete", "pdb", "at-least-one", "-n", namespace)
    assert asyncio.run(ask_twice()) == [None, None]
