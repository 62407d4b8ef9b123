"""What a pool remembers, in SQLite: jobs, their records, every change with its reason.

A record is written before anything is done by it, together with the line that says why. Writers
name the version they read: of two that change one record, the second reads again. Where nothing can
be written (a full disk), StoreError is raised and nothing has changed; what runs runs on.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import AliquotError
from aliquot.pool.forms import (
    Submission,
    read_record,
    read_submission,
    record_words,
    submission_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aliquot.model.job import Job
    from aliquot.model.status import Record

_FORM = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    record TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    final INTEGER NOT NULL DEFAULT 0,
    progress TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS events (
    job INTEGER NOT NULL REFERENCES jobs (number),
    at REAL NOT NULL,
    generation INTEGER NOT NULL,
    state TEXT NOT NULL,
    size INTEGER NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_job ON events (job, at);
"""


class StoreError(AliquotError):
    """What must be remembered cannot be written or read."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A job as it is remembered. `progress` is what its workers last reported."""

    submission: Submission
    record: Record
    version: int
    progress: dict[str, float | int | None]
    speeds: dict[int, float]

    @property
    def job(self) -> Job:
        """What was asked for."""
        return self.submission.job


@dataclass(frozen=True, slots=True)
class Event:
    """A change, and why."""

    at: float
    generation: int
    state: str
    size: int
    reason: str


class Store:
    """The one database of a pool, for all its threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._base = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.execute("PRAGMA foreign_keys = ON")
            self._base.executescript(_TABLES)
            self._check_form()
        except sqlite3.Error as error:
            raise self._error(error) from error
        path.chmod(0o600)

    def close(self) -> None:
        """Write out all and let go."""
        with self._lock:
            self._base.close()

    def add(self, submission: Submission, record: Record) -> Stored:
        """Remember a new job, and give it its number."""
        job = submission.job
        spec = submission_words(submission)
        with self._writing() as base:
            row = base.execute(
                "INSERT INTO jobs (name, spec, record) VALUES (?, ?, ?) RETURNING number",
                (job.name, json.dumps(spec), json.dumps(record_words(record))),
            ).fetchone()
            self._note(base, row[0], record)
        numbered = replace(submission, job=replace(job, number=row[0]))
        return Stored(numbered, record, 0, {}, {})

    def save(self, stored: Stored, record: Record) -> Stored | None:
        """Remember a change; None where another was quicker."""
        if record == stored.record:
            return stored
        number = stored.job.number
        with self._writing() as base:
            done = base.execute(
                "UPDATE jobs SET record = ?, version = version + 1, final = ?"
                " WHERE number = ? AND version = ?",
                (json.dumps(record_words(record)), record.state.final, number, stored.version),
            )
            if done.rowcount == 0:
                return None
            if _differs(stored.record, record):
                self._note(base, number, record)
        return replace(stored, record=record, version=stored.version + 1)

    def note_progress(
        self, number: int, progress: dict[str, float | int | None], speeds: dict[int, float]
    ) -> None:
        """Remember how far a job is, and how fast it was at each size."""
        with self._writing() as base:
            words = json.dumps({"last": progress, "speeds": speeds})
            base.execute("UPDATE jobs SET progress = ? WHERE number = ?", (words, number))

    def all(self, *, unfinished: bool = False) -> list[Stored]:
        """All jobs, in the order they came."""
        where = "WHERE final = 0" if unfinished else ""
        return self._read(f"{where} ORDER BY number")

    def find(self, wanted: str) -> Stored | None:
        """The job of that number; or the last of that name, one that is not over before others."""
        if wanted.isdecimal():
            found = self._read("WHERE number = ?", int(wanted))
        else:
            found = self._read("WHERE name = ? ORDER BY final, number DESC LIMIT 1", wanted)
        return found[0] if found else None

    def events(self, number: int) -> list[Event]:
        """All that happened to a job, the first first."""
        rows = self._ask(
            "SELECT at, generation, state, size, reason FROM events WHERE job = ? ORDER BY rowid",
            number,
        )
        return [Event(*row) for row in rows]

    def _read(self, where: str, *values: object) -> list[Stored]:
        rows = self._ask(
            f"SELECT number, spec, record, version, progress FROM jobs {where}",  # noqa: S608 - ours
            *values,
        )
        return [_stored(*row) for row in rows]

    def _ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._base.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                try:
                    yield self._base
                    self._base.execute("COMMIT")
                except BaseException:
                    if self._base.in_transaction:
                        self._base.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._error(error) from error

    def _check_form(self) -> None:
        (form,) = self._base.execute("PRAGMA user_version").fetchone()
        if form not in {0, _FORM}:
            raise StoreError(
                f"{self._path} is of another version of Aliquot (form {form}, here {_FORM})"
            )
        self._base.execute(f"PRAGMA user_version = {_FORM}")

    def _error(self, error: sqlite3.Error) -> StoreError:
        return StoreError(
            f"the pool's database {self._path} cannot be used: {error}",
            "Make room on its disk, or see to its permissions; jobs that run, run on.",
        )

    @staticmethod
    def _note(base: sqlite3.Connection, number: int, record: Record) -> None:
        base.execute(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
            (
                number,
                record.since,
                record.generation,
                record.state,
                record.size if record.leaving is None else record.leaving.size,
                record.reason,
            ),
        )


def _differs(old: Record, new: Record) -> bool:
    """Whether a person would call it a change."""
    return (old.state, old.reason, old.size) != (new.state, new.reason, new.size)


def _stored(number: int, spec: str, record: str, version: int, progress: str) -> Stored:
    words = json.loads(progress)
    return Stored(
        read_submission(json.loads(spec), number),
        read_record(json.loads(record)),
        version,
        words.get("last", {}),
        {int(size): speed for size, speed in words.get("speeds", {}).items()},
    )
