"""Binding: a pod gets its node, its plan and the queue it is admitted under in one step.

The plan is made for the node that kube-scheduler chose, from the current allocations. If the agent
there could confuse one of the pod's containers with another pod's that the node has not reported
yet, the binding waits until the node reports it, or for `PATIENCE` seconds; then kube-scheduler
tries again.

A member of a gang has its place already, and is bound there when all members have arrived.

The plan counts in the allocations from before the request to the API server until a watch reports
the pod as bound or gone. If the API server does not answer, it may have bound the pod nevertheless:
the plan then counts for a while longer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from aliquot.kubernetes.api.admission import queue_record
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import ADMITTED_QUEUE, PLAN
from aliquot.kubernetes.api.objects import Binding, Meta, Target
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.cluster.parts import confusable, plan_of
from aliquot.kubernetes.extender.planner import RESERVED_SECONDS
from aliquot.kubernetes.extender.pods import UnknownPodError

if TYPE_CHECKING:
    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.extender.pods import PodFinder

PATIENCE = 3.0  # seconds; kube-scheduler waits 5 s for an extender by default
SEEN_SECONDS = 300.0  # within which a watch surely reports a bound pod
AT_ONCE = 32  # bindings of gang members in flight


class NotBoundError(Exception):
    """Why a pod was not bound; kube-scheduler tries again."""


class Permits(Protocol):
    """Where members of gangs are bound, and when."""

    async def permit(self, pod: Pod, node: str) -> Reserved | None:
        """Wait until a gang member may be bound, and return its place; None for other pods.

        NotBoundError if it may not be bound.
        """

    def queue_of(self, pod: Pod) -> str:
        """The queue that a pod is admitted under; empty if there are no queues."""

    def moved(self, pod: Pod) -> str:
        """That a pod has changed its queue or its gang since it was asked about; empty if not."""

    def may_bind(self) -> bool:
        """Whether this replica leads at this moment."""

    def holds(self, pod: Pod, place: Reserved) -> bool:
        """Whether that place is still reserved for it."""

    def tried(self, pod: Pod, *, bound: bool) -> None:
        """A member was bound; or it was not, and its reservation was dropped."""


class Binder:
    """Binds pods. `held_back` is how many bindings wait now."""

    def __init__(
        self,
        client: Client,
        planner: Planner,
        changes: Changes,
        pods: PodFinder,
        permits: Permits,
    ) -> None:
        self._client = client
        self._planner = planner
        self._cluster = planner.cluster
        self._changes = changes
        self._pods = pods
        self._permits = permits
        self._free = asyncio.Semaphore(AT_ONCE)
        self.held_back = 0

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Give a pod its node and its plan; NotBoundError if that is impossible."""
        try:
            pod = await self._pods.get(namespace, name, uid)
        except UnknownPodError as error:
            raise NotBoundError(str(error)) from error
        if pod.spec.node_name == node:
            return
        if pod.spec.node_name:
            raise NotBoundError(f"pod {pod.key} is bound to node {pod.spec.node_name} already")
        place = await self._permits.permit(pod, node)
        if place is not None:
            await self._bind_member(pod, place)
            return
        parts = await self._plan(pod, node)
        await self._request(pod, node, parts)

    async def _bind_member(self, pod: Pod, place: Reserved) -> None:
        """Bind a gang member to its reserved place."""
        uid, node, parts = pod.metadata.uid, place.node, place.parts
        deadline = self._cluster.now() + PATIENCE
        while who := self._confusable_with(uid, node, parts):
            left = deadline - self._cluster.now()
            if left <= 0:
                raise NotBoundError(f"pod {pod.key} is held back on node {node}: {who}")
            await self._hold_back(left)
        async with self._free:
            if not self._permits.holds(pod, place):
                raise NotBoundError(f"pod {pod.key} has no place on node {node} any more")
            self._reserve(pod, node, parts, SEEN_SECONDS)
            try:
                await self._request(pod, node, parts)
            except NotBoundError:
                self._permits.tried(pod, bound=False)
                raise
        self._permits.tried(pod, bound=True)

    async def _plan(self, pod: Pod, node: str) -> Parts:
        """What the pod gets, as soon as no pod can be confused with it; reserved on return."""
        uid = pod.metadata.uid
        try:
            requests = self._planner.requests(pod)
        except InvalidRequestError as error:
            raise NotBoundError(str(error)) from error
        if not requests:
            if self._planner.names_resources(pod):  # with the amount 0
                return ()
            raise NotBoundError(
                f"pod {pod.key} asks for no GPU: kube-scheduler binds such pods by itself where its"
                " configuration has the extender's managedResources"
            )
        deadline = self._cluster.now() + PATIENCE
        while True:
            parts = self._planner.plan_again(uid, requests, node)
            if parts is None:
                self._cluster.forget(uid)
                raise NotBoundError(f"pod {pod.key} does not fit node {node} any more")
            who = self._confusable_with(uid, node, parts)
            if not who:
                break
            left = deadline - self._cluster.now()
            if left <= 0:
                self._cluster.forget(uid)
                raise NotBoundError(f"pod {pod.key} is held back on node {node}: {who}")
            await self._hold_back(left)
        self._reserve(pod, node, parts, SEEN_SECONDS)
        return parts

    def _reserve(self, pod: Pod, node: str, parts: Parts, seconds: float) -> None:
        until = self._cluster.now() + seconds
        self._cluster.reserve(pod.metadata.uid, Reserved(pod.key, node, parts, until, binding=True))

    async def _hold_back(self, seconds: float) -> None:
        self.held_back += 1
        try:
            await self._changes.wait(seconds)
        finally:
            self.held_back -= 1

    def _confusable_with(self, uid: str, node: str, parts: Parts) -> str:
        for other, theirs in self._cluster.unreported(node):
            pair = confusable(parts, theirs) if other != uid else None
            if pair is not None:
                ours, its = pair
                return (
                    f"the agent could confuse its container {ours.container!r} with"
                    f" {its.container!r} of the pod with UID {other}, which it has not reported yet"
                )
        return ""

    async def _request(self, pod: Pod, node: str, parts: Parts) -> None:
        meta = pod.metadata
        notes = {PLAN: plan_of(parts).encode()} if parts else {}
        queue = self._permits.queue_of(pod)
        if queue:
            notes[ADMITTED_QUEUE] = queue_record(queue, meta.uid)
        binding = Binding(
            Meta(name=meta.name, namespace=meta.namespace, uid=meta.uid, annotations=notes),
            Target(node),
        )
        why = self._permits.moved(pod)
        if not self._permits.may_bind():
            why = "another replica leads now"
        if why:
            self._cluster.forget(meta.uid)
            raise NotBoundError(f"pod {pod.key}: {why}")
        was_there = self._is_there(pod)
        try:
            await self._client.bind(binding)
        except ApiError as error:
            is_gone = was_there and not self._is_there(pod)
            if (error.passing or error.conflict) and not is_gone:  # it may be bound by now
                self._reserve(pod, node, parts, RESERVED_SECONDS)
            else:
                self._cluster.forget(meta.uid)
            raise NotBoundError(f"pod {pod.key}: {error.message}") from error

    def _is_there(self, pod: Pod) -> bool:
        """Whether the pod still exists, as last seen."""
        meta = pod.metadata
        return self._pods.seen(meta.namespace, meta.name, meta.uid) is not None
