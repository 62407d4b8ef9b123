"""Decides which elastic jobs start, grow and shrink, with `placement.elastic`.

The decision sees the elastic jobs, the gangs and single pods that wait, and everything else that
runs in each queue, as work of a fixed size. The scheduler starts what waits; this module only frees
GPUs for it. A job that fits nowhere is still started at its smallest size: its gang then waits in
its queue like every other gang, with a planned start.

A job grows, or starts above its smallest size, only if the GPUs are free now, after what other work
is about to take, and no gang has a planned start: the free GPUs may be part of it. Shrinking is
always possible.

The cost of a decision grows with its input. So it considers only the first of the waiting gangs and
pods, starts few jobs at a time, and considers only some of a job's many sizes, each half as large
again as the one before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.requests import InvalidRequestError, requests_of
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.membership import GangKey, membership_of
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
from aliquot.kubernetes.cluster.workloads import single_name
from aliquot.kubernetes.jobs.step import could_start_smaller
from aliquot.model.job import Desired, JobPhase, Sizes
from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.elastic.feasibility import ClusterCapacity, Feasibility, JobWorkers
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import Rules, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.gang import GangObject, GangStatus
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.jobs.allocations import JobAllocations
    from aliquot.kubernetes.jobs.codec import SavedState
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState
    from aliquot.placement.core.demand import Demand
    from aliquot.placement.elastic.resize import SizeDecision

WAITS_SECONDS = 2.0  # a younger pod may be about to be bound
WAITING, STARTING, SIZES = 32, 4, 16  # the most that one decision considers
ONE = Sizes((1,))

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job whose size may be decided.

    - `pod`: a worker's pod as in the template; `requests` is what its containers ask for.
    - `workers`: the names of its pods, by rank.
    - `size_limit`: the largest size that it gets for now.
    """

    name: str
    job: Job
    saved: SavedState
    pod: Pod
    requests: tuple[ContainerRequest, ...]
    workers: tuple[str, ...] = ()
    gang: GangKey | None = None
    gang_status: GangStatus | None = None
    priority: int = 0
    size_limit: int | None = None

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.saved.state

    @property
    def sizes(self) -> Sizes:
        """The sizes that the decision considers."""
        sizes = self.job.sizes
        few = [one for one in sizes.allowed if self.size_limit is None or one <= self.size_limit]
        return Sizes(tuple(_considered(few or [sizes.least], self.state.size)))

    @property
    def waits(self) -> bool:
        """Whether the gang of its newest workers waits for GPUs."""
        return self.gang_status is not None and self.gang_status.phase in {
            Phase.WAITING,
            Phase.REFUSED,
        }


@dataclass(frozen=True, slots=True)
class SizeChange:
    """Start or resize a job of this generation.

    `why` is empty if the job starts because GPUs are free.
    """

    name: str
    generation: int
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class FixedSize(Elastic):
    """Work of one size: another gang, a pod, or everything else that runs in a queue."""

    members: tuple[Demand, ...] = ()

    def gang(self, size: int) -> Gang:
        """The work as a gang."""
        del size
        return Gang(
            self.name,
            self.members,
            queue=self.queue,
            priority=self.priority,
            submitted=self.submitted,
        )


@dataclass
class Sizer:
    """Decides sizes. Between decisions it keeps only since when each job could have grown."""

    allocations: JobAllocations
    rules: Rules = field(default_factory=Rules)
    _could_grow: dict[str, tuple[float, int]] = field(default_factory=dict)
    _left_out: set[str] = field(default_factory=set)

    async def changes(
        self, candidates: Sequence[Candidate], gangs: Iterable[GangObject], now: float
    ) -> list[SizeChange]:
        """The changes to make, in this order."""
        allocations, every = self.allocations, list(gangs)
        candidates = _first(candidates)
        ours = {
            one.gang for one in candidates if one.gang and could_start_smaller(one.job, one.state)
        }
        waiting = sorted([*self._gangs(every, ours), *self._singles(now)], key=_queue_order)[
            :WAITING
        ]
        limits = [NodeConstraints.of(one.pod) for one in candidates]
        limits += [NodeConstraints.of(pod) for _, pods, _ in waiting for pod in pods]
        snapshot = ClusterSnapshot(allocations.topology, limits)
        running = {one.gang.name: one for one in allocations.by_workload.running(now)}
        parties, jobs = self._participants(candidates, snapshot, running, now)
        candidates = [one for one in candidates if one.name in parties]
        fixed = [one for each in waiting if (one := self._fixed_size(*each, snapshot)) is not None]
        parties |= {one.name: JobWorkers[Running](one.name, one.members) for one in fixed}
        coming = {one.name: one.size for one in jobs if one.size and not one.settled}
        capacity = ClusterCapacity(snapshot.allocations, snapshot.by)
        check = Feasibility(capacity, parties).after_arrival(coming)
        mine = {worker for one in jobs for worker in _by_name(candidates, one.name).workers}
        others = _rest_by_queue(one for name, one in running.items() if name not in mine)
        decision = await asyncio.to_thread(
            decide,
            [*jobs, *fixed, *others],
            check,
            allocations.queues.queues(),
            snapshot.hardware,
            now,
            self.rules,
            self._could_grow,
        )
        self._could_grow = decision.could
        has_planned_start = any(
            one.status.phase == Phase.WAITING and one.status.planned_start for one in every
        )
        return list(_changes(decision, check, candidates, now, may_grow=not has_planned_start))

    # --- input of the decision ---

    def _participants(
        self,
        candidates: Sequence[Candidate],
        snapshot: ClusterSnapshot,
        running: Mapping[str, Running],
        now: float,
    ) -> tuple[dict[str, JobWorkers[Running]], list[Elastic]]:
        """The jobs that take part. An invalid job is left out and does not stop the others."""
        parties: dict[str, JobWorkers[Running]] = {}
        jobs: list[Elastic] = []
        before, self._left_out = self._left_out, set()
        for one in candidates:
            try:
                party = _participant(one, snapshot, running)
                job = self._elastic(one, party, now)
            except Exception as error:  # noqa: BLE001 - any error of one job
                self._left_out.add(one.name)
                if one.name not in before:
                    _log.warning("left out of the decision", job=one.name, why=str(error))
                continue
            parties[one.name] = party
            jobs += [job] if job is not None else []
        return parties, jobs

    def _gangs(
        self, gangs: Iterable[GangObject], ours: set[GangKey]
    ) -> Iterator[tuple[str, list[Pod], float]]:
        """The waiting gangs, except growth of jobs: no work is moved for that."""
        for one in gangs:
            key = GangKey(one.metadata.namespace, one.metadata.name)
            before = self.allocations.workloads.gangs.get(key)
            if one.status.phase == Phase.WAITING and before is not None and key not in ours:
                pods = before.unbound
                if pods:
                    yield str(key), pods, seconds_at(one.status.since) or 0.0

    def _singles(self, now: float) -> Iterator[tuple[str, list[Pod], float]]:
        for pod in self.allocations.workloads.pods.values():
            if pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp:
                continue
            since = seconds_at(pod.metadata.creation_timestamp) or now
            if membership_of(pod) is None and now - since > WAITS_SECONDS:
                yield single_name(pod), [pod], since

    def _fixed_size(
        self, name: str, pods: Sequence[Pod], since: float, snapshot: ClusterSnapshot
    ) -> FixedSize | None:
        presets = self.allocations.presets
        try:
            members = tuple(
                snapshot.demand(requests, NodeConstraints.of(pod))
                for pod in pods
                if (requests := requests_of(pod, presets))
            )
        except InvalidRequestError:
            return None
        if not members:
            return None
        return FixedSize(
            name=name,
            sizes=ONE,
            queue=self.allocations.queues.queue_of(pods[0]),
            priority=max(pod.spec.priority or 0 for pod in pods),
            submitted=since,
            members=members,
        )

    def _elastic(self, one: Candidate, party: JobWorkers[Running], now: float) -> Elastic | None:
        state = one.state
        if one.waits or not state.is_schedulable(now):
            return None
        return Elastic(
            name=one.name,
            sizes=one.sizes,
            member=party.member[0],
            queue=self.allocations.queues.queue_of(one.pod),
            priority=one.priority,
            submitted=one.job.submitted,
            size=state.target_size,
            resized_at=state.resized_at,
            settled=state.settled,
            speeds=one.saved.speeds,
        )


def _participant(
    one: Candidate, snapshot: ClusterSnapshot, running: Mapping[str, Running]
) -> JobWorkers[Running]:
    state = one.state
    return JobWorkers(
        name=one.name,
        member=(snapshot.demand(one.requests, NodeConstraints.of(one.pod)),),
        held=tuple(running[name] for name in one.workers if name in running),
        size=state.size if state.settled else None,
        live=one.job.live,
    )


def _rest_by_queue(running: Iterable[Running]) -> list[FixedSize]:
    """Everything else that runs, one entry per queue."""
    members: dict[str, list[Demand]] = defaultdict(list)
    for one in running:
        members[one.gang.queue] += one.gang.members
    return [
        FixedSize(f"\0{queue}", ONE, queue=queue, size=1, members=tuple(every))
        for queue, every in members.items()
    ]


def _first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The running jobs and the first of the pending ones."""
    new = [one for one in candidates if one.state.phase is JobPhase.PENDING]
    new.sort(key=lambda one: (one.state.not_before, one.job.submitted, one.name))
    later = {one.name for one in new[STARTING:]}
    return [one for one in candidates if one.name not in later]


def _queue_order(waiting: tuple[str, list[Pod], float]) -> tuple[int, float, str]:
    name, pods, since = waiting
    return -max(pod.spec.priority or 0 for pod in pods), since, name


def _considered(sizes: Sequence[int], now: int) -> list[int]:
    """The sizes to consider; always the smallest, the largest and the current one."""
    if len(sizes) <= SIZES:
        return list(sizes)
    found = [sizes[0]]
    for one in sizes:
        if one in {now, sizes[-1]} or one >= 1.5 * found[-1]:
            found.append(one)
    return sorted(set(found))


# --- changes --------------------------------------------------------------------------------------


def _changes(
    decision: SizeDecision,
    check: Feasibility[Running],
    candidates: Sequence[Candidate],
    now: float,
    *,
    may_grow: bool,
) -> Iterator[SizeChange]:
    for name, (size, why) in decision.resizes.items():
        state = _by_name(candidates, name).state
        if size > state.size:
            larger = check.after_resize(name, size) if may_grow else None
            if larger is None:
                continue
            check = larger
        yield SizeChange(name, state.generation, size, why)
    for one in candidates:
        state = one.state
        if state.phase is not JobPhase.PENDING or state.desired is not Desired.RUN:
            continue
        if now < state.not_before:
            continue
        least = one.job.sizes.least
        size = decision.starts.get(one.name, least) if may_grow else least
        begun = check.after_resize(one.name, size)
        if begun is not None:
            check = begun
            yield SizeChange(one.name, state.generation, size, "")
        else:
            yield SizeChange(one.name, state.generation, least, _waits_at(least))


def _waits_at(least: int) -> str:
    workers = "1 worker" if least == 1 else f"{least} workers"
    return f"starts at its smallest size, {workers}, and waits for GPUs"


def _by_name(candidates: Sequence[Candidate], name: str) -> Candidate:
    return next(one for one in candidates if one.name == name)
