"""Reads an ElasticJob's spec as a job of `model`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.names import QUEUE
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.requests import InvalidRequestError, requests_of
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import check_duration
from aliquot.model import Request
from aliquot.model.errors import InvalidValueError
from aliquot.model.job import Job, Sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.kubernetes.api.elasticjob import ElasticJob, ElasticJobSpec
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest

GRACE_SECONDS = 30  # Kubernetes' default for a pod


def parse_job(one: ElasticJob) -> Job:
    """The job; InvalidValueError if its spec is invalid."""
    spec = one.spec
    return Job(
        number=0,
        name=one.metadata.name,
        command=(one.metadata.name,),  # the template has the real command and request
        request=Request(),
        sizes=worker_sizes(spec),
        queue=spec.queue,
        live=spec.live,
        retries=spec.backoff_limit,
        notice_seconds=float(spec.resize_seconds),
        grace_seconds=float(grace_seconds_of(spec.template)),
        submitted=seconds_at(one.metadata.creation_timestamp) or 0.0,
    )


def worker_sizes(spec: ElasticJobSpec) -> Sizes:
    """The sizes it can have, limited by `replicas`; the smallest is always allowed."""
    asked = spec.workers
    if asked.max < asked.min:
        raise InvalidValueError(
            f"workers.max is {asked.max}, below workers.min, {asked.min}", "Change one of them."
        )
    every = asked.sizes or tuple(range(asked.min, asked.max + 1))
    fitting = sorted({one for one in every if asked.min <= one <= asked.max})
    if not fitting:
        raise InvalidValueError(
            f"none of workers.sizes {list(asked.sizes)} is from {asked.min} to {asked.max}",
            "Change them, or workers.min and workers.max.",
        )
    wanted = tuple(one for one in fitting if one <= spec.replicas)
    return Sizes(wanted or (fitting[0],))


def grace_seconds_of(template: dict[str, Any]) -> int:
    """Seconds from SIGTERM to SIGKILL, from the template."""
    spec = template.get("spec")
    seconds = spec.get("terminationGracePeriodSeconds") if isinstance(spec, dict) else None
    return seconds if isinstance(seconds, int) and seconds >= 0 else GRACE_SECONDS


def worker_pod(one: ElasticJob) -> Pod:
    """A worker's pod as in the template; InvalidValueError if the template is invalid."""
    meta = one.spec.template.get("metadata") or {}
    try:
        pod = msgspec.convert(
            {"metadata": dict(meta), "spec": one.spec.template.get("spec") or {}},
            Pod,
            strict=False,
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"spec.template is not a valid pod template: {error}", "Correct it."
        ) from error
    labels = {**pod.metadata.labels, **({QUEUE: one.spec.queue} if one.spec.queue else {})}
    named = msgspec.structs.replace(
        pod.metadata, name=one.metadata.name, namespace=one.metadata.namespace, labels=labels
    )
    return msgspec.structs.replace(pod, metadata=named)


def worker_requests(pod: Pod, presets: Sequence[Preset]) -> tuple[ContainerRequest, ...]:
    """What each worker's containers ask for; InvalidValueError if that is invalid."""
    try:
        check_duration(pod)
        found = requests_of(pod, presets)
    except InvalidRequestError as error:
        raise InvalidValueError(error.message, error.hint) from error
    if not found:
        raise InvalidValueError(
            "no container of spec.template asks for a GPU",
            "Add one under resources.limits.",
        )
    return found
