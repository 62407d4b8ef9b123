"""Whose a process is, by its cgroup, and what its file system is like."""

from __future__ import annotations

import re
from pathlib import Path

from aliquot.kubernetes.node.container import GRANT, is_musl

PROC = Path("/proc")

# kubepods/burstable/podUID/ID, or kubepods-burstable-podUID_WITH_UNDERSCORES.slice/...
_POD = re.compile(r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def pod_of(pid: int) -> str | None:
    """The UID of the pod that a process belongs to; None: to none, or it is gone."""
    try:
        found = _POD.search((PROC / str(pid) / "cgroup").read_text("ascii", "replace"))
    except OSError:
        return None
    return found["uid"].replace("_", "-") if found else None


def by_pod() -> dict[str, list[int]]:
    """All processes of pods."""
    found: dict[str, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal() and (uid := pod_of(int(folder.name))):
            found.setdefault(uid, []).append(int(folder.name))
    return found


def cannot_be_held(pid: int) -> bool:
    """Whether a process has a grant, and a C library for which there is no driver."""
    root = PROC / str(pid) / "root"
    try:
        return (root / str(GRANT).lstrip("/")).is_dir() and is_musl(root)
    except OSError:
        return False
