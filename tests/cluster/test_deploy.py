"""What is shipped, on a real cluster: taken by the API server, installed, and at work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.extender import install_crd
from cluster.images import BUSYBOX
from cluster.installed import SPACE, allocatable, helm, install, label, pods_of, ready_pods
from cluster.manifests import SLEEP, pod
from cluster.play import EXAMPLE
from cluster.registry import ClusterError
from kubernetes import chart

pytestmark = pytest.mark.cluster

EXAMPLES = sorted((chart.ROOT / "examples" / "kubernetes").glob("*.yaml"))
MIXED = chart.ROOT / "examples" / "kubernetes" / "mixed.yaml"
GPUS = 4
# Calls the extender without a certificate.
KNOCK = """
import http.client, ssl, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    print(urllib.request.urlopen("https://{}/filter", b"{{}}", timeout=10, context=context).status)
except urllib.error.HTTPError as error:
    print(error.code)
except (OSError, http.client.HTTPException) as error:
    # The end of a handshake: an alert, or, where that comes too late, the end of the connection.
    ends = (ssl.SSLError, ConnectionResetError, http.client.RemoteDisconnected)
    print("refused" if isinstance(getattr(error, "reason", error), ends) else repr(error))
"""


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


def test_the_mixed_example_runs_without_any_scheduler_fields(installed: Cluster) -> None:
    """Three kinds side by side on a tainted node, by the label of the namespace alone."""
    text = MIXED.read_text("utf-8").replace("pytorch/pytorch:latest", BUSYBOX)
    text = text.replace("[sleep, infinity]", json.dumps(SLEEP))
    installed.kubectl("taint", "node", installed.node.name, "aliquot.io/gpu=present:NoSchedule")
    try:
        installed.create_namespace("mixed")
        installed.kubectl("label", "namespace", "mixed", "aliquot.io/schedule=true")
        installed.kubectl("apply", "--namespace=mixed", "--filename=-", text=text)
        running = "--for=jsonpath={.status.phase}=Running"
        installed.kubectl("wait", running, "pods", "--all", "-n", "mixed", "--timeout=60s")
        names = {"training", "notebook", "inference"}
        installed.wait_until(
            lambda: (
                len(holders(installed)) == 5
                and {one.split("-")[0] for one in holders(installed)} == names
            ),
            20,
            "a whole GPU, two halves and two slices are used",
        )
        assert allocatable(installed)["aliquot.io/gpu"] == 1  # the whole one, which is in use
        past = pod("past", limits={"aliquot.io/gpu": 1}, namespace="mixed", schedulerName="other")
        installed.apply(past)
        installed.wait_until(
            lambda: "BypassesAliquot" in reasons(installed, "past", "mixed"), 30, "it is told"
        )
    finally:
        installed.kubectl("delete", "namespace", "mixed")
        installed.kubectl("taint", "node", installed.node.name, "aliquot.io/gpu-")
    installed.wait_until(lambda: not holders(installed), 30, "all is back")


def test_a_pod_grows_as_far_as_its_queue_allows(installed: Cluster) -> None:
    queue = {
        "apiVersion": "aliquot.io/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": "small"},
        "spec": {"limit": {"memory": "4Gi"}, "namespaces": ["default"]},
    }
    asked = {"aliquot.io/vcuda-memory": 8}
    installed.apply(queue, pod("grows", limits=asked, schedulerName="aliquot"))
    try:
        installed.wait_for_pod("grows", "default", "Running")
        notes = installed.api.get("/api/v1/namespaces/default/pods/grows")["metadata"]
        record = f"small/{notes['uid']}"
        assert notes["annotations"]["aliquot.io/admitted-queue"] == record
        change = ["annotate", "pod", "grows", "--overwrite"]
        installed.kubectl(*change, "aliquot.io/memory=5GiB")
        installed.wait_until(
            lambda: "ResizeRefused" in reasons(installed, "grows"), 30, "the queue refuses"
        )
        assert "Resized" not in reasons(installed, "grows")
        installed.kubectl(*change, "aliquot.io/memory=4GiB")
        installed.wait_until(lambda: "Resized" in reasons(installed, "grows"), 30, "it has grown")
    finally:
        installed.kubectl("delete", "pod", "grows", "--now")
        installed.kubectl("delete", "queue", "small")


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
        with pytest.raises(ClusterError, match="takes its own gates away, nothing else"):
            installed.kubectl("label", "pod", "plain", "app=other", *extender)
        image = '{"spec": {"containers": [{"name": "main", "image": "other"}]}}'
        with pytest.raises(ClusterError, match="takes its own gates away, nothing else"):
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


def test_all_replicas_become_ready_and_rollouts_end(installed: Cluster) -> None:
    for name in ("aliquot-scheduler", "aliquot-kube-scheduler", "aliquot-controller"):
        said = installed.kubectl("rollout", "status", f"deploy/{name}", "-n", SPACE, timeout=120)
        assert "successfully rolled out" in said


def test_the_service_leads_to_the_leader_alone(installed: Cluster) -> None:
    installed.wait_until(lambda: len(ready_pods(installed, "scheduler")) == 2, 60, "both are ready")
    (leader,) = leading(installed)
    lease = installed.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases")["items"]
    holders = [one["spec"]["holderIdentity"] for one in lease]
    assert [one for one in holders if one.startswith(leader)]


def test_another_extender_takes_over(installed: Cluster) -> None:
    (leader,) = leading(installed)
    installed.kubectl("delete", "pod", leader, "-n", SPACE, "--now")
    installed.wait_until(lambda: leading(installed) not in ([], [leader]), 60, "another leads")
    installed.apply(pod("later", limits={"aliquot.io/gpu": 1}, schedulerName="aliquot"))
    installed.wait_for_pod("later", "default", "Running")
    installed.kubectl("delete", "pod", "later", "--now")


def test_an_upgrade_keeps_the_certificates(installed: Cluster) -> None:
    path = f"/api/v1/namespaces/{SPACE}/secrets"

    def data() -> dict[str, Any]:
        found = installed.api.get(path)["items"]
        ours = [one for one in found if one["metadata"]["name"].startswith("aliquot-extender")]
        return {one["metadata"]["name"]: one["data"] for one in ours}

    before = data()
    assert set(before) == {"aliquot-extender", "aliquot-extender-client"}
    helm(installed, "upgrade", "--reuse-values")
    installed.apply(*(one for one in chart.objects(chart.render()) if one["kind"] == "Secret"))
    assert data() == before


def test_the_runbook_makes_a_new_authority(installed: Cluster) -> None:
    path = f"/api/v1/namespaces/{SPACE}/secrets/aliquot-extender"
    before = installed.api.get(path)["data"]
    runbook = (chart.ROOT / "docs" / "runbook.md").read_text("utf-8")
    (commands,) = re.findall(
        r"^```\n(kubectl -n NS scale.*?)```", runbook, re.DOTALL | re.MULTILINE
    )
    for command in commands.strip().splitlines():
        words = shlex.split(command.replace("NS", SPACE), comments=True)
        installed.kubectl(*words[1:], timeout=120)
    installed.wait_until(
        lambda: installed.api.get(path).get("data", before) != before, 60, "a new authority"
    )
    name = "deploy/aliquot-kube-scheduler"
    installed.kubectl("rollout", "status", name, "-n", SPACE, timeout=120)
    installed.apply(pod("renewed", limits={"aliquot.io/gpu": 1}, schedulerName="aliquot"))
    installed.wait_for_pod("renewed", "default", "Running", 120)
    installed.kubectl("delete", "pod", "renewed", "--now")


def test_only_callers_with_a_certificate_reach_the_extender(installed: Cluster) -> None:
    """From the node, where every address of a Service is reachable."""
    said = installed.kubectl(
        "exec", "-n", SPACE, "ds/aliquot-node", "--", "python", "-c", KNOCK.format("10.96.0.44")
    )
    assert said.strip() == "refused"


def test_requests_for_leases_have_a_priority_of_their_own(installed: Cluster) -> None:
    """The API server names the FlowSchema that a request matched in its answer."""
    schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"

    def conditions() -> list[str]:
        found = installed.api.get(f"{schemas}/aliquot-leases")
        return [one["status"] for one in found.get("status", {}).get("conditions", ())]

    installed.wait_until(conditions, 60, "the API server has looked at the schema")
    assert set(conditions()) == {"False"}, "they are problems"
    found = installed.api.get(f"{schemas}/aliquot-leases")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases"
    for part in ("scheduler", "controller"):
        user = f"system:serviceaccount:{SPACE}:aliquot-{part}"
        schema = {
            one: installed.api.flow_schema(one, user)
            for one in (f"{path}/aliquot-{part}", "/api/v1/pods")
        }
        assert [one == found["metadata"]["uid"] for one in schema.values()] == [True, False]


def test_the_columns_say_what_is_free_and_used(installed: Cluster) -> None:
    head, row = installed.kubectl("get", "gpunodes").splitlines()
    assert head.split()[:7] == ["NAME", "MODEL", "GPUS", "FREE", "USED", "SWAPPED", "KINDS"]
    assert str(GPUS) in row.split()
    reported = row[head.index("REPORTED") :].split()[0]
    assert re.fullmatch(r"\d+s|1m\d*s?", reported), row


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


def reasons(cluster: Cluster, name: str, namespace: str = "default") -> set[str]:
    selector = f"involvedObject.name={name}"
    events = cluster.api.get(f"/api/v1/namespaces/{namespace}/events?fieldSelector={selector}")
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


def leading(cluster: Cluster) -> list[str]:
    """The pods that the extender's Service leads to."""
    label = "kubernetes.io/service-name=aliquot-scheduler"
    path = f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices?labelSelector={label}"
    addresses = [
        address
        for one in cluster.api.get(path)["items"]
        for each in one["endpoints"]
        for address in each["addresses"]
    ]
    by_address = {one["status"].get("podIP"): one for one in pods_of(cluster, "scheduler")}
    return [by_address[one]["metadata"]["name"] for one in addresses if one in by_address]


def arbiter(cluster: Cluster) -> int:
    """The process that answers, on its node."""
    command = ["exec", "-n", SPACE, "ds/aliquot-node", "--", "aliquot", "ps", "--json"]
    return int(json.loads(cluster.kubectl(*command))["machines"][0]["pid"])
