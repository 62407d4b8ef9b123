"""The real Karpenter adds the nodes that a gang lacks, by its placeholders, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.extender import Gateway, Replica, install_crd, scheduler_config, write_gpus
from cluster.fake_nodes import fake_nodes
from cluster.gangs import CLIENT, Stage
from kubernetes.builders import make_node
from neighbours.programs import Neighbour

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

GPUS = 2  # of each node that Karpenter can add
NODES = "/api/v1/nodes?labelSelector=karpenter.sh%2Fnodepool"
PLACEHOLDERS = "/api/v1/namespaces/kube-system/pods?labelSelector=aliquot.io%2Fplaceholder"


def instance_type() -> dict[str, Any]:
    def within(key: str, value: str) -> dict[str, Any]:
        return {"key": key, "operator": "In", "values": [value]}

    offering = {
        "Price": 1.0,
        "Available": True,
        "Requirements": [
            within("karpenter.sh/capacity-type", "on-demand"),
            within("topology.kubernetes.io/zone", "zone-a"),
        ],
    }
    resources = {"cpu": "16", "memory": "64Gi", "pods": "110", "aliquot.io/gpu": str(GPUS)}
    return {
        "name": "gpu-node",
        "offerings": [offering],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": resources,
    }


def node_pool() -> list[dict[str, Any]]:
    group = "karpenter.kwok.sh"
    reference = {"group": group, "kind": "KWOKNodeClass", "name": "default"}
    template = {
        "metadata": {"labels": {"type": "kwok"}},
        "spec": {"nodeClassRef": reference, "requirements": [], "expireAfter": "Never"},
    }
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}
    return [
        {
            "apiVersion": f"{group}/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": "default"},
        },
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": "gpus"},
            "spec": {"template": template, "disruption": disruption},
        },
    ]


@pytest.fixture(scope="module")
def stage(karpenter: Neighbour) -> Iterator[Stage]:
    with Cluster() as cluster, fake_nodes(cluster) as nodes:
        install_crd(cluster)
        for folder in ("pkg/apis/crds", "kwok/apis/crds"):
            path = karpenter.sources / folder
            cluster.kubectl("apply", "--server-side", f"--filename={path}")
        types = cluster.folder / "instance-types.json"
        types.write_text(json.dumps([instance_type()]), "utf-8")
        cluster.apply(*node_pool())
        asks = ("--autoscaler=karpenter", "--profile=default-scheduler", "--scale-up-patience=1")
        ours = (Replica(cluster, 0, *asks),)
        with Gateway(cluster.host_address, ours) as gateway:
            cluster.configure_scheduler({**scheduler_config(gateway.url), **CLIENT})
            ours[0].server.start()
            stage = Stage(cluster, nodes, ours)
            stage.wait_leader()
            server = cluster.server(
                "karpenter",
                str(karpenter.program),
                env={
                    "KUBECONFIG": str(cluster.kubeconfig),
                    "DISABLE_LEADER_ELECTION": "true",
                    "INSTANCE_TYPES_FILE_PATH": str(types),
                    "METRICS_PORT": "18080",
                    "HEALTH_PROBE_PORT": "18081",
                    "SYSTEM_NAMESPACE": "kube-system",
                },
            )
            server.start()
            yield stage
            server.stop()
            ours[0].server.stop()


def names(stage: Stage, path: str) -> set[str]:
    return {one["metadata"]["name"] for one in stage.cluster.api.get(path)["items"]}


def test_karpenter_adds_the_nodes_that_a_gang_lacks_and_no_more(stage: Stage) -> None:
    stage.cluster.create_namespace("gangs")
    stage.submit("gangs", "train", 3, gpus=GPUS)
    stage.cluster.wait_until(
        lambda: len(names(stage, PLACEHOLDERS)) == 3, 30, "three placeholders ask for nodes"
    )
    reported: set[str] = set()

    def all_bound() -> bool:
        for name in names(stage, NODES) - reported:  # what their agents would do
            write_gpus(stage.cluster, make_node(name, GPUS))
            reported.add(name)
        return len(stage.bound("gangs")) == 3

    stage.cluster.wait_until(all_bound, 120, "all members have nodes", every=0.5)
    assert len(set(stage.bound("gangs").values())) == 3
    stage.cluster.wait_until(
        lambda: not names(stage, PLACEHOLDERS), 30, "no placeholder asks any more"
    )
    assert len(names(stage, "/apis/karpenter.sh/v1/nodeclaims")) == 3
    stage.check_gpus("gangs")


def test_karpenter_adds_nothing_for_a_gang_that_its_queues_limit_blocks(stage: Stage) -> None:
    queue = {
        "apiVersion": "aliquot.io/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": "small"},
        "spec": {"limit": {"gpus": 1}},
    }
    stage.cluster.apply(queue)
    stage.cluster.create_namespace("blocked")
    before = names(stage, "/apis/karpenter.sh/v1/nodeclaims")
    stage.submit("blocked", "large", 2, gpus=GPUS, labels={"aliquot.io/queue": "small"})
    stage.wait_phase("blocked", "large", "Refused")
    assert not names(stage, PLACEHOLDERS)
    assert names(stage, "/apis/karpenter.sh/v1/nodeclaims") == before
