"""Real container runtimes, each with folders of its own: containerd by `ctr`, and Podman.

Both read CDI specs in /var/run/cdi.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from cluster.images import Image
from cluster.programs import find_runtime
from support import wait_until

# A sandboxed root may neither raise limits nor protect a process from the kernel's OOM killer.
_PODMAN_SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
oom_score_adj = 0
"""
_CONTAINERD = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [
    "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
]
[grpc]
address = "{folder}/socket"
"""


class ContainerRuntime(ABC):
    """Runs containers of one image. Names of containers are the caller's."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.folder = folder
        self.image = image.name
        self.names: list[str] = []
        folder.mkdir(parents=True)
        self.open()
        image.write(folder / "image.tar")
        done = self._call([*self.client, *self.load])
        assert done.returncode == 0, done.stderr

    client: Sequence[str]
    load: Sequence[str]

    @abstractmethod
    def open(self) -> None:
        """Start what it needs, and set `client` and `load`."""

    @abstractmethod
    def command(self, name: str, device: str, words: Sequence[str], *, detach: bool) -> list[str]:
        """The words that run a container."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """Kill a container with SIGKILL."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a container, running or not."""

    @abstractmethod
    def exec_command(self, name: str, words: Sequence[str]) -> list[str]:
        """The words that run one more program in a container."""

    def run(self, name: str, device: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a container to its end."""
        return self._call(self.command(name, device, words, detach=False))

    def start(self, name: str, device: str, *words: str) -> None:
        """Start a container that goes on."""
        self.names.append(name)
        done = self._call(self.command(name, device, words, detach=True))
        assert done.returncode == 0, done.stderr

    def execute(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one more program in a container to its end."""
        return self._call(self.exec_command(name, words))

    def close(self) -> None:
        for name in self.names:
            self.remove(name)

    def _call(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env={**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


class Containerd(ContainerRuntime):
    """containerd 2.x without Kubernetes' part, and its own client."""

    def open(self) -> None:
        programs = find_runtime()
        config = self.folder / "config.toml"
        config.write_text(_CONTAINERD.format(folder=self.folder))
        self._log = (self.folder / "log").open("w")
        self._server = subprocess.Popen(
            [str(programs.path("containerd")), "--config", str(config)],
            env={**os.environ, "PATH": f"{programs.folder}:{os.environ['PATH']}"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.client = [str(programs.path("ctr")), "--address", f"{self.folder}/socket"]
        self.load = ["images", "import", str(self.folder / "image.tar")]
        wait_until(lambda: self._call([*self.client, "version"]).returncode == 0, 60)

    def command(self, name: str, device: str, words: Sequence[str], *, detach: bool) -> list[str]:
        how = ["--detach"] if detach else ["--rm"]
        return [*self.client, "run", *how, "--device", device, self.image, name, *words]

    def exec_command(self, name: str, words: Sequence[str]) -> list[str]:
        return [*self.client, "tasks", "exec", "--exec-id", "one", name, *words]

    def kill(self, name: str) -> None:
        done = self._call([*self.client, "tasks", "kill", "--signal", "SIGKILL", name])
        assert done.returncode == 0, done.stderr

    def remove(self, name: str) -> None:
        self._call([*self.client, "tasks", "delete", "--force", name])
        self._call([*self.client, "containers", "delete", name])

    def close(self) -> None:
        super().close()
        self._server.terminate()
        self._server.wait(30)
        self._log.close()


class Podman(ContainerRuntime):
    """Debian's Podman, with Debian's runc."""

    def open(self) -> None:
        (self.folder / "containers.conf").write_text(_PODMAN_SETTINGS)
        self.client = [
            *("podman", f"--root={self.folder}/root", f"--runroot={self.folder}/run"),
            *(f"--tmpdir={self.folder}/tmp", "--cgroup-manager=cgroupfs"),
            *("--events-backend=file", "--storage-driver=vfs", "--runtime=runc"),
        ]
        self.load = ["load", "--quiet", "--input", str(self.folder / "image.tar")]

    def command(self, name: str, device: str, words: Sequence[str], *, detach: bool) -> list[str]:
        how = ["--detach"] if detach else ["--rm"]
        where = ["--name", name, "--network", "none", "--device", device]
        return [*self.client, "run", *how, *where, self.image, *words]

    def exec_command(self, name: str, words: Sequence[str]) -> list[str]:
        return [*self.client, "exec", name, *words]

    def kill(self, name: str) -> None:
        done = self._call([*self.client, "kill", "--signal", "KILL", name])
        assert done.returncode == 0, done.stderr

    def remove(self, name: str) -> None:
        self._call([*self.client, "rm", "--force", "--time", "0", name])


def missing(kind: type[ContainerRuntime]) -> str:
    """Why a runtime cannot be used here; empty: it can."""
    if kind is Podman:
        return "" if shutil.which("podman") and shutil.which("runc") else "podman is not installed"
    try:
        found = find_runtime()
    except Exception as error:  # noqa: BLE001 - whatever says how to get it
        return str(error)
    return "" if found.path("containerd").exists() else "containerd is not built: make kubernetes"
