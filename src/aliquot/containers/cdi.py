"""CDI specs: files by which a container runtime knows what a named device brings along.

    aliquot.io-KIND-DEVICE.json    the device aliquot.io/KIND=DEVICE
    aliquot.io-driver.json         the device aliquot.io/driver=all

Each file appears whole, and is not touched if it is right: runtimes read all files again after
every change in their folder.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.model.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Collection

    from aliquot.containers.container_edits import BindMount, ContainerEdits, Hook

VERSION = "0.5.0"  # of the format: the oldest that has all that is used here
VENDOR = "aliquot.io"
FOLDER = Path("/var/run/cdi")  # Docker, Podman, nerdctl and containerd read it by default

_SINGLE = {("driver", "all")}  # devices that are the only ones of their kind
_NEW = ".aliquot.io.new"  # runtimes read *.json and *.yaml alone
_MOUNT_OPTIONS = ("rbind", "rprivate", "nosuid", "nodev")


def device_name(kind: str, device: str) -> str:
    """The full name of a device."""
    return f"{VENDOR}/{kind}={device}"


class CdiSpecs:
    """The specs in one folder. StateError if one cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, kind: str, device: str) -> Path:
        """The file of a device."""
        name = kind if (kind, device) in _SINGLE else f"{kind}-{device}"
        return self.folder / f"{VENDOR}-{name}.json"

    def has(self, kind: str, device: str) -> bool:
        """Whether there is such a device."""
        return self.path(kind, device).exists()

    def write(self, kind: str, device: str, edits: ContainerEdits) -> None:
        """Have this device. A file that is not as it should be is replaced."""
        data = (json.dumps(_spec(kind, device, edits), indent=2) + "\n").encode()
        path = self.path(kind, device)
        try:
            if _read(path) == data:
                return
            if not self.folder.exists():
                self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                self.folder.chmod(0o755)  # whatever the umask: what it has in it root runs
            # In the same folder: some runtimes notice a new file only by what was renamed there.
            new = self.folder / f"{_NEW}-{path.stem}"
            new.write_bytes(data)
            new.chmod(0o644)
            new.rename(path)
        except OSError as error:
            raise StateError(
                f"the CDI spec {path} cannot be written: {error.strerror}",
                f"Make the folder {self.folder} writable, or name another with --cdi-dir.",
            ) from error

    def remove(self, kind: str, device: str) -> None:
        """Have no such device: a container that was told of it cannot start."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self.path(kind, device).unlink()

    def keep_only(self, kind: str, devices: Collection[str]) -> None:
        """Remove all other devices of a kind, and what a process that was killed left."""
        wanted = {self.path(kind, device).name for device in devices}
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - its names are all that it takes
                ours = name.startswith(f"{VENDOR}-{kind}-") and name.endswith(".json")
                if (ours and name not in wanted) or name.startswith(_NEW):
                    (self.folder / name).unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _spec(kind: str, device: str, edits: ContainerEdits) -> dict[str, object]:
    changes = {
        "env": [f"{name}={value}" for name, value in sorted(edits.environment.items())],
        "deviceNodes": [{"path": str(path), "permissions": "rw"} for path in edits.devices],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [_hook(hook) for hook in edits.hooks],
    }
    return {
        "cdiVersion": VERSION,
        "kind": f"{VENDOR}/{kind}",
        "devices": [
            {
                "name": device,
                "containerEdits": {name: value for name, value in changes.items() if value},
            }
        ],
    }


def _mount(mount: BindMount) -> dict[str, object]:
    return {
        "hostPath": str(mount.source),
        "containerPath": str(mount.target),
        "options": [*_MOUNT_OPTIONS, "ro" if mount.read_only else "rw"],
    }


def _hook(hook: Hook) -> dict[str, object]:
    return {"hookName": hook.name, "path": str(hook.path), "args": list(hook.arguments)}
