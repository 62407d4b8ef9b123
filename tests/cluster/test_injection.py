"""How containers get their GPUs: as CDI devices of a new containerd, by mounts of an old one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from cluster.agent import CDI, Agent
from cluster.cluster import Cluster
from cluster.python_image import project_image
from cluster.tenants import LOOK, delete_pod, limits, run_pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

UNITS = 4
ASKED = limits(vcuda_memory=UNITS)


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[Agent]:
    one = Agent(cluster, "rtx6000:2")
    one.start()
    yield one
    one.close()


def seen(cluster: Cluster, namespace: str, name: str) -> object:
    """What a program in the pod sees of its GPUs."""
    return json.loads(
        cluster.kubectl("exec", name, "-n", namespace, "--", "python3", "-c", LOOK, timeout=120)
    )


def test_a_pod_gets_cdi_devices_also_if_their_folder_is_emptied(
    cluster: Cluster, namespace: str, agent: Agent, project: str
) -> None:
    specs = agent.node.machine.path(CDI)
    agent.until(lambda: agent.injection() == "cdi", "GPUNode says so")
    run_pod(cluster, namespace, "one", image=project, limits=ASKED, restartPolicy="Always")
    assert seen(cluster, namespace, "one") == [UNITS * MEMORY_UNIT]
    (grant,) = agent.grants()
    before = {path.name: path.read_bytes() for path in specs.iterdir()}
    assert set(before) == {"aliquot.io-driver.json", f"aliquot.io-grant-{grant}.json"}

    # As by a reboot. A kubelet that starts itself rejects pods until the plugins are back.
    agent.server.kill()
    agent.node.machine.run("rm", "-rf", CDI)
    agent.start()
    agent.kill_container(namespace, "one")

    def has_started_again() -> bool:
        status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/one")["status"]
        (one,) = status["containerStatuses"]
        return bool(one["restartCount"] and one["ready"])

    agent.until(has_started_again, "the container runs again", 120)
    assert {path.name: path.read_bytes() for path in specs.iterdir()} == before
    assert seen(cluster, namespace, "one") == [UNITS * MEMORY_UNIT]
    delete_pod(cluster, namespace, "one")
    agent.until(lambda: len(list(specs.iterdir())) == 1, "the grant's spec is gone")


def test_a_runtime_without_cdi_gets_mounts() -> None:
    image = project_image("aliquot.test/aliquot:1")
    with Cluster(debian_runtime=True) as cluster:
        cluster.load(image)
        agent = Agent(cluster, "rtx6000:2")
        agent.start()
        run_pod(cluster, "default", "one", image=image.name, limits=ASKED)
        assert seen(cluster, "default", "one") == [UNITS * MEMORY_UNIT]
        agent.until(lambda: agent.injection() == "mounts", "GPUNode says so")
        assert not agent.node.machine.path(CDI).exists()
        agent.close()
