"""The pool's database, in SQLite: jobs, their states, and every change with its reason.

A state is written before the pool acts on it, in one transaction with its history entry. A writer
names the version that it read: if two change one job, the second must read it again. If a write
fails (a full disk), StoreError is raised, nothing has changed, and workers keep running.

Names are per user. A database of version 1 had no owners: its jobs belong to the pool's user. One
of version 2 had the names of arrays only in the jobs' JSON.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import AliquotError
from aliquot.model.job import JobPhase
from aliquot.model.owner import Owner
from aliquot.placement.queues.users import PastUse
from aliquot.pool.encoding import (
    Submission,
    decode_state,
    decode_submission,
    encode_state,
    encode_submission,
)
from aliquot.pool.peers import this_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState

MOST_EVENTS = 1000  # of a job; its user can change it as often as it likes

_VERSION = 3
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    array TEXT NOT NULL DEFAULT '',
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
CREATE TABLE IF NOT EXISTS past_use (
    uid INTEGER PRIMARY KEY,
    gpu_seconds REAL NOT NULL,
    at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS admitted_grants (
    name TEXT NOT NULL,
    pid INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    user TEXT NOT NULL,
    queue TEXT NOT NULL,
    PRIMARY KEY (uid, name, pid)
);
"""
_NUMBERS = 1 << 63  # SQLite has no larger ones
_INDEXES = """
CREATE INDEX IF NOT EXISTS jobs_by_name ON jobs (uid, name);
CREATE INDEX IF NOT EXISTS jobs_by_array ON jobs (uid, array);
"""
_COLUMNS = "number, uid, gid, user, spec, state, version, progress"


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

    @property
    def owner(self) -> Owner:
        """The user that the job belongs to."""
        return self.submission.owner


@dataclass(frozen=True, slots=True)
class RunGrant:
    """The grant of a command that the pool admits: its plain name and process, and who pays for it.

    A later grant of its owner can have the same name, but not the same process too.
    """

    name: str
    pid: int
    owner: Owner
    queue: str


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
        self._decoded: dict[int, tuple[str, Submission]] = {}  # of unfinished jobs
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)  # SQLite makes its other files with the same mode
            self._database = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.executescript(_TABLES)
            self._migrate()
            self._database.executescript(_INDEXES)
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def add(self, submission: Submission, state: JobState) -> StoredJob:
        """Add a new job and give it its number."""
        return self.add_all([submission], state)[0]

    def add_all(self, submissions: Sequence[Submission], state: JobState) -> list[StoredJob]:
        """Add new jobs, all or none, and give them their numbers."""
        added = []
        with self._writing() as database:
            for one in submissions:
                row = database.execute(
                    "INSERT INTO jobs (uid, gid, user, name, array, spec, state)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING number",
                    (
                        *(one.owner.uid, one.owner.gid, one.owner.name, one.job.name),
                        "" if one.job.array is None else one.job.array.name,
                        *(json.dumps(encode_submission(one)), json.dumps(encode_state(state))),
                    ),
                ).fetchone()
                self._add_event(database, row[0], state)
                numbered = replace(one, job=replace(one.job, number=row[0]))
                added.append(StoredJob(numbered, state, 0, {}, {}))
        return added

    def update(self, stored: StoredJob, job: Job, what: str) -> StoredJob | None:
        """Write a changed job, and what changed; None if it has changed since it was read."""
        submission = replace(stored.submission, job=job)
        with self._writing() as database:
            done = database.execute(
                "UPDATE jobs SET spec = ?, version = version + 1 WHERE number = ? AND version = ?",
                (json.dumps(encode_submission(submission)), job.number, stored.version),
            )
            if done.rowcount == 0:
                return None
            entry = replace(stored.state, since=time.time(), reason=what)
            self._add_event(database, job.number, entry)
        return replace(stored, submission=submission, version=stored.version + 1)

    def delete(self, numbers: Sequence[int]) -> None:
        """Forget finished jobs and their history."""
        with self._writing() as database:
            for number in numbers:
                database.execute("DELETE FROM events WHERE job = ?", (number,))
                database.execute("DELETE FROM jobs WHERE number = ? AND final", (number,))

    def save(self, stored: StoredJob, state: JobState) -> StoredJob | None:
        """Write a new state; None if the job has changed since it was read.

        A finished job keeps no environment.
        """
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
            if state.phase.final:  # it may be long, and have secrets
                database.execute(
                    "UPDATE jobs SET spec = json_set(spec, '$.environment', json('{}'))"
                    " WHERE number = ?",
                    (number,),
                )
            if _differs(stored.state, state):
                is_entered = state.since != stored.state.since
                entry = state if is_entered else replace(state, since=time.time())
                self._add_event(database, number, entry)
        return replace(stored, state=state, version=stored.version + 1)

    def save_progress(
        self, number: int, progress: dict[str, float | int | None], speeds: dict[int, float]
    ) -> None:
        """Write the progress of a job and its speed at each size."""
        with self._writing() as database:
            content = json.dumps({"last": progress, "speeds": speeds})
            database.execute("UPDATE jobs SET progress = ? WHERE number = ?", (content, number))

    def all(
        self,
        *,
        unfinished: bool = False,
        of_user: int | None = None,
        finished_since: float | None = None,
    ) -> list[StoredJob]:
        """All jobs, or those of one user, in the order they were submitted.

        `finished_since`: the unfinished ones, and those that finished after that time.
        """
        where = "WHERE final <= ? AND (? IS NULL OR uid = ?)"
        values: list[object] = [int(not unfinished), of_user, of_user]
        if finished_since is not None:
            where += " AND (final = 0 OR json_extract(state, '$.since') >= ?)"
            values.append(finished_since)
        return self._read(f"{where} ORDER BY number", *values)

    def finished(self, uid: int | None = None) -> list[tuple[int, int, float]]:
        """The finished jobs, of one user or of all: number, user, and when it ended."""
        rows = self._ask(
            "SELECT number, uid, json_extract(state, '$.since') FROM jobs"
            " WHERE final = 1 AND (? IS NULL OR uid = ?)",
            *(uid, uid),
        )
        return [(number, owner, ended) for number, owner, ended in rows]

    def newest_finished(self, uid: int, most: int) -> list[tuple[int, str, int, str | None, float]]:
        """A user's last finished jobs: number, name, most workers, array, and a time.

        That is when the job was submitted, or its array.
        """
        rows = self._ask(
            "SELECT number, name, json_extract(spec, '$.sizes[#-1]'),"
            " NULLIF(array, ''),"
            " COALESCE(json_extract(spec, '$.array.begun'), json_extract(spec, '$.submitted'))"
            " FROM jobs WHERE number IN (SELECT number FROM jobs WHERE uid = ? AND final = 1"
            " ORDER BY number DESC LIMIT ?) ORDER BY number",
            *(uid, most),
        )
        return [(*row[:4], float(row[4])) for row in rows]

    def uids(self) -> set[int]:
        """The users that have jobs."""
        return {int(uid) for (uid,) in self._ask("SELECT DISTINCT uid FROM jobs")}

    def phase_of(self, number: int) -> JobPhase | None:
        """The phase of a job; None if there is no such job."""
        rows = self._ask("SELECT json_extract(state, '$.phase') FROM jobs WHERE number = ?", number)
        return JobPhase(rows[0][0]) if rows else None

    def numbered(self, number: int) -> StoredJob | None:
        """The job of that number."""
        found = self._read("WHERE number = ?", number) if number < _NUMBERS else []
        return found[0] if found else None

    def named(self, uid: int, name: str) -> StoredJob | None:
        """The newest job of that user and name; unfinished jobs come first."""
        where = "WHERE uid = ? AND name = ? ORDER BY final, number DESC LIMIT 1"
        found = self._read(where, uid, name)
        return found[0] if found else None

    def named_of(self, user: str, name: str) -> StoredJob | None:
        """As `named`, of a user by name or number."""
        where = "WHERE (user = ? OR CAST(uid AS TEXT) = ?) AND name = ?"
        found = self._read(f"{where} ORDER BY final, number DESC LIMIT 1", user, user, name)
        return found[0] if found else None

    def unfinished_of(self, uid: int) -> tuple[int, int]:
        """How many unfinished jobs a user has, and how many bytes they take."""
        question = "SELECT COUNT(*), TOTAL(LENGTH(spec)) FROM jobs WHERE uid = ? AND final = 0"
        ((jobs, size),) = self._ask(question, uid)
        return int(jobs), int(size)

    def past_use(self) -> dict[int, PastUse]:
        """What each user has used."""
        rows = self._ask("SELECT uid, gpu_seconds, at FROM past_use")
        return {uid: PastUse(gpu_seconds, at) for uid, gpu_seconds, at in rows}

    def save_past_use(self, past: Mapping[int, PastUse]) -> None:
        """Write what each user has used."""
        with self._writing() as database:
            rows = [(uid, one.gpu_seconds, one.at) for uid, one in past.items()]
            database.execute("DELETE FROM past_use")
            database.executemany("INSERT INTO past_use VALUES (?, ?, ?)", rows)

    def run_grants(self) -> list[RunGrant]:
        """The grants of commands that the pool admitted; some have ended, or were never made."""
        rows = self._ask("SELECT name, pid, uid, gid, user, queue FROM admitted_grants")
        return [
            RunGrant(name, pid, Owner(uid, gid, user), queue)
            for name, pid, uid, gid, user, queue in rows
        ]

    def add_run_grant(self, one: RunGrant) -> bool:
        """Write the grant of a command; False if its process has one of this name."""
        owner = one.owner
        values = (one.name, one.pid, owner.uid, owner.gid, owner.name, one.queue)
        with self._writing() as database:
            change = "INSERT OR IGNORE INTO admitted_grants VALUES (?, ?, ?, ?, ?, ?)"
            return database.execute(change, values).rowcount == 1

    def delete_run_grants(self, ended: Sequence[RunGrant]) -> None:
        """Forget grants that have ended."""
        with self._writing() as database:
            rows = [(one.owner.uid, one.name, one.pid) for one in ended]
            change = "DELETE FROM admitted_grants WHERE uid = ? AND name = ? AND pid = ?"
            database.executemany(change, rows)

    def users_with(self, name: str) -> list[str]:
        """The users that have unfinished jobs, or arrays with some, of that name."""
        where = "WHERE (name = ? OR array = ?) AND final = 0 ORDER BY user"
        rows = self._ask(f"SELECT DISTINCT user FROM jobs {where}", name, name)  # noqa: S608 - ours
        return [str(user) for (user,) in rows]

    def array(self, uid: int, name: str) -> list[StoredJob]:
        """The jobs of that user's newest array of this name; an unfinished one comes first.

        Of jobs with the same index only the newest: the others were submitted again.
        """
        return self._newest_array("uid = ?", name, uid)

    def array_of(self, user: str, name: str) -> list[StoredJob]:
        """As `array`, of a user by name or number."""
        return self._newest_array("(user = ? OR CAST(uid AS TEXT) = ?)", name, user, user)

    def _newest_array(self, whose: str, name: str, *values: object) -> list[StoredJob]:
        if not name:  # jobs of no array have this
            return []
        found = self._read(f"WHERE {whose} AND array = ? ORDER BY number", *values, name)
        unfinished = [one for one in found if not one.state.phase.final]
        newest = max((one.job.array_begun for one in unfinished or found), default=0.0)
        members = [one for one in found if one.job.array_begun == newest]
        by_name = {one.job.name: one for one in members}
        return list(by_name.values())

    def names_like(self, uid: int, base: str) -> set[str]:
        """The names of that user's jobs that begin with `base`, which has no special characters."""
        rows = self._ask(
            "SELECT DISTINCT name FROM jobs WHERE uid = ? AND name GLOB ?", uid, f"{base}*"
        )
        return {row[0] for row in rows}

    def events(self, number: int) -> list[JobEvent]:
        """The last changes of a job, oldest first."""
        rows = self._ask(
            "SELECT at, generation, phase, size, reason FROM events WHERE job = ? ORDER BY rowid",
            number,
        )
        return [JobEvent(*row) for row in rows]

    def add_event(self, number: int, state: JobState, reason: str) -> None:
        """Write down what happened to a job now without a change of its state."""
        with self._writing() as database:
            self._add_event(database, number, replace(state, since=time.time(), reason=reason))

    def _read(self, where: str, *values: object) -> list[StoredJob]:
        rows = self._ask(
            f"SELECT {_COLUMNS} FROM jobs {where}",  # noqa: S608 - ours
            *values,
        )
        return [self._stored(*row) for row in rows]

    def _stored(  # noqa: PLR0913, PLR0917 - one for each column
        self,
        number: int,
        uid: int,
        gid: int,
        user: str,
        spec: str,
        state: str,
        version: int,
        progress: str,
    ) -> StoredJob:
        """A row as a job. The pool reads unfinished ones all the time: what did not change stays.

        A user can have megabytes of them.
        """
        known = self._decoded.get(number)
        if known is None or known[0] != spec:
            known = spec, decode_submission(json.loads(spec), Owner(uid, gid, user), number)
        decoded, content = decode_state(json.loads(state)), json.loads(progress)
        if decoded.phase.final:
            self._decoded.pop(number, None)
        else:
            self._decoded[number] = known
        return StoredJob(
            known[1],
            decoded,
            version,
            content.get("last", {}),
            {int(size): speed for size, speed in content.get("speeds", {}).items()},
        )

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

    def _migrate(self) -> None:
        """Bring a database of an earlier version to this one, in one transaction."""
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if not 0 <= version <= _VERSION:
            raise StoreError(
                f"{self._path} was written by another version of Aliquot (schema {version}, not"
                f" {_VERSION})",
                "Use that version. Or move the file away: then the pool forgets its jobs.",
            )
        if version == _VERSION:
            return
        with self._writing() as database:
            if version == 1:
                self._add_owners(database, this_user())
            if version in {1, 2}:
                self._add_arrays(database)
            database.execute(f"PRAGMA user_version = {_VERSION}")

    @staticmethod
    def _add_owners(database: sqlite3.Connection, owner: Owner) -> None:
        for column, value in (("uid", owner.uid), ("gid", owner.gid)):
            change = f"ALTER TABLE jobs ADD COLUMN {column} INTEGER NOT NULL DEFAULT {value:d}"
            database.execute(change)
        database.execute("ALTER TABLE jobs ADD COLUMN user TEXT NOT NULL DEFAULT ''")
        database.execute("UPDATE jobs SET user = ?", (owner.name,))

    @staticmethod
    def _add_arrays(database: sqlite3.Connection) -> None:
        database.execute("ALTER TABLE jobs ADD COLUMN array TEXT NOT NULL DEFAULT ''")
        database.execute("UPDATE jobs SET array = COALESCE(json_extract(spec, '$.array.name'), '')")

    def _error(self, error: OSError | sqlite3.Error) -> StoreError:
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
        database.execute(
            "DELETE FROM events WHERE job = ?1 AND rowid <= (SELECT rowid FROM events"
            " WHERE job = ?1 ORDER BY rowid DESC LIMIT 1 OFFSET ?2)",
            (number, MOST_EVENTS),
        )


def _differs(old: JobState, new: JobState) -> bool:
    """Whether the change deserves an entry in the history."""
    return (old.phase, old.reason, old.size) != (new.phase, new.reason, new.size)
