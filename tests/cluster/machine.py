"""A machine of its own inside this one, by namespaces: what a node of a cluster stands on.

It has its own name, network, processes' mounts, and its own /etc, /opt, /run and /var: whatever is
written there is seen by this machine's programs alone and goes with it. So a node's programs have
all their files at the usual places (/var/lib/kubelet, /run/containerd), and manifests work on it as
they are shipped. Everything else is the host's: its kernel, /dev, /usr, this repository.
The kernel's settings that a kubelet would change look to it as if it had changed them already.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.cgroups import Cgroup
from cluster.registry import ClusterError, Place
from cluster.servers import PATH, Server

# Each is an overlay on the host's folder of that name.
_OVERLAID = ("/etc", "/opt", "/var")
# Plain folders, so that the host sees what is in them (`Machine.path`).
_OWN = ("/run", "/var/lib/kubelet", "/var/log/pods")
# Fast, and gone at once: images and containers' files, and the API server's data.
_IN_MEMORY = ("/var/lib/containerd", "/var/lib/etcd")
_SETTINGS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}


@dataclass
class Machine:
    """Machine `index` of the cluster at `place`."""

    place: Place
    index: int
    name: str
    cgroup: Cgroup
    servers: list[Server] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.place.folder / self.name

    @property
    def address(self) -> str:
        return self.place.address(self.index)

    def path(self, inside: str) -> Path:
        """Where the host finds a file of this machine: /run/..., /var/lib/kubelet/..., ..."""
        for own in _OWN:
            if Path(inside).is_relative_to(own):
                return self._own(own) / Path(inside).relative_to(own)
        raise ValueError(f"{inside}: the host has no view of it; only of {', '.join(_OWN)}")

    def start(self) -> None:
        """Make its namespaces, held by a process that sleeps, and join it to the network."""
        script = self.folder / "machine.sh"
        script.parent.mkdir()
        script.write_text(self._setup(), "utf-8")
        ready = self._own("/run") / "machine-ready"
        own = ["unshare", "--mount", "--net", "--uts", "--propagation=slave"]
        holder = self._server("machine", [*own, "sh", str(script)])
        holder.ready = ready.exists
        holder.start()
        holder.wait_ready()
        self._join_network()

    def command(self, *command: str) -> list[str]:
        """The command that runs a command on this machine."""
        return ["nsenter", f"--target={self._holder}", "--mount", "--net", "--uts", *command]

    def run(self, *command: str, timeout: float = 60.0) -> str:
        """What a command on this machine prints."""
        return run(self.command(*command), timeout=timeout)

    def server(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> Server:
        """A server on this machine; it is not started yet."""
        server = self._server(name, self.command(*command))
        server.env = dict(env or {})
        return server

    @property
    def _holder(self) -> int:
        assert self.servers, f"{self.name} was not started"
        return self.servers[0].pid

    def _server(self, name: str, command: Sequence[str]) -> Server:
        server = Server(name, command, self.folder / "logs" / f"{name}.log", self.cgroup)
        self.servers.append(server)
        return server

    def _own(self, inside: str) -> Path:
        return self.folder / "own" / inside.strip("/").replace("/", "-")

    def _setup(self) -> str:
        lines = ["set -eu"]
        for target in filter(lambda path: Path(path).is_dir(), _OVERLAID):
            upper, work = (self.folder / part / target.strip("/") for part in ("upper", "work"))
            options = f"lowerdir={target},upperdir={upper},workdir={work}"
            lines += [f"mkdir -p {upper} {work}", f"mount -t overlay -o {options} node {target}"]
        for target in _OWN:
            lines += [f"mkdir -p {self._own(target)} {target}"]
            lines += [f"mount --bind {self._own(target)} {target}"]
        for target in _IN_MEMORY:
            lines += [f"mkdir -p {target}", f"mount -t tmpfs node {target}"]
        for setting, value in _SETTINGS.items():
            file = self.folder / "settings" / setting
            lines += [f"mkdir -p {file.parent}", f"echo {value} > {file}"]
            lines += [f"mount --bind {file} /proc/sys/{setting}"]
        return "\n".join(
            [
                *lines,
                "mount --make-rshared /",
                f"hostname {self.name}",
                f"printf '127.0.0.1 localhost\\n{self.address} {self.name}\\n' > /etc/hosts",
                "ip link set lo up",
                "echo 1 > /proc/sys/net/ipv4/ip_forward",
                "touch /run/machine-ready",
                "exec sleep infinity",
            ]
        )

    def _join_network(self) -> None:
        outside = f"{self.place.bridge}-{self.index}"
        inside = ["peer", "name", "eth0", "netns", str(self._holder)]
        run(["ip", "link", "add", outside, "type", "veth", *inside])
        run(["ip", "link", "set", outside, "master", self.place.bridge, "up"])
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", self.place.host_address)


def run(command: Sequence[str], *, text: str | None = None, timeout: float = 60.0) -> str:
    """What a command prints; what it complains about when it fails."""
    done = subprocess.run(
        command,
        input=text,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
