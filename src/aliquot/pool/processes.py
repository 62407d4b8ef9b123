"""Processes by PID and start time, which together name one process for ever."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.slices.procfs import started_at, stat_fields

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["boot_id", "descendants", "kill_listed", "python_module", "send_signal", "started_at"]

_PROC = Path("/proc")


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of Aliquot in another Python, as isolated as this one."""
    isolation = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolation, "-m", module, *arguments]


def boot_id() -> str:
    """The ID of the machine's current boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()


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


def kill_listed(pids: Callable[[], set[int]]) -> None:
    """Kill the processes of a list that its keeper, who sees them end, shortens when they do.

    The list is asked for again when there is a handle of each: what is listed still has not ended,
    so that no handle is of a later process with the same pid.
    """
    with ExitStack() as kept:
        handles = {}
        for pid in pids():
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
                kept.callback(os.close, handles[pid])
        for pid in handles.keys() & pids() if handles else ():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handles[pid], signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (fields := stat_fields(int(folder.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
