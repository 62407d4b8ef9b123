"""The real Kueue in front of Aliquot: it decides when work may start, and Aliquot where."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.images import BUSYBOX, Image
from cluster.installed import SPACE, install
from cluster.manifests import SLEEP, pod
from cluster.registry import ClusterError
from kubernetes import chart
from neighbours.programs import Neighbour

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

IMAGE, TAG = "aliquot.test/kueue", "1"
KUEUE_SPACE = "kueue-system"
TEAM = "team"
GPUS = 3  # of the node, and the quota
KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
KUEUES = {"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"}  # gates
OURS = {"aliquot.io/gang"}
SCHEDULED: dict[str, Any] = {
    "schedulerName": "aliquot",
    "tolerations": [{"key": "aliquot.io/gpu", "operator": "Exists"}],
}
PODS = f"/api/v1/namespaces/{TEAM}/pods"
PLACEHOLDERS = f"/api/v1/namespaces/{SPACE}/pods?labelSelector=aliquot.io%2Fplaceholder"
A_WHILE = 10.0  # the scheduler looks for what lacks nodes every few seconds


@pytest.fixture(scope="module")
def cluster(kueue: Neighbour) -> Iterator[Cluster]:
    with Cluster() as cluster:
        install(cluster, f"h100:{GPUS}", "autoscaler.kind=karpenter", "autoscaler.patience=1")
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
            # This cluster's API server forwards no requests to other servers.
            "controllerManager.featureGates[0].name=VisibilityOnDemand",
            "controllerManager.featureGates[0].enabled=false",
        )
        where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={KUEUE_SPACE}"]
        charts = str(kueue.sources / "charts" / "kueue")
        options = (*where, "--create-namespace", *(f"--set={one}" for one in values))
        chart.helm("install", "kueue", charts, *options)
        cluster.wait_until(lambda: is_ready(cluster), 120, "Kueue is ready")
        cluster.create_namespace(TEAM)
        cluster.wait_until(lambda: is_accepted(cluster), 60, "Kueue accepts its queues", every=1)
        yield cluster


def is_ready(cluster: Cluster) -> bool:
    found = cluster.api.get(f"/apis/apps/v1/namespaces/{KUEUE_SPACE}/deployments")["items"]
    return any(one["status"].get("readyReplicas") for one in found)


def is_accepted(cluster: Cluster) -> bool:
    """Whether Kueue's webhooks let its queues be made: its certificate takes a moment."""
    local = {
        "apiVersion": KUEUE,
        "kind": "LocalQueue",
        "metadata": {"name": "gpus", "namespace": TEAM},
        "spec": {"clusterQueue": "gpus"},
    }
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "any"}}
    try:
        cluster.apply(flavor, cluster_queue(), local)
    except ClusterError:
        return False
    return True


def cluster_queue(*, quota: int = GPUS, **spec: Any) -> dict[str, Any]:
    gpus = {"name": "aliquot.io/gpu", "nominalQuota": quota}
    group = {
        "coveredResources": ["aliquot.io/gpu"],
        "flavors": [{"name": "any", "resources": [gpus]}],
    }
    return {
        "apiVersion": KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": "gpus"},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
    }


def single(name: str) -> dict[str, Any]:
    """A pod of Kueue's queue with one GPU."""
    limits = {"aliquot.io/gpu": 1}
    return pod(name, namespace=TEAM, labels=QUEUE, limits=limits, **SCHEDULED)


def gang(name: str) -> list[dict[str, Any]]:
    """Two pods with one GPU each: a pod group of Kueue's queue, and a gang."""
    labels = {**QUEUE, "kueue.x-k8s.io/pod-group-name": name}
    labels |= {"aliquot.io/gang": name, "aliquot.io/gang-size": "2"}
    return [
        pod(
            f"{name}-{number}",
            namespace=TEAM,
            labels=labels,
            annotations={"kueue.x-k8s.io/pod-group-total-count": "2"},
            limits={"aliquot.io/gpu": 1},
            **SCHEDULED,
        )
        for number in range(2)
    ]


def job(name: str) -> dict[str, Any]:
    """A job of two pods with one GPU each: a gang. Kueue suspends it when it is created."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(SLEEP),
        "resources": {"limits": {"aliquot.io/gpu": 1}},
    }
    labels = {"aliquot.io/gang": name, "aliquot.io/gang-size": "2"}
    spec = {
        **SCHEDULED,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM, "labels": QUEUE},
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def phases(cluster: Cluster) -> dict[str, str]:
    """The phases of the team's pods."""
    found = cluster.api.get(PODS)["items"]
    return {one["metadata"]["name"]: one["status"]["phase"] for one in found}


def running(cluster: Cluster, *names: str) -> bool:
    found = phases(cluster)
    return all(found.get(name) == "Running" for name in names)


def running_of(cluster: Cluster, gang: str) -> int:
    found = cluster.api.get(f"{PODS}?labelSelector=aliquot.io%2Fgang%3D{gang}")["items"]
    return sum(one["status"]["phase"] == "Running" for one in found)


def gates(cluster: Cluster, name: str) -> set[str]:
    found = cluster.api.get(f"{PODS}/{name}")["spec"].get("schedulingGates", ())
    return {one["name"] for one in found}


def gang_status(cluster: Cluster, name: str) -> tuple[str, str]:
    """The phase of a gang and why; empty where Aliquot does not know it yet."""
    found = cluster.api.get(f"/apis/aliquot.io/v1alpha1/namespaces/{TEAM}/gangs")["items"]
    for one in found:
        if one["metadata"]["name"] == name:
            status = one.get("status", {})
            return status.get("phase", ""), status.get("reason", "")
    return "", ""


def waits_in_kueue(cluster: Cluster, start: str) -> bool:
    """Whether Kueue has judged the work of this name and has no quota for it."""
    for one in cluster.api.get(f"/apis/{KUEUE}/namespaces/{TEAM}/workloads")["items"]:
        if one["metadata"]["name"].startswith(start):
            conditions = one.get("status", {}).get("conditions", ())
            found = {each["type"]: each["status"] for each in conditions}
            return found.get("QuotaReserved") == "False"
    return False


def placeholders(cluster: Cluster) -> int:
    return len(cluster.api.get(PLACEHOLDERS)["items"])


def is_suspended(cluster: Cluster, name: str) -> bool:
    found = cluster.api.get(f"/apis/batch/v1/namespaces/{TEAM}/jobs/{name}")
    return bool(found["spec"].get("suspend"))


def end(cluster: Cluster, single: str, gang: str) -> None:
    """If only the pods of a group were deleted, Kueue would wait for others in their place."""
    cluster.kubectl("delete", "pod", single, f"--namespace={TEAM}")
    cluster.kubectl("delete", "workload", gang, f"--namespace={TEAM}")


def test_a_pod_and_a_gang_start_when_kueue_admits_them(cluster: Cluster) -> None:
    cluster.apply(cluster_queue(stopPolicy="Hold"))
    cluster.apply(single("first"), *gang("train"))
    reason = f"other gates hold its pods back: {', '.join(sorted(KUEUES))}"
    cluster.wait_until(
        lambda: gang_status(cluster, "train") == ("Gathering", reason), 30, "the gang waits"
    )
    assert gates(cluster, "first") == KUEUES
    assert gates(cluster, "train-0") == gates(cluster, "train-1") == KUEUES | OURS
    assert set(phases(cluster).values()) == {"Pending"}
    cluster.apply(cluster_queue(stopPolicy="None"))
    everything = ("first", "train-0", "train-1")
    cluster.wait_until(lambda: running(cluster, *everything), 90, "Aliquot places all of them")
    assert gang_status(cluster, "train")[0] == "Bound"


def test_work_over_kueues_quota_waits_and_asks_for_no_nodes(cluster: Cluster) -> None:
    assert running(cluster, "first", "train-0", "train-1")  # they use the quota up
    cluster.apply(single("second"), *gang("tune"))
    cluster.wait_until(
        lambda: waits_in_kueue(cluster, "pod-second") and waits_in_kueue(cluster, "tune"),
        60,
        "both wait for quota",
    )
    until = time.monotonic() + A_WHILE
    while time.monotonic() < until:
        assert placeholders(cluster) == 0
        time.sleep(0.2)
    assert gates(cluster, "second") == KUEUES
    assert gates(cluster, "tune-0") == gates(cluster, "tune-1") == KUEUES | OURS
    assert gang_status(cluster, "tune")[0] == "Gathering"


def test_nodes_are_asked_for_once_kueue_has_admitted(cluster: Cluster) -> None:
    """Two placeholders for the gang; the pod has no gate now, and an autoscaler sees it itself."""
    cluster.apply(cluster_queue(quota=2 * GPUS))
    cluster.wait_until(lambda: placeholders(cluster) == 2, 60, "two nodes are asked for")
    assert gates(cluster, "second") == set()
    assert gates(cluster, "tune-0") == OURS
    end(cluster, "first", "train")
    everything = ("second", "tune-0", "tune-1")
    cluster.wait_until(lambda: running(cluster, *everything), 90, "Aliquot places all of them")
    cluster.wait_until(lambda: placeholders(cluster) == 0, 30, "no node is asked for any more")
    end(cluster, "second", "tune")


def test_a_job_that_kueue_admits_later_has_no_pods_until_then(cluster: Cluster) -> None:
    cluster.apply(cluster_queue(quota=2), job("early"))
    cluster.wait_until(lambda: running_of(cluster, "early") == 2, 90, "the first job runs")
    assert gang_status(cluster, "early")[0] == "Bound"
    cluster.apply(job("late"))
    cluster.wait_until(lambda: waits_in_kueue(cluster, "job-late"), 60, "the second one waits")
    assert is_suspended(cluster, "late")
    assert not [name for name in phases(cluster) if name.startswith("late")]
    cluster.kubectl("delete", "job", "early", f"--namespace={TEAM}")
    cluster.wait_until(lambda: running_of(cluster, "late") == 2, 90, "the second job runs")
    assert not is_suspended(cluster, "late")
