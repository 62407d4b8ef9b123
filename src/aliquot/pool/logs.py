"""What the workers of one rank have written: the last of it, in parts, each byte by its number.

rank-N.log          the newest part
rank-N.log.OFFSET   an older one, which ends before the byte of that number

Bytes are counted from the first that was ever written, so whoever reads on from a number goes on
where he was, whatever was cut in between. A part that is full is renamed, which is all there is to
it: one that dies in between has written all or nothing of it. Of old parts so many are kept that
all together never have more than `KEPT_BYTES`, and one at least, whose name says where the newest
begins.

One keeper writes; any number may read. Where nothing can be written (a full disk) the worker runs
on, and the log says how much is missing as soon as there is room.
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


class Log:
    """The writing side. `also` are open files of this process that stay the same as the newest."""

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

    def write(self, words: bytes) -> None:
        """Add to it; never fails."""
        if self._missing:
            told = f"\n[aliquot: {self._missing} bytes could not be written here]\n".encode()
            if self._add(told) < len(told):
                self._missing += len(words)
                return
            self._missing = 0
        self._missing = len(words) - self._add(words)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)

    def _add(self, words: bytes) -> int:
        """How many of the bytes were written."""
        done = 0
        try:
            while done < len(words):
                room = self._part - os.fstat(self._handle).st_size
                if room > 0:
                    done += os.write(self._handle, words[done : done + room])
                else:
                    self._begin_part()
        except OSError:
            pass
        return done

    def _begin_part(self) -> None:
        """Whatever fails here, nothing is lost, and the next try goes on from there."""
        beside = self._path.with_name(f"{self._path.name}.new")
        fresh = _open(beside)
        try:
            older = _older(self._path)
            if self._path.exists():
                older.append(max(older, default=0) + os.fstat(self._handle).st_size)
                self._path.rename(_named(self._path, older[-1]))
            beside.rename(self._path)
            for handle in (self._handle, *self._also):
                os.dup2(fresh, handle)
        finally:
            os.close(fresh)
        for end in older[: 1 - self._parts]:
            _named(self._path, end).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Words:
    """A piece of a log; `start` is the number of its first byte."""

    start: int
    words: bytes


def read(path: Path, start: int, most: int) -> Words:
    """What there is from that byte on, or from the oldest that is kept."""
    while True:
        older = _older(path)
        found = _read_part(path, older, max(0, start), most)
        if _older(path) == older:
            return found


def _read_part(path: Path, older: list[int], start: int, most: int) -> Words:
    """From the part that has this byte; one that is gone by now was the oldest."""
    for end in (end for end in older if start < end):
        part = _named(path, end)
        with suppress(FileNotFoundError):
            return _read_from(part, end - part.stat().st_size, start, most)
    begins = max(older, default=0)
    with suppress(FileNotFoundError):
        return _read_from(path, begins, start, most)
    return Words(max(start, begins), b"")


def _read_from(file: Path, begins: int, start: int, most: int) -> Words:
    start = max(start, begins)
    with file.open("rb") as part:
        part.seek(start - begins)
        return Words(start, part.read(most))


def _older(path: Path) -> list[int]:
    """Where the older parts end, the oldest first."""
    suffixes = (
        one.name.removeprefix(f"{path.name}.") for one in path.parent.glob(f"{path.name}.*")
    )
    return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())


def _named(path: Path, end: int) -> Path:
    return path.with_name(f"{path.name}.{end}")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
