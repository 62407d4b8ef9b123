"""The chart on Kubernetes 1.34, which adds nothing to pods: what to write there by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.images import BUSYBOX
from cluster.installed import allocatable, install
from cluster.manifests import SLEEP, pod
from kubernetes import chart
from neighbours.programs import Neighbour

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MIXED = chart.ROOT / "examples" / "kubernetes" / "mixed.yaml"
GPUS = 4
BY_HAND = {
    "schedulerName": "aliquot",
    "tolerations": [{"key": "aliquot.io/gpu", "operator": "Exists"}],
}
GATE = {"name": "aliquot.io/gang"}


@pytest.fixture(scope="module")
def cluster(older_kubernetes: Neighbour) -> Iterator[Cluster]:
    """A cluster with the chart on it, whose node takes only pods with the toleration."""
    with Cluster(programs=older_kubernetes.programs) as cluster:
        install(cluster, f"h100:{GPUS}")
        cluster.kubectl("taint", "node", cluster.node.name, "aliquot.io/gpu=present:NoSchedule")
        yield cluster


def by_hand(one: dict[str, Any]) -> dict[str, Any]:
    """A pod or a Deployment with what newer versions add."""
    spec = one["spec"]["template"]["spec"] if "template" in one["spec"] else one["spec"]
    spec |= BY_HAND
    return one


def wait_for_running(cluster: Cluster, namespace: str) -> None:
    running = "--for=jsonpath={.status.phase}=Running"
    cluster.kubectl("wait", running, "pods", "--all", "-n", namespace, "--timeout=60s")


def holders(cluster: Cluster) -> list[str]:
    """The pods that have GPUs, once for each grant."""
    gpus = cluster.api.get(f"/apis/aliquot.io/v1alpha1/gpunodes/{cluster.node.name}")
    found = (grant for gpu in gpus["status"]["gpus"] for grant in gpu.get("grants", ()))
    return sorted(one["pod"] for one in found)


def test_the_chart_leaves_out_what_this_version_does_not_serve(cluster: Cluster) -> None:
    assert cluster.api.get("/version")["minor"] == "34"
    served = cluster.api.get("/apis/admissionregistration.k8s.io/v1")["resources"]
    assert "mutatingadmissionpolicies" not in {one["name"] for one in served}
    found = cluster.kubectl("get", "validatingadmissionpolicies", "--output=name")
    assert "aliquot" in found


def test_the_mixed_example_runs_with_what_is_written_by_hand(cluster: Cluster) -> None:
    text = MIXED.read_text("utf-8").replace("pytorch/pytorch:latest", BUSYBOX)
    objects = chart.objects(text.replace("[sleep, infinity]", json.dumps(SLEEP)))
    cluster.create_namespace("mixed")
    for one in objects:
        one["metadata"]["namespace"] = "mixed"
    cluster.apply(*(by_hand(one) for one in objects))
    names = ["inference", "inference", "notebook", "notebook", "training"]
    cluster.wait_until(
        lambda: [one.split("-")[0] for one in holders(cluster)] == names,
        60,
        "a whole GPU, two halves and two slices are used",
    )
    wait_for_running(cluster, "mixed")
    cluster.wait_until(  # the whole one, which is in use
        lambda: allocatable(cluster)["aliquot.io/gpu"] == 1, 30, "no other whole GPU is free"
    )
    cluster.kubectl("delete", "namespace", "mixed")
    cluster.wait_until(lambda: not holders(cluster), 30, "all is back")


def test_a_gang_starts_as_one_with_the_gate_written_by_hand(cluster: Cluster) -> None:
    def member(gang: str, number: int, size: int, gpus: int) -> dict[str, Any]:
        labels = {"aliquot.io/gang": gang, "aliquot.io/gang-size": str(size)}
        limits = {"aliquot.io/gpu": gpus}
        name = f"{gang}-{number}"
        gates = [GATE]
        return by_hand(
            pod(name, namespace="gangs", labels=labels, limits=limits, schedulingGates=gates)
        )

    def phase(gang: str) -> str:
        found = cluster.api.get("/apis/aliquot.io/v1alpha1/namespaces/gangs/gangs")["items"]
        status = {one["metadata"]["name"]: one.get("status", {}) for one in found}
        return str(status.get(gang, {}).get("phase", ""))

    cluster.create_namespace("gangs")
    cluster.apply(member("train", 0, 2, 2))
    cluster.wait_until(lambda: phase("train") == "Gathering", 30, "it waits for its second pod")
    cluster.apply(member("train", 1, 2, 2))
    wait_for_running(cluster, "gangs")
    cluster.wait_until(
        lambda: holders(cluster) == ["train-0"] * 2 + ["train-1"] * 2, 30, "each has two GPUs"
    )
    assert phase("train") == "Bound"
    cluster.apply(*(member("next", number, 2, 1) for number in range(2)))
    cluster.wait_until(lambda: phase("next") == "Waiting", 30, "the next one waits for GPUs")
    cluster.kubectl("delete", "pods", "train-0", "train-1", "--namespace=gangs")
    wait_for_running(cluster, "gangs")
    cluster.wait_until(lambda: phase("next") == "Bound", 30, "the next one has started")
