"""A driver that is updated on a node whose pods run."""

from __future__ import annotations

import json

import pytest

from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.manifests import pod
from cluster.tenants import LOOK, delete_pod, limits, restarts_of, run_pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

OLD, NEW = "580.159.04", "590.1.02"
# One process that says again and again what it sees.
AGAIN = f"""
import time
while True:
    exec({LOOK!r})
    time.sleep(0.5)
"""
VERSION = """
import ctypes
nvml, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80)
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlSystemGetDriverVersion(text, 80) == 0
print(text.value.decode(), flush=True)
"""


def test_a_driver_is_updated_while_a_pod_runs(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    def logs(name: str) -> list[str]:
        return cluster.kubectl("logs", name, f"--namespace={namespace}").splitlines()

    asked = limits(vcuda_memory=4)
    run_pod(cluster, namespace, "old", ["python3", "-c", AGAIN], image=project, limits=asked)
    agent.until(lambda: "old" in agent.holders(), "the pod is told of")
    agent.until(lambda: logs("old"), "its program uses the driver")
    again = ["python3", "-c", VERSION + "import time\ntime.sleep(1e6)\n"]
    run_pod(cluster, namespace, "again", again, image=project, limits=asked, restartPolicy="Always")
    agent.until(lambda: logs("again") == [OLD], "it uses the old driver")
    agent.until(lambda: "again" in agent.holders(), "the second pod is told of")
    before, grants = agent.holders(), set(agent.grants())

    agent.install_driver(NEW, OLD)  # the package, before the module is loaded anew
    agent.until_counts(gpu=0, vcuda_memory=8)
    agent.until(
        lambda: f"kernel module has {OLD}" in str(agent.events(namespace, "old")),
        "the pod is told why",
    )
    # The agent tells the kubelet first, then writes the GPUNode object.
    agent.until(
        lambda: all(gpu.get("healthy") is False for gpu in agent.gpunode()), "GPUNode says so"
    )
    cluster.apply(
        pod("new", ["python3", "-c", VERSION], image=project, limits=asked, namespace=namespace)
    )

    agent.install_driver(NEW, NEW)
    cluster.wait_for_pod("new", namespace, "Succeeded", 120)
    assert logs("new") == [NEW]
    agent.until_counts(gpu=3, vcuda_memory=344)
    agent.until(lambda: agent.driver_version() == NEW, "GPUNode has the new version")
    agent.until(lambda: agent.arbiter_driver() == NEW, "the arbiter uses the new driver")

    cluster.node.kill_container(namespace, "again", "main")
    agent.until(lambda: logs("again") == [NEW], "a container that starts again uses the new driver")
    agent.until(
        lambda: restarts_of(cluster, namespace, "again") == ("Running", 1), "it was started again"
    )
    assert agent.holders()["again"] == before["again"]

    seen = len(logs("old"))
    agent.until(lambda: len(logs("old")) > seen + 1, "the old pod's program goes on")
    assert restarts_of(cluster, namespace, "old") == ("Running", 0)
    assert {len(json.loads(line)) for line in logs("old")} == {1}
    assert agent.holders()["old"] == before["old"]
    assert grants <= set(agent.grants())
    delete_pod(cluster, namespace, "old", "new", "again")
    agent.until_counts(gpu=4, sgpu=8, vcuda_memory=344)


def test_an_xid_takes_a_gpu_away_until_the_driver_needs_no_recovery(
    cluster: Cluster, namespace: str, agent: Agent
) -> None:
    run_pod(cluster, namespace, "one", limits=limits(gpu=1))
    agent.until(lambda: "one" in agent.holders(), "the pod is told of")
    (index,) = agent.holders()["one"]
    agent.set_health(f"{index} action 1", f"{index} xid 62")
    agent.until(lambda: agent.gpunode()[index].get("healthy") is False, "GPUNode says so")
    agent.until(
        lambda: "GPUUnhealthy" in dict(agent.events(namespace, "one")), "the pod is told why"
    )
    agent.set_health(f"{index} recovered")
    agent.until(lambda: "healthy" not in agent.gpunode()[index], "it has recovered")
    assert restarts_of(cluster, namespace, "one") == ("Running", 0)
