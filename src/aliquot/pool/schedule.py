"""Decides which jobs of the pool start, grow and shrink, with `placement.elastic`.

The decision is a goal. This module compares it with what is free now: a job starts or grows only
if its GPUs are free at this moment, after what other jobs are about to take. Shrinking is always
possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.model import lifecycle
from aliquot.model.errors import NoCapacityError
from aliquot.model.job import JobPhase, Sizes
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import Rules, decide
from aliquot.pool.capacity import MachineCapacity, MachinePlan, place
from aliquot.pool.progress import pause_after_resize
from aliquot.pool.workers import allocated_slots, grant_name, parked_grants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.model import Grant, Request
    from aliquot.model.job_state import JobState
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.queues.quota import Queue
    from aliquot.pool.store import StoredJob
    from aliquot.slices.control import Status


@dataclass
class PoolScheduler:
    """Decides sizes. Between decisions it keeps since when each job could have grown.

    `waiting` says why each waiting job waits.
    """

    rules: Rules = field(default_factory=Rules)
    queues: Mapping[str, Queue] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    _could_grow: dict[str, tuple[float, int]] = field(default_factory=dict)

    def changes(
        self, jobs: Sequence[StoredJob], status: Status, now: float
    ) -> Iterator[tuple[StoredJob, JobState]]:
        """The jobs to change and their new states, in this order."""
        by_name = {stored.job.name: stored for stored in jobs}
        elastic = [one for stored in jobs if (one := _elastic(stored, status, now)) is not None]
        check, hardware = _feasibility(jobs, status), _hardware(status)
        decision = decide(elastic, check, self.queues, hardware, now, self.rules, self._could_grow)
        self._could_grow, self.waiting = decision.could, dict(decision.waits)
        plan = _reserved(jobs, status)
        for name, (size, why) in decision.resizes.items():
            stored = by_name[name]
            state = stored.state
            if size > state.size:
                if (more := _resized(plan, stored, status, size)) is None:
                    continue
                plan = more
            yield stored, lifecycle.resize(stored.job, state, state.generation, size, now, why)
        for name, size in decision.starts.items():
            stored = by_name[name]
            try:
                plan = _placed(plan, stored, status, size)
            except NoCapacityError:
                self.waiting[name] = "other jobs are giving its GPUs back"
                continue
            state = stored.state
            yield stored, lifecycle.start(stored.job, state, state.generation, size, now)


def _elastic(stored: StoredJob, status: Status, now: float) -> Elastic | None:
    job, state = stored.job, stored.state
    if not state.is_schedulable(now):
        return None
    return Elastic(
        name=job.name,
        sizes=Sizes((state.size,))
        if state.frozen
        else job.sizes,  # frozen workers keep their number
        member=_demand(job.request, status),
        queue=job.queue,
        priority=job.priority,
        submitted=job.submitted,
        size=state.target_size,
        resized_at=state.resized_at,
        settled=state.settled,
        speeds=stored.speeds,
        rest_seconds=pause_after_resize(stored.progress),
        bound=state.frozen,
    )


def _feasibility(jobs: Sequence[StoredJob], status: Status) -> Feasibility[Grant]:
    grants = {grant.name: grant for grant in status.grants}
    parked = {one.job.name: parked_grants(one.job, status).values() for one in jobs}
    workers = {
        stored.job.name: JobWorkers(
            name=stored.job.name,
            member=(_demand(stored.job.request, status),),
            held=tuple(grants[name] for name in _grants(stored, status)),
            size=stored.state.size if _has_its_gpus(stored, status) else None,
            pinned=bool(parked[stored.job.name]),
        )
        for stored in jobs
    }
    requests = {stored.job.name: stored.job.request for stored in jobs}
    return Feasibility(MachineCapacity(MachinePlan.of(status), requests, parked), workers)


def _has_its_gpus(stored: StoredJob, status: Status) -> bool:
    """Whether it has the GPUs for its size."""
    state = stored.state
    if state.stopping is not None or state.phase.inactive:
        return False
    allocated = allocated_slots(stored.job, status)
    return state.phase is JobPhase.RUNNING or all(slot in allocated for slot in state.slots)


def _reserved(jobs: Sequence[StoredJob], status: Status) -> MachinePlan:
    """The machine as it is, plus the GPUs that starting jobs still need."""
    plan = MachinePlan.of(status)
    parked_first = sorted(jobs, key=lambda one: not parked_grants(one.job, status))
    for stored in parked_first:
        state = stored.state
        size = state.target_size
        if state.phase.inactive or _has_its_gpus(stored, status):
            continue
        if size > len(_grants(stored, status)):
            plan = _resized(plan, stored, status, size) or plan
    return plan


def _resized(plan: MachinePlan, stored: StoredJob, status: Status, size: int) -> MachinePlan | None:
    """The plan with this job at another size; None if that is impossible now."""
    try:
        return _placed(plan.without(_grants(stored, status)), stored, status, size)
    except NoCapacityError:
        return None


def _placed(plan: MachinePlan, stored: StoredJob, status: Status, size: int) -> MachinePlan:
    return place(plan, stored.job.request, size, parked_grants(stored.job, status).values())


def _grants(stored: StoredJob, status: Status) -> list[str]:
    return [grant_name(stored.job, slot) for slot in allocated_slots(stored.job, status)]


def _demand(request: Request, status: Status) -> Demand:
    """What one worker counts against its queue's quota."""
    if request.memory is None:
        return Demand(gpus=request.gpus)
    largest = max((one.gpu for one in status.gpus), key=lambda gpu: gpu.memory_bytes)
    size = request.bytes_on(largest)
    part = WHOLE_MILLI * size // max(1, largest.memory_bytes)
    milli = min(WHOLE_MILLI, max(part, request.compute_percent * 10))
    return Demand(gpus=request.gpus, kind=Kind.SLICED, milli=milli, gpu_bytes=size)


def _hardware(status: Status) -> Hardware:
    largest = max((one.gpu.memory_bytes for one in status.gpus), default=0)
    return empty([NodeHardware("here", gpus=len(status.gpus), gpu_bytes=largest)]).hardware
