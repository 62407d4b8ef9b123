"""A control group of our own: it holds every process of a cluster, so that none is overlooked.

A process cannot leave its group by forking, so a group that is empty and removed means that nothing
that was started in it still runs: servers, container shims, containers. On version 1 the group has
the same name in every hierarchy, as the kubelet and runc expect it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")


@dataclass(frozen=True)
class Cgroup:
    """A group by its path from the root: `aliquot-3/servers`."""

    name: str

    def create(self) -> None:
        """Make it in every hierarchy, with what a process in it needs."""
        for hierarchy in hierarchies():
            folder = hierarchy / self.name
            folder.mkdir(parents=True, exist_ok=True)
            if _is_version_2(hierarchy):
                _pass_controllers_on(hierarchy, Path(self.name))
            else:
                _inherit_cpuset(hierarchy, Path(self.name))

    def child(self, name: str) -> Cgroup:
        """A group inside this one; it is not made yet."""
        return Cgroup(f"{self.name}/{name}")

    def joins(self) -> list[Path]:
        """The files into which a process writes its id to be in this group."""
        return [folder / "cgroup.procs" for folder in self._folders()]

    def pids(self) -> set[int]:
        """The processes in it and in all groups inside it."""
        return {
            int(pid)
            for folder in self._folders()
            for group in _innermost_first(folder)
            for pid in _read(group / "cgroup.procs").split()
        }

    def memory_bytes(self) -> int:
        """What its processes use: their memory and the files they keep in the page cache."""
        for file in ("memory/{}/memory.usage_in_bytes", "{}/memory.current"):
            path = ROOT / file.format(self.name)
            if path.exists():
                return int(path.read_text("ascii"))
        return 0

    def kill(self, seconds: float = 30.0) -> None:
        """Kill every process in it, also those that are only now being forked."""
        deadline = time.monotonic() + seconds
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._thaw()
            if time.monotonic() > deadline:
                raise TimeoutError(f"cgroup {self.name}: still there after SIGKILL: {sorted(pids)}")
            time.sleep(0.01)

    def remove(self, seconds: float = 10.0) -> None:
        """Remove it and all groups inside it; its processes have ended."""
        deadline = time.monotonic() + seconds
        while left := [folder for top in self._folders() for folder in _innermost_first(top)]:
            for folder in left:
                # The kernel lets a dead process go a moment after it has ended.
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if time.monotonic() > deadline:
                raise TimeoutError(f"cgroup {self.name}: cannot be removed: {left[0]}")
            time.sleep(0.005)

    def _thaw(self) -> None:
        """On version 1 a frozen process does not die, and runc freezes whom it is about to kill."""
        for folder in self._folders():
            for group in reversed(_innermost_first(folder)):
                with contextlib.suppress(OSError):
                    (group / "freezer.state").write_text("THAWED", "ascii")

    def _folders(self) -> list[Path]:
        every = (hierarchy / self.name for hierarchy in hierarchies())
        return [folder for folder in every if folder.is_dir()]


def hierarchies() -> list[Path]:
    """The one hierarchy of version 2, or all of version 1."""
    if _is_version_2(ROOT):
        return [ROOT]
    mounted = {path.resolve() for path in ROOT.iterdir() if (path / "cgroup.procs").exists()}
    return sorted(mounted)


def _is_version_2(hierarchy: Path) -> bool:
    return (hierarchy / "cgroup.controllers").exists()


def _pass_controllers_on(hierarchy: Path, name: Path) -> None:
    offered = set((hierarchy / "cgroup.controllers").read_text("ascii").split())
    wanted = " ".join(f"+{each}" for each in _CONTROLLERS if each in offered)
    if wanted:
        (hierarchy / "cgroup.subtree_control").write_text(wanted, "ascii")
        for parent in reversed(name.parents[:-1]):
            (hierarchy / parent / "cgroup.subtree_control").write_text(wanted, "ascii")


def _inherit_cpuset(hierarchy: Path, name: Path) -> None:
    """Version 1 makes a group without processors or memory nodes, which no process can join."""
    for group in (*reversed(name.parents[:-1]), name):
        for key in ("cpuset.cpus", "cpuset.mems"):
            file = hierarchy / group / key
            if file.exists() and not file.read_text("ascii").strip():
                file.write_text((hierarchy / group).parent.joinpath(key).read_text("ascii"))


def _innermost_first(top: Path) -> list[Path]:
    """It and all groups inside it; one that vanishes meanwhile may be there or not."""
    return [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]


def _read(file: Path) -> str:
    """A group that vanishes while it is read has no processes."""
    try:
        return file.read_text("ascii")
    except (FileNotFoundError, OSError):
        return ""
