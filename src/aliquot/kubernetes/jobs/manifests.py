"""The pods and the service of a job. Pure.

A worker's pod is the template with these additions: a stable name NAME-RANK, which is also its host
name behind the job's service; the gang of its generation; the annotation by which workers on one
node hold their GPUs together; ranks and addresses in the variables that
torchrun and plain programs read; and the two paths of `aliquot.worker`. Variables in the template
come last and therefore win.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.elasticjob import Body
from aliquot.kubernetes.api.names import (
    CONTROLLER,
    ELASTIC,
    GANG,
    GANG_SIZE,
    GATE,
    JOB,
    JOB_GENERATION,
    JOB_RANK,
    NOTICE,
    QUEUE,
    SCHEDULER,
    SIZE,
    TOGETHER,
)
from aliquot.kubernetes.api.objects import Meta
from aliquot.kubernetes.cluster.elastic import Terms
from aliquot.kubernetes.jobs.spec import grace_seconds_of, worker_sizes

if TYPE_CHECKING:
    from aliquot.kubernetes.api.elasticjob import ElasticJob
    from aliquot.model.job_state import JobState, Slot

MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = f"{MANAGED_BY}={CONTROLLER}"
NOTICES = "/run/aliquot/notices"
MESSAGE = "/run/aliquot/message"
VOLUME = "aliquot-notices"
FILES = {"notice": NOTICE, "size": SIZE}
NOTICE_AGAIN_SECONDS = 5.0  # before a worker that still exists is notified again
MOST_REPEATS = 4


def pod_name(job: str, rank: int) -> str:
    """The name of a worker's pod."""
    return f"{job}-{rank}"


def gang_name(job: str, generation: int) -> str:
    """The name of the gang of the workers that a generation adds."""
    return f"{job}-{generation}"


def size_json(state: JobState) -> str:
    """The size for programs that adapt to it while they run."""
    return _json(generation=state.generation, size=state.size)


def notice_json(state: JobState, now: float) -> str:
    """The notice of a change. `attempt` counts how often this same notice was given."""
    stopping = state.stopping
    assert stopping is not None  # noqa: S101 - only workers that are being stopped get a notice
    return _json(
        generation=state.generation,
        kind=state.phase.notice_kind,
        size=stopping.size,
        deadline=stopping.until,
        attempt=1 + min(MOST_REPEATS, max(0, int((now - state.since) // NOTICE_AGAIN_SECONDS))),
    )


def service_body(one: ElasticJob) -> Body:
    """The headless service through which workers find each other."""
    name = one.metadata.name
    return Body(
        Meta(
            name=name,
            namespace=one.metadata.namespace,
            labels={JOB: name, MANAGED_BY: CONTROLLER},
            owner_references=(one.owner,),
        ),
        {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB: name},
            "ports": [{"name": "master", "port": one.spec.port}],
        },
    )


def pod_body(one: ElasticJob, state: JobState, slot: Slot, scheduler: str = SCHEDULER) -> Body:
    """A worker's pod."""
    job, template = one.metadata.name, one.spec.template
    meta = template.get("metadata") or {}
    name = pod_name(job, slot.rank)
    together = sum(other.generation == slot.generation for other in state.slots)
    labels = {
        **(meta.get("labels") or {}),
        **({QUEUE: one.spec.queue} if one.spec.queue else {}),
        JOB: job,
        JOB_GENERATION: str(slot.generation),
        JOB_RANK: str(slot.rank),
        MANAGED_BY: CONTROLLER,
    }
    notes = {
        TOGETHER: job,  # the template may say otherwise
        **(meta.get("annotations") or {}),
        GANG: gang_name(job, slot.generation),
        GANG_SIZE: str(together),
        ELASTIC: _terms(one),
    }
    return Body(
        Meta(
            name=name,
            namespace=one.metadata.namespace,
            labels=labels,
            annotations=notes,
            owner_references=(one.owner,),
        ),
        _spec(one, state, slot, scheduler),
    )


def _terms(one: ElasticJob) -> str:
    """For the scheduler: the job's smallest size, and how long it takes to stop workers."""
    found = Terms(
        worker_sizes(one.spec).least, one.spec.resize_seconds, grace_seconds_of(one.spec.template)
    )
    return msgspec.json.encode(found).decode()


def _spec(one: ElasticJob, state: JobState, slot: Slot, scheduler: str) -> dict[str, Any]:
    spec = copy.deepcopy(one.spec.template.get("spec") or {})
    spec.setdefault("schedulerName", scheduler)
    spec.setdefault("hostname", pod_name(one.metadata.name, slot.rank))
    spec.setdefault("subdomain", one.metadata.name)
    spec["restartPolicy"] = "Never"
    gates = [gate for gate in spec.get("schedulingGates") or () if gate.get("name") != GATE]
    spec["schedulingGates"] = [*gates, {"name": GATE}]
    spec["volumes"] = [*(spec.get("volumes") or ()), _volume()]
    ours = [{"name": key, "value": value} for key, value in _environment(one, state, slot).items()]
    for container in spec.get("containers") or ():
        container["env"] = [*ours, *(container.get("env") or ())]
        mount = {"name": VOLUME, "mountPath": NOTICES, "readOnly": True}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        container["terminationMessagePath"] = MESSAGE
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    return spec


def _volume() -> dict[str, Any]:
    items = [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{note}']"}}
        for path, note in FILES.items()
    ]
    return {"name": VOLUME, "downwardAPI": {"items": items}}


def _environment(one: ElasticJob, state: JobState, slot: Slot) -> dict[str, str]:
    job, port = one.metadata.name, str(one.spec.port)
    first = f"{pod_name(job, 0)}.{job}"
    found = {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(state.size),
        "LOCAL_RANK": "0",  # a worker sees its own GPUs and no others
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(slot.rank),
        "NODE_RANK": str(slot.rank),
        "MASTER_ADDR": first,
        "MASTER_PORT": port,
        "ALIQUOT_JOB": job,
        "ALIQUOT_GENERATION": str(slot.generation),
        "ALIQUOT_NOTICES": NOTICES,
        "ALIQUOT_MESSAGE": MESSAGE,
    }
    if one.spec.live:  # torchrun's elastic rendezvous admits workers that come and go
        workers = one.spec.workers
        return found | {
            "PET_NNODES": f"{workers.min}:{workers.max}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{first}:{port}",
            "PET_RDZV_ID": one.metadata.uid,
        }
    return found | {
        "PET_NNODES": str(state.size),
        "PET_NODE_RANK": str(slot.rank),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": port,
    }


def _json(**fields: object) -> str:
    return msgspec.json.encode(fields).decode()
