"""Aliquot on a cluster as people have it: by the chart, with simulated GPUs or with real ones."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aliquot
from aliquot.kubernetes.api.requests import quantity
from cluster.cluster import Cluster
from cluster.images import Image
from cluster.machine import run
from cluster.python_image import project_image
from cluster.registry import ClusterError
from kubernetes import chart

IMAGE = "aliquot.test/aliquot"
KUBE_SCHEDULER = "registry.k8s.io/kube-scheduler"
SPACE = chart.NAMESPACE
KINDS = tuple(f"aliquot.io/{kind}" for kind in ("gpu", "sgpu", "vcuda-core", "vcuda-memory"))


WAIT = "180s"  # for `helm --wait`


@dataclass(frozen=True)
class Version:
    """A chart, and an image of the program that belongs to it."""

    tag: str = aliquot.__version__
    helm_chart: Path = chart.CHART
    sources: Path = chart.ROOT / "src"

    @classmethod
    def of_commit(cls, commit: str, folder: Path) -> Self:
        """As it was at a commit; the compiled parts are those of now."""
        archive = folder / "archive.tar"
        git = ["git", "-C", str(chart.ROOT), "archive", f"--output={archive}"]
        run([*git, commit, "src", "deploy/chart"])
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        return cls(f"at-{commit[:12]}", folder / "deploy" / "chart", folder / "src")


NOW = Version()


def install(cluster: Cluster, simulate: str | None, *more: str, version: Version = NOW) -> None:
    """Have the chart on it, with these values, and return when its node gives GPUs to pods.

    `simulate` is None where the node has GPUs.
    """
    cluster.load(kube_scheduler_image(cluster))
    cluster.kubectl("label", "node", cluster.node.name, "aliquot.io/agent=true")
    put(cluster, "install", simulate, *more, version=version)
    wait_for_ready(cluster, "node", 1)
    wait_for_ready(cluster, "scheduler", 1)
    wait_for_ready(cluster, "kube-scheduler", 2)
    wait_for_ready(cluster, "controller", 1)
    # The kubelet writes what the agent told it with the node's next status, seconds later.
    cluster.wait_until(lambda: set(KINDS) <= set(allocatable(cluster)), 30, f"the node has {KINDS}")


def put(
    cluster: Cluster,
    verb: str,
    simulate: str | None,
    *more: str,
    version: Version = NOW,
    wait: bool = False,
) -> None:
    """Install the chart, or upgrade to it, with these values."""
    cluster.load(project_image(f"{IMAGE}:{version.tag}", version.sources))
    values = (
        f"image.repository={IMAGE}",
        f"image.tag={version.tag}",
        f"node.simulate={simulate or ''}",
        "scheduler.clusterIP=10.96.0.44",  # this cluster has no DNS
        *more,
    )
    options = ["--create-namespace"] if verb == "install" else []
    options += ["--wait", f"--timeout={WAIT}"] if wait else []
    helm(cluster, verb, *options, *(f"--set={value}" for value in values), of=version.helm_chart)


def roll_back(cluster: Cluster) -> None:
    """Have the version before again, and return when all of it is ready."""
    helm(cluster, "rollback", "--wait", f"--timeout={WAIT}", of=None)


def helm(cluster: Cluster, verb: str, *options: str, of: Path | None = chart.CHART) -> None:
    """Call Helm for our release, with the chart that the verb is about, if it is about one."""
    where = [f"--kubeconfig={cluster.kubeconfig}", f"--namespace={SPACE}"]
    chart.helm(verb, "aliquot", *([str(of)] if of else []), *where, *options, timeout=240)


def kube_scheduler_image(cluster: Cluster) -> Image:
    version = cluster.api.get("/version")["gitVersion"]
    image = Image(f"{KUBE_SCHEDULER}:{version}", command=["kube-scheduler"])
    image.add_program(cluster.programs.path("kube-scheduler"), "/usr/local/bin/kube-scheduler")
    return image


def label(part: str) -> str:
    return f"app.kubernetes.io/component={part}"


def pods_of(cluster: Cluster, part: str) -> list[dict[str, Any]]:
    found = cluster.api.get(f"/api/v1/namespaces/{SPACE}/pods?labelSelector={label(part)}")
    return [one for one in found["items"] if "deletionTimestamp" not in one["metadata"]]


def ready_pods(cluster: Cluster, part: str) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in pods_of(cluster, part)
        for condition in one["status"].get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]


def wait_for_ready(cluster: Cluster, part: str, count: int) -> None:
    try:
        cluster.wait_until(
            lambda: len(ready_pods(cluster, part)) >= count, 90, f"{count} of {part} are ready"
        )
    except ClusterError as error:
        told = cluster.kubectl("describe", "pods", "-n", SPACE, f"--selector={label(part)}")
        log = cluster.kubectl("logs", "-n", SPACE, f"--selector={label(part)}", "--tail=30")
        raise ClusterError(f"{error}\n{told}\n{log}") from error


def allocatable(cluster: Cluster) -> dict[str, int]:
    found = cluster.api.get(f"/api/v1/nodes/{cluster.node.name}")["status"]["allocatable"]
    return {name: int(quantity(count)) for name, count in found.items() if name in KINDS}
