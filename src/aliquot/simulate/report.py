"""A few figures about how many gangs ran and how long they waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.simulate.world import Fate


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many gangs ran and how long they waited, in seconds. Means count only gangs that ran.

    `wait_p95` is the wait of one of the gangs, by nearest rank: see `percentile_95`.
    """

    ran: int
    never_ran: int
    evictions: int
    wait_mean: float
    wait_p95: float
    completion_mean: float


def outcome_of(fates: Sequence[Fate]) -> Outcome:
    """The figures about these gangs."""
    waits = sorted(one.start - one.gang.submitted for one in fates if one.start is not None)
    ends = [one.end - one.gang.submitted for one in fates if one.end is not None]
    return Outcome(
        ran=len(waits),
        never_ran=len(fates) - len(waits),
        evictions=sum(one.evictions for one in fates),
        wait_mean=sum(waits) / len(waits) if waits else 0.0,
        wait_p95=percentile_95(waits),
        completion_mean=sum(ends) / len(ends) if ends else 0.0,
    )


def percentile_95(ordered: Sequence[float]) -> float:
    """The least of these that 95% of them do not exceed (nearest rank): of up to 19, the last."""
    rank = -(-95 * len(ordered) // 100)
    return ordered[rank - 1] if ordered else 0.0


def by_queue(fates: Sequence[Fate]) -> dict[str, Outcome]:
    """The figures of each queue, by its name."""
    names = sorted({one.gang.queue for one in fates})
    return {name: outcome_of([one for one in fates if one.gang.queue == name]) for name in names}
