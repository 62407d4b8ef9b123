"""Writes what claims got, takes it back, and opens the gates of their pods.

All allocations of a pod or gang are counted before the first one is written, and what is not
written stops counting. Each request fails if its object has changed since it was read. If the API
server does not say whether it wrote an allocation, that counts until a watch shows the claim, or
for a while.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import RESOURCE_CLAIMS
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.cluster import dra
from aliquot.kubernetes.dra.allocation import NoDeviceError, allocated, devices_of, with_finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.dra import ResourceClaims
    from aliquot.kubernetes.cluster.parts import Part
    from aliquot.kubernetes.dra.demand import ClaimDemand
    from aliquot.kubernetes.dra.waits import PodWaits

AT_ONCE = 16  # requests

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimPlace:
    """What a claim of a pod gets of a node."""

    pod: Pod
    claim: ResourceClaim
    demand: ClaimDemand
    node: str
    part: Part


class ClaimWriter:
    """All requests about claims. `leading` is asked before each of them."""

    def __init__(
        self,
        client: Client,
        claims: ResourceClaims,
        waits: PodWaits,
        leading: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._claims = claims
        self._waits = waits
        self._leading = leading
        self._now = now
        self._free = asyncio.Semaphore(AT_ONCE)
        self._taken_back: dict[str, float] = {}  # until when that counts, by the UID of a claim

    async def allocate(self, places: Sequence[ClaimPlace]) -> bool:
        """Write what some claims get; whether all of them have it.

        After a request that fails, no other one is begun.
        """
        made: list[tuple[ClaimPlace, ResourceClaim]] = []
        for one in places:
            try:
                made.append((one, self._assume(one)))
            except NoDeviceError as error:
                for other, _ in made:
                    self._claims.drop(other.claim.metadata.uid)
                self._waits.tell(one.pod, "InsufficientGPUs", f"{error}: it is tried again")
                return False
        failed = False

        async def write(place: ClaimPlace, after: ResourceClaim) -> None:
            nonlocal failed
            async with self._free:
                if failed:
                    self._claims.drop(place.claim.metadata.uid)
                elif not await self._write(place, after):
                    failed = True

        await asyncio.gather(*(write(*one) for one in made))
        return not failed

    async def open(self, pods: Sequence[Pod], gates: Collection[str]) -> None:
        """Let kube-scheduler have these pods: take these gates away."""

        async def write(pod: Pod) -> None:
            async with self._free:
                await self._open(pod, gates)

        await asyncio.gather(*(write(one) for one in pods))

    async def take_back(self, claims: Sequence[ResourceClaim]) -> None:
        """Take back allocations that no pod uses."""

        async def write(claim: ResourceClaim) -> None:
            async with self._free:
                await self._take_back(claim)

        await asyncio.gather(*(write(one) for one in claims))

    def took_back(self, uid: str) -> bool:
        """Whether it was this replica that took an allocation back, if nobody has asked yet."""
        return self._taken_back.pop(uid, None) is not None

    def is_taking_back(self, uid: str) -> bool:
        """Whether an allocation is gone, or may be, that a watch still shows."""
        return self._now() < self._taken_back.get(uid, 0.0)

    # --- one request ------------------------------------------------------------------------------

    def _assume(self, one: ClaimPlace) -> ResourceClaim:
        """Count what a claim gets; NoDeviceError if there is no device for it."""
        status = self._claims.cluster.nodes[one.node].status
        taken = devices_of(list(self._claims.on_node(one.node)))
        after = allocated(one.claim, one.demand, one.part, one.node, status, taken, self._now())
        self._claims.assume(after, one.pod.metadata.uid)
        return after

    async def _write(self, place: ClaimPlace, after: ResourceClaim) -> bool:
        """Write finalizer and allocation of a claim, if nobody has changed it since."""
        claim, pod = place.claim, place.pod
        meta, uid = claim.metadata, claim.metadata.uid
        same = {"uid": uid, "resourceVersion": meta.resource_version}
        patch = partial(self._client.patch, RESOURCE_CLAIMS, meta.name, namespace=meta.namespace)
        finalizers = with_finalizer(claim)
        was_sent = False
        try:
            if finalizers != meta.finalizers and self._leading():
                written = await patch({"metadata": {**same, "finalizers": finalizers}})
                same["resourceVersion"] = written.metadata.resource_version
            if not self._leading():
                self._claims.drop(uid)
                return False
            was_sent = True
            await patch(
                {"metadata": same, "status": {"allocation": after.status.allocation}}, sub="status"
            )
        except ApiError as error:
            if not (was_sent and error.passing):  # else it may be written
                self._claims.drop(uid)
            self._fail(pod, claim, error)
            return False
        self._claims.confirm(uid)
        _log.info("allocated a resource claim", claim=f"{meta.namespace}/{meta.name}", pod=pod.key)
        return True

    async def _open(self, pod: Pod, gates: Collection[str]) -> None:
        meta = pod.metadata
        left = [one for one in pod.spec.scheduling_gates if one.name not in gates]
        if len(left) == len(pod.spec.scheduling_gates) or not self._leading():
            return
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "spec": {"schedulingGates": msgspec.to_builtins(left) or None},
        }
        try:
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.info("cannot open the gate of a pod", pod=pod.key, why=error.message)
                self._waits.fail(meta.uid)

    async def _take_back(self, claim: ResourceClaim) -> None:
        if not self._leading():
            return
        meta = claim.metadata
        same = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        patch = {"metadata": same, "status": {"allocation": None}}
        # A watch may report it before the answer comes.
        self._taken_back[meta.uid] = self._now() + dra.UNSURE_SECONDS
        try:
            await self._client.patch(
                RESOURCE_CLAIMS, meta.name, patch, namespace=meta.namespace, sub="status"
            )
        except ApiError as error:
            if not error.passing:
                self._taken_back.pop(meta.uid, None)
            if not (error.not_found or error.conflict):
                _log.info("cannot take an allocation back", claim=meta.name, why=error.message)

    def _fail(self, pod: Pod, claim: ResourceClaim, error: ApiError) -> None:
        if error.not_found or error.conflict:
            return  # it has changed, and is looked at again
        self._waits.fail(pod.metadata.uid)
        text = f"resource claim {claim.metadata.name!r} is not allocated: {error.message}"
        self._waits.tell(pod, "ClaimNotAllocated", text)
