"""What is shipped, on a real cluster: taken by the API server, installed, and at work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.extender import install_crd
from cluster.installed import SPACE, allocatable, helm, install, label, pods_of, ready_pods
from cluster.manifests import pod
from cluster.play import EXAMPLE
from cluster.registry import ClusterError
from kubernetes import chart

pytestmark = pytest.mark.cluster

EXAMPLES = sorted((chart.ROOT / "examples" / "kubernetes").glob("*.yaml"))
GPUS = 4


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    """A cluster with the chart on it, and simulated GPUs."""
    with Cluster() as cluster:
        install(cluster, f"h100:{GPUS}")
        yield cluster


# --- taken ----------------------------------------------------------------------------------------


def test_the_api_server_accepts_the_manifest(cluster: Cluster) -> None:
    with space(cluster):
        said = dry_run(cluster, chart.MANIFEST.read_text("utf-8"))
    assert "daemonset.apps/aliquot-node created (server dry run)" in said


def test_the_api_server_accepts_every_option_of_the_chart(cluster: Cluster) -> None:
    text = chart.render("networkPolicy.enabled=true", "quota.enabled=true")
    with space(cluster):
        assert "networkpolicy" in dry_run(cluster, text)


@pytest.fixture(scope="module")
def informed(cluster: Cluster) -> Cluster:
    """A cluster that knows our kinds of objects."""
    install_crd(cluster)
    return cluster


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_every_example(
    informed: Cluster, namespace: str, path: Path
) -> None:
    said = dry_run(informed, path.read_text("utf-8"), f"--namespace={namespace}")
    assert "created (server dry run)" in said


# --- at work --------------------------------------------------------------------------------------


def test_a_pod_gets_two_half_gpus_through_our_kube_scheduler(installed: Cluster) -> None:
    empty = allocatable(installed)
    assert (empty["aliquot.io/gpu"], empty["aliquot.io/sgpu"]) == (GPUS, 2 * GPUS)
    installed.kubectl("apply", f"--filename={EXAMPLE}")
    installed.wait_for_pod("halves", "default", "Running")
    installed.wait_until(
        lambda: installed.kubectl("logs", "halves").count(" 39.5 GiB ") == 2,
        30,
        "it sees two half GPUs",
    )
    installed.wait_until(lambda: holders(installed) == ["halves"] * 2, 10, "GPUNode names it")
    left = {"aliquot.io/gpu": GPUS - 2, "aliquot.io/sgpu": 2 * GPUS}
    installed.wait_until(
        lambda: left.items() <= allocatable(installed).items(), 30, f"the node has {left}"
    )
    installed.kubectl("delete", "pod", "halves", "--now")
    installed.wait_until(lambda: allocatable(installed) == empty, 30, "all is back")


def test_a_pod_that_fits_nowhere_gets_an_event(installed: Cluster) -> None:
    huge = pod("huge", limits={"aliquot.io/gpu": GPUS + 1}, schedulerName="aliquot")
    installed.apply(huge)
    try:
        installed.wait_until(
            lambda: "TooLarge" in reasons(installed, "huge"), 30, "the pod is told TooLarge"
        )
    finally:
        installed.kubectl("delete", "pod", "huge", "--now")


def test_each_service_account_has_the_permissions_it_needs(installed: Cluster) -> None:
    for part in ("node", "scheduler", "kube-scheduler", "controller"):
        log = installed.kubectl("logs", "-n", SPACE, f"--selector={label(part)}", "--tail=-1")
        assert "forbidden" not in log.lower(), part
        assert "denied" not in log.lower(), part


def test_an_agent_writes_only_the_gpunode_of_its_own_node(installed: Cluster) -> None:
    agent = as_account("aliquot-node", installed.node.name)
    change = ["apply", "--server-side", "--force-conflicts", "--subresource=status"]
    change += ["--filename=-", *agent]
    installed.kubectl(*change, text=gpu_node(installed.node.name))
    installed.kubectl("create", "--filename=-", text=gpu_node("another"))
    try:
        with pytest.raises(ClusterError, match="the GPUNode of its own node, not another"):
            installed.kubectl(*change, text=gpu_node("another"))
    finally:
        installed.kubectl("delete", "gpunode", "another")
    with pytest.raises(ClusterError, match="the GPUNode of its own node, not mine"):
        installed.kubectl("create", "--filename=-", *agent, text=gpu_node("mine"))


def test_the_extender_changes_nothing_of_a_pod_but_annotations(installed: Cluster) -> None:
    extender = as_account("aliquot-scheduler", installed.node.name)
    installed.apply(pod("plain"))
    try:
        installed.kubectl("annotate", "pod", "plain", "aliquot.io/retry=now", *extender)
        with pytest.raises(ClusterError, match="takes its own gate away, nothing else"):
            installed.kubectl("label", "pod", "plain", "app=other", *extender)
        image = '{"spec": {"containers": [{"name": "main", "image": "other"}]}}'
        with pytest.raises(ClusterError, match="takes its own gate away, nothing else"):
            installed.kubectl("patch", "pod", "plain", f"--patch={image}", *extender)
    finally:
        installed.kubectl("delete", "pod", "plain", "--now")


def test_the_arbiter_survives_the_agents_container(installed: Cluster) -> None:
    installed.apply(pod("holder", limits={"aliquot.io/gpu": 1}, schedulerName="aliquot"))
    installed.wait_for_pod("holder", "default", "Running")
    before = arbiter(installed)
    name = pods_of(installed, "node")[0]["metadata"]["name"]
    installed.kubectl("delete", "pod", name, "-n", SPACE, "--now")
    installed.wait_until(lambda: ready_pods(installed, "node") not in ([], [name]), 60, "a new one")
    assert arbiter(installed) == before
    installed.kubectl("delete", "pod", "holder", "--now")


def test_another_extender_takes_over(installed: Cluster) -> None:
    leader = ready_pods(installed, "scheduler")[0]
    installed.kubectl("delete", "pod", leader, "-n", SPACE, "--now")
    installed.wait_until(
        lambda: ready_pods(installed, "scheduler") not in ([], [leader]), 60, "another is ready"
    )
    installed.apply(pod("later", limits={"aliquot.io/gpu": 1}, schedulerName="aliquot"))
    installed.wait_for_pod("later", "default", "Running")
    installed.kubectl("delete", "pod", "later", "--now")


def test_an_upgrade_keeps_the_certificate(installed: Cluster) -> None:
    path = f"/api/v1/namespaces/{SPACE}/secrets/aliquot-scheduler-tls"
    before = installed.api.get(path)["data"]
    helm(installed, "upgrade", "--reuse-values")
    assert installed.api.get(path)["data"] == before


# --- how to look ----------------------------------------------------------------------------------


@contextmanager
def space(cluster: Cluster) -> Iterator[None]:
    """The manifest's namespace, which a dry run does not make for what is in it."""
    cluster.create_namespace(SPACE)
    try:
        yield
    finally:
        cluster.kubectl("delete", "namespace", SPACE)


def dry_run(cluster: Cluster, text: str, *more: str) -> str:
    return cluster.kubectl("apply", "--dry-run=server", "--filename=-", *more, text=text)


def holders(cluster: Cluster) -> list[str]:
    path = f"/apis/aliquot.io/v1alpha1/gpunodes/{cluster.node.name}"
    gpus = cluster.api.get(path)["status"]["gpus"]
    return [grant["pod"] for gpu in gpus for grant in gpu.get("grants", ())]


def reasons(cluster: Cluster, name: str) -> set[str]:
    selector = f"involvedObject.name={name}"
    events = cluster.api.get(f"/api/v1/namespaces/default/events?fieldSelector={selector}")
    return {one["reason"] for one in events["items"]}


def as_account(name: str, node: str) -> list[str]:
    """As the API server knows a pod of that account."""
    extra = f"authentication.kubernetes.io/node-name={node}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{SPACE}", "system:authenticated"]
    return [
        f"--as=system:serviceaccount:{SPACE}:{name}",
        *(f"--as-group={group}" for group in groups),
        f"--as-user-extra={extra}",
    ]


def gpu_node(name: str) -> str:
    about = {"apiVersion": "aliquot.io/v1alpha1", "kind": "GPUNode"}
    return json.dumps({**about, "metadata": {"name": name}, "status": {"shares": 2}})


def arbiter(cluster: Cluster) -> int:
    """The process that answers, on its node."""
    command = ["exec", "-n", SPACE, "ds/aliquot-node", "--", "aliquot", "ps", "--json"]
    return int(json.loads(cluster.kubectl(*command))["machines"][0]["pid"])
