"""When waiting gangs start: reservations in order, and small work in the gaps before them.

Conservative backfill over a timeline of what will be free. Each gang, in its queue's order, gets
the earliest start at which all its members fit for as long as it runs, with everything that was
promised before it left in place. So a start that was promised is only ever moved forward by this
module: later and smaller work runs in the gaps, or waits. What can move it back is work that runs
longer than it said, and a preemption; that is told in the reason.

To bound the work, 64 gangs have a promise at a time: those after them start now or wait, without
harm to a promise. Of those that have one the first 8 are looked for any earlier start, the others
whether they can start now.

No gang holds anything before all of it can start, so gangs cannot wait for each other's halves. Who
asks must ask again when work comes or ends, and at the next start that was promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.placement.demand import Gang, Running
from aliquot.placement.gangs import has_no_way, plan_gang
from aliquot.placement.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.strategies import Strategy


RESERVATIONS = 64
MOVED_FORWARD = 8
OVERRAN = "other work runs longer than it said"


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts now, what is promised for later, and a sentence for each gang that waits."""

    starts: tuple[Running, ...] = ()
    reservations: tuple[Running, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


def plan_starts(  # noqa: PLR0913 - the whole question
    books: Books,
    running: Sequence[Running],
    promised: Sequence[Running],
    waiting: Sequence[Gang],
    now: float,
    *,
    by: Strategy | None = None,
    seed: int = 0,
    blame: str = OVERRAN,
) -> Plan:
    """Decide for all that wait, in their order; `promised` is what the last plan reserved.

    `by` and `seed` are as for `plan_gang`. `blame` is what a promise that can no longer be kept was
    broken by.
    """
    after = books.copy()
    starts = [] if promised else _fitting_now(after, waiting, now, by, seed)
    if len(starts) == len(waiting):
        return Plan(tuple(starts))
    names = {gang.name: gang for gang in waiting}
    still_wanted = [one for one in promised if names.get(one.gang.name) == one.gang]
    line = Timeline(after, [*running, *starts], still_wanted, now, by=by, seed=seed)
    moved = {one.gang.name for one in still_wanted} - set(line.promises)
    reasons: dict[str, str] = {}
    for turn, gang in enumerate(waiting[len(starts) :]):
        found = _start_of(line, gang, turn)
        if found is None:
            reasons[gang.name] = _why_not(line, gang)
        elif found.start <= now:
            line.start(found)
            starts.append(found)
        else:
            line.promise(found)
            reasons[gang.name] = _why_later(gang, found, blame if gang.name in moved else "")
    return Plan(tuple(starts), tuple(line.promises.values()), reasons)


def _start_of(line: Timeline, gang: Gang, turn: int) -> Running | None:
    """The start that a gang gets: never later than what it was promised."""
    before = line.promises.get(gang.name)
    if before is not None:
        line.withdraw(before)
        is_searched, limit = turn < MOVED_FORWARD, before.start
    else:
        is_searched, limit = len(line.promises) < RESERVATIONS, math.inf
    return (line.earliest(gang, limit) if is_searched else line.fits_now(gang)) or before


def _fitting_now(
    books: Books, waiting: Sequence[Gang], now: float, by: Strategy | None, seed: int
) -> list[Running]:
    """The first gangs as long as each fits, taken: where nothing is promised yet, that is safe."""
    starts = []
    for gang in waiting:
        placements = plan_gang(books, gang, by, seed=seed)
        if placements is None:
            break
        starts.append(Running(gang, placements, now, now + gang.seconds))
        books.take_gang(starts[-1], known_to_fit=True)
    return starts


def _why_not(line: Timeline, gang: Gang) -> str:
    if len(line.promises) >= RESERVATIONS:
        return f"{len(line.promises)} gangs are promised a start before it"
    books = line.at_last()
    total = books.hardware.total_milli
    if gang.milli > total:
        return f"it asks for {gang.milli / 1000:g} GPUs, and there are {total / 1000:g}"
    if has_no_way(books, gang):
        return "not all its members fit together, even when all that runs has ended"
    return "no way was found to fit all its members together, even when all that runs has ended"


def _why_later(gang: Gang, found: Running, blame: str) -> str:
    wait = f"{blame}; " if blame else ""
    return f"{wait}all {len(gang.members)} members fit together at {found.start:g} s"
