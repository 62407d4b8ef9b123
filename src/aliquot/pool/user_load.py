"""What one user has used of the pool lately, and whether it is too much.

Of each user at most `REQUESTS_PER_SECOND` are accepted, and their answers take at most `CPU_SHARE`
of a core.
"""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_SECONDS = 0.05  # if the kernel has no descriptor or memory for a connection
REQUESTS_PER_SECOND = 50.0
CPU_SHARE = 0.25

_BURST_SECONDS = 2.0  # a user that has rested may use so many seconds' worth at once


@dataclass(frozen=True, slots=True)
class UserLoad:
    """What one user has used of the server, as of `at`; both fall with time."""

    at: float
    requests: float = 0.0
    cpu_seconds: float = 0.0

    def after(self, now: float) -> UserLoad:
        """The load at a later time."""
        passed = max(0.0, now - self.at)
        return UserLoad(
            now,
            max(0.0, self.requests - passed * REQUESTS_PER_SECOND),
            max(0.0, self.cpu_seconds - passed * CPU_SHARE),
        )

    def plus(self, *, requests: int = 0, cpu_seconds: float = 0.0) -> UserLoad:
        """The load with more."""
        return UserLoad(self.at, self.requests + requests, self.cpu_seconds + cpu_seconds)

    @property
    def too_much(self) -> bool:
        """Whether the user must wait."""
        return (
            self.requests > REQUESTS_PER_SECOND * _BURST_SECONDS
            or self.cpu_seconds > CPU_SHARE * _BURST_SECONDS
        )
