"""A hundred pods at once on a node with 16 simulated GPUs: what they ask for, and what is so.

The mix fills at most 80 % of the GPUs and fits in any order: each kind has GPUs to spare.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from aliquot import devices
from aliquot.devices import CUDA
from aliquot.kubernetes.api.names import MEMORY_UNIT
from aliquot.model import Grant
from cluster.agent import Agent
from cluster.cluster import Cluster
from cluster.extender import Replica, install_crd, scheduler_config
from cluster.manifests import pod
from containers.probe_images import parse_probe, probe_image

GPUS = 16
PODS = 100
ADMITTED_SECONDS = 60.0
_WHOLE, _SHARED = 3, 5
# Says what it sees (without a GPU that there is none), and stays until it is told to end.
_LOOK = ("/bin/sh", "-c", f"probe {CUDA} -; trap exit TERM; sleep 2147483647 & wait")
_TENANT = "aliquot.test/hundred:1"


@dataclass(frozen=True)
class Asked:
    """What a pod asks for; `units` and `core` of a slice."""

    gpu: int = 0
    sgpu: int = 0
    units: int = 0
    core: int = 0

    @property
    def limits(self) -> dict[str, int]:
        named = {
            "gpu": self.gpu,
            "sgpu": self.sgpu,
            "vcuda-memory": self.units,
            "vcuda-core": self.core,
        }
        return {f"aliquot.io/{name}": count for name, count in named.items() if count}

    def memory(self, gpu_memory: int) -> int:
        """What its programs must see of each GPU."""
        if self.units:
            return self.units * MEMORY_UNIT
        return gpu_memory if self.gpu else gpu_memory // 2


@dataclass(frozen=True)
class Stage:
    """A cluster whose node has the agent, and whose kube-scheduler asks the extender."""

    cluster: Cluster
    agent: Agent
    replica: Replica


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """All of it, ready for pods."""
    with Cluster() as cluster:
        install_crd(cluster)
        cluster.load(probe_image(_TENANT, devices.native_dir(), folder))
        agent, replica = Agent(cluster, f"h100:{GPUS}"), Replica(cluster, 0)
        cluster.configure_scheduler(scheduler_config(replica.url))
        replica.server.start()
        agent.start()
        cluster.wait_until(lambda: replica.ready, 60, "the extender leads")
        agent.until_counts(gpu=GPUS, sgpu=2 * GPUS)
        yield Stage(cluster, agent, replica)
        replica.server.stop()
        agent.close()


def mix(seed: int) -> dict[str, Asked]:
    """A hundred requests in an order of their own."""
    order = random.Random(seed)  # noqa: S311 - an order, not a secret
    asked = [Asked(gpu=1)] * _WHOLE
    asked += [Asked(sgpu=1 + number % 2) for number in range(_SHARED)]
    sizes = [(4, 3), (8, 5), (12, 8)]
    asked += [
        Asked(units=units, core=core)
        for units, core in (sizes[number % 3] for number in range(PODS - len(asked)))
    ]
    order.shuffle(asked)
    return {f"pod-{number}": one for number, one in enumerate(asked)}


@dataclass(frozen=True)
class Times:
    """Seconds from the first pod's creation until all were admitted, and until all were ready.

    The kubelet writes in whole seconds when it admitted a pod.
    """

    admitted: float
    ready: float


def run_all(stage: Stage, namespace: str, asked: Mapping[str, Asked | None]) -> Times:
    """Make all pods, and wait until all of them run; those that ask for nothing have no GPU."""
    cluster = stage.cluster
    path = f"/api/v1/namespaces/{namespace}/pods"

    def first(phase: str) -> list[dict[str, Any]]:
        # Lists of all pods are asked for at the end alone: to read them costs what is measured.
        query = f"fieldSelector=status.phase{phase}&limit=1"
        return list(cluster.api.get(f"{path}?{query}")["items"])

    def all_ready() -> bool:
        refused = [_why(one) for one in first("=Failed")]
        assert not refused, refused
        return not first("!=Running") and all(
            _is_ready(one) for one in cluster.api.get(path)["items"]
        )

    began, at = time.monotonic(), time.time()
    for name, one in asked.items():
        limits = one.limits if one else None
        cluster.api.create(
            path, pod(name, _LOOK, image=_TENANT, namespace=namespace, limits=limits)
        )
    cluster.wait_until(all_ready, 300, f"{len(asked)} pods are ready", every=0.2)
    ready = time.monotonic() - began
    last = max(one["status"]["startTime"] for one in cluster.api.get(path)["items"])
    return Times(datetime.fromisoformat(last).timestamp() - at, ready)


def delete_all(stage: Stage, namespace: str, names: list[str], seed: int) -> None:
    """Delete them in random order, and wait until they are gone."""
    random.Random(seed).shuffle(names)  # noqa: S311 - the same
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name in names:
        stage.cluster.api.delete(f"{path}/{name}")
    stage.cluster.wait_until(lambda: not stage.cluster.api.get(path)["items"], 120, "all are gone")


def check_allocations(stage: Stage, asked: Mapping[str, Asked]) -> None:
    """No GPU is given twice, and every grant is what its pod asked for."""
    agent = stage.agent
    agent.until(lambda: set(agent.holders()) == set(asked), "GPUNode names every pod")
    gpu_memory = agent.gpunode()[0]["memory"]
    kinds: dict[str, set[str]] = defaultdict(set)
    memory: Counter[str] = Counter()
    core: Counter[str] = Counter()
    for gpu in agent.gpunode():
        for part in gpu.get("grants", ()):
            one = asked[part["pod"]]
            kinds[gpu["uuid"]].add("gpu" if one.gpu else "sgpu" if one.sgpu else "slice")
            memory[gpu["uuid"]] += part["memory"]
            core[gpu["uuid"]] += part.get("compute", 0) if one.units else 0
            assert part["memory"] == one.memory(gpu_memory), part
            assert not one.units or part["compute"] == one.core, part
    assert all(len(found) == 1 for found in kinds.values()), kinds
    assert all(found <= gpu_memory for found in memory.values()), memory
    assert all(found <= 100 for found in core.values()), core
    _check_grants(list(agent.grants().values()), asked, gpu_memory)


def _check_grants(grants: list[Grant], asked: Mapping[str, Asked], gpu_memory: int) -> None:
    """The arbiter, which holds programs to their limits, says the same."""
    wanted = Counter(
        (one.gpu + one.sgpu or 1, one.memory(gpu_memory), one.core) for one in asked.values()
    )
    found = Counter(
        (
            len(grant.slices),
            grant.slices[0].memory_bytes,
            0
            if grant.slices[0].memory_bytes >= gpu_memory // 2
            else grant.slices[0].compute_percent,
        )
        for grant in grants
    )
    assert found == wanted


def check_inside(stage: Stage, namespace: str, asked: Mapping[str, Asked]) -> None:
    """What the programs themselves saw, through the driver's API."""
    gpu_memory = stage.agent.gpunode()[0]["memory"]
    for name, one in asked.items():
        said = parse_probe(stage.cluster.kubectl("logs", name, f"--namespace={namespace}"))
        assert said["init"] == 0, (name, said)
        assert said["memory"] == one.memory(gpu_memory), (name, said)


def check_empty(stage: Stage) -> None:
    """All came back."""
    stage.agent.until(lambda: not stage.agent.holders(), "GPUNode names nobody")
    stage.agent.until(lambda: not stage.agent.grants(), "the arbiter has no grant")
    stage.agent.until_counts(gpu=GPUS, sgpu=2 * GPUS)


def _is_ready(one: dict[str, Any]) -> bool:
    conditions = one["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _why(one: dict[str, Any]) -> str:
    status = one["status"]
    return f"{one['metadata']['name']}: {status.get('reason')}: {status.get('message')}"
