"""The output of the workers of one rank: the newest part of it, in several files.

rank-N.log          the newest part
rank-N.log.OFFSET   an older part, which ends before the byte of that number
rank-N.times        when bytes were written: lines of a byte's number and a time
rank-N.parts        the OFFSETs of older parts, for readers who may not list the folder

Bytes are numbered from the first that was ever written. So a reader that continues from a number
gets the right bytes, or learns how many were dropped. A full part is renamed; a writer that dies
has done all of that or nothing. Old parts are deleted so that all parts together have at most
`KEPT_BYTES`. At least one old part is kept: its name says where the newest part begins.

The files belong to the user of the job, and only that user can read them. Their folder does not:
nobody but the writer can rename them or put others in their place.

A line of `rank-N.times` is written before the bytes that it is about, and not for each write: at
most one for 256 bytes or for a second. So the time of a line of output is right to a second, and
the file stays small. A writer that died may leave half a line, which readers skip. When a part of
the log is deleted, so are its times.

Users of root's pool may not list the folder of their job. They find its older parts in
`rank-N.parts`, which is written before a part gets its name: it has all of them, and maybe one more
that does not exist.

One supervisor writes and any number of readers read. If a write fails (a full disk) the worker
keeps running, and the log says how many bytes are missing as soon as there is space again.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from aliquot.pool.json_files import write_json
from aliquot.pool.user_files import open_in, stat_in

if TYPE_CHECKING:
    from pathlib import Path

PART_BYTES = 4 << 20
KEPT_BYTES = 64 << 20
TIMED_BYTES = 256
TIMED_SECONDS = 1.0

_BLOCK = 1 << 16
_TIMES_BYTES = 8 << 20  # those of all bytes that are kept, if many are written in a second
_PARTS_BYTES = 1 << 16
_LARGEST = 1 << 53
_LATEST = 1e11  # a time in the year 5138


class RankLog:
    """The writer. `also` are open files of this process that always point to the newest part.

    `uid` is the user of the job; None: this process's.
    """

    def __init__(
        self,
        path: Path,
        also: tuple[int, ...] = (),
        part: int = PART_BYTES,
        kept: int = KEPT_BYTES,
        uid: int | None = None,
    ) -> None:
        self._path, self._also, self._uid = path, also, uid
        self._part, self._parts = part, max(2, kept // part)
        self._missing = 0
        self._handle = open_log(path, uid)
        self._begins = max(_older(path), default=0)
        self._times = open_log(times_path(path), uid)
        self._timed = (0, 0.0)
        self._lock = threading.Lock()

    def write(self, content: bytes) -> None:
        """Append; never fails. Threads write one after another."""
        with self._lock:
            self._write(content)

    def _write(self, content: bytes) -> None:
        with suppress(OSError):
            self._add_time(time.time())
        if self._missing:
            note = f"\n[aliquot: {self._missing} bytes could not be written here]\n".encode()
            if self._add(note) < len(note):
                self._missing += len(content)
                return
            self._missing = 0
        self._missing = len(content) - self._add(content)

    def close(self) -> None:
        """Close the files."""
        os.close(self._handle)
        os.close(self._times)

    def _add_time(self, now: float) -> None:
        at, (last_at, last) = self._begins + os.fstat(self._handle).st_size, self._timed
        if last and now - last < TIMED_SECONDS and at - last_at < TIMED_BYTES and now >= last:
            return
        os.write(self._times, f"{at} {now:.3f}\n".encode())
        self._timed = at, now

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
        fresh = open_log(fresh_path, self._uid)
        try:
            older = _older(self._path)
            if self._path.exists():
                older.append(max(older, default=0) + os.fstat(self._handle).st_size)
                with suppress(OSError):  # on a full disk the next part may free some space
                    write_json(parts_path(self._path), {"ends": older}, self._uid)
                self._path.rename(_named(self._path, older[-1]))
            fresh_path.rename(self._path)
            for handle in (self._handle, *self._also):
                os.dup2(fresh, handle)
            self._begins = max(older, default=0)
        finally:
            os.close(fresh)
        if dropped := older[: 1 - self._parts]:
            for end in dropped:
                _named(self._path, end).unlink(missing_ok=True)
            self._drop_times(dropped[-1])

    def _drop_times(self, before: int) -> None:
        """Forget the times of bytes that are gone, but for the last: it is of the next bytes."""
        kept = LogTimes.read(self._path)
        first = max(0, bisect_right(kept.bytes, before) - 1)
        lines = zip(kept.bytes[first:], kept.times[first:], strict=True)
        path = times_path(self._path)
        fresh_path = path.with_name(f"{path.name}.new")
        fresh_path.unlink(missing_ok=True)
        fresh = open_log(fresh_path, self._uid)
        os.write(fresh, "".join(f"{at} {when:.3f}\n" for at, when in lines).encode())
        fresh_path.rename(path)
        os.close(self._times)
        self._times = fresh


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


@dataclass(frozen=True, slots=True)
class LogTimes:
    """When the bytes of a log were written: from `bytes[n]` on at `times[n]`, both ascending."""

    bytes: tuple[int, ...] = ()
    times: tuple[float, ...] = ()

    @classmethod
    def read(cls, path: Path) -> LogTimes:
        """The last times of a log, which is the user's; lines that are not valid are skipped."""
        try:
            with _open(times_path(path)) as file:
                if (skipped := os.fstat(file.fileno()).st_size - _TIMES_BYTES) > 0:
                    file.seek(skipped)
                    file.readline(_BLOCK)
                return cls.parse(file.read(_TIMES_BYTES).decode("ascii", "replace"))
        except OSError:
            return cls()

    @classmethod
    def parse(cls, text: str) -> LogTimes:
        """The times in a text of such lines."""
        found: list[tuple[int, float]] = []
        for line in text.splitlines():
            with suppress(ValueError):
                at, when = line.split()
                one = (int(at), float(when))
                last = found[-1] if found else (-1, 0.0)
                if last[0] < one[0] < _LARGEST and last[1] <= one[1] < _LATEST:
                    found.append(one)
        return cls(tuple(at for at, _ in found), tuple(when for _, when in found))

    def at(self, byte: int) -> float | None:
        """When this byte was written; None if that is unknown."""
        number = bisect_right(self.bytes, byte) - 1
        return self.times[number] if number >= 0 else None

    def first_since(self, when: float) -> int | None:
        """The first byte written at that time or later; None if there is none yet."""
        number = bisect_right(self.times, when)
        if number and self.times[number - 1] == when:
            number -= 1
        return self.bytes[number] if number < len(self.bytes) else None

    def __str__(self) -> str:
        pairs = zip(self.bytes, self.times, strict=True)
        return "".join(f"{at} {when:.3f}\n" for at, when in pairs)


def end_of(path: Path) -> int:
    """The number of the byte that is written next."""
    while True:
        older = _older(path)
        size = 0
        with suppress(FileNotFoundError):  # while a part begins
            size = stat_in(path.parent, path.name).st_size
        if _older(path) == older:
            return max(older, default=0) + size


def start_of(path: Path, tail: int | None = None, since: float | None = None) -> int:
    """The byte at which the last `tail` lines begin, and no earlier than the time `since`."""
    start = 0 if tail is None else _tail_start(path, tail)
    if since is not None:
        found = LogTimes.read(path).first_since(since)
        start = max(start, end_of(path) if found is None else found)
    return start


def _tail_start(path: Path, lines: int) -> int:
    at = end = end_of(path)
    first = max(0, end - KEPT_BYTES - PART_BYTES)  # a user can make the file longer
    left = max(0, lines)
    while left and at > first:
        begin = max(first, at - _BLOCK)
        found = _read_range(path, begin, at)
        content = found.content
        if at == end:
            content = content.removesuffix(b"\n")
        if (count := content.count(b"\n")) >= left:
            newline = len(content)
            for _ in range(left):
                newline = content.rfind(b"\n", 0, newline)
            return found.start + newline + 1
        left -= count
        if found.start > begin:  # older bytes were dropped
            return found.start
        at = begin
    return at


def _read_range(path: Path, start: int, end: int) -> LogRange:
    """The bytes from `start` to `end` that are kept, over all parts."""
    first = found = read(path, start, end - start)
    pieces = [first.content]
    while found.content and (at := found.start + len(found.content)) < end:
        found = read(path, at, end - at)
        pieces.append(found.content)
    return LogRange(first.start, b"".join(pieces))


def ranks_of(job: Path, most: int = 0) -> list[int]:
    """The ranks that have a log in the folder of a job.

    Who may not list the folder finds those below `most`.
    """
    try:
        names = os.listdir(job)  # noqa: PTH208 - names are needed
    except FileNotFoundError:
        return []
    except PermissionError:
        names = [name for rank in range(most) if _is_there(job, name := f"rank-{rank}.log")]
    ranks = (
        name.removeprefix("rank-").removesuffix(".log")
        for name in names
        if name.startswith("rank-") and name.endswith(".log")
    )
    return sorted(int(rank) for rank in ranks if rank.isdecimal())


def times_path(path: Path) -> Path:
    """The file of times beside a log."""
    return path.with_suffix(".times")


def parts_path(path: Path) -> Path:
    """The file of the older parts of a log."""
    return path.with_suffix(".parts")


def _read_part(path: Path, older: list[int], start: int, most: int) -> LogRange:
    """From the part that has this byte. A part that is gone by now was the oldest."""
    for end in (end for end in older if start < end):
        part = _named(path, end)
        with suppress(FileNotFoundError):
            size = stat_in(part.parent, part.name).st_size
            return _read_from(part, end - size, start, most)
    begins = max(older, default=0)
    with suppress(FileNotFoundError):
        return _read_from(path, begins, start, most)
    return LogRange(max(start, begins), b"")


def _read_from(file: Path, begins: int, start: int, most: int) -> LogRange:
    start = max(start, begins)
    with _open(file) as part:
        part.seek(start - begins)
        return LogRange(start, part.read(most))


def _older(path: Path) -> list[int]:
    """Where the older parts end, oldest first."""
    begin = f"{path.name}."
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - names are needed
    except FileNotFoundError:
        return []
    except PermissionError:
        names = [name for name in _listed(path) if _is_there(path.parent, name)]
    suffixes = (name.removeprefix(begin) for name in names if name.startswith(begin))
    return sorted(int(suffix) for suffix in suffixes if suffix.isdecimal())


def _listed(path: Path) -> list[str]:
    """The names of older parts in the file of them, which is the user's; some may not exist."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        with _open(parts_path(path)) as file:
            ends = json.loads(file.read(_PARTS_BYTES))["ends"]
        return [_named(path, end).name for end in ends if type(end) is int and 0 < end < _LARGEST]
    return []


def _is_there(folder: Path, name: str) -> bool:
    try:
        stat_in(folder, name)
    except OSError:
        return False
    return True


def _named(path: Path, end: int) -> Path:
    return path.with_name(f"{path.name}.{end}")


def _open(path: Path) -> BinaryIO:
    """Open a file of a log for reading."""
    return os.fdopen(open_in(path.parent, path.name, os.O_RDONLY), "rb")


def open_log(path: Path, uid: int | None) -> int:
    """Open a file of a user's log for appending, without waiting; root gives it to the user."""
    handle = open_in(path.parent, path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if uid is not None and os.geteuid() == 0:
        os.fchown(handle, uid, -1)
    return handle
