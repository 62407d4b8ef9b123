"""Carries out a job's due actions through the API server. Every action may be repeated.

    reserve   creates the pods; the scheduler places their gang
    start     nothing: the kubelet starts the containers
    notify    sets an annotation, which the program sees as a file. The kubelet sometimes misses a
              change, so the annotation changes again while the worker exists
    term      deletes the pod: SIGTERM, then SIGKILL after its grace period
    kill      deletes it with one second of grace. Never with none: the API server would forget a
              worker that still runs
    void      deletes it in the same way before it has run: it may just have got a node
    release   nothing: a pod that has ended has no GPUs

Every deletion names the pod's UID, so a new pod of the same name is safe. Before each request the
applier asks `may`: a leader that was paused does nothing when it continues.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.elasticjob import JOB_PODS, POD_BODIES, SERVICES, JobPod
from aliquot.kubernetes.api.names import NOTICE, SCHEDULER, SIZE
from aliquot.kubernetes.api.objects import DeleteOptions, PodSpec, Preconditions
from aliquot.kubernetes.jobs.manifests import (
    notice_json,
    pod_body,
    pod_name,
    service_body,
    size_json,
)
from aliquot.kubernetes.jobs.observe import slot_of
from aliquot.model.actions import Verb
from aliquot.model.errors import StateError
from aliquot.model.job import JobPhase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.elasticjob import Body, ElasticJob
    from aliquot.model.actions import Action
    from aliquot.model.job import Job
    from aliquot.model.job_state import JobState, Slot

CONCURRENT_REQUESTS = 32
LEAST_GRACE = 1  # seconds; the API server uses 0 for a pod without a node

_log = structlog.get_logger(__name__)


class PodsRefusedError(Exception):
    """The API server refuses a pod or service of the job, and retrying will not help."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job that actions are for: its object, its state, and its pods by name."""

    one: ElasticJob
    job: Job
    state: JobState
    pods: Mapping[str, JobPod]
    now: float

    def pod(self, slot: Slot) -> JobPod | None:
        """The pod of a slot; None if it does not exist."""
        pod = self.pods.get(pod_name(self.one.metadata.name, slot.rank))
        return pod if pod is not None and slot_of(pod) == slot else None


@dataclass
class JobApplier:
    """Applies actions. It calls `created` for each new pod, before a watch reports it."""

    client: Client
    created: Callable[[JobPod], None]
    scheduler: str = SCHEDULER
    may: Callable[[], bool] = lambda: True
    _limit: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(CONCURRENT_REQUESTS)
    )
    _served: set[tuple[str, int]] = field(default_factory=set)
    _killed: set[str] = field(default_factory=set)

    async def apply(self, context: JobContext, actions: Iterable[Action]) -> str | None:
        """Carry out the actions. If the API server refuses the job's pods, return why."""
        try:
            for action in actions:
                await self._do(context, action)
            await self._announce_size(context)
            await self._delete_old(context)
        except PodsRefusedError as error:
            return str(error)
        return None

    def forget(self, jobs: Collection[str], pods: Collection[str]) -> None:
        """Forget everything about other jobs and pods than these UIDs."""
        self._served = {pair for pair in self._served if pair[0] in jobs}
        self._killed.intersection_update(pods)

    async def _do(self, context: JobContext, action: Action) -> None:
        carry_out = {
            Verb.RESERVE: self._create,
            Verb.NOTIFY: self._notify,
            Verb.TERM: self._term,
            Verb.KILL: self._kill,
            Verb.VOID: self._void,
        }.get(action.verb)
        if carry_out is None:
            return
        if action.verb is Verb.RESERVE:
            await self._ensure_service(context)
        await self._all(carry_out(context, slot) for slot in action.slots)

    # --- actions ---

    async def _ensure_service(self, context: JobContext) -> None:
        """Create the service if it is missing, checked once per generation."""
        one, generation = context.one, context.state.generation
        if (one.metadata.uid, generation) in self._served:
            return
        try:
            found = await self._service(one)
        except ApiError as error:
            _raise_if_permanent(error)
            return
        if not one.owns(found.metadata):
            raise PodsRefusedError(
                f"Service {one.metadata.name} exists and belongs to something else. Delete it, or"
                " rename the job."
            )
        self._served = {pair for pair in self._served if pair[0] != one.metadata.uid}
        self._served.add((one.metadata.uid, generation))

    async def _service(self, one: ElasticJob) -> Body:
        namespace, name = one.key
        try:
            return await self.client.get(SERVICES, name, namespace)
        except ApiError as error:
            if not error.not_found:
                raise
        check_lead(self.may)
        return await self.client.create(SERVICES, service_body(one))

    async def _create(self, context: JobContext, slot: Slot) -> None:
        name = pod_name(context.one.metadata.name, slot.rank)
        if name in context.pods:  # also a pod of an earlier generation that is being deleted
            return
        check_lead(self.may)
        try:
            body = pod_body(context.one, context.state, slot, self.scheduler)
            created = await self.client.create(POD_BODIES, body)
        except ApiError as error:
            await self._check_existing(context, name, error)
            return
        self.created(JobPod(created.metadata, PodSpec()))

    async def _check_existing(self, context: JobContext, name: str, error: ApiError) -> None:
        if not (error.conflict and error.reason == "AlreadyExists"):
            _raise_if_permanent(error)
            return
        try:
            found = await self.client.get(JOB_PODS, name, context.one.metadata.namespace)
        except ApiError as gone:
            _raise_if_permanent(gone)
            return
        if not context.one.owns(found.metadata):
            raise PodsRefusedError(
                f"pod {name} exists and belongs to something else. Delete it, or rename the job."
            ) from error
        self.created(found)

    async def _notify(self, context: JobContext, slot: Slot) -> None:
        await self._annotate(context, slot, NOTICE, notice_json(context.state, context.now))

    async def _term(self, context: JobContext, slot: Slot) -> None:
        pod = context.pod(slot)
        if pod is not None and not pod.metadata.deletion_timestamp:
            await self._delete(pod, max(LEAST_GRACE, int(context.job.grace_seconds)))

    async def _kill(self, context: JobContext, slot: Slot) -> None:
        pod = context.pod(slot) or self._stray(context, slot)
        if pod is not None and pod.metadata.uid not in self._killed:
            check_lead(self.may)
            self._killed.add(pod.metadata.uid)
            await self._delete(pod, LEAST_GRACE)

    async def _void(self, context: JobContext, slot: Slot) -> None:
        pod = context.pod(slot) or self._stray(context, slot)
        if pod is not None and not pod.metadata.deletion_timestamp:
            await self._delete(pod, LEAST_GRACE)

    async def _announce_size(self, context: JobContext) -> None:
        if context.job.live and context.state.phase is JobPhase.RUNNING:
            text = size_json(context.state)
            await self._all(
                self._annotate(context, slot, SIZE, text) for slot in context.state.slots
            )

    async def _delete_old(self, context: JobContext) -> None:
        """Delete ended pods of earlier generations once a new one is starting."""
        state = context.state
        if state.phase.inactive:
            return
        over = [pod for pod in context.pods.values() if pod.ended]
        await self._all(self._delete(pod) for pod in over if slot_of(pod) not in state.slots)

    # --- helpers ---

    def _stray(self, context: JobContext, slot: Slot) -> JobPod | None:
        return next((pod for pod in context.pods.values() if slot_of(pod) == slot), None)

    async def _annotate(self, context: JobContext, slot: Slot, annotation: str, text: str) -> None:
        pod = context.pod(slot)
        if pod is None or pod.ended or pod.metadata.annotations.get(annotation) == text:
            return
        check_lead(self.may)
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {annotation: text}}}
        try:
            await self.client.patch(JOB_PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.info("a worker was not notified", pod=pod.key, why=error.message)

    async def _delete(self, pod: JobPod, grace: int | None = None) -> None:
        check_lead(self.may)
        meta = pod.metadata
        options = DeleteOptions(grace, Preconditions(meta.uid))
        try:
            await self.client.delete(JOB_PODS, meta.name, meta.namespace, options)
        except ApiError as error:
            self._killed.discard(meta.uid)
            if not error.conflict:  # then it is another pod by now
                _log.info("a pod was not deleted", pod=pod.key, why=error.message)

    async def _all(self, requests: Iterable[Awaitable[None]]) -> None:
        async def send(request: Awaitable[None]) -> None:
            async with self._limit:
                await request

        await asyncio.gather(*(send(request) for request in requests))


def check_lead(may: Callable[[], bool]) -> None:
    """Raise StateError if another replica may lead by now."""
    if not may():
        raise StateError("this replica is no longer the leader")


def _raise_if_permanent(error: ApiError) -> None:
    """Log an error that may pass, to be retried; raise PodsRefusedError for any other."""
    if error.passing or error.not_found or error.conflict:
        _log.info("request failed; will retry", why=error.message)
        return
    raise PodsRefusedError(error.message) from error
