"""Freezing and thawing swappable grants, against a fake arbiter whose processes move memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aliquot.slices import checkpoint, moving
from slices.played import Played, grant_words, slice_words, status_words
from support import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PIDS = (1, 2)  # of processes that are alive: init, and maybe a thread of the kernel


@dataclass
class Machine:
    """A grant with two processes; each settles after some looks, unless it is in `fails`."""

    looks: int = 3  # until memory has moved
    fails: dict[int, str | None] = field(default_factory=dict)  # None: it does not react
    returns_not: dict[int, str] = field(default_factory=dict)  # why memory does not come back
    slow: bool = False  # the host makes room all the time
    mover: dict[str, int] = field(default_factory=dict)  # what is wrong with it
    fits: bool = True
    state: str = "active"
    residence: str = "gpu"
    moved: dict[int, tuple[str, int]] = field(
        default_factory=lambda: dict.fromkeys(PIDS, ("gpu", 0))
    )
    heard: list[str] = field(default_factory=list)
    seen: int = 0

    def answer(self, question: str) -> dict[str, Any]:
        verb, *words = question.split()
        if verb == "status":
            return self._status()
        to = words[-1].removeprefix("to=")
        self.heard.append(f"{verb} {to}")
        if verb == "set-state" and self.state == "parked" and not self.fits:
            return {"error": "no room", "code": "no-capacity"}
        if verb == "set-state":
            self.state = to
            return {"name": "a", "state": to}
        self.residence, self.seen = to, 0
        return {"name": "a", "residence": to}

    def _status(self) -> dict[str, Any]:
        self.seen += 1
        words = grant_words("a", slice_words(), pids=PIDS)
        words |= {"state": self.state, "swap": True, "residence": self.residence}
        for process in words["processes"]:
            process.update(self._process(process["pid"]))
        status = dict(status_words(words))
        room = self.seen if self.slow else 0
        status["gpus"][0]["mover"] = {"host_bytes": room, "held_bytes": 0, **self.mover}
        return status

    def _process(self, pid: int) -> dict[str, Any]:
        leaves = self.residence == "host"
        fails = self.fails if leaves else self.returns_not
        failed = fails.get(pid)
        if self.seen > self.looks and pid not in fails:
            self.moved[pid] = (self.residence, GIB if leaves else 0)
        place, away = self.moved[pid]
        if failed is not None and leaves:
            place = self.residence
        return {
            "residence": place,
            "settled": place == self.residence,
            "away_bytes": away,
            "fixed_bytes": 0,
            "move_failed": failed,
        }


@pytest.fixture
def play(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Machine], Path]]:
    for name in ("PATIENCE_SECONDS", "QUIET_SECONDS"):
        monkeypatch.setattr(moving, name, 0.3)
    monkeypatch.setattr(moving, "FAILING_SECONDS", 0.1)
    playing: list[Played] = []

    def start(machine: Machine) -> Path:
        playing.append(Played(short_tmp, machine.answer))
        return short_tmp

    yield start
    for one in playing:
        one.end()


def test_memory_leaves_while_the_grant_is_switching(play: Callable[[Machine], Path]) -> None:
    machine = Machine()
    moving.freeze(play(machine), "a")
    assert machine.heard == ["set-state switching", "move host"]
    assert all(place == "host" for place, _ in machine.moved.values())


def test_it_returns_before_the_grant_is_active(play: Callable[[Machine], Path]) -> None:
    machine = Machine(state="parked", residence="host")
    machine.moved = dict.fromkeys(PIDS, ("host", GIB))
    moving.thaw(play(machine), "a")
    assert machine.heard == ["set-state switching", "move gpu", "set-state active"]
    assert all(moved == ("gpu", 0) for moved in machine.moved.values())


def test_a_parked_grant_is_frozen_already(play: Callable[[Machine], Path]) -> None:
    machine = Machine(state="parked", residence="host")
    moving.freeze(play(machine), "a")
    assert machine.heard == []


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("no-mover", "the process that copies memory cannot be reached"),
        ("host-full", "the host has too little free memory"),
        ("gpu-full", "the GPU has too little free memory"),
        ("busy", "the GPU did not finish its work in time"),
        ("driver", "the driver refused a call"),
        ("no-copy", "its copy on the host is missing"),
        ("malformed", "of another version"),
        ("unswappable", "unified memory"),
        ("unknown", "its memory could not be moved"),
    ],
)
def test_a_move_that_fails_is_called_off_and_the_reason_is_told(
    play: Callable[[Machine], Path], failure: str, words: str
) -> None:
    machine = Machine(fails={2: failure})
    with pytest.raises(checkpoint.CannotFreezeError, match=words) as caught:
        moving.freeze(play(machine), "a")
    assert caught.value.message.startswith("process 2: ")
    assert machine.heard[-2:] == ["move gpu", "set-state active"]
    assert all(moved == ("gpu", 0) for moved in machine.moved.values())


@pytest.mark.parametrize(
    ("failure", "mover", "words"),
    [
        (
            None,
            {"silent_seconds": 8},
            "did not react within .* has made no progress for 8 s",
        ),
        ("no-mover", {"hangs": 2}, "cannot be reached: it has hung 2 times"),
        ("busy", {"hangs": 2, "silent_seconds": 2}, "in time$"),
    ],
)
def test_the_reason_says_that_the_process_which_copies_memory_hangs(
    play: Callable[[Machine], Path], failure: str | None, mover: dict[str, int], words: str
) -> None:
    machine = Machine(fails={2: failure}, mover=mover)
    with pytest.raises(checkpoint.CannotFreezeError, match=words):
        moving.freeze(play(machine), "a")


def test_a_process_that_does_not_react_is_let_go(play: Callable[[Machine], Path]) -> None:
    machine = Machine(fails={2: None})
    with pytest.raises(checkpoint.CannotFreezeError, match="process 2 did not react"):
        moving.freeze(play(machine), "a")
    assert machine.heard[-2:] == ["move gpu", "set-state active"]


def test_a_grant_that_does_not_fit_stays_parked(play: Callable[[Machine], Path]) -> None:
    machine = Machine(state="parked", residence="host", fits=False)
    with pytest.raises(checkpoint.RetryLaterError, match="no room"):
        moving.thaw(play(machine), "a")
    assert (machine.state, machine.residence) == ("parked", "host")


def test_what_cannot_return_yet_is_tried_again(play: Callable[[Machine], Path]) -> None:
    machine = Machine(state="parked", residence="host", looks=1_000_000)
    machine.moved = dict.fromkeys(PIDS, ("host", GIB))
    state = play(machine)
    with pytest.raises(checkpoint.RetryLaterError, match="process 1 did not react"):
        moving.thaw(state, "a")
    assert machine.state == "switching"  # its calls are held until all is back
    machine.looks = 0
    moving.thaw(state, "a")
    assert machine.state == "active"


def parked(**changes: Any) -> Machine:
    machine = Machine(state="parked", residence="host", **changes)
    machine.moved = dict.fromkeys(PIDS, ("host", GIB))
    return machine


def test_a_lost_copy_is_final(play: Callable[[Machine], Path]) -> None:
    machine = parked(returns_not={2: "no-copy"})
    with pytest.raises(checkpoint.CannotFreezeError, match="process 2: its copy on the host"):
        moving.thaw(play(machine), "a")


@pytest.mark.parametrize("failure", ["no-mover", "host-full", "gpu-full", "driver"])
def test_why_memory_does_not_come_back_is_told_soon(
    play: Callable[[Machine], Path], monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    machine = parked(returns_not={2: failure})
    state = play(machine)
    monkeypatch.setattr(moving, "PATIENCE_SECONDS", 1000.0)
    with pytest.raises(checkpoint.RetryLaterError, match=r"^process 2: the "):
        moving.thaw(state, "a")
    machine.returns_not = {}
    moving.thaw(state, "a")
    assert machine.state == "active"


def test_a_copy_that_is_lost_on_the_way_back_leaves_the_grant_frozen(
    play: Callable[[Machine], Path],
) -> None:
    machine = Machine(fails={2: "host-full"}, returns_not={1: "no-copy"})
    machine.moved = dict.fromkeys(PIDS, ("host", GIB))
    state = play(machine)
    moving.freeze(state, "a")
    assert (machine.state, machine.residence) == ("switching", "host")
    with pytest.raises(checkpoint.CannotFreezeError, match="process 1: its copy on the host"):
        moving.thaw(state, "a")


def test_a_freeze_that_is_not_wanted_any_more_is_called_off_at_once(
    play: Callable[[Machine], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(fails={2: None})
    state = play(machine)
    for name in ("PATIENCE_SECONDS", "QUIET_SECONDS"):
        monkeypatch.setattr(moving, name, 1000.0)
    wanted = iter([True, True, False])
    with pytest.raises(checkpoint.CannotFreezeError, match="had not left yet"):
        moving.freeze(state, "a", lambda: next(wanted))
    assert machine.heard[-2:] == ["move gpu", "set-state active"]
    assert all(moved == ("gpu", 0) for moved in machine.moved.values())


def test_a_program_that_does_not_get_quiet_is_let_go_before_others(
    play: Callable[[Machine], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = play(Machine(looks=1_000_000))
    monkeypatch.setattr(moving, "PATIENCE_SECONDS", 1.0)
    with pytest.raises(checkpoint.CannotFreezeError, match=r"did not react within 0\.3 s"):
        moving.freeze(state, "a")


def test_a_host_that_makes_room_is_waited_for(play: Callable[[Machine], Path]) -> None:
    machine = Machine(looks=60, slow=True)  # more than 0.6 s
    moving.freeze(play(machine), "a")
    assert all(place == "host" for place, _ in machine.moved.values())


def test_a_program_that_still_waits_for_its_gpu_keeps_no_one_waiting(
    play: Callable[[Machine], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(looks=1_000_000)
    state = play(machine)
    monkeypatch.setattr(moving, "PATIENCE_SECONDS", 1000.0)
    with pytest.raises(checkpoint.CannotFreezeError, match="had not left yet"):
        moving.freeze(state, "a", lambda: False)
    assert (machine.state, machine.residence) == ("active", "gpu")
