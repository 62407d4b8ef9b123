"""What people wrote, as the job that `model` knows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.kubernetes.api.names import QUEUE
from aliquot.kubernetes.api.objects import Pod
from aliquot.kubernetes.api.requests import InvalidRequestError, requests_of
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import check_duration
from aliquot.model import Request
from aliquot.model.errors import BadValueError
from aliquot.model.job import Job, Sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.kubernetes.api.elasticjob import ElasticJob, ElasticJobSpec
    from aliquot.kubernetes.api.presets import Preset
    from aliquot.kubernetes.api.requests import ContainerRequest

GRACE_SECONDS = 30  # what a pod has that does not say it


def job_of(one: ElasticJob) -> Job:
    """The job; BadValueError where its numbers make no sense."""
    spec = one.spec
    return Job(
        number=0,
        name=one.metadata.name,
        command=(one.metadata.name,),  # what runs is in the template, what it asks for too
        request=Request(),
        sizes=sizes_of(spec),
        queue=spec.queue,
        live=spec.live,
        retries=spec.backoff_limit,
        notice_seconds=float(spec.resize_seconds),
        grace_seconds=float(grace_of(spec.template)),
        submitted=seconds_at(one.metadata.creation_timestamp) or 0.0,
    )


def sizes_of(spec: ElasticJobSpec) -> Sizes:
    """The sizes it can have, none above `replicas` but the smallest."""
    asked = spec.workers
    if asked.max < asked.min:
        raise BadValueError(
            f"workers.max is {asked.max}, below workers.min, {asked.min}", "Change one of them."
        )
    every = asked.sizes or tuple(range(asked.min, asked.max + 1))
    fitting = sorted({one for one in every if asked.min <= one <= asked.max})
    if not fitting:
        raise BadValueError(
            f"none of workers.sizes {list(asked.sizes)} is from {asked.min} to {asked.max}",
            "Change them, or workers.min and workers.max.",
        )
    wanted = tuple(one for one in fitting if one <= spec.replicas)
    return Sizes(wanted or (fitting[0],))


def grace_of(template: dict[str, Any]) -> int:
    """Seconds from SIGTERM to SIGKILL."""
    spec = template.get("spec")
    said = spec.get("terminationGracePeriodSeconds") if isinstance(spec, dict) else None
    return said if isinstance(said, int) and said >= 0 else GRACE_SECONDS


def pod_in(one: ElasticJob) -> Pod:
    """A worker's pod as the template has it; BadValueError where that is none."""
    meta = one.spec.template.get("metadata") or {}
    try:
        pod = msgspec.convert(
            {"metadata": dict(meta), "spec": one.spec.template.get("spec") or {}},
            Pod,
            strict=False,
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise BadValueError(f"spec.template is no pod: {error}", "Correct it.") from error
    labels = {**pod.metadata.labels, **({QUEUE: one.spec.queue} if one.spec.queue else {})}
    named = msgspec.structs.replace(
        pod.metadata, name=one.metadata.name, namespace=one.metadata.namespace, labels=labels
    )
    return msgspec.structs.replace(pod, metadata=named)


def asked_by(pod: Pod, presets: Sequence[Preset]) -> tuple[ContainerRequest, ...]:
    """What each worker asks for; BadValueError where that makes no sense."""
    try:
        check_duration(pod)
        found = requests_of(pod, presets)
    except InvalidRequestError as error:
        raise BadValueError(error.message, error.way_out) from error
    if not found:
        raise BadValueError(
            "no container of spec.template asks for a GPU", "Write it under resources.limits."
        )
    return found
