"""One job with its pods and events, and logs of pods: all read with the user's own token.

So the API server decides what may be read. What it refuses beside the job itself is null.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from aliquot.console.cluster.job_view import gang_row, job_row, pod_row
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.elasticjob import JOB_PODS, JOBS
from aliquot.kubernetes.api.gang import GANGS
from aliquot.kubernetes.api.names import COMPUTE, JOB, JOB_RANK, MEMORY, PLAN, POLICY, PRIORITY
from aliquot.kubernetes.api.objects import Meta, Resource
from aliquot.kubernetes.api.plan import decode_plan
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import GangKey, membership_of
from aliquot.kubernetes.jobs.manifests import gang_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.elasticjob import JobPod, Transition
    from aliquot.kubernetes.api.objects import Pod

MOST_EVENTS = 200
MOST_PODS = 8  # whose events are read
LOG_BYTES = 1 << 20

T = TypeVar("T")


class About(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object of an event."""

    kind: str = ""
    name: str = ""


class SeenEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event of any component."""

    metadata: Meta = Meta()
    involved_object: About = About()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None


SEEN_EVENTS = Resource(SeenEvent, "v1", "Event", "events")


async def details(
    client: Client, queue_of: Callable[[Pod], str], kind: str, namespace: str, name: str
) -> dict[str, Any]:
    """An elastic job, a gang or a pod; ApiError if the user may not read it."""
    history: tuple[Transition, ...] = ()
    names = [name]
    pods: list[JobPod] | None
    if kind == "elasticjobs":
        job = await client.get(JOBS, name, namespace)
        own = gang_name(name, job.status.generation)
        gang, listing = await asyncio.gather(
            _or_none(client.get(GANGS, own, namespace)),
            _or_none(client.list(JOB_PODS, namespace, labels=f"{JOB}={name}")),
        )
        row, history = job_row(job, gang), job.status.history
        names.append(own)
        pods = None if listing is None else listing.items
    elif kind == "gangs":
        row = gang_row(await client.get(GANGS, name, namespace))
        listing = await _or_none(client.list(JOB_PODS, namespace))
        pods = None if listing is None else [one for one in listing.items if _is_of(one, name)]
    else:
        pod = await client.get(JOB_PODS, name, namespace)
        row, pods = pod_row(pod, queue_of(pod)), [pod]
    some = sorted(pods or (), key=lambda one: (len(one.metadata.name), one.metadata.name))
    names += [one.metadata.name for one in some[:MOST_PODS]]
    return {
        "job": row,
        "pods": None if pods is None else [_pod(one) for one in some],
        "events": await _events(client, namespace, list(dict.fromkeys(names))),
        "history": [
            {
                "at": seconds_at(one.at),
                "phase": one.phase,
                "workers": one.workers,
                "reason": one.reason,
            }
            for one in reversed(history)
        ],
    }


async def _or_none(answer: Awaitable[T]) -> T | None:
    """None for what is not there, or what the user may not read."""
    try:
        return await answer
    except ApiError as error:
        if error.status not in {403, 404}:
            raise
        return None


def _is_of(pod: Pod, gang: str) -> bool:
    member = membership_of(pod)
    return member is not None and member.key == GangKey(pod.metadata.namespace, gang)


async def _events(client: Client, namespace: str, names: list[str]) -> list[dict[str, Any]] | None:
    """The events on objects of these names, the newest first; None if they may not be listed."""
    listings = await asyncio.gather(
        *(
            _or_none(client.list(SEEN_EVENTS, namespace, fields=f"involvedObject.name={name}"))
            for name in names
        )
    )
    if all(one is None for one in listings):
        return None
    found = [_event(event) for one in listings if one is not None for event in one.items]
    found.sort(key=lambda one: one["at"] or 0.0, reverse=True)
    return found[:MOST_EVENTS]


def _event(one: SeenEvent) -> dict[str, Any]:
    times = (one.last_timestamp, one.event_time, one.first_timestamp)
    at = next((text for text in times if text), one.metadata.creation_timestamp)
    return {
        "at": seconds_at(at),
        "about": f"{one.involved_object.kind} {one.involved_object.name}",
        "type": one.type,
        "reason": one.reason,
        "message": one.message,
        "count": one.count or 1,
    }


def _pod(pod: JobPod) -> dict[str, Any]:
    meta, status = pod.metadata, pod.status
    states = [one.state for one in (*status.init_container_statuses, *status.container_statuses)]
    ended = [one.terminated for one in states if one.terminated is not None]
    reasons = [one.waiting.reason for one in states if one.waiting is not None]
    reasons += [one.reason for one in ended]
    plan = decode_plan(meta.annotations.get(PLAN, ""))
    waits = not pod.spec.node_name and not pod.ended
    return {
        "name": meta.name,
        "phase": "Waiting" if waits else status.phase or "Pending",
        "reason": next((one for one in (status.reason, *reasons) if one), None),
        "node": pod.spec.node_name or None,
        "rank": meta.labels.get(JOB_RANK),
        "created": seconds_at(meta.creation_timestamp),
        "started": seconds_at(status.start_time),
        "exit_code": ended[0].exit_code if ended else None,
        "containers": [one.name for one in (*pod.spec.containers, *pod.spec.init_containers)],
        "memory": meta.annotations.get(MEMORY),
        "compute": meta.annotations.get(COMPUTE),
        "policy": meta.annotations.get(POLICY),
        "priority": meta.annotations.get(PRIORITY),
        "plan": [
            {
                "container": container,
                "kind": one.kind,
                "gpus": list(one.gpus),
                "memory_bytes": one.memory,
                "compute_percent": one.compute or None,
            }
            for container, one in (plan.containers.items() if plan is not None else ())
        ],
    }
