"""`helm upgrade` from the previous commit, and `helm rollback` to it.

Pods work and pods come meanwhile. No pod is lost, and GPUs stay theirs.

`ALIQUOT_UPGRADE_FROM` names another commit to come from.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import Cluster
from cluster.installed import NOW, SPACE, Version, install, put, ready_pods, roll_back
from cluster.machine import run
from cluster.manifests import pod
from cluster.registry import ClusterError
from kubernetes import chart

pytestmark = [pytest.mark.cluster, pytest.mark.shares]

PODS = 50
LIMITS = {"aliquot.io/vcuda-memory": 6}  # 50 times 6 of the 344 units of four GPUs
SIMULATED = "h100:4"

Identities = dict[str, tuple[str, str, int, str]]
Grants = dict[str, tuple[str, int]]


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


def test_an_upgrade_and_a_rollback_lose_no_pod_and_move_no_gpu(previous: Version) -> None:
    with Cluster() as cluster:
        install(cluster, SIMULATED, version=previous)
        cluster.apply(*(worker(f"w{number}") for number in range(PODS)))
        cluster.wait_until(lambda: phases(cluster) == {"Running": PODS}, 240, "all run")
        cluster.wait_until(lambda: len(grants(cluster)) == PODS, 60, "the GPUNode names all")
        before, held = identities(cluster), grants(cluster)

        with guests(cluster, "upgrade"):
            put(cluster, "upgrade", SIMULATED, version=NOW, wait=True)
        check(cluster, NOW, before, held)

        with guests(cluster, "rollback"):
            roll_back(cluster)
        check(cluster, previous, before, held)


def check(cluster: Cluster, version: Version, before: Identities, held: Grants) -> None:
    """Only the programs of that version run, and they know all pods and their GPUs."""
    cluster.wait_until(lambda: grants(cluster) == held, 60, "the GPUNode names the same as before")
    assert identities(cluster) == before
    assert len(ready_pods(cluster, "scheduler")) == 2
    assert {one for one in images(cluster) if not one.endswith(f":{version.tag}")} == set()


@contextmanager
def guests(cluster: Cluster, name: str) -> Iterator[None]:
    """Pods that come one after another while the block runs, and one after it; each runs, and goes.

    A pod that the kubelet refuses, since the agent is just being replaced, has never run: a
    controller would make another, and so does this.
    """
    over = threading.Event()

    def come_and_go() -> None:
        for number in itertools.count():
            last = over.is_set()
            ran = run_guest(cluster, f"{name}-{number}")
            if last and ran:
                return

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(come_and_go)
        try:
            yield
        finally:
            over.set()
        done.result()


def run_guest(cluster: Cluster, name: str) -> bool:
    """Whether it ran."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    cluster.apply(pod(name, limits=LIMITS, schedulerName="aliquot"))
    cluster.wait_until(
        lambda: cluster.api.get(path)["status"]["phase"] in {"Running", "Failed"},
        120,
        f"{name} runs",
    )
    status = cluster.api.get(path)["status"]
    started = any(one.get("containerID") for one in status.get("containerStatuses", ()))
    assert started == (status["phase"] == "Running"), f"{name} was lost: {status}"
    cluster.kubectl("delete", "pod", name, "--grace-period=1", timeout=120)
    return started


def worker(name: str) -> dict[str, Any]:
    return pod(
        name,
        limits=LIMITS,
        labels={"part": "of-the-upgrade"},
        schedulerName="aliquot",
    )


def workers(cluster: Cluster) -> list[dict[str, Any]]:
    path = "/api/v1/namespaces/default/pods?labelSelector=part=of-the-upgrade"
    return list(cluster.api.get(path)["items"])


def phases(cluster: Cluster) -> dict[str, int]:
    every = [one["status"]["phase"] for one in workers(cluster)]
    return {phase: every.count(phase) for phase in every}


def identities(cluster: Cluster) -> Identities:
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


def grants(cluster: Cluster) -> Grants:
    """By pod that stays: its GPU and its bytes."""
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
