"""The arbiter does not belong to the agent's container.

When a container's first process ends, its runtime kills whatever is left in the container's control
groups: the arbiter and its parent at the same moment, and gates that are shut then stay shut. So an
arbiter that was started in a pod goes to groups beside those of all pods, where nobody ends it, and
the next agent takes it up. The node's /sys/fs/cgroup must be there to write.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import structlog

from aliquot.kubernetes.node.processes import PROC, pod_of

ROOT = Path("/sys/fs/cgroup")
GROUP = "aliquot"

_log = structlog.get_logger(__name__)


def move_out(arbiter: int) -> None:
    """Move the arbiter and its parent out of the pod that this process is in, if it is in one."""
    if pod_of(os.getpid()) is None:
        return
    lines = (PROC / "self" / "cgroup").read_text("ascii").splitlines()
    for group in filter(None, (group_beside(line) for line in lines)):
        try:
            _join(ROOT / group, arbiter)
        except OSError as error:
            _log.error(
                "the arbiter stays in the agent's container, and ends with it",
                group=str(group),
                why=error.strerror,
            )


def group_beside(line: str) -> PurePosixPath | None:
    """Our group in the hierarchy of one line of /proc/PID/cgroup; None: no pod's are there."""
    _, controllers, path = line.split(":", 2)
    above: list[str] = []
    for part in PurePosixPath(path).parts[1:]:
        if "kubepods" in part:
            hierarchy = controllers.removeprefix("name=") or _unified()
            return PurePosixPath(hierarchy, *above, GROUP)
        above.append(part)
    return None


def _unified() -> str:
    """Where the one hierarchy of version 2 is: beside those of version 1, or all there is."""
    return "unified" if (ROOT / "unified").is_dir() else ""


def _join(group: Path, arbiter: int) -> None:
    group.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / "cpuset.cpu_exclusive").exists():  # version 1: a new group has none
            (group / name).write_text((group.parent / name).read_text("ascii"), "ascii")
    stat = (PROC / str(arbiter) / "stat").read_text("ascii", "replace")
    parent = int(stat.rpartition(")")[2].split()[1])
    for pid in (parent, arbiter):
        if pid > 1:
            (group / "cgroup.procs").write_text(str(pid), "ascii")
