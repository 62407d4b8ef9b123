"""The pods and the service of a job. Pure.

A worker's pod is the template's, with a stable name (NAME-RANK, also its host's name behind the
job's service), the gang of its generation, and what programs look for: ranks and addresses as
torchrun and plain programs read them, and the two places of `aliquot.worker`. What the template
says of the environment comes last, and so wins.
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
)
from aliquot.kubernetes.api.objects import Meta
from aliquot.kubernetes.cluster.elastic import Terms
from aliquot.kubernetes.jobs.form import grace_of, sizes_of

if TYPE_CHECKING:
    from aliquot.kubernetes.api.elasticjob import ElasticJob
    from aliquot.model.status import Record, Slot

MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = f"{MANAGED_BY}={CONTROLLER}"
TOLD = "/run/aliquot/told"
SAID = "/run/aliquot/said"
VOLUME = "aliquot-told"
FILES = {"notice": NOTICE, "size": SIZE}
AGAIN_SECONDS = 5.0  # after which a worker that is still there is told once more
AGAIN = 4  # times at most


def pod_name(job: str, rank: int) -> str:
    """The name of a worker's pod."""
    return f"{job}-{rank}"


def gang_name(job: str, generation: int) -> str:
    """The gang of the workers that a generation adds."""
    return f"{job}-{generation}"


def size_words(record: Record) -> str:
    """For programs that change size as they run."""
    return _json(generation=record.generation, size=record.size)


def notice_words(record: Record, now: float) -> str:
    """A change is coming. `told`: how often it was said; it is the same change each time."""
    leaving = record.leaving
    assert leaving is not None  # noqa: S101 - nobody is told otherwise
    return _json(
        generation=record.generation,
        kind=record.state.notice,
        size=leaving.size,
        deadline=leaving.until,
        told=1 + min(AGAIN, max(0, int((now - record.since) // AGAIN_SECONDS))),
    )


def service_body(one: ElasticJob) -> Body:
    """The headless service behind which workers find each other."""
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


def pod_body(one: ElasticJob, record: Record, slot: Slot, scheduler: str = SCHEDULER) -> Body:
    """A worker's pod."""
    job, template = one.metadata.name, one.spec.template
    meta = template.get("metadata") or {}
    name = pod_name(job, slot.rank)
    together = sum(other.generation == slot.generation for other in record.slots)
    labels = {
        **(meta.get("labels") or {}),
        **({QUEUE: one.spec.queue} if one.spec.queue else {}),
        JOB: job,
        JOB_GENERATION: str(slot.generation),
        JOB_RANK: str(slot.rank),
        MANAGED_BY: CONTROLLER,
    }
    notes = {
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
        _spec(one, record, slot, scheduler),
    )


def _terms(one: ElasticJob) -> str:
    """For the scheduler: what the job can do without, and how long it takes to give back."""
    found = Terms(sizes_of(one.spec).least, one.spec.resize_seconds, grace_of(one.spec.template))
    return msgspec.json.encode(found).decode()


def _spec(one: ElasticJob, record: Record, slot: Slot, scheduler: str) -> dict[str, Any]:
    spec = copy.deepcopy(one.spec.template.get("spec") or {})
    spec.setdefault("schedulerName", scheduler)
    spec.setdefault("hostname", pod_name(one.metadata.name, slot.rank))
    spec.setdefault("subdomain", one.metadata.name)
    spec["restartPolicy"] = "Never"
    gates = [gate for gate in spec.get("schedulingGates") or () if gate.get("name") != GATE]
    spec["schedulingGates"] = [*gates, {"name": GATE}]
    spec["volumes"] = [*(spec.get("volumes") or ()), _volume()]
    ours = [{"name": key, "value": value} for key, value in _environment(one, record, slot).items()]
    for container in spec.get("containers") or ():
        container["env"] = [*ours, *(container.get("env") or ())]
        mount = {"name": VOLUME, "mountPath": TOLD, "readOnly": True}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        container["terminationMessagePath"] = SAID
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    return spec


def _volume() -> dict[str, Any]:
    items = [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{note}']"}}
        for path, note in FILES.items()
    ]
    return {"name": VOLUME, "downwardAPI": {"items": items}}


def _environment(one: ElasticJob, record: Record, slot: Slot) -> dict[str, str]:
    job, port = one.metadata.name, str(one.spec.port)
    first = f"{pod_name(job, 0)}.{job}"
    found = {
        "RANK": str(slot.rank),
        "WORLD_SIZE": str(record.size),
        "LOCAL_RANK": "0",  # a worker sees its own GPUs and no others
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(slot.rank),
        "NODE_RANK": str(slot.rank),
        "MASTER_ADDR": first,
        "MASTER_PORT": port,
        "ALIQUOT_JOB": job,
        "ALIQUOT_GENERATION": str(slot.generation),
        "ALIQUOT_TOLD": TOLD,
        "ALIQUOT_SAID": SAID,
    }
    if one.spec.live:  # torchrun's own rendezvous, which takes in who comes and goes
        workers = one.spec.workers
        return found | {
            "PET_NNODES": f"{workers.min}:{workers.max}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{first}:{port}",
            "PET_RDZV_ID": one.metadata.uid,
        }
    return found | {
        "PET_NNODES": str(record.size),
        "PET_NODE_RANK": str(slot.rank),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": port,
    }


def _json(**words: object) -> str:
    return msgspec.json.encode(words).decode()
