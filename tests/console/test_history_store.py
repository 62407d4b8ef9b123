"""The store of what GPUs and slices used: what it keeps, and what it survives."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from aliquot.console.history_store import (
    COARSE_STEP,
    DAY,
    MONTH,
    STEP,
    HistoryStore,
    KeptShare,
    SeriesReading,
)
from aliquot.console.recorder import history_csv, slice_history, uses_of, waste_view
from console.conftest import full_disk

START = 1_800_000_000.0 - 1_800_000_000 % COARSE_STEP


class Clock:
    """A machine's clocks; somebody may set the time of day."""

    def __init__(self, store: HistoryStore) -> None:
        self.store, self.at, self.steady = store, START, 5.0

    def read(
        self, busy: float | None = 0.5, used: int | None = 100, count: int = 1, user: str = "ann"
    ) -> None:
        samples = [
            SeriesReading("slice", f"{n}@1.000", "GPU-0", used, 200, busy) for n in range(count)
        ]
        uses = [KeptShare(user, "team", "H100", 0.5, busy)]
        self.store.add(self.at, self.steady, samples, uses)

    def go(self, seconds: float, **reading: object) -> None:
        """Read every 5 s for so long."""
        for _ in range(int(seconds / 5)):
            self.at += 5
            self.steady += 5
            self.read(**reading)  # type: ignore[arg-type]

    def times(self, name: str = "0@1.000", *, coarse: bool = False) -> list[float]:
        found = self.store.points("slice", name, "GPU-0", 0, coarse=coarse)
        return [one["at"] - START for one in found]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    found = HistoryStore(tmp_path / "history.sqlite")
    yield found
    found.close()


@pytest.fixture
def clock(store: HistoryStore) -> Clock:
    return Clock(store)


def test_a_day_has_a_point_in_15_seconds_and_a_month_is_coarse(
    store: HistoryStore, clock: Clock
) -> None:
    clock.read(busy=0.0)
    clock.go(10, busy=0.3, used=150)
    clock.go(1800, busy=0.4)
    first, *_ = store.points("slice", "0@1.000", "GPU-0", 0, coarse=False)
    assert (first["used_bytes"], first["part_bytes"], first["got_ratio"]) == (150, 200, 0.2)
    assert clock.times()[:3] == [0, STEP, 2 * STEP]
    assert clock.times(coarse=True) == [0, COARSE_STEP]
    (coarse, *_) = store.points("slice", "0@1.000", "GPU-0", 0, coarse=True)
    assert coarse["used_bytes"] == 150, "the most"
    assert coarse["got_ratio"] == pytest.approx(0.4, abs=0.01)


def test_what_was_not_measured_is_absent(store: HistoryStore, clock: Clock) -> None:
    clock.go(60, busy=None, used=None)
    clock.at, clock.steady = clock.at + 600, clock.steady + 600
    clock.go(60)
    times = clock.times()
    assert [now - before for before, now in pairwise(times)].count(STEP) >= 5
    assert max(now - before for before, now in pairwise(times)) >= 585
    first = store.points("slice", "0@1.000", "GPU-0", 0, coarse=False)[0]
    assert (first["used_bytes"], first["got_ratio"]) == (None, None)
    assert store.points("slice", "0@1.000", "GPU-0", 0, coarse=True)[0]["got_ratio"] is not None
    assert store.points("slice", "nobody@1.000", "GPU-0", 0, coarse=False) == []


def test_a_restart_loses_nothing_that_was_read(store: HistoryStore, clock: Clock) -> None:
    clock.go(100)
    before = clock.times()
    store.close()
    after = HistoryStore(store.path)
    clock.store = after
    clock.steady = 3.0  # the machine was started again
    assert clock.times()[: len(before)] == before
    clock.go(100)
    assert len(clock.times()) > len(before) + 5
    assert after.path.stat().st_mode & 0o777 == 0o600
    after.close()


def test_what_is_old_is_forgotten(store: HistoryStore, clock: Clock) -> None:
    clock.go(60)
    clock.steady += MONTH + DAY
    clock.at += MONTH + DAY
    clock.go(700)
    assert clock.times()[0] > MONTH
    assert clock.times(coarse=True)[0] > MONTH
    assert [row["month"] for row in store.hours()] == ["2027-02", "2027-01"]


def test_a_wrong_clock_does_not_take_the_past_with_it(store: HistoryStore, clock: Clock) -> None:
    clock.go(4000)
    known = clock.times()
    clock.at += 10 * 365 * DAY
    clock.go(1800)
    clock.at -= 10 * 365 * DAY
    clock.go(60)
    assert set(known) <= set(clock.times())
    shown = slice_history(store, "0@1.000", "day", clock.at)["slices"][0]["times"]
    assert max(shown) <= clock.at, "no point of the future"
    clock.at -= 3600
    clock.go(600)
    assert len(clock.times()) == len(set(clock.times()))
    (row, *_) = [one for one in store.hours() if one["month"] == "2027-01"]
    assert row["granted"] == pytest.approx(0.5 * (4000 + 60 + 600) / 3600, rel=0.05)


def test_a_full_disk_stops_the_recording_until_there_is_room(
    store: HistoryStore, clock: Clock
) -> None:
    clock.go(60)
    before = clock.times()
    with full_disk(1):
        clock.go(120)
        assert store.problem is not None
        assert "not recorded" in store.problem
        assert clock.times()[:-1] == before[:-1], "the last one is not written yet"
        assert not store.set_price("H100", 2.0)
    clock.go(60)
    assert store.problem is None
    assert len(clock.times()) > len(before)
    assert sum(row["granted"] for row in store.hours()) == pytest.approx(0.5 * 240 / 3600, rel=0.1)


def test_the_store_keeps_its_limit_and_forgets_the_oldest(tmp_path: Path) -> None:
    most = (16 << 20) + 64 * 4096
    clock = Clock(HistoryStore(tmp_path / "small.sqlite", most))
    clock.go(15 * 120, count=120)
    sizes = sum(one.stat().st_size for one in tmp_path.iterdir())
    assert sizes <= most
    assert clock.store.problem is None
    times = clock.times()
    assert times[0] > 0
    assert times[-1] >= 15 * 118, "the newest are there"
    clock.store.close()


@pytest.mark.parametrize(
    "content", [b"this is no database" * 100, b"SQLite format 3\0" + 9000 * b"x"]
)
def test_a_spoilt_file_is_put_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    clock = Clock(HistoryStore(path))
    clock.go(120)
    assert clock.store.problem is None
    assert len(clock.times()) > 3
    assert (tmp_path / "history.broken").exists()
    clock.store.close()


def test_another_users_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    (tmp_path / "history.sqlite").symlink_to(tmp_path / "theirs")
    clock = Clock(HistoryStore(tmp_path / "history.sqlite"))
    clock.go(60)
    assert clock.store.problem is not None
    assert (tmp_path / "theirs").stat().st_size == 0


def test_idle_hours_are_counted_by_user_and_month(store: HistoryStore, clock: Clock) -> None:
    clock.read()
    clock.go(3600, busy=0.0)
    clock.go(1800, busy=0.9)
    clock.go(1800, busy=None)
    clock.go(20, user="bob")
    rows = {row["user"]: row for row in waste_view(store)["items"]}
    assert rows["ann"]["granted_hours"] == pytest.approx(1.0, rel=0.02)
    assert rows["ann"]["idle_hours"] == pytest.approx(0.5, rel=0.02)
    assert rows["ann"]["unknown_hours"] == pytest.approx(0.25, rel=0.02)
    assert rows["ann"]["month"] == datetime.fromtimestamp(START, UTC).strftime("%Y-%m")
    assert rows["ann"]["idle_cost"] is None, "a model without a price costs what is not known"
    assert store.set_price("H100", 3.0)
    rows = {row["user"]: row for row in waste_view(store)["items"]}
    assert rows["ann"]["idle_cost"] == pytest.approx(1.5, rel=0.02)
    assert store.set_price("H100", None)
    assert store.prices() == {}


def test_a_slice_keeps_the_larger_of_its_parts_and_its_jobs_queue() -> None:
    part = {"gpu": "GPU-0", "memory_bytes": 20, "compute_percent": 50, "got_ratio": 0.0}
    gpu = {"uuid": "GPU-0", "memory_bytes": 100, "model": "H100"}
    grant = {"user": "ann", "state": "running", "slices": [part]}
    view = {
        "gpus": [gpu],
        "grants": [
            {**grant, "name": "train.7.1.0"},
            {**grant, "name": "1001.train.7.1.0", "slices": [{**part, "memory_bytes": 80}]},
            {**grant, "name": "train.8.1.0"},
            {**grant, "name": None},
            {**grant, "name": "x", "state": "parked"},
        ],
    }
    jobs = {"items": [{"name": "train", "number": 7, "queue": "team"}]}
    uses = [(one.part, one.queue) for one in uses_of(view, jobs)]
    assert uses == [(0.5, "team"), (0.8, "team"), (0.5, None), (0.5, None)]


def test_a_download_that_stands_still_does_not_make_the_log_grow(
    store: HistoryStore, clock: Clock
) -> None:
    clock.go(300, count=2)
    lines = history_csv(store, "slice", "day", clock.at)
    assert [next(lines).count(",") for _ in range(3)] == [5, 5, 5]
    clock.go(60)
    with closing(sqlite3.connect(store.path, 0)) as other:
        (was_kept, _, _) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not was_kept
    assert {line.split(",")[1] for line in lines} == {"0", "1"}


def test_csv_leaves_out_what_is_not_known_and_no_cell_is_computed(
    store: HistoryStore, clock: Clock
) -> None:
    store.add(START, 5.0, [SeriesReading("slice", '=cmd("x"),y@1.000', "GPU-0", None, 200, 0.25)])
    clock.at += 60
    clock.go(60)
    lines = "".join(history_csv(store, "slice", "day", clock.at)).splitlines()
    assert lines[0] == "time,name,gpu,used_bytes,granted_bytes,compute_ratio"
    assert lines[1] == f"""{int(START)},"'=cmd(""x""),y",GPU-0,,200,0.25"""
    assert len(lines) > 3
