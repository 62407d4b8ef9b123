"""Which clusters there are on this machine, so that two never meet and a dead one leaves nothing.

Each cluster has a number, and all it takes from the machine is named after it: the control group
`aliquot-N`, the bridge `aliquotN` with the network 198.18.N.0/24 (set aside for tests of networks,
RFC 2544), and a folder in /tmp. Its file here is locked as long as its owner or its reaper lives:
a file without a lock belongs to a dead run, whose leftovers are removed by whoever comes next,
unless it says that the cluster is to be kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.cgroups import Cgroup

REGISTRY = Path("/run/aliquot-clusters")
_NUMBERS = range(250)


class ClusterError(RuntimeError):
    """The cluster cannot do what the test asked; the message says what the server said."""


@dataclass(frozen=True)
class Place:
    """What a cluster takes from the machine."""

    number: int
    folder: Path
    lock: int

    @property
    def cgroup(self) -> Cgroup:
        return Cgroup(f"aliquot-{self.number}")

    @property
    def bridge(self) -> str:
        return f"aliquot{self.number}"

    @property
    def host_address(self) -> str:
        """Where the cluster reaches this machine, and what a test serves on it."""
        return f"198.18.{self.number}.1"

    def address(self, index: int) -> str:
        """Of the cluster's machine with that index."""
        return f"198.18.{self.number}.{10 + index}"

    @property
    def is_kept(self) -> bool:
        return bool(_read(self.lock).get("kept"))

    def keep(self) -> None:
        """Let it stay when its owner ends: `kept` finds it."""
        _write(self.lock, folder=str(self.folder), kept=True)

    def remove(self) -> None:
        """End and remove everything. Idempotent, and also for what a killed run left.

        With its last process go its namespaces, and with them all mounts.
        """
        self.cgroup.kill()
        self.cgroup.remove()
        _remove_links(self.bridge)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        os.ftruncate(self.lock, 0)

    def release(self) -> None:
        """Let another cluster have the number, once nobody else holds the lock."""
        os.close(self.lock)


def reserve() -> Place:
    """A place that no other cluster has. What dead runs have left is removed first."""
    REGISTRY.mkdir(mode=0o755, exist_ok=True)
    for left in _unowned():
        if not left.is_kept:
            left.remove()
        left.release()
    for number in _NUMBERS:
        lock = _lock(number)
        if lock is None:
            continue
        if _read(lock):
            os.close(lock)
            continue
        folder = tempfile.mkdtemp(prefix="aliquot-cluster-", dir="/tmp")
        _write(lock, folder=folder, kept=False)
        return Place(number, Path(folder), lock)
    raise ClusterError(f"{len(_NUMBERS)} clusters run here: end some (make cluster-down)")


def kept() -> list[Place]:
    """The clusters that were left running to play with. Nobody else finds them meanwhile."""
    places = []
    for place in _unowned():
        if place.is_kept:
            places.append(place)
        else:
            place.release()
    return places


def _unowned() -> list[Place]:
    """What no living process owns: kept clusters, and what dead runs have left."""
    places = []
    for number in sorted(int(file.name) for file in REGISTRY.glob("*")):
        lock = _lock(number)
        if lock is None:
            continue
        if record := _read(lock):
            places.append(Place(number, Path(record["folder"]), lock))
        else:
            os.close(lock)
    return places


def _lock(number: int) -> int | None:
    file = os.open(REGISTRY / str(number), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _read(lock: int) -> dict[str, Any]:
    text = os.pread(lock, 4096, 0)
    return dict(json.loads(text)) if text else {}


def _write(lock: int, **record: object) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(record).encode(), 0)


def _remove_links(bridge: str, seconds: float = 10.0) -> None:
    """Some are on their way out already: a dead machine's end takes the other with it."""
    devices = Path("/sys/class/net")
    deadline = time.monotonic() + seconds
    while links := [*devices.glob(f"{bridge}-*"), *devices.glob(bridge)]:
        for link in links:
            delete = ["ip", "link", "delete", link.name]
            subprocess.run(delete, stderr=subprocess.DEVNULL, check=False)
        if time.monotonic() > deadline:
            raise TimeoutError(f"network devices cannot be removed: {links}")
