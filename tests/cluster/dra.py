"""Resource claims for tests on a cluster, and who may do what about them, as the chart says it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.cluster import Cluster
from cluster.manifests import SLEEP, pod
from kubernetes import chart

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
RIGHTS = {
    "DeviceClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
Json = dict[str, Any]


@contextmanager
def rights_of_the_chart(
    cluster: Cluster, space: str, *components: str, values: Sequence[str]
) -> Iterator[list[Json]]:
    """What the chart with these values adds for its components, in a namespace of their own."""
    rendered = chart.objects(chart.render(*values).replace(chart.NAMESPACE, space))
    objects = [
        one
        for one in rendered
        if one["kind"] in RIGHTS
        and one["metadata"]["labels"]["app.kubernetes.io/component"] in components
    ]
    cluster.create_namespace(space)
    cluster.apply(*objects)
    yield objects
    for one in objects:
        if one["metadata"].get("namespace") != space:  # those go with it
            cluster.kubectl("delete", one["kind"], one["metadata"]["name"])
    cluster.kubectl("delete", "namespace", space, "--wait=false")


def kubeconfig_of(cluster: Cluster, account: str, space: str, node: str = "") -> Path:
    """That of an account, with a token for two hours; that of a node's pod if one is named."""
    spec: Json = {"expirationSeconds": 7200}
    if node:
        uid = cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        bound = {"kind": "Node", "name": node, "uid": uid}
        spec["boundObjectRef"] = {"apiVersion": "v1", **bound}
    path = f"/api/v1/namespaces/{space}/serviceaccounts/{account}/token"
    token = cluster.api.create(path, {"spec": spec})["status"]["token"]
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
    config["users"] = [{**one, "user": {"token": token}} for one in config["users"]]
    kubeconfig = cluster.folder / f"{account}.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    return kubeconfig


def claim(
    name: str, namespace: str, kind: str = "slice", count: int = 1, **capacity: str | int
) -> Json:
    exactly: Json = {"deviceClassName": f"{kind}.aliquot.io", "count": count}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod_with(claim_name: str, namespace: str, name: str = "", **more: Any) -> Json:
    """A pod whose container names the claim."""
    one = pod(name or claim_name, more.pop("command", SLEEP), namespace=namespace, **more)
    one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim_name}]
    one["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return one


def run(cluster: Cluster, *objects: Json) -> None:
    """Have these objects, and return when the pods of them run."""
    cluster.apply(*objects)
    for one in objects:
        if one["kind"] == "Pod":
            meta = one["metadata"]
            cluster.wait_for_pod(meta["name"], meta["namespace"], "Running", 120)


def path_of(name: str, namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


def devices(cluster: Cluster, namespace: str, name: str) -> list[Json]:
    """What the driver says in a claim's status."""
    return list(cluster.api.get(path_of(name, namespace))["status"].get("devices", []))


def gpus_of(cluster: Cluster, namespace: str, *names: str) -> list[str]:
    """The GPU of each claim."""
    cluster.wait_until(
        lambda: all(devices(cluster, namespace, name) for name in names), 60, "claims have a status"
    )
    return [str(devices(cluster, namespace, name)[0]["data"]["uuid"]) for name in names]


def published(cluster: Cluster) -> list[Json]:
    return list(cluster.api.get(SLICES)["items"])


def until_unallocatable(cluster: Cluster, namespace: str, name: str) -> None:
    """Until kube-scheduler says on the pod that no node has what its claim asks for."""

    def is_said() -> bool:
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
        return any(
            one["type"] == "PodScheduled" and "cannot allocate" in one.get("message", "")
            for one in found.get("conditions", ())
        )

    cluster.wait_until(is_said, 60, f"pod {name} says why it waits")
