"""What the extender costs kube-scheduler: the same pods with and without it, by turns.

    python bench/kubernetes/throughput.py [--nodes 1000] [--pods 5000] [--rounds 3] [--json]

A real API server and a real kube-scheduler, nodes and pods kept by kwok (tests/cluster), as root.
All pods are there before kube-scheduler starts; the rate is taken from its first binding to its
last. In both runs kube-scheduler's client may send 5000 requests a second, and opportunistic
batching is off, which any extender switches off. Without the extender kube-scheduler adds up the
units by itself. `cpu_ms_per_pod` is the CPU time of each program from the start of kube-scheduler
to the last binding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests"))

from cluster.cluster import Cluster  # noqa: E402
from cluster.extender import (  # noqa: E402
    GPU_NODES,
    Replica,
    install_crd,
    scheduler_config,
)
from cluster.fake_nodes import fake_nodes  # noqa: E402
from cluster.manifests import pod  # noqa: E402
from kubernetes.builders import make_node  # noqa: E402

GPUS = 8
LIMITS = {"aliquot.io/vcuda-memory": 8, "aliquot.io/vcuda-core": 5}
CAPACITY = {
    "cpu": "64",
    "memory": "512Gi",
    "pods": "250",
    "aliquot.io/vcuda-memory": GPUS * 320,
    "aliquot.io/vcuda-core": GPUS * 100,
}
CLIENT = {"clientConnection": {"qps": 5000, "burst": 5000}}
FLAGS = ("--feature-gates=OpportunisticBatching=false",)
NAMESPACE = "throughput"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BOUND = f"{PODS}?fieldSelector=spec.nodeName%21%3D"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--pods", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with Cluster() as cluster, fake_nodes(cluster) as nodes:
        install_crd(cluster)
        cluster.create_namespace(NAMESPACE)
        write_nodes(cluster, nodes.add(chosen.nodes, capacity=CAPACITY, seconds=300))
        replica = Replica(cluster, 0)
        ways = {
            "with": {**scheduler_config(replica.url), **CLIENT},
            "without": {"percentageOfNodesToScore": 100, **CLIENT},
        }
        runs: dict[str, list[Run]] = {way: [] for way in ways}
        for number in range(2 * chosen.rounds):
            way = list(ways)[number % 2]
            run = one_run(cluster, replica, ways[way], chosen.pods, way=way)
            runs[way].append(run)
            if not chosen.json:
                print(f"{way} the extender: {run.rate:.0f} pods a second", flush=True)
    print(json.dumps(figures(runs), indent=2))


@dataclass(frozen=True)
class Run:
    """Pods a second, and milliseconds of CPU for each pod by program."""

    rate: float
    cpu: dict[str, float]


def figures(runs: dict[str, list[Run]]) -> dict[str, object]:
    with_it, without = (median(run.rate for run in runs[way]) for way in ("with", "without"))
    return {
        "pods_per_second": {way: [round(run.rate, 1) for run in runs[way]] for way in runs},
        "cpu_ms_per_pod": {
            way: {name: round(median(run.cpu[name] for run in found), 2) for name in found[0].cpu}
            for way, found in runs.items()
        },
        "ratio": with_it / without,
        "added_ms_per_pod": 1000 / with_it - 1000 / without,
    }


def write_nodes(cluster: Cluster, names: Iterable[str]) -> None:
    """What the agents would write."""

    def write(name: str) -> None:
        body = {"apiVersion": "aliquot.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
        cluster.api.create(GPU_NODES, body)
        status = json.loads(msgspec.json.encode(make_node(name, GPUS).status))
        cluster.api.patch(f"{GPU_NODES}/{name}/status", {"status": status})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, names))


def one_run(
    cluster: Cluster, replica: Replica, config: dict[str, Any], pods: int, *, way: str
) -> Run:
    cluster.scheduler.stop()
    if way == "with":
        replica.server.start()
        cluster.wait_until(lambda: replica.ready, 60, "the extender leads")
    make_pods(cluster, pods)
    version = cluster.api.get(f"{PODS}?limit=1")["metadata"]["resourceVersion"]
    bindings = cluster.api.watch(f"{BOUND}&watch=1&resourceVersion={version}")
    before = cpu_of(cluster)
    cluster.configure_scheduler(config, *FLAGS)
    times: list[float] = []
    while len(times) < pods:
        if next(bindings).startswith(b'{"type":"ADDED"'):
            times.append(time.monotonic())
    bindings.close()
    spent = cpu_of(cluster)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: cluster.api.delete(f"{PODS}/pod-{number}"), range(pods)))
    cluster.wait_until(
        lambda: not cluster.api.get(f"{PODS}?limit=1")["items"], 300, "all pods are gone", every=1
    )
    if way == "with":
        replica.server.stop()
    cpu = {name: 1000 * (spent[name] - before.get(name, 0.0)) / pods for name in spent}
    return Run((pods - 1) / (times[-1] - times[0]), cpu)


def cpu_of(cluster: Cluster) -> dict[str, float]:
    return {one.name: one.cpu_seconds for one in cluster.servers() if one.running}


def make_pods(cluster: Cluster, pods: int) -> None:
    def make(number: int) -> None:
        name = f"pod-{number}"
        body = pod(name, namespace=NAMESPACE, limits=LIMITS, nodeSelector={"type": "kwok"})
        cluster.api.create(PODS, body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(pods)))


if __name__ == "__main__":
    main()
