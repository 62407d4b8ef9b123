"""Gangs with the real kube-scheduler, on nodes that kwok keeps: for tests and figures."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu, NodeGrant
from aliquot.kubernetes.api.names import GANG, GANG_SIZE, GATE, PLAN
from aliquot.kubernetes.api.plan import decode_plan
from cluster.api import ApiError
from cluster.cluster import Cluster
from cluster.extender import (
    GPU_NODES,
    Gateway,
    Replica,
    install_crd,
    offer_devices,
    scheduler_config,
)
from cluster.fake_nodes import FakeNodes, fake_nodes
from cluster.manifests import pod
from kubernetes.builders import make_node

CLIENT = {"clientConnection": {"qps": 5000, "burst": 5000}}
_AT_ONCE = 8
_REPORT_SECONDS = 0.1


@dataclass
class Stage:
    """A cluster whose kube-scheduler asks two replicas of ours, of which the first is started."""

    cluster: Cluster
    nodes: FakeNodes
    replicas: tuple[Replica, ...]
    gpus: dict[str, GpuNodeStatus] = field(default_factory=dict)

    def add_nodes(self, count: int, gpus: int, **labels: str) -> list[str]:
        """Nodes with so many GPUs, that nobody holds."""
        names = self.nodes.add(count, labels=labels)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: self.add_gpus(name, gpus), names))
        return names

    def add_gpus(self, name: str, gpus: int) -> None:
        """GPUs of a node, on paper."""
        body = {"apiVersion": "aliquot.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
        self.cluster.api.create(GPU_NODES, body)
        offer_devices(self.cluster, name, gpus)
        self._write_gpus(name, make_node(name, gpus).status)

    def clear(self) -> None:
        """Remove all nodes with their GPUs, for the next test."""
        self.gpus.clear()
        self.nodes.remove()
        for one in self.cluster.api.get(GPU_NODES)["items"]:
            self.cluster.api.delete(f"{GPU_NODES}/{one['metadata']['name']}")

    def report(self) -> None:
        """What the agents of all nodes would write: who has which GPU."""
        held: dict[str, NodeGrant] = {}
        for one in self.cluster.api.get("/api/v1/pods")["items"]:
            meta = one["metadata"]
            plan = decode_plan(meta.get("annotations", {}).get(PLAN, ""))
            for name, part in plan.containers.items() if plan else ():
                mine = NodeGrant(meta["uid"], meta["namespace"], meta["name"], name, part.memory)
                held |= dict.fromkeys(part.gpus, mine)
        for name, before in list(self.gpus.items()):
            now = msgspec.structs.replace(
                before, gpus=tuple(_held(one, held.get(one.uuid)) for one in before.gpus)
            )
            if now != before:
                self._write_gpus(name, now)

    def _write_gpus(self, name: str, status: GpuNodeStatus) -> None:
        body = {"status": msgspec.to_builtins(status)}
        self.cluster.api.patch(f"{GPU_NODES}/{name}/status", body)
        self.gpus[name] = status

    def submit(
        self,
        namespace: str,
        gang: str,
        size: int,
        *,
        pods: int | None = None,
        first: int = 0,
        gpus: int = 1,
        gated: bool = True,
        notes: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> list[str]:
        """A gang's pods; all of them, or so many."""
        count = size if pods is None else pods
        names = [f"{gang}-{number}" for number in range(first, first + count)]
        if gated:
            spec["schedulingGates"] = [{"name": GATE}]
        annotations = {GANG: gang, GANG_SIZE: str(size), **(notes or {})}
        limits = {"aliquot.io/gpu": gpus}
        spec = {"nodeSelector": {"type": "kwok"}, **spec}

        def make(name: str) -> None:
            body = pod(
                name,
                namespace=namespace,
                limits=limits,
                annotations=annotations,
                labels=labels,
                **spec,
            )
            self.cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", body)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(make, names))
        return names

    def end(self, namespace: str, names: list[str]) -> None:
        """Delete these pods."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda name: self.cluster.api.delete(f"{path}/{name}"), names))

    def pods(self, namespace: str) -> dict[str, Any]:
        found = self.cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {one["metadata"]["name"]: one for one in found}

    def bound(self, namespace: str) -> dict[str, str]:
        """The nodes of pods that have one."""
        path = f"/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName%21%3D"
        found = self.cluster.api.get(path)["items"]
        return {one["metadata"]["name"]: one["spec"]["nodeName"] for one in found}

    def gang(self, namespace: str, name: str) -> dict[str, Any]:
        """The Gang object; nothing where there is none."""
        path = f"/apis/aliquot.io/v1alpha1/namespaces/{namespace}/gangs/{name}"
        try:
            return dict(self.cluster.api.get(path))
        except ApiError as error:
            if error.code == 404:
                return {}
            raise

    def phase(self, namespace: str, name: str) -> str:
        return str(self.gang(namespace, name).get("status", {}).get("phase", ""))

    def why(self, namespace: str, name: str) -> str:
        return str(self.gang(namespace, name).get("status", {}).get("reason", ""))

    def wait_phase(self, namespace: str, name: str, phase: str, seconds: float = 30) -> None:
        what = f"gang {name} is {phase}"
        self.cluster.wait_until(lambda: self.phase(namespace, name) == phase, seconds, what)

    def wait_leader(self) -> Replica:
        def leaders() -> list[Replica]:
            return [one for one in self.replicas if one.ready]

        self.cluster.wait_until(leaders, 60, "a replica leads")
        return leaders()[0]

    def check_gpus(self, namespace: str) -> None:
        """No GPU is given twice."""
        given: Counter[str] = Counter()
        for one in self.pods(namespace).values():
            plan = decode_plan(one["metadata"].get("annotations", {}).get(PLAN, ""))
            if plan is not None:
                given.update(gpu for part in plan.containers.values() for gpu in part.gpus)
        twice = [gpu for gpu, count in given.items() if count > 1]
        assert not twice, twice


def _held(gpu: NodeGpu, by: NodeGrant | None) -> NodeGpu:
    kind, grants = (None, ()) if by is None else ("whole", (by,))
    return msgspec.structs.replace(gpu, kind=kind, grants=grants)


@contextmanager
def agents(stage: Stage) -> Iterator[None]:
    """The agents of all its nodes, as long as this lasts."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(_REPORT_SECONDS):
            with suppress(ApiError, OSError):  # a node, or the API server, is away
                stage.report()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def running_stage(replicas: int = 2) -> Iterator[Stage]:
    """A stage whose first replica leads, with agents on its nodes and a priority class `high`."""
    with stage(replicas) as whole:
        high = {"metadata": {"name": "high"}, "value": 1000}
        whole.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", high)
        whole.replicas[0].server.start()
        whole.wait_leader()
        with agents(whole):
            yield whole


@contextmanager
def stage(replicas: int = 2) -> Iterator[Stage]:
    """All of it; no replica runs yet, and there are no nodes."""
    with Cluster() as cluster, fake_nodes(cluster) as nodes:
        install_crd(cluster)
        ours = tuple(Replica(cluster, number) for number in range(replicas))
        with Gateway(cluster.host_address, ours) as gateway:
            cluster.configure_scheduler({**scheduler_config(gateway.url), **CLIENT})
            yield Stage(cluster, nodes, ours)
            for one in ours:
                if one.server.running:
                    one.server.stop()
