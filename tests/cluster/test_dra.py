"""Resource claims on a real cluster, allocated by kube-scheduler and prepared by the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from cluster.agent import CDI, STATE, Agent
from cluster.api import ApiError
from cluster.cluster import Cluster
from cluster.dra import (
    SLICES,
    Json,
    claim,
    devices,
    gpus_of,
    kubeconfig_of,
    pod_with,
    published,
    rights_of_the_chart,
    run,
    until_unallocatable,
)
from cluster.manifests import pod
from cluster.tenants import LOOK, delete_pod, restarts_of
from support import GIB

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SHAPE = "rtx6000:3"
ACCOUNT = "aliquot-node"
SPACE = "aliquot-dra"  # other files of tests have the chart's own namespace


@pytest.fixture(scope="module")
def classes(cluster: Cluster) -> Iterator[list[Json]]:
    """What the chart adds for resource claims; its agent may do no more than that."""
    with rights_of_the_chart(cluster, SPACE, "node", values=("node.dra=true",)) as objects:
        yield objects


@pytest.fixture(scope="module")
def agent(cluster: Cluster, classes: list[Json]) -> Iterator[Agent]:
    """The agent with the rights of the chart, and three GPUs."""
    kubeconfig = kubeconfig_of(cluster, ACCOUNT, SPACE, cluster.node.name)
    one = Agent(cluster, SHAPE, "--dra", "--kubeconfig", str(kubeconfig))
    one.start()
    cluster.wait_until(lambda: len(published(cluster)) == 2, 30, "the GPUs are published")
    yield one
    one.close()
    cluster.kubectl("delete", "resourceslices", "--all")


def released(agent: Agent) -> None:
    agent.until(lambda: not agent.grants(), "all grants have ended", 120)


# --- tests ----------------------------------------------------------------------------------------


def test_two_containers_share_a_claim_and_see_what_it_got(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    stays = f"{LOOK}\nimport signal\nsignal.pause()"  # a claim of ended pods is taken back
    one = pod_with("one", namespace, command=["python3", "-c", stays], image=project)
    (main,) = one["spec"]["containers"]
    one["spec"]["containers"].append({**main, "name": "second"})
    cluster.apply(claim("one", namespace, memory="10Gi", compute=30), one)
    cluster.wait_for_pod("one", namespace, "Running", 120)
    (_,) = gpus_of(cluster, namespace, "one")
    (device,) = devices(cluster, namespace, "one")
    for container in ("main", "second"):
        log = ("logs", "one", f"--container={container}", f"--namespace={namespace}")
        cluster.wait_until(partial(cluster.kubectl, *log), 60, "it has looked")
        assert json.loads(cluster.kubectl(*log)) == [10 * GIB]
    assert len(agent.grants()) == 1
    assert device["data"]["memory"] == "10Gi"
    assert device["data"]["compute"] == 30
    assert device["conditions"][0]["status"] == "True"
    delete_pod(cluster, namespace, "one")
    released(agent)


def test_a_claim_asks_for_different_gpus_that_are_neighbours(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    """Of the three GPUs the first two are linked."""
    pair, three = (
        claim(name, namespace, count=count, memory="4Gi", compute=10)
        for name, count in (("pair", 2), ("three", 3))
    )
    for one in (pair, three):
        one["spec"]["devices"]["constraints"] = [
            {"distinctAttribute": "aliquot.io/uuid"},
            {"matchAttribute": "aliquot.io/neighbours"},
        ]
    stays = f"{LOOK}\nimport signal\nsignal.pause()"
    cluster.apply(
        pair,
        three,
        pod_with("pair", namespace, command=["python3", "-c", stays], image=project),
        pod_with("three", namespace),
    )
    cluster.wait_for_pod("pair", namespace, "Running", 120)
    log = ("logs", "pair", f"--namespace={namespace}")
    cluster.wait_until(partial(cluster.kubectl, *log), 60, "it has looked")
    assert json.loads(cluster.kubectl(*log)) == [4 * GIB] * 2
    gpus_of(cluster, namespace, "pair")
    found = [one["data"]["index"] for one in devices(cluster, namespace, "pair")]
    assert sorted(found) == [0, 1]
    until_unallocatable(cluster, namespace, "three")
    delete_pod(cluster, namespace, "pair", "three")
    released(agent)


def test_whole_shared_and_sliced_gpus_exclude_each_other(
    cluster: Cluster, namespace: str, agent: Agent
) -> None:
    slices = ["slice-a", "slice-b"]
    shares = ["share-a", "share-b"]
    run(
        cluster,
        *(claim(name, namespace, memory="8Gi") for name in slices),
        *(claim(name, namespace, "shared") for name in shares),
        claim("whole", namespace, "whole"),
        *(pod_with(name, namespace) for name in [*slices, *shares, "whole"]),
    )
    sliced, shared = (set(gpus_of(cluster, namespace, *names)) for names in (slices, shares))
    whole = set(gpus_of(cluster, namespace, "whole"))
    assert len(sliced) == len(shared) == len(whole) == 1  # two claims on one GPU
    assert len(sliced | shared | whole) == 3
    assert len(agent.grants()) == 5

    # Nothing is left for these, and the pods say so.
    cluster.apply(
        claim("late", namespace, "whole"),
        claim("large", namespace, memory="8Gi"),
        pod_with("late", namespace),
        pod_with("large", namespace),
    )
    until_unallocatable(cluster, namespace, "late")
    until_unallocatable(cluster, namespace, "large")
    delete_pod(cluster, namespace, "whole")
    cluster.kubectl("delete", "resourceclaim", "whole", f"--namespace={namespace}")
    cluster.wait_for_pod("late", namespace, "Running", 120)
    delete_pod(cluster, namespace, *slices, *shares, "late", "large")
    released(agent)


def test_pods_can_ask_for_whole_and_shared_gpus_by_number(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    gpu_memory = agent.gpunode()[0]["memory"]
    asked = {"whole": {"aliquot.io/gpu": 1}, "share": {"aliquot.io/sgpu": 1}}
    command = ["python3", "-c", LOOK]
    cluster.apply(
        *(
            pod(name, command, image=project, limits=limits, namespace=namespace)
            for name, limits in asked.items()
        )
    )
    seen = {}
    for name in asked:
        cluster.wait_for_pod(name, namespace, "Succeeded", 120)
        seen[name] = json.loads(cluster.kubectl("logs", name, f"--namespace={namespace}"))
    assert seen == {"whole": [gpu_memory], "share": [gpu_memory // 2]}
    released(agent)


def test_claims_outlive_restarts_of_agent_and_kubelet_and_an_emptied_run_folder(
    cluster: Cluster, namespace: str, agent: Agent
) -> None:
    names = ["first", "second"]
    run(
        cluster,
        *(claim(name, namespace, memory="4Gi", compute=20) for name in names),
        *(pod_with(name, namespace, restartPolicy="Always") for name in names),
    )
    before = set(agent.grants())
    assert len(before) == 2
    agent.node.kubelet.restart()  # it deletes the node's ResourceSlices
    agent.server.kill()
    cluster.wait_ready()
    agent.end_arbiter()
    agent.node.machine.run("rm", "-rf", CDI, STATE)  # as a reboot empties /run
    agent.start()
    agent.until(lambda: set(agent.grants()) == before, "the arbiter has the grants again")
    assert {restarts_of(cluster, namespace, name) for name in names} == {("Running", 0)}
    agent.kill_container(namespace, "first")  # it gets its grant when it starts again
    cluster.wait_until(
        lambda: restarts_of(cluster, namespace, "first") == ("Running", 1), 120, "it runs again"
    )
    cluster.wait_until(lambda: len(published(cluster)) == 2, 60, "the GPUs are published again")
    run(cluster, claim("third", namespace, "whole"), pod_with("third", namespace))

    # Deleted by force: the kubelet ends the container, and then unprepares the claim.
    force = ["--force", "--grace-period=0", f"--namespace={namespace}"]
    cluster.kubectl("delete", "pod", "third", *force)
    cluster.kubectl("delete", "resourceclaim", "third", f"--namespace={namespace}")
    agent.until(lambda: set(agent.grants()) == before, "its grant has ended", 120)
    delete_pod(cluster, namespace, *names)
    released(agent)


def test_what_a_claim_cannot_have_is_said_on_its_pod(
    cluster: Cluster, namespace: str, agent: Agent
) -> None:
    wrong = claim("wrong", namespace, memory="1Gi")
    parameters = {"apiVersion": "aliquot.io/v1alpha1", "kind": "SliceParameters", "policy": "x"}
    opaque = {"driver": "aliquot.io", "parameters": parameters}
    wrong["spec"]["devices"]["config"] = [{"opaque": opaque}]
    large = claim("large", namespace, memory="1Ti")
    cluster.apply(wrong, large, pod_with("wrong", namespace), pod_with("large", namespace))
    agent.until(
        lambda: any(
            reason == "InvalidClaim" and "the parameters are invalid" in text
            for reason, text in agent.events(namespace, "wrong")
        ),
        "the pod says that the parameters are invalid",
    )
    until_unallocatable(cluster, namespace, "large")
    delete_pod(cluster, namespace, "wrong", "large")


def test_an_agent_publishes_no_devices_of_another_node(cluster: Cluster, agent: Agent) -> None:
    (one, *_) = published(cluster)
    spec = {
        **one["spec"],
        "nodeName": "another",
        "pool": {**one["spec"]["pool"], "name": "another"},
    }
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "another-aliquot"},
        "spec": spec,
    }
    kubeconfig = cluster.folder / f"{ACCOUNT}.kubeconfig"

    def is_refused() -> bool:
        """Policies need a moment before they hold."""
        with suppress(ApiError):
            cluster.api.delete(f"{SLICES}/another-aliquot")
        try:
            cluster.kubectl(
                f"--kubeconfig={kubeconfig}", "create", "--filename=-", text=json.dumps(foreign)
            )
        except Exception as error:  # noqa: BLE001 - what kubectl says is looked at
            return "its own node" in str(error)
        return False

    cluster.wait_until(is_refused, 60, "the agent may not write another node's devices", every=0.5)
