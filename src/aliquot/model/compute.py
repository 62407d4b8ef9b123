"""How a slice fares with its share of a GPU's compute time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Gates(StrEnum):
    """Whether a GPU can be made to wait for credit: the word of the programs' own self-test."""

    UNTRIED = "untried"
    WORK = "work"
    FAIL = "fail"


class Turn(StrEnum):
    """Where a slice stands while slices take turns on a GPU."""

    IDLE = "idle"  # it has no work
    ALONE = "alone"  # nobody else has work
    OUT = "out"  # it has no credit
    HOLDS = "holds"  # it gets credit
    DRAINS = "drains"  # it gets none any more, and has not come to its end
    OVERDUE = "overdue"  # the same for too long: the others go on beside it
    EXEMPT = "exempt"  # it was overdue too often: it takes no turns for a while


@dataclass(frozen=True, slots=True)
class ComputeUse:
    """What a slice got of its GPU's time. All but `recent_*` and `backlog_quanta` only grows.

    `why` is the driver's code where `gates` fail. `weight_percent` is the part of the GPU that the
    slice has by what was asked for it and for the others. `recent_*` are of about the last
    second. The quantiles of the waits are None where it never waited.
    """

    gates: Gates = Gates.UNTRIED
    why: int = 0
    turn: Turn = Turn.IDLE
    weight_percent: int = 0
    used_seconds: float = 0.0
    handovers: int = 0
    fallbacks: int = 0
    backlog_quanta: int = 0
    waits: int = 0
    waited_seconds: float = 0.0
    wait_p50_seconds: float | None = None
    wait_p99_seconds: float | None = None
    recent_used_seconds: float = 0.0
    recent_seconds: float = 0.0

    @property
    def got_ratio(self) -> float | None:
        """The part of the GPU's time that it had lately; None where nobody has looked yet."""
        return self.recent_used_seconds / self.recent_seconds if self.recent_seconds else None
