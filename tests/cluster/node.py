"""A node: containerd, a kubelet and kube-proxy on a machine of their own.

Whatever a kubelet or a container runtime has at a usual place it has there too, as the machine's
programs see it: /var/lib/kubelet with its device-plugins folder, /run/containerd/containerd.sock.
`Machine.path` says where the host sees those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.control_plane import ControlPlane, write_json
from cluster.images import BUSYBOX, Image
from cluster.machine import Machine
from cluster.programs import find_runtime
from cluster.registry import ClusterError
from cluster.servers import PATH, Server, answers

CNI_PROGRAMS = "/usr/lib/cni"
_SOCKET = "/run/containerd/containerd.sock"
_HEALTH_PORT = 10248
_PROXY_HEALTH_PORT = 10256
_PODS = "10.244.0.0/16"

# All versions of containerd from 1.6 on read this one.
# A root in a sandbox may not make a process less likely to be killed than itself.
_CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{BUSYBOX}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PROGRAMS}"
"""


@dataclass
class Node:
    """A node by its machine, whose name is the node's.

    Its containerd and runc are those that were built; or Debian's, whose containerd has no CDI.
    """

    machine: Machine
    control_plane: ControlPlane
    kubelet_config: Mapping[str, Any] = field(default_factory=dict)
    debian_runtime: bool = False

    def __post_init__(self) -> None:
        self.containerd = self._containerd()
        self.kubelet = self._kubelet()
        self.proxy = self._proxy()

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def address(self) -> str:
        return self.machine.address

    @property
    def device_plugins(self) -> Path:
        """The kubelet's device-plugins folder, as the host sees it."""
        return self.machine.path("/var/lib/kubelet/device-plugins")

    def load(self, image: Image) -> None:
        """Have the image on this node, so that pods here can run it (`imagePullPolicy: Never`)."""
        archive = self.machine.folder / "image.tar"
        image.write(archive)
        self.ctr("images", "import", str(archive), timeout=300)
        archive.unlink()

    def ctr(self, *arguments: str, timeout: float = 60) -> str:
        """What containerd's own client prints, in the namespace of Kubernetes' containers."""
        return self.machine.run(
            self._runtime("ctr"), "--namespace=k8s.io", *arguments, timeout=timeout
        )

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """Kill a pod's container from outside it, as a crash would; the kubelet starts it again."""
        wanted = {"pod.namespace": namespace, "pod.name": pod, "container.name": container}
        labels = ",".join(f'labels."io.kubernetes.{key}"=={value}' for key, value in wanted.items())
        running = {line.split()[0] for line in self.ctr("tasks", "list").splitlines()[1:]}
        [one] = running & set(self.ctr("containers", "list", "--quiet", labels).split())
        self.ctr("tasks", "kill", "--signal=SIGKILL", one)

    def _containerd(self) -> Server:
        config = self.machine.folder / "containerd.toml"
        config.write_text(_CONTAINERD, "utf-8")
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": True,
                    "ipam": {
                        "type": "host-local",
                        "subnet": pod_network(self.machine),
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        file = write_json(self.machine.folder / "pods.conflist", network)
        # The first by name counts, and the machine may have others: Podman brings one.
        self.machine.run("install", "-D", str(file), "/etc/cni/net.d/00-pods.conflist")
        # It finds its shim and runc there.
        path = PATH if self.debian_runtime else f"{find_runtime().folder}:{PATH}"
        server = self.machine.server(
            "containerd", self._runtime("containerd"), f"--config={config}", env={"PATH": path}
        )
        server.ready = self._containerd_serves
        return server

    def _runtime(self, program: str) -> str:
        return program if self.debian_runtime else str(find_runtime().path(program))

    def _kubelet(self) -> Server:
        cgroup = self.machine.place.cgroup.child(self.name)
        cgroup.create()
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.control_plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup.name}",
            "clusterDNS": ["10.96.0.10"],
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "healthzBindAddress": self.address,
            "healthzPort": _HEALTH_PORT,
            "imageGCHighThresholdPercent": 100,
            "maxPods": 250,
            "nodeStatusUpdateFrequency": "1s",  # 10 s by default: tests would wait most of the time
            "oomScoreAdj": 0,
            "resolvConf": "",
            **self.kubelet_config,
        }
        server = self.machine.server(
            "kubelet",
            str(self.control_plane.programs.path("kubelet")),
            f"--config={write_json(self.machine.folder / 'kubelet.json', config)}",
            f"--kubeconfig={self.control_plane.kubeconfig(self.name)}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )
        server.ready = lambda: answers(f"http://{self.address}:{_HEALTH_PORT}/healthz")
        return server

    def _proxy(self) -> Server:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.control_plane.kubeconfig("proxy"))},
            "clusterCIDR": _PODS,
            "conntrack": {"maxPerCore": 0},
            "healthzBindAddress": f"{self.address}:{_PROXY_HEALTH_PORT}",
            "hostnameOverride": self.name,
            "mode": "iptables",
            "oomScoreAdj": 0,
        }
        server = self.machine.server(
            "kube-proxy",
            str(self.control_plane.programs.path("kube-proxy")),
            f"--config={write_json(self.machine.folder / 'proxy.json', config)}",
        )
        server.ready = lambda: answers(f"http://{self.address}:{_PROXY_HEALTH_PORT}/healthz")
        return server

    def _containerd_serves(self) -> bool:
        try:
            self.ctr("version")
        except ClusterError:
            return False
        return True


def pod_network(machine: Machine) -> str:
    """The addresses of the pods on that machine."""
    return f"10.244.{machine.index}.0/24"
