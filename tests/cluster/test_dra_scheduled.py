"""Resource claims that Aliquot's scheduler allocates, with the chart's rights, on a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec
import pytest

from aliquot.kubernetes.api.dra import FINALIZER
from aliquot.kubernetes.api.gpunode import BY_ALIQUOT, NodeGrant
from aliquot.kubernetes.api.objects import GpuNode
from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.dra import (
    Json,
    claim,
    gpus_of,
    kubeconfig_of,
    path_of,
    pod_with,
    published,
    rights_of_the_chart,
    until_unallocatable,
)
from cluster.extender import Replica, install_crd, write_gpus
from cluster.fake_nodes import fake_nodes
from cluster.manifests import pod
from cluster.tenants import delete_pod
from kubernetes.builders import GPU_BYTES, make_gpu, make_node

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SHAPE = "rtx6000:2"
SPACE = "aliquot-dra-scheduled"
VALUES = ("node.dra=true", "scheduler.resourceClaims=true")
GATE = {"name": "aliquot.io/resource-claims"}


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[Agent]:
    """The agent with the rights of the chart, and two GPUs that only our scheduler gives."""
    install_crd(cluster)
    with rights_of_the_chart(cluster, SPACE, "node", "scheduler", values=VALUES):
        kubeconfig = kubeconfig_of(cluster, "aliquot-node", SPACE, cluster.node.name)
        options = ("--dra", "--scheduled", "--kubeconfig", str(kubeconfig))
        one = Agent(cluster, SHAPE, *options)
        one.start()
        cluster.wait_until(lambda: len(published(cluster)) == 2, 30, "the GPUs are published")
        yield one
        one.close()
        cluster.kubectl("delete", "resourceslices", "--all")


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster, agent: Agent) -> Iterator[Replica]:
    """Aliquot's scheduler with the rights of the chart; kube-scheduler does not ask it."""
    kubeconfig = kubeconfig_of(cluster, "aliquot-scheduler", SPACE)
    options = (f"--kubeconfig={kubeconfig}", f"--namespace={SPACE}", "--resource-claims")
    one = Replica(cluster, 0, *options)
    start(cluster, one)
    yield one
    one.server.stop()


def start(cluster: Cluster, scheduler: Replica) -> None:
    scheduler.server.start()
    scheduler.server.wait_ready()
    cluster.wait_until(lambda: scheduler.ready, 60, "the scheduler decides")


def test_a_pod_behind_the_gate_gets_the_slice_of_its_template(
    cluster: Cluster, namespace: str, agent: Agent, scheduler: Replica
) -> None:
    spec = claim("small", namespace, memory="10Gi", compute=30)["spec"]
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"spec": spec},
    }
    one = pod_with("small", namespace, "one", schedulingGates=[GATE])
    one["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "small"}]
    cluster.apply(template, one)
    cluster.wait_for_pod("one", namespace, "Running", 120)
    claims = cluster.api.get(path_of("", namespace).rstrip("/"))["items"]
    (made,) = claims
    (uuid_of_gpu,) = gpus_of(cluster, namespace, made["metadata"]["name"])
    assert FINALIZER in made["metadata"]["finalizers"]
    (result,) = made["status"]["allocation"]["devices"]["results"]
    uuid.UUID(result["shareID"])
    assert result["device"] == f"{uuid_of_gpu.lower()}-sliced"
    assert made["status"]["allocation"]["allocationTimestamp"]
    taints = {
        one["key"]
        for spec in (each["spec"] for each in published(cluster))
        for device in spec.get("devices", ())
        for one in device["taints"]
    }
    assert taints == {"aliquot.io/scheduled"}
    assert len(agent.grants()) == 1
    delete_pod(cluster, namespace, "one")
    agent.until(lambda: not agent.grants(), "the grant has ended", 120)
    cluster.wait_until(
        lambda: not cluster.api.get(path_of("", namespace).rstrip("/"))["items"],
        60,
        "the claim is gone",
    )


def test_the_pods_of_a_gang_get_their_gpus_together(
    cluster: Cluster, namespace: str, agent: Agent, scheduler: Replica
) -> None:
    names = ("g-0", "g-1")
    gates = [{"name": "aliquot.io/gang"}, GATE]
    pods = {name: pod_with(name, namespace, schedulingGates=gates) for name in names}
    for one in pods.values():
        one["metadata"]["annotations"] = {"aliquot.io/gang": "g", "aliquot.io/gang-size": "2"}
    cluster.apply(claim("g-0", namespace, "whole"), pods["g-0"])
    cluster.wait_until(
        lambda: phase_of(cluster, namespace) == "Gathering", 60, "the gang waits for its second pod"
    )
    assert "allocation" not in cluster.api.get(path_of("g-0", namespace)).get("status", {})
    cluster.apply(claim("g-1", namespace, "whole"), pods["g-1"])
    for name in names:
        cluster.wait_for_pod(name, namespace, "Running", 120)
    assert len(set(gpus_of(cluster, namespace, *names))) == 2
    cluster.wait_until(lambda: phase_of(cluster, namespace) == "Bound", 60, "the gang is bound")
    delete_pod(cluster, namespace, *names)
    agent.until(lambda: not agent.grants(), "the grants have ended", 120)


def test_no_other_scheduler_allocates_and_a_pod_without_a_gate_starts_when_ours_is_there(
    cluster: Cluster, namespace: str, agent: Agent, scheduler: Replica
) -> None:
    scheduler.server.stop()
    cluster.apply(claim("a", namespace, "whole"), pod_with("a", namespace))
    until_unallocatable(cluster, namespace, "a")
    start(cluster, scheduler)
    cluster.wait_for_pod("a", namespace, "Running", 120)
    large = claim("large", namespace, memory="1Ti")
    cluster.apply(large, pod_with("large", namespace, schedulingGates=[GATE]))
    agent.until(
        lambda: any(
            reason in {"InsufficientGPUs", "TooLarge"}
            for reason, _ in agent.events(namespace, "large")
        ),
        "the pod says why it waits",
    )
    delete_pod(cluster, namespace, "a", "large")
    agent.until(lambda: not agent.grants(), "the grant has ended", 120)


def test_an_allocation_that_kube_scheduler_takes_back_is_made_on_another_node(
    cluster: Cluster, namespace: str, scheduler: Replica
) -> None:
    """The pod's GPU is free on a node without CPU, and later on one with CPU."""
    with fake_nodes(cluster) as nodes:
        busy, later = nodes.add(2)
        write_gpus(cluster, for_claims(make_node(busy, 1)))
        who = ("uid-ghost", "elsewhere", "ghost", "")
        ghost = NodeGrant(*who, GPU_BYTES, claim="x", claim_uid="u")
        held = make_gpu(later, 0, kind="whole", grants=(ghost,))
        full = for_claims(make_node(later, 1))
        full = GpuNode(full.metadata, msgspec.structs.replace(full.status, gpus=(held,)))
        write_gpus(cluster, full)
        on_busy = {"kubernetes.io/hostname": busy}
        cluster.apply(pod("cpu", limits={"cpu": 60}, namespace=namespace, nodeSelector=on_busy))
        cluster.wait_for_pod("cpu", namespace, "Running", 60)
        one = pod_with("a", namespace, nodeSelector={"type": "kwok"}, schedulingGates=[GATE])
        one["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "10"}
        cluster.apply(claim("a", namespace, "whole"), one)
        cluster.wait_until(
            lambda: any("did not accept" in text for text in events(cluster, namespace, "a")),
            60,
            "kube-scheduler has taken the allocation back",
        )
        write_gpus(cluster, for_claims(make_node(later, 1)))
        cluster.wait_for_pod("a", namespace, "Running", 120)
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/a")
        assert found["spec"]["nodeName"] == later
        delete_pod(cluster, namespace, "a", "cpu")
        cluster.kubectl("delete", "gpunodes", busy, later)


def phase_of(cluster: Cluster, namespace: str) -> str:
    """The phase of the only gang of a namespace."""
    found = cluster.api.get(f"/apis/aliquot.io/v1alpha1/namespaces/{namespace}/gangs")["items"]
    return str(found[0].get("status", {}).get("phase", "")) if found else ""


def for_claims(node: GpuNode) -> GpuNode:
    status = msgspec.structs.replace(node.status, allocator=BY_ALIQUOT)
    return GpuNode(node.metadata, status)


def events(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """What was said about a pod."""
    found: list[Json] = cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return [one["message"] for one in found if one["involvedObject"]["name"] == name]
