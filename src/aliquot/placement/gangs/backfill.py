"""When waiting gangs start: planned starts in fair-share order, and small work in the gaps.

Conservative backfill over a timeline of what will be free. Each gang in order gets the earliest
start at which all its members fit for as long as it runs, with the existing planned starts left in
place. So later gangs run in the gaps or wait. A planned start moves forward when it can, and is
never moved back by a gang that is later in the order.

What can move a planned start back, and is named in the reason:

- *It is no longer possible*: other work overran, or was put in its place. The planned starts of all
  later gangs are withdrawn too, and all are planned again in order, so a gang that loses its start
  does not fall behind later ones. What is still possible is kept as it was.
- *An earlier gang without a planned start*: in the same queue a higher priority (or an older gang
  that came back). A gang of another queue, by its smaller share, displaces all but the first
  planned start of each queue. It displaces the first only if its own quota covers it (`own`) and
  the other's does not. So a queue that has waited gets its turn, borrowers do not hold up what is a
  queue's own, and small work of other queues does not put off the first gang of a queue for ever.
  Displaced gangs are planned again in order.

Asking a moment after a planned start moves later ones back by no more than that moment; no gang is
blamed for it.

To bound the work, the first 64 gangs that do not start have a planned start; those after them start
now or wait, without harm to a planned start. A gang that is no longer among the first 64 keeps its
planned start while that is possible, up to 128 in all. For the first 8 any earlier start is
searched, for the others only a start now.

No gang holds anything before all of it can start, so gangs cannot wait for each other's halves. The
caller must ask again when work arrives or ends, and at the next planned start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.gangs.plan import has_no_way, plan_gang
from aliquot.placement.gangs.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations


RESERVATIONS = 64
KEPT = 128
MOVED_FORWARD = 8
OVERRAN = "other work runs longer than declared"


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What starts now, what is planned for later, and why each gang waits.

    `delays` says why planned starts moved back.
    """

    starts: tuple[Running, ...] = ()
    reservations: tuple[Running, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    delays: Mapping[str, str] = field(default_factory=dict)


def plan_starts(  # noqa: PLR0913 - the whole question
    allocations: Allocations,
    running: Sequence[Running],
    planned: Sequence[Running],
    waiting: Sequence[Gang],
    now: float,
    *,
    by: Strategy | None = None,
    seed: int = 0,
    own: Collection[str] = (),
    blame: str = OVERRAN,
) -> StartPlan:
    """Plan all waiting gangs in order; `planned` is what the last plan reserved.

    `by` and `seed` are as for `plan_gang`. `own` are the names of the gangs that their queue's
    quota covers. `blame` is the reason for planned starts that are no longer possible.
    """
    after = allocations.copy()
    starts = [] if planned else _fitting_now(after, waiting, now, by, seed)
    if len(starts) == len(waiting):
        return StartPlan(tuple(starts))
    names = {gang.name: gang for gang in waiting}
    turns = {name: turn for turn, name in enumerate(names)}
    wanted = [one for one in planned if names.get(one.gang.name) == one.gang]
    wanted.sort(key=lambda one: turns[one.gang.name])
    timeline = Timeline(after, [*running, *starts], wanted, now, by=by, seed=seed)
    if timeline.late and blame == OVERRAN and all(one.end > now for one in running):
        blame = ""
    planner = _Planner(timeline, turns, wanted, own, blame)
    for gang in waiting[len(starts) :]:
        planner.decide(gang)
    return StartPlan(
        (*starts, *planner.starts), tuple(planner.planned), planner.reasons, planner.delays
    )


def _fitting_now(
    allocations: Allocations, waiting: Sequence[Gang], now: float, by: Strategy | None, seed: int
) -> list[Running]:
    """The first gangs as long as each fits: that is safe if no start is planned yet."""
    starts = []
    for gang in waiting:
        placements = plan_gang(allocations, gang, by, seed=seed)
        if placements is None:
            break
        starts.append(Running(gang, placements, now, now + gang.seconds))
        allocations.take_gang(starts[-1], known_to_fit=True)
    return starts


class _Planner:
    """Plans gangs one after the other.

    `_removed` are planned starts that are out of the timeline until their gang is planned again.
    """

    def __init__(
        self,
        timeline: Timeline,
        turns: Mapping[str, int],
        planned: Sequence[Running],
        own: Collection[str],
        blame: str,
    ) -> None:
        self.starts: list[Running] = []
        self.planned: list[Running] = []
        self.reasons: dict[str, str] = {}
        self.delays: dict[str, str] = {}
        self._timeline = timeline
        self._turns = turns
        self._own = own
        self._asked = 0
        self._was = {one.gang.name: one.start for one in planned}
        self._removed: dict[str, Running] = {}
        self._blame: dict[str, str] = {}
        self._ahead: dict[str, list[str]] = {}
        self._first_of: dict[str, str] = {}
        for one in planned:
            self._first_of.setdefault(one.gang.queue, one.gang.name)
        self._break_off(blame)

    def _break_off(self, blame: str) -> None:
        """Remove the planned starts of all gangs after the first one that is broken."""
        first = min((self._turns[one.gang.name] for one in self._timeline.broken), default=math.inf)
        for name in self._was:
            if self._turns[name] >= first:
                self._blame[name] = blame
                if name in self._timeline.planned:
                    self._remove(self._timeline.planned[name])

    def decide(self, gang: Gang) -> None:
        """Plan a start, now or later, or record why there is none."""
        found = self._start_of(gang)
        self._asked += 1
        if found is None:
            self.reasons[gang.name] = self._told(gang, math.inf, self._why_not(gang))
        elif found.start <= self._timeline.now:
            self.starts.append(found)
        else:
            self.planned.append(found)
            when = f"all {len(gang.members)} members fit together at {found.start:.10g} s"
            self.reasons[gang.name] = self._told(gang, found.start, when)

    def _start_of(self, gang: Gang) -> Running | None:
        before = self._timeline.planned.get(gang.name)
        if before is not None:
            self._timeline.withdraw(before)
        else:
            before = self._removed.pop(gang.name, None)
            if before is not None and not self._timeline.still_holds(before):
                before = None
        if before is None or len(self.planned) >= KEPT:
            return self._new(gang)
        is_searched, limit = self._asked < MOVED_FORWARD, before.start
        sooner = (
            self._timeline.earliest(gang, limit) if is_searched else self._timeline.fits_now(gang)
        )
        return self._add(sooner or before)

    def _new(self, gang: Gang) -> Running | None:
        """The start of a gang that has none planned: if need be, before later gangs."""
        timeline = self._timeline
        if len(self.planned) >= RESERVATIONS:
            return self._add(timeline.fits_now(gang))
        later = self._displaceable(gang)
        found = timeline.fits_now(gang) if later else timeline.earliest(gang)
        if found is None and later:
            for one in later:
                timeline.withdraw(one)
            found = self._add(timeline.earliest(gang))
            self._put_back(later, gang, found)
        else:
            self._add(found)
        if found is not None:
            for one in self._removed.values():
                if _meet(one, found):
                    self._blame_for(one, gang)
        return found

    def _add(self, found: Running | None) -> Running | None:
        if found is not None and found.start <= self._timeline.now:
            self._timeline.start(found)
        elif found is not None:
            self._timeline.plan(found)
        return found

    def _displaceable(self, gang: Gang) -> list[Running]:
        """The planned starts that this gang may displace, in order."""
        turn = self._turns[gang.name]
        after = (o for o in self._timeline.planned.values() if self._turns[o.gang.name] > turn)
        may = [one for one in after if self._comes_before(gang, one.gang)]
        return sorted(may, key=lambda one: self._turns[one.gang.name])

    def _comes_before(self, gang: Gang, other: Gang) -> bool:
        if gang.queue == other.queue or self._first_of[other.queue] != other.name:
            return True
        return gang.name in self._own and other.name not in self._own

    def _put_back(self, later: Sequence[Running], gang: Gang, found: Running | None) -> None:
        """Add again what is still possible, up to the first that is not."""
        are_possible = True
        for one in later:
            if are_possible and found is not None and _meet(one, found):
                are_possible = self._timeline.still_holds(one)
            if are_possible:
                self._timeline.plan(one)
            else:
                self._removed[one.gang.name] = one
                self._blame_for(one, gang)

    def _remove(self, one: Running) -> None:
        self._timeline.withdraw(one)
        self._removed[one.gang.name] = one

    def _blame_for(self, one: Running, gang: Gang) -> None:
        """Record that this gang came before: or, if it was moved back itself, what moved it."""
        if gang.name in self._blame:
            self._blame.setdefault(one.gang.name, self._blame[gang.name])
            return
        ahead = self._ahead.setdefault(one.gang.name, [])
        for name in self._ahead.get(gang.name, [gang.name]):
            if name not in ahead:
                ahead.append(name)

    def _why_not(self, gang: Gang) -> str:
        if len(self.planned) >= RESERVATIONS:
            return f"{len(self.planned)} gangs have a planned start before it"
        allocations = self._timeline.at_last()
        total = allocations.hardware.total_milli
        if gang.milli > total:
            asked = f"{gang.milli / 1000:.10g} GPU{'s' * (gang.milli != 1000)}"
            return f"it asks for {asked}, and there {_is(total)} {total / 1000:.10g}"
        if has_no_way(allocations, gang):
            return "not all its members fit together, even when all that runs has ended"
        return "no way was found to fit all its members together, even when all that runs has ended"

    def _told(self, gang: Gang, start: float, what: str) -> str:
        """The reason of a gang, and before it why its planned start moved back, if it did."""
        if start <= self._was.get(gang.name, math.inf):
            return what
        ahead = self._ahead.get(gang.name)
        causes = [f"{_and(ahead)} came before it"] if ahead else []
        causes += filter(None, [self._blame.get(gang.name)])
        if causes:
            self.delays[gang.name] = "; ".join(causes)
        return "; ".join((*causes, what))


def _meet(one: Running, other: Running) -> bool:
    """Whether they run at the same time on the same node."""
    if one.end <= other.start or other.end <= one.start:
        return False
    return not {p.node for p in one.placements}.isdisjoint(p.node for p in other.placements)


def _is(milli: int) -> str:
    return "is" if milli == 1000 else "are"


def _and(names: Sequence[str]) -> str:
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1} others"
