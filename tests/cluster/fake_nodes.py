"""Nodes without machines, kept by kwok: for tests of what thousands of nodes and pods cost.

Pods on them are said to run as soon as they are bound. Tell them from real nodes by the label
`type: kwok`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cluster.cluster import Cluster
from cluster.manifests import fake_node
from cluster.programs import find_programs
from cluster.servers import answers

_PORT = 10247
_NODES = "/api/v1/nodes"
_CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "250"}


class FakeNodes:
    """The fake nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.names: list[str] = []

    def add(
        self,
        count: int,
        *,
        capacity: Mapping[str, str | int] | None = None,
        labels: Mapping[str, str] | None = None,
        seconds: float = 120.0,
    ) -> list[str]:
        """Make so many more, with that capacity each, and return when all are ready."""
        begin = len(self.names)
        added = [f"fake-{index}" for index in range(begin, begin + count)]
        nodes = [fake_node(name, capacity or _CAPACITY, labels or {}) for name in added]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda node: self._cluster.api.create(_NODES, node), nodes))
        self.names += added
        wanted = set(added)
        what = f"{count} fake nodes are ready"
        self._cluster.wait_until(lambda: wanted <= self._ready(), seconds, what, every=0.5)
        return added

    def remove(self, names: Sequence[str] | None = None) -> None:
        """Remove these, or all; the pods on them go with them."""
        for name in list(self.names if names is None else names):
            self._cluster.api.delete(f"{_NODES}/{name}")
            self.names.remove(name)

    def _ready(self) -> set[str]:
        nodes = self._cluster.api.get(f"{_NODES}?labelSelector=type%3Dkwok&resourceVersion=0")
        return {
            node["metadata"]["name"]
            for node in nodes["items"]
            if not node["spec"].get("taints")
            and any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in node["status"].get("conditions", ())
            )
        }


@contextmanager
def fake_nodes(cluster: Cluster) -> Iterator[FakeNodes]:
    """Run kwok on this cluster; the fake nodes are removed at the end."""
    address = f"{cluster.host_address}:{_PORT}"
    kwok = cluster.server(
        "kwok",
        str(find_programs().path("kwok")),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--config={Path(__file__).with_name('kwok.yaml')}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        f"--server-address={address}",
    )
    kwok.ready = lambda: answers(f"http://{address}/healthz")
    kwok.start()
    nodes = FakeNodes(cluster)
    try:
        kwok.wait_ready()
        yield nodes
    finally:
        nodes.remove()
        kwok.stop()
