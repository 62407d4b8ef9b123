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
        return dict(status_words(words))

    def _process(self, pid: int) -> dict[str, Any]:
        leaves = self.residence == "host"
        failed = self.fails.get(pid) if leaves else None
        if self.seen > self.looks and not (leaves and pid in self.fails):
            self.moved[pid] = (self.residence, GIB if leaves else 0)
        place, away = self.moved[pid]
        if failed is not None:
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
    monkeypatch.setattr(moving, "PATIENCE_SECONDS", 0.3)
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
