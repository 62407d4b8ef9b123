"""A slot on disk: one folder, in which at most one worker ever runs.

jobs/NUMBER/G.R/                  generation G, rank R
jobs/NUMBER/G.R/grant             the grant that the worker joins
jobs/NUMBER/G.R/launch            what the supervisor runs
jobs/NUMBER/G.R/owner             the supervisor's process, or void; written once, never changed
jobs/NUMBER/G.R/end               how the worker ended
jobs/NUMBER/G.R/freeze-request    whether the worker should be frozen, and which generation asks
jobs/NUMBER/G.R/freeze-result     whether it is frozen, or why that failed (`freezer`)
jobs/NUMBER/G.R/worker/           files that worker and pool exchange (`aliquot.worker`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.job_state import ObservedWorker, Slot, WorkerPhase
from aliquot.pool import processes, supervisor
from aliquot.pool.json_files import read_json

if TYPE_CHECKING:
    import signal
    from pathlib import Path

GRANT = "grant"
WORKER = "worker"
FREEZE_REQUEST, FREEZE_RESULT = "freeze-request", "freeze-result"


@dataclass(frozen=True, slots=True)
class SlotFolder:
    """The folder of one slot; it need not exist."""

    path: Path

    @property
    def worker(self) -> Path:
        """The folder of the files that worker and pool exchange."""
        return self.path / WORKER

    def create(self) -> None:
        """Create the folder if it is missing."""
        self.worker.mkdir(parents=True, exist_ok=True, mode=0o700)

    def observe(self, generation: int) -> ObservedWorker | None:
        """The worker; None if the slot has never had one.

        `ready` and `confirmed` are about what this generation asked for.
        """
        owner = read_json(self.path / supervisor.OWNER)
        if owner is None:
            return None
        if owner.get("void"):
            return ObservedWorker(WorkerPhase.VOID)
        if (ended := self._ended()) is not None:
            return ended
        if owner["boot"] != processes.boot_id():
            return ObservedWorker(WorkerPhase.ENDED, disrupted=True)
        if processes.started_at(owner["supervisor"]) == owner["start"]:
            return self._alive(generation)
        return self._ended() or ObservedWorker(WorkerPhase.ENDED)  # it may just have ended

    @property
    def owned(self) -> bool:
        """Whether the slot has a worker or is closed."""
        return read_json(self.path / supervisor.OWNER) is not None

    def void(self) -> None:
        """Close the slot unless a worker has it."""
        self.create()
        supervisor.take_slot(self.path, {"void": True})

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Send a signal to the slot's supervisor."""
        owner = read_json(self.path / supervisor.OWNER)
        if owner is not None and not owner.get("void"):
            processes.send_signal(owner["supervisor"], owner["start"], number)

    def _alive(self, generation: int) -> ObservedWorker:
        ready = read_json(self.worker / "ready")
        result = read_json(self.path / FREEZE_RESULT) or {}
        confirmed = result.get("generation") == generation
        return ObservedWorker(
            WorkerPhase.ALIVE,
            ready=ready is not None and ready["generation"] == generation,
            frozen=bool(result.get("frozen")),
            confirmed=confirmed,
            freeze_error=result.get("error") if confirmed else None,
        )

    def _ended(self) -> ObservedWorker | None:
        end = read_json(self.path / supervisor.END)
        if end is None:
            return None
        return ObservedWorker(
            WorkerPhase.ENDED,
            code=end.get("code"),
            unrunnable=end.get("unrunnable"),
            ready=read_json(self.worker / "ready") is not None,
        )


def folders(job: Path) -> dict[Slot, SlotFolder]:
    """The folders of all slots of a job."""
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
