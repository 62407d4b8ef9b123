"""A trace over time in which jobs are resized: `placement.elastic` decides, as for the pool.

The assumptions; the numbers are options:

* With n workers a job is n ** `efficiency` as fast as with one, on whichever GPUs. Its work is what
  it does in the trace's duration with the workers that it requested. The decision knows the speeds
  at sizes that the job has had, as if workers had reported them, and no others; it does not know
  how long jobs run.
* A job gets notice of a resize `notice_seconds` ahead, and works until then. Then its workers stop,
  and the work since the last checkpoint is repeated (one checkpoint every `checkpoint_seconds` of
  work; 0: it saves at the notice, and loses nothing). GPUs that it gives back are free from then
  on. It holds the GPUs that it keeps for `restart_seconds` without working, and new GPUs from the
  moment of the decision. The first start costs nothing: the trace's duration includes it.
* The decision is made whenever anything happens, and at every time at which it may change by itself
  (`next_look`). The result is the same as if it was made all the time.

So a job is resized at most 3600 / (`resize_seconds` + `notice_seconds`) times in an hour.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Sizes
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Gang, Running
from aliquot.placement.elastic.feasibility import ClusterCapacity, Feasibility, JobWorkers
from aliquot.placement.elastic.job import EFFICIENCY, Elastic
from aliquot.placement.elastic.resize import Rules, decide
from aliquot.placement.gangs.plan import plan_gang
from aliquot.simulate.world import NEVER, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aliquot.placement.core.demand import Placement
    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.placement.elastic.resize import SizeDecision
    from aliquot.placement.queues.quota import Queue
    from aliquot.simulate.trace import Arrival
    from aliquot.simulate.world import Run, Sample

A_MOMENT = 1e-3  # after a time has come, so that no rounding says that it has not


@dataclass(frozen=True, slots=True)
class Costs:
    """What a resize costs, and what a worker more brings."""

    notice_seconds: float = 30.0
    restart_seconds: float = 60.0
    checkpoint_seconds: float = 600.0
    efficiency: float = EFFICIENCY

    def __post_init__(self) -> None:
        times = (self.notice_seconds, self.restart_seconds, self.checkpoint_seconds)
        if not all(math.isfinite(one) and one >= 0 for one in times):
            raise InvalidValueError(
                "notice, restart and checkpoint are times of 0 seconds or more",
                "A job that saves on notice has a checkpoint of 0.",
            )
        if not 0 < self.efficiency <= 1:
            raise InvalidValueError(
                f"an efficiency cannot be {self.efficiency:g}",
                "n workers are n ** efficiency as fast as one: write for example 0.9, at most 1.",
            )

    def speed(self, size: int) -> float:
        """The speed of `size` workers, relative to one."""
        return float(size**self.efficiency)

    def saved(self, worked: float) -> float:
        """How much of its working time is saved when a job is stopped."""
        if not self.checkpoint_seconds:
            return worked
        return self.checkpoint_seconds * (worked // self.checkpoint_seconds)


@dataclass
class _Job:
    """An unfinished job: `size` is decided, `workers` is how many work now.

    `todo` is the work that was left at `began`, in seconds of one worker; if `began` is None, the
    job does not work. `turn` counts its sets of workers.
    """

    gang: Gang
    sizes: Sizes
    todo: float
    size: int = 0
    workers: int = 0
    began: float | None = None
    resized_at: float = -math.inf
    has_notice: bool = False
    turn: int = 0
    placements: list[Placement] = field(default_factory=list)
    speeds: dict[int, float] = field(default_factory=dict)

    @property
    def member(self) -> Demand:
        return self.gang.members[0]

    @property
    def idle_workers(self) -> int:
        """How many of its places are held without working."""
        return len(self.placements) - (self.workers if self.began is not None else 0)

    def in_place(self) -> JobWorkers[Running]:
        """Its workers and where they are; in a resize the remaining workers keep their places."""
        unit = Gang(self.gang.name, (self.member,))
        held = tuple(Running(unit, (one,), 0.0, 1.0) for one in self.placements)
        return JobWorkers(self.gang.name, unit.members, held, size=len(held), live=True)

    def seen(self) -> Elastic:
        """The job as the decision sees it."""
        return Elastic(
            name=self.gang.name,
            sizes=self.sizes,
            member=self.member,
            queue=self.gang.queue,
            priority=self.gang.priority,
            submitted=self.gang.submitted,
            size=self.size,
            resized_at=self.resized_at,
            settled=self.began is not None and not self.has_notice,
            speeds=self.speeds,
        )


class _World(World):
    def __init__(  # noqa: PLR0913, PLR0917 - all that does not change
        self,
        nodes: Sequence[NodeHardware],
        arrivals: Sequence[Arrival],
        by: str,
        seed: int,
        rules: Rules,
        costs: Costs,
    ) -> None:
        super().__init__(nodes, arrivals, by, seed)
        self.rules, self.costs = rules, costs
        self.jobs: dict[str, _Job] = {}
        self.could: dict[str, tuple[float, int]] = {}
        self.events: list[tuple[float, str, int, str]] = []

    # --- what happens ---

    def come(self, arrival: Arrival) -> None:
        gang = arrival.gang
        if len(set(gang.members)) > 1:
            raise InvalidValueError(
                f"gang {gang.name!r} has members that differ: the elastic way knows equal ones",
                "Make them equal, or leave out the way 'elastic'.",
            )
        sizes = arrival.sizes or Sizes((len(gang.members),))
        smallest = replace(gang, members=gang.members[:1] * sizes.least)
        if plan_gang(self.nothing_runs, smallest, self.by, seed=self.seed) is None:
            self.note(gang.name, reason=NEVER)
            return
        work = arrival.ran * self.costs.speed(len(gang.members))
        self.jobs[gang.name] = _Job(gang, sizes, work)

    def happen(self, now: float) -> None:
        """All that is due."""
        while self.events and self.events[0][0] <= now:
            at, name, turn, what = heapq.heappop(self.events)
            job = self.jobs.get(name)
            if job is None or job.turn != turn:  # it has ended, or its workers are others
                continue
            if what == "end":
                self._give(job, 0)
                del self.jobs[name]
                self.note(name, end=at)
            elif what == "stop":
                self._stop(job, at)
            else:
                self._work(job, at)

    def _stop(self, job: _Job, now: float) -> None:
        """The workers end, and those of the new size begin."""
        worked = 0.0 if job.began is None else now - job.began
        saved = self.costs.saved(worked)
        job.todo -= saved * self.costs.speed(job.workers)
        fate = self.fates[job.gang.name]
        again = (worked - saved) * job.workers
        idle = self.costs.restart_seconds * job.size
        idle += self.costs.notice_seconds * max(0, job.size - job.workers)
        gpus = job.member.total_milli / WHOLE_MILLI
        lost = fate.lost + (again + idle) * gpus
        self.note(job.gang.name, resizes=fate.resizes + 1, lost=lost)
        self._give(job, job.size)
        job.workers, job.began, job.has_notice = job.size, None, False
        job.resized_at = now
        job.turn += 1
        self._later(job, now + self.costs.restart_seconds, "work")

    def _work(self, job: _Job, now: float) -> None:
        job.began = now
        speed = job.speeds[job.workers] = self.costs.speed(job.workers)
        self._later(job, now + job.todo / speed, "end")

    def _later(self, job: _Job, at: float, what: str) -> None:
        heapq.heappush(self.events, (at, job.gang.name, job.turn, what))

    # --- what is decided ---

    def decide(self, now: float, queues: Mapping[str, Queue]) -> None:
        jobs = self.jobs
        workers = {name: job.in_place() for name, job in jobs.items()}
        check = Feasibility(ClusterCapacity(self.allocations, self.by, self.seed), workers)
        seen = [job.seen() for job in jobs.values()]
        hardware = self.allocations.hardware
        decision = decide(seen, check, queues, hardware, now, self.rules, self.could)
        self.could = decision.could
        self._carry_out(decision, now)
        for name, reason in decision.waits.items():
            self.note(name, reason=reason)

    def _carry_out(self, decision: SizeDecision, now: float) -> None:
        for name, (size, why) in decision.resizes.items():
            job = self.jobs[name]
            if size > job.size and not self._take(job, size):
                continue
            self._message(name, now, f"{job.size} to {size} workers: {why}")
            job.size, job.has_notice = size, True
            self._later(job, now + self.costs.notice_seconds, "stop")
        for name, size in decision.starts.items():
            job = self.jobs[name]
            if not self._take(job, size):
                self.note(name, reason="its GPUs are being given back by others")
                continue
            job.size = job.workers = size
            job.resized_at = now
            self.note(name, start=now, reason="")
            self._work(job, now)

    def _take(self, job: _Job, size: int) -> bool:
        """Take places until the job has `size` in all; False, and no change, if they do not fit."""
        new = replace(job.gang, members=(job.member,) * (size - len(job.placements)))
        found = plan_gang(self.allocations, new, self.by, seed=self.seed)
        for placement in found or ():
            self.allocations.take(placement, job.member)
        job.placements.extend(found or ())
        return found is not None

    def _give(self, job: _Job, size: int) -> None:
        for placement in job.placements[size:]:
            self.allocations.give(placement, job.member)
        del job.placements[size:]

    def next_look(self, now: float) -> float:
        """The next time at which the decision may change although nothing happens until then."""
        return min((at for at in self._looks() if at > now), default=math.inf)

    def _looks(self) -> Iterator[float]:
        for job in self.jobs.values():
            if not job.size:
                yield job.gang.submitted + self.rules.patience_seconds + A_MOMENT
            elif job.sizes.elastic:
                yield job.resized_at + self.rules.resize_seconds + A_MOMENT
        for since, _ in self.could.values():
            yield since + self.rules.settle_seconds + A_MOMENT

    # --- what is written down ---

    def _message(self, name: str, now: float, what: str) -> None:
        self.note(name, messages=(*self.fates[name].messages, (now, what)))

    def sample(self, now: float) -> Sample:
        idle = sum(job.idle_workers * job.member.total_milli for job in self.jobs.values())
        return self.seen(now, idle, sum(not job.size for job in self.jobs.values()))


def simulate_elastic(  # noqa: PLR0913 - one for each option of the command
    nodes: Sequence[NodeHardware],
    arrivals: Sequence[Arrival],
    *,
    by: str = "fragmentation",
    seed: int = 42,
    queues: Mapping[str, Queue] | None = None,
    rules: Rules | None = None,
    costs: Costs | None = None,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Run a trace to its end, with jobs as large as fits."""
    begun = time.perf_counter()
    world = _World(nodes, arrivals, by, seed, rules or Rules(), costs or Costs())
    coming = sorted(arrivals, key=lambda one: (one.gang.submitted, one.gang.name), reverse=True)
    samples: list[Sample] = []
    now = -math.inf
    while coming or world.events:
        now = min(
            *(one.gang.submitted for one in coming[-1:]),
            *(at for at, *_ in world.events[:1]),
            world.next_look(now),
            math.inf,
        )
        world.happen(now)
        while coming and coming[-1].gang.submitted <= now:
            world.come(coming.pop())
        world.decide(now, queues or {})
        samples.append(world.sample(now))
        if progress is not None:
            progress(1 - len(coming) / max(1, len(arrivals)))
    return world.summed_up(samples, begun)
