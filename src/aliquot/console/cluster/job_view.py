"""Elastic jobs, gangs, single pods and queues as the API shows them to one user. Pure.

A gang of an elastic job, or of a single pod that preempts others, is not listed beside it: the job
or the pod has its reason and its planned start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aliquot.kubernetes.api.elasticjob import KIND
from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.names import JOB
from aliquot.kubernetes.api.requests import quantity
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import GangKey, membership_of, object_name
from aliquot.kubernetes.jobs.manifests import gang_name
from aliquot.kubernetes.jobs.spec import worker_sizes
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from aliquot.console.cluster.rights import Sees
    from aliquot.console.cluster.watched import Watched
    from aliquot.kubernetes.api.elasticjob import ElasticJob
    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.api.objects import Meta, Pod, QueueObject
    from aliquot.kubernetes.api.queue import Amounts, Used
    from aliquot.kubernetes.cluster.queue_tree import QueueFault

MOST_LIVE = 500  # rows that a page gets live; the API has all
FINAL = {"Succeeded", "Failed", "Cancelled"}

Row = dict[str, Any]


def jobs_view(watched: Watched, sees: Sees) -> dict[str, Any]:
    """All that a page shows of jobs and queues."""
    rows = job_rows(watched, sees)
    return {
        "items": rows[:MOST_LIVE],
        "left_out": max(0, len(rows) - MOST_LIVE),
        "queues": queue_rows(watched, sees),
    }


def job_rows(watched: Watched, sees: Sees) -> list[Row]:
    """What waits first, then what runs, then what has ended; in each the newest first."""
    rows = [*_jobs(watched, sees), *_gangs(watched, sees), *_pods(watched, sees)]
    rows.sort(key=lambda row: (row["namespace"], row["name"]))
    rows.sort(key=lambda row: row["created"] or 0.0, reverse=True)
    rows.sort(key=lambda row: (row["phase"] in FINAL, not row["waits"]))
    return rows


def _jobs(watched: Watched, sees: Sees) -> Iterator[Row]:
    for (namespace, name), job in watched.jobs.objects.items():
        if namespace in sees.jobs:
            status = job.status
            gang = watched.gangs.get(gang_name(name, status.generation), namespace)
            yield job_row(job, gang if namespace in sees.gangs else None)


def _gangs(watched: Watched, sees: Sees) -> Iterator[Row]:
    gangs = watched.view.workloads.gangs
    for (namespace, name), gang in watched.gangs.objects.items():
        pods = gangs.get(GangKey(namespace, name))
        if namespace not in sees.gangs or (pods is not None and pods.is_single):
            continue
        if pods is not None and JOB in pods.lead.metadata.labels:
            continue
        job = name.rpartition("-")[0]
        if pods is None and (namespace, job) in watched.jobs.objects:
            continue  # its job's last workers are gone
        yield gang_row(gang)


def _pods(watched: Watched, sees: Sees) -> Iterator[Row]:
    for pod in watched.pods:
        meta = pod.metadata
        member = membership_of(pod)
        if meta.namespace not in sees.pods or not watched.view.asks(pod):
            continue
        if member is not None and not member.single:
            continue
        gang = watched.gangs.get(object_name(f"pod.{meta.name}"), meta.namespace)
        queue = watched.view.queues.queue_of(pod)
        yield pod_row(pod, queue, gang if meta.namespace in sees.gangs else None)


def job_row(job: ElasticJob, gang: GangObject | None) -> Row:
    """An elastic job; `gang`: that of the workers that it adds."""
    status, meta = job.status, job.metadata
    waits = gang is not None and gang.status.phase in {Phase.WAITING, Phase.GATHERING}
    since = seconds_at(status.history[-1].at) if status.history else None
    return {
        **_row(KIND, "elasticjobs", meta),
        "phase": status.phase or None,
        "reason": (gang.status.reason if gang and waits else "") or status.reason or None,
        "waits": waits or status.phase == "Pending",
        "expected_start": seconds_at(gang.status.planned_start) if gang and waits else None,
        "workers": status.workers,
        "ready": status.ready,
        "sizes": _sizes(job),
        "queue": job.spec.queue or None,
        "since": since,
        "topology": (gang.status.topology or None) if gang else None,
        "suspended": job.spec.suspend,
        "node": None,
    }


def gang_row(gang: GangObject) -> Row:
    """A gang."""
    status, spec = gang.status, gang.spec
    waits = status.phase in {Phase.WAITING, Phase.GATHERING}
    return {
        **_row("Gang", "gangs", gang.metadata),
        "phase": status.phase or None,
        "reason": status.reason or None,
        "waits": waits,
        "expected_start": seconds_at(status.planned_start) if waits else None,
        "workers": spec.size,
        "ready": None,
        "sizes": None,
        "queue": spec.queue or None,
        "since": seconds_at(status.since),
        "topology": status.topology or None,
        "suspended": False,
        "node": None,
    }


def pod_row(pod: Pod, queue: str, gang: GangObject | None = None) -> Row:
    """A single pod; `gang`: its own, if it preempts others. Why it waits is in its events."""
    waits = not pod.spec.node_name and not pod.ended
    return {
        **_row("Pod", "pods", pod.metadata),
        "phase": "Waiting" if waits else pod.status.phase or None,
        "reason": (gang.status.reason or None) if gang else None,
        "waits": waits,
        "expected_start": seconds_at(gang.status.planned_start) if gang and waits else None,
        "workers": 1,
        "ready": None,
        "sizes": None,
        "queue": queue,
        "since": seconds_at(pod.status.start_time),
        "topology": None,
        "suspended": False,
        "node": pod.spec.node_name or None,
    }


def _row(kind: str, plural: str, meta: Meta) -> Row:
    return {
        "id": f"{plural}/{meta.namespace}/{meta.name}",
        "kind": kind,
        "namespace": meta.namespace,
        "name": meta.name,
        "created": seconds_at(meta.creation_timestamp),
    }


def _sizes(job: ElasticJob) -> str | None:
    try:
        return str(worker_sizes(job.spec))
    except InvalidValueError:
        return None


def queue_rows(watched: Watched, sees: Sees) -> list[Row]:
    """The queues, if the user may list them."""
    if not sees.queues:
        return []
    queues = watched.view.queues
    return [_queue(one, queues.fault_of(name)) for name, one in sorted(queues.objects.items())]


def _queue(one: QueueObject, fault: QueueFault | None) -> Row:
    spec, status = one.spec, one.status
    written = bool(status.conditions)  # the scheduler writes them with the figures
    quota, used = _bound(spec.quota), _used(status.used) if written else None
    return {
        "name": one.metadata.name,
        "parent": spec.parent or None,
        "weight": spec.weight,
        "quota": quota,
        "limit": _bound(spec.limit),
        "used": used,
        "borrowed": _used(status.borrowed) if written else None,
        "unused": _unused(quota, used),
        "running_pods": status.running.pods if written else None,
        "running_gangs": status.running.gangs if written else None,
        "waiting_pods": status.waiting.pods if written else None,
        "waiting_gangs": status.waiting.gangs if written else None,
        "waiting_since": seconds_at(status.waiting.since),
        "problem": None if fault is None else fault.message_for(one.metadata.name),
    }


def _bound(amounts: Amounts | None) -> Row | None:
    if amounts is None:
        return None
    return {
        "gpus": amounts.gpus,
        "memory_bytes": _bytes(amounts.memory),
        "compute_percent": amounts.compute,
    }


def _used(used: Used) -> Row:
    return {
        "gpus": None if (gpus := _number(used.gpus)) is None else float(gpus),
        "memory_bytes": _bytes(used.memory),
        "compute_percent": used.compute,
    }


def _unused(quota: Row | None, used: Row | None) -> Row | None:
    """What of its quota a queue does not use, and others may borrow."""
    if quota is None or used is None:
        return None
    return {
        key: None if quota[key] is None or used[key] is None else max(0, quota[key] - used[key])
        for key in quota
    }


def _bytes(text: str | None) -> int | None:
    found = None if text is None else _number(text)
    return None if found is None else int(found)


def _number(text: str) -> Fraction | None:
    """A quantity as people or the scheduler wrote it; None if it is none."""
    try:
        return quantity(text)
    except InvalidValueError:
        return None
