"""The answers to Allocate and PreStartContainer: from device ids to a container and its grant.

Allocate decides which GPUs a container gets and saves that; PreStartContainer makes the grant in
the arbiter. So an Allocate call needs nothing but the allocations, and the kubelet can start a
container again after a reboot. If the agent dies

- before it has saved: nothing has happened. The kubelet gets an error and rejects the pod.
- after that, before the answer: the kubelet rejects the pod too, and the agent releases the grant
  with the failed pod.
- after the answer: both have the same state.

Ids that a grant has come again in two cases. The kubelet reuses the ids of an init container for
the next containers of the same pod, before any of them has started: then they count together.
Otherwise their pod has ended for the kubelet, and the ids are the new container's alone.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.node.deviceplugin.matching.guess import (
    AllocateCall,
    AllocateRefusedError,
    ContainerCalls,
)
from aliquot.kubernetes.node.grants.allocations import DoesNotFitError
from aliquot.kubernetes.node.grants.grant import ContainerGrant, GpuAllocation, SliceSettings
from aliquot.kubernetes.node.grants.placement import allocated_on, choose, planned_gpus
from aliquot.kubernetes.node.grants.swap import (
    CannotSwapError,
    asked_swap,
    copier_bytes,
    describe,
    overcommit_asked,
    overcommit_here,
)
from aliquot.kubernetes.node.pods import TOO_LARGE, PodContainer
from aliquot.model.errors import NoCapacityError
from aliquot.model.request import SwapDefault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds
    from aliquot.kubernetes.node.deviceplugin.matching.confirm import OwnerConfirmation
    from aliquot.kubernetes.node.deviceplugin.matching.guess import Matcher
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.injection import Injection
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
    from aliquot.kubernetes.node.grants.resize import Resizer
    from aliquot.kubernetes.node.grants.swap import NodeSwap
    from aliquot.kubernetes.node.pods import GpuPod, NodeEvents, NodePods
    from aliquot.model import Gpu
    from aliquot.model.parking_rule import ParkingRule

RECENT_SECONDS = 3.0
WHO_HAS_WHAT = "See which pods have the GPUs: kubectl get gpunodes -o yaml"

Ids = dict[str, tuple[str, ...]]


class Allocator:
    """Answers Allocate calls, one after the other."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        saved: SavedAllocations,
        ids: DeviceIds,
        pods: NodePods,
        matcher: Matcher,
        gpus: Callable[[], Mapping[str, Gpu]],
        pod_event: Callable[[GpuPod, str, str], None],
        uses_cdi: Callable[[], bool],
        minors: Callable[[ContainerGrant], tuple[int, ...]],
        swap: NodeSwap,
    ) -> None:
        self._saved = saved
        self._allocations = saved.allocations
        self._ids = ids
        self._pods = pods
        self._matcher = matcher
        self._gpus = gpus
        self._pod_event = pod_event
        self._uses_cdi = uses_cdi
        self._minors = minors
        self._swap = swap
        self._lock = asyncio.Lock()
        self._calls: ContainerCalls | None = None  # of a container that lacks more
        self._not_started: dict[str, float] = {}  # when each grant was last allocated

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerGrant | None:
        """The container's grant; None if the answer for another resource carries it."""
        async with self._lock:
            call = AllocateCall(resource, tuple(sorted(ids)))
            reused = self._reused(call)
            calls = self._calls_so_far()
            try:
                container = await self._matcher.find(call, calls, reused)
                return self._allocate(container, call, calls, reused)
            except AllocateRefusedError as error:
                self._calls = None
                if error.pod is not None:
                    self._pod_event(error.pod, error.reason, _sentence(error))
                raise

    def started(self, grant: ContainerGrant) -> None:
        """Note that a container starts: from now on the kubelet does not reuse its ids."""
        self._not_started.pop(grant.name, None)

    def is_recent(self, grant: ContainerGrant) -> bool:
        """Whether the grant is so new that the kubelet may not report it yet."""
        return time.monotonic() - self._not_started.get(grant.name, 0.0) < RECENT_SECONDS

    def _calls_so_far(self) -> ContainerCalls | None:
        """The calls for a container that lacks more; its owner may be known better by now."""
        calls = self._calls
        if calls is None:
            return None
        if calls.container.is_known and self._pods.is_gone(calls.container.pod.uid):
            return None
        grant = self._allocations.grants.get(calls.grant.name) if calls.grant else None
        if grant is None or grant.owner == calls.container.owner:
            return calls
        pod = self._pods.get(grant.owner.uid)
        request = pod.request(grant.owner.container) if pod else None
        if pod is None or request is None:
            return calls
        return ContainerCalls(PodContainer(pod, request), calls.ids, grant)

    def _reused(self, call: AllocateCall) -> list[ContainerGrant]:
        """The grants whose ids the kubelet reuses by this call."""
        grants = (self._allocations.grants.get(name) for name in self._not_started)
        return [
            grant
            for grant in grants
            if grant and call.touches(grant) and not self._pods.has_ended(grant.owner)
        ]

    def _allocate(
        self,
        container: PodContainer,
        call: AllocateCall,
        calls: ContainerCalls | None,
        reused: Sequence[ContainerGrant],
    ) -> ContainerGrant | None:
        if calls is None or not calls.continues(container, call):
            calls = self._first_calls(container, call)
        ids = {call.resource: call.ids}
        carries = self._carries_mounts(container, call.resource)
        self._calls = None
        with self._saved.changing() as allocations:
            self._ids.take_away(call.resource, call.ids, keep=reused)
            if carries:
                calls.grant = self._add(container, {**calls.ids, **ids}, reused)
            elif calls.grant is not None:
                calls.grant = self._extend(calls, container, calls.grant, ids)
        calls.container = container
        calls.ids |= ids
        if calls.grant is not None:
            self._ids.expect(calls.grant.name, calls.missing)
        self._not_started = {
            name: at for name, at in self._not_started.items() if name in allocations.grants
        }
        if calls.grant is not None:
            self._not_started[calls.grant.name] = time.monotonic()
        if not calls.complete or not container.is_known:
            self._calls = calls
        return calls.grant if carries else None

    def _first_calls(self, container: PodContainer, call: AllocateCall) -> ContainerCalls:
        """The calls for a container, with those that came before other containers' calls."""
        for grant in self._allocations.of_pod(container.pod.uid):
            if grant.owner == container.owner and call.resource not in grant.device_ids:
                return ContainerCalls(container, dict(grant.device_ids), grant)
        return ContainerCalls(container)

    def _carries_mounts(self, container: PodContainer, resource: str) -> bool:
        """Whether the answer to this call carries the container's mounts."""
        if not container.is_known and self._ids.resources[resource].role == "core":
            return False  # its memory comes too
        return resource == self._ids.carrier(container.units)

    def _add(
        self, container: PodContainer, ids: Ids, reused: Sequence[ContainerGrant]
    ) -> ContainerGrant:
        """Choose GPUs and add the grant."""
        why = ""
        carrier = self._ids.carrier(ids)
        for before in reused:
            if before.has(carrier, ids[carrier]) and before.kind == container.request.kind:
                return self._merge(container, before, ids)
        for gpus in self._choices(container, ids, reused):
            grant = self._grant(container, gpus, ids, reused)
            if (why := self._allocations.why_not(grant) or "") == "":
                grant = msgspec.structs.replace(grant, minors=self._minors(grant))
                self._allocations.add(grant)
                return grant
        raise _refused(container, f"no GPU has enough free for {container.request}: {why}")

    def _choices(
        self, container: PodContainer, ids: Ids, reused: Sequence[ContainerGrant]
    ) -> Iterator[tuple[str, ...]]:
        """The GPUs of the plan, then the best ones; a container that reuses ids keeps its GPUs."""
        request = container.request
        other_pod = bool(reused) and container.pod.uid != reused[0].owner.uid
        plan = None if other_pod else container.plan
        if gpus := planned_gpus(self._allocations, request, plan):
            yield gpus
        empty = self._grant(container, (), ids, reused)
        try:
            yield choose(self._allocations, self._gpus(), empty, request)
        except NoCapacityError as error:
            raise _refused(container, error.message) from error

    def _grant(
        self,
        container: PodContainer,
        gpus: tuple[str, ...],
        ids: Ids,
        reused: Sequence[ContainerGrant] = (),
    ) -> ContainerGrant:
        request = container.request
        allocated = allocated_on(self._allocations, request, gpus)
        settings = SliceSettings(
            memory=tuple(part.memory for part in allocated),
            compute=request.compute,
            policy=request.policy,
            priority=request.priority,
        )
        return ContainerGrant(
            name=f"{request.kind}-{uuid.uuid4().hex[:12]}",
            owner=container.owner,
            kind=request.kind,
            allocated=allocated,
            requested=settings,
            current=settings,
            device_ids=ids,
            carrier=self._ids.carrier(container.units),
            reuses=tuple(one.name for one in reused),
            cdi=self._uses_cdi(),
            overcommit=self._overcommit(container),
        )

    def _overcommit(self, container: PodContainer) -> float | None:
        if self._allocations.turns is None:
            return overcommit_asked(container.request, container.plan)
        return overcommit_here(container.request, container.plan, self._swap.default)

    def _merge(self, container: PodContainer, before: ContainerGrant, ids: Ids) -> ContainerGrant:
        """One grant for an init container and a container with the same ids: the larger of both.

        When a container starts, the kubelet names its ids and not the container, so the agent could
        not tell which of the two starts.
        """
        both = {**before.device_ids, **ids}
        new = self._grant(container, tuple(part.gpu for part in before.allocated), both)
        allocated = tuple(
            GpuAllocation(old.gpu, max(old.memory, one.memory), max(old.reserved, one.reserved))
            for old, one in zip(before.allocated, new.allocated, strict=True)
        )
        settings = msgspec.structs.replace(
            new.requested,
            memory=tuple(part.memory for part in allocated),
            compute=max(before.requested.compute, new.requested.compute),
        )
        grant = msgspec.structs.replace(
            new,
            name=before.name,
            reuses=before.reuses,
            allocated=allocated,
            requested=settings,
            current=settings,
            merged=True,
            cdi=before.cdi,  # the other container was told so
            minors=before.minors,
        )
        self._change(container, grant)
        return grant

    def _extend(
        self, calls: ContainerCalls, container: PodContainer, grant: ContainerGrant, ids: Ids
    ) -> ContainerGrant:
        """Add ids to a grant that has its GPUs; its container may turn out to be another one."""
        now = msgspec.structs.replace(grant, device_ids={**grant.device_ids, **ids})
        if calls.container.owner != container.owner or not container.is_known:
            gpus = tuple(part.gpu for part in grant.allocated)
            other = self._grant(container, gpus, now.device_ids)
            now = msgspec.structs.replace(
                other, name=grant.name, reuses=grant.reuses, cdi=grant.cdi, minors=grant.minors
            )
        if grant.name not in self._allocations.grants:
            raise _refused(container, "the grant of the calls before this one was released")
        self._change(container, now)
        return now

    def _change(self, container: PodContainer, to: ContainerGrant) -> None:
        try:
            self._allocations.change(to)
        except DoesNotFitError as error:
            raise _refused(container, str(error)) from error


def _refused(container: PodContainer, why: str) -> AllocateRefusedError:
    return AllocateRefusedError(why, WHO_HAS_WHAT, pod=container.pod)


def _sentence(error: AllocateRefusedError) -> str:
    return f"{error.message}. {error.hint}" if error.hint else error.message


@dataclass(frozen=True, slots=True)
class Starter:
    """Answers PreStartContainer calls.

    By now the kubelet can report which container has the ids. So the owner is confirmed first, and
    the grant gets the policy, the priority and the sizes that its pod asks for. Grants of the same
    chain end: an init container has ended when a later container starts, and the others have ended
    when the pod starts again. They never run together, and a GPU may have enough for only one.
    """

    saved: SavedAllocations
    ids: DeviceIds
    pods: NodePods
    owners: OwnerConfirmation
    arbiter: ArbiterGrants
    resizer: Resizer
    allocator: Allocator
    events: NodeEvents
    injection: Injection
    swap: NodeSwap

    async def start(self, resource: str, ids: Iterable[str]) -> None:
        """Make the grant of the container that has these ids."""
        found = self._find(resource, tuple(ids))
        if found is None:
            return
        self.allocator.started(found)
        grant = await self.owners.confirm(found.name)
        pod = self.pods.get(grant.owner.uid) if grant else None
        if pod is not None:
            await self.resizer.follow(pod, found.name)
        grant = self.saved.allocations.grants.get(found.name)
        if grant is None:
            raise AllocateRefusedError(
                f"grant {found.name} was released while its container started"
            )
        if pod is not None and grant.kind == "sliced" and not grant.current.compute:
            self.events.pod_event(
                pod,
                "EqualCompute",
                f"container {grant.owner.container!r} asks for memory and no compute: it gets an"
                " equal share of the compute that is not reserved",
                warning=False,
            )
        if pod is not None and pod.abridged:
            await self._check_made(pod, grant)
        else:
            grant = self._with_capabilities(pod, grant)
        self.injection.prepare(grant)
        for other in self.saved.allocations.never_together(grant):
            await self.arbiter.end(other.name)
        grant, parking = await self._with_swap(pod, grant)
        if grant.overcommit is not None and not grant.copier:  # its memory cannot leave the GPU
            grant = self._with(grant, overcommit=None)
        await self.arbiter.make(grant, pod.together if pod else None, parking)

    async def _check_made(self, pod: GpuPod, grant: ContainerGrant) -> None:
        """AllocateRefusedError if this starts the container of an abridged pod for the first time.

        Without its annotations it would get more than its queue or the node's defaults allow.
        """
        status = await self.arbiter.status()
        if not any(one.name == grant.name for one in status.grants):
            self.events.pod_event(pod, TOO_LARGE.reason, str(TOO_LARGE))
            raise AllocateRefusedError(str(TOO_LARGE), reason=TOO_LARGE.reason, pod=pod)

    def _with_capabilities(self, pod: GpuPod | None, grant: ContainerGrant) -> ContainerGrant:
        """The grant with the driver's capabilities that its container wants; all if in doubt."""
        known = pod is not None and grant.confirmed and not grant.merged
        wanted = pod.capabilities(grant.owner.container) if pod is not None and known else None
        capabilities = None if wanted is None else tuple(sorted(wanted))
        if capabilities != grant.capabilities:
            grant = msgspec.structs.replace(grant, capabilities=capabilities)
            with self.saved.changing() as allocations:
                allocations.change(grant)
        return grant

    async def _with_swap(
        self, pod: GpuPod | None, grant: ContainerGrant
    ) -> tuple[ContainerGrant, ParkingRule | None]:
        """The grant as its container's memory can leave the GPU, and when it does by itself."""
        request = pod.request(grant.owner.container) if pod else None
        asked = SwapDefault() if request is None else asked_swap(request, self.swap.default)
        if pod is None or not asked.swap or grant.copier:
            return grant, asked.park_after
        status = await self.arbiter.status()
        if any(one.name == grant.name for one in status.grants):
            return grant, None  # it stays as it was made
        try:
            lacks = copier_bytes(grant, status, self.swap.host_bytes)
        except CannotSwapError as error:
            said = f"{describe(asked.park_after)} of container {grant.owner.container!r}"
            text = f"{said} has no effect, and its memory stays on the GPU: {error}"
            self.events.pod_event(pod, "SwapNotPossible", text)
            return grant, None
        grant = self._with(grant, copier=lacks)
        if request is not None and self.saved.allocations.turns is not None:
            plan = PodContainer(pod, request).plan  # of its owner, who is confirmed only now
            turns = overcommit_here(request, plan, self.swap.default)
            grant = self._with(grant, overcommit=turns)
        return grant, asked.park_after

    def _with(self, grant: ContainerGrant, **changes: float | None) -> ContainerGrant:
        """The grant with these changes, saved."""
        grant = msgspec.structs.replace(grant, **changes)
        with self.saved.changing() as allocations:
            allocations.change(grant)
        return grant

    def _find(self, resource: str, ids: tuple[str, ...]) -> ContainerGrant | None:
        """The container's grant; None if the call for another of its resources makes it."""
        grant = self.ids.find(resource, ids)
        if grant is not None:
            return grant if resource == grant.carrier else None
        if self._has_other_carrier(AllocateCall(resource, ids)):
            return None
        raise AllocateRefusedError(
            f"no container of this node was allocated these {len(ids)} units of {resource}",
            "Delete the pod, so that it gets others.",
        )

    def _has_other_carrier(self, call: AllocateCall) -> bool:
        """Whether the call for another resource makes the grant, which has others of these ids.

        Ids of compute may be reused, or their call was matched with another container. The ids of
        memory tell which container it is.
        """
        if self.ids.resources[call.resource].role != "core":
            return False
        return any(self.ids.grant_with(id_) for id_ in call.ids) or any(
            call.fits(one) and self.ids.carrier(dict(one.units)) != call.resource
            for pod in self.pods.live()
            for one in pod.requests
        )
