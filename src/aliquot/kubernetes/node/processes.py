"""Whose a process is, by its cgroup, and what its file system is like."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.kubernetes.node.below import exists_below
from aliquot.kubernetes.node.container import GRANT, is_musl

if TYPE_CHECKING:
    from collections.abc import Iterable

PROC = Path("/proc")

# kubepods/burstable/podUID/ID, or kubepods-burstable-podUID_WITH_UNDERSCORES.slice/NAME-ID.scope
_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
    r"(?:\.slice)?(?:/(?P<container>[^/\n]*))?"
)


def pod_of(pid: int) -> str | None:
    """The UID of the pod that a process belongs to; None: to none, or it is gone."""
    place = _place_of(pid)
    return place[0] if place else None


def by_pod() -> dict[str, list[int]]:
    """One process of each container, the one with the lowest id, by the UIDs of their pods."""
    pids = sorted(int(folder.name) for folder in PROC.iterdir() if folder.name.isdecimal())
    first: dict[tuple[str, str], int] = {}
    for pid in pids:
        if place := _place_of(pid):
            first.setdefault(place, pid)
    found: dict[str, list[int]] = {}
    for (uid, _), pid in first.items():
        found.setdefault(uid, []).append(pid)
    return found


def cannot_be_held(pids: Iterable[int]) -> bool:
    """Whether one of these has a grant, and a C library for which there is no driver.

    Their file systems are their tenants': asking them anything may take for ever.
    """
    roots = (PROC / str(pid) / "root" for pid in pids)
    return any(exists_below(root, str(GRANT)) and is_musl(root) for root in roots)


def _place_of(pid: int) -> tuple[str, str] | None:
    """A process's pod, and which container's cgroup it is in."""
    try:
        found = _POD.search((PROC / str(pid) / "cgroup").read_text("ascii", "replace"))
    except OSError:
        return None
    return (found["uid"].replace("_", "-"), found["container"] or "") if found else None
