"""When waiting gangs start: reservations in order, and small work in the gaps before them.

Conservative backfill over a timeline of what will be free. Each gang, in its turn, gets the
earliest start at which all its members fit for as long as it runs, with the promises that were made
before left in place. So later work runs in the gaps, or waits: a start that was promised is moved
forward, and never back by work whose turn comes later.

What can move a promise back, and is told in the reason:

- *It cannot be kept*: other work runs longer than it said, or was put in its place. The promises of
  all whose turn comes later are withdrawn too, and all are promised anew in their turns; so who
  loses a start does not come behind those after it. What is still possible then is kept as it was.
- *A gang without a promise whose turn comes before*: in the same queue a higher priority (or an
  older gang that came back); of another queue, by its smaller share, all but the first promise of
  each queue. The first is displaced by what another queue's quota covers (`own`), where it is not
  covered by its own. So a queue that has waited gets its turn, what is a queue's own is not held up
  by who borrows, and a gang that is the first of its queue is not put off for ever by others' small
  work. Those displaced are promised anew, in their turns.

Who asks late, a moment after a promised start, moves what follows back by no more than that moment,
and nobody is blamed.

To bound the work, the first 64 in turn that do not start have a promise; those after them start now
or wait, without harm to a promise. Who is no longer among the first 64 keeps a promise as long as
it is possible, up to 128 in all. Of those that have one the first 8 are looked for any earlier
start, the others whether they can start now.

No gang holds anything before all of it can start, so gangs cannot wait for each other's halves. Who
asks must ask again when work comes or ends, and at the next start that was promised.
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
OVERRAN = "other work runs longer than it said"


@dataclass(frozen=True, slots=True)
class Plan:
    """What starts now, what is promised for later, and a sentence for each gang that waits.

    `moved` says why, for those whose promised start was moved back.
    """

    starts: tuple[Running, ...] = ()
    reservations: tuple[Running, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)


def plan_starts(  # noqa: PLR0913 - the whole question
    allocations: Allocations,
    running: Sequence[Running],
    promised: Sequence[Running],
    waiting: Sequence[Gang],
    now: float,
    *,
    by: Strategy | None = None,
    seed: int = 0,
    own: Collection[str] = (),
    blame: str = OVERRAN,
) -> Plan:
    """Decide for all that wait, in their turns; `promised` is what the last plan reserved.

    `by` and `seed` are as for `plan_gang`. `own` are the names of those that their queue's quota
    covers. `blame` is what a promise that can no longer be kept was broken by.
    """
    after = allocations.copy()
    starts = [] if promised else _fitting_now(after, waiting, now, by, seed)
    if len(starts) == len(waiting):
        return Plan(tuple(starts))
    names = {gang.name: gang for gang in waiting}
    turns = {name: turn for turn, name in enumerate(names)}
    wanted = [one for one in promised if names.get(one.gang.name) == one.gang]
    wanted.sort(key=lambda one: turns[one.gang.name])
    line = Timeline(after, [*running, *starts], wanted, now, by=by, seed=seed)
    if line.late and blame == OVERRAN and all(one.end > now for one in running):
        blame = ""
    desk = _Desk(line, turns, wanted, own, blame)
    for gang in waiting[len(starts) :]:
        desk.decide(gang)
    return Plan((*starts, *desk.starts), tuple(desk.given), desk.reasons, desk.moved)


def _fitting_now(
    allocations: Allocations, waiting: Sequence[Gang], now: float, by: Strategy | None, seed: int
) -> list[Running]:
    """The first gangs as long as each fits, taken: where nothing is promised yet, that is safe."""
    starts = []
    for gang in waiting:
        placements = plan_gang(allocations, gang, by, seed=seed)
        if placements is None:
            break
        starts.append(Running(gang, placements, now, now + gang.seconds))
        allocations.take_gang(starts[-1], known_to_fit=True)
    return starts


class _Desk:
    """Gives the gangs their starts, in their turns.

    `_out` are promises that were taken out of the line until their gang's turn comes.
    """

    def __init__(
        self,
        line: Timeline,
        turns: Mapping[str, int],
        promised: Sequence[Running],
        own: Collection[str],
        blame: str,
    ) -> None:
        self.starts: list[Running] = []
        self.given: list[Running] = []
        self.reasons: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self._line = line
        self._turns = turns
        self._own = own
        self._asked = 0
        self._was = {one.gang.name: one.start for one in promised}
        self._out: dict[str, Running] = {}
        self._blame: dict[str, str] = {}
        self._ahead: dict[str, list[str]] = {}
        self._first_of: dict[str, str] = {}
        for one in promised:
            self._first_of.setdefault(one.gang.queue, one.gang.name)
        self._break_off(blame)

    def _break_off(self, blame: str) -> None:
        """Take out what was promised to those whose turn is after the first that is broken."""
        first = min((self._turns[one.gang.name] for one in self._line.broken), default=math.inf)
        for name in self._was:
            if self._turns[name] >= first:
                self._blame[name] = blame
                if name in self._line.promises:
                    self._take_out(self._line.promises[name])

    def decide(self, gang: Gang) -> None:
        """Write in its start, now or later, or why there is none."""
        found = self._start_of(gang)
        self._asked += 1
        if found is None:
            self.reasons[gang.name] = self._told(gang, math.inf, self._why_not(gang))
        elif found.start <= self._line.now:
            self.starts.append(found)
        else:
            self.given.append(found)
            when = f"all {len(gang.members)} members fit together at {found.start:.10g} s"
            self.reasons[gang.name] = self._told(gang, found.start, when)

    def _start_of(self, gang: Gang) -> Running | None:
        before = self._line.promises.get(gang.name)
        if before is not None:
            self._line.withdraw(before)
        else:
            before = self._out.pop(gang.name, None)
            if before is not None and not self._line.still_holds(before):
                before = None
        if before is None or len(self.given) >= KEPT:
            return self._new(gang)
        is_searched, limit = self._asked < MOVED_FORWARD, before.start
        sooner = self._line.earliest(gang, limit) if is_searched else self._line.fits_now(gang)
        return self._write_in(sooner or before)

    def _new(self, gang: Gang) -> Running | None:
        """The start of a gang without a promise: if need be, before those that come after it."""
        line = self._line
        if len(self.given) >= RESERVATIONS:
            return self._write_in(line.fits_now(gang))
        later = self._displaceable(gang)
        found = line.fits_now(gang) if later else line.earliest(gang)
        if found is None and later:
            for one in later:
                line.withdraw(one)
            found = self._write_in(line.earliest(gang))
            self._put_back(later, gang, found)
        else:
            self._write_in(found)
        if found is not None:
            for one in self._out.values():
                if _meet(one, found):
                    self._tell(one, gang)
        return found

    def _write_in(self, found: Running | None) -> Running | None:
        if found is not None and found.start <= self._line.now:
            self._line.start(found)
        elif found is not None:
            self._line.promise(found)
        return found

    def _displaceable(self, gang: Gang) -> list[Running]:
        """The promises that this gang may displace, in their turns."""
        turn = self._turns[gang.name]
        after = (o for o in self._line.promises.values() if self._turns[o.gang.name] > turn)
        may = [one for one in after if self._comes_before(gang, one.gang)]
        return sorted(may, key=lambda one: self._turns[one.gang.name])

    def _comes_before(self, gang: Gang, other: Gang) -> bool:
        if gang.queue == other.queue or self._first_of[other.queue] != other.name:
            return True
        return gang.name in self._own and other.name not in self._own

    def _put_back(self, later: Sequence[Running], gang: Gang, found: Running | None) -> None:
        """Write in again what is still possible, up to the first that is not."""
        are_possible = True
        for one in later:
            if are_possible and found is not None and _meet(one, found):
                are_possible = self._line.still_holds(one)
            if are_possible:
                self._line.promise(one)
            else:
                self._out[one.gang.name] = one
                self._tell(one, gang)

    def _take_out(self, one: Running) -> None:
        self._line.withdraw(one)
        self._out[one.gang.name] = one

    def _tell(self, one: Running, gang: Gang) -> None:
        """Who came before it: this gang, or where this one was moved back itself, who did so."""
        if gang.name in self._blame:
            self._blame.setdefault(one.gang.name, self._blame[gang.name])
            return
        ahead = self._ahead.setdefault(one.gang.name, [])
        for name in self._ahead.get(gang.name, [gang.name]):
            if name not in ahead:
                ahead.append(name)

    def _why_not(self, gang: Gang) -> str:
        if len(self.given) >= RESERVATIONS:
            return f"{len(self.given)} gangs are promised a start before it"
        allocations = self._line.at_last()
        total = allocations.hardware.total_milli
        if gang.milli > total:
            asked = f"{gang.milli / 1000:.10g} GPU{'s' * (gang.milli != 1000)}"
            return f"it asks for {asked}, and there {_is(total)} {total / 1000:.10g}"
        if has_no_way(allocations, gang):
            return "not all its members fit together, even when all that runs has ended"
        return "no way was found to fit all its members together, even when all that runs has ended"

    def _told(self, gang: Gang, start: float, what: str) -> str:
        """What a gang is told, and before it why, where it was promised an earlier start."""
        if start <= self._was.get(gang.name, math.inf):
            return what
        ahead = self._ahead.get(gang.name)
        causes = [f"{_and(ahead)} came before it"] if ahead else []
        causes += filter(None, [self._blame.get(gang.name)])
        if causes:
            self.moved[gang.name] = "; ".join(causes)
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
