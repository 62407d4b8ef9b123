"""A cgroup for one worker: whatever the worker starts, also a daemon, ends with it.

It lies beside the pool's own (`pool_cgroup`), in the hierarchy of version 2, and where that is
possible it limits how many processes and threads the worker can have. Where none can be made
(version 1 alone, a user without a delegated cgroup) a worker has none, and its supervisor ends
what the worker left behind, as long as the supervisor itself lives.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

END_SECONDS = 10.0
PREFIX = "aliquot-"

_LIMIT, _EVENTS = "pids.max", "pids.events"


def create(folder: Path, above: Path, processes: int | None) -> Path | None:
    """Create the cgroup of the worker in this slot's folder; None if that is not possible.

    `processes` is how many processes and threads it can have; None: as many as it likes.
    """
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    path = above / f"{PREFIX}{digest}"
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return None
    if processes is not None:
        limit(path, processes)
    return path


def limit(path: Path, processes: int) -> None:
    """Limit the processes and threads of a cgroup, if it has the controller for that.

    Those that it has keep running, also if they are more.
    """
    with suppress(OSError):
        (path / _LIMIT).write_text(str(processes), "ascii")


def reached_limit(path: Path) -> str | None:
    """That processes were refused because a cgroup has as many as it can have; None: none were."""
    try:
        refused = _refused((path / _EVENTS).read_text("ascii"))
        most = (path / _LIMIT).read_text("ascii").strip()
    except OSError:
        return None
    if not refused or not most.isdecimal():
        return None
    return f"it reached its limit of {most} processes and threads"


def wait_for_refusal(path: Path) -> None:
    """Wait until a process is refused, or the cgroup has no limit or has ended."""
    with suppress(OSError), (path / _EVENTS).open("r", encoding="ascii") as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while not _refused(events.read()):
            poll.poll()
            events.seek(0)


def _refused(events: str) -> bool:
    return any(line.startswith("max ") and line != "max 0" for line in events.splitlines())


def enter(path: Path) -> bool:
    """Move this process into a cgroup; whether that was allowed."""
    try:
        (path / "cgroup.procs").write_text("0", "ascii")
    except OSError:
        return False
    return True


def end(path: Path, seconds: float = END_SECONDS) -> bool:
    """Kill everything in a cgroup and remove it; whether it is gone by then."""
    deadline = time.monotonic() + seconds
    while path.exists():
        kill(path)
        with suppress(OSError):
            path.rmdir()
            return True
        if time.monotonic() > deadline:
            return False
        _wait_for_change(path)
    return True


def kill(path: Path) -> None:
    """Kill everything in a cgroup."""
    try:
        (path / "cgroup.kill").write_text("1", "ascii")
    except OSError:  # before Linux 5.14
        with suppress(OSError):
            for pid in (path / "cgroup.procs").read_text("ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def _wait_for_change(path: Path) -> None:
    """Wait until processes have left, at most a moment."""
    with suppress(OSError), (path / "cgroup.events").open("rb") as events:
        if b"populated 0" in events.read():
            return
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        poll.poll(50)


def own() -> Path | None:
    """The folder of this process's cgroup of version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
        mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    except (OSError, StopIteration):
        return None
    for line in mounts:
        left, _, right = line.partition(" - ")
        _, _, _, root, place, *_ = left.split()
        if right.startswith("cgroup2 ") and ".." not in own:
            inner = own.removeprefix(root) if root != "/" else own
            return Path(place) / inner.lstrip("/")
    return None
