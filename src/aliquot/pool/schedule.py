"""The pool's picture for `placement.elastic`, and its answer as changes of records.

The decision says where all should be in the end; here it is held against what is there now. A job
starts, and a running one is asked to grow, only if the GPUs are free at this moment, beside those
that others are about to take. Shrinking is always possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.model import lifecycle
from aliquot.model.errors import NoRoomError
from aliquot.model.job import Sizes, State
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.snapshot import NodeSpec, empty
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.elastic.resize import Rules, decide
from aliquot.pool.capacity import MachineCapacity, Plan, place
from aliquot.pool.progress import rest_seconds
from aliquot.pool.world import grant_name, held_by, parked_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.model import Grant, Request
    from aliquot.model.status import Record
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.placement.queues.quota import Queue
    from aliquot.pool.store import Stored
    from aliquot.slices.control import Status


@dataclass
class Scheduler:
    """Decides again and again; between two times it knows only who could have grown since when."""

    rules: Rules = field(default_factory=Rules)
    queues: Mapping[str, Queue] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    _could: dict[str, tuple[float, int]] = field(default_factory=dict)

    def changes(
        self, jobs: Sequence[Stored], status: Status, now: float
    ) -> Iterator[tuple[Stored, Record]]:
        """Records that are to be other ones, in this order."""
        by_name = {stored.job.name: stored for stored in jobs}
        picture = [one for stored in jobs if (one := _elastic(stored, status, now)) is not None]
        check, hardware = _feasibility(jobs, status), _hardware(status)
        decision = decide(picture, check, self.queues, hardware, now, self.rules, self._could)
        self._could, self.waits = decision.could, dict(decision.waits)
        plan = _reserved(jobs, status)
        for name, (size, why) in decision.resizes.items():
            stored = by_name[name]
            record = stored.record
            if size > record.size:
                if (more := _moved(plan, stored, status, size)) is None:
                    continue
                plan = more
            yield stored, lifecycle.resize(stored.job, record, record.generation, size, now, why)
        for name, size in decision.starts.items():
            stored = by_name[name]
            try:
                plan = _placed(plan, stored, status, size)
            except NoRoomError:
                self.waits[name] = "its GPUs are being given back by others"
                continue
            record = stored.record
            yield stored, lifecycle.start(stored.job, record, record.generation, size, now)


def _elastic(stored: Stored, status: Status, now: float) -> Elastic | None:
    job, record = stored.job, stored.record
    if not record.takes_decisions(now):
        return None
    return Elastic(
        name=job.name,
        sizes=Sizes((record.size,)) if record.still else job.sizes,  # frozen ones come back
        member=_demand(job.request, status),
        queue=job.queue,
        priority=job.priority,
        submitted=job.submitted,
        size=record.size_to_be,
        resized_at=record.resized_at,
        settled=record.settled,
        speeds=stored.speeds,
        rest_seconds=rest_seconds(stored.progress),
        bound=record.still,
    )


def _feasibility(jobs: Sequence[Stored], status: Status) -> Feasibility[Grant]:
    grants = {grant.name: grant for grant in status.grants}
    parked = {one.job.name: parked_by(one.job, status).values() for one in jobs}
    workers = {
        stored.job.name: JobWorkers(
            name=stored.job.name,
            member=(_demand(stored.job.request, status),),
            held=tuple(grants[name] for name in _grants(stored, status)),
            size=stored.record.size if _is_in_place(stored, status) else None,
            pinned=bool(parked[stored.job.name]),
        )
        for stored in jobs
    }
    requests = {stored.job.name: stored.job.request for stored in jobs}
    return Feasibility(MachineCapacity(Plan.of(status), requests, parked), workers)


def _is_in_place(stored: Stored, status: Status) -> bool:
    """Whether it holds what it needs at the size it has."""
    record = stored.record
    if record.leaving is not None or record.state.resting:
        return False
    held = held_by(stored.job, status)
    return record.state is State.RUNNING or all(slot in held for slot in record.slots)


def _reserved(jobs: Sequence[Stored], status: Status) -> Plan:
    """The machine as it is, with what those that are on their way still need."""
    plan = Plan.of(status)
    for stored in sorted(jobs, key=lambda one: not parked_by(one.job, status)):  # they go first
        record = stored.record
        size = record.size_to_be
        if record.state.resting or _is_in_place(stored, status):
            continue
        if size > len(_grants(stored, status)):
            plan = _moved(plan, stored, status, size) or plan
    return plan


def _moved(plan: Plan, stored: Stored, status: Status, size: int) -> Plan | None:
    """The same with this job at another size, where that is possible now."""
    try:
        return _placed(plan.without(_grants(stored, status)), stored, status, size)
    except NoRoomError:
        return None


def _placed(plan: Plan, stored: Stored, status: Status, size: int) -> Plan:
    return place(plan, stored.job.request, size, parked_by(stored.job, status).values())


def _grants(stored: Stored, status: Status) -> list[str]:
    return [grant_name(stored.job, slot) for slot in held_by(stored.job, status)]


def _demand(request: Request, status: Status) -> Demand:
    """What a worker counts for in its queue's share."""
    if request.memory is None:
        return Demand(gpus=request.gpus)
    largest = max((one.gpu for one in status.gpus), key=lambda gpu: gpu.memory_bytes)
    size = request.bytes_on(largest)
    part = WHOLE_MILLI * size // max(1, largest.memory_bytes)
    milli = min(WHOLE_MILLI, max(part, request.compute_percent * 10))
    return Demand(gpus=request.gpus, kind=Kind.SLICED, milli=milli, gpu_bytes=size)


def _hardware(status: Status) -> Hardware:
    largest = max((one.gpu.memory_bytes for one in status.gpus), default=0)
    return empty([NodeSpec("here", gpus=len(status.gpus), gpu_bytes=largest)]).hardware
