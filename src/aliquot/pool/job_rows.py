"""The rows of jobs that the pool's API returns, read for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.model.job import Desired, JobPhase

if TYPE_CHECKING:
    from collections.abc import Sequence


def shown_phase(job: dict[str, Any]) -> JobPhase:
    """The phase; a job that is about to be cancelled is shown as such at once."""
    phase = JobPhase(job["state"]["phase"])
    cancelled = job["state"]["desired"] == Desired.CANCEL and not phase.final
    return JobPhase.CANCELLING if cancelled else phase


def sizes_text(sizes: Sequence[int]) -> str:
    """The numbers of workers that a job can have: 1..4, or 1,2,4."""
    if list(sizes) == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]}..{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    return ",".join(map(str, sizes))
