"""How many workers each job should have: who starts, who grows, who gives back.

Each job has a list of sizes it can run with. What it has above the smallest is lent: it is given
while nobody waits, and asked for again when somebody does. Four steps over one picture:

1. *Let in.* Those that wait are taken in the order of their turns (`queues`), each at its smallest
   size. Where there is no room, running jobs are made smaller, step by step, always the one that
   loses least; nothing is taken that does not help. A queue within its quota gives only to itself.
   In a tree this is decided, as in `preempt`, between the two queues where the paths of both sides
   part; below the one that has to give, those that borrow there give first.
2. *Exchange.* A job may give a step to another, or several, if both together are better off by more
   than `exchange_gain`; what is within a quota is exchanged as little as it is taken.
3. *Grow.* What is left goes to who gains most by it.
4. *Wait and see.* A running job grows only where it could have for `settle_seconds`, and by at
   least `least_gain` of its speed.

No step makes a queue, or any above it, pass its limit.

What a job loses and gains is measured in one number, the logarithm of its speed by the weight of
its queue (shared by the queue's jobs; a parent's by those below it that have jobs): a step counts
by how much it speeds up that job, so the sum is largest where each has its fair part and none has
GPUs it cannot use. Speeds are those that workers reported, and between two of them on the curve
through both; beyond them, and where there are none, n workers are taken to be n ** `EFFICIENCY` as
fast as one. Programs may report what they like: what is not `plausible` does not count, and twice
the workers are never taken to be more than twice as fast.

No job is resized twice within `resize_seconds`, so there are at most 3600 / `resize_seconds`
resizes in a job-hour, whatever comes; who waits, waits so long for them at most. An exchange raises
the sum, so jobs cannot take turns robbing each other. A job that has to do work again after each
resize says so by `rest_seconds`: for so long it neither grows nor exchanges; to those that wait it
gives as ever. Who waits for longer than `patience_seconds` is not overtaken any more.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aliquot.model.job import MAX_WORKERS
from aliquot.placement.demand import Demand, Gang
from aliquot.placement.queues import Bound, Resources, Tree, borrows, in_turn, needs, upto

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aliquot.model.job import Sizes
    from aliquot.placement.queues import Path, Queue, Sums
    from aliquot.placement.snapshot import Hardware

EFFICIENCY = 0.9
SLOWEST, FASTEST = 1e-6, 1e12  # that a report can be, in any unit
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Rules:
    """How eagerly sizes are changed."""

    resize_seconds: float = 300.0
    settle_seconds: float = 300.0
    least_gain: float = 0.05
    exchange_gain: float = 0.1
    patience_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Elastic:
    """A job as the decision sees it: `size` is what it has or is about to have, 0 if it waits.

    `settled`: no change is under way. `speeds` are measured, by size, in any one unit.
    """

    name: str
    sizes: Sizes
    member: Demand = field(default_factory=Demand)
    queue: str = ""
    priority: int = 0
    submitted: float = 0.0
    size: int = 0
    resized_at: float = -math.inf
    settled: bool = True
    speeds: Mapping[int, float] = field(default_factory=dict)
    rest_seconds: float = 0.0

    def gang(self, size: int) -> Gang:
        """The job with that many workers."""
        return Gang(
            self.name,
            (self.member,) * size,
            queue=self.queue,
            priority=self.priority,
            submitted=self.submitted,
        )

    def speed(self, size: int) -> float:
        """How fast it is with so many workers, measured or assumed."""
        known = _believed(self.speeds)
        if not known:
            return float(size**EFFICIENCY)
        below = max((at for at in known if at <= size), default=None)
        above = min((at for at in known if at >= size), default=None)
        if below is None or above is None:
            near = min(known) if below is None else max(known)
            return float(known[near] * (size / near) ** EFFICIENCY)
        if below == above:
            return known[below]
        part = math.log(size / below) / math.log(above / below)
        return float(known[below] ** (1 - part) * known[above] ** part)


def plausible(size: int, speed: float) -> bool:
    """Whether so many workers can be so fast."""
    return 1 <= size <= MAX_WORKERS and SLOWEST <= speed <= FASTEST


def _believed(speeds: Mapping[int, float]) -> dict[int, float]:
    """What counts of the reports: nobody gains more than linearly by more workers."""
    found: dict[int, float] = {}
    each = math.inf
    for at in sorted(at for at, speed in speeds.items() if plausible(at, speed)):
        found[at] = min(speeds[at], each * at)
        each = min(each, speeds[at] / at)
    return found


class Room(Protocol):
    """Whether jobs can be on the GPUs together, those that keep their size where they are."""

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is a place for all workers of these jobs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, in this order: `resizes`, then `starts` as soon as there is room.

    `could` is to be given to the next decision: since when, and to what size, jobs could grow.
    """

    resizes: dict[str, tuple[int, str]]
    starts: dict[str, int]
    waits: dict[str, str]
    could: dict[str, tuple[float, int]]


def decide(  # noqa: PLR0913, PLR0917 - the whole picture
    jobs: Sequence[Elastic],
    room: Room,
    queues: Mapping[str, Queue],
    hardware: Hardware,
    now: float,
    rules: Rules,
    could: Mapping[str, tuple[float, int]],
) -> Decision:
    """Decide over one picture."""
    return _Decider(jobs, room, queues, hardware, now, rules).decide(could)


class _Decider:
    def __init__(  # noqa: PLR0913, PLR0917 - the whole picture
        self,
        jobs: Sequence[Elastic],
        room: Room,
        queues: Mapping[str, Queue],
        hardware: Hardware,
        now: float,
        rules: Rules,
    ) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.room, self.queues, self.hardware = room, queues, hardware
        self.now, self.rules = now, rules
        self.tree = Tree(queues)
        self.sizes = {job.name: job.size for job in jobs if job.size}
        self.waits: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self._weights, self._weighed = dict[str, float](), 0  # sizes are only ever added
        self.may_grow = True  # nobody waits for what growing would take

    def decide(self, could: Mapping[str, tuple[float, int]]) -> Decision:
        self._let_in()
        self._exchange()
        possible = self._grow() if self.may_grow else {}
        growing, could = self._wait_and_see(possible, could)
        resizes = {
            job.name: (size, self.why.get(job.name, "for a job that waits"))
            for job in self.jobs.values()
            if job.size and (size := self.sizes[job.name]) != job.size
        }
        resizes |= {name: (size, "GPUs are free") for name, size in growing.items()}
        starts = {name: size for name, size in self.sizes.items() if not self.jobs[name].size}
        return Decision(resizes, starts, self.waits, could)

    # --- 1 ---

    def _let_in(self) -> None:
        waiting = [job.gang(job.sizes.least) for job in self.jobs.values() if not job.size]
        order, refused = in_turn(waiting, self.queues, self._used(self.sizes), self.hardware)
        self.waits.update(refused)
        blocker: Elastic | None = None
        for gang in order:
            job = self.jobs[gang.name]
            if blocker is not None:
                self.waits[job.name] = f"{blocker.name} has waited longer, and is not overtaken"
            elif not self._let_one_in(job) and self._is_patient(job):
                blocker = job

    def _let_one_in(self, job: Elastic) -> bool:
        trial = {**self.sizes, job.name: job.sizes.least}
        if not self.room.holds(trial):
            found = self._make_room(trial, job)
            if found is None:
                self.waits[job.name] = self._why_not(job)
                return False
            trial = found
        self.sizes = trial
        return True

    def _make_room(
        self, trial: dict[str, int], job: Elastic, givers: Sequence[Elastic] | None = None
    ) -> dict[str, int] | None:
        """The same with others made smaller until it holds, none more than needed."""
        before = dict(trial)
        givers = self._movable(trial, self.rules.resize_seconds) if givers is None else givers
        while not self.room.holds(trial):
            steps = [
                (*self._loss(one, trial, size), {**trial, one.name: size})
                for one, size in _downs(self._first_to_give(givers, job, trial), trial)
            ]
            if not steps:
                return None
            enough = [step for step in steps if self.room.holds(step[2])]
            if enough:
                trial = min(enough, key=lambda step: step[0])[2]
            else:
                trial = min(steps, key=lambda step: step[1])[2]
        for name in [name for name, size in trial.items() if size != before[name]]:
            for size in (one for one in self.jobs[name].sizes.allowed if one > trial[name]):
                if size <= before[name] and self.room.holds({**trial, name: size}):
                    trial = {**trial, name: size}
        return trial

    def _first_to_give(
        self, givers: Iterable[Elastic], job: Elastic, sizes: Mapping[str, int]
    ) -> list[Elastic]:
        """Of those that can give at all, and have to, the ones that borrow on the most levels."""
        sums = self._sums(sizes)
        found = [
            (rank, one)
            for one in givers
            if one.sizes.below(sizes[one.name]) is not None
            and (rank := self._reluctance(one, job, sums)) is not None
        ]
        least = min((rank for rank, _ in found), default=0)
        return [one for rank, one in found if rank == least]

    def _reluctance(self, giver: Elastic, job: Elastic, sums: Sums) -> int | None:
        """On how many levels a giver is within its quota; None where it gives it nothing."""
        mine = list(upto(self.tree.path(giver.queue)))
        others = set(upto(self.tree.path(job.queue)))
        own = [path for path in mine if path not in others]
        within = [not borrows(self.tree.queue(path), sums[path]) for path in own]
        return None if within and within[0] else sum(within)

    def _why_not(self, job: Elastic) -> str:
        """Why there is no room; and whether what is free should stay so."""
        sums = self._sums(self.sizes)
        running = [one for one in self.jobs.values() if self.sizes.get(one.name)]
        givers = [one for one in running if self._reluctance(one, job, sums) is not None]
        least = {one.name: min(self.sizes[one.name], one.sizes.least) for one in givers}
        trial = {**self.sizes, job.name: job.sizes.least}
        found = self._make_room(trial, job, givers) if self.room.holds(trial | least) else None
        if found is None:
            return "there is no room for it beside what runs"
        self.may_grow = False
        names = sorted(name for name, size in found.items() if size < trial[name])
        return f"{' and '.join(names)} cannot be made smaller again so soon"

    def _is_patient(self, job: Elastic) -> bool:
        return self.now - job.submitted >= self.rules.patience_seconds

    # --- 2 ---

    def _exchange(self) -> None:
        before, gained = dict(self.sizes), 0.0
        while best := max(self._exchanges(), default=None, key=lambda pair: pair[0]):
            gained += best[0]
            self.sizes = best[1]
        if gained < self.rules.exchange_gain:
            self.sizes = before
            return
        for name in self.sizes:
            if self.sizes[name] != before[name]:
                self.why.setdefault(name, "for fair shares")

    def _exchanges(self) -> Iterator[tuple[float, dict[str, int]]]:
        movable = self._movable(self.sizes)
        alone = {  # what it is worth to each to have what it could without a giver
            taker.name: self._value(taker, self._grown(self.sizes, taker)[taker.name])
            for taker in movable
        }
        sums = self._sums(self.sizes)
        for giver, size in _downs(movable, self.sizes):
            loss = self._value(giver, self.sizes[giver.name]) - self._value(giver, size)
            for taker in movable:
                if taker.name == giver.name or self._reluctance(giver, taker, sums) is None:
                    continue
                trial = self._grown({**self.sizes, giver.name: size}, taker)
                gain = self._value(taker, trial[taker.name]) - alone[taker.name] - loss
                if gain > _NOTHING:
                    yield gain, trial

    def _grown(self, trial: dict[str, int], taker: Elastic) -> dict[str, int]:
        """The same with this job as large as there is room for."""
        while (size := taker.sizes.above(trial[taker.name])) is not None:
            larger = {**trial, taker.name: size}
            if not self._allowed(larger, taker) or not self.room.holds(larger):
                break
            trial = larger
        return trial

    # --- 3 and 4 ---

    def _grow(self) -> dict[str, int]:
        """Give away what is left: new jobs have it at once, running ones only could."""
        sizes, closed = dict(self.sizes), set[str]()
        while True:
            ups = [
                (self._gain(one, sizes, size), one.name, size)
                for one in self._movable(sizes)
                if one.name not in closed and (size := one.sizes.above(sizes[one.name]))
            ]
            if not ups:
                break
            gain, name, size = max(ups)
            larger = {**sizes, name: size}
            job = self.jobs[name]
            if gain > 0 and self._allowed(larger, job) and self.room.holds(larger):
                sizes = larger
            else:
                closed.add(name)
        new = {name for name in sizes if not self.jobs[name].size}
        self.sizes |= {name: sizes[name] for name in new}
        return {name: size for name, size in sizes.items() if name not in new}

    def _wait_and_see(
        self, possible: Mapping[str, int], could: Mapping[str, tuple[float, int]]
    ) -> tuple[dict[str, int], dict[str, tuple[float, int]]]:
        growing: dict[str, int] = {}
        now_could: dict[str, tuple[float, int]] = {}
        for name, size in possible.items():
            job = self.jobs[name]
            if size <= job.size or self.sizes[name] != job.size:
                continue
            since, least = could.get(name, (self.now, size))
            if least <= job.size:  # it has grown since
                since, least = self.now, size
            least = min(least, size)
            now_could[name] = since, least
            gain = job.speed(least) / job.speed(job.size) - 1
            if self.now - since >= self.rules.settle_seconds and gain >= self.rules.least_gain:
                growing[name] = least
        return growing, now_could

    # --- parts ---

    def _movable(self, sizes: Mapping[str, int], rest: float | None = None) -> list[Elastic]:
        """Jobs whose size may change: new ones, and those that are long enough as they are.

        `rest` is how long that is; without it, as long as each job wants.
        """
        return [
            job
            for name in sorted(sizes)
            if (job := self.jobs[name]).sizes.elastic
            and (not job.size or (job.settled and self._is_rested(job, rest)))
        ]

    def _is_rested(self, job: Elastic, rest: float | None) -> bool:
        wanted = max(self.rules.resize_seconds, job.rest_seconds) if rest is None else rest
        return self.now - job.resized_at >= wanted

    def _value(self, job: Elastic, size: int) -> float:
        if len(self.sizes) != self._weighed:
            self._weights, self._weighed = self._weigh(), len(self.sizes)
        return self._weights[job.queue] * math.log(job.speed(size))

    def _weigh(self) -> dict[str, float]:
        """What each job counts for, by its queue: weights are shared out level by level."""
        counts = Counter(self.jobs[name].queue for name in self.sizes)
        paths = {queue: self.tree.path(queue) for queue in counts}
        beside: dict[Path, float] = {}  # of all queues with jobs below one, by that one
        for path in sorted({path for leaf in paths.values() for path in upto(leaf)}):
            weight = self.tree.queue(path).weight
            beside[path[:-1]] = beside.get(path[:-1], 0.0) + weight
        beside[()] = 1.0
        return {
            queue: math.prod(self.tree.queue(up).weight / beside[up[:-1]] for up in upto(leaf))
            / counts[queue]
            for queue, leaf in paths.items()
        }

    def _gain(self, job: Elastic, sizes: Mapping[str, int], size: int) -> float:
        """What each GPU more is worth to it."""
        more = self._value(job, size) - self._value(job, sizes[job.name])
        return more / max(1, job.gang(size - sizes[job.name]).milli)

    def _loss(self, job: Elastic, sizes: Mapping[str, int], size: int) -> tuple[float, float]:
        """What being smaller costs it, and what each GPU less does."""
        less = self._value(job, sizes[job.name]) - self._value(job, size)
        return less, less / max(1, job.gang(sizes[job.name] - size).milli)

    def _allowed(self, sizes: Mapping[str, int], job: Elastic) -> bool:
        """Whether its queue and all above it stay within their limits."""
        ways = list(upto(self.tree.path(job.queue)))
        if all(self.tree.queue(path).limit == Bound() for path in ways):
            return True
        return self.tree.over(job.queue, Resources(), self._sums(sizes)) is None

    def _sums(self, sizes: Mapping[str, int]) -> Sums:
        return self.tree.summed(self._used(sizes))

    def _used(self, sizes: Mapping[str, int]) -> dict[str, Resources]:
        used: dict[str, Resources] = {}
        for name, size in sizes.items():
            job = self.jobs[name]
            taken = needs(job.gang(size), self.hardware)
            used[job.queue] = used.get(job.queue, Resources()) + taken
        return used


def _downs(jobs: Iterable[Elastic], sizes: Mapping[str, int]) -> Iterator[tuple[Elastic, int]]:
    for job in jobs:
        if (size := job.sizes.below(sizes[job.name])) is not None:
            yield job, size
