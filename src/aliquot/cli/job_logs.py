"""`aliquot logs`, and following a job's output.

The output of several workers or jobs is printed line by line, in the order of their times, with
the worker's rank or the job's name before each line. The output of one worker is printed as it is.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import JobPhase
from aliquot.model.units import format_bytes
from aliquot.pool.client import LogChunk, NoPoolError
from aliquot.pool.kept_logs import kept_logs_of
from aliquot.pool.logs import KEPT_BYTES, LogTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.pool.client import PoolClient

FOLLOW_SECONDS = 0.2


class LogSource(Protocol):
    """Where logs are read from: a pool that is up, or the folder of one that is down."""

    def log(  # noqa: D102 - as PoolClient's
        self, name: str, rank: int, start: int, tail: int | None, since: float | None
    ) -> LogChunk: ...

    def log_times(self, name: str, rank: int) -> LogTimes: ...  # noqa: D102

    def ranks(self, name: str) -> list[int]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What `aliquot logs` was asked for; `rank` None means all."""

    rank: int | None = 0
    tail: int | None = None
    since: float | None = None
    timestamps: bool = False
    follow: bool = False


@dataclass(slots=True)
class _Stream:
    """The output of one worker: the next byte to read, and the line that has no end yet."""

    number: str
    rank: int
    label: str
    start: int = 0
    begun: bool = False
    rest: bytes = b""
    final: bool = False


@dataclass
class LogPrinter:
    """Prints the logs of some jobs.

    `idle` is called while there is nothing to print, with the jobs that are not finished.
    """

    source: LogSource
    jobs: Sequence[dict[str, Any]]
    options: LogOptions
    idle: Callable[[], None] = lambda: None
    _streams: dict[tuple[str, int], _Stream] = field(default_factory=dict)

    def run(self) -> None:
        """Print what there is; following, until all jobs are finished."""
        while True:
            self._find_streams()
            before = [stream.final for stream in self._streams.values()]
            printed = self._print_more()
            ended = bool(before) and all(stream.final for stream in self._streams.values())
            if printed:
                continue
            if not self.options.follow or ended:
                self._print_rests()
                return
            self.idle()
            time.sleep(FOLLOW_SECONDS)

    @property
    def _plain(self) -> bool:
        """Whether the output of one worker is printed as it is."""
        return len(self.jobs) == 1 and self.options.rank is not None and not self.options.timestamps

    def _find_streams(self) -> None:
        for job in self.jobs:
            number = str(job["number"])
            ranks = [self.options.rank] if self.options.rank is not None else None
            for rank in ranks or self.source.ranks(number) or [0]:
                if (number, rank) not in self._streams:
                    label = self._label(job, rank)
                    self._streams[number, rank] = _Stream(number, rank, label)

    def _label(self, job: dict[str, Any], rank: int) -> str:
        words = [str(job["name"])] if len(self.jobs) > 1 else []
        words += [str(rank)] if self.options.rank is None else []
        return f"[{' '.join(words)}] " if words else ""

    def _print_more(self) -> bool:
        """Print what was written since the last time; whether there was something."""
        lines: list[tuple[float, str, bytes]] = []
        found = False
        for stream in self._streams.values():
            chunk = self._read(stream)
            found = found or bool(chunk.content)
            if self._plain:
                sys.stdout.buffer.write(chunk.content)
            elif chunk.content:
                lines += self._lines(stream, chunk)
        for when, label, line in sorted(lines, key=lambda one: one[0]):
            self._print_line(when, label, line)
        sys.stdout.buffer.flush()
        return found

    def _read(self, stream: _Stream) -> LogChunk:
        options = self.options
        tail, since = (None, None) if stream.begun else (options.tail, options.since)
        chunk = self.source.log(stream.number, stream.rank, stream.start, tail, since)
        cut = chunk.start - stream.start
        if cut > 0 and tail is None and since is None:
            kept = format_bytes(KEPT_BYTES)
            note = f"{format_bytes(cut)} were dropped: the last {kept} of each worker are kept"
            sys.stderr.write(f"aliquot: {stream.label}{note}\n")
        stream.start = chunk.start + len(chunk.content)
        stream.begun = stream.begun or bool(chunk.content) or options.since is None
        stream.final = chunk.phase is None or chunk.phase.final
        return chunk

    def _lines(self, stream: _Stream, chunk: LogChunk) -> list[tuple[float, str, bytes]]:
        """The lines that are complete now, with their times."""
        several = len(self._streams) > 1
        times = LogTimes()
        if several or self.options.timestamps:
            times = self.source.log_times(stream.number, stream.rank)
        at = chunk.start - len(stream.rest)
        *lines, stream.rest = (stream.rest + chunk.content).split(b"\n")
        found = []
        for line in lines:
            found.append((times.at(at) or 0.0, stream.label, line))
            at += len(line) + 1
        return found

    def _print_rests(self) -> None:
        """Print lines that have no end."""
        for stream in self._streams.values():
            if stream.rest:
                times = self.source.log_times(stream.number, stream.rank)
                when = times.at(stream.start - len(stream.rest)) or 0.0
                self._print_line(when, stream.label, stream.rest)
        sys.stdout.buffer.flush()

    def _print_line(self, when: float, label: str, line: bytes) -> None:
        stamp = f"{_stamp(when)} " if self.options.timestamps else ""
        sys.stdout.buffer.write(f"{stamp}{label}".encode() + line + b"\n")


class PoolOrFiles:
    """The logs of some jobs from their pool, and from their files while it does not answer.

    Meanwhile a job counts as in the phase that the pool said last, so that following it goes on.
    """

    def __init__(self, client: PoolClient, jobs: Sequence[dict[str, Any]]) -> None:
        self._client, self._kept = client, kept_logs_of(client.directory, jobs)
        self._phases: dict[str, JobPhase | None] = {}
        self._told = False

    def log(
        self, name: str, rank: int, start: int, tail: int | None, since: float | None
    ) -> LogChunk:
        """As PoolClient's."""
        try:
            chunk = self._client.log(name, rank, start, tail, since)
        except NoPoolError as error:
            self._tell(error)
            try:
                chunk = self._kept.log(name, rank, start, tail, since)
            except AliquotError:  # a file of another user's: an admin reads it only by the pool
                chunk = LogChunk(start, b"", None)
            return replace(chunk, phase=self._phases.get(name, JobPhase.RUNNING))
        self._told = False
        self._phases[name] = chunk.phase
        return chunk

    def log_times(self, name: str, rank: int) -> LogTimes:
        """As PoolClient's."""
        try:
            return self._client.log_times(name, rank)
        except NoPoolError:
            return self._kept.log_times(name, rank)

    def ranks(self, name: str) -> list[int]:
        """As PoolClient's."""
        try:
            return self._client.ranks(name)
        except NoPoolError:
            return self._kept.ranks(name)

    def _tell(self, error: NoPoolError) -> None:
        if not self._told:
            note = f"aliquot: {error.message}; reading the files of the output until it is back\n"
            sys.stderr.write(note)
            sys.stderr.flush()
        self._told = True


def parse_rank(text: str) -> int | None:
    """Read a rank, or `all` as None."""
    if text == "all":
        return None
    if not text.isdecimal() or len(text) > 5:
        raise InvalidValueError(f"{text!r} is not a rank", "Write a number from 0 on, or all.")
    return int(text)


def _stamp(when: float) -> str:
    """A time as in ISO 8601, in this time zone."""
    if not when:
        return "-"
    return datetime.fromtimestamp(when).astimezone().isoformat(timespec="seconds")


class WaitingNotes:
    """Says on standard error why the followed jobs wait, once for each reason."""

    def __init__(self, ask: Callable[[str], dict[str, Any]], numbers: Sequence[str]) -> None:
        self._ask, self._numbers = ask, list(numbers)
        self._said: dict[str, str] = {}

    def __call__(self) -> None:
        """Say what is new."""
        for number in self._numbers:
            try:
                job = self._ask(number)
            except NoPoolError:
                continue
            why = job["waiting"]
            if why and self._said.get(number) != why:
                sys.stderr.write(f"aliquot: {job['name']} ({number}) waits: {why}\n")
                sys.stderr.flush()
            self._said[number] = why or ""
