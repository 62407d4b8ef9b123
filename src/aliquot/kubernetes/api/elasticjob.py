"""The `ElasticJob` object: users write its `spec`, the controller writes its `status`."""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.kubernetes.api.gpunode import API_VERSION
from aliquot.kubernetes.api.objects import (
    Meta,
    OwnerReference,
    Pod,
    PodStatus,
    Resource,
    RuntimeContainer,
)
from aliquot.kubernetes.api.queue import Condition  # noqa: TC001 - msgspec reads it at run time
from aliquot.model.job import MAX_WORKERS

KIND = "ElasticJob"
PLURAL = "elasticjobs"
DISRUPTED = "DisruptionTarget"


class Workers(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How many workers a job can run with: all from `min` to `max`, or those of `sizes`."""

    min: int
    max: int
    sizes: tuple[int, ...] = ()


class ElasticJobSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What to run. `replicas` is the maximum number of workers that `kubectl scale` sets."""

    workers: Workers
    template: dict[str, Any]
    replicas: int = MAX_WORKERS
    suspend: bool = False
    backoff_limit: int = 6
    resize_seconds: int = 30
    live: bool = False
    queue: str = ""
    port: int = 29500


class Transition(msgspec.Struct, frozen=True, rename="camel"):
    """A change of phase or generation: when and why."""

    at: str
    phase: str
    generation: int
    workers: int
    reason: str


class ElasticJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a job. `controller_state` is the state that the controller continues from.

    Every field is written each time: a merge patch does not change a field that is left out.
    """

    phase: str = ""
    reason: str = ""
    generation: int = 0
    workers: int = 0
    ready: int = 0
    restarts: int = 0
    resizes: int = 0
    selector: str = ""
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    history: tuple[Transition, ...] = ()
    controller_state: str = ""


class JobMeta(Meta, frozen=True, rename="camel", omit_defaults=True):
    """Metadata with the generation of the spec."""

    generation: int = 0


class ElasticJob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An elastic job."""

    metadata: JobMeta
    spec: ElasticJobSpec
    status: ElasticJobStatus = ElasticJobStatus()

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.metadata.namespace, self.metadata.name

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def owner(self) -> OwnerReference:
        """The owner reference for the objects that it owns."""
        meta = self.metadata
        return OwnerReference(API_VERSION, KIND, meta.name, meta.uid, controller=True)

    def owns(self, meta: Meta) -> bool:
        """Whether an object has an owner reference to it."""
        return any(one.uid == self.metadata.uid for one in meta.owner_references)


class ContainerTerminated(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerWaiting(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why a container is waiting."""

    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state of a container."""

    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


class ContainerStatus(RuntimeContainer, frozen=True, omit_defaults=True):
    """The state of a container, with its name."""

    state: ContainerState = ContainerState()


class PodCondition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition of a pod."""

    type: str = ""
    status: str = ""


class JobPodStatus(PodStatus, frozen=True, rename="camel", omit_defaults=True):
    """The status of a worker's pod."""

    reason: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class JobPod(Pod, frozen=True, rename="camel", omit_defaults=True):
    """A worker's pod."""

    status: JobPodStatus = JobPodStatus()

    @property
    def is_disrupted(self) -> bool:
        """Whether it is being deleted, evicted or preempted."""
        marked = any(
            one.type == DISRUPTED and one.status == "True" for one in self.status.conditions
        )
        return marked or bool(self.metadata.deletion_timestamp)


class Body(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object to create."""

    metadata: Meta
    spec: dict[str, Any]


JOBS = Resource(ElasticJob, API_VERSION, KIND, PLURAL)
JOB_PODS = Resource(JobPod, "v1", "Pod", "pods")
POD_BODIES = Resource(Body, "v1", "Pod", "pods")
SERVICES = Resource(Body, "v1", "Service", "services")
