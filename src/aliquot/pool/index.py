"""Which jobs a user has, for reading their logs while no pool is up.

DIR/index/UID is a file of that user alone, in a folder of the pool's. It names the user's
unfinished and newest finished jobs; their logs are in DIR/jobs/NUMBER (`logs`), and belong to the
user too. The pool writes the file from its database and never reads it: a user who changes the file
changes only what that user finds there. Readers check it (`read_index`).

The pool writes it before it starts a worker, and after it forgot jobs. A pool that dies in between
leaves an older file, which the next pool replaces (`JobIndex.repair`).
"""

from __future__ import annotations

import json
import os
import stat
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aliquot.model.errors import InvalidValueError
from aliquot.model.job import MAX_WORKERS, check_job_name
from aliquot.pool.json_files import write_json
from aliquot.pool.user_files import open_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from aliquot.pool.store import JobStore, StoredJob

KEPT = 1000  # finished jobs of a user, and at most as many unfinished ones
_LARGEST_BYTES = 1 << 20
_LARGEST_NUMBER = 1 << 53
_LATEST = 1e11  # a time in the year 5138


@dataclass(frozen=True, slots=True)
class IndexedJob:
    """A job: it has at most `workers` at once, and belongs to the array of that name.

    `submitted` is when it was, or the array that it belongs to.
    """

    number: int
    name: str
    workers: int = 1
    array: str | None = None
    submitted: float = 0.0


def index_path(pool: Path, uid: int) -> Path:
    """The file of a user in the directory of a pool."""
    return pool / "index" / str(uid)


def read_index(pool: Path, uid: int) -> list[IndexedJob]:
    """The newest jobs of a user, oldest first; empty if there are none to be read.

    The user may have written anything into the file: what is no job is left out.
    """
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        path = index_path(pool, uid)
        handle = open_in(path.parent, path.name, os.O_RDONLY)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return []
            content: Any = json.loads(file.read(_LARGEST_BYTES))
        found = [_checked(one) for one in content["jobs"]]
        return sorted((one for one in found if one is not None), key=lambda one: one.number)
    return []


class JobIndex:
    """The writer of all users' files in the directory of one pool. Thread-safe, but `include`."""

    def __init__(self, pool: Path, store: JobStore, say: Callable[[str], None]) -> None:
        self._folder, self._store, self._say = index_path(pool, 0).parent, store, say
        self._lock = threading.Lock()  # from reading the database until the file is there
        self._workers: dict[int, int] = {}  # by number, of the jobs that `include` saw last

    def include(self, unfinished: Iterable[StoredJob]) -> None:
        """Write the files of the users whose unfinished jobs are new or have another size."""
        jobs, known = list(unfinished), self._workers
        self._workers = {one.job.number: one.job.sizes.most for one in jobs}
        changed = {one.owner.uid for one in jobs if known.get(one.job.number) != one.job.sizes.most}
        for uid in sorted(changed):
            self.write(uid)

    def write(self, uid: int) -> None:
        """Write the file of a user. An error is reported: the pool goes on without the file."""
        with self._lock:
            try:
                self._write(uid)
            except OSError as error:
                self._say(f"the index of user {uid} could not be written: {error}")

    def repair(self) -> None:
        """Write the files of all users, and remove what a pool that died left behind."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - names are needed
        except FileNotFoundError:
            names = []
        with self._lock:
            for name in names:
                if not name.startswith("."):
                    continue
                with suppress(OSError):  # a user has mounted something over it: the next time
                    (self._folder / name).unlink(missing_ok=True)
        known = {int(name) for name in names if name.isdecimal()}
        for uid in sorted(known | self._store.uids()):
            self.write(uid)

    def _write(self, uid: int) -> None:
        jobs = self._jobs(uid)
        path = self._folder / str(uid)
        if not jobs:
            path.unlink(missing_ok=True)
            return
        self._folder.mkdir(exist_ok=True)
        self._folder.chmod(0o711)
        write_json(path, {"jobs": [asdict(one) for one in jobs]}, uid)

    def _jobs(self, uid: int) -> list[IndexedJob]:
        finished = [IndexedJob(*row) for row in self._store.newest_finished(uid, KEPT)]
        unfinished = [
            IndexedJob(
                job.number,
                job.name,
                job.sizes.most,
                None if job.array is None else job.array.name,
                job.array_begun,
            )
            for job in (one.job for one in self._store.all(unfinished=True, of_user=uid)[-KEPT:])
        ]
        return sorted([*finished, *unfinished], key=lambda one: one.number)


def _checked(fields: Any) -> IndexedJob | None:
    """A job of the file; None if it is none."""
    if not isinstance(fields, dict):
        return None
    number: Any = fields.get("number")
    workers: Any = fields.get("workers")
    submitted: Any = fields.get("submitted")
    array = fields.get("array")
    try:
        name = check_job_name(fields["name"])
        array = None if array is None else check_job_name(array)
    except (InvalidValueError, KeyError, TypeError, AttributeError):
        return None
    if type(number) is not int or not 0 < number < _LARGEST_NUMBER:
        return None
    if type(workers) is not int or not 0 < workers <= MAX_WORKERS:
        return None
    if type(submitted) not in {int, float} or not 0 <= submitted < _LATEST:
        return None
    return IndexedJob(number, name, workers, array, float(submitted))
