"""A real Kubernetes on this machine, for the tests: `with Cluster() as cluster: ...`.

One machine of its own (see machine.py) runs the control plane and is the first node; more nodes are
more machines. Several clusters can run side by side. When its owner ends, in whatever way, the
cluster ends with it: its processes, control groups, mounts, networks and files.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cluster import registry
from cluster.api import Api, ApiError
from cluster.control_plane import ControlPlane
from cluster.images import Image, busybox
from cluster.machine import Machine, run
from cluster.node import Node, pod_network
from cluster.programs import Programs, find_programs
from cluster.registry import ClusterError
from cluster.servers import BUSY, Server

Object = Mapping[str, Any]


class Cluster:
    """A cluster of `nodes` nodes, named node-0, node-1, ..., each with the busybox image.

    `scheduler` and `kubelet` lie over the configuration of kube-scheduler (its `extenders`, its
    `profiles`) and of each kubelet; the flags go to the programs as they are. `debian_runtime`:
    containers run by Debian's containerd, which has no CDI. `programs`: another Kubernetes.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        scheduler: Mapping[str, Any] | None = None,
        scheduler_flags: Sequence[str] = (),
        api_flags: Sequence[str] = (),
        kubelet: Mapping[str, Any] | None = None,
        debian_runtime: bool = False,
        programs: Programs | None = None,
    ) -> None:
        self.machines: list[Machine] = []
        self.nodes: list[Node] = []
        self._names = [f"node-{index}" for index in range(nodes)]
        self._scheduler = (dict(scheduler or {}), scheduler_flags)
        self._api_flags = api_flags
        self._kubelet = dict(kubelet or {})
        self._debian_runtime = debian_runtime
        self.programs = programs or find_programs()
        self._own: list[Server] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, and return when pods can run."""
        with ExitStack() as undo:
            self.place = registry.reserve()
            undo.callback(self.place.release)
            undo.callback(self._start_reaper().communicate)
            undo.callback(self._reap)
            undo.callback(self.place.remove)
            self._start_noting_logs()
            undo.callback(self.api.close)
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """End everything and remove it."""
        self._undo.close()

    def keep(self) -> None:
        """Leave it running when this process ends; `registry.kept` finds it again."""
        self.place.keep()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Return when the cluster holds every node for ready, and pods find their account."""
        self.wait_until(self._is_ready, seconds, "the nodes are ready")

    def wait_until(
        self, so: Callable[[], object], seconds: float, what: str, *, every: float = 0.05
    ) -> None:
        """Return as soon as `so()` holds; fail with `what` after that time (see BUSY)."""
        seconds *= BUSY
        deadline = time.monotonic() + seconds
        while not so():
            if time.monotonic() > deadline:
                raise ClusterError(f"not true after {seconds:.0f} s: {what}")
            time.sleep(every)

    # --- its parts --------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """All its files, with a log of each server."""
        return self.place.folder

    @property
    def host_address(self) -> str:
        """This host, as the cluster's servers and pods reach it."""
        return self.place.host_address

    @property
    def node(self) -> Node:
        """The first node."""
        return self.nodes[0]

    @property
    def api(self) -> Api:
        return self.control_plane.api

    @property
    def etcd(self) -> Server:
        return self.control_plane.etcd

    @property
    def apiserver(self) -> Server:
        return self.control_plane.apiserver

    @property
    def scheduler(self) -> Server:
        return self.control_plane.scheduler

    @property
    def kubeconfig(self) -> Path:
        """A person's, who may do everything."""
        return self.control_plane.kubeconfig("admin")

    def servers(self) -> list[Server]:
        """All that were started, in the order of their start."""
        return [*(server for machine in self.machines for server in machine.servers), *self._own]

    def memory_bytes(self) -> int:
        """What the cluster's processes use, its pods included."""
        return self.place.cgroup.memory_bytes()

    def describe(self) -> list[tuple[str, str]]:
        """What a person wants to see when something went wrong: titles and texts."""
        found = self._logs()
        for what in (["get", "nodes,pods", "--output=wide"], ["events"]):
            try:
                shown = self.kubectl(*what, "--all-namespaces", timeout=10)
            except (ClusterError, subprocess.TimeoutExpired) as error:
                shown = str(error)
            found.append((f"kubectl {what[0]}", "\n".join(shown.splitlines()[-60:])))
        return found

    # --- what tests do with it --------------------------------------------------------------------

    def kubectl(self, *arguments: str, text: str | None = None, timeout: float = 60.0) -> str:
        """What kubectl prints; `text` is its standard input."""
        kubectl = [str(self.programs.path("kubectl")), f"--kubeconfig={self.kubeconfig}"]
        cache = f"--cache-dir={self.folder / 'kubectl'}"
        return run([*kubectl, cache, *arguments], text=text, timeout=timeout * BUSY)

    def apply(self, *objects: Object) -> None:
        """Make these objects, or change them to be so."""
        everything = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "--filename=-", text=json.dumps(everything))

    def wait_for_pod(self, name: str, namespace: str, phase: str, seconds: float = 60.0) -> None:
        """Return when the pod is in that phase; fail at once when it has ended in another."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        ended = {"Succeeded", "Failed"} - {phase}

        def so() -> bool:
            found = self.api.get(path)["status"]
            if found["phase"] in ended:
                raise ClusterError(f"pod {namespace}/{name} ended: {json.dumps(found)}")
            return bool(found["phase"] == phase)

        self.wait_until(so, seconds, f"pod {namespace}/{name} is {phase}")

    def create_namespace(self, name: str) -> None:
        """Make a namespace, and return when pods in it find their service account."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.wait_until(lambda: self._has_account(name), 30, f"namespace {name} has an account")

    def load(self, image: Image) -> None:
        """Have the image on every node."""
        for node in self.nodes:
            node.load(image)

    def configure_scheduler(self, changes: Mapping[str, Any], *flags: str) -> None:
        """Restart kube-scheduler with this configuration over what it must have, and flags."""
        self.control_plane.configure_scheduler(changes, flags)
        self.scheduler.restart()

    def server(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> Server:
        """A program of the test's own on this host that ends with the cluster; not started yet.

        The cluster reaches it at `host_address`. On a node: `cluster.node.machine.server(...)`.
        """
        log = self.folder / "logs" / f"{name}.log"
        server = Server(name, command, log, self.place.cgroup.child("servers"), dict(env or {}))
        self._own.append(server)
        return server

    # --- how it starts ----------------------------------------------------------------------------

    def _start_noting_logs(self) -> None:
        try:
            self._start()
        except Exception as error:
            for title, text in self._logs():
                error.add_note(f"{title}:\n{text}")
            raise

    def _start(self) -> None:
        """Each server as soon as what it needs is there; images are loaded meanwhile."""
        self._make_network()
        servers = self.place.cgroup.child("servers")
        servers.create()
        for index, name in enumerate(self._names):
            self.machines.append(Machine(self.place, index, name, servers))
            self.machines[-1].start()
        self._join_pods()
        self.control_plane = ControlPlane(
            self.machines[0], self.programs, self._names, self._api_flags
        )
        self.control_plane.configure_scheduler(*self._scheduler)
        self.nodes = [
            Node(each, self.control_plane, self._kubelet, self._debian_runtime)
            for each in self.machines
        ]
        self.etcd.start()
        self.apiserver.start()
        for node in self.nodes:
            node.containerd.start()
        for node in self.nodes:
            node.containerd.wait_ready()
        self.load(busybox())
        self.apiserver.wait_ready()
        self.control_plane.controllers.start()
        self.scheduler.start()
        for node in self.nodes:
            node.kubelet.start()
            node.proxy.start()
        for server in self.servers():
            server.wait_ready()
        self.wait_ready()

    def _make_network(self) -> None:
        bridge = self.place.bridge
        run(["ip", "link", "add", bridge, "type", "bridge"])
        run(["ip", "address", "add", f"{self.host_address}/24", "dev", bridge])
        run(["ip", "link", "set", bridge, "up"])

    def _join_pods(self) -> None:
        """Let the pods of each machine reach those of the others."""
        for here, there in itertools.permutations(self.machines, 2):
            here.run("ip", "route", "add", pod_network(there), "via", there.address)

    def _start_reaper(self) -> subprocess.Popen[bytes]:
        place = self.place
        arguments = [str(each) for each in (place.number, place.folder, place.lock)]
        return subprocess.Popen(
            [sys.executable, "-m", "cluster.reaper", *arguments],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            pass_fds=[place.lock],
            start_new_session=True,
        )

    def _logs(self) -> list[tuple[str, str]]:
        return [(f"log of {each.name}", each.log_end()) for each in self.servers()]

    def _reap(self) -> None:
        for server in self.servers():
            server.kill()

    def _is_ready(self) -> bool:
        if not self._has_account("default"):
            return False
        items = self.api.get("/api/v1/nodes")["items"]
        nodes = {each["metadata"]["name"]: each for each in items}
        return all(name in nodes and _is_ready(nodes[name]) for name in self._names)

    def _has_account(self, namespace: str) -> bool:
        try:
            self.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except (ApiError, OSError):
            return False
        return True


def _is_ready(node: Object) -> bool:
    conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
    taints = [each["key"] for each in node["spec"].get("taints", ())]
    found_well = not any(key.startswith("node.kubernetes.io/") for key in taints)
    return conditions.get("Ready") == "True" and found_well
