"""Removes finished jobs and their output, by the rules of `retention`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot.model import format_count
from aliquot.pool.retention import FinishedJob, Retention, expired
from aliquot.pool.slots import folders
from aliquot.pool.user_files import remove_tree, stat_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.pool.directory import PoolDirectory
    from aliquot.pool.index import JobIndex
    from aliquot.pool.store import JobStore


KEPT = 2  # generations of workers before the present one


class Forgetting:
    """Forgets jobs of one pool, in any thread. A job that an unfinished one waits for stays."""

    def __init__(
        self,
        directory: PoolDirectory,
        store: JobStore,
        index: JobIndex,
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._store, self._say = directory, store, say
        self._index = index
        self._sizes: dict[int, int] = {}  # of finished jobs' output, which does not change

    def try_forget(self) -> None:
        """Forget what no pool keeps; an error is reported."""
        try:
            self.forget(Retention())
            self.forget_generations()
            self._index.repair()
        except Exception as error:  # noqa: BLE001 - nobody waits for this thread
            self._say(f"will retry to forget old jobs: {error!r}")

    def forget_generations(self) -> None:
        """Remove the closed slots of unfinished jobs, but for those of the last generations."""
        for stored in self._store.all(unfinished=True):
            job, oldest = self._directory.job(stored.job.number), stored.state.generation - KEPT
            for slot, folder in folders(job).items():
                if slot.generation >= oldest or slot in stored.state.slots:
                    continue
                worker = folder.observe(stored.state.generation)
                if worker is not None and worker.closed:
                    with suppress(OSError):  # the next time
                        remove_tree(folder.path)
            used = {slot.generation for slot in stored.state.slots}  # its workers know that port
            for path in job.glob("port-*"):
                generation = int(path.name.removeprefix("port-"))
                if generation < oldest and generation not in used:
                    path.unlink(missing_ok=True)

    def forget(self, keep: Retention, uid: int | None = None) -> list[int]:
        """Forget what is not kept of a user's jobs, or of all jobs; the numbers."""
        unfinished = self._store.all(unfinished=True)
        needed = {int(one.job) for stored in unfinished for one in stored.job.after}
        candidates = [
            FinishedJob(number, owner, ended, self._folder_bytes(number))
            for number, owner, ended in self._store.finished(uid)
        ]
        numbers = [one for one in expired(candidates, keep, time.time()) if one not in needed]
        for number in numbers:
            try:
                remove_tree(self._directory.job(number))
            except OSError as error:
                self._say(f"the folder of job {number} stays: {error}")
            self._sizes.pop(number, None)
        if numbers:
            self._store.delete(numbers)
            forgotten = set(numbers)
            for owner in {one.uid for one in candidates if one.number in forgotten}:
                self._index.write(owner)
            self._say(f"forgot {format_count(len(numbers), 'finished job')} and their output")
        return numbers

    def _folder_bytes(self, number: int) -> int:
        size = self._sizes.get(number)
        if size is None:
            folder, size = self._directory.job(number), 0
            for file in folder.glob("rank-*"):
                with suppress(OSError):  # a mount of the user's is over it
                    size += stat_in(folder, file.name).st_size
            self._sizes[number] = size
        return size
