"""Processes by PID and start time, which together name one process for ever."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def boot_id() -> str:
    """The ID of the machine's current boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is dead."""
    fields = _fields(pid)
    return None if fields is None or fields[0] in {"Z", "X"} else int(fields[19])


def send_signal(pid: int, start: int, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; whether it was alive."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if started_at(pid) != start:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
    return True


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (fields := _fields(int(folder.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain any character."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
