"""The output of the workers of one rank: the newest part of it, in several files.

rank-N.log          the newest part
rank-N.log.OFFSET   an older part, which ends before the byte of that number

Bytes are numbered from the first that was ever written. So a reader that continues from a number
gets the right bytes, or learns how many were dropped. A full part is renamed; a writer that dies
has done all of that or nothing. Old parts are deleted so that all parts together have at most
`KEPT_BYTES`. At least one old part is kept: its name says where the newest part begins.

One supervisor writes and any number of readers read. If a write fails (a full disk) the worker
keeps running, and the log says how many bytes are missing as soon as there is space again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PART_BYTES = 4 << 20
KEPT_BYTES = 64 << 20


class RankLog:
    """The writer. `also` are open files of this process that always point to the newest part."""

    def __init__(
        self,
        path: Path,
        also: tuple[int, ...] = (),
        part: int = PART_BYTES,
        kept: int = KEPT_BYTES,
    ) -> None:
        self._path, self._also = path, also
        self._part, self._parts = part, max(2, kept // part)
        self._missing = 0
        self._handle = _open(path)

    def write(self, content: bytes) -> None:
        """Append; never fails."""
        if self._missing:
            note = f"\n[aliquot: {self._missing} bytes could not be written here]\n".encode()
            if self._add(note) < len(note):
                self._missing += len(content)
                return
            self._missing = 0
        self._missing = len(content) - self._add(content)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _add(self, content: bytes) -> int:
        """Append; how many bytes were written."""
        done = 0
        try:
            while done < len(content):
                space = self._part - os.fstat(self._handle).st_size
                if space > 0:
                    done += os.write(self._handle, content[done : done + space])
                else:
                    self._begin_part()
        except OSError:
            pass
        return done

    def _begin_part(self) -> None:
        """Begin a new part. If this fails, nothing is lost and the next attempt continues."""
        fresh_path = self._path.with_name(f"{self._path.name}.new")
        fresh = _open(fresh_path)
        try:
            older = _older(self._path)
            if self._path.exists():
                older.append(max(older, default=0) + os.fstat(self._handle).st_size)
                self._path.rename(_named(self._path, older[-1]))
            fresh_path.rename(self._path)
            for handle in (self._handle, *self._also):
                os.dup2(fresh, handle)
        finally:
            os.close(fresh)
        for end in older[: 1 - self._parts]:
            _named(self._path, end).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LogRange:
    """A range of a log; `start` is the number of its first byte."""

    start: int
    content: bytes


def read(path: Path, start: int, most: int) -> LogRange:
    """At most `most` bytes from that byte on, or from the oldest that is kept."""
    while True:
        older = _older(path)
        found = _read_part(path, older, max(0, start), most)
        if _older(path) == older:
            return found


def _read_part(path: Path, older: list[int], start: int, most: int) -> LogRange:
    """From the part that has this byte. A part that is gone by now was the oldest."""
    for end in (end for end in older if start < end):
        part = _named(path, end)
        with suppress(FileNotFoundError):
            return _read_from(part, end - part.stat().st_size, start, most)
    begins = max(older, default=0)
    with suppress(FileNotFoundError):
        return _read_from(path, begins, start, most)
    return LogRange(max(start, begins), b"")


def _read_from(file: Path, begins: int, start: int, most: int) -> LogRange:
    start = max(start, begins)
    with file.open("rb") as part:
        part.seek(start - begins)
        return LogRange(start, part.read(most))


def _older(path: Path) -> list[int]:
    """Where the older parts end, oldest first."""
    suffixes = (
        one.name.removeprefix(f"{path.name}.") for one in path.parent.glob(f"{path.name}.*")
    )
    return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())


def _named(path: Path, end: int) -> Path:
    return path.with_name(f"{path.name}.{end}")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
