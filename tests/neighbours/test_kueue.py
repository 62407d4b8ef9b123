"""The real Kueue in front of Aliquot: it decides when a job may start, and Aliquot where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.images import BUSYBOX, Image
from cluster.installed import install
from cluster.manifests import SLEEP
from kubernetes import chart
from neighbours.programs import Neighbour

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

IMAGE, TAG = "aliquot.test/kueue", "1"
SPACE = "kueue-system"
TEAM = "team"
QUEUES = "kueue.x-k8s.io/v1beta2"


@pytest.fixture(scope="module")
def cluster(kueue: Neighbour) -> Iterator[Cluster]:
    with Cluster() as cluster:
        install(cluster, "h100:2")
        image = Image(f"{IMAGE}:{TAG}", command=["/manager"])
        image.add_program(kueue.program, "/manager")
        cluster.load(image)
        manager = "controllerManager.manager"
        values = (
            f"{manager}.image.repository={IMAGE}",
            f"{manager}.image.tag={TAG}",
            f"{manager}.image.pullPolicy=Never",
            f"{manager}.podSecurityContext.runAsUser=65532",
            f"{manager}.resources.requests.cpu=50m",
            "controllerManager.featureGates[0].name=VisibilityOnDemand",
            "controllerManager.featureGates[0].enabled=false",
        )
        where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={SPACE}", "--create-namespace"]
        charts = str(kueue.sources / "charts" / "kueue")
        chart.helm("install", "kueue", charts, *where, *(f"--set={one}" for one in values))
        cluster.wait_until(lambda: _is_ready(cluster), 120, "Kueue is ready")
        cluster.create_namespace(TEAM)
        cluster.wait_until(lambda: _applied(cluster), 60, "Kueue accepts its queues", every=1)
        yield cluster


def _is_ready(cluster: Cluster) -> bool:
    found = cluster.api.get(f"/apis/apps/v1/namespaces/{SPACE}/deployments")["items"]
    return any(one["status"].get("readyReplicas") for one in found)


def _applied(cluster: Cluster) -> bool:
    """Whether Kueue's webhooks let its queues be made: its certificate takes a moment."""
    gpus = {"name": "aliquot.io/gpu", "nominalQuota": 2}
    group = {
        "coveredResources": ["aliquot.io/gpu"],
        "flavors": [{"name": "any", "resources": [gpus]}],
    }
    try:
        cluster.apply(
            {"apiVersion": QUEUES, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
            {
                "apiVersion": QUEUES,
                "kind": "ClusterQueue",
                "metadata": {"name": "gpus"},
                "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
            },
            {
                "apiVersion": QUEUES,
                "kind": "LocalQueue",
                "metadata": {"name": "gpus", "namespace": TEAM},
                "spec": {"clusterQueue": "gpus"},
            },
        )
    except Exception:  # noqa: BLE001 - whatever kubectl says: the last word has the deadline
        return False
    return True


def job(name: str) -> dict[str, Any]:
    """A job of two pods with a GPU each: a gang. Kueue suspends it when it is created."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(SLEEP),
        "resources": {"limits": {"aliquot.io/gpu": 1}},
    }
    gang = {"aliquot.io/gang": name, "aliquot.io/gang-size": "2"}
    pod = {
        "schedulerName": "aliquot",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": TEAM,
            "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        },
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "template": {"metadata": {"labels": gang}, "spec": pod},
        },
    }


def running(cluster: Cluster, name: str) -> int:
    path = f"/api/v1/namespaces/{TEAM}/pods?labelSelector=aliquot.io%2Fgang%3D{name}"
    return sum(one["status"]["phase"] == "Running" for one in cluster.api.get(path)["items"])


def is_suspended(cluster: Cluster, name: str) -> bool:
    found = cluster.api.get(f"/apis/batch/v1/namespaces/{TEAM}/jobs/{name}")
    return bool(found["spec"].get("suspend"))


def test_a_gang_starts_when_kueue_admits_its_job(cluster: Cluster) -> None:
    cluster.apply(job("first"))
    cluster.wait_until(lambda: running(cluster, "first") == 2, 90, "the first job runs")
    gang = cluster.api.get(f"/apis/aliquot.io/v1alpha1/namespaces/{TEAM}/gangs/first")
    assert gang["status"]["phase"] == "Bound"
    cluster.apply(job("second"))
    workloads = f"/apis/{QUEUES}/namespaces/{TEAM}/workloads"
    cluster.wait_until(
        lambda: len(cluster.api.get(workloads)["items"]) == 2, 60, "Kueue has the second job"
    )
    assert is_suspended(cluster, "second")
    assert running(cluster, "second") == 0
    cluster.kubectl("delete", "job", "first", f"--namespace={TEAM}")
    cluster.wait_until(lambda: running(cluster, "second") == 2, 90, "the second job runs")
    assert not is_suspended(cluster, "second")
