"""A slot on disk: one folder, in which at most one worker ever runs.

jobs/NUMBER/G.R/                  generation G, rank R
jobs/NUMBER/G.R/grant             the grant that the worker joins
jobs/NUMBER/G.R/launch            what the supervisor runs
jobs/NUMBER/G.R/owner             the supervisor's process, or void; written once, never changed
jobs/NUMBER/G.R/end               how the worker ended; the file is as old as that is ago
jobs/NUMBER/G.R/freeze-request    whether the worker should be frozen, and which generation asks;
                                  or that a swappable one that is being frozen shall go on
jobs/NUMBER/G.R/freeze-result     whether it is frozen, or why that failed (`freezer`)
jobs/NUMBER/G.R/cgroup            where the worker's cgroup is (`cgroup`), if it has one
jobs/NUMBER/G.R/notices/          files of the pool for the worker (`aliquot.worker`)
jobs/NUMBER/G.R/worker/           files of the worker for the pool (`worker_files`)

All of it belongs to the pool, except the folder `worker` and the files in `notices`, which belong
to the user of the job. Other users can pass through the folders of a shared pool, and list none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.model.job_state import ObservedWorker, Slot, WorkerPhase
from aliquot.pool import cgroup, processes, supervisor
from aliquot.pool.json_files import read_json, write_json
from aliquot.pool.user_files import open_in
from aliquot.pool.worker_files import read_ready

if TYPE_CHECKING:
    import signal

    from aliquot.model.owner import Owner

GRANT = "grant"
WORKER, NOTICES = "worker", "notices"
FREEZE_REQUEST, FREEZE_RESULT = "freeze-request", "freeze-result"


@dataclass(frozen=True, slots=True)
class SlotFolder:
    """The folder of one slot; it need not exist."""

    path: Path

    @property
    def worker(self) -> Path:
        """The folder of the worker's files for the pool."""
        return self.path / WORKER

    @property
    def notices(self) -> Path:
        """The folder of the pool's files for the worker."""
        return self.path / NOTICES

    def create(self, owner: Owner) -> None:
        """Create the folder, for a worker of that user, if it is missing."""
        for folder in (self.path, self.notices):
            self._make(folder)
        with suppress(FileExistsError):
            self.worker.mkdir(mode=0o700)
        if os.geteuid() == 0:
            handle = open_in(self.path, WORKER, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fchown(handle, owner.uid, owner.gid)
            finally:
                os.close(handle)

    def tell(self, name: str, content: dict[str, Any], owner: Owner) -> None:
        """Write a file for the worker, which is that user's."""
        write_json(self.notices / name, content, owner.uid)

    def end_cgroup(self) -> None:
        """Kill what is left in the worker's cgroup, if it has one and its supervisor died."""
        if (content := read_json(self.path / supervisor.CGROUP)) is not None:
            cgroup.end(Path(content["path"]), 0)

    def _make(self, folder: Path) -> None:
        """Make a folder that nobody else can list; users of root's pool can pass through."""
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            folder.parent.chmod(0o711)
        folder.chmod(0o711 if os.geteuid() == 0 else 0o700)

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
        self._make(self.path)
        supervisor.take_slot(self.path, {"void": True})

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Send a signal to the slot's supervisor."""
        owner = read_json(self.path / supervisor.OWNER)
        if owner is not None and not owner.get("void"):
            processes.send_signal(owner["supervisor"], owner["start"], number)

    def _alive(self, generation: int) -> ObservedWorker:
        result = read_json(self.path / FREEZE_RESULT) or {}
        confirmed = result.get("generation") == generation
        return ObservedWorker(
            WorkerPhase.ALIVE,
            ready=read_ready(self.worker) == generation,
            frozen=bool(result.get("frozen")),
            confirmed=confirmed,
            freeze_error=result.get("error") if confirmed else None,
            late=result.get("late") if confirmed else None,
        )

    def _ended(self) -> ObservedWorker | None:
        path = self.path / supervisor.END
        end = read_json(path)
        if end is None:
            return None
        return ObservedWorker(
            WorkerPhase.ENDED,
            code=end.get("code"),
            unrunnable=end.get("unrunnable"),
            note=end.get("note", ""),
            ready=read_ready(self.worker) is not None,
            ended_at=path.stat().st_mtime,
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
