"""etcd, the API server, the controllers and the scheduler, on the cluster's first machine.

Users are told apart by tokens: the person and the tests (`admin`, in system:masters), each server
as Kubernetes' own roles name it. The API server proves itself, and itself to kubelets, by
certificates of the cluster's own authority.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.api import Api
from cluster.certificates import Authority
from cluster.machine import Machine
from cluster.programs import Programs
from cluster.registry import Place
from cluster.servers import Server, answers

_FOLDER = "control-plane"
API_PORT = 6443
_CONTROLLERS_PORT = 10257
_SCHEDULER_PORT = 10259
SERVICES = "10.96.0.0/16"
_FIRST_SERVICE = "10.96.0.1"  # the API server's own, by Kubernetes' convention

_USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}


@dataclass
class ControlPlane:
    """The servers of a cluster's control plane."""

    machine: Machine
    programs: Programs
    node_names: Sequence[str]
    api_flags: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Make its keys, and say how each server is started."""
        self.folder = self.machine.place.folder / _FOLDER
        self.authority = Authority(self.folder / "pki")
        self._tokens = {name: secrets.token_hex(16) for name in (*_USERS, *self.node_names)}
        self.folder.mkdir()
        self.authority.create()
        self.folder.joinpath("tokens.csv").write_text(self._token_file(), "ascii")
        for user in self._tokens:
            self._write_kubeconfig(user)
        self.api = Api(
            self.machine.address, API_PORT, self.authority.certificate, self._tokens["admin"]
        )
        self.etcd = self._etcd()
        self.apiserver = self._apiserver()
        self.apiserver.ready = self.api.is_ready
        self.apiserver.patience = 1.0  # it would wait a minute for those who watch
        self.controllers = self._controllers()
        self.controllers.ready = lambda: self._is_well(_CONTROLLERS_PORT)
        self.scheduler = self.machine.server("kube-scheduler")
        self.scheduler.ready = lambda: self._is_well(_SCHEDULER_PORT)

    @property
    def url(self) -> str:
        return f"https://{self.machine.address}:{API_PORT}"

    def kubeconfig(self, user: str) -> Path:
        """A kubeconfig of that user: `admin`, or a server's or a node's name."""
        return kubeconfig_in(self.machine.place, user)

    def configure_scheduler(self, changes: Mapping[str, Any], flags: Sequence[str]) -> None:
        """What kube-scheduler is started with from now on: `changes` lie over what it must have."""
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **changes,
        }
        connection = {"kubeconfig": str(self.kubeconfig("scheduler"))}
        config["clientConnection"] = connection | dict(changes.get("clientConnection", {}))
        file = write_json(self.folder / "scheduler.json", config)
        program = str(self.programs.path("kube-scheduler"))
        self.scheduler.command = self.machine.command(program, f"--config={file}", *flags)

    def _write_kubeconfig(self, user: str) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.authority.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        write_json(self.kubeconfig(user), config)

    def _is_well(self, port: int) -> bool:
        return answers(f"https://{self.machine.address}:{port}/healthz")

    def _token_file(self) -> str:
        lines = [
            f'{self._tokens[name]},{user},{name},"{group}"'
            for name, (user, group) in _USERS.items()
        ]
        lines += [
            f'{self._tokens[name]},system:node:{name},{name},"system:nodes"'
            for name in self.node_names
        ]
        return "\n".join(lines) + "\n"

    def _etcd(self) -> Server:
        return self.machine.server(
            "etcd",
            str(self.programs.path("etcd")),
            "--data-dir=/var/lib/etcd/data",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--quota-backend-bytes=4294967296",
            "--unsafe-no-fsync",
        )

    def _apiserver(self) -> Server:
        address = self.machine.address
        names = [f"IP:{each}" for each in (address, "127.0.0.1", _FIRST_SERVICE)]
        names += ["DNS:localhost", "DNS:kubernetes.default.svc"]
        own = self.authority.sign("apiserver", "/CN=kube-apiserver", names)
        client = self.authority.sign("kubelet-client", "/O=system:masters/CN=kube-apiserver")
        accounts = self.authority.key_pair("accounts")
        return self.machine.server(
            "kube-apiserver",
            str(self.programs.path("kube-apiserver")),
            f"--advertise-address={address}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={own.certificate}",
            f"--tls-private-key-file={own.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={accounts.key}",
            f"--service-account-key-file={accounts.certificate}",
            f"--kubelet-client-certificate={client.certificate}",
            f"--kubelet-client-key={client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            *self.api_flags,
        )

    def _controllers(self) -> Server:
        return self.machine.server(
            "kube-controller-manager",
            str(self.programs.path("kube-controller-manager")),
            f"--kubeconfig={self.kubeconfig('controllers')}",
            f"--service-account-private-key-file={self.authority.folder / 'accounts.key'}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )


def kubeconfig_in(place: Place, user: str = "admin") -> Path:
    """Where the cluster at that place has the kubeconfig of that user."""
    return place.folder / _FOLDER / f"{user}.kubeconfig"


def write_json(path: Path, value: object) -> Path:
    """Kubernetes reads JSON wherever it reads YAML."""
    path.write_text(json.dumps(value, indent=2), "utf-8")
    return path
