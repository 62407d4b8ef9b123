"""The pool's modules, each by itself."""

from __future__ import annotations

import json
import os
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
from aliquot.model.job import Desired, Job, JobPhase, parse_sizes
from aliquot.model.job_state import JobState, Slot, Stage, Stopping, WorkerPhase
from aliquot.placement.core.demand import Demand
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.placement.queues.quota import Bound, Queue
from aliquot.pool import encoding, logs
from aliquot.pool.capacity import MachineCapacity, MachinePlan
from aliquot.pool.encoding import Submission
from aliquot.pool.logs import RankLog
from aliquot.pool.progress import Progress, pause_after_resize, updated_progress
from aliquot.pool.slots import SlotFolder, folders
from aliquot.pool.store import JobStore
from aliquot.pool.up import read_queues
from support import GIB, make_grant, make_shared


def submission(name: str = "job") -> Submission:
    request = Request(gpus=2, memory=parse_amount("33%"), compute_percent=30)
    job = Job(0, name, ("sh", "-c", "true"), request, parse_sizes("1..8:pow2"), live=True)
    return Submission(job, "/bin/sh", "/tmp", {"KEY": "value"})


STATE = JobState(
    phase=JobPhase.SHRINKING,
    desired=Desired.SUSPEND,
    generation=3,
    slots=(Slot(2, 0), Slot(3, 1)),
    stopping=Stopping(JobPhase.STARTING, Stage.TERM, 12.5, keep=1, size=1),
    retries=1,
)


class TestEncoding:
    def test_jobs_and_states_survive_encoding(self) -> None:
        words = json.loads(json.dumps(encoding.encode_submission(submission())))
        assert encoding.decode_submission(words) == submission()
        assert encoding.decode_state(json.loads(json.dumps(encoding.encode_state(STATE)))) == STATE

    @pytest.mark.parametrize("key", ["request", "sizes", "command", "environment", "program"])
    def test_an_invalid_job_is_refused(self, key: str) -> None:
        words = encoding.encode_submission(submission())
        for broken in ({**words, key: 7}, {one: words[one] for one in words if one != key}):
            if key == "program" and key in broken:
                continue
            with pytest.raises(InvalidValueError):
                encoding.decode_submission(broken)


class TestStore:
    def test_the_second_of_two_concurrent_writes_is_refused(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        first = store.add(submission(), JobState())
        second = store.find("job")
        assert second is not None
        assert store.save(first, replace(first.state, phase=JobPhase.STARTING)) is not None
        assert store.save(second, replace(second.state, desired=Desired.CANCEL)) is None
        found = store.find("1")
        assert found is not None
        assert (found.state.phase, found.state.desired) == (JobPhase.STARTING, Desired.RUN)

    def test_everything_is_stored_across_a_close(self, tmp_path: Path) -> None:
        store = JobStore(tmp_path / "pool.sqlite")
        stored = store.add(submission(), JobState(reason="submitted"))
        assert store.save(stored, replace(STATE, reason="others wait")) is not None
        store.save_progress(1, {"step": 7}, {2: 1.5})
        store.close()
        again = JobStore(tmp_path / "pool.sqlite").find("job")
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
        second = store.find("2")
        assert second is not None
        store.save(second, replace(second.state, phase=JobPhase.CANCELLED))
        found = store.find("job")
        assert found is not None
        assert found.job.number == numbers[0]
        assert [one.job.number for one in store.all(unfinished=True)] == [numbers[0]]


class TestSlots:
    def test_a_slot_runs_one_worker_with_several_supervisors(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.create()
        launch = {
            "program": "/bin/sh",
            "command": ["sh", "-c", f"echo ran >>{tmp_path}/ran; exit 3"],
            "directory": "/",
            "environment": {"PATH": "/usr/bin:/bin"},
            "state": str(tmp_path / "none"),
            "grant": "none",
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
            "end", "launch", "owner", "worker",
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
        folder.create()
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


class TestQueues:
    def test_queues_are_read_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "queues.toml"
        path.write_text("[queues.night]\nweight = 2\nquota = 1.5\nlimit = 4\n[queues.day]\n")
        assert read_queues(path) == {
            "night": Queue("night", 2.0, Bound(milli=1500), Bound(milli=4000)),
            "day": Queue("day"),
        }

    @pytest.mark.parametrize(
        "words", ["queues = 1", "[queues.a]\nwieght = 2", "[queues.a]\nweight = 0", "["]
    )
    def test_invalid_queues_are_refused(self, tmp_path: Path, words: str) -> None:
        path = tmp_path / "queues.toml"
        path.write_text(words)
        with pytest.raises(InvalidValueError):
            read_queues(path)


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
                assert sum(one.stat().st_size for one in path.parent.iterdir()) <= part * parts
            found = logs.read(path, start, 1)
            kept = max(0, len(words) - part * (parts - 1))
            assert found.start == start or start < found.start <= kept
            read = b""
            while (piece := logs.read(path, found.start + len(read), 7)).content:
                assert piece.start == found.start + len(read)
                read += piece.content
            assert read == words[found.start :]

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
