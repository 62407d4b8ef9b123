"""Whether jobs of some sizes fit on the GPUs together: one check for cluster, pool and simulator.

A job that keeps its size stays where it is. A job that shrinks frees what its last workers have. A
job that grows is placed next to what it has, as a gang. If that fails, every job that changes is
placed anew, as happens when its workers restart; a `live` job, which resizes while it runs, keeps
its remaining workers even then. Placing anew is slow, so it is done for `PLACED_ANEW` jobs at most.

Workers that are alike can take each other's places. So if at most one kind of worker grows in
number, counting is enough; for workers of one whole GPU it is the exact answer. From the first
question that needs more, the last few layouts that were found feasible are kept: the next question
mostly differs from one of them by a job or two.

Where workers can be is for `Capacity` to say: `ClusterCapacity` is the one over `Allocations`, and
the pool has one over an arbiter's grants.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from aliquot.placement.core.demand import Gang, Kind, Running
from aliquot.placement.gangs.domains import capacity
from aliquot.placement.gangs.plan import plan_gang

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand

PLACED_ANEW = 100
LAYOUTS = 4

Sizes = frozenset[tuple[str, int]]
Worker = TypeVar("Worker")  # what one worker has allocated


@dataclass(frozen=True)
class JobWorkers(Generic[Worker]):
    """A job, or something else that waits: `member` are the demands of each of its workers.

    `held` is what its workers have, by rank. `size` is the number of workers in place, None while
    the job is on its way to another size. `live`: it resizes while it runs. `pinned`: it can only
    go where it was, so it is placed before the others. `choosy`: where its workers can be depends
    on the workers of others, so nobody takes their places. Workers with equal demands and `terms`
    can take each other's places. `choice` is how many GPUs it may use: those with least choose
    first.
    """

    name: str
    member: tuple[Demand, ...]
    held: tuple[Worker, ...] = ()
    size: int | None = None
    live: bool = False
    pinned: bool = False
    choosy: bool = False
    terms: Hashable = None
    choice: float = math.inf

    def keeps(self, size: int) -> int:
        """How many workers stay where they are when the job is resized."""
        if self.size == size:
            return size
        return min(size, self.size) if self.live and self.size else 0


class Capacity(Protocol[Worker]):
    """GPUs and what is allocated on them. A search changes copies of it."""

    def copy(self) -> Capacity[Worker]:
        """The same, to be changed without changing this one."""

    def free(self, worker: Worker) -> None:
        """Free what a worker has."""

    def take_back(self, worker: Worker) -> bool:
        """Allocate what a worker had, if all of it is free; return whether it was."""

    def place(self, job: JobWorkers[Worker], count: int) -> tuple[Worker, ...] | None:
        """Allocate `count` more workers of a job; None, and no change, if they do not fit."""

    def count(self, member: Demand) -> int | None:
        """How many such demands fit; None if that cannot be counted."""

    def is_intact(self, worker: Worker) -> bool:
        """Whether all GPUs of a worker are still there."""

    def free_milli(self) -> float:
        """Thousandths of GPUs that are free; infinite if that is not known."""


@dataclass
class Feasibility(Generic[Worker]):
    """Answers for one snapshot: `capacity` has all workers that the jobs hold."""

    capacity: Capacity[Worker]
    jobs: Mapping[str, JobWorkers[Worker]]
    _known: dict[Sizes, bool] = field(default_factory=dict)
    _counts: dict[Demand, int | None] = field(default_factory=dict)
    _alike: dict[str, str | None] = field(default_factory=dict)
    _firsts: dict[Hashable, str] = field(default_factory=dict)
    _layouts: list[_Layout[Worker]] = field(default_factory=list)
    _to_place_anew: int = PLACED_ANEW

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether all workers of these jobs fit."""
        key = frozenset(sizes.items())
        if key not in self._known:
            self._known[key] = self._fits(key, sizes)
        return self._known[key]

    def free_milli(self, sizes: Mapping[str, int]) -> float:
        """Thousandths of GPUs that are free besides these jobs."""
        free = self.capacity.free_milli()
        for job, size in self._resized(sizes):
            each = sum(one.total_milli for one in job.member)
            free += each * (len(job.held) - size)
        return free

    def after_resize(self, name: str, size: int) -> Feasibility[Worker] | None:
        """The check after this job alone was resized now; None if it cannot be."""
        capacity = self.capacity.copy()
        if _place_anew(capacity, [(self.jobs[name], size)]) is None:
            return None
        return Feasibility(capacity, self.jobs)

    def after_arrival(self, sizes: Mapping[str, int]) -> Feasibility[Worker]:
        """The check after jobs on their way to these sizes have arrived there.

        A job that does not fit now is left to the scheduler, and takes nothing.
        """
        capacity, jobs = self.capacity.copy(), dict(self.jobs)
        for name, size in sizes.items():
            job = jobs[name]
            for worker in job.held:
                capacity.free(worker)
            held = capacity.place(job, size) or ()
            jobs[name] = replace(job, held=held, size=size)
        return Feasibility(capacity, jobs)

    def _resized(self, sizes: Mapping[str, int]) -> Iterator[tuple[JobWorkers[Worker], int]]:
        for name, size in sizes.items():
            job = self.jobs.get(name)
            if job is not None and job.size != size:
                yield job, size

    def _counted(self, resized: Iterable[tuple[JobWorkers[Worker], int]]) -> bool | None:
        """The answer by counting workers of each kind; None if counting cannot tell."""
        workers: Counter[str] = Counter()
        for job, size in resized:
            alike = None if job.choosy else self._first_alike(job)
            if alike is None:
                return None
            workers[alike] += size - len(job.held)
        more: Counter[tuple[Demand, Hashable]] = Counter()
        for name, count in workers.items():
            for one in self.jobs[name].member:
                more[one, self.jobs[name].terms] += count
        grown = [one for one, count in more.items() if count > 0]
        if not grown:
            return True
        if len(grown) > 1:
            return None
        member = grown[0][0]
        free = self._count(member)
        if free is not None and more[grown[0]] <= free:
            return True
        return False if free is not None and len(more) == 1 and _is_one_gpu(member) else None

    def _first_alike(self, job: JobWorkers[Worker]) -> str | None:
        """The first job whose workers are the same; None if a GPU of this job is gone."""
        if job.name not in self._alike:
            is_intact = all(self.capacity.is_intact(one) for one in job.held)
            kind = job.member, job.terms
            first = self._firsts.setdefault(kind, job.name) if is_intact else None
            self._alike[job.name] = first
        return self._alike[job.name]

    def _count(self, member: Demand) -> int | None:
        if member not in self._counts:
            self._counts[member] = self.capacity.count(member)
        return self._counts[member]

    def _fits(self, key: Sizes, sizes: Mapping[str, int]) -> bool:
        if not self._layouts:
            counted = self._counted(self._resized(sizes))
            if counted is not None:
                return counted
            self._layouts.append(_Layout(self, frozenset(), self.capacity, {}))
        near = min(self._layouts, key=lambda one: (len(key - one.sizes), not one.is_placed))
        found = near.changed(key, sizes)
        if found is None:
            resized = list(self._resized(sizes))
            self._to_place_anew -= len(resized)
            if self._to_place_anew >= 0:
                found = self._anew(key, resized)
        if found is not None:
            self._layouts.remove(near)
            self._layouts[:0] = [found, near]
            del self._layouts[LAYOUTS:]
        return found is not None

    def _anew(
        self, key: Sizes, resized: list[tuple[JobWorkers[Worker], int]]
    ) -> _Layout[Worker] | None:
        capacity = self.capacity.copy()
        workers = _place_anew(capacity, resized)
        return None if workers is None else _Layout(self, key, capacity, workers)


class _Layout(Generic[Worker]):
    """Where workers would be with some sizes: `_workers` has the jobs that are not as they are now.

    The job that gets `more` workers than in the layout this was made from is placed when needed.
    """

    def __init__(
        self,
        check: Feasibility[Worker],
        sizes: Sizes,
        capacity: Capacity[Worker],
        workers: dict[str, tuple[Worker, ...]],
        more: tuple[JobWorkers[Worker], int] | None = None,
    ) -> None:
        self.check, self.sizes = check, sizes
        self._capacity, self._workers, self._more = capacity, workers, more
        self._counts: dict[Demand, int | None] = {}
        self._smaller: dict[Sizes, _Layout[Worker] | None] = {}

    def changed(self, key: Sizes, sizes: Mapping[str, int]) -> _Layout[Worker] | None:
        """The layout with these sizes; None if not all fit."""
        self._place()
        changes = [
            (job, size)
            for name, size in key - self.sizes
            if (job := self.check.jobs.get(name)) is not None
        ]
        changes += [(self.check.jobs[name], 0) for name in self._workers.keys() - sizes.keys()]
        less, more = [], []
        for job, size in changes:
            has = len(self._of(job))
            if size == job.size or size < has:
                less.append((job, size))
            elif size > has:
                more.append((job, size - has))
        smaller = self._with_less(less)
        return None if smaller is None else smaller.with_more(key, more)

    @property
    def is_placed(self) -> bool:
        """Whether every worker is placed."""
        return self._more is None

    def _of(self, job: JobWorkers[Worker]) -> tuple[Worker, ...]:
        return self._workers.get(job.name, job.held)

    def _with_less(self, less: list[tuple[JobWorkers[Worker], int]]) -> _Layout[Worker] | None:
        """A layout with these jobs shrunk; None if it is impossible.

        A job that gets the size it has now must get the GPUs it has now.
        """
        key = frozenset((job.name, size) for job, size in less)
        if not key:
            return self
        if key not in self._smaller:
            self._smaller[key] = self._shrunk(less)
        return self._smaller[key]

    def _shrunk(self, less: list[tuple[JobWorkers[Worker], int]]) -> _Layout[Worker] | None:
        capacity, workers = self._capacity.copy(), dict(self._workers)
        for job, size in less:
            stays = size == job.size
            for one in self._of(job)[0 if stays else size :]:
                capacity.free(one)
            workers[job.name] = self._of(job)[:size]
        for job, size in less:
            if size == job.size:
                del workers[job.name]
                if not all(capacity.take_back(one) for one in job.held):
                    return None
        return _Layout(self.check, self.sizes, capacity, workers)

    def with_more(
        self, key: Sizes, more: list[tuple[JobWorkers[Worker], int]]
    ) -> _Layout[Worker] | None:
        """A layout with more workers of these jobs; None if they do not fit."""
        may = [self._may_fit(job, count) for job, count in more]
        if False in may:
            return None
        if len(more) == 1 and may[0] and len(set(more[0][0].member)) == 1:
            return _Layout(self.check, key, self._capacity, self._workers, more[0])
        capacity, workers = self._capacity.copy(), dict(self._workers)
        for job, count in sorted(more, key=_order):
            found = capacity.place(job, count)
            if found is None:
                return None
            workers[job.name] = self._of(job) + found
        return _Layout(self.check, key, capacity, workers)

    def _may_fit(self, job: JobWorkers[Worker], count: int) -> bool | None:
        """Whether each kind of member fits by itself, exact if all are alike; None: unknown."""
        for one in set(job.member):
            if one not in self._counts:
                self._counts[one] = self._capacity.count(one)
            free = self._counts[one]
            if free is None:
                return None
            if free < count * job.member.count(one):
                return False
        return True

    def _place(self) -> None:
        if self._more is None:
            return
        job, count = self._more
        self._more = None
        self._capacity = self._capacity.copy()
        found = self._capacity.place(job, count) or ()
        self._workers = {**self._workers, job.name: self._of(job) + found}


def _is_one_gpu(member: Demand) -> bool:
    """Whether any free GPU will do."""
    is_choosy = member.models or member.min_strength or member.wishes
    needs_more = is_choosy or member.gpu_bytes or member.cpu_milli or member.ram_bytes
    return member.kind is Kind.WHOLE and member.gpus == 1 and not needs_more


def _place_anew(
    capacity: Capacity[Worker], resized: list[tuple[JobWorkers[Worker], int]]
) -> dict[str, tuple[Worker, ...]] | None:
    """Free what these jobs do not keep and place them at their sizes; None if not all fit."""
    for job, size in resized:
        for one in job.held[job.keeps(size) :]:
            capacity.free(one)
    workers = {job.name: job.held[: job.keeps(size)] for job, size in resized}
    for job, count in sorted(((job, size - job.keeps(size)) for job, size in resized), key=_order):
        found = capacity.place(job, count) if count else ()
        if found is None:
            return None
        workers[job.name] += found
    return workers


def _order(pair: tuple[JobWorkers[Worker], int]) -> tuple[bool, float, bool, int, str]:
    """Pinned jobs first, then those with little choice, whole GPUs, large gangs before small."""
    job, count = pair
    return (
        not job.pinned,
        job.choice,
        any(one.kind is not Kind.WHOLE for one in job.member),
        -count * sum(one.total_milli for one in job.member),
        job.name,
    )


class ClusterCapacity:
    """The GPUs of a cluster: what a worker has is a `Running`, and strategies choose where."""

    def __init__(self, allocations: Allocations, by: Strategy, seed: int = 0) -> None:
        self.allocations = allocations
        self._by = by
        self._seed = seed

    def copy(self) -> ClusterCapacity:
        """The same, to be changed without changing this one."""
        return ClusterCapacity(self.allocations.copy(), self._by, self._seed)

    def free(self, worker: Running) -> None:
        """Free what a worker has."""
        self.allocations.give_gang(worker)

    def take_back(self, worker: Running) -> bool:
        """Allocate what a worker had, if all of it is free; return whether it was."""
        return self.allocations.take_gang_if_it_fits(worker)

    def place(self, job: JobWorkers[Running], count: int) -> tuple[Running, ...] | None:
        """Allocate `count` more workers of a job as one gang; None if they do not fit."""
        if not count:
            return ()
        gang = Gang(job.name, job.member * count)
        placements = plan_gang(self.allocations, gang, self._by, seed=self._seed)
        if placements is None:
            return None
        unit, each = Gang(job.name, job.member), len(job.member)
        workers = tuple(
            Running(unit, placements[at : at + each], 0.0, 1.0)
            for at in range(0, len(placements), each)
        )
        for one in workers:
            self.allocations.take_gang(one, known_to_fit=True)
        return workers

    def count(self, member: Demand) -> int | None:
        """How many such demands fit; None if that depends on where others go."""
        if member.joins:
            return None
        return int(capacity(self.allocations, member).sum())

    def is_intact(self, worker: Running) -> bool:
        """Whether all GPUs of a worker are still there."""
        present = self.allocations.hardware.present
        return all(present[at.node, gpu] for at in worker.placements for gpu in at.gpus)

    def free_milli(self) -> float:
        """Thousandths of GPUs that are free."""
        return int(self.allocations.milli_free[self.allocations.hardware.present].sum())
