"""What the state machine wants done, done by the API server. All of it may be done again.

    reserve   the pods are made; the scheduler finds places for their gang
    start     nothing: the kubelet does
    notify    an annotation, which the program sees as a file. Now and then the kubelet does not
              bring a change of it to the file: it is changed again while the worker is there
    term      the pod is deleted: SIGTERM, and SIGKILL after its grace
    kill      the same with a second of grace. Never without any: the API server would forget a
              worker that still runs
    void      the same, before it has run: it may have got a node a moment ago
    release   nothing: a pod that has ended holds nothing

Every deletion names the pod's UID, so that one of the same name is not meant. Before each request
`may` is asked: a leader that stood still does nothing when it goes on.
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
    notice_words,
    pod_body,
    pod_name,
    service_body,
    size_words,
)
from aliquot.kubernetes.jobs.observe import slot_of
from aliquot.model.errors import StateError
from aliquot.model.job import State
from aliquot.model.status import Verb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.elasticjob import Body, ElasticJob
    from aliquot.model.job import Job
    from aliquot.model.status import Action, Record, Slot

AT_ONCE = 32  # requests
LEAST_GRACE = 1  # seconds; the API server makes it 0 for a pod without a node

_log = structlog.get_logger(__name__)


class RefusedError(Exception):
    """The API server does not take what the job needs, and will not as it is."""


@dataclass(frozen=True, slots=True)
class Order:
    """For whom something is done: the job as it is written, its record, and its pods by name.

    `now` is when.
    """

    one: ElasticJob
    job: Job
    record: Record
    pods: Mapping[str, JobPod]
    now: float

    def pod(self, slot: Slot) -> JobPod | None:
        """The pod that a slot is, where it is there."""
        pod = self.pods.get(pod_name(self.one.metadata.name, slot.rank))
        return pod if pod is not None and slot_of(pod) == slot else None


@dataclass
class Applier:
    """Does them. `made` hears of each pod that was made before a watch does."""

    client: Client
    made: Callable[[JobPod], None]
    scheduler: str = SCHEDULER
    may: Callable[[], bool] = lambda: True
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _served: set[tuple[str, int]] = field(default_factory=set)
    _killed: set[str] = field(default_factory=set)

    async def do(self, order: Order, actions: Iterable[Action]) -> str | None:
        """Do what is due; why the API server does not take the job's pods, where it does not."""
        try:
            for action in actions:
                await self._act(order, action)
            await self._tell_size(order)
            await self._tidy(order)
        except RefusedError as error:
            return str(error)
        return None

    def forget(self, jobs: Collection[str], pods: Collection[str]) -> None:
        """Only these UIDs are of use from now on."""
        self._served = {pair for pair in self._served if pair[0] in jobs}
        self._killed.intersection_update(pods)

    async def _act(self, order: Order, action: Action) -> None:
        deed = {
            Verb.RESERVE: self._make,
            Verb.NOTIFY: self._notify,
            Verb.TERM: self._term,
            Verb.KILL: self._kill,
            Verb.VOID: self._void,
        }.get(action.verb)
        if deed is None:
            return
        if action.verb is Verb.RESERVE:
            await self._serve(order)
        await self._all(deed(order, slot) for slot in action.slots)

    # --- deeds ---

    async def _serve(self, order: Order) -> None:
        """Make the service, once for each generation: somebody may have taken it away."""
        one, generation = order.one, order.record.generation
        if (one.metadata.uid, generation) in self._served:
            return
        try:
            found = await self._service(one)
        except ApiError as error:
            _judge(error)
            return
        if not one.owns(found.metadata):
            raise RefusedError(
                f"there is a Service {one.metadata.name} that is not this job's. Delete it, or give"
                " the job another name."
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

    async def _make(self, order: Order, slot: Slot) -> None:
        name = pod_name(order.one.metadata.name, slot.rank)
        if name in order.pods:  # also what an earlier generation left, which is being taken away
            return
        check_lead(self.may)
        try:
            body = pod_body(order.one, order.record, slot, self.scheduler)
            made = await self.client.create(POD_BODIES, body)
        except ApiError as error:
            await self._not_made(order, name, error)
            return
        self.made(JobPod(made.metadata, PodSpec()))

    async def _not_made(self, order: Order, name: str, error: ApiError) -> None:
        if not (error.conflict and error.reason == "AlreadyExists"):
            _judge(error)
            return
        try:
            found = await self.client.get(JOB_PODS, name, order.one.metadata.namespace)
        except ApiError as gone:
            _judge(gone)
            return
        if not order.one.owns(found.metadata):
            raise RefusedError(
                f"there is a pod {name} that is not this job's. Delete it, or give the job another"
                " name."
            ) from error
        self.made(found)

    async def _notify(self, order: Order, slot: Slot) -> None:
        await self._annotate(order, slot, NOTICE, notice_words(order.record, order.now))

    async def _term(self, order: Order, slot: Slot) -> None:
        pod = order.pod(slot)
        if pod is not None and not pod.metadata.deletion_timestamp:
            await self._delete(pod, max(LEAST_GRACE, int(order.job.grace_seconds)))

    async def _kill(self, order: Order, slot: Slot) -> None:
        pod = order.pod(slot) or self._stray(order, slot)
        if pod is not None and pod.metadata.uid not in self._killed:
            check_lead(self.may)
            self._killed.add(pod.metadata.uid)
            await self._delete(pod, LEAST_GRACE)

    async def _void(self, order: Order, slot: Slot) -> None:
        pod = order.pod(slot) or self._stray(order, slot)
        if pod is not None and not pod.metadata.deletion_timestamp:
            await self._delete(pod, LEAST_GRACE)

    async def _tell_size(self, order: Order) -> None:
        if order.job.live and order.record.state is State.RUNNING:
            words = size_words(order.record)
            await self._all(self._annotate(order, slot, SIZE, words) for slot in order.record.slots)

    async def _tidy(self, order: Order) -> None:
        """Take away what earlier generations left, once a new one is on its way."""
        record = order.record
        if record.state.resting:
            return
        over = [pod for pod in order.pods.values() if pod.ended]
        await self._all(self._delete(pod) for pod in over if slot_of(pod) not in record.slots)

    # --- parts ---

    def _stray(self, order: Order, slot: Slot) -> JobPod | None:
        return next((pod for pod in order.pods.values() if slot_of(pod) == slot), None)

    async def _annotate(self, order: Order, slot: Slot, note: str, words: str) -> None:
        pod = order.pod(slot)
        if pod is None or pod.ended or pod.metadata.annotations.get(note) == words:
            return
        check_lead(self.may)
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid, "annotations": {note: words}}}
        try:
            await self.client.patch(JOB_PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.info("a worker was not told", pod=pod.key, why=error.message)

    async def _delete(self, pod: JobPod, grace: int | None = None) -> None:
        check_lead(self.may)
        meta = pod.metadata
        options = DeleteOptions(grace, Preconditions(meta.uid))
        try:
            await self.client.delete(JOB_PODS, meta.name, meta.namespace, options)
        except ApiError as error:
            self._killed.discard(meta.uid)
            if not error.conflict:  # else it is another pod by now
                _log.info("a pod was not deleted", pod=pod.key, why=error.message)

    async def _all(self, deeds: Iterable[Awaitable[None]]) -> None:
        async def one(deed: Awaitable[None]) -> None:
            async with self._free:
                await deed

        await asyncio.gather(*(one(deed) for deed in deeds))


def check_lead(may: Callable[[], bool]) -> None:
    """Nothing, or an error where another replica may lead by now."""
    if not may():
        raise StateError("this replica does not lead any more")


def _judge(error: ApiError) -> None:
    """What may pass is tried again; what will not is refused."""
    if error.passing or error.not_found or error.conflict:
        _log.info("will be tried again", why=error.message)
        return
    raise RefusedError(error.message) from error
