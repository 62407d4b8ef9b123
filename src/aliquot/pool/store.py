"""The pool's database, in SQLite: jobs, their states, and every change with its reason.

A state is written before the pool acts on it, in one transaction with its history entry. A writer
names the version that it read: if two change one job, the second must read it again. If a write
fails (a full disk), StoreError is raised, nothing has changed, and workers keep running.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import AliquotError
from aliquot.pool.encoding import (
    Submission,
    decode_state,
    decode_submission,
    encode_state,
    encode_submission,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState

_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    final INTEGER NOT NULL DEFAULT 0,
    progress TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS events (
    job INTEGER NOT NULL REFERENCES jobs (number),
    at REAL NOT NULL,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    size INTEGER NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_job ON events (job, at);
"""


class StoreError(AliquotError):
    """The pool's database cannot be read or written."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job in the database. `progress` is what its workers last reported."""

    submission: Submission
    state: JobState
    version: int
    progress: dict[str, float | int | None]
    speeds: dict[int, float]

    @property
    def job(self) -> Job:
        """The job as submitted."""
        return self.submission.job


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A change of a job, and why."""

    at: float
    generation: int
    phase: str
    size: int
    reason: str


class JobStore:
    """The database of a pool. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.executescript(_TABLES)
            self._check_version()
        except sqlite3.Error as error:
            raise self._error(error) from error
        path.chmod(0o600)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def add(self, submission: Submission, state: JobState) -> StoredJob:
        """Add a new job and give it its number."""
        job = submission.job
        spec = encode_submission(submission)
        with self._writing() as database:
            row = database.execute(
                "INSERT INTO jobs (name, spec, state) VALUES (?, ?, ?) RETURNING number",
                (job.name, json.dumps(spec), json.dumps(encode_state(state))),
            ).fetchone()
            self._add_event(database, row[0], state)
        numbered = replace(submission, job=replace(job, number=row[0]))
        return StoredJob(numbered, state, 0, {}, {})

    def save(self, stored: StoredJob, state: JobState) -> StoredJob | None:
        """Write a new state; None if the job has changed since it was read."""
        if state == stored.state:
            return stored
        number = stored.job.number
        with self._writing() as database:
            done = database.execute(
                "UPDATE jobs SET state = ?, version = version + 1, final = ?"
                " WHERE number = ? AND version = ?",
                (json.dumps(encode_state(state)), state.phase.final, number, stored.version),
            )
            if done.rowcount == 0:
                return None
            if _differs(stored.state, state):
                self._add_event(database, number, state)
        return replace(stored, state=state, version=stored.version + 1)

    def save_progress(
        self, number: int, progress: dict[str, float | int | None], speeds: dict[int, float]
    ) -> None:
        """Write the progress of a job and its speed at each size."""
        with self._writing() as database:
            content = json.dumps({"last": progress, "speeds": speeds})
            database.execute("UPDATE jobs SET progress = ? WHERE number = ?", (content, number))

    def all(self, *, unfinished: bool = False) -> list[StoredJob]:
        """All jobs, in the order they were submitted."""
        where = "WHERE final = 0" if unfinished else ""
        return self._read(f"{where} ORDER BY number")

    def find(self, wanted: str) -> StoredJob | None:
        """The job of that number, or the newest of that name; unfinished jobs come first."""
        if wanted.isdecimal():
            found = self._read("WHERE number = ?", int(wanted))
        else:
            found = self._read("WHERE name = ? ORDER BY final, number DESC LIMIT 1", wanted)
        return found[0] if found else None

    def events(self, number: int) -> list[JobEvent]:
        """All changes of a job, oldest first."""
        rows = self._ask(
            "SELECT at, generation, phase, size, reason FROM events WHERE job = ? ORDER BY rowid",
            number,
        )
        return [JobEvent(*row) for row in rows]

    def _read(self, where: str, *values: object) -> list[StoredJob]:
        rows = self._ask(
            f"SELECT number, spec, state, version, progress FROM jobs {where}",  # noqa: S608 - ours
            *values,
        )
        return [_stored(*row) for row in rows]

    def _ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._database.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                try:
                    yield self._database
                    self._database.execute("COMMIT")
                except BaseException:
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._error(error) from error

    def _check_version(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version not in {0, _VERSION}:
            raise StoreError(
                f"{self._path} was written by another version of Aliquot (schema {version}, not"
                f" {_VERSION})"
            )
        self._database.execute(f"PRAGMA user_version = {_VERSION}")

    def _error(self, error: sqlite3.Error) -> StoreError:
        return StoreError(
            f"cannot use the pool's database {self._path}: {error}",
            "Free disk space or correct its permissions. Running jobs keep running.",
        )

    @staticmethod
    def _add_event(database: sqlite3.Connection, number: int, state: JobState) -> None:
        database.execute(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)",
            (
                number,
                state.since,
                state.generation,
                state.phase,
                state.size if state.stopping is None else state.stopping.size,
                state.reason,
            ),
        )


def _differs(old: JobState, new: JobState) -> bool:
    """Whether the change deserves an entry in the history."""
    return (old.phase, old.reason, old.size) != (new.phase, new.reason, new.size)


def _stored(number: int, spec: str, state: str, version: int, progress: str) -> StoredJob:
    content = json.loads(progress)
    return StoredJob(
        decode_submission(json.loads(spec), number),
        decode_state(json.loads(state)),
        version,
        content.get("last", {}),
        {int(size): speed for size, speed in content.get("speeds", {}).items()},
    )
