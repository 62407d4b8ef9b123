"""A node that comes and goes, and work of every kind that must outlive it.

Nodes and pods are kwok's; `Flapper` does what a kubelet, an agent and the pod garbage collector do
when a node goes and comes back. Each time that its Node is made anew it has GPUs of other names, so
a plan for GPUs of an earlier life is seen at once.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from aliquot.kubernetes.api.gpunode import GpuNodeStatus
from aliquot.kubernetes.api.names import GANG, GANG_SIZE, GATE, PLAN
from aliquot.kubernetes.api.plan import decode_plan
from cluster.api import ApiError
from cluster.extender import GPU_NODES, offer_devices
from cluster.gangs import Stage
from cluster.manifests import fake_node, pod
from kubernetes.builders import make_node

GPUS = 4
SEEN_SECONDS = 3.0  # within which the scheduler has surely heard of a change
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "250"}
SELECTOR = {"type": "kwok"}


class Flapper:
    """One node with GPUs, by turns without its agent and removed altogether."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._api = stage.cluster.api
        self._lives = itertools.count()
        self.name = name
        self.gpus: set[str] = set()

    def add(self) -> None:
        """A Node of this name joins, with new GPUs, and its agent reports them."""
        made = self._api.create("/api/v1/nodes", fake_node(self.name, CAPACITY, {}))
        status = self._status(next(self._lives))
        self.gpus = {gpu.uuid for gpu in status.gpus}
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.name}
        meta = {"name": self.name, "ownerReferences": [{**owner, "uid": made["metadata"]["uid"]}]}
        kind = {"apiVersion": "aliquot.io/v1alpha1", "kind": "GPUNode"}
        self._until(lambda: self._create({**kind, "metadata": meta}), "its last GPUNode is gone")
        body = {"status": msgspec.to_builtins(status)}
        self._api.patch(f"{GPU_NODES}/{self.name}/status", body)
        offer_devices(self._stage.cluster, self.name, GPUS)
        self._stage.gpus[self.name] = status

    def remove(self) -> None:
        """The Node goes; its GPUNode and its pods are collected."""
        self._stage.gpus.pop(self.name, None)
        self._api.delete(f"/api/v1/nodes/{self.name}")
        self._until(lambda: self.name not in self._gpu_nodes(), "its GPUNode is collected")
        deadline = time.monotonic() + SEEN_SECONDS
        while time.monotonic() < deadline or self.pods():
            for one in self.pods().values():
                meta = one["metadata"]
                with suppress(ApiError):
                    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                    self._api.delete(f"{path}?gracePeriodSeconds=0")
            time.sleep(0.1)

    def lose_agent(self, seconds: float) -> None:
        """The kubelet counts no devices for so long. No pod may be bound there meanwhile."""
        offer_devices(self._stage.cluster, self.name, 0)
        time.sleep(SEEN_SECONDS)
        before = self.pods().keys()
        time.sleep(max(0.0, seconds - SEEN_SECONDS))
        came = self.pods().keys() - before
        assert not came, f"pods were bound to a node without its agent: {came}"
        offer_devices(self._stage.cluster, self.name, GPUS)

    def check(self) -> None:
        """All pods there have plans for GPUs that the node has now."""
        for uid, one in self.pods().items():
            plan = decode_plan(one["metadata"].get("annotations", {}).get(PLAN, ""))
            assert plan is not None, f"pod {uid} was bound without a plan"
            planned = {gpu for part in plan.containers.values() for gpu in part.gpus}
            assert planned <= self.gpus, f"pod {uid} has GPUs of an earlier life: {planned}"

    def pods(self) -> dict[str, Any]:
        """The pods that are bound to it, by UID."""
        found = self._api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")["items"]
        return {one["metadata"]["uid"]: one for one in found}

    def _status(self, life: int) -> GpuNodeStatus:
        gpus = make_node(f"{self.name}-life-{life}", GPUS).status.gpus
        return GpuNodeStatus(gpus=gpus)

    def _create(self, body: Mapping[str, Any]) -> bool:
        try:
            self._api.create(GPU_NODES, body)
        except ApiError as error:
            if error.code != 409:
                raise
            return False
        return True

    def _gpu_nodes(self) -> set[str]:
        return {one["metadata"]["name"] for one in self._api.get(GPU_NODES)["items"]}

    def _until(self, so: Callable[[], object], what: str) -> None:
        self._stage.cluster.wait_until(so, 60, what, every=0.2)


class Work:
    """Single pods, gangs and an elastic job, each kept by its controller."""

    def __init__(self, stage: Stage, namespace: str) -> None:
        self._stage = stage
        self._namespace = namespace
        self._sets: dict[str, int] = {}

    def singles(self, name: str, count: int) -> None:
        self._replica_set(name, count, {}, {})

    def gang(self, name: str, size: int) -> None:
        notes = {GANG: name, GANG_SIZE: str(size)}
        self._replica_set(name, size, notes, {"schedulingGates": [{"name": GATE}]})

    def elastic(self, name: str, least: int, most: int) -> None:
        made = pod("worker", limits={"aliquot.io/gpu": 1}, nodeSelector=SELECTOR)
        body = {
            "apiVersion": "aliquot.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name, "namespace": self._namespace},
            "spec": {
                "workers": {"min": least, "max": most},
                "resizeSeconds": 5,
                "template": {"spec": {**made["spec"], "schedulerName": "default-scheduler"}},
            },
        }
        self._stage.cluster.apply(body)

    def missing(self) -> list[str]:
        """What does not run as it should."""
        pods = self._stage.pods(self._namespace).values()
        bound: dict[str, int] = {}
        for one in pods:
            if one["spec"].get("nodeName") and not one["metadata"].get("deletionTimestamp"):
                name = one["metadata"]["labels"].get("app", "")
                bound[name] = bound.get(name, 0) + 1
        found = [
            f"{name}: {bound.get(name, 0)} of {count} pods are bound"
            for name, count in self._sets.items()
            if bound.get(name, 0) != count
        ]
        path = f"/apis/aliquot.io/v1alpha1/namespaces/{self._namespace}/elasticjobs"
        for one in self._stage.cluster.api.get(path)["items"]:
            phase = one.get("status", {}).get("phase", "")
            if phase != "Running":
                found.append(f"{one['metadata']['name']}: {phase}")
        return found

    def _replica_set(
        self, name: str, count: int, notes: Mapping[str, str], spec: Mapping[str, Any]
    ) -> None:
        made = pod(name, limits={"aliquot.io/gpu": 1}, nodeSelector=SELECTOR, **spec)
        made["spec"]["restartPolicy"] = "Always"
        meta = {"labels": {"app": name}, "annotations": dict(notes)}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name, "namespace": self._namespace},
            "spec": {
                "replicas": count,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": meta, "spec": made["spec"]},
            },
        }
        self._stage.cluster.apply(body)
        self._sets[name] = count


def patches(stage: Stage) -> dict[str, int]:
    """How many PATCH requests the API server has answered, by resource; without its Leases."""
    text = stage.cluster.kubectl("get", "--raw", "/metrics")
    found: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{") and 'verb="PATCH"' in line:
            labels, _, value = line.partition("} ")
            parts = dict(
                part.split("=", 1) for part in labels.partition("{")[2].split(",") if "=" in part
            )
            names = (json.loads(parts[name]) for name in ("resource", "subresource"))
            key = "/".join(filter(None, names))
            found[key] = found.get(key, 0) + int(float(value))
    return found
