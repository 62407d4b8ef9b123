"""The pool's parts, each by its own door."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.model import Request, parse_amount
from aliquot.model.errors import BadValueError, NoRoomError
from aliquot.model.job import Job, State, Wish, parse_sizes
from aliquot.model.record import Leaving, Phase, Record, Slot, Stage
from aliquot.placement.queues import Bound, Queue
from aliquot.pool import forms
from aliquot.pool.forms import Submission
from aliquot.pool.room import MachineRoom, Plan
from aliquot.pool.slots import SlotFolder, folders
from aliquot.pool.store import Store
from aliquot.pool.up import read_queues
from support import GIB, make_grant, make_shared


def submission(name: str = "job") -> Submission:
    request = Request(gpus=2, memory=parse_amount("33%"), compute_percent=30)
    job = Job(0, name, ("sh", "-c", "true"), request, parse_sizes("1..8:pow2"), live=True)
    return Submission(job, "/bin/sh", "/tmp", {"KEY": "value"})


RECORD = Record(
    state=State.SHRINKING,
    wish=Wish.SUSPEND,
    generation=3,
    slots=(Slot(2, 0), Slot(3, 1)),
    leaving=Leaving(State.STARTING, Stage.TERM, 12.5, keep=1, size=1),
    retries=1,
)


class TestForms:
    def test_what_is_written_is_read_again(self) -> None:
        words = json.loads(json.dumps(forms.submission_words(submission())))
        assert forms.read_submission(words) == submission()
        assert forms.read_record(json.loads(json.dumps(forms.record_words(RECORD)))) == RECORD

    @pytest.mark.parametrize("key", ["request", "sizes", "command", "environment", "program"])
    def test_what_is_no_job_is_refused(self, key: str) -> None:
        words = forms.submission_words(submission())
        for broken in ({**words, key: 7}, {one: words[one] for one in words if one != key}):
            if key == "program" and key in broken:
                continue
            with pytest.raises(BadValueError):
                forms.read_submission(broken)


class TestStore:
    def test_of_two_that_change_one_record_the_second_is_told(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "pool.sqlite")
        first = store.add(submission(), Record())
        second = store.find("job")
        assert second is not None
        assert store.save(first, replace(first.record, state=State.STARTING)) is not None
        assert store.save(second, replace(second.record, wish=Wish.CANCEL)) is None
        found = store.find("1")
        assert found is not None
        assert (found.record.state, found.record.wish) == (State.STARTING, Wish.RUN)

    def test_all_is_there_after_it_was_closed(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "pool.sqlite")
        stored = store.add(submission(), Record(reason="submitted"))
        assert store.save(stored, replace(RECORD, reason="others wait")) is not None
        store.note_progress(1, {"step": 7}, {2: 1.5})
        store.close()
        again = Store(tmp_path / "pool.sqlite").find("job")
        assert again is not None
        assert again.record == replace(RECORD, reason="others wait")
        assert (again.progress, again.speeds) == ({"step": 7}, {2: 1.5})
        events = Store(tmp_path / "pool.sqlite").events(1)
        assert [(one.state, one.reason) for one in events] == [
            ("Pending", "submitted"),
            ("Shrinking", "others wait"),
        ]

    def test_a_name_means_the_job_that_is_not_over(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "pool.sqlite")
        numbers = [store.add(submission(), Record()).job.number for _ in range(2)]
        second = store.find("2")
        assert second is not None
        store.save(second, replace(second.record, state=State.CANCELLED))
        found = store.find("job")
        assert found is not None
        assert found.job.number == numbers[0]
        assert [one.job.number for one in store.all(unfinished=True)] == [numbers[0]]


class TestSlots:
    def test_a_slot_runs_one_worker_however_many_keepers_come(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.make()
        order = {
            "program": "/bin/sh",
            "command": ["sh", "-c", f"echo ran >>{tmp_path}/ran; exit 3"],
            "directory": "/",
            "environment": {"PATH": "/usr/bin:/bin"},
            "state": str(tmp_path / "none"),
            "grant": "none",
        }
        (folder.path / "order").write_text(json.dumps(order))
        command = [sys.executable, "-m", "aliquot.pool.keeper", str(folder.path)]
        keepers = [subprocess.Popen(command) for _ in range(4)]
        assert [keeper.wait(60) for keeper in keepers] == [0] * 4
        assert (tmp_path / "ran").read_text() == "ran\n"
        sight = folder.sight(1)
        assert sight is not None
        assert (sight.phase, sight.code) == (Phase.ENDED, 3)
        assert sorted(path.name for path in folder.path.iterdir()) == [
            "claim", "end", "order", "worker",
        ]  # fmt: skip

    def test_a_slot_that_is_void_runs_none(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.void()
        (folder.path / "order").write_text("{}")
        command = [sys.executable, "-m", "aliquot.pool.keeper", str(folder.path)]
        assert subprocess.run(command, check=False, timeout=60).returncode == 0
        sight = folder.sight(1)
        assert sight is not None
        assert sight.phase is Phase.VOID
        assert list(folders(tmp_path)) == [Slot(1, 0)]

    def test_workers_of_another_run_of_the_machine_are_excused(self, tmp_path: Path) -> None:
        folder = SlotFolder(tmp_path / "1.0")
        folder.make()
        claim = {"keeper": 1, "start": 1, "boot": "another"}
        (folder.path / "claim").write_text(json.dumps(claim))
        sight = folder.sight(1)
        assert sight is not None
        assert sight.closed
        assert sight.excused


class TestRoom:
    def test_workers_are_put_one_beside_the_other(self) -> None:
        plan = Plan((make_shared(0), make_shared(1)), ())
        request = Request(memory=parse_amount("40GiB"))
        assert plan.holds(request, 4)
        with pytest.raises(NoRoomError):
            plan.put(request, 5)
        assert not plan.put(request, 3)[0].holds(Request(), 1)

    def test_a_job_that_changes_its_size_gives_its_own_place_back_first(self) -> None:
        held = make_grant("a.1.1.0", gpu0=80 * GIB)
        plan = Plan((make_shared(0, granted=80 * GIB), make_shared(1)), (held,))
        whole = Request()
        room = MachineRoom(plan, {"a": whole, "b": whole}, {"a": ["a.1.1.0"]}, {"a": 1})
        assert room.holds({"a": 1, "b": 1})
        assert room.holds({"a": 2})
        assert not room.holds({"a": 2, "b": 1})


class TestQueues:
    def test_they_are_read_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "queues.toml"
        path.write_text("[queues.night]\nweight = 2\nquota = 1.5\nlimit = 4\n[queues.day]\n")
        assert read_queues(path) == {
            "night": Queue("night", 2.0, Bound(milli=1500), Bound(milli=4000)),
            "day": Queue("day"),
        }

    @pytest.mark.parametrize(
        "words", ["queues = 1", "[queues.a]\nwieght = 2", "[queues.a]\nweight = 0", "["]
    )
    def test_what_cannot_be_understood_is_refused(self, tmp_path: Path, words: str) -> None:
        path = tmp_path / "queues.toml"
        path.write_text(words)
        with pytest.raises(BadValueError):
            read_queues(path)
