"""What nodes with GPUs outlive: a container runtime, an API server, a Node that go away."""

from __future__ import annotations

import json
import time

import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.extender import GPU_NODES
from cluster.tenants import LOOK, delete_pod, limits, restarts_of, run_pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AWAY_SECONDS = 60.0
MEMORY = 4 * MEMORY_UNIT
# Says again and again what it sees of its GPU.
AGAIN = f"""
import time
while True:
    exec({LOOK!r})
    time.sleep(0.5)
"""


def test_pods_survive_a_restart_of_containerd(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    asked = limits(vcuda_memory=4)
    run_pod(cluster, namespace, "one", ["python3", "-c", AGAIN], image=project, limits=asked)
    agent.until(lambda: "one" in agent.holders(), "the pod is told of")
    before = agent.holders(), set(agent.grants())
    agent.node.containerd.restart()
    seen = len(sights(agent, namespace, "one"))
    agent.until(lambda: len(sights(agent, namespace, "one")) > seen, "its program goes on")
    assert (agent.holders(), set(agent.grants())) == before
    run_pod(cluster, namespace, "two", limits=limits(gpu=3))
    assert restarts_of(cluster, namespace, "one") == ("Running", 0)
    assert set(sights(agent, namespace, "one")) == {(MEMORY,)}
    delete_pod(cluster, namespace, "one", "two")
    agent.until_counts(gpu=4, sgpu=8, vcuda_memory=344)


def test_pods_survive_a_minute_without_the_api_server(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    run_pod(
        cluster,
        namespace,
        "one",
        ["python3", "-c", AGAIN],
        image=project,
        limits=limits(vcuda_memory=4),
        restartPolicy="Always",
    )
    agent.until(lambda: "one" in agent.holders(), "the pod is told of")
    before = agent.holders(), set(agent.grants())
    cluster.apiserver.stop()
    back = time.monotonic() + AWAY_SECONDS
    try:
        seen = len(sights(agent, namespace, "one"))
        # The kubelet starts it again without the API server.
        agent.kill_container(namespace, "one")
        agent.until(lambda: len(sights(agent, namespace, "one")) > seen + 1, "it is back")
        agent.until(lambda: time.monotonic() > back, "a minute has passed")
        assert set(agent.grants()) == before[1]
    finally:
        cluster.apiserver.start()
        cluster.apiserver.wait_ready()
    assert agent.server.running
    cluster.kubectl("annotate", "pod", "one", "aliquot.io/memory=512MiB", f"-n={namespace}")
    agent.until(lambda: "Resized" in dict(agent.events(namespace, "one")), "the agent is back", 30)
    # The cluster's own programs would wait for up to a minute before they look again.
    agent.node.kubelet.restart()
    cluster.scheduler.restart()
    cluster.control_plane.controllers.restart()
    cluster.wait_ready()
    agent.until(lambda: restarts_of(cluster, namespace, "one") == ("Running", 1), "it is told of")
    both = {(MEMORY,), (MEMORY // 2,)}
    agent.until(lambda: set(sights(agent, namespace, "one")) == both, "it sees its new memory")
    run_pod(cluster, namespace, "two", limits=limits(sgpu=2))
    agent.until(lambda: "two" in agent.holders(), "another is told of")
    assert agent.holders()["one"] == before[0]["one"]
    delete_pod(cluster, namespace, "one", "two")
    agent.until_counts(gpu=4, sgpu=8, vcuda_memory=344)
    agent.until(lambda: not agent.grants(), "nothing is held")


def test_a_node_that_is_added_again_under_its_name_serves_pods(
    cluster: Cluster, namespace: str, agent: Agent
) -> None:
    run_pod(cluster, namespace, "one", limits=limits(gpu=1))
    agent.until(lambda: "one" in agent.holders(), "the pod is reported")
    before, first = agent.holders()["one"], node_uid(agent)
    assert owner(agent) == first
    cluster.kubectl("delete", "node", agent.node.name)
    agent.until(lambda: not agent.gpunode(), "its GPUNode is collected")
    agent.node.kubelet.restart()  # it registers its Node
    cluster.wait_ready()
    assert node_uid(agent) != first
    agent.until(lambda: owner(agent) == node_uid(agent), "the agent reports its GPUs", 90)
    agent.until(lambda: agent.holders().get("one") == before, "the pod is reported again")
    assert restarts_of(cluster, namespace, "one") == ("Running", 0)
    run_pod(cluster, namespace, "two", limits=limits(gpu=3))
    agent.until(lambda: len(agent.holders().get("two", ())) == 3, "another pod is reported")
    delete_pod(cluster, namespace, "one", "two")
    agent.until_counts(gpu=4, sgpu=8, vcuda_memory=344)


def node_uid(agent: Agent) -> str:
    return str(agent.object("/api/v1/nodes").get("metadata", {}).get("uid", ""))


def owner(agent: Agent) -> str:
    """The UID of the Node that owns the agent's GPUNode."""
    meta = agent.object(GPU_NODES).get("metadata", {})
    return next((one["uid"] for one in meta.get("ownerReferences", ())), "")


def sights(agent: Agent, namespace: str, name: str) -> list[tuple[int, ...]]:
    """All that the pod's program has said so far, in every container it had, from their logs."""
    logs = agent.node.machine.path("/var/log/pods").glob(f"{namespace}_{name}_*/main/*.log")
    whole = (log.read_text("utf-8").rpartition("\n")[0] for log in sorted(logs))  # no half lines
    lines = (line for text in whole for line in text.splitlines())
    return [tuple(json.loads(line.partition(" F ")[2])) for line in lines]
