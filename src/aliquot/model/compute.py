"""The figures of a slice's compute time: what it used, how it waited, how often it was late."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BUSY_STEPS = 8  # a share of a GPU's time in coarse steps is enough to tell heavy from light


class Gates(StrEnum):
    """Whether gates work for the programs of a slice: the result of the self-test in each."""

    UNTRIED = "untried"
    WORK = "work"
    FAIL = "fail"
    INVALID = "invalid"  # a program wrote impossible counts to its work page: it gets no credit


class Turn(StrEnum):
    """The state of a slice while slices take turns on a GPU."""

    IDLE = "idle"  # it has no work
    ALONE = "alone"  # no other slice has work
    OUT = "out"  # it has no credit
    HOLDS = "holds"  # it gets credit: its turn
    DRAINS = "drains"  # it gets no more credit, and its last work is not done
    OVERDUE = "overdue"  # it has drained for too long: the others run at the same time
    EXEMPT = "exempt"  # it was overdue too often: it takes no turns for a while


@dataclass(frozen=True, slots=True)
class ComputeUse:
    """The compute time that a slice got. Counters only grow.

    `why` is the CUDA error code if `gates` fail. `weight_percent` is the share of the GPU that
    follows from the requests of all slices. `recent_*` cover about the last second. The quantiles
    of the waits are None if the slice never waited.

    `idle_seconds`: since when its programs have launched nothing and had no unfinished work, at
    most since the arbiter started, the grant became active or a program came or went. None: some
    of its work is not seen (gates fail, or a program has not joined). Copies alone are no work.
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
    idle_seconds: float | None = None

    @property
    def got_ratio(self) -> float | None:
        """The share of the GPU's time in about the last second; None if it is not known yet."""
        return self.recent_used_seconds / self.recent_seconds if self.recent_seconds else None


def busy_steps(ratio: float | None) -> int:
    """A share of a GPU's time in eighths; 0 if it is not known."""
    return 0 if ratio is None else max(0, min(BUSY_STEPS, round(BUSY_STEPS * ratio)))
