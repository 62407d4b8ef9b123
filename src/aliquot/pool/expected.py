"""When jobs and commands that wait start at the latest, by the time limits of running jobs. Pure.

They start in the order of their turns, each when its GPUs are free. What has no time limit is taken
to run for ever, so after the first one that has no start nothing is known of the later ones.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.model.errors import NoCapacityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.model import Grant, Request
    from aliquot.pool.capacity import MachinePlan


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """What one of those that wait needs, and how long it has it at most; None: no limit."""

    name: str
    request: Request
    workers: int = 1
    seconds: float | None = None


def expected_starts(
    turns: Iterable[WaitingTurn],
    plan: MachinePlan,
    ends: Iterable[tuple[float, Sequence[Grant]]],
    now: float,
) -> dict[str, float]:
    """The latest starts that are known, by name; `ends` says when grants of the plan have ended."""
    found: dict[str, float] = {}
    coming = [(when, number, grants) for number, (when, grants) in enumerate(ends)]
    heapq.heapify(coming)
    at = now
    for number, turn in enumerate(turns, len(coming)):
        while (after := _with(plan, turn)) is None:
            if not coming:
                return found
            when, _, gone = heapq.heappop(coming)
            at = max(at, when)
            for grant in gone:
                plan = plan.without_grant(grant)
        found[turn.name] = at
        if turn.seconds is not None:
            started = after.grants[len(plan.grants) :]
            heapq.heappush(coming, (at + turn.seconds, number, started))
        plan = after
    return found


def _with(plan: MachinePlan, turn: WaitingTurn) -> MachinePlan | None:
    """The plan with one more that runs; None if it does not fit."""
    try:
        return plan.put(turn.request, turn.workers)[0]
    except NoCapacityError:
        return None
