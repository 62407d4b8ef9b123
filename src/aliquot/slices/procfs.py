"""State, start time, command and free host memory of a process, from /proc and its cgroups."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_RESERVE = 1 << 30  # left for the rest of the machine
_LONGEST_COMMAND = 1 << 16
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def free_memory(pid: int) -> int:
    """Host memory that a process can still use, within its cgroups, less a reserve."""
    limits = [_available(), *_in_cgroups(pid)]
    return max(0, min(limits) - _RESERVE)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    return _state(pid) in {"T", "t"}


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return _state(pid) not in {None, "Z", "X"}


def command_line(pid: int) -> str:
    """The command of a process, quoted as a shell needs it; empty if the kernel does not say."""
    try:
        with (_PROC / str(pid) / "cmdline").open("rb") as file:
            words = file.read(_LONGEST_COMMAND).rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return shlex.join(word.decode("utf-8", "replace") for word in words) if words[0] else ""


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is dead."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in {"Z", "X"} else int(fields[19])


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain any character."""
    try:
        line = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return line.rpartition(")")[2].split()


def _state(pid: int) -> str | None:
    fields = stat_fields(pid)
    return None if fields is None else fields[0]


def _available() -> int:
    for line in (_PROC / "meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _in_cgroups(pid: int) -> Iterator[int]:
    """Free memory in each cgroup of the process that has a limit."""
    with suppress(OSError):
        for line in (_PROC / str(pid) / "cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _up(_CGROUPS, path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes"
                yield from _up(_CGROUPS / "memory", path, *names)


def _up(root: Path, path: str, limit: str, usage: str) -> Iterator[int]:
    folder = root / path.lstrip("/")
    while folder.is_relative_to(root):
        with suppress(OSError, ValueError):  # no such file here, or "max"
            yield int((folder / limit).read_text("ascii")) - int(
                (folder / usage).read_text("ascii")
            )
        folder = folder.parent
