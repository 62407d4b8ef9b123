"""A slot on disk: one folder, in which a worker runs at most once.

jobs/NUMBER/G.R/            generation G, rank R
jobs/NUMBER/G.R/grant       the grant that its worker joins
jobs/NUMBER/G.R/order       what its keeper is to do
jobs/NUMBER/G.R/claim       whose it is: a keeper's, or void; made once, never changed
jobs/NUMBER/G.R/end         how its worker ended
jobs/NUMBER/G.R/still       whether its worker is to be frozen, by which generation of the record
jobs/NUMBER/G.R/standing    whether it is, or why that could not be changed (`freezer`)
jobs/NUMBER/G.R/worker/     where the worker and the pool meet (`aliquot.worker`)
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aliquot.model.status import Phase, Sight, Slot
from aliquot.pool import keeper, processes

GRANT = "grant"
WORKER = "worker"
STILL, STANDING = "still", "standing"


@dataclass(frozen=True, slots=True)
class SlotFolder:
    """The folder of one slot; it need not exist."""

    path: Path

    @property
    def worker(self) -> Path:
        """Where the worker and the pool meet."""
        return self.path / WORKER

    def make(self) -> None:
        """See to it that it is there."""
        self.worker.mkdir(parents=True, exist_ok=True, mode=0o700)

    def sight(self, generation: int) -> Sight | None:
        """What is known of the slot; `ready` and `answered` are of what that generation asked."""
        claim = read(self.path / keeper.CLAIM)
        if claim is None:
            return None
        if claim.get("void"):
            return Sight(Phase.VOID)
        if (ended := self._ended()) is not None:
            return ended
        if claim["boot"] != processes.boot_id():
            return Sight(Phase.ENDED, excused=True)
        if processes.started_at(claim["keeper"]) == claim["start"]:
            told = read(self.worker / "ready")
            ready = told is not None and told["generation"] == generation
            standing = read(self.path / STANDING) or {}
            answered = standing.get("generation") == generation
            return Sight(
                Phase.ALIVE,
                ready=ready,
                frozen=bool(standing.get("frozen")),
                answered=answered,
                stuck=standing.get("stuck") if answered else None,
            )
        return self._ended() or Sight(Phase.ENDED)  # it may have ended between two looks

    @property
    def claimed(self) -> bool:
        """Whether it is taken, or closed."""
        return read(self.path / keeper.CLAIM) is not None

    def void(self) -> None:
        """Close it, if nobody was quicker."""
        self.make()
        keeper.take(self.path, {"void": True})

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to its keeper."""
        claim = read(self.path / keeper.CLAIM)
        if claim is not None and not claim.get("void"):
            processes.tell(claim["keeper"], claim["start"], number)

    def _ended(self) -> Sight | None:
        words = read(self.path / keeper.END)
        if words is None:
            return None
        told = read(self.worker / "ready")
        return Sight(
            Phase.ENDED,
            code=words.get("code"),
            unrunnable=words.get("unrunnable"),
            ready=told is not None,
        )


def folders(job: Path) -> dict[Slot, SlotFolder]:
    """All slots of a job that there are."""
    try:
        names = [path.name for path in job.iterdir()]
    except FileNotFoundError:
        return {}
    found = {}
    for name in names:
        generation, dot, rank = name.partition(".")
        if dot and generation.isdecimal() and rank.isdecimal():
            found[Slot(int(generation), int(rank))] = SlotFolder(job / name)
    return found


def read(path: Path) -> dict[str, Any] | None:
    """A file of one JSON object; None where it is not there or not one."""
    try:
        words = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return words if isinstance(words, dict) else None


def write(path: Path, words: dict[str, Any]) -> None:
    """Write such a file: all of it, or nothing."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        beside.write_text(json.dumps(words), "utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
