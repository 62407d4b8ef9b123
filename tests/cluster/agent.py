"""The node's agent, as a program on a node of the cluster, with simulated GPUs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliquot.kubernetes.api.requests import quantity
from aliquot.model import Grant
from aliquot.model.errors import ArbiterError
from aliquot.slices import control
from cluster.cluster import Cluster
from cluster.servers import Server, answers
from conftest import aliquot_command

CRD = Path(__file__).parents[2] / "deploy" / "crds" / "gpunode.yaml"
PORT = 9440
STATE = "/run/aliquot"
CDI = "/run/cdi"


class Agent:
    """`aliquot node` on the first node."""

    def __init__(self, cluster: Cluster, shape: str, *options: str) -> None:
        self._cluster = cluster
        self.node = cluster.node
        cluster.kubectl("apply", f"--filename={CRD}")
        cluster.kubectl("wait", "--for=condition=Established", "crd/gpunodes.aliquot.io")
        self.server: Server = self.node.machine.server(
            "agent",
            *(aliquot_command(), "node", "--node-name", self.node.name, "--simulate", shape),
            *("--kubeconfig", str(cluster.kubeconfig), "--port", str(PORT)),
            *options,
        )
        self.server.ready = lambda: answers(f"http://{self.node.address}:{PORT}/readyz")

    def start(self) -> None:
        """Start it, and return when it serves pods."""
        self.server.start()
        self.server.wait_ready()

    def close(self) -> None:
        """End it and the arbiter; the node is as if it had never been."""
        self.server.stop()
        self.end_arbiter()
        self.node.machine.run("rm", "-rf", STATE, "/var/lib/aliquot", CDI)
        self._cluster.kubectl("delete", "gpunodes", "--all")

    def end_arbiter(self) -> None:
        """End the arbiter, if there is one."""
        pid = self.state / "arbiter.pid"
        if pid.exists():
            os.kill(int(pid.read_text("ascii")), signal.SIGTERM)
            self._cluster.wait_until(lambda: not pid.exists(), 20, "the arbiter ends")

    def kill_container(self, namespace: str, pod: str, container: str = "main") -> None:
        self.node.kill_container(namespace, pod, container)

    def set_health(self, *lines: str) -> None:
        """Change the health of simulated GPUs: `INDEX lost` and the like."""
        with (self.state / "machine" / "health").open("a") as health:
            health.write("".join(f"{line}\n" for line in lines))

    def install_driver(self, library: str, module: str) -> None:
        """Replace the simulated driver: its libraries, and its kernel module."""
        new = self.state / "machine" / "driver.new"
        new.write_text(f"library {library}\nmodule {module}\n")
        new.rename(new.with_suffix(""))

    # --- observed state ---------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        """The arbiter's directory, as the host sees it."""
        return self.node.machine.path(STATE)

    def until(self, so: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        self._cluster.wait_until(so, seconds, what, every=0.2)

    def allocatable(self) -> dict[str, int]:
        """By short names, as the node's object has it."""
        node = json.loads(self._cluster.kubectl("get", "node", self.node.name, "-o", "json"))
        return {
            name.partition("/")[2]: int(quantity(count))
            for name, count in node["status"]["allocatable"].items()
            if name.startswith("aliquot.io/")
        }

    def until_counts(self, **wanted: int) -> None:
        """Until the node's object says so; the kubelet writes it every second."""
        names = {name.replace("_", "-"): count for name, count in wanted.items()}
        self.until(lambda: names.items() <= self.allocatable().items(), f"{names} allocatable")

    def gpunode(self) -> list[dict[str, Any]]:
        """Its GPUs; none before the agent has first told of them."""
        gpus: list[dict[str, Any]] = self._status().get("gpus", [])
        return gpus

    def injection(self) -> str:
        """How containers get their GPUs, as its GPUNode says."""
        return str(self._status().get("injection", ""))

    def driver_version(self) -> str | None:
        """The driver's version, as the GPUNode object has it."""
        return self._status().get("driverVersion")

    def object(self, path: str) -> dict[str, Any]:
        """The object of the node's name among those of a path; empty if there is none."""
        found = self._cluster.api.get(path)["items"]
        by_name: dict[str, Any] = {one["metadata"]["name"]: one for one in found}
        return dict(by_name.get(self.node.name, {}))

    def _status(self) -> dict[str, Any]:
        return dict(self.object("/apis/aliquot.io/v1alpha1/gpunodes").get("status", {}))

    def holders(self) -> dict[str, list[int]]:
        """By pod: its GPUs, by index."""
        found: dict[str, list[int]] = {}
        for gpu in self.gpunode():
            for part in gpu.get("grants", ()):
                found.setdefault(part["pod"], []).append(gpu["index"])
        return found

    def grants(self) -> dict[str, Grant]:
        return {grant.name: grant for grant in control.status(self.state).grants}

    def arbiter(self) -> tuple[int, int] | None:
        """The ids of its two processes; None: it does not answer."""
        try:
            seen = control.status(self.state)
        except ArbiterError:
            return None
        return seen.pid, int(seen.answer["serving_pid"])

    def arbiter_driver(self) -> str | None:
        """The version of the driver that the arbiter uses; None: it does not answer."""
        try:
            return control.status(self.state).driver_version
        except ArbiterError:
            return None

    def events(self, namespace: str, pod: str) -> list[tuple[str, str]]:
        found = self._cluster.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        return [
            (one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == pod
        ]
