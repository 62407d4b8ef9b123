"""A pod whose memory leaves its GPU while it is idle, on a real kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.model import Slice
from aliquot.slices import control
from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.tenants import delete_pod, limits, run_pod
from support import MIB

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LOOKS = (Path(__file__).parents[1] / "pool" / "looks_when_asked.py").read_text("utf-8")
UNITS = 60  # of 86


@pytest.fixture
def swapping(cluster: Cluster) -> Iterator[Agent]:
    """An agent whose node has memory of the host for that of pods."""
    one = Agent(cluster, "rtx6000:1", "--host-memory", "1GiB")
    one.start()
    yield one
    one.close()


def test_an_idle_pod_is_parked_and_returns_with_all_bytes(
    cluster: Cluster, namespace: str, swapping: Agent, project: str
) -> None:
    agent = swapping
    agent.until_counts(vcuda_memory=86)
    run_pod(
        cluster,
        namespace,
        "idle",
        ["python3", "-c", LOOKS, str(64 * MIB), "/tmp/asked"],
        image=project,
        limits=limits(vcuda_memory=UNITS),
        annotations={"aliquot.io/swap": "true", "aliquot.io/park-after": "1s,always"},
    )
    agent.until(
        lambda: [one.is_idle_parked for one in agent.grants().values()] == [True],
        "its memory has left",
    )
    agent.until(lambda: "Parked" in dict(agent.events(namespace, "idle")), "an event says so")
    (grant,) = agent.grants().values()
    other = [Slice(grant.slices[0].gpu_uuid, UNITS * MEMORY_UNIT)]
    control.make(agent.state, "other", other, kept=True)
    control.end(agent.state, "other")
    agent.until_counts(vcuda_memory=86)  # kube-scheduler knows what the pod has of it
    for times in (1, 2):
        cluster.kubectl("exec", "idle", "-n", namespace, "--", "touch", "/tmp/asked")

        def seen() -> int:
            return cluster.kubectl("logs", "idle", "-n", namespace).count("same")

        agent.until(lambda: seen() == times, "its bytes are as they were")  # noqa: B023
    agent.until(lambda: "Returned" in dict(agent.events(namespace, "idle")), "an event says so")
    delete_pod(cluster, namespace, "idle")
    agent.until(lambda: not agent.grants(), "its grant has ended")
