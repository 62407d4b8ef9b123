"""`helm upgrade` from the previous commit, with pods at work: none is lost, and GPUs stay theirs.

`ALIQUOT_UPGRADE_FROM` names another commit to come from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.installed import NOW, SPACE, Version, install, put, ready_pods
from cluster.machine import run
from cluster.manifests import pod
from cluster.registry import ClusterError
from kubernetes import chart

pytestmark = pytest.mark.cluster

PODS = 50
UNITS = 6  # 50 times 6 of the 344 units of four GPUs
SIMULATED = "h100:4"


@pytest.fixture
def previous(tmp_path: Path) -> Version:
    """The chart and the program at the previous commit."""
    named = os.environ.get("ALIQUOT_UPGRADE_FROM", "HEAD^")
    try:
        commit = run(["git", "-C", str(chart.ROOT), "rev-parse", "--verify", f"{named}^{{commit}}"])
    except ClusterError:
        if os.environ.get("ALIQUOT_REQUIRE_CLUSTER"):
            raise
        pytest.skip(f"this clone has no commit {named}")
    return Version.of_commit(commit.strip(), tmp_path)


def test_an_upgrade_loses_no_pod_and_moves_no_gpu(previous: Version) -> None:
    with Cluster() as cluster:
        install(cluster, SIMULATED, version=previous)
        cluster.apply(*(worker(f"w{number}") for number in range(PODS)))
        cluster.wait_until(lambda: phases(cluster) == {"Running": PODS}, 240, "all run")
        cluster.wait_until(lambda: len(grants(cluster)) == PODS, 60, "the GPUNode names all")
        before, held = identities(cluster), grants(cluster)

        put(cluster, "upgrade", SIMULATED, version=NOW, wait=True)

        assert identities(cluster) == before
        assert grants(cluster) == held
        cluster.apply(worker("after"))
        cluster.wait_for_pod("after", "default", "Running", 120)
        assert len(ready_pods(cluster, "scheduler")) == 2
        assert {one for one in images(cluster) if not one.endswith(f":{NOW.tag}")} == set()


def worker(name: str) -> dict[str, Any]:
    return pod(
        name,
        limits={"aliquot.io/vcuda-memory": UNITS},
        labels={"part": "of-the-upgrade"},
        schedulerName="aliquot",
    )


def workers(cluster: Cluster) -> list[dict[str, Any]]:
    path = "/api/v1/namespaces/default/pods?labelSelector=part=of-the-upgrade"
    return list(cluster.api.get(path)["items"])


def phases(cluster: Cluster) -> dict[str, int]:
    every = [one["status"]["phase"] for one in workers(cluster)]
    return {phase: every.count(phase) for phase in every}


def identities(cluster: Cluster) -> dict[str, tuple[str, str, int, str]]:
    """By name: the pod, its phase, its restarts, its container."""
    found = {}
    for one in workers(cluster):
        (container,) = one["status"]["containerStatuses"]
        found[one["metadata"]["name"]] = (
            one["metadata"]["uid"],
            one["status"]["phase"],
            container["restartCount"],
            container["containerID"],
        )
    return found


def grants(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """By pod: its GPU and its bytes."""
    path = f"/apis/aliquot.io/v1alpha1/gpunodes/{cluster.node.name}"
    return {
        grant["pod"]: (gpu["uuid"], grant["memory"])
        for gpu in cluster.api.get(path)["status"]["gpus"]
        for grant in gpu.get("grants", ())
    }


def images(cluster: Cluster) -> list[str]:
    """Of our own programs, all that run."""
    pods = cluster.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    every = [one["image"] for each in pods for one in each["spec"]["containers"]]
    return [one for one in every if "kube-scheduler" not in one]
