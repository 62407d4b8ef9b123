"""What GPUs and slices used: a day in points of 15 s, a month in points of 15 min; and waste.

One SQLite file, because it is part of Python, survives kills and power cuts, and holds its own
limit of size. Where nothing was measured there is no point, so that a page can show the gap.

- A full disk stops the recording, `problem` says so, and it goes on when there is room.
- At the limit of its size the store forgets its oldest points first.
- Points are at the time of day that the machine had. Nothing is forgotten for its age within an
  hour after a start or after the clock was changed: a wrong clock does not take the past with it.
- Hours of use are counted by the clock that nobody can set.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

STEP, COARSE_STEP = 15, 900
DAY, MONTH = 86400, 31 * 86400
MOST_BYTES = 2 * 10**9
IDLE_RATIO = 0.01  # who gets less of the GPU's time is idle

_WAL_BYTES = 16 << 20
_PAGE_BYTES = 4096
_JUMP_SECONDS = 30.0  # the clock was changed, or the machine slept
_QUIET_SECONDS = 3600.0
_FORGET_AT_ONCE = 200  # series, after each 15 s
_LONGEST_READING = 60.0  # a reading speaks for no more time than this
_MOST_SERIES = 8192
_BUSY_SECONDS = 5.0
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SCALE = 10_000  # ratios are stored as whole numbers

_HOURS = ("month", "user", "queue", "model", "granted", "idle", "unknown")

_TABLES = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, gpu TEXT NOT NULL,
    UNIQUE (kind, name, gpu));
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, at INTEGER NOT NULL, used INTEGER, part INTEGER, busy INTEGER,
    PRIMARY KEY (series, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS coarse (
    series INTEGER NOT NULL, at INTEGER NOT NULL, used INTEGER, part INTEGER,
    busy INTEGER NOT NULL, measured INTEGER NOT NULL,
    PRIMARY KEY (series, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hours (
    month TEXT NOT NULL, user TEXT NOT NULL, queue TEXT NOT NULL, model TEXT NOT NULL,
    granted REAL NOT NULL, idle REAL NOT NULL, unknown REAL NOT NULL,
    PRIMARY KEY (month, user, queue, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS prices (model TEXT PRIMARY KEY, per_hour REAL NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class SeriesReading:
    """One reading of a GPU or a slice: bytes used, bytes granted, compute time got (0 to 1)."""

    kind: str  # gpu, slice
    name: str
    gpu: str
    used: int | None
    part: int | None
    busy: float | None


@dataclass(frozen=True, slots=True)
class KeptShare:
    """What one slice keeps of a GPU now: `part` of it, 0 to 1; what it gets is None if unknown."""

    user: str
    queue: str | None
    model: str
    part: float
    busy: float | None


@dataclass(slots=True)
class _Slot:
    """The readings of one series in the 15 s that are not over."""

    used: int | None = None
    part: int | None = None
    busy: list[float] = field(default_factory=list)

    def add(self, sample: SeriesReading) -> None:
        if sample.used is not None:
            self.used = max(self.used or 0, sample.used)
        if sample.part is not None:
            self.part = sample.part
        if sample.busy is not None:
            self.busy.append(sample.busy)

    @property
    def row(self) -> tuple[int | None, int | None, int | None]:
        busy = round(sum(self.busy) / len(self.busy) * _SCALE) if self.busy else None
        return self.used, self.part, busy


_Key = tuple[str, str, str]


class HistoryStore:
    """The store of one console. Its methods never raise because of the disk: see `problem`."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.problem: str | None = None
        self._most_pages = max(64, (most_bytes - _WAL_BYTES) // _PAGE_BYTES)
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._slot, self._open = 0, dict[_Key, _Slot]()
        self._hours: dict[tuple[str, str, str, str], list[float]] = {}
        self._ids: dict[_Key, int] = {}
        self._last: tuple[float, float] | None = None  # the time of day, and the steady clock
        self._quiet_until: float | None = None
        self._forgot = 0  # the last series of which old points were forgotten

    def add(
        self,
        at: float,
        steady: float,
        samples: Iterable[SeriesReading],
        uses: Iterable[KeptShare] = (),
    ) -> None:
        """Add a reading: at which time of day, and at which time of a clock that nobody sets."""
        with self._lock:
            self._add_hours(at, steady, uses)
            slot = int(at // STEP) * STEP
            if slot != self._slot:
                self._write(steady)
                self._slot = slot
            for one in samples:
                key = (one.kind, one.name, one.gpu)
                if key in self._open or len(self._open) < _MOST_SERIES:
                    self._open.setdefault(key, _Slot()).add(one)
            self._last = at, steady

    def close(self) -> None:
        """Write what is not written."""
        with self._lock:
            self._write(None)
            if self._database is not None:
                self._database.close()
                self._database = None

    def _add_hours(self, at: float, steady: float, uses: Iterable[KeptShare]) -> None:
        if self._last is None or self._quiet_until is None:
            self._quiet_until = steady + _QUIET_SECONDS
            return
        passed = steady - self._last[1]
        if abs((at - self._last[0]) - passed) > _JUMP_SECONDS:
            self._quiet_until = steady + _QUIET_SECONDS
        hours = min(max(0.0, passed), _LONGEST_READING) / 3600
        month = datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
        for one in uses:
            sums = self._hours.setdefault(
                (month, one.user, one.queue or "", one.model), [0.0, 0.0, 0.0]
            )
            sums[0] += one.part * hours
            sums[1] += one.part * hours * (one.busy is not None and one.busy < IDLE_RATIO)
            sums[2] += one.part * hours * (one.busy is None)

    # --- writing ---

    def _write(self, steady: float | None) -> None:
        """Write the slot that is over; with the time of the steady clock, forget what is old."""
        if not self._open and not self._hours:
            return
        try:
            database = self._connected()
            try:
                self._write_rows(database)
            except sqlite3.OperationalError:
                if not self._is_at_limit(database):
                    raise
                self._forget_oldest(database)
                self._write_rows(database)
            self._open, self._hours, self.problem = {}, {}, None
            if steady is not None and steady >= (self._quiet_until or steady):
                last = self._forget(
                    database, self._slot - DAY, self._slot - MONTH, self._forgot, _FORGET_AT_ONCE
                )
                self._forgot = last or 0
        except (sqlite3.Error, ValueError, OverflowError) as error:
            self._open = {}  # hours are written later; points of this time are not known
            self._ids = {}
            self._give_up(error)
        except OSError as error:
            self._open, self._ids = {}, {}
            self.problem = f"history is not recorded: {error.strerror or error}"

    def _give_up(self, error: Exception) -> None:
        self.problem = f"history is not recorded: {error}"
        broken = getattr(error, "sqlite_errorcode", None) in _BROKEN
        if self._database is not None and (broken or self._database.in_transaction):
            self._database.close()
            self._database = None
        if broken:
            with suppress(OSError):
                self.path.replace(self.path.with_suffix(".broken"))
                for end in ("-wal", "-shm"):
                    self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    def _write_rows(self, database: sqlite3.Connection) -> None:
        with database:  # all or nothing
            database.execute("BEGIN IMMEDIATE")
            ids = dict(self._ids)
            for key in self._open:
                if key not in ids:
                    ids[key] = self._id(database, key)
            rows = [(ids[key], self._slot, *slot.row) for key, slot in self._open.items()]
            database.executemany(
                "INSERT INTO points VALUES (?, ?, ?, ?, ?) ON CONFLICT (series, at) DO UPDATE SET"
                " used = excluded.used, part = excluded.part, busy = excluded.busy",
                rows,
            )
            coarse = self._slot - self._slot % COARSE_STEP
            database.executemany(
                "INSERT INTO coarse VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (series, at) DO UPDATE"
                " SET used = max(coalesce(used, excluded.used), coalesce(excluded.used, used)),"
                " part = coalesce(excluded.part, part), busy = busy + excluded.busy,"
                " measured = measured + excluded.measured",
                [
                    (one, coarse, used, part, busy or 0, int(busy is not None))
                    for one, _, used, part, busy in rows
                ],
            )
            database.executemany(
                "INSERT INTO hours VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET granted ="
                " granted + excluded.granted, idle = idle + excluded.idle,"
                " unknown = unknown + excluded.unknown",
                [(*key, *sums) for key, sums in self._hours.items()],
            )
        self._ids = {key: ids[key] for key in self._open}

    @staticmethod
    def _id(database: sqlite3.Connection, key: _Key) -> int:
        database.execute("INSERT OR IGNORE INTO series (kind, name, gpu) VALUES (?, ?, ?)", key)
        (found,) = database.execute(
            "SELECT id FROM series WHERE kind = ? AND name = ? AND gpu = ?", key
        ).fetchone()
        return int(found)

    def _connected(self) -> sqlite3.Connection:
        if self._database is None:
            os.close(
                os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            )
            database = sqlite3.connect(
                self.path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
                database.execute(f"PRAGMA max_page_count = {self._most_pages}")
                database.executescript(_TABLES)
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database

    # --- forgetting ---

    def _is_at_limit(self, database: sqlite3.Connection) -> bool:
        """Whether the file is as large as it may be, and not the disk that is full."""
        (count,) = database.execute("PRAGMA page_count").fetchone()
        return bool(count >= self._most_pages - 64)

    @staticmethod
    def _forget(
        database: sqlite3.Connection, fine: int, coarse: int, after: int = 0, count: int = -1
    ) -> int | None:
        """Forget points before these times, of so many series after that one, and empty series.

        The last series that was looked at; None: there are no more. Each is a transaction of its
        own, so that the log beside the file stays small.
        """
        last, query = None, "SELECT id FROM series WHERE id > ? ORDER BY id LIMIT ?"
        for (last,) in database.execute(query, (after, count)).fetchall():
            with database:
                database.execute("BEGIN IMMEDIATE")
                database.execute("DELETE FROM points WHERE series = ? AND at < ?", (last, fine))
                database.execute("DELETE FROM coarse WHERE series = ? AND at < ?", (last, coarse))
                database.execute(
                    "DELETE FROM series WHERE id = ?"
                    " AND NOT EXISTS (SELECT 1 FROM points WHERE series = id)"
                    " AND NOT EXISTS (SELECT 1 FROM coarse WHERE series = id)",
                    (last,),
                )
        return last

    def _forget_oldest(self, database: sqlite3.Connection) -> None:
        """Make room: forget the older half of all points of 15 s, or of the others."""
        first, last = database.execute("SELECT min(at), max(at) FROM points").fetchone()
        began = database.execute("SELECT min(at) FROM coarse").fetchone()[0]
        first, last, began = (self._slot if one is None else one for one in (first, last, began))
        middle = (first + last) // 2 + 1
        self._forget(database, middle, began if middle <= last else (began + last) // 2)
        self._ids = {}

    # --- reading ---

    def points(
        self, kind: str, name: str, gpu: str, since: float, *, coarse: bool
    ) -> list[dict[str, Any]]:
        """The points of one series since then, oldest first; the last one may still grow."""
        found = list(self.rows(kind, since, coarse=coarse, name=name, gpu=gpu))
        with self._lock:
            slot, at = self._open.get((kind, name, gpu)), self._slot
            row = None if slot is None else slot.row
        if row is not None and not coarse and since <= at > (found[-1]["at"] if found else 0):
            found.append(_point((name, gpu), at, row))
        return found

    def rows(
        self,
        kind: str,
        since: float,
        *,
        coarse: bool,
        name: str | None = None,
        gpu: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Points of all series of a kind, or of one; from a connection of its own.

        Those of one series are read at once: who takes them slowly, or never takes the rest, keeps
        no old state of the file, and so does not make its log grow.
        """
        table = "coarse" if coarse else "points"
        busy = "CAST(busy AS REAL) / nullif(measured, 0)" if coarse else "busy"
        wanted, given = "kind = ?", [kind]
        for column, value in (("name", name), ("gpu", gpu)):
            if value is not None:
                wanted, given = f"{wanted} AND {column} = ?", [*given, value]
        every = f"SELECT id, name, gpu FROM series WHERE {wanted} ORDER BY id"  # noqa: S608 - our own words
        points = (
            f"SELECT at, used, part, {busy} FROM {table}"  # noqa: S608 - our own words
            " WHERE series = ? AND at >= ? ORDER BY at"
        )
        with self._reader() as read:
            for series, *names in read(every, given):
                for at, *figures in read(points, [series, int(since)]):
                    yield _point((names[0], names[1]), at, tuple(figures))

    def gpus_of(self, name: str) -> list[str]:
        """The GPUs of a slice that has points."""
        query = "SELECT gpu FROM series WHERE kind = 'slice' AND name = ? ORDER BY id"
        found = [one for (one,) in self._read(query, [name])]
        with self._lock:
            now = [gpu for kind, slice_, gpu in self._open if (kind, slice_) == ("slice", name)]
        return list(dict.fromkeys([*found, *now]))

    def last_named(self, prefix: str) -> str | None:
        """The newest series of slices whose name begins so."""
        query = (
            "SELECT name FROM series WHERE kind = 'slice' AND substr(name, 1, ?) = ?"
            " ORDER BY id DESC LIMIT 1"
        )
        for (found,) in self._read(query, [len(prefix), prefix]):
            return str(found)
        return None

    def hours(self) -> list[dict[str, Any]]:
        """GPU hours by month, user, queue and model, newest month first."""
        with self._lock:
            sums = {key: list(values) for key, values in self._hours.items()}
        query = "SELECT month, user, queue, model, granted, idle, unknown FROM hours"
        for month, user, queue, model, *written in self._read(query):
            key = (month, user, queue, model)
            found = sums.setdefault(key, [0.0, 0.0, 0.0])
            sums[key] = [one + more for one, more in zip(found, written, strict=True)]
        rows: list[dict[str, Any]] = [
            dict(zip(_HOURS, (*key, *values), strict=True)) | {"queue": key[2] or None}
            for key, values in sums.items()
        ]
        rows.sort(key=lambda row: (-row["idle"], row["user"], row["queue"] or ""))
        return sorted(rows, key=lambda row: str(row["month"]), reverse=True)

    def prices(self) -> dict[str, float]:
        """What an hour of a GPU costs, by model."""
        return dict(self._read("SELECT model, per_hour FROM prices ORDER BY model"))

    def set_price(self, model: str, per_hour: float | None) -> bool:
        """Set a price, or remove it; whether that could be written."""
        with self._lock:
            try:
                database = self._connected()
                if per_hour is None:
                    database.execute("DELETE FROM prices WHERE model = ?", [model])
                else:
                    database.execute(
                        "INSERT OR REPLACE INTO prices VALUES (?, ?)", [model, per_hour]
                    )
            except (sqlite3.Error, OSError):
                return False
            return True

    def _read(self, query: str, given: Iterable[Any] = ()) -> list[Any]:
        """All rows of one query; none if the store cannot be read."""
        with self._reader() as read:
            return read(query, given)

    @contextmanager
    def _reader(self) -> Iterator[Callable[[str, Iterable[Any]], list[Any]]]:
        """Reads beside what is written: all rows of a query, or none if that cannot be."""
        reader: sqlite3.Connection | None = None

        def read(query: str, given: Iterable[Any]) -> list[Any]:
            nonlocal reader
            try:
                if reader is None and self.path.exists():
                    uri = f"{self.path.absolute().as_uri()}?mode=ro"
                    reader = sqlite3.connect(uri, _BUSY_SECONDS, uri=True, check_same_thread=False)
                return [] if reader is None else reader.execute(query, tuple(given)).fetchall()
            except sqlite3.Error:
                return []

        try:
            yield read
        finally:
            if reader is not None:
                reader.close()


def _point(
    key: tuple[str, str], at: int, figures: tuple[int | None, int | None, float | None]
) -> dict[str, Any]:
    used, part, busy = figures
    return {
        "name": key[0],
        "gpu": key[1],
        "at": at,
        "used_bytes": used,
        "part_bytes": part,
        "got_ratio": None if busy is None else round(busy / _SCALE, 4),
    }


def now_and_steady() -> tuple[float, float]:
    """The time of day, and a clock that nobody sets and that runs while the machine sleeps."""
    return time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
