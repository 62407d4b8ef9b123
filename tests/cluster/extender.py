"""`aliquot scheduler` beside a cluster: its replicas, GPUs on paper, the way from kube-scheduler.

A Service would send kube-scheduler to the replica that leads; here `Gateway` does. Where there
is one replica, kube-scheduler can ask that itself.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from aliquot.kubernetes.api.objects import GpuNode
from aliquot.kubernetes.api.presets import ALIQUOT
from cluster.cluster import Cluster
from cluster.servers import Server, answers, page
from conftest import aliquot_command

GPU_NODES = "/apis/aliquot.io/v1alpha1/gpunodes"
CRDS = Path(__file__).parents[2] / "deploy" / "crds"
_FIRST_PORT = 8441


class Replica:
    """A process of `aliquot scheduler`, with these options more."""

    def __init__(self, cluster: Cluster, number: int, *more: str) -> None:
        self.address = cluster.host_address, _FIRST_PORT + number
        self.url = "http://{}:{}".format(*self.address)
        self.server: Server = cluster.server(
            f"extender-{number}",
            aliquot_command(),
            "scheduler",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--host={self.address[0]}",
            f"--port={self.address[1]}",
            "--namespace=kube-system",
            *more,
        )
        self.server.ready = lambda: answers(f"{self.url}/healthz")

    @property
    def ready(self) -> bool:
        """Whether it decides: a replica that could take over says so too, in other words."""
        return page(f"{self.url}/readyz") == "leads"


class Gateway:
    """Sends every call to the replica that may decide: any other answers that it may not."""

    def __init__(self, address: str, replicas: Sequence[Replica]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # an answer in one piece: two would wait for each other

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code, answer = _ask_each(replicas, self.path, body)
                self.send_response(code)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://{address}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _ask_each(replicas: Iterable[Replica], path: str, body: bytes) -> tuple[int, bytes]:
    for one in replicas:
        connection = http.client.HTTPConnection(*one.address, timeout=60)
        with suppress(OSError, http.client.HTTPException), closing(connection):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return answer.status, answer.read()
    return HTTPStatus.SERVICE_UNAVAILABLE, b"no replica is ready"


def scheduler_config(url: str, resources: Sequence[str] = ALIQUOT.resources) -> dict[str, Any]:
    """What kube-scheduler must know of the extender."""
    return {
        "percentageOfNodesToScore": 100,
        "extenders": [
            {
                "urlPrefix": url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                "weight": 100,
                "httpTimeout": "60s",
                "nodeCacheCapable": True,
                "managedResources": [
                    {"name": name, "ignoredByScheduler": True} for name in resources
                ],
            }
        ],
    }


def install_crd(cluster: Cluster) -> None:
    """Make the API server know GPUNodes, gangs, queues and elastic jobs."""
    kinds = ("gpunode", "gang", "queue", "elasticjob")
    cluster.kubectl("apply", *(f"--filename={CRDS / kind}.yaml" for kind in kinds))
    names = [f"crd/{kind}s.aliquot.io" for kind in kinds]
    cluster.kubectl("wait", "--for=condition=established", *names)


def offer_devices(cluster: Cluster, name: str, gpus: int) -> None:
    """What a node's kubelet would count when an agent has registered."""
    counts = {"aliquot.io/gpu": str(gpus)}
    body = {"status": {"capacity": counts, "allocatable": counts}}
    cluster.api.patch(f"/api/v1/nodes/{name}/status", body)


def write_gpus(cluster: Cluster, node: GpuNode) -> None:
    """What a node's agent would write, and its kubelet count."""
    name = node.metadata.name
    offer_devices(cluster, name, len(node.status.gpus))
    body: Mapping[str, Any] = {
        "apiVersion": "aliquot.io/v1alpha1",
        "kind": "GPUNode",
        "metadata": {"name": name},
    }
    known = {one["metadata"]["name"] for one in cluster.api.get(GPU_NODES)["items"]}
    if name not in known:
        cluster.api.create(GPU_NODES, body)
    status = json.loads(msgspec.json.encode(node.status))
    cluster.api.patch(f"{GPU_NODES}/{name}/status", {"status": status})
