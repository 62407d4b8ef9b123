"""Which finished jobs are forgotten, so that the pool's database and logs stay bounded. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished jobs are kept; of each user, how many and how much output of theirs."""

    seconds: float = 30 * DAY
    jobs: int = 10_000
    log_bytes: int = 32 << 30


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished job: when it ended, and how many bytes its folder has."""

    number: int
    uid: int
    ended: float
    folder_bytes: int


def expired(finished: Iterable[FinishedJob], keep: Retention, now: float) -> list[int]:
    """The numbers of the jobs to forget: a user's oldest ones beyond any of the three bounds."""
    found: list[int] = []
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for job in sorted(finished, key=lambda one: (-one.ended, -one.number)):
        counts[job.uid] += 1
        sizes[job.uid] += job.folder_bytes
        full = counts[job.uid] > keep.jobs or sizes[job.uid] > keep.log_bytes
        if full or now - job.ended > keep.seconds:
            found.append(job.number)
    return sorted(found)
