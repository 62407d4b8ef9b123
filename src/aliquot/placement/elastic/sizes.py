"""Sizes of jobs and what they come to: what each job is worth, what queues have, what is taken.

`Scales` weighs: what a job takes, and what it is worth, at each size. `JobSizes` is the sizes of
all jobs at one point of a decision; changing one job makes another standing of it, and costs the
same however many jobs there are in a queue.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.placement.queues.quota import Bound, Resources, Tree, borrows, needs, prefixes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.elastic.job import Elastic
    from aliquot.placement.queues.quota import Path, Queue, Sums

TRIES = 4  # of one kind that do not fit, before all of that kind are taken not to


class Scales:
    """What jobs take and are worth; each is found once."""

    def __init__(
        self, jobs: Mapping[str, Elastic], queues: Mapping[str, Queue], hardware: Hardware
    ) -> None:
        self.jobs = jobs
        self.tree = Tree(queues)
        self.most_milli = math.inf  # an upper bound for all jobs together, if it is known
        self._hardware = hardware
        self._weights: dict[str, float] = {}
        self._logs: dict[tuple[str, int], float] = {}
        self._each: dict[str, Resources] = {}
        self._takes: dict[tuple[str, int], Resources] = {}
        self._limits: dict[str, tuple[tuple[Path, Bound], ...]] = {}
        self._apart: dict[tuple[str, str], tuple[Path, ...]] = {}

    def value(self, job: Elastic, size: int) -> float:
        """The logarithm of a job's speed at this size, times its weight."""
        key = job.name, size
        found = self._logs.get(key)
        if found is None:
            found = self._logs[key] = math.log(job.speed(size))
        return self._weights[job.queue] * found

    def takes(self, job: Elastic, size: int) -> Resources:
        """The most that a job of `size` workers can take."""
        key = job.name, size
        found = self._takes.get(key)
        if found is None:
            each = self._each.get(job.name)
            if each is None:
                each = self._each[job.name] = needs(job.gang(1), self._hardware)
            found = self._takes[key] = Resources(size * each.milli, size * each.bytes)
        return found

    def milli_between(self, job: Elastic, less: int, more: int) -> int:
        """Thousandths of GPUs that the larger size takes more."""
        return self.takes(job, more).milli - self.takes(job, less).milli

    def limits(self, queue: str) -> tuple[tuple[Path, Bound], ...]:
        """The limits of all queues that count what a queue uses, where there are any."""
        found = self._limits.get(queue)
        if found is None:
            every = ((path, self.tree.queue(path).limit) for path in self.tree.counting(queue))
            found = tuple((path, limit) for path, limit in every if limit != Bound())
            self._limits[queue] = found
        return found

    def apart(self, queue: str, other: str) -> tuple[Path, ...]:
        """The queue and its ancestors, without the ancestors that both have."""
        key = queue, other
        found = self._apart.get(key)
        if found is None:
            others = set(prefixes(self.tree.path(other)))
            every = prefixes(self.tree.path(queue))
            found = tuple(path for path in every if path not in others)
            self._apart[key] = found
        return found

    def weigh(self, names: Iterable[str]) -> None:
        """Set the weight of each job: its queue's, shared out level by level and among jobs."""
        counts = Counter(self.jobs[name].queue for name in names)
        paths = {queue: self.tree.path(queue) for queue in counts}
        siblings: dict[Path, float] = {}  # the weights of all children with jobs, by parent
        for path in sorted({path for leaf in paths.values() for path in prefixes(leaf)}):
            weight = self.tree.queue(path).weight
            siblings[path[:-1]] = siblings.get(path[:-1], 0.0) + weight
        siblings[()] = 1.0
        self._weights = {
            queue: math.prod(
                self.tree.queue(up).weight / siblings[up[:-1]] for up in prefixes(leaf)
            )
            / counts[queue]
            for queue, leaf in paths.items()
        }


@dataclass(frozen=True, slots=True)
class JobSizes:
    """The size of each job, what each queue uses with its children, and the sum of all jobs."""

    scales: Scales
    sizes: Mapping[str, int]
    sums: Sums
    milli: int

    @classmethod
    def of(cls, scales: Scales, sizes: Mapping[str, int]) -> JobSizes:
        """These sizes, and no other jobs."""
        return cls(scales, {}, defaultdict(Resources), 0).with_all(sizes)

    @property
    def free(self) -> float:
        """An upper bound of the free thousandths of GPUs; below zero these sizes cannot fit."""
        return self.scales.most_milli - self.milli

    def changed(self, job: Elastic, size: int) -> JobSizes:
        """A copy with this job at another size."""
        return self.with_all({job.name: size})

    def with_all(self, sizes: Mapping[str, int]) -> JobSizes:
        """A copy with these jobs at other sizes."""
        scales, sums, milli = self.scales, self.sums.copy(), self.milli
        for name, size in sizes.items():
            job = scales.jobs[name]
            before, after = scales.takes(job, self.sizes.get(name, 0)), scales.takes(job, size)
            more = after.milli - before.milli
            for path in scales.tree.counting(job.queue):
                has = sums[path]
                sums[path] = Resources(has.milli + more, has.bytes + after.bytes - before.bytes)
            milli += more
        return JobSizes(scales, {**self.sizes, **sizes}, sums, milli)

    def used(self) -> dict[str, Resources]:
        """What each queue uses, without its children."""
        used: dict[str, Resources] = {}
        for name, size in self.sizes.items():
            job = self.scales.jobs[name]
            used[job.queue] = used.get(job.queue, Resources()) + self.scales.takes(job, size)
        return used

    def is_allowed(self, queue: str) -> bool:
        """Whether all queues that count what a queue uses are within their limits."""
        return all(limit.covers(self.sums[path]) for path, limit in self.scales.limits(queue))

    def milli_until_limit(self, queue: str, given: str, milli: int) -> float:
        """The thousandths of GPUs that a queue may still take after the queue `given` gave `milli`.

        Infinite without a limit of compute. Limits of memory are not considered.
        """
        least = math.inf
        for path, limit in self.scales.limits(queue):
            if limit.milli is not None:
                more = milli if path in self.scales.tree.counting(given) else 0
                least = min(least, limit.milli - self.sums[path].milli + more)
        return least

    def reluctance(self, queue: str, other: str) -> int | None:
        """On how many levels a queue is within its quota, below where the two paths part.

        None if it is within its quota where they part: then it gives the other nothing.
        """
        scales = self.scales
        within = [
            not borrows(scales.tree.queue(path), self.sums[path])
            for path in scales.apart(queue, other)
        ]
        return None if within and within[0] else sum(within)
