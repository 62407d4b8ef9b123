"""Files that a worker writes for the pool: the only reader of them.

A worker is a program of its user, and the pool may be root. So a file is read only if it is a
plain file of that user and small, and what comes back are checked values. The folder of the files
is the user's, and says who that is; the entry that leads to it is the pool's.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot.pool.user_files import open_in, stat_in

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_BYTES = 1 << 14
_LARGEST_NUMBER = 1 << 53  # what a float holds exactly


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker reported last: its step, its speed, its number of workers, and when."""

    step: int | float | None
    samples_per_second: int | float | None
    at: int | float | None
    size: int | None


def read_ready(folder: Path) -> int | None:
    """The generation of the notice that the worker is ready for."""
    content = _read(folder, "ready")
    return None if content is None else _whole(content.get("generation"))


def read_report(folder: Path) -> WorkerReport | None:
    """The worker's last report. A value that is none is None."""
    content = _read(folder, "report")
    if content is None:
        return None
    return WorkerReport(
        _number(content.get("step")),
        _number(content.get("samples_per_second")),
        _number(content.get("at")),
        _whole(content.get("size")),
    )


def _read(folder: Path, name: str) -> dict[str, Any] | None:
    """The object in a file of the worker; None if it is missing or not what it should be."""
    try:
        uid = stat_in(folder.parent, folder.name).st_uid
        file = open_in(folder.parent, f"{folder.name}/{name}", os.O_RDONLY)
    except OSError:
        return None
    with suppress(OSError, ValueError, RecursionError):
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_nlink > 1:
                return None
            text = os.read(file, LARGEST_BYTES + 1)
        finally:
            os.close(file)
        content = json.loads(text) if len(text) <= LARGEST_BYTES else None
        return content if isinstance(content, dict) else None
    return None


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER else None  # so no NaN


def _whole(value: object) -> int | None:
    found = _number(value)
    return found if isinstance(found, int) and found >= 0 else None
