"""The node's CDI specs: files by which a container runtime knows what a named device brings along.

    aliquot.io-driver.json        the device aliquot.io/driver=all: what all containers get
    aliquot.io-grant-NAME.json    the device aliquot.io/grant=NAME: a grant and its GPUs

A container with a grant has these two devices, so the kubelet is told two names, and a grant's file
is small: runtimes read all files again after every change in their folder.

The kubelet tells the same names whenever the container starts again, also after a reboot, which
empties the folder. So there is a file for every grant whose container was told of it, before the
kubelet can start the container. Each file appears whole, and a grant's file goes with the grant.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from aliquot.model.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from aliquot.kubernetes.node.grants.container_edits import BindMount, ContainerEdits

VERSION = "0.5.0"  # of the format: the oldest that has all that is used here
DRIVER_KIND, GRANT_KIND = "aliquot.io/driver", "aliquot.io/grant"
DRIVER_DEVICE = "all"

_DRIVER_FILE = "aliquot.io-driver.json"
_GRANT_FILE = re.compile(r"aliquot\.io-grant-(.+)\.json")
_NEW = ".aliquot.io.new"  # runtimes read *.json and *.yaml alone
_MOUNT_OPTIONS = ("rbind", "rprivate", "nosuid", "nodev")


class CdiSpecs:
    """The specs in one folder. StateError if one cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def devices(self, grant: str) -> tuple[str, ...]:
        """The names of the devices that the container of a grant gets."""
        return f"{DRIVER_KIND}={DRIVER_DEVICE}", f"{GRANT_KIND}={grant}"

    def write_driver(self, edits: ContainerEdits) -> None:
        """Have the device of what all containers get."""
        self._write(_DRIVER_FILE, DRIVER_KIND, DRIVER_DEVICE, edits)

    def write_grant(self, name: str, edits: ContainerEdits) -> None:
        """Have the device of a grant."""
        self._write(_grant_file(name), GRANT_KIND, name, edits)

    def has(self, name: str) -> bool:
        """Whether there is a device of a grant."""
        return (self.folder / _grant_file(name)).exists()

    def remove(self, name: str) -> None:
        """Have no device of a grant: a container that was told of it cannot start."""
        with suppress(FileNotFoundError, NotADirectoryError):
            (self.folder / _grant_file(name)).unlink()

    def keep_only(self, grants: Collection[str]) -> None:
        """Remove the devices of all other grants, and what an agent that was killed left."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - its names are all that it takes
                match = _GRANT_FILE.fullmatch(name)
                if (match and match[1] not in grants) or name.startswith(_NEW):
                    (self.folder / name).unlink(missing_ok=True)

    def _write(self, file: str, kind: str, device: str, edits: ContainerEdits) -> None:
        """Replace a file if it is not as it should be."""
        data = msgspec.json.format(msgspec.json.encode(_spec(kind, device, edits))) + b"\n"
        path = self.folder / file
        try:
            if _read(path) == data:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            # In the same folder: some runtimes notice a new file only by what was renamed there.
            new = self.folder / f"{_NEW}-{file.removesuffix('.json')}"
            new.write_bytes(data)
            new.chmod(0o644)
            new.rename(path)
        except OSError as error:
            raise StateError(
                f"the CDI spec {path} cannot be written: {error.strerror}",
                f"Make the folder {self.folder} writable, or run the agent with --cdi never.",
            ) from error


def _grant_file(name: str) -> str:
    return f"aliquot.io-grant-{name}.json"


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
    }
    return {
        "cdiVersion": VERSION,
        "kind": kind,
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
