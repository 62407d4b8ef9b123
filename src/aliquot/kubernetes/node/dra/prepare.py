"""Grants of resource claims: made when the kubelet prepares a claim, ended when it unprepares it.

Both calls may come again at any time, and after a restart of either side. If the agent dies

- before it has saved the grant: nothing has happened, and the kubelet asks again.
- after that: the kubelet asks again and gets the same grant, or it unprepares the claim.

A grant stays until no process has it, so a claim that is prepared while an earlier one's processes
still end on its GPU is refused, with an event, and the kubelet tries again. The allocation of a
claim may change while the kubelet believes that it is prepared (its checkpoint was lost): then the
old grant ends first.

An arbiter that has lost a grant gets it again (a reboot empties its folder). The arbiter is never
told in which control groups a claim's containers are: a claim may have several, and only what the
arbiter itself recorded tells an honest program from one that evades its limits. So it ends none of
their processes.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.dra import RESOURCE_CLAIMS
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.api.objects import PODS, Meta, Pod
from aliquot.kubernetes.node.dra.allocation import devices_of, grant_of, owner_of, pods_of
from aliquot.kubernetes.node.grants.allocations import DoesNotFitError
from aliquot.kubernetes.node.pods import GpuPod
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import (
        ContainerGrant,
        ResourceClaimDevice,
        ResourceClaimRef,
    )
    from aliquot.kubernetes.node.grants.injection import Injection
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
    from aliquot.kubernetes.node.pods import NodeEvents, NodePods
    from aliquot.slices.arbiter_status import Status

# The kubelet waits 45 s for an answer.
END_SECONDS = 20.0
LOOK_SECONDS = 0.05
LOCKS = 256  # calls about the same claim wait for each other, and rarely those about two claims
# A pod of a claim is gone for so long, and the kubelet has not unprepared the claim: look it up.
FORGOTTEN_SECONDS = 60.0
POD_SECONDS = 5.0  # within which the scheduler writes a new pod into the GPUNode, if it does so

_log = structlog.get_logger(__name__)


class ClaimRefusedError(AliquotError):
    """A claim cannot be prepared, or unprepared, now."""


class ClaimGrants:
    """Makes, keeps and ends the grants of the claims of one node."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        client: Client,
        node: str,
        *,
        saved: SavedAllocations,
        pods: NodePods,
        arbiter: ArbiterGrants,
        injection: Injection,
        events: NodeEvents,
        forgotten_seconds: float = FORGOTTEN_SECONDS,
        reads_pods: bool = True,
        pod_seconds: float = POD_SECONDS,
    ) -> None:
        self._client = client
        self._node = node
        self._saved = saved
        self._pods = pods
        self._arbiter = arbiter
        self._injection = injection
        self._events = events
        self._forgotten_seconds = forgotten_seconds
        self._reads_pods = reads_pods
        self._pod_seconds = pod_seconds
        self._locks = [asyncio.Lock() for _ in range(LOCKS)]
        self._left_since: dict[str, float] = {}  # by claim: a pod of it is gone
        self._not_made: set[str] = set()  # grants about which the log has it already

    async def prepare(
        self, namespace: str, name: str, uid: str
    ) -> tuple[tuple[ResourceClaimDevice, ...], tuple[str, ...]]:
        """The devices of a claim, whose grant exists now, and the CDI devices of its containers."""
        async with self._lock(uid):
            claim = await self._read(namespace, name, uid)
            try:
                grant = await self._record(claim)
                self._injection.prepare(grant)
                devices = self._injection.cdi_devices(grant)
                await self._wait_pod(grant)
                await self._arbiter.make(grant, await self._together(grant))
            except InvalidClaimError as error:
                self._tell(claim, error.reason, error)
                raise
            except AliquotError as error:
                self._tell(claim, "ClaimNotPrepared", error)
                raise
            return _ref(grant).devices, devices

    async def unprepare(self, uid: str) -> None:
        """End a claim's grant; nothing is to be done for an unknown claim."""
        async with self._lock(uid):
            if (grant := self._find(uid)) is not None:
                await self._end(grant, END_SECONDS)

    async def keep(self, status: Status) -> None:
        """Make again the grants that the arbiter does not have by this status."""
        there = {one.name for one in status.grants}
        missing = [
            grant
            for grant in self._saved.allocations.saved()
            if grant.claim is not None and grant.name not in there
        ]
        self._not_made &= {grant.name for grant in missing}
        for grant in missing:
            lock = self._lock(_ref(grant).uid)
            if lock.locked():
                continue  # a call of the kubelet is about it
            async with lock:
                await self._make_again(grant.name)

    async def release_forgotten(self) -> None:
        """Look up the claims of pods that are gone, though nobody unprepared them.

        A claim that is no longer here ends with the last of its pods. One that is still here counts
        for the pods that may use it now.
        """
        now = time.monotonic()
        claims = [grant.claim for grant in self._saved.allocations.saved() if grant.claim]
        left = {
            one.uid: one
            for one in claims
            if not one.pods or any(self._pods.is_gone(pod) for pod in one.pods)
        }
        self._left_since = {uid: self._left_since.get(uid, now) for uid in left}
        for uid, claim in left.items():
            if now - self._left_since[uid] >= self._forgotten_seconds:
                self._left_since[uid] = now  # look again after that time
                with suppress(AliquotError):
                    await self._look_up(claim)

    # --- steps ------------------------------------------------------------------------------------

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks[hash(uid) % LOCKS]

    async def _read(self, namespace: str, name: str, uid: str) -> ResourceClaim:
        claim = await self._client.get(RESOURCE_CLAIMS, name, namespace)
        if claim.metadata.uid != uid:
            raise ClaimRefusedError(
                f"resource claim {namespace}/{name} is another one now: its UID is"
                f" {claim.metadata.uid}, not {uid}"
            )
        return claim

    async def _record(self, claim: ResourceClaim) -> ContainerGrant:
        """The grant of a claim in the allocations; the claim's former one, if it is the same."""
        allocations = self._saved.allocations
        wanted = grant_of(claim, self._node, allocations.gpus, allocations.shares, time.time())
        before = self._find(claim.metadata.uid)
        if before is not None:
            if _is_same(before, wanted):
                return self._renew(before, claim)
            _log.warning("a resource claim has other devices now", grant=before.name)
            await self._end(before, END_SECONDS)
        if not self._injection.uses_cdi:
            raise ClaimRefusedError(
                "the node's container runtime hands no CDI devices to containers, which resource"
                " claims need",
                "Use containerd 2.0 or CRI-O 1.28, or a newer one; or --cdi=always.",
            )
        grant = msgspec.structs.replace(wanted, name=f"{wanted.kind}-{uuid.uuid4().hex[:12]}")
        grant = msgspec.structs.replace(grant, minors=self._injection.minors(grant))
        try:
            with self._saved.changing():
                allocations.add(grant)
        except DoesNotFitError as error:
            raise ClaimRefusedError(
                f"its devices are not free: {error}",
                "An earlier pod's processes may still end there: it is tried again.",
            ) from error
        return grant

    def _renew(self, before: ContainerGrant, claim: ResourceClaim) -> ContainerGrant:
        """The same grant with its pods of now."""
        ref = msgspec.structs.replace(_ref(before), pods=pods_of(claim))
        now = msgspec.structs.replace(before, owner=owner_of(claim), claim=ref)
        if now != before:
            with self._saved.changing() as allocations:
                allocations.change(now)
        return now

    async def _end(self, grant: ContainerGrant, patience: float = 0.0) -> None:
        """End a grant and free its GPUs; ClaimRefusedError if processes have it for so long."""
        deadline = time.monotonic() + patience
        while not await self._arbiter.end(grant.name):
            if time.monotonic() >= deadline:
                raise ClaimRefusedError(
                    f"processes still run in grant {grant.name} of {grant.owner}",
                    "It is tried again; aliquot ps on the node shows them.",
                )
            await asyncio.sleep(LOOK_SECONDS)
        with self._saved.changing() as allocations:
            allocations.release(grant.name)
        _log.info("released a grant", grant=grant.name, owner=str(grant.owner))

    async def _make_again(self, name: str) -> None:
        grant = self._saved.allocations.grants.get(name)
        if grant is None:
            return
        try:
            await self._arbiter.make(grant, await self._together(grant))
        except AliquotError as error:
            if name not in self._not_made:
                _log.warning("cannot make a grant again yet", grant=name, why=error.message)
            self._not_made.add(name)
        else:
            self._not_made.discard(name)
            _log.info("made a grant that the arbiter had not", grant=name, owner=str(grant.owner))

    async def _together(self, grant: ContainerGrant) -> str | None:
        """The group of its pod, which the kubelet may know before the watch does."""
        owner = grant.owner
        pod = self._pods.get(owner.uid)
        if pod is None and owner.pod and self._reads_pods:
            try:
                found = await self._client.get(PODS, owner.pod, owner.namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
            else:
                pod = GpuPod(found) if found.metadata.uid == owner.uid else None
        return pod.together if pod else None

    async def _wait_pod(self, grant: ContainerGrant) -> None:
        """Wait for the grant's pod in the GPUNode, if the agent may not ask for it."""
        owner, deadline = grant.owner, time.monotonic() + self._pod_seconds
        while not self._reads_pods and owner.pod and self._pods.get(owner.uid) is None:
            seconds = deadline - time.monotonic()
            if seconds <= 0 or not await self._pods.wait_change(seconds):
                raise ClaimRefusedError(
                    f"pod {owner.namespace}/{owner.pod} is not in the GPUNode of the node yet",
                    "It is tried again; aliquot scheduler --pods-by-gpunode writes it there.",
                )

    async def _look_up(self, known: ResourceClaimRef) -> None:
        async with self._lock(known.uid):
            grant = self._find(known.uid)
            if grant is None:
                return
            try:
                claim = await self._read(known.namespace, known.name, known.uid)
            except ClaimRefusedError:
                claim = None
            except ApiError as error:
                if not error.not_found:
                    raise
                claim = None
            if claim is not None and self._has_devices(claim, grant):
                return
            if not all(self._pods.is_gone(pod) for pod in _ref(grant).pods):
                return  # it is the kubelet's to unprepare
            _log.warning("a resource claim is gone, and was not unprepared", grant=grant.name)
            await self._end(grant)

    def _has_devices(self, claim: ResourceClaim, grant: ContainerGrant) -> bool:
        """Whether a claim still has the devices of its grant; if so, its pods are noted.

        What these devices have may be another now, after an update of the driver for example.
        """
        if devices_of(claim) != {
            (one.pool, one.device, one.share_id) for one in _ref(grant).devices
        }:
            return False
        self._renew(grant, claim)
        return True

    def _find(self, uid: str) -> ContainerGrant | None:
        """The grant of a claim."""
        grants = self._saved.allocations.grants.values()
        return next((one for one in grants if one.claim and one.claim.uid == uid), None)

    def _tell(self, claim: ResourceClaim, reason: str, error: AliquotError) -> None:
        """Record on the claim's pods why it is not prepared."""
        text = f"resource claim {claim.metadata.name!r} is not prepared: {error.one_line}"
        for one in claim.status.reserved_for:
            if one.resource == "pods":
                meta = Meta(name=one.name, namespace=claim.metadata.namespace, uid=one.uid)
                self._events.pod_event(GpuPod(Pod(meta)), reason, text)


def _is_same(before: ContainerGrant, wanted: ContainerGrant) -> bool:
    """Whether a claim has what it had; the settings of a slice may have been changed since."""
    same_devices = _ref(before).devices == _ref(wanted).devices
    return same_devices and before.requested == wanted.requested


def _ref(grant: ContainerGrant) -> ResourceClaimRef:
    assert grant.claim is not None  # noqa: S101 - only grants of claims come here
    return grant.claim
