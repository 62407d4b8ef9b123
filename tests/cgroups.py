"""Cgroups that tests make and remove."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import support

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/sys/fs/cgroup")
# Version 2, then a hierarchy of version 1.
_HIERARCHIES = (_ROOT, _ROOT / "unified", _ROOT / "pids", _ROOT / "freezer")


class Cgroup:
    """A cgroup of its own."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.path = path  # as /proc/PID/cgroup has it

    def enter(self, pid: int = 0) -> None:
        """Move a process into it: 0 is the caller."""
        (self.folder / "cgroup.procs").write_text(str(pid), "ascii")

    def below(self, name: str) -> Cgroup:
        """A cgroup inside it."""
        (self.folder / name).mkdir(exist_ok=True)
        return Cgroup(self.folder / name, f"{self.path}/{name}")

    def remove(self) -> None:
        """Kill what is in it, and remove it."""
        for child in self.folder.iterdir():
            if child.is_dir():
                Cgroup(child, f"{self.path}/{child.name}").remove()

        def is_removed() -> bool:
            for pid in (self.folder / "cgroup.procs").read_text("ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            with suppress(OSError):
                self.folder.rmdir()
            return not self.folder.exists()

        support.wait_until(is_removed)


def _own(hierarchy: Path) -> str | None:
    """The path of this process in a hierarchy; None: there is no such hierarchy."""
    controller = "" if hierarchy in _HIERARCHIES[:2] else hierarchy.name
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller and (hierarchy / "cgroup.procs").exists():
            return path.rstrip("/")
    return None


@contextmanager
def make_cgroup(name: str) -> Iterator[Cgroup | None]:
    """A new cgroup; None where none can be made: without root, or in most containers."""
    for hierarchy in _HIERARCHIES:
        above = _own(hierarchy)
        if above is None or ".." in above:
            continue
        cgroup = Cgroup(Path(f"{hierarchy}{above}/{name}"), f"{above}/{name}")
        try:
            cgroup.folder.mkdir()
        except OSError:
            continue
        try:
            yield cgroup
        finally:
            cgroup.remove()
        return
    yield None
