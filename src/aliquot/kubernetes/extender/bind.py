"""A pod gets its node and its plan in one step.

The plan is made for the node that kube-scheduler chose, from what is known at this moment. Where
the agent there could take one of the pod's containers for another's that is not reported yet, the
pod is held back until that one is, or for `PATIENCE` seconds: then kube-scheduler tries again.

A member of a gang has its place already, and is bound there when all members have arrived.

From before the API server is asked until the pod is seen with its node, or is gone, the plan counts
in the allocations. Where the API server does not answer, it may still have bound the pod: the plan
goes on to count for a while.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import PLAN
from aliquot.kubernetes.api.objects import PODS, Binding, Meta, Target
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.cluster import Reserved
from aliquot.kubernetes.cluster.parts import confused, plan_of
from aliquot.kubernetes.extender.planner import RESERVED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.extender.planner import Planner

PATIENCE = 3.0  # well below what any kube-scheduler waits for an extender (5 s by default)
SEEN_SECONDS = 300.0  # a pod that was bound is seen so long before that
AT_ONCE = 32  # bindings of gangs that are asked for


class NotBoundError(Exception):
    """Why a pod was not bound; kube-scheduler tries again."""


class Permits(Protocol):
    """Where members of gangs go, and when."""

    async def permit(self, pod: Pod, node: str) -> Reserved | None:
        """A member's place, when it may be bound; None where a pod is no member.

        NotBoundError where it may not.
        """

    def may_bind(self) -> bool:
        """Whether this replica leads at this moment."""

    def holds(self, pod: Pod, place: Reserved) -> bool:
        """Whether that place is still its own."""

    def tried(self, pod: Pod, *, bound: bool) -> None:
        """A member was bound, or was not and nothing is counted for it any more."""


class Binder:
    """Binds pods. `find` has the pods as they were last seen, by name and namespace.

    `held_back` is how many wait now.
    """

    def __init__(
        self,
        client: Client,
        planner: Planner,
        changes: Changes,
        find: Callable[[str, str], Pod | None],
        permits: Permits,
    ) -> None:
        self._client = client
        self._planner = planner
        self._cluster = planner.cluster
        self._changes = changes
        self._find = find
        self._permits = permits
        self._free = asyncio.Semaphore(AT_ONCE)
        self.held_back = 0

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Give a pod its node and its plan; NotBoundError where it cannot be."""
        pod = await self._pod(namespace, name, uid)
        if pod.spec.node_name == node:
            return
        if pod.spec.node_name:
            raise NotBoundError(f"pod {pod.key} is bound to node {pod.spec.node_name} already")
        place = await self._permits.permit(pod, node)
        if place is not None:
            await self._bind_member(pod, place)
            return
        parts = await self._plan(pod, node)
        await self._ask(pod, node, parts)

    async def _bind_member(self, pod: Pod, place: Reserved) -> None:
        """Bind to a place that was reserved."""
        uid, node, parts = pod.metadata.uid, place.node, place.parts
        deadline = self._cluster.now() + PATIENCE
        while who := self._confused(uid, node, parts):
            left = deadline - self._cluster.now()
            if left <= 0:
                raise NotBoundError(f"pod {pod.key} is held back on node {node}: {who}")
            await self._hold_back(left)
        async with self._free:
            if not self._permits.holds(pod, place):
                raise NotBoundError(f"pod {pod.key} has no place on node {node} any more")
            self._count(pod, node, parts, SEEN_SECONDS)
            try:
                await self._ask(pod, node, parts)
            except NotBoundError:
                self._permits.tried(pod, bound=False)
                raise
        self._permits.tried(pod, bound=True)

    async def _pod(self, namespace: str, name: str, uid: str) -> Pod:
        pod = self._find(name, namespace)
        if pod is None or pod.metadata.uid != uid:
            try:
                pod = await self._client.get(PODS, name, namespace)
            except ApiError as error:
                raise NotBoundError(f"pod {namespace}/{name}: {error.message}") from error
        if pod.metadata.uid != uid:
            raise NotBoundError(f"pod {namespace}/{name} is another one by now")
        return pod

    async def _plan(self, pod: Pod, node: str) -> Parts:
        """What the pod gets, once nobody can be confused with it; it counts when this returns."""
        uid = pod.metadata.uid
        try:
            requests = self._planner.requests(pod)
        except InvalidRequestError as error:
            raise NotBoundError(str(error)) from error
        if not requests:  # kube-scheduler does not ask for such a pod
            raise NotBoundError(
                f"pod {pod.key} asks for no GPU: kube-scheduler binds such pods by itself where its"
                " configuration has the extender's managedResources"
            )
        deadline = self._cluster.now() + PATIENCE
        while True:
            parts = self._planner.plan_again(uid, requests, node)
            if parts is None:
                self._cluster.forget(uid)
                raise NotBoundError(f"node {node} has no room for pod {pod.key} any more")
            who = self._confused(uid, node, parts)
            if not who:
                break
            left = deadline - self._cluster.now()
            if left <= 0:
                self._cluster.forget(uid)
                raise NotBoundError(f"pod {pod.key} is held back on node {node}: {who}")
            await self._hold_back(left)
        self._count(pod, node, parts, SEEN_SECONDS)
        return parts

    def _count(self, pod: Pod, node: str, parts: Parts, seconds: float) -> None:
        until = self._cluster.now() + seconds
        self._cluster.reserve(pod.metadata.uid, Reserved(pod.key, node, parts, until, sure=True))

    async def _hold_back(self, seconds: float) -> None:
        self.held_back += 1
        try:
            await self._changes.wait(seconds)
        finally:
            self.held_back -= 1

    def _confused(self, uid: str, node: str, parts: Parts) -> str:
        for other, theirs in self._cluster.unreported(node):
            pair = confused(parts, theirs) if other != uid else None
            if pair is not None:
                ours, its = pair
                return (
                    f"its container {ours.container!r} could be taken for {its.container!r} of the"
                    f" pod with UID {other}, which the node has not reported yet"
                )
        return ""

    async def _ask(self, pod: Pod, node: str, parts: Parts) -> None:
        meta = pod.metadata
        notes = {PLAN: plan_of(parts).encode()} if parts else {}
        binding = Binding(
            Meta(name=meta.name, namespace=meta.namespace, uid=meta.uid, annotations=notes),
            Target(node),
        )
        if not self._permits.may_bind():
            self._cluster.forget(meta.uid)
            raise NotBoundError(f"pod {pod.key}: another replica leads now")
        was_known = self._is_known(pod)
        try:
            await self._client.bind(binding)
        except ApiError as error:
            is_gone = was_known and not self._is_known(pod)
            if (error.passing or error.conflict) and not is_gone:  # it may have its node by now
                self._count(pod, node, parts, RESERVED_SECONDS)
            else:
                self._cluster.forget(meta.uid)
            raise NotBoundError(f"pod {pod.key}: {error.message}") from error

    def _is_known(self, pod: Pod) -> bool:
        """Whether the pod is still there, as far as was heard."""
        found = self._find(pod.metadata.name, pod.metadata.namespace)
        return found is not None and found.metadata.uid == pod.metadata.uid
