"""Which running jobs are parked because they are idle, for their history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import format_bytes, format_duration
from aliquot.pool.workers import idle_grants

if TYPE_CHECKING:
    from aliquot.pool.store import StoredJob
    from aliquot.slices.arbiter_status import Status


class ParkedJobs:
    """What the pool has seen of parked workers; a new pool says once more what is so."""

    def __init__(self) -> None:
        self._times: dict[int, dict[str, int]] = {}

    def changes(self, stored: StoredJob, status: Status) -> list[str]:
        """A sentence for each worker that was parked, or has returned, since the last call."""
        before = self._times.pop(stored.job.number, {})
        parked = idle_grants(stored, status)
        now = {one.name: one.parking.times for one in parked if one.parking is not None}
        if now:
            self._times[stored.job.number] = now
        said = [
            f"parked: no GPU work for {format_duration(one.parking.after_seconds)}; "
            f"{format_bytes(one.away_bytes)} of its memory are on the host"
            for one in parked
            if one.parking is not None and before.get(one.name) != one.parking.times
        ]
        back = [name for name in before if name not in now]
        return [*("its memory returns to its GPU: it has work again" for _ in back), *said]

    def forget(self, number: int) -> None:
        """The job is over."""
        self._times.pop(number, None)
