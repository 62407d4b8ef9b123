"""The cluster itself: pods run on it, its servers can be restarted, and it leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cluster import registry
from cluster.cluster import Cluster
from cluster.fake_nodes import fake_nodes
from cluster.manifests import pod
from cluster.registry import ClusterError, Place
from cluster.servers import Server
from support import wait_until

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).parents[1]


def test_a_pod_runs_and_has_a_log(cluster: Cluster, namespace: str) -> None:
    cluster.apply(pod("speaker", ["/bin/echo", "hello"], namespace=namespace))
    cluster.wait_for_pod("speaker", namespace, "Succeeded")
    assert cluster.kubectl("logs", "speaker", "-n", namespace) == "hello\n"


def test_a_command_runs_in_a_running_container(cluster: Cluster, namespace: str) -> None:
    run_pod(cluster, namespace)
    assert in_pod(cluster, namespace, "hostname") == "one\n"


def test_a_pod_reaches_the_api_server_by_its_service(
    cluster: Cluster, namespace: str, project: str
) -> None:
    program = (
        "import os, ssl, urllib.request as r;"
        "c = ssl.create_default_context("
        "    cafile='/var/run/secrets/kubernetes.io/serviceaccount/ca.crt');"
        "h = os.environ['KUBERNETES_SERVICE_HOST'];"
        "print(r.urlopen(f'https://{h}/version', context=c).read().decode());"
        "import aliquot.kubernetes, numpy"
    )
    command = ["python3", "-c", program]
    cluster.apply(pod("caller", command, image=project, namespace=namespace))
    cluster.wait_for_pod("caller", namespace, "Succeeded")
    version = json.loads(cluster.kubectl("logs", "caller", "-n", namespace))
    assert version["gitVersion"].startswith("v1.36.")


@pytest.mark.parametrize("name", ["kubelet", "containerd", "kube-apiserver", "kube-proxy"])
def test_a_running_container_outlives_a_restart_of(
    cluster: Cluster, namespace: str, name: str
) -> None:
    container = run_pod(cluster, namespace)
    server = find_server(cluster, name)
    before = server.pid
    server.restart()
    cluster.wait_ready()
    assert server.pid != before
    cluster.wait_until(lambda: answers(cluster, namespace), 30, "the kubelet knows its pod again")
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/one")["status"]
    assert status["phase"] == "Running"
    assert status["containerStatuses"][0]["containerID"] == container
    assert status["containerStatuses"][0]["restartCount"] == 0


def test_a_killed_server_is_named_with_its_log(cluster: Cluster) -> None:
    server = cluster.server("grumbler", "sh", "-c", "echo it hurts; exit 3")
    server.ready = lambda: False
    server.start()
    with pytest.raises(ClusterError, match=r"(?s)grumbler ended by itself.*it hurts"):
        server.wait_ready()


def test_the_scheduler_asks_an_extender_on_this_host(cluster: Cluster, namespace: str) -> None:
    with extender(cluster.host_address) as (url, asked):
        extenders = [{"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}]
        cluster.configure_scheduler({"extenders": extenders})
        try:
            run_pod(cluster, namespace)
        finally:
            cluster.configure_scheduler({})
    assert [call["Pod"]["metadata"]["name"] for call in asked] == ["one"]
    assert asked[0]["NodeNames"] == [cluster.node.name]


def test_fake_nodes_take_pods(cluster: Cluster, namespace: str) -> None:
    with fake_nodes(cluster) as fakes:
        names = fakes.add(20, capacity={"cpu": 8, "memory": "64Gi", "pods": 10, "x.io/gpu": 2})
        fake = pod("fake", namespace=namespace, limits={"x.io/gpu": 2})
        cluster.apply(fake)
        cluster.wait_for_pod("fake", namespace, "Running")
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/fake")
        assert found["spec"]["nodeName"] in names
        cluster.kubectl("delete", "pod", "fake", "-n", namespace, "--timeout=60s")
    nodes = cluster.api.get("/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == [cluster.node.name]


def test_two_clusters_are_separate_and_one_has_two_nodes(cluster: Cluster) -> None:
    with Cluster(nodes=2) as other:
        serve = "while true; do echo here | nc -l -p 8000; done"
        other.apply(pod("server", ["sh", "-c", serve], nodeName="node-1"))
        other.wait_for_pod("server", "default", "Running")
        address = other.api.get("/api/v1/namespaces/default/pods/server")["status"]["podIP"]
        ask = f"until nc -w 1 {address} 8000; do :; done"
        other.apply(pod("client", ["sh", "-c", ask], nodeName="node-0"))
        other.wait_for_pod("client", "default", "Succeeded")
        assert other.kubectl("logs", "client") == "here\n"
        assert cluster.api.get("/api/v1/namespaces/default/pods")["items"] == []
        place = other.place
        processes = processes_of(place)
        assert len(processes) > 10
    assert_nothing_left(place, processes)


def test_a_cluster_whose_owner_is_killed_is_removed() -> None:
    with owned_by_another() as (owner, place):
        processes = processes_of(place)
        owner.kill()
        assert_nothing_left(place, processes)


def test_the_next_cluster_removes_what_a_killed_reaper_left() -> None:
    with owned_by_another() as (owner, place):
        processes = processes_of(place)
        reaper = reaper_of(place)
        signal.pidfd_send_signal(reaper, signal.SIGKILL)
        wait_until(lambda: has_ended(reaper))
        owner.kill()
    assert not any(has_ended(process) for process in processes)
    following = registry.reserve()
    try:
        assert_nothing_left(place, processes)
    finally:
        following.remove()
        following.release()


@contextmanager
def owned_by_another() -> Iterator[tuple[subprocess.Popen[str], Place]]:
    """A cluster with a pod, of a process that waits to be killed."""
    program = (
        "import sys; from cluster.cluster import Cluster; from cluster.manifests import pod;"
        "c = Cluster(); c.start(); c.apply(pod('one'));"
        "c.wait_for_pod('one', 'default', 'Running');"
        "print(c.place.number, c.folder, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=TESTS, stdin=pipe, stdout=pipe, text=True
    ) as owner:
        assert owner.stdout is not None
        number, folder = owner.stdout.readline().split()
        yield owner, Place(int(number), Path(folder), -1)
        owner.wait(10)


def reaper_of(place: Place) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            command = (process / "cmdline").read_bytes().decode().split("\0")
            if "cluster.reaper" in command and str(place.folder) in command:
                return os.pidfd_open(int(process.name))
    raise AssertionError(f"nobody keeps {place.folder}")


def run_pod(cluster: Cluster, namespace: str) -> str:
    """A pod that sleeps; its container's id."""
    cluster.apply(pod("one", namespace=namespace))
    cluster.wait_for_pod("one", namespace, "Running")
    status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/one")["status"]
    return str(status["containerStatuses"][0]["containerID"])


def in_pod(cluster: Cluster, namespace: str, *command: str) -> str:
    return cluster.kubectl("exec", "one", "-n", namespace, "--", *command)


def answers(cluster: Cluster, namespace: str) -> bool:
    try:
        return in_pod(cluster, namespace, "hostname") == "one\n"
    except ClusterError:
        return False


def find_server(cluster: Cluster, name: str) -> Server:
    return next(server for server in cluster.servers() if server.name == name)


def processes_of(place: Place) -> list[int]:
    """Descriptors of all processes, but for those that ended since they were listed."""
    found = []
    for pid in place.cgroup.pids():
        with contextlib.suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


def assert_nothing_left(place: Place, processes: list[int]) -> None:
    """No process, mount, network, control group or file of the cluster."""
    wait_until(lambda: all(has_ended(process) for process in processes), 30)
    wait_until(lambda: not place.folder.exists(), 30)
    assert str(place.folder) not in Path("/proc/self/mountinfo").read_text()
    assert not list(Path("/sys/class/net").glob(f"{place.bridge}*"))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{place.cgroup.name}"))


def has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])


@contextmanager
def extender(address: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An extender that lets every node pass, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(call)
            answer = json.dumps({"NodeNames": call["NodeNames"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((address, 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
