"""What came of many gangs, in a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.simulate.engine import Fate


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many ran and how long they waited, in seconds; who never ran is in no mean."""

    ran: int
    never_ran: int
    evictions: int
    wait_mean: float
    wait_p95: float
    completion_mean: float


def outcome_of(fates: Sequence[Fate]) -> Outcome:
    """The figures of these gangs."""
    waits = sorted(one.start - one.gang.submitted for one in fates if one.start is not None)
    ends = [one.end - one.gang.submitted for one in fates if one.end is not None]
    return Outcome(
        ran=len(waits),
        never_ran=len(fates) - len(waits),
        evictions=sum(one.evictions for one in fates),
        wait_mean=sum(waits) / len(waits) if waits else 0.0,
        wait_p95=waits[int(0.95 * (len(waits) - 1))] if waits else 0.0,
        completion_mean=sum(ends) / len(ends) if ends else 0.0,
    )


def by_queue(fates: Sequence[Fate]) -> dict[str, Outcome]:
    """The figures of each queue, by its name."""
    names = sorted({one.gang.queue for one in fates})
    return {name: outcome_of([one for one in fates if one.gang.queue == name]) for name in names}
