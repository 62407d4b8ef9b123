"""The likeliest container for an Allocate call, when the call comes.

The kubelet asks for one resource at a time, with device ids and nothing else. It admits pods one
after the other, the containers of a pod in their order, and the resources of a container in any
order. So a call belongs

1. to the container of the last call, if that still lacks exactly this;
2. else to the next container of the same pod;
3. else to the first container of a pending pod.

Containers that ask for equal amounts cannot be told apart here, and need not be: they are
interchangeable. `confirm` corrects the owner later.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.objects import Meta, Pod
from aliquot.kubernetes.api.requests import ContainerRequest, quantity
from aliquot.kubernetes.node.pods import GpuPod, PodContainer
from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Container
    from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds
    from aliquot.kubernetes.node.deviceplugin.matching.confirm import OwnerConfirmation
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.pods import NodePods

WAIT_SECONDS = 1.0


class AllocateRefusedError(AliquotError):
    """The agent refuses a container's units; `reason` is for the event on its pod."""

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        reason: str = "InsufficientGPUs",
        pod: GpuPod | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.reason = reason
        self.pod = pod


@dataclass(frozen=True, slots=True)
class AllocateCall:
    """An Allocate call."""

    resource: str
    ids: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many ids."""
        return len(self.ids)

    def fits(self, request: ContainerRequest) -> bool:
        """Whether a container asks for that many of this resource."""
        return (self.resource, self.count) in request.units

    def touches(self, grant: ContainerGrant) -> bool:
        """Whether a grant has one of the ids."""
        return not set(self.ids).isdisjoint(grant.device_ids.get(self.resource, ()))


@dataclass(slots=True)
class ContainerCalls:
    """The calls for one container: the ids that have come, and its grant once that is decided."""

    container: PodContainer
    ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    grant: ContainerGrant | None = None

    def lacks(self, resource: str, count: int) -> bool:
        """Whether the container still lacks exactly this."""
        return resource not in self.ids and self.container.units.get(resource) == count

    def continues(self, container: PodContainer, call: AllocateCall) -> bool:
        """Whether a call, and all before it, can be for this container."""
        if call.resource in self.ids:
            return False
        return all(container.units.get(name) == len(ids) for name, ids in self.ids.items())

    @property
    def missing(self) -> dict[str, int]:
        """The units for which no call has come yet."""
        units = self.container.units
        return {name: count for name, count in units.items() if name not in self.ids}

    @property
    def complete(self) -> bool:
        """Whether a call has come for each of the container's resources."""
        return not self.missing


def candidates(
    pods: Sequence[GpuPod], granted: Callable[[str], frozenset[str]], current: str | None
) -> Iterator[PodContainer]:
    """The containers that the kubelet may ask for next, the likeliest first.

    First the next container of each pod, then the ones after it: a pod's next container may have
    its grant under another owner. `granted` gives the containers of a pod that have a grant;
    `current` is the pod of the last call.
    """
    order = sorted(
        pods, key=lambda pod: (pod.uid != current, not pod.pending, bool(granted(pod.uid)))
    )
    later = []
    for pod in order:
        done = granted(pod.uid)
        rest = [one for one in pod.requests if one.container not in done and one.units]
        yield from (PodContainer(pod, one) for one in rest[:1])
        later += [PodContainer(pod, one) for one in rest[1:]]
    yield from later


def match_call(
    waiting: Sequence[PodContainer], calls: ContainerCalls | None, call: AllocateCall
) -> PodContainer | None:
    """The first waiting container that a call fits; None if it fits none.

    If the calls so far were not for a container that lacks this, they were likely for another
    container: one that asks for all of it.
    """
    counts = {name: len(ids) for name, ids in calls.ids.items()} if calls else {}
    if calls and call.resource not in counts:
        both = {**counts, call.resource: call.count}
        for container in waiting:
            if all(container.units.get(name) == number for name, number in both.items()):
                return container
    return next((one for one in waiting if call.fits(one.request)), None)


def must_reuse(call: AllocateCall, inits: Sequence[ContainerGrant]) -> bool:
    """Whether a call cannot be for a pod, because it does not reuse its init containers' ids.

    The kubelet gives the ids of a pod's init containers to its next containers before any other.
    """
    ids = {id_ for grant in inits for id_ in grant.device_ids.get(call.resource, ())}
    return len(ids.intersection(call.ids)) < min(call.count, len(ids))


class Matcher:
    """Finds the container that an Allocate call is for."""

    def __init__(self, ids: DeviceIds, pods: NodePods, owners: OwnerConfirmation) -> None:
        self._ids = ids
        self._allocations = ids.allocations
        self._pods = pods
        self._owners = owners

    async def find(
        self, call: AllocateCall, calls: ContainerCalls | None, reused: Sequence[ContainerGrant]
    ) -> PodContainer:
        """The container of a call; after a while, one of which only the size is known.

        `reused` are the grants of init containers whose ids the call has.
        """
        deadline = time.monotonic() + WAIT_SECONDS + self._pods.behind_seconds
        while True:
            if found := self._likeliest(call, calls, reused):
                return found
            if found := await self._after_confirming(call, calls, reused):
                return found
            seconds = deadline - time.monotonic()
            if seconds <= 0 or not await self._pods.wait_change(seconds):
                break
        if refused := self._invalid(call):
            raise refused
        return self._of_that_size(call) or self._unknown(call, calls)

    def _likeliest(
        self, call: AllocateCall, calls: ContainerCalls | None, reused: Sequence[ContainerGrant]
    ) -> PodContainer | None:
        if calls and calls.lacks(call.resource, call.count):
            return calls.container
        last = next(iter(reused), None)
        waiting = list(
            candidates(self._pods.live(), self._granted, last.owner.uid if last else None)
        )
        if reused:
            return match_call(waiting, calls, call) or self._of_that_size(call)
        able = [one for one in waiting if not must_reuse(call, self._inits(one.pod))]
        return (
            match_call(able, calls, call)
            or self._incomplete(call)
            or match_call(waiting, calls, call)
        )

    def _incomplete(self, call: AllocateCall) -> PodContainer | None:
        """A container whose grant lacks exactly this, because its owner was corrected."""
        for grant in reversed(self._allocations.grants.values()):
            pod = self._pods.get(grant.owner.uid)
            request = pod.request(grant.owner.container) if pod and pod.pending else None
            if pod and request and call.fits(request) and call.resource not in grant.device_ids:
                return PodContainer(pod, request)
        return None

    def _granted(self, uid: str) -> frozenset[str]:
        return frozenset(grant.owner.container for grant in self._allocations.of_pod(uid))

    def _inits(self, pod: GpuPod) -> list[ContainerGrant]:
        inits = {one.container for one in pod.requests if one.init}
        grants = self._allocations.of_pod(pod.uid)
        return [grant for grant in grants if grant.owner.container in inits]

    def _of_that_size(self, call: AllocateCall) -> PodContainer | None:
        """A container of which only the size is known: all pending ones of that size have a grant.

        One of those has the grant of this container, or of one that the kubelet rejected.
        """
        pods = (pod for pod in self._pods.live() if pod.pending)
        fitting = (one for pod in pods for one in pod.requests if call.fits(one))
        size = next(fitting, None)
        return (
            PodContainer(_unknown_pod(), replace(size, container="", init=False)) if size else None
        )

    async def _after_confirming(
        self, call: AllocateCall, calls: ContainerCalls | None, reused: Sequence[ContainerGrant]
    ) -> PodContainer | None:
        """The container, after the kubelet was asked about the owners of grants of that size."""
        for grant in self._allocations.saved():
            pod = self._pods.get(grant.owner.uid)
            request = pod.request(grant.owner.container) if pod and pod.pending else None
            if grant.confirmed or request is None or not call.fits(request):
                continue
            await self._owners.confirm(grant.name)
            if found := self._likeliest(call, calls, reused):
                return found
        return None

    def _invalid(self, call: AllocateCall) -> AllocateRefusedError | None:
        """The error of a pending pod with an invalid request for this, and no grant for it."""
        for pod in self._pods.live():
            if not (pod.invalid and pod.pending):
                continue
            granted = self._granted(pod.uid)
            if pod.abridged and not granted and not pod.object.spec.resource_claims:
                return AllocateRefusedError(str(pod.invalid), reason=pod.invalid.reason, pod=pod)
            every = (*pod.object.spec.init_containers, *pod.object.spec.containers)
            if any(_asks(one, call) for one in every if one.name not in granted):
                return AllocateRefusedError(str(pod.invalid), reason=pod.invalid.reason, pod=pod)
        return None

    def _unknown(self, call: AllocateCall, calls: ContainerCalls | None) -> PodContainer:
        """A container of which nothing is known but its calls."""
        units, pod = {call.resource: call.count}, _unknown_pod()
        if calls and not calls.container.is_known and call.resource not in calls.ids:
            units |= calls.container.units
            pod = calls.container.pod
        return PodContainer(pod, self._request_of(units))

    def _request_of(self, units: Mapping[str, int]) -> ContainerRequest:
        """What a container with these units asks for; slices are of one GPU."""
        by_role = {self._ids.resources[name].role: (name, n) for name, n in units.items()}
        all_units = tuple(sorted(units.items()))
        for role in ("whole", "slot"):
            if role in by_role:
                return ContainerRequest("", "whole", by_role[role][1], compute=100, units=all_units)
        if "shared" in by_role:
            return ContainerRequest("", "shared", by_role["shared"][1], units=all_units)
        memory, count = by_role.get("memory", ("", 0))
        unit = self._ids.resources[memory].memory_unit if memory else 0
        core = min(by_role.get("core", ("", 0))[1], names.CORE_UNITS)
        return ContainerRequest("", "sliced", 1, memory=count * unit, compute=core, units=all_units)


def _unknown_pod() -> GpuPod:
    return GpuPod(Pod(metadata=Meta(uid=f"unknown-{uuid.uuid4().hex[:12]}")))


def _asks(container: Container, call: AllocateCall) -> bool:
    with suppress(InvalidValueError):
        return quantity(container.resources.limits.get(call.resource, 0)) == call.count
    return False
