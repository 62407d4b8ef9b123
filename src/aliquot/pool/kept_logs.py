"""The logs of jobs, read from the directory of a pool without the pool.

A reader has only its own rights: a user finds the jobs of its own index (`index`), root those of
all users. A user can write anything into its index, so a log is read only if the kernel says that
the file is that user's.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import AliquotError
from aliquot.pool import logs
from aliquot.pool.access import parse_wanted
from aliquot.pool.client import LogChunk, SeveralPoolsError
from aliquot.pool.directory import on_disk
from aliquot.pool.index import IndexedJob, read_index
from aliquot.pool.user_files import stat_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from aliquot.devices import Shape
    from aliquot.pool.access import WantedJob
    from aliquot.pool.directory import PoolDirectory

_MOST_BYTES = 1 << 20  # at once


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """The logs of some jobs of one user. Its methods are those of `PoolClient`."""

    directory: PoolDirectory
    uid: int
    jobs: tuple[IndexedJob, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The jobs as the pool's API shows them, as far as they are known."""
        return [
            {
                "number": one.number,
                "name": one.name,
                "sizes": [one.workers],
                "array": None if one.array is None else {"name": one.array},
            }
            for one in self.jobs
        ]

    def log(
        self,
        name: str,
        rank: int,
        start: int,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        """A worker's output, from that byte on; the phase of its job is not known."""
        path = self._path(name, rank)
        try:
            if tail is not None or since is not None:
                start = max(start, logs.start_of(path, tail, since))
            found = logs.read(path, start, _MOST_BYTES)
        except OSError as error:
            raise AliquotError(f"the output of job {name} cannot be read: {error}") from error
        return LogChunk(found.start, found.content, None)

    def log_times(self, name: str, rank: int) -> logs.LogTimes:
        """When the bytes of a worker's output were written."""
        return logs.LogTimes.read(self._path(name, rank))

    def ranks(self, name: str) -> list[int]:
        """The ranks of a job that have a log."""
        most = max((one.workers for one in self.jobs if str(one.number) == name), default=0)
        return logs.ranks_of(self.directory.job(int(name)), most)

    def _path(self, name: str, rank: int) -> Path:
        path = self.directory.log(int(name), rank)
        if _owner_of(path) not in {None, self.uid}:
            raise AliquotError(f"the output of job {name} belongs to another user")
        return path


def kept_logs_of(directory: PoolDirectory, rows: Sequence[dict[str, Any]]) -> KeptLogs:
    """The logs of jobs of one user that a pool has shown."""
    jobs = [IndexedJob(one["number"], one["name"], one["sizes"][-1]) for one in rows]
    return KeptLogs(directory, rows[0]["uid"], tuple(jobs))


def find_kept_logs(shape: Shape | None, wanted: str) -> KeptLogs | None:
    """The logs of a job or of the jobs of an array; None if there are none for this user.

    They are looked for where a command looks for a pool (`client.connect`): at this machine's
    pools, root's first, or at those of the simulated machine.
    """
    key = parse_wanted(wanted)
    pools = [one for one in on_disk() if shape in {None, one.state.shape}]
    found = [kept for one in pools if (kept := _find(one, key)) is not None]
    if shape is not None:
        return found[-1] if found else None  # this user's own, if both have one
    real = [one for one in found if one.directory.state.shape is None]
    match real[:1] or found:
        case []:
            return None
        case [only]:
            return only
        case several:
            shapes = ", ".join(str(one.directory.state.shape) for one in several)
            raise SeveralPoolsError(
                f"several pools have a job {wanted}: {shapes}", "Choose one with --simulate."
            )


def _find(pool: PoolDirectory, key: WantedJob) -> KeptLogs | None:
    uid = _user_of(pool, key)
    if uid is None or os.geteuid() not in {0, uid}:
        return None
    indexed = read_index(pool.path, uid)
    if key.number is not None:
        jobs = [one for one in indexed if one.number == key.number]
    else:
        jobs = [one for one in indexed if one.name == key.name][-1:]
        if not jobs:
            array = [one for one in indexed if one.array == key.name]
            newest = max((one.submitted for one in array), default=0.0)
            # Of two jobs of one index the second was submitted again.
            jobs = list({one.name: one for one in array if one.submitted == newest}.values())
    return KeptLogs(pool, uid, tuple(jobs)) if jobs else None


def _user_of(pool: PoolDirectory, key: WantedJob) -> int | None:
    """The user in whose index a job must be; None if there is no such user."""
    if key.number is not None:
        owner = _owner_of(pool.log(key.number, 0))
        return os.geteuid() if owner is None else owner
    if key.user is None:
        return os.geteuid()
    try:
        return pwd.getpwnam(key.user).pw_uid
    except KeyError:
        return int(key.user) if key.user.isdecimal() and key.user.isascii() else None


def _owner_of(path: Path) -> int | None:
    """The user whose file it is; None if it does not exist, or nobody may say."""
    try:
        return stat_in(path.parent, path.name).st_uid
    except OSError:
        return None
