"""What the extender costs kube-scheduler: the same pods with and without it, by turns.

    python bench/kubernetes/throughput.py [--nodes 1000] [--pods 5000] [--rounds 3] [--tls] [--json]

A real API server and a real kube-scheduler, nodes and pods kept by kwok (tests/cluster), as root.
All pods are there before kube-scheduler starts; the rate is taken from its first binding to its
last. In both runs kube-scheduler's client may send 5000 requests a second, and opportunistic
batching is off, which any extender switches off. Without the extender kube-scheduler adds up the
units by itself. `cpu_ms_per_pod` is the CPU time of each program from the start of kube-scheduler
to the last binding. With `--tls` a third run of each round has the extender with certificates on
both sides, as the chart installs it.
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
HEALTH_PORT = 8451
NAMESPACE = "throughput"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BOUND = f"{PODS}?fieldSelector=spec.nodeName%21%3D"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--nodes", type=int, default=1000)
    options.add_argument("--pods", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tls", action="store_true")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with Cluster() as cluster, fake_nodes(cluster) as nodes:
        install_crd(cluster)
        cluster.create_namespace(NAMESPACE)
        write_nodes(cluster, nodes.add(chosen.nodes, capacity=CAPACITY, seconds=300))
        ways = {"with": plain_extender(cluster), "without": WITHOUT}
        if chosen.tls:
            ways["with TLS"] = tls_extender(cluster)
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for _ in range(chosen.rounds):
            for name, way in ways.items():
                run = one_run(cluster, way, chosen.pods)
                runs[name].append(run)
                if not chosen.json:
                    print(f"{name}: {run.rate:.0f} pods a second", flush=True)
    print(json.dumps(figures(runs), indent=2))


@dataclass(frozen=True)
class Way:
    """A configuration of kube-scheduler, and the extender that it asks."""

    config: dict[str, Any]
    replica: Replica | None = None


WITHOUT = Way({"percentageOfNodesToScore": 100, **CLIENT})


def plain_extender(cluster: Cluster) -> Way:
    replica = Replica(cluster, 0)
    return Way({**scheduler_config(replica.url), **CLIENT}, replica)


def tls_extender(cluster: Cluster) -> Way:
    """An extender and a kube-scheduler that identify themselves to each other."""
    authority = cluster.control_plane.authority
    server = authority.sign("extender", "/CN=extender", [f"IP:{cluster.host_address}"])
    client = authority.sign("extender-client", "/CN=kube-scheduler")
    replica = Replica(
        cluster,
        1,
        f"--tls-cert={server.certificate}",
        f"--tls-key={server.key}",
        f"--tls-client-ca={authority.certificate}",
        f"--health-port={HEALTH_PORT}",
    )
    config = scheduler_config(replica.url.replace("http:", "https:"))
    config["extenders"][0] |= {
        "enableHTTPS": True,
        "tlsConfig": {
            "caFile": str(authority.certificate),
            "certFile": str(client.certificate),
            "keyFile": str(client.key),
        },
    }
    replica.url = f"http://{cluster.host_address}:{HEALTH_PORT}"
    return Way({**config, **CLIENT}, replica)


@dataclass(frozen=True)
class Run:
    """Pods a second, and milliseconds of CPU for each pod by program."""

    rate: float
    cpu: dict[str, float]


def figures(runs: dict[str, list[Run]]) -> dict[str, object]:
    rates = {name: median(run.rate for run in found) for name, found in runs.items()}
    without = rates["without"]
    return {
        "pods_per_second": {name: [round(run.rate, 1) for run in runs[name]] for name in runs},
        "cpu_ms_per_pod": {
            name: {
                program: round(median(run.cpu[program] for run in found), 2)
                for program in found[0].cpu
            }
            for name, found in runs.items()
        },
        "ratio": {name: rate / without for name, rate in rates.items() if name != "without"},
        "added_ms_per_pod": {
            name: 1000 / rate - 1000 / without for name, rate in rates.items() if name != "without"
        },
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


def one_run(cluster: Cluster, way: Way, pods: int) -> Run:
    cluster.scheduler.stop()
    replica = way.replica
    if replica is not None:
        replica.server.start()
        cluster.wait_until(lambda: replica.ready, 60, "the extender leads")
    make_pods(cluster, pods)
    version = cluster.api.get(f"{PODS}?limit=1")["metadata"]["resourceVersion"]
    bindings = cluster.api.watch(f"{BOUND}&watch=1&resourceVersion={version}")
    before = cpu_of(cluster)
    cluster.configure_scheduler(way.config, *FLAGS)
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
    if replica is not None:
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
