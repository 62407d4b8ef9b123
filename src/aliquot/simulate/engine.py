"""A trace over time: gangs come, wait, run and end; the brain decides at each of these moments.

The clock is the trace's. At every moment at which something came, ended or is promised to start:

1. what ended gives back;
2. the queues say whose turn it is;
3. `backfill` decides what starts now and what is promised for later;
4. where nothing helps a gang that has a right to its quota, or to go before lower priorities,
   `preempt` makes room, and what that leaves is planned again; who was to start and is in its way
   does not start;
5. what is allocated and who waits is written down.

Two others are here to be compared with, nothing else. `FIRST_COME` starts gangs in their turns and
lets nobody overtake: the first that does not fit holds up all behind it. `ONE_BY_ONE` is how a
scheduler works that knows no gangs: each member takes what it finds and holds it.
"""

from __future__ import annotations

import heapq
import math
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.gangs.backfill import OVERRAN, Plan, plan_starts
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.preempt import entitled, preempt
from aliquot.placement.queues.quota import in_turn, usage, within_quota
from aliquot.simulate.world import NEVER, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aliquot.placement.core.demand import Placement
    from aliquot.placement.core.snapshot import NodeSpec
    from aliquot.placement.queues.quota import Queue
    from aliquot.simulate.trace import Arrival
    from aliquot.simulate.world import Run, Sample


PREEMPTED = "work with a right to its place was put before it"


class Discipline(StrEnum):
    """How gangs are treated."""

    GANGS = "gangs"
    FIRST_COME = "first-come"
    ONE_BY_ONE = "one-by-one"


class _World(World):
    def __init__(
        self, nodes: Sequence[NodeSpec], arrivals: Sequence[Arrival], by: str, seed: int
    ) -> None:
        super().__init__(nodes, arrivals, by, seed)
        self.chooser = Chooser(self.allocations, self.by, seed=seed)
        self.ran = {one.gang.name: one.ran for one in arrivals}
        self.waiting: dict[str, Gang] = {}
        self.running: dict[str, Running] = {}
        self.partly: dict[str, list[Placement]] = {}
        self.promised: tuple[Running, ...] = ()
        self.ends: list[tuple[float, str, float]] = []

    def begin(self, one: Running, now: float) -> None:
        self.allocations.take_gang(one)
        self._started(one, now)

    def _started(self, one: Running, now: float) -> None:
        name = one.gang.name
        self.waiting.pop(name, None)
        self.running[name] = one
        end = now + self.ran[name]
        heapq.heappush(self.ends, (end, name, now))
        self.note(name, start=now, end=end, reason="")

    def end(self, name: str, begun: float) -> None:
        one = self.running.get(name)
        if one is None or one.start != begun:  # it was evicted, and may run again
            return
        del self.running[name]
        self.allocations.give_gang(one)

    def evict(self, one: Running, now: float, reason: str) -> None:
        name = one.gang.name
        del self.running[name]
        self.allocations.give_gang(one)
        self.waiting[name] = one.gang
        self.note(name, start=None, end=None)
        if one.start < now:  # the others did not start
            self.note(name, evictions=self.fates[name].evictions + 1)
            self._tell(name, now, reason)

    def _tell(self, name: str, now: float, what: str) -> None:
        self.note(name, told=(*self.fates[name].told, (now, what)))

    def decide(self, now: float, queues: Mapping[str, Queue]) -> None:
        """Whose turn it is, who starts, what is promised, and who must end for it."""
        waiting = self._plan(now, queues, OVERRAN)
        if self._ask_back(waiting, now, queues):
            self._plan(now, queues, PREEMPTED)

    def _plan(self, now: float, queues: Mapping[str, Queue], blame: str) -> list[Gang]:
        running = list(self.running.values())
        hardware = self.allocations.hardware
        used = usage(running, hardware)
        order, refused = in_turn(
            list(self.waiting.values()),
            queues,
            used,
            hardware,
            {one.gang.name for one in self.promised},
        )
        plan = plan_starts(
            self.allocations,
            running,
            self.promised,
            order,
            now,
            by=self.by,
            seed=self.seed,
            own=within_quota(order, queues, used, hardware),
            blame=blame,
        )
        self._carry_out(plan, now)
        for name, reason in refused.items():
            self.note(name, reason=reason)
        return [*order, *(self.waiting[name] for name in refused)]

    def _carry_out(self, plan: Plan, now: float) -> None:
        for one in plan.starts:
            self.begin(one, now)
        self.promised = plan.reservations
        for one in plan.reservations:
            if self.fates[one.gang.name].promise is None:
                self.note(one.gang.name, promise=one.start)
        for name, reason in plan.reasons.items():
            self.note(name, reason=reason)
        for name, why in plan.moved.items():
            words = f"starts later: {why}"
            if words not in (one for _, one in self.fates[name].told[-1:]):
                self._tell(name, now, words)

    def _ask_back(self, waiting: Sequence[Gang], now: float, queues: Mapping[str, Queue]) -> bool:
        """End what must make room, start what it is for, and tell both; whether there was any."""
        is_any = False
        running, hardware = list(self.running.values()), self.allocations.hardware
        for gang in entitled(waiting, running, queues, hardware, self.promised):
            if gang.name not in self.waiting:
                continue
            found = preempt(
                self.allocations,
                gang,
                list(self.running.values()),
                queues,
                now,
                promised=self.promised,
                by=self.by,
                seed=self.seed,
            )
            if found is None:
                continue
            is_any = True
            for one in found.victims:
                self.evict(one, now, found.to_victims[one.gang.name])
            for one in found.withdrawn:
                self._tell(one.gang.name, now, found.to_victims[one.gang.name])
            gone = {gang.name, *(one.gang.name for one in found.withdrawn)}
            self.promised = tuple(one for one in self.promised if one.gang.name not in gone)
            self.begin(Running(gang, found.placements, now, now + gang.seconds), now)
            self._tell(gang.name, now, found.to_gang)
        return is_any

    def decide_first_come(self, now: float, queues: Mapping[str, Queue]) -> None:
        """In turn, each starts if it fits, until one does not that ever could."""
        used = usage(self.running.values(), self.allocations.hardware)
        order, refused = in_turn(
            list(self.waiting.values()), queues, used, self.allocations.hardware
        )
        for name, reason in refused.items():
            self.note(name, reason=reason)
        for gang in order:
            placements = plan_gang(self.allocations, gang, self.by, seed=self.seed)
            if placements is not None:
                self.begin(Running(gang, placements, now, now + gang.seconds), now)
            elif plan_gang(self.nothing_runs, gang, self.by, seed=self.seed) is None:
                del self.waiting[gang.name]
                self.note(gang.name, reason=NEVER)
            else:
                self.note(gang.name, reason="not all its members fit together yet")
                break

    def decide_one_by_one(self, now: float) -> None:
        """In turn, a member of each gang takes the place that it finds, and holds it."""
        moved = True
        while moved:
            moved = False
            for gang in list(self.waiting.values()):
                held = self.partly.setdefault(gang.name, [])
                placement = self.chooser.place(gang.members[len(held)])
                if placement is None:
                    continue
                moved = True
                held.append(placement)
                if len(held) == len(gang.members):
                    del self.partly[gang.name]
                    self._started(Running(gang, tuple(held), now, now + gang.seconds), now)

    def sample(self, now: float) -> Sample:
        held = sum(
            member.total_milli
            for name, placements in self.partly.items()
            for member, _ in zip(self.waiting[name].members, placements, strict=False)
        )
        return self.seen(now, held, len(self.waiting))


def simulate(  # noqa: PLR0913 - one for each option of the command
    nodes: Sequence[NodeSpec],
    arrivals: Sequence[Arrival],
    *,
    by: str = "fragmentation",
    seed: int = 42,
    queues: Mapping[str, Queue] | None = None,
    discipline: Discipline = Discipline.GANGS,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Run a trace to its end."""
    begun = time.perf_counter()
    world = _World(nodes, arrivals, by, seed)
    coming = sorted(arrivals, key=lambda one: (one.gang.submitted, one.gang.name), reverse=True)
    samples: list[Sample] = []
    now = -math.inf
    while coming or world.ends:
        now = min(
            *(one.gang.submitted for one in coming[-1:]),
            *(end for end, _, _ in world.ends[:1]),
            *(one.start for one in world.promised if one.start > now),
            math.inf,
        )
        while world.ends and world.ends[0][0] <= now:
            _, name, started = heapq.heappop(world.ends)
            world.end(name, started)
        while coming and coming[-1].gang.submitted <= now:
            gang = coming.pop().gang
            world.waiting[gang.name] = gang
        if discipline is Discipline.GANGS:
            world.decide(now, queues or {})
        elif discipline is Discipline.FIRST_COME:
            world.decide_first_come(now, queues or {})
        else:
            world.decide_one_by_one(now)
        samples.append(world.sample(now))
        if progress is not None:
            progress(1 - len(coming) / max(1, len(arrivals)))
    return world.summed_up(samples, begun)
