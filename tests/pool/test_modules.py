"""The pool's modules, each by itself."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model import Grant, Request, parse_amount
from aliquot.model.errors import InvalidValueError, NoCapacityError
from aliquot.model.job import ArrayIndex, Dependency, Desired, Job, JobPhase, Needs, parse_sizes
from aliquot.model.job_state import JobState, Slot, Stage, Stopping, WorkerPhase
from aliquot.model.owner import Owner
from aliquot.placement.core.demand import Demand
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.pool import encoding, logs
from aliquot.pool.capacity import MachineCapacity, MachinePlan
from aliquot.pool.directory import PoolDirectory
from aliquot.pool.encoding import Submission
from aliquot.pool.forgetting import Forgetting
from aliquot.pool.index import IndexedJob, JobIndex, index_path, read_index
from aliquot.pool.logs import RankLog
from aliquot.pool.peers import this_user
from aliquot.pool.processes import kill_listed
from aliquot.pool.progress import Progress, pause_after_resize, updated_progress
from aliquot.pool.retention import FinishedJob, Retention, expired
from aliquot.pool.slots import SlotFolder, folders
from aliquot.pool.store import JobStore, StoreError
from aliquot.slices import StateDirectory
from pool.silent_mount import silent_mount
from support import GIB, make_grant, make_shared
from users import ALICE

OWNER = Owner(4001, 4001, "alice")


def submission(name: str = "job") -> Submission:
    request = Request(gpus=2, memory=parse_amount("33%"), compute_percent=30)
    job = Job(0, name, ("sh", "-c", "true"), request, parse_sizes("1..8:pow2"), live=True)
    return Submission(OWNER, job, "/bin/sh", "/tmp", {"KEY": "value"})


STATE = JobState(
    phase=JobPhase.SHRINKING,
    desired=Desired.SUSPEND,
    generation=3,
    slots=(Slot(2, 0), Slot(3, 1)),
    stopping=Stopping(JobPhase.STARTING, Stage.TERM, 12.5, keep=1, size=1),
    retries=1,
)


VERSION_1 = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    final INTEGER NOT NULL DEFAULT 0,
    progress TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE events (
    job INTEGER NOT NULL REFERENCES jobs (number),
    at REAL NOT NULL,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    size INTEGER NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX events_by_job ON events (job, at);
PRAGMA user_version = 1;
"""


class TestEncoding:
    def test_jobs_and_states_survive_encoding(self) -> None:
        words = json.loads(json.dumps(encoding.encode_submission(submission())))
        assert encoding.decode_submission(words, OWNER) == submission()
        assert encoding.decode_state(json.loads(json.dumps(encoding.encode_state(STATE)))) == STATE

    def test_a_dependency_a_time_limit_and_an_array_survive_encoding(self) -> None:
        one = submission()
        job = replace(
            one.job,
            time_seconds=60.0,
            after=(Dependency("3", Needs.ANY),),
            array=ArrayIndex("sweep", 4, at_once=2),
        )
        words = json.loads(json.dumps(encoding.encode_submission(replace(one, job=job))))
        assert encoding.decode_submission(words, OWNER).job == job

    def test_jobs_and_states_of_older_databases_are_read(self) -> None:
        words = encoding.encode_submission(submission())
        for key in ("time_seconds", "after", "array"):
            del words[key]
        assert encoding.decode_submission(words, OWNER) == submission()
        state = encoding.encode_state(STATE)
        for key in ("started", "active_since", "used_seconds", "exit_code"):
            del state[key]
        assert encoding.decode_state(json.loads(json.dumps(state))) == STATE

    @pytest.mark.parametrize("key", ["request", "sizes", "command", "environment", "program"])
    def test_an_invalid_job_is_refused(self, key: str) -> None:
        words = encoding.encode_submission(submission())
        for broken in ({**words, key: 7}, {one: words[one] for one in words if one != key}):
            if key == "program" and key in broken:
                continue
            with pytest.raises(InvalidValueError):
                encoding.decode_submission(broken, OWNER)


class TestStore:
    def test_the_second_of_two_concurrent_writes_is_refused(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        first = store.add(submission(), JobState())
        second = store.named(OWNER.uid, "job")
        assert second is not None
        assert store.save(first, replace(first.state, phase=JobPhase.STARTING)) is not None
        assert store.save(second, replace(second.state, desired=Desired.CANCEL)) is None
        found = store.numbered(1)
        assert found is not None
        assert (found.state.phase, found.state.desired) == (JobPhase.STARTING, Desired.RUN)

    def test_everything_is_stored_across_a_close(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        stored = store.add(submission(), JobState(reason="submitted"))
        assert store.save(stored, replace(STATE, reason="others wait")) is not None
        store.save_progress(1, {"step": 7}, {2: 1.5})
        store.close()
        again = JobStore(tmp_path / "pool.sqlite").named(OWNER.uid, "job")
        assert again is not None
        assert again.state == replace(STATE, reason="others wait")
        assert (again.progress, again.speeds) == ({"step": 7}, {2: 1.5})
        events = JobStore(tmp_path / "pool.sqlite").events(1)
        assert [(one.phase, one.reason) for one in events] == [
            ("Pending", "submitted"),
            ("Shrinking", "others wait"),
        ]

    def test_a_name_means_the_unfinished_job(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        numbers = [store.add(submission(), JobState()).job.number for _ in range(2)]
        second = store.numbered(2)
        assert second is not None
        store.save(second, replace(second.state, phase=JobPhase.CANCELLED))
        found = store.named(OWNER.uid, "job")
        assert found is not None
        assert found.job.number == numbers[0]
        assert [one.job.number for one in store.all(unfinished=True)] == [numbers[0]]

    def test_names_are_per_user(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        other = Owner(4002, 4002, "bob")
        for owner in (OWNER, other):
            store.add(replace(submission(), owner=owner), JobState())
        found = [store.named(owner.uid, "job") for owner in (OWNER, other)]
        assert [one.owner for one in found if one is not None] == [OWNER, other]
        assert store.named(4003, "job") is None

    def test_jobs_of_a_database_of_version_1_belong_to_the_pools_user(self, tmp_path: Path) -> None:
        database = sqlite3.connect(tmp_path / "pool.sqlite")
        database.executescript(VERSION_1)
        spec = json.dumps(encoding.encode_submission(submission()))
        state = json.dumps(encoding.encode_state(STATE))
        database.execute("INSERT INTO jobs (name, spec, state) VALUES ('job', ?, ?)", (spec, state))
        database.execute("INSERT INTO events VALUES (1, 2.0, 3, 'Pending', 4, 'submitted')")
        database.commit()
        database.close()
        for _ in range(2):  # the second finds a database of this version
            store = JobStore(tmp_path / "pool.sqlite")
            found = store.named(os.geteuid(), "job")
            assert found is not None
            assert (found.owner, found.state, found.job.number) == (this_user(), STATE, 1)
            assert [one.reason for one in store.events(1)] == ["submitted"]
            store.close()
        database = sqlite3.connect(tmp_path / "pool.sqlite")
        assert database.execute("PRAGMA user_version").fetchone() == (3,)

    def test_arrays_of_a_database_of_version_2_are_found_by_an_index(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        one = submission()
        sweep = replace(one.job, name="sweep-4", array=ArrayIndex("sweep", 4))
        store.add_all([one, replace(one, job=sweep)], STATE)
        store.close()
        database = sqlite3.connect(tmp_path / "pool.sqlite")
        database.executescript(
            "DROP INDEX jobs_by_array; ALTER TABLE jobs DROP COLUMN array; PRAGMA user_version = 2;"
        )
        database.close()
        store = JobStore(tmp_path / "pool.sqlite")
        assert [found.job.name for found in store.array(OWNER.uid, "sweep")] == ["sweep-4"]
        assert store.array(OWNER.uid, "") == []
        store.close()
        database = sqlite3.connect(tmp_path / "pool.sqlite")
        asked = "EXPLAIN QUERY PLAN SELECT * FROM jobs WHERE uid = 1 AND array = 'sweep'"
        assert "jobs_by_array" in str(database.execute(asked).fetchall())
        database.close()

    def test_a_later_database_is_refused(self, tmp_path: Path) -> None:
        database = sqlite3.connect(tmp_path / "pool.sqlite")
        database.execute("PRAGMA user_version = 4")
        database.close()
        with pytest.raises(StoreError, match="schema 4, not 3"):
            JobStore(tmp_path / "pool.sqlite")

    def test_only_the_pools_user_reads_the_files_of_the_database(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        store.add(submission(), JobState())
        files = list(tmp_path.iterdir())
        assert len(files) > 1, "SQLite's write-ahead log"
        assert {one.stat().st_mode & 0o777 for one in files} == {0o600}

    def test_an_unchanged_job_is_decoded_once(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        store.add(submission(), JobState())
        (first,) = store.all(unfinished=True)
        (second,) = store.all(unfinished=True)
        assert second.submission is first.submission
        store.update(second, replace(second.job, urgency=5), "changed")
        (third,) = store.all(unfinished=True)
        assert third.job.urgency == 5

    def test_the_history_of_a_job_has_a_bound(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aliquot.pool.store.MOST_EVENTS", 5)
        store = JobStore(tmp_path / "pool.sqlite")
        other, stored = (store.add(submission(name), JobState()) for name in ("other", "job"))
        for number in range(9):
            saved = store.save(stored, replace(stored.state, reason=f"change {number}"))
            assert saved is not None
            stored = saved
        reasons = [event.reason for event in store.events(stored.job.number)]
        assert reasons == [f"change {number}" for number in range(4, 9)]
        assert len(store.events(other.job.number)) == 1


class TestForgetting:
    def test_a_finished_job_keeps_no_environment(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        stored = store.add(replace(submission(), environment={"TOKEN": "secret"}), JobState())
        running = store.save(stored, replace(stored.state, phase=JobPhase.RUNNING))
        assert running is not None
        assert store.all()[0].submission.environment == {"TOKEN": "secret"}
        store.save(running, replace(running.state, phase=JobPhase.CANCELLED))
        assert store.all()[0].submission.environment == {}

    def test_only_the_last_generations_of_workers_are_kept(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        stored = store.add(submission(), JobState(generation=9, slots=(Slot(1, 0), Slot(9, 1))))
        directory = PoolDirectory(tmp_path, StateDirectory(tmp_path))
        job = directory.job(stored.job.number)
        for slot in (Slot(1, 0), *(Slot(number, 1) for number in range(2, 9))):
            SlotFolder(job / str(slot)).void()
            (job / f"port-{slot.generation}").write_text("{}")
        SlotFolder(job / "3.0").create(this_user())  # it may still get a worker
        index = JobIndex(tmp_path, store, lambda _line: None)
        Forgetting(directory, store, index, lambda _line: None).forget_generations()
        assert set(folders(job)) == {Slot(1, 0), Slot(3, 0), Slot(7, 1), Slot(8, 1)}
        assert sorted(one.name for one in job.glob("port-*")) == ["port-1", "port-7", "port-8"]


class TestIndex:
    @pytest.fixture
    def store(self, tmp_path: Path) -> JobStore:
        return JobStore(tmp_path / "pool.sqlite")

    def index(self, folder: Path, store: JobStore) -> JobIndex:
        """The writer of a pool that has just started."""
        return JobIndex(folder, store, lambda _line: None)

    def finish(self, store: JobStore, number: int) -> None:
        stored = store.numbered(number)
        assert stored is not None
        store.save(stored, replace(stored.state, phase=JobPhase.SUCCEEDED, since=1.0))

    def test_it_has_what_logs_needs_of_unfinished_and_finished_jobs(
        self, tmp_path: Path, store: JobStore
    ) -> None:
        one = submission("sweep-1")
        job = replace(one.job, submitted=7.5, array=ArrayIndex("sweep", 1))
        store.add(replace(one, job=job), JobState())
        store.add(submission("alone"), JobState())
        expected = [IndexedJob(1, "sweep-1", 8, "sweep", 7.5), IndexedJob(2, "alone", 8, None, 0.0)]
        self.index(tmp_path, store).include(store.all(unfinished=True))
        assert read_index(tmp_path, OWNER.uid) == expected
        self.finish(store, 1)
        self.index(tmp_path, store).write(OWNER.uid)
        assert read_index(tmp_path, OWNER.uid) == expected

    def test_a_changed_size_is_written_and_an_unchanged_job_is_not(
        self, tmp_path: Path, store: JobStore
    ) -> None:
        index, stored = self.index(tmp_path, store), store.add(submission(), JobState())
        index.include([stored])
        written = index_path(tmp_path, OWNER.uid).stat().st_ino
        index.include(store.all(unfinished=True))
        assert index_path(tmp_path, OWNER.uid).stat().st_ino == written
        store.update(stored, replace(stored.job, sizes=parse_sizes("16")), "changed")
        index.include(store.all(unfinished=True))
        assert [one.workers for one in read_index(tmp_path, OWNER.uid)] == [16]

    def test_forgotten_jobs_leave_it(self, tmp_path: Path, store: JobStore) -> None:
        for name in ("old", "new"):
            store.add(submission(name), JobState())
        index = self.index(tmp_path, store)
        index.include(store.all(unfinished=True))
        self.finish(store, 1)
        directory = PoolDirectory(tmp_path, StateDirectory(tmp_path))
        forgetting = Forgetting(directory, store, index, lambda _line: None)
        assert forgetting.forget(Retention(seconds=0)) == [1]
        assert [one.name for one in read_index(tmp_path, OWNER.uid)] == ["new"]
        self.finish(store, 2)
        assert forgetting.forget(Retention(seconds=0)) == [2]
        assert not index_path(tmp_path, OWNER.uid).exists()

    def test_the_next_pool_repairs_what_a_killed_one_left(
        self, tmp_path: Path, store: JobStore
    ) -> None:
        """It was killed before it wrote a file, within that, or after it forgot all jobs."""
        store.add(submission(), JobState())
        folder = index_path(tmp_path, 0).parent
        folder.mkdir()
        (folder / f".{OWNER.uid}-1").write_text('{"jobs": [')
        (folder / "4002").write_text('{"jobs": [{"number": 9, "name": "gone"}]}')
        self.index(tmp_path, store).repair()
        assert [one.name for one in folder.iterdir()] == [str(OWNER.uid)]
        assert [one.name for one in read_index(tmp_path, OWNER.uid)] == ["job"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")
    @pytest.mark.timeout(30)
    def test_a_mount_that_never_answers_keeps_no_file_from_repair(
        self, tmp_path: Path, store: JobStore
    ) -> None:
        store.add(submission(), JobState())
        folder = index_path(tmp_path, 0).parent
        folder.mkdir()
        mounted = folder / f".{ALICE}-1"
        mounted.touch()
        with silent_mount(mounted, ALICE):
            self.index(tmp_path, store).repair()
        assert [one.name for one in read_index(tmp_path, OWNER.uid)] == ["job"]
        self.index(tmp_path, store).repair()
        assert not mounted.exists()

    def test_the_newest_finished_jobs_are_kept_beside_the_unfinished(
        self, tmp_path: Path, store: JobStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aliquot.pool.index.KEPT", 2)
        for number in range(1, 6):
            store.add(submission(f"job-{number}"), JobState())
        for number in range(2, 6):
            self.finish(store, number)
        self.index(tmp_path, store).write(OWNER.uid)
        assert [one.number for one in read_index(tmp_path, OWNER.uid)] == [1, 4, 5]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"number": 0}, {"number": -1}, {"number": "../../2"}, {"number": True},
            {"number": 1 << 60}, {"number": 1.0}, {"name": "../x"}, {"name": "\x1b[2J"},
            {"name": 7}, {"name": None}, {"workers": 1 << 20}, {"workers": None},
            {"array": "a/b"}, {"array": []}, {"submitted": "now"}, {"submitted": 1e300},
        ],
    )  # fmt: skip
    def test_entries_that_are_no_jobs_are_left_out(
        self, tmp_path: Path, wrong: dict[str, Any]
    ) -> None:
        valid = {"number": 3, "name": "one", "workers": 2, "array": None, "submitted": 1}
        path = index_path(tmp_path, 4001)
        path.parent.mkdir()
        path.write_text(json.dumps({"jobs": [{**valid, **wrong}, "text", valid]}))
        assert read_index(tmp_path, 4001) == [IndexedJob(3, "one", 2, None, 1.0)]

    @pytest.mark.parametrize("trick", ["link", "fifo", "folder", "text", "deep", "list"])
    def test_a_file_that_is_no_index_has_no_jobs(self, tmp_path: Path, trick: str) -> None:
        path = index_path(tmp_path, 4001)
        path.parent.mkdir()
        job = '{"jobs": [{"number": 3, "name": "a", "workers": 1, "submitted": 1}]}'
        (tmp_path / "other").write_text(job)
        match trick:
            case "link":
                path.symlink_to(tmp_path / "other")
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case _:
                path.write_text({"text": "x", "deep": "[" * 100_000, "list": "[]"}[trick])
        assert read_index(tmp_path, 4001) == []


SLEEP = ["sleep", "1000"]


class TestProcesses:
    def test_a_process_that_left_the_list_meanwhile_is_not_killed(self) -> None:
        """Its pid may be that of another process by now."""
        with subprocess.Popen(SLEEP) as stays, subprocess.Popen(SLEEP) as listed:
            try:
                lists = [{stays.pid, listed.pid}, {listed.pid}]
                kill_listed(lambda: lists.pop(0))
                assert listed.wait(60) == -signal.SIGKILL
                assert stays.poll() is None
            finally:
                stays.kill()
                listed.kill()


class TestSlots:
    def test_a_slot_runs_one_worker_with_several_supervisors(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.create(this_user())
        launch = {
            "program": "/bin/sh",
            "command": ["sh", "-c", f"echo ran >>{tmp_path}/ran; exit 3"],
            "directory": "/",
            "environment": {"PATH": "/usr/bin:/bin"},
            "state": str(tmp_path / "none"),
            "grant": "none",
            "user": {"uid": os.geteuid(), "gid": os.getegid()},
        }
        (folder.path / "launch").write_text(json.dumps(launch))
        command = [sys.executable, "-m", "aliquot.pool.supervisor", str(folder.path)]
        supervisors = [subprocess.Popen(command) for _ in range(4)]
        assert [supervisor.wait(60) for supervisor in supervisors] == [0] * 4
        assert (tmp_path / "ran").read_text() == "ran\n"
        worker = folder.observe(1)
        assert worker is not None
        assert (worker.phase, worker.code) == (WorkerPhase.ENDED, 3)
        assert sorted(path.name for path in folder.path.iterdir()) == [
            "end", "notices", "owner", "worker",
        ]  # fmt: skip

    def test_a_void_slot_runs_no_worker(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.void()
        (folder.path / "launch").write_text("{}")
        command = [sys.executable, "-m", "aliquot.pool.supervisor", str(folder.path)]
        assert subprocess.run(command, check=False, timeout=60).returncode == 0
        worker = folder.observe(1)
        assert worker is not None
        assert worker.phase is WorkerPhase.VOID
        assert list(folders(tmp_path)) == [Slot(1, 0)]

    def test_workers_of_an_earlier_boot_are_disrupted(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.create(this_user())
        owner = {"supervisor": 1, "start": 1, "boot": "another"}
        (folder.path / "owner").write_text(json.dumps(owner))
        worker = folder.observe(1)
        assert worker is not None
        assert worker.closed
        assert worker.disrupted


class TestRoom:
    def test_workers_are_put_one_beside_the_other(self) -> None:
        plan = MachinePlan((make_shared(0), make_shared(1)), ())
        request = Request(memory=parse_amount("40GiB"))
        assert plan.holds(request, 4)
        with pytest.raises(NoCapacityError):
            plan.put(request, 5)
        assert not plan.put(request, 3)[0].holds(Request(), 1)

    def test_a_job_that_changes_its_size_gives_its_own_place_back_first(self) -> None:
        held = make_grant("a.1.1.0", gpu0=80 * GIB)
        plan = MachinePlan((make_shared(0, granted=80 * GIB), make_shared(1)), (held,))
        whole = Request()
        capacity = MachineCapacity(plan, {"a": whole, "b": whole}, {"a": (), "b": ()})
        jobs = {
            "a": JobWorkers("a", (Demand(),), (held,), size=1),
            "b": JobWorkers[Grant]("b", (Demand(),)),
        }
        check = Feasibility(capacity, jobs)
        assert check.fits({"a": 1, "b": 1})
        assert check.fits({"a": 2})
        assert not check.fits({"a": 2, "b": 1})


class TestProgress:
    def test_the_cost_of_a_restart_follows_from_steps_and_speed(self) -> None:
        progress: Progress = {}
        for step, at in ((0, 100.0), (50, 200.0), (90, 280.0)):
            progress = updated_progress(progress, {"step": step, "at": at}, 1)
        assert pause_after_resize(progress) == 0
        progress = updated_progress(progress, {"step": 60, "at": 300.0}, 2)
        assert progress["lost_seconds"] == 60.0  # 30 steps of 2 s
        assert pause_after_resize(progress) == 600.0
        for step, at in ((61, 310.0), (62, 320.0)):
            progress = updated_progress(progress, {"step": step, "at": at}, 2)
        assert updated_progress(progress, {"step": 61, "at": 330.0}, 3)["lost_seconds"] == 60.0

    def test_a_job_that_saves_in_time_has_no_pause(self) -> None:
        progress = updated_progress({}, {"step": 7, "at": 10.0}, 1)
        progress = updated_progress(progress, {"step": 9, "at": 12.0}, 1)
        assert pause_after_resize(updated_progress(progress, {"step": 10, "at": 20.0}, 2)) == 0

    @pytest.mark.parametrize("report", [{}, {"step": None, "at": 1.0}, {"step": "x", "at": None}])
    def test_an_invalid_report_has_no_effect(self, report: dict[str, Any]) -> None:
        assert pause_after_resize(updated_progress({"step": 5, "generation": 1}, report, 2)) == 0


class TestRetention:
    KEEP = Retention(seconds=100.0, jobs=2, log_bytes=10)

    def test_a_users_oldest_jobs_beyond_a_bound_are_forgotten(self) -> None:
        jobs = [FinishedJob(number, 1, float(number), 1) for number in range(1, 6)]
        assert expired(jobs, self.KEEP, 50.0) == [1, 2, 3]
        assert expired(jobs[:2], self.KEEP, 101.5) == [1]
        large = [FinishedJob(1, 1, 1.0, 6), FinishedJob(2, 1, 2.0, 6)]
        assert expired(large, self.KEEP, 50.0) == [1]

    def test_a_user_who_fills_the_pool_loses_no_job_of_others(self) -> None:
        others = FinishedJob(1, 1, 1.0, 1)
        many = [FinishedJob(number, 2, float(number), 1 << 60) for number in range(2, 9)]
        assert 1 not in expired([others, *many], self.KEEP, 50.0)


class TestLogs:
    @given(
        st.lists(st.integers(1, 40), max_size=60),
        st.integers(1, 16),
        st.integers(2, 6),
        st.integers(0, 1500),
    )
    def test_bytes_keep_their_numbers_and_the_newest_are_kept(
        self, sizes: list[int], part: int, parts: int, start: int
    ) -> None:
        """Each write is by a new writer, so all state must be on disk."""
        words = bytes(number % 251 for number in range(sum(sizes)))
        with TemporaryDirectory() as folder:
            path, done = Path(folder) / "rank-0.log", 0
            for size in sizes:
                log = RankLog(path, part=part, kept=part * parts)
                log.write(words[done : done + size])
                log.close()
                done += size
                parts_there = path.parent.glob("rank-0.log*")
                assert sum(one.stat().st_size for one in parts_there) <= part * parts
            found = logs.read(path, start, 1)
            kept = max(0, len(words) - part * (parts - 1))
            assert found.start == start or start < found.start <= kept
            read = b""
            while (piece := logs.read(path, found.start + len(read), 7)).content:
                assert piece.start == found.start + len(read)
                read += piece.content
            assert read == words[found.start :]

    @given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 50), st.integers(8, 64))
    def test_the_last_lines_are_found_across_parts(
        self, lengths: list[int], tail: int, part: int
    ) -> None:
        lines = [b"x" * length for length in lengths]
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rank-0.log"
            log = RankLog(path, part=part, kept=1 << 20)
            for line in lines:
                log.write(line + b"\n")
            log.close()
            start, read = logs.start_of(path, tail=tail), b""
            while (piece := logs.read(path, start + len(read), 7)).content:
                read += piece.content
            assert read.splitlines() == (lines[-tail:] if tail else [])

    def test_times_of_lines_are_kept_as_long_as_the_lines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, now = tmp_path / "rank-0.log", [1000.0]
        monkeypatch.setattr("time.time", lambda: now[0])
        log = RankLog(path, part=32, kept=96)
        for number in range(20):
            now[0] = 1000.0 + 10 * number
            log.write(b"%7d\n" % number)
        log.close()
        times = logs.LogTimes.read(path)
        assert [times.at(8 * number) for number in range(10, 20)] == [
            1000.0 + 10 * number for number in range(10, 20)
        ]
        assert len(times.bytes) <= 96 // 8 + 1
        start = logs.start_of(path, since=1150.0)
        assert start == 8 * 15
        assert logs.start_of(path, tail=2, since=1150.0) == 8 * 18
        assert logs.start_of(path, since=5000.0) == logs.end_of(path) == 160
        assert logs.LogTimes.parse(f"x\n5 1.0\n7 2.\n9 1\n1 2 3\n{times}").bytes[:2] == (5, 7)

    def test_a_user_who_changes_the_files_gets_bounded_answers(self, tmp_path: Path) -> None:
        path = tmp_path / "rank-0.log"
        path.touch()
        os.truncate(path, 1 << 40)
        assert logs.start_of(path, tail=1 << 40) >= (1 << 40) - 2 * logs.KEPT_BYTES
        lines = "".join(f"{one}\n" for one in ("0 nan", "1 inf", "2 1e12", f"{1 << 70} 1", "3 4"))
        assert str(logs.LogTimes.parse(lines + "3 5\n" * 9)) == "3 4.000\n"
        logs.times_path(path).write_text("7 1.000\n" * (2 << 20) + "8 2.000\n", "ascii")
        assert logs.LogTimes.read(path).bytes == (7, 8)

    def test_many_small_writes_have_few_times(self, tmp_path: Path) -> None:
        path = tmp_path / "rank-0.log"
        log = RankLog(path)
        for _ in range(2000):
            log.write(b"x\n")
        log.close()
        assert logs.times_path(path).stat().st_size < 4000 // 4

    def test_a_concurrent_reader_gets_every_byte_that_is_kept(self, tmp_path: Path) -> None:
        path, whole = tmp_path / "rank-0.log", b"".join(b"%7d\n" % n for n in range(4000))
        log = RankLog(path, part=512, kept=1 << 20)

        def write_all() -> None:
            for at in range(0, len(whole), 24):
                log.write(whole[at : at + 24])

        writer = threading.Thread(target=write_all)
        writer.start()
        read = b""
        while len(read) < len(whole):
            piece = logs.read(path, len(read), 1000)
            assert piece.start == len(read)
            read += piece.content
        writer.join()
        log.close()
        assert read == whole

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
    def test_who_may_not_list_the_folder_reads_all_parts_too(self, short_tmp: Path) -> None:
        short_tmp.chmod(0o755)
        job = short_tmp / "1"
        job.mkdir()
        job.chmod(0o711)
        path = job / "rank-0.log"
        log = RankLog(path, part=32, kept=96, uid=OWNER.uid)
        for number in range(20):
            log.write(b"%7d\n" % number)
        log.close()
        assert logs.parts_path(path).exists()
        expected = logs.read(path, 0, 1 << 20), logs.end_of(path), logs.start_of(path, tail=9)
        os.seteuid(OWNER.uid)
        try:
            with pytest.raises(PermissionError):
                list(job.iterdir())
            found = logs.read(path, 0, 1 << 20), logs.end_of(path), logs.start_of(path, tail=9)
            assert found == expected
            assert logs.ranks_of(job, most=3) == [0]
            logs.parts_path(path).write_text('{"ends": [-1, "x", 1e9, 999999, []]}')
            assert logs.read(path, 0, 8).start == 0  # the user's own doing
        finally:
            os.seteuid(0)

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk")
    def test_after_a_full_disk_the_log_says_how_much_is_missing(self, tmp_path: Path) -> None:
        options = "size=64k,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
        try:
            log = RankLog(tmp_path / "rank-0.log", part=8 << 10)
            (tmp_path / "filler").write_bytes(b"x" * (48 << 10))
            log.write(b"a" * (40 << 10))
            (tmp_path / "filler").unlink()
            log.write(b"after\n")
            log.close()
            pieces, at = [], 0
            while (piece := logs.read(tmp_path / "rank-0.log", at, 1 << 20)).content:
                pieces.append(piece.content)
                at += len(piece.content)
        finally:
            subprocess.run(["umount", "-l", tmp_path], check=True)
        text = b"".join(pieces).decode()
        there = text.count("a", 0, text.index("\n"))
        missing = (40 << 10) - there
        assert 0 < missing < 40 << 10
        assert (
            text == f"{'a' * there}\n[aliquot: {missing} bytes could not be written here]\nafter\n"
        )
