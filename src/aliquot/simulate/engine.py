"""A trace over time: gangs arrive, wait, run and end, by the same decision as on a cluster.

The clock is the trace's. At every moment at which a gang arrives, ends or has a planned start:

1. gangs that end free their GPUs;
2. `placement.decide`, the function that the gang controller calls too, decides which gangs start,
   when others are planned to start, and which are preempted; this is applied at once, and decided
   again until nothing more changes;
3. the allocations and the waiting gangs are recorded.

Two other disciplines exist for comparison only. `FIRST_COME` starts gangs in fair-share order and
lets none overtake: the first that does not fit blocks all behind it. `ONE_BY_ONE` is a scheduler
without gangs: each member takes what it finds and holds it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.decide import Decision, DecisionInput, decide
from aliquot.placement.gangs.plan import plan_gang
from aliquot.placement.queues.quota import fair_share_order, usage
from aliquot.simulate.world import NEVER, World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.placement.core.demand import Placement
    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.placement.queues.quota import Queue
    from aliquot.simulate.trace import Arrival
    from aliquot.simulate.world import Run, Sample


OnDecision = Callable[[float, Decision], None]


class Discipline(StrEnum):
    """How gangs are scheduled."""

    GANGS = "gangs"
    FIRST_COME = "first-come"
    ONE_BY_ONE = "one-by-one"


class _World(World):
    def __init__(
        self,
        nodes: Sequence[NodeHardware],
        arrivals: Sequence[Arrival],
        by: str,
        seed: int,
        decided: OnDecision | None = None,
    ) -> None:
        super().__init__(nodes, arrivals, by, seed)
        self.chooser = Chooser(self.allocations, self.by, seed=seed)
        self.ran = {one.gang.name: one.ran for one in arrivals}
        self.waiting: dict[str, Gang] = {}
        self.running: dict[str, Running] = {}
        self.partly: dict[str, list[Placement]] = {}
        self.planned: tuple[Running, ...] = ()
        self.ends: list[tuple[float, str, float]] = []
        self._searched: dict[str, int] = {}
        self._decisions = 0
        self._decided = decided

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

    def next_end(self) -> float:
        """When the next gang ends; infinite if none runs."""
        while self.ends and not self._runs(*self.ends[0][1:]):
            heapq.heappop(self.ends)
        return self.ends[0][0] if self.ends else math.inf

    def end_until(self, now: float) -> None:
        """End the gangs that have run long enough."""
        while self.next_end() <= now:
            self.allocations.give_gang(self.running.pop(heapq.heappop(self.ends)[1]))

    def _runs(self, name: str, begun: float) -> bool:
        """Whether it has run since then; else it was evicted, and may be running again."""
        one = self.running.get(name)
        return one is not None and one.start == begun

    def evict(self, one: Running, now: float, reason: str) -> None:
        name = one.gang.name
        del self.running[name]
        self.allocations.give_gang(one)
        self.waiting[name] = one.gang
        self.note(name, start=None, end=None)
        if one.start < now:  # else it has not started
            self.note(name, evictions=self.fates[name].evictions + 1)
            self._message(name, now, reason)

    def _message(self, name: str, now: float, what: str) -> None:
        self.note(name, messages=(*self.fates[name].messages, (now, what)))

    def decide(self, now: float, queues: Mapping[str, Queue]) -> None:
        """Decide and apply until a decision starts nobody, preempts nobody and skips nobody.

        The gang controller does the same: what a decision starts or ends calls for the next one.
        """
        searched: set[str] = set()
        while True:
            decision = self._decide_once(now, queues)
            is_skipped = bool(decision.skipped) and not searched.issuperset(decision.searched)
            searched.update(decision.searched)
            if not (decision.starts or decision.preemptions or is_skipped):
                return

    def _decide_once(self, now: float, queues: Mapping[str, Queue]) -> Decision:
        decision = decide(
            DecisionInput(
                allocations=self.allocations,
                running=list(self.running.values()),
                planned=self.planned,
                waiting=list(self.waiting.values()),
                incomplete=(),
                queues=queues,
                now=now,
                by=self.by,
                seed=self.seed,
                searched_at=self._searched,
            )
        )
        self._decisions += 1
        self._searched |= dict.fromkeys(decision.searched, self._decisions)
        if self._decided is not None:
            self._decided(now, decision)
        self._apply(decision, now)
        return decision

    def _apply(self, decision: Decision, now: float) -> None:
        for _, preemption in decision.preemptions:
            for one in preemption.victims:
                self.evict(one, now, preemption.to_victims[one.gang.name])
            for one in preemption.withdrawn:
                self._message(one.gang.name, now, preemption.to_victims[one.gang.name])
        for one in decision.starts:
            self.begin(one, now)
        for gang, preemption in decision.preemptions:
            self.begin(Running(gang, preemption.placements, now, now + gang.seconds), now)
            self._message(gang.name, now, preemption.to_gang)
        self.planned = decision.planned
        self._explain(decision, now)

    def _explain(self, decision: Decision, now: float) -> None:
        """Record when each waiting gang is to start, and why it waits."""
        for one in decision.planned:
            if self.fates[one.gang.name].planned_start is None:
                self.note(one.gang.name, planned_start=one.start)
        reasons = {**decision.reasons, **decision.never, **decision.above_limit}
        for name in reasons.keys() & self.waiting.keys():
            self.note(name, reason=reasons[name])
        for name in decision.delays.keys() & self.waiting.keys():
            message = f"starts later: {decision.delays[name]}"
            if message not in (one for _, one in self.fates[name].messages[-1:]):
                self._message(name, now, message)

    def decide_first_come(self, now: float, queues: Mapping[str, Queue]) -> None:
        """Start gangs in fair-share order, up to the first that does not fit now but could later.

        A gang that would not fit on the empty cluster is refused and does not stop the others.
        """
        used = usage(self.running.values(), self.allocations.hardware)
        order, refused = fair_share_order(
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
        """One after the other, a member of each gang takes what it finds, and holds it."""
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
    nodes: Sequence[NodeHardware],
    arrivals: Sequence[Arrival],
    *,
    by: str = "fragmentation",
    seed: int = 42,
    queues: Mapping[str, Queue] | None = None,
    discipline: Discipline = Discipline.GANGS,
    progress: Callable[[float], None] | None = None,
    decided: OnDecision | None = None,
) -> Run:
    """Run a trace to its end; `decided` hears each decision of `Discipline.GANGS` with its time."""
    begun = time.perf_counter()
    world = _World(nodes, arrivals, by, seed, decided)
    coming = sorted(arrivals, key=lambda one: (one.gang.submitted, one.gang.name), reverse=True)
    samples: list[Sample] = []
    now = -math.inf
    while coming or world.next_end() < math.inf:
        now = min(
            *(one.gang.submitted for one in coming[-1:]),
            *(one.start for one in world.planned if one.start > now),
            world.next_end(),
            math.inf,
        )
        world.end_until(now)
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
