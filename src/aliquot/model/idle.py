"""What a queue does about jobs that have GPUs and use none of them, and how it says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aliquot.model.units import format_duration

GRACE_SECONDS = 3600.0


class IdleAction(StrEnum):
    """What becomes of an idle job."""

    REPORT = "report"
    END = "end"  # after the grace time that follows the report


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A job that uses no GPU for `after_seconds` is reported; END: and ended `grace_seconds` later.

    It is ended only if it uses no GPU in all that time.
    """

    after_seconds: float
    action: IdleAction = IdleAction.REPORT
    grace_seconds: float = GRACE_SECONDS

    def report(self, queue: str) -> str:
        """What is reported of a job in that queue. Another rule reports something else."""
        found = f"idle: it has used no GPU for {format_duration(self.after_seconds)}"
        if self.action is IdleAction.REPORT:
            return found
        grace = format_duration(self.grace_seconds)
        return f"{found}; queue {queue} ends it in {grace} unless it uses one"

    def why_ended(self, queue: str, idle_seconds: float) -> str:
        """Why a job in that queue was ended."""
        limit = format_duration(self.after_seconds + self.grace_seconds)
        idle = format_duration(idle_seconds)
        return f"idle for {idle}: queue {queue} ends jobs that use no GPU for {limit}"
