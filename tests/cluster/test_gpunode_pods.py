"""The scheduler writes the pods of nodes into their GPUNodes: what the real API server keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from aliquot.kubernetes.api.node_pods import (
    GPU_NODE_PODS,
    ContainerRecord,
    GpuNodePodsObject,
    PodRecord,
    spec_of,
)
from cluster.cluster import Cluster
from cluster.dra import rights_of_the_chart
from cluster.extender import install_crd
from cluster.registry import ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPACE = "aliquot-gpunode-pods"
SCHEDULER = f"--as=system:serviceaccount:{SPACE}:aliquot-scheduler"
AGENT = f"--as=system:serviceaccount:{SPACE}:aliquot-node"
VALUES = ("node.readsPods=false",)
NODE = "written"


@pytest.fixture
def cluster_with_policy(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the chart's rights, a GPUNode, and the policy for it in force."""
    install_crd(cluster)
    with rights_of_the_chart(cluster, SPACE, "node", "scheduler", values=VALUES):
        gpu_node = {"apiVersion": GPU_NODE_PODS.api_version, "kind": GPU_NODE_PODS.kind}
        cluster.apply({**gpu_node, "metadata": {"name": NODE}})
        labelled = {"metadata": {"labels": {"probe": "1"}}}
        cluster.wait_until(
            lambda: "nothing else" in refusal(cluster, labelled, "--dry-run=server"),
            30,
            "the API server knows the policy",
        )
        yield cluster
        cluster.kubectl("delete", "gpunode", NODE)


def patch(cluster: Cluster, body: dict[str, Any], *options: str, who: str = SCHEDULER) -> None:
    text = json.dumps(body)
    cluster.kubectl("patch", "gpunode", NODE, "--type=merge", f"--patch={text}", who, *options)


def refusal(cluster: Cluster, body: dict[str, Any], *options: str, who: str = SCHEDULER) -> str:
    try:
        patch(cluster, body, *options, who=who)
    except ClusterError as error:
        return str(error)
    return ""


def test_the_scheduler_writes_only_pods_into_a_gpunode_and_an_agent_reads_none_elsewhere(
    cluster_with_policy: Cluster,
) -> None:
    cluster = cluster_with_policy
    main = ContainerRecord(
        name="main",
        init=True,
        restart_policy="Always",
        resources={"aliquot.io/gpu": "1"},
        capabilities="compute",
        id="c://1",
    )
    full = PodRecord(
        uid="u1",
        namespace="ns",
        name="p1",
        phase="Running",
        annotations={"aliquot.io/swap": "true"},
        resource_claims=True,
        containers=(main,),
    )
    spec = spec_of([full, PodRecord("u2", "ns", "p2", abridged=True)])
    patch(cluster, {"spec": msgspec.to_builtins(spec)})
    text = cluster.kubectl("get", "gpunode", NODE, "--output=json")
    assert msgspec.json.decode(text, type=GpuNodePodsObject).spec == spec
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u"}
    for metadata in (
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a.example/b"]},
        {"ownerReferences": [owner]},
    ):
        assert "nothing else" in refusal(cluster, {"metadata": metadata}), metadata
    status = {"status": {"problem": "none"}}
    assert "forbidden" in refusal(cluster, status, "--subresource=status").lower()
    unchanged = cluster.kubectl("get", "gpunode", NODE, "--output=json")
    assert msgspec.json.decode(unchanged, type=GpuNodePodsObject).spec == spec
    with pytest.raises(ClusterError, match=r"pods is forbidden"):
        cluster.kubectl("get", "pods", "--all-namespaces", AGENT)
    assert NODE in cluster.kubectl("get", "gpunodes", AGENT)
