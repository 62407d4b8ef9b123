"""Jobs, commands and GPUs as `placement.elastic` decides about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model import GrantState
from aliquot.model.job import JobPhase, Sizes
from aliquot.model.strength import UNKNOWN
from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind
from aliquot.placement.core.snapshot import NodeHardware, empty
from aliquot.placement.elastic.feasibility import Feasibility, JobWorkers
from aliquot.placement.elastic.job import Elastic
from aliquot.placement.queues.users import user_queue
from aliquot.pool.capacity import MachineCapacity, MachinePlan, RequestKinds
from aliquot.pool.decision_names import run_name, scheduled_name
from aliquot.pool.progress import pause_after_resize
from aliquot.pool.workers import allocated_slots, grant_name, parked_grants, requested_by
from aliquot.slices.gpu_choice import neighbours_matter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aliquot.model import Grant, Request
    from aliquot.model.owner import Owner
    from aliquot.placement.core.snapshot import Hardware
    from aliquot.pool.runs import RunRequest
    from aliquot.pool.store import StoredJob
    from aliquot.slices.arbiter_status import Status


@dataclass(frozen=True, slots=True)
class AdmittedGrant:
    """The grant of a command that the pool admitted, and the user and queue that pay for it."""

    grant: Grant
    owner: Owner
    queue: str


def request_kinds(
    jobs: Sequence[StoredJob], status: Status, runs: Sequence[RunRequest]
) -> RequestKinds:
    """Which of the requests of jobs and commands can have the same GPUs."""
    asked = [*(requested_by(stored) for stored in jobs), *(run.request for run in runs)]
    return RequestKinds.of(asked, MachinePlan.of(status))


def elastic_job(stored: StoredJob, status: Status, kinds: RequestKinds) -> Elastic:
    """A job, running or waiting."""
    job, state, request = stored.job, stored.state, requested_by(stored)
    return Elastic(
        name=scheduled_name(stored),
        sizes=Sizes((state.size,))
        if state.frozen
        else job.sizes,  # frozen workers keep their number
        member=_demand(job.request, status),
        queue=user_queue(job.queue, stored.owner.name),
        priority=job.urgency,
        submitted=job.submitted,
        size=state.target_size,
        resized_at=state.resized_at,
        settled=state.settled,
        speeds=stored.speeds,
        rest_seconds=pause_after_resize(stored.progress),
        bound=state.frozen,
        terms=kinds.kind(request),
        gpus=kinds.usable(request),
    )


def elastic_run(run: RunRequest, status: Status, kinds: RequestKinds) -> Elastic:
    """A command that waits."""
    return Elastic(
        name=run_name(run),
        sizes=Sizes((1,)),
        member=_demand(run.request, status),
        queue=user_queue(run.queue, run.owner.name),
        submitted=run.submitted,
        terms=kinds.kind(run.request),
        gpus=kinds.usable(run.request),
    )


def counts(grant: Grant) -> bool:
    """Whether a grant has GPUs that limits count."""
    return bool(grant.slices) and grant.state is not GrantState.PARKED


def elastic_grant(one: AdmittedGrant, status: Status) -> Elastic:
    """A command that runs. Its size is fixed, and it stays where it is."""
    sizes = {shared.gpu.uuid: shared.gpu.memory_bytes for shared in status.gpus}
    parts = [
        max(
            WHOLE_MILLI * part.memory_bytes // max(1, sizes.get(part.gpu_uuid, 0)),
            part.compute_percent * 10,
        )
        for part in one.grant.slices
    ]
    largest = max(part.memory_bytes for part in one.grant.slices)
    milli = min(WHOLE_MILLI, max(parts))
    if one.grant.neighbours.alone:
        largest = max(sizes.get(part.gpu_uuid, 0) for part in one.grant.slices)
        milli = WHOLE_MILLI
    return Elastic(
        name=f"grant {one.grant.name}",
        sizes=Sizes((1,)),
        member=Demand(len(parts), Kind.SLICED, milli=milli, gpu_bytes=largest),
        queue=user_queue(one.queue, one.owner.name),
        size=1,
    )


def feasibility(
    jobs: Sequence[StoredJob], status: Status, runs: Sequence[RunRequest], kinds: RequestKinds
) -> Feasibility[Grant]:
    """The check whether jobs and commands of some sizes fit on the GPUs together."""
    plan = MachinePlan.of_running(status)
    grants = {grant.name: grant for grant in plan.grants}
    parked: dict[str, Collection[Grant]] = {
        scheduled_name(one): parked_grants(one, status).values() for one in jobs
    }
    asked = [*(stored.job.request for stored in jobs), *(run.request for run in runs)]
    neighbours = any(neighbours_matter(one, status.grants) for one in asked)
    requests = {scheduled_name(stored): requested_by(stored) for stored in jobs}
    requests |= {run_name(run): run.request for run in runs}
    workers: dict[str, JobWorkers[Grant]] = {
        name: JobWorkers(
            name=name,
            member=(_demand(request, status),),
            choosy=neighbours,
            terms=kinds.kind(request),
            choice=kinds.choice(request),
        )
        for name, request in requests.items()
    }
    for stored in jobs:
        name = scheduled_name(stored)
        workers[name] = replace(
            workers[name],
            held=tuple(grants[one] for one in worker_grants(stored, status)),
            size=stored.state.size if has_its_gpus(stored, status) else None,
            pinned=bool(parked[name]),
        )
    parked |= {run_name(run): () for run in runs}
    return Feasibility(MachineCapacity(plan, requests, parked), workers)


def has_its_gpus(stored: StoredJob, status: Status) -> bool:
    """Whether it has the GPUs for its size."""
    state = stored.state
    if state.stopping is not None or state.phase.inactive:
        return False
    allocated = allocated_slots(stored, status)
    return state.phase is JobPhase.RUNNING or all(slot in allocated for slot in state.slots)


def worker_grants(stored: StoredJob, status: Status) -> list[str]:
    """The names of the grants of a job that have GPUs."""
    return [grant_name(stored, slot) for slot in allocated_slots(stored, status)]


def _demand(request: Request, status: Status) -> Demand:
    """What one worker counts against its queue's quota: all of GPUs on which it is alone."""
    if request.is_whole or request.neighbours.alone:
        return Demand(gpus=request.gpus, min_strength=request.min_strength)
    largest = max((one.gpu for one in status.gpus), key=lambda gpu: gpu.memory_bytes)
    size = request.bytes_on(largest)
    part = WHOLE_MILLI * size // max(1, largest.memory_bytes)
    milli = min(WHOLE_MILLI, max(part, request.compute_percent * 10))
    return Demand(
        gpus=request.gpus,
        kind=Kind.SLICED,
        milli=milli,
        gpu_bytes=size,
        min_strength=request.min_strength,
    )


def hardware_of(status: Status) -> Hardware:
    """The machine as a cluster of one node."""
    largest = max((one.gpu.memory_bytes for one in status.gpus), default=0)
    strongest = max((one.gpu.strength for one in status.gpus), default=UNKNOWN)
    here = NodeHardware("here", len(status.gpus), gpu_bytes=largest, strength=strongest)
    return empty([here]).hardware
