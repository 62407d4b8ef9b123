"""How fast the extender answers kube-scheduler: filter and bind over HTTP, with watches running.

    python bench/kubernetes/extender.py [--nodes 5000] [--pods 2000] [--json] [--check]

`aliquot scheduler` runs as a process of its own against a simulated API server in another process
(tests/kubernetes/fake_api.py). The cluster has nodes of 8 GPUs, two thirds full. For each pod the
benchmark makes kube-scheduler's calls one after the other on one connection: filter with the names
of all nodes, then bind. Meanwhile the watches report the changes: the pod with its plan, its node's
report, and the end of an older pod. Then come pods that fit no node, which are answered with a
reason for each node. The rows with `cpu` count the extender's own CPU time, which is what a call
would take on an idle machine.

`limits.json` has the limits.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests"))

from limits import exceeded  # noqa: E402 - beside this file

from aliquot.kubernetes.api.gpunode import NodeGrant  # noqa: E402
from aliquot.kubernetes.api.names import PLAN  # noqa: E402
from aliquot.kubernetes.api.objects import (  # noqa: E402
    GPU_NODES,
    NODES,
    PODS,
    GpuNode,
    Meta,
    Node,
    NodeStatus,
    Pod,
)
from aliquot.kubernetes.api.plan import Plan, decode_plan  # noqa: E402
from kubernetes.builders import make_node, make_pod  # noqa: E402
from kubernetes.fake_api import FakeApi, as_json  # noqa: E402

GPUS = 8
SHAPES: list[dict[str, Any]] = [
    {"gpu": 1},
    {"gpu": 2},
    {"sgpu": 1},
    {"sgpu": 2},
    {"memory": 80, "core": 25},
    {"memory": 160, "core": 50},
    {"memory": 40, "core": 10},
    {"memory": 64},
]
Rows = list[float]


class Caller:
    """One connection that stays open, as kube-scheduler has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, float]:
        start = time.perf_counter()
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        return answer.status, text, time.perf_counter() - start

    def ask(self, path: str, body: Any) -> tuple[Any, float]:
        status, text, took = self.call("POST", path, msgspec.json.encode(body))
        assert status == 200, text
        return json.loads(text), took


class World:
    """The objects of the API server, changed as kubelets and agents would."""

    def __init__(self, nodes: int, caller: Caller) -> None:
        self.names = [f"gpu-node-{number:05}.example.internal" for number in range(nodes)]
        self._caller = caller
        self._chance = random.Random(1)  # noqa: S311 - a mix, not a secret
        self._nodes = {name: make_node(name, GPUS) for name in self.names}
        self._held: list[tuple[str, str, str]] = []  # pod, its UID and its node
        self._count = 0

    def fill(self) -> None:
        """Fill two thirds of every node, by pods that are gone from the API server."""
        for name, node in self._nodes.items():
            gpus = []
            for gpu in node.status.gpus:
                if gpu.index % 3 == 2:
                    gpus.append(gpu)
                    continue
                kind = ("whole", "shared", "sliced")[self._chance.randrange(3)]
                parts = {"whole": 1, "shared": 2, "sliced": 3}[kind]
                grants = tuple(
                    NodeGrant(f"u-{name}-{gpu.index}-{n}", "ns", "old", "main", gpu.memory // parts)
                    for n in range(parts if kind == "whole" else parts - 1)
                )
                gpus.append(msgspec.structs.replace(gpu, kind=kind, grants=grants))
            status = msgspec.structs.replace(node.status, gpus=tuple(gpus))
            self._nodes[name] = msgspec.structs.replace(node, status=status)
            self._put("POST", "/api/v1/nodes", _served(name), NODES)
            self._put("POST", "/apis/aliquot.io/v1alpha1/gpunodes", self._nodes[name], GPU_NODES)

    def new_pod(self, **shape: int) -> Pod:
        self._count += 1
        pod = make_pod(f"p{self._count}", **(shape or self._chance.choice(SHAPES)))
        status, text, _ = self._caller.call(
            "POST", "/api/v1/namespaces/ns/pods", msgspec.json.encode(as_json(PODS, pod))
        )
        assert status == 201, text
        return msgspec.json.decode(text, type=Pod)

    def report(self, pod: Pod, node: str) -> None:
        """The node reports the pod; an older pod ends."""
        _, text, _ = self._caller.call("GET", f"/api/v1/namespaces/ns/pods/{pod.metadata.name}")
        plan = decode_plan(msgspec.json.decode(text, type=Pod).metadata.annotations[PLAN])
        assert plan is not None
        self._held.append((pod.metadata.name, pod.metadata.uid, node))
        self._change(node, lambda of: naming(of, pod, plan))
        if len(self._held) > 50:
            name, uid, at = self._held.pop(self._chance.randrange(len(self._held)))
            self._caller.call("DELETE", f"/api/v1/namespaces/ns/pods/{name}")
            self._change(at, lambda of: without(of, uid))

    def _change(self, name: str, how: Any) -> None:
        self._nodes[name] = how(self._nodes[name])
        path = f"/apis/aliquot.io/v1alpha1/gpunodes/{name}/status"
        self._put("PATCH", path, self._nodes[name], GPU_NODES)

    def _put(self, method: str, path: str, one: Any, of: Any) -> None:
        status, text, _ = self._caller.call(method, path, msgspec.json.encode(as_json(of, one)))
        assert status < 300, text


def _served(name: str) -> Node:
    """A Node whose kubelet has GPU devices."""
    counts: dict[str, str | int] = {"aliquot.io/gpu": GPUS}
    return Node(Meta(name=name), status=NodeStatus(capacity=counts, allocatable=counts))


def naming(node: GpuNode, pod: Pod, plan: Plan) -> GpuNode:
    gpus = []
    for gpu in node.status.gpus:
        for container, part in plan.containers.items():
            if gpu.uuid in part.gpus:
                uid = pod.metadata.uid
                one = NodeGrant(uid, "ns", "p", container, part.memory, part.compute)
                gpu = msgspec.structs.replace(  # noqa: PLW2901 - grown container by container
                    gpu, kind=part.kind, grants=(*gpu.grants, one)
                )
        gpus.append(gpu)
    return with_gpus(node, gpus)


def without(node: GpuNode, uid: str) -> GpuNode:
    gpus = []
    for gpu in node.status.gpus:
        left = tuple(one for one in gpu.grants if one.pod_uid != uid)
        kind = gpu.kind if left else None
        gpus.append(msgspec.structs.replace(gpu, grants=left, kind=kind))
    return with_gpus(node, gpus)


def with_gpus(node: GpuNode, gpus: list[Any]) -> GpuNode:
    status = msgspec.structs.replace(node.status, gpus=tuple(gpus))
    return msgspec.structs.replace(node, status=status)


def measure(nodes: int, pods: int) -> dict[str, float]:
    with ExitStack() as ending, tempfile.TemporaryDirectory() as folder:
        api_port, port = _free_ports()
        api = _start(ending, sys.executable, str(HERE), "--api", str(api_port))
        api_caller = Caller(api_port)
        _until(lambda: api_caller.call("GET", "/api/v1/pods")[0] == 200)
        world = World(nodes, api_caller)
        world.fill()
        config = _kubeconfig(Path(folder), f"http://127.0.0.1:{api_port}")
        where = [f"--kubeconfig={config}", "--host=127.0.0.1", f"--port={port}"]
        aliquot = Path(sys.executable).with_name("aliquot")
        extender = _start(ending, str(aliquot), "scheduler", *where)
        caller = Caller(port)
        _until(lambda: caller.call("GET", "/readyz")[1] == b"leads")
        measured = _measure(world, caller, pods, extender.pid)
        assert api.poll() is None
        return {"nodes": nodes, "pods": pods, **measured}


def _measure(world: World, caller: Caller, pods: int, pid: int) -> dict[str, float]:
    filters: Rows = []
    binds: Rows = []
    refusals: Rows = []
    cpu: Rows = []
    for number in range(pods + pods // 10):
        pod = world.new_pod()
        before = _cpu(pid)
        answer, took = caller.ask("/filter", _args(pod, world.names))
        spent = _cpu(pid) - before
        assert answer["NodeNames"], answer["Error"]
        node = answer["NodeNames"][0]
        meta = pod.metadata
        body = {"PodName": meta.name, "PodNamespace": "ns", "PodUID": meta.uid, "Node": node}
        bound, took_bind = caller.ask("/bind", body)
        assert not bound["Error"], bound["Error"]
        world.report(pod, node)
        if number >= pods // 10:  # the first are for warming up
            filters.append(took)
            cpu.append(spent)
            binds.append(took_bind)
    for _ in range(max(20, pods // 20)):
        huge = world.new_pod(gpu=GPUS + 1)
        refusals.append(caller.ask("/filter", _args(huge, world.names))[1])
    return {
        **_summary("filter", filters),
        **_summary("filter_cpu", cpu),
        **_summary("bind", binds),
        **_summary("refusal", refusals),
        "memory_mib": _memory(pid) / (1 << 20),
    }


def _args(pod: Pod, names: list[str]) -> dict[str, Any]:
    return {"Pod": as_json(PODS, pod), "Nodes": None, "NodeNames": names}


def _summary(name: str, took: Rows) -> dict[str, float]:
    return {
        f"{name}_p50_ms": 1e3 * median(took),
        f"{name}_p99_ms": 1e3 * quantiles(took, n=100)[98],
        f"{name}_max_ms": 1e3 * max(took),
    }


# --- processes --------------------------------------------------------------------------------


def serve_api(port: int) -> None:
    async def run() -> None:
        api = FakeApi(port, bookmarks=False)
        async with api.serving():
            await asyncio.Event().wait()

    asyncio.run(run())


def _start(ending: ExitStack, *command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.kill()
        process.wait()

    ending.callback(end)
    return process


def _until(so: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if so():
                return
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < deadline, "not so within two minutes"
        time.sleep(0.05)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])


def _kubeconfig(folder: Path, url: str) -> Path:
    file = folder / "config"
    config = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
    }
    file.write_text(json.dumps(config))
    return file


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used; the kernel counts nanoseconds here."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--nodes", type=int, default=5000)
    options.add_argument("--pods", type=int, default=2000)
    options.add_argument("--json", action="store_true")
    options.add_argument(
        "--check", action="store_true", help="fail if a limit of limits.json is exceeded"
    )
    options.add_argument("--api", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.api:
        serve_api(chosen.api)
        return 0
    row = measure(chosen.nodes, chosen.pods)
    if chosen.json:
        print(json.dumps(row, indent=1))
    else:
        for name, value in row.items():
            print(f"{name:>20} {value:10.2f}")
    return check(row) if chosen.check else 0


def check(row: dict[str, float]) -> int:
    found = exceeded("extender", row)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
