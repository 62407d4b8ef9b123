"""The pool's own cgroup, beside those of its workers, so that these can have limits.

ABOVE               the cgroup that the pool was started in, of its service for example
ABOVE/pool          the pool, what it starts, and the supervisors of its workers
ABOVE/aliquot-…     one worker (`cgroup`), with at most so many processes and threads

The kernel gives the children of a cgroup no limits while the cgroup itself has processes. So the
pool moves into a child, unless it was started there (`DelegateSubgroup=` of systemd 254), and takes
along what an earlier version has left in ABOVE: supervisors. It moves no program that is not its
own. Then workers have no limit, and all stays where it is.

As long as workers run in cgroups with limits, no process can enter ABOVE. An earlier systemd would
start the next pool there. So a pool that moved by itself takes the limits off when it ends, or its
spawner does if the pool was killed; the next pool sets them again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aliquot.pool import cgroup

NAME = "pool"
MOST_PROCESSES = 16384

_CONTROLLER = "pids"
_PROCESSES, _ENABLED = "cgroup.procs", "cgroup.subtree_control"
_KERNEL = Path("/proc/sys/kernel")
_ATTEMPTS = 10  # processes may fork while they are moved


@dataclass(frozen=True, slots=True)
class WorkerCgroups:
    """Where the cgroups of workers are, and what they can limit.

    - `above`: the cgroup above them; None if there can be none.
    - `unlimited`: why they have no limits; None if they have.
    - `blocked`: whether these limits keep the next pool from being started in `above`.
    """

    above: Path | None
    unlimited: str | None = None
    blocked: bool = False

    def limit(self, processes: int | None) -> int | None:
        """Limit the processes of each worker that runs; the limit, None if there can be none.

        Without a number it is a quarter of what the workers can have together, and at most
        `MOST_PROCESSES`.
        """
        if self.above is None or self.unlimited is not None:
            return None
        chosen = processes or max(1, min(MOST_PROCESSES, _together(self.above) // 4))
        for path in self.above.glob(f"{cgroup.PREFIX}*"):
            cgroup.limit(path, chosen)
        return chosen

    def release(self) -> None:
        """Let the next pool be started in `above`. Workers have no limits until it is."""
        if self.above is not None and self.blocked:
            release(self.above)


def settle() -> WorkerCgroups:
    """Move this process into the pool's own cgroup if possible, and enable limits of workers."""
    own = cgroup.own()
    if own is None:
        return WorkerCgroups(None, "there are no cgroups of version 2 here")
    above = own.parent if own.name == NAME else own
    try:
        if _is_root(above):  # which may have both
            _enable(above)
            return WorkerCgroups(above)
        _move(above)
        _enable(above)
    except _UnlimitedError as error:
        return WorkerCgroups(above, str(error))
    except OSError as error:
        return WorkerCgroups(above, f"{error.filename or above}: {error.strerror}")
    return WorkerCgroups(above, blocked=own == above)


def release(above: Path) -> None:
    """Take the limits off the children of a cgroup, so that processes can enter it."""
    with suppress(OSError):
        (above / _ENABLED).write_text(f"-{_CONTROLLER}", "ascii")


class _UnlimitedError(Exception):
    """Why workers can have no limits."""


def _move(above: Path) -> None:
    """Move this process, and what the same service has left in `above`, into a child."""
    for _ in range(_ATTEMPTS):
        found = _processes(above)
        if not found:
            return
        if found != {os.getpid()} and not _is_service():
            raise _UnlimitedError(f"other programs are in {above} too")
        release(above)  # limits of an earlier pool would make its children invalid
        (above / NAME).mkdir(exist_ok=True)
        for pid in found:
            with suppress(ProcessLookupError):
                (above / NAME / _PROCESSES).write_text(str(pid), "ascii")
    raise _UnlimitedError(f"programs keep starting in {above}")


def _enable(above: Path) -> None:
    if _CONTROLLER not in (above / "cgroup.controllers").read_text("ascii").split():
        raise _UnlimitedError(f"{above} has no controller {_CONTROLLER}")
    (above / _ENABLED).write_text(f"+{_CONTROLLER}", "ascii")


def _processes(path: Path) -> set[int]:
    """The processes of a cgroup; 0 is one of another PID namespace."""
    return set(map(int, (path / _PROCESSES).read_text("ascii").split()))


def _is_service() -> bool:
    """Whether systemd started this very process: then its cgroup has only what the service left."""
    return os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def _is_root(path: Path) -> bool:
    return not (path / "cgroup.type").exists()


def _together(above: Path) -> int:
    """How many processes and threads all workers can have together."""
    files = [one / "pids.max" for one in (above, *above.parents)]
    found = []
    for file in (*files, _KERNEL / "pid_max", _KERNEL / "threads-max"):
        with suppress(OSError, ValueError):  # the root has none, and "max" is no number
            found.append(int(file.read_text("ascii")))
    return min(found)
