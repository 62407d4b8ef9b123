"""Containers by runc alone, with the edits that the agent gives them: no kubelet, no containerd.

Mounts are passed to runc as containerd passes them: sources resolved, targets by their depth,
read-only unless said otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aliquot.containers.container_edits import BindMount, ContainerEdits
from cluster.images import Image

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SLEEP = ("/bin/sleep", "2147483647")
_CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
_NOTHING = ContainerEdits(())


@dataclass(frozen=True)
class Root:
    """An image's files, to start containers from."""

    folder: Path

    def copy(self, folder: Path) -> Root:
        """Another image of the same files, to be changed."""
        shutil.copytree(self.folder, folder, symlinks=True, copy_function=os.link)
        return Root(folder)

    def write(self, path: str, data: str | bytes, mode: int = 0o644) -> Path:
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # it may be another image's too
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        file.chmod(mode)
        return file


def unpack(image: Image, folder: Path) -> Root:
    archive = folder.with_suffix(".tar")
    image.write(archive)
    with (
        tarfile.open(archive) as outer,
        tarfile.open(fileobj=outer.extractfile("layer.tar")) as tar,
    ):
        tar.extractall(folder, filter="fully_trusted")  # noqa: S202 - it is our own
    archive.unlink()
    return Root(folder)


class Runtime:
    """runc with a state folder of its own; all its containers end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._containers: list[Container] = []

    def start(
        self,
        root: Root,
        edits_for: ContainerEdits = _NOTHING,
        *command: str,
        user: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> Container:
        """A container that runs a command, or sleeps."""
        name = f"{self._folder.name}-{len(self._containers)}"
        bundle = self._folder / name
        root = root.copy(bundle / "rootfs")
        variables = {"PATH": PATH, **(env or {}), **edits_for.environment}
        config = _config(root.folder, edits_for.mounts, command or SLEEP, user, variables)
        (bundle / "config.json").write_text(json.dumps(config))
        container = Container(self._folder / "runc", bundle, name)
        self._containers.append(container)
        return container

    def close(self) -> None:
        for container in self._containers:
            container.kill()


class Container:
    """A running container; its own command's ends are `process`."""

    def __init__(self, state: Path, bundle: Path, name: str) -> None:
        self._runc = ["runc", "--root", str(state)]
        self.name = name
        self.root = bundle / "rootfs"
        self.process = subprocess.Popen(
            [*self._runc, "run", "--bundle", str(bundle), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def has_started(self) -> bool:
        asked = subprocess.run([*self._runc, "state", self.name], capture_output=True, check=False)
        return not asked.returncode and json.loads(asked.stdout)["status"] == "running"

    def execute(
        self, *command: str, user: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One more command in it, to its end: what `kubectl exec` does."""
        return subprocess.run(
            self._exec(command, user, env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def begin(self, *command: str, user: int = 0) -> subprocess.Popen[str]:
        """One more command in it, that goes on."""
        return subprocess.Popen(
            self._exec(command, user, None),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _exec(self, command: Sequence[str], user: int, env: Mapping[str, str] | None) -> list[str]:
        settings = [word for pair in (env or {}).items() for word in ("--env", "=".join(pair))]
        return [*self._runc, "exec", "--user", f"{user}:{user}", *settings, self.name, *command]

    def kill(self) -> None:
        kill = [*self._runc, "kill", self.name, "KILL"]
        subprocess.run(kill, capture_output=True, check=False)
        self.process.communicate(timeout=30)
        delete = [*self._runc, "delete", "--force", self.name]
        subprocess.run(delete, capture_output=True, check=False)


def _config(
    root: Path,
    mounts: Sequence[BindMount],
    command: Sequence[str],
    user: int,
    variables: Mapping[str, str],
) -> dict[str, Any]:
    kinds = ("bounding", "effective", "permitted", "inheritable")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": list(command),
            "env": [f"{key}={value}" for key, value in variables.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(kinds, _CAPABILITIES),
        },
        "root": {"path": str(root)},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            *_binds(mounts),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
    }


def _binds(mounts: Sequence[BindMount]) -> Iterator[dict[str, Any]]:
    for mount in sorted(mounts, key=lambda mount: len(mount.target.parts)):
        yield {
            "destination": str(mount.target),
            "type": "bind",
            "source": str(mount.source.resolve()),
            "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
        }
