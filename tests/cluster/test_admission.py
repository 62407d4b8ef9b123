"""What the chart's admission policies do on the real API server: to pods, and against tenants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.kubernetes.api.names import PLACEHOLDER
from aliquot.kubernetes.cluster.membership import KUBEFLOW, MEMBERSHIP_KEYS
from cluster.api import ApiError
from cluster.cluster import Cluster
from cluster.manifests import pod
from cluster.registry import ClusterError
from kubernetes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOLERATION = {"key": "aliquot.io/gpu", "operator": "Exists"}
GATE = {"name": "aliquot.io/gang"}
GPU = {"aliquot.io/gpu": 1}
SCHEDULER = f"--as=system:serviceaccount:{chart.NAMESPACE}:aliquot-scheduler"


@pytest.fixture
def admitting(cluster: Cluster, namespace: str) -> Iterator[Cluster]:
    """The cluster with our policies, and the label on the test's namespace."""
    served = cluster.api.get("/apis/admissionregistration.k8s.io/v1")["resources"]
    assert "mutatingadmissionpolicies" in {one["name"] for one in served}
    objects = chart.templates("pod-admission", "queue-boundary")
    cluster.apply(*objects)
    cluster.kubectl("label", "namespace", namespace, "aliquot.io/schedule=true")
    cluster.wait_until(
        lambda: (
            dry_run(cluster, pod("p", limits=GPU, namespace=namespace))["schedulerName"]
            == "aliquot"
        ),
        30,
        "the API server knows the policy for new pods",
    )
    cluster.apply(pod("probe", namespace=namespace, schedulerName="nobody"))
    cluster.wait_until(
        lambda: is_guarded(cluster, f"/api/v1/namespaces/{namespace}/pods/probe"),
        30,
        "the API server knows the policy for changes",
    )
    yield cluster
    for one in reversed(objects):
        cluster.kubectl("delete", one["kind"], one["metadata"]["name"])


def is_guarded(cluster: Cluster, path: str) -> bool:
    """Whether the API server refuses to change what the boundary of queues keeps as it is."""
    note = {"metadata": {"annotations": {"aliquot.io/admitted-queue": "q/uid"}}}
    try:
        cluster.api.patch(f"{path}?dryRun=All", note)
    except ApiError as error:
        return "comes with a pod's node" in str(error)
    return False


def dry_run(cluster: Cluster, one: dict[str, Any]) -> dict[str, Any]:
    """The spec of a pod as the API server would have it."""
    path = f"/api/v1/namespaces/{one['metadata']['namespace']}/pods?dryRun=All"
    spec: dict[str, Any] = cluster.api.create(path, one)["spec"]
    return spec


def test_pods_with_gpus_need_no_changes(admitting: Cluster, namespace: str) -> None:
    def admitted(**changes: Any) -> tuple[str, bool, bool]:
        spec = dry_run(admitting, pod("p", **{"limits": GPU, "namespace": namespace, **changes}))
        tolerated = spec.get("tolerations", []).count(TOLERATION)
        gated = spec.get("schedulingGates", []).count(GATE)
        assert tolerated <= 1
        assert gated <= 1
        return spec["schedulerName"], bool(tolerated), bool(gated)

    ours, untouched = ("aliquot", True, False), ("default-scheduler", False, False)
    gang = {"aliquot.io/gang": "g"}
    assert admitted() == ours
    assert admitted(limits={"aliquot.io/vcuda-memory": 8}) == ours
    assert admitted(limits={"cpu": "100m"}) == untouched
    assert admitted(limits={"aliquot.io/gpu": 0}) == untouched
    assert admitted(namespace="default") == untouched
    assert admitted(schedulerName="other") == ("other", False, False)
    assert admitted(nodeName=admitting.node.name) == untouched
    assert admitted(tolerations=[TOLERATION]) == ours
    more = [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]
    assert admitted(tolerations=more) == ours
    for labels in (gang, {"jobset.sigs.k8s.io/jobset-name": "j"}):
        assert admitted(labels=labels) == ("aliquot", True, True)
        assert admitted(labels=labels, limits={"cpu": "100m"}) == untouched
    assert admitted(annotations={"scheduling.k8s.io/group-name": "g"}) == ("aliquot", True, True)
    assert admitted(labels=gang, schedulingGates=[GATE]) == ("aliquot", True, True)
    assert admitted(labels=gang, schedulingGates=[{"name": "example.com/other"}])[2]
    jobset = {"jobset.sigs.k8s.io/jobset-name": "j", "aliquot.io/gang": "none"}
    assert admitted(labels=jobset) == ours
    container = {"name": "first", "image": "x", "resources": {"limits": GPU}}
    assert admitted(limits={"cpu": "100m"}, initContainers=[container]) == ours


def test_a_tenant_cannot_move_a_running_pod_to_another_queue(
    admitting: Cluster, namespace: str
) -> None:
    admin, user = "--clusterrole=cluster-admin", f"--user={SCHEDULER.removeprefix('--as=')}"
    admitting.kubectl("create", "clusterrolebinding", "trial", admin, user)
    labels = {"aliquot.io/queue": "a"}
    admitting.apply(pod("waits", namespace=namespace, labels=labels, schedulerName="nobody"))

    def change(verb: str, *what: str) -> str:
        return admitting.kubectl(
            verb, "pod", "waits", f"--namespace={namespace}", "--overwrite", *what
        )

    record = "aliquot.io/admitted-queue=a/uid"
    try:
        with pytest.raises(ClusterError, match="comes with a pod's node and stays as it is"):
            change("annotate", record)
        change("label", "aliquot.io/queue=b")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "waits", "annotations": {"aliquot.io/admitted-queue": "b/uid"}},
            "target": {"kind": "Node", "name": admitting.node.name},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/waits"
        admitting.api.create(f"{path}/binding", binding)
        notes = admitting.api.get(path)["metadata"]["annotations"]
        assert notes["aliquot.io/admitted-queue"] == "b/uid"
        for forbidden in (record, "aliquot.io/admitted-queue-"):
            for who in ((), (SCHEDULER,)):
                with pytest.raises(ClusterError, match="comes with a pod's node and stays"):
                    change("annotate", forbidden, *who)
        for label in ("aliquot.io/queue=a", "aliquot.io/queue-"):
            with pytest.raises(ClusterError, match="a pod that has a node stays in its queue"):
                change("label", label)
        with pytest.raises(ClusterError, match="admitted-size is the scheduler's"):
            change("annotate", "aliquot.io/admitted-size=all")
        change("annotate", "aliquot.io/admitted-size=all", SCHEDULER)
        change("annotate", "aliquot.io/memory=8GiB")
        change("label", "app=other")
    finally:
        admitting.kubectl("delete", "clusterrolebinding", "trial")


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("sub", ["", "/status"])
def test_a_tenant_cannot_move_a_running_pod_to_another_gang(
    admitting: Cluster, namespace: str, field: str, sub: str
) -> None:
    keys = (*MEMBERSHIP_KEYS, PLACEHOLDER)
    node: dict[str, Any] = {"nodeName": admitting.node.name, "namespace": namespace}
    admitting.apply(
        pod("with", labels=dict.fromkeys(keys, "1"), annotations=dict.fromkeys(keys, "1"), **node),
        pod("without", **node),
    )

    def change(name: str, **meta: object) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        admitting.api.patch(f"{path}{sub}", {"metadata": meta})

    for key in keys:
        for name, value in (("with", "2"), ("with", None), ("without", "1")):
            with pytest.raises(ApiError, match="stays in its gang and so in its queue"):
                change(name, **{field: {key: value}})
    change("with", **{field: {"example.com/other": "1"}})
    with pytest.raises(ApiError, match="comes with a pod's node and stays as it is"):
        change("with", annotations={"aliquot.io/admitted-queue": "q/uid"})
    with pytest.raises(ApiError, match="a pod that has a node stays in its queue"):
        change("with", labels={"aliquot.io/queue": "q"})


def test_no_job_of_kubeflow_becomes_the_owner_of_a_running_pod(
    admitting: Cluster, namespace: str
) -> None:
    waits: dict[str, Any] = {
        "schedulerName": "nobody",
        "labels": {KUBEFLOW: "j"},
        "namespace": namespace,
    }
    runs = {**waits, "nodeName": admitting.node.name}
    admitting.apply(pod("waits", **waits), pod("runs", **runs))
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "j", "uid": "1"}
    other = {**owner, "apiVersion": "example.com/v1"}

    def own(name: str, *owners: object) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}?dryRun=All"
        admitting.api.patch(path, {"metadata": {"ownerReferences": owners}})

    own("waits", owner)
    own("runs", other)
    with pytest.raises(ApiError, match="no job of Kubeflow can become its owner"):
        own("runs", owner)


def test_the_policy_refuses_nothing_else(admitting: Cluster, namespace: str) -> None:
    with pytest.raises(ApiError, match="must be an integer"):
        dry_run(admitting, pod("p", limits={"aliquot.io/gpu": "500m"}, namespace=namespace))
    admitting.apply(pod("plain", namespace=namespace))
    admitting.wait_for_pod("plain", namespace, "Running")
