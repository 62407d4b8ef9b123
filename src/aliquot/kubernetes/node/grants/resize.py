"""Resizing: what the annotations of a running pod make of its grants.

The kubelet fixes a pod's device ids for its life, so the agent has these rules:

- Growth needs the scheduler's permission (`api.admission`), since it counts for the pod's queue:
  until it comes, nothing changes. Then growth takes free units of the GPU out of the counts, or is
  refused. GPUs that are planned for pods which have not started are not free.
- A shrink frees nothing before the pod ends: the kubelet could not give it to another pod.
- The slice of a resource claim never gets more than the claim got: kube-scheduler counts that. It
  follows the annotations of its pod if it has a single one.
- The agent answers every change with an event on the pod, and tries a refused change again when the
  pod's annotations change.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.admission import admitted_size
from aliquot.kubernetes.api.requests import InvalidRequestError, hard_without_compute, settings_of
from aliquot.kubernetes.node.grants.allocations import DoesNotFitError
from aliquot.kubernetes.node.grants.grant import SliceSettings
from aliquot.kubernetes.node.grants.placement import with_planned_pods
from aliquot.model import Policy, Priority, format_bytes, format_share
from aliquot.model.errors import AliquotError, NoSuchGrantError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.node.grants.allocations import HostGpu, NodeAllocations
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
    from aliquot.kubernetes.node.pods import ContainerRef, GpuPod, NodeEvents, NodePods


def wanted_settings(
    pod: GpuPod, grant: ContainerGrant, gpus: Mapping[str, HostGpu]
) -> SliceSettings:
    """The settings that the pod asks for now; InvalidRequestError if they are invalid."""
    annotated = settings_of(pod.object)
    policy, priority = annotated.policy, annotated.priority
    if grant.claim is not None:  # the claim may say it too, and the annotations come first
        policy = policy if names.POLICY in pod.annotations else grant.requested.policy
        priority = priority if names.PRIORITY in pod.annotations else grant.requested.priority
    if grant.kind != "sliced" and (annotated.memory or annotated.compute is not None):
        raise InvalidRequestError(
            "OnlySlices",
            f"{_name(grant)} has {grant.kind} GPUs, whose size is fixed",
            f"Remove the annotations {names.MEMORY} and {names.COMPUTE}.",
        )
    requested = {one.container: one.compute for one in pod.requests}
    compute = requested.get(grant.owner.container, grant.requested.compute)
    if grant.kind == "sliced" and annotated.compute is not None:
        compute = annotated.compute
    if policy is Policy.HARD and not compute:
        ask_with = f"the annotation {names.COMPUTE}"
        raise hard_without_compute(grant.owner.container, grant.kind, ask_with)
    memory = grant.requested.memory
    if annotated.memory is not None:
        memory = tuple(annotated.memory.of(gpus[part.gpu].memory) for part in grant.allocated)
        _check_copier(grant, min(memory))
    settings = SliceSettings(memory, compute, policy, priority)
    if grant.claim is not None:
        _check_resource_claim(grant, settings)
    return settings


def _check_resource_claim(grant: ContainerGrant, to: SliceSettings) -> None:
    """Raise InvalidRequestError if a resource claim's slice would get more than the claim got."""
    got = grant.requested
    grows = any(new > old for new, old in zip(to.memory, got.memory, strict=True))
    if grows or to.compute > got.compute or (got.compute and not to.compute):
        raise InvalidRequestError(
            "ResizeRefused",
            f"the annotations ask for {_sizes(to)} and compute: {format_share(to.compute)}, and"
            f" {_name(grant)} got {_sizes(got)} and compute: {format_share(got.compute)}: its slice"
            " cannot get more, nor an equal part instead of a share",
            "Ask for less, or write another claim.",
        )


def _check_copier(grant: ContainerGrant, size: int) -> None:
    """Raise InvalidRequestError if nothing is left of a slice whose memory can leave its GPU."""
    if grant.copier and size < 2 * grant.copier:
        raise InvalidRequestError(
            "InvalidAnnotation",
            f"the annotation {names.MEMORY} gives {_name(grant)} {format_bytes(size)}, of which"
            f" {format_bytes(grant.copier)} are for copying its memory ({names.SWAP})",
            f"Write {format_bytes(2 * grant.copier)} or more.",
        )


def resized(grant: ContainerGrant, to: SliceSettings) -> ContainerGrant:
    """The grant with other settings; it never counts for less than the container requested."""
    idle = to.priority is Priority.BACKGROUND
    compute = 0 if idle else max(grant.requested.compute, to.compute)
    sizes = zip(grant.allocated, grant.requested.memory, to.memory, strict=True)
    allocated = tuple(
        msgspec.structs.replace(part, memory=max(requested, size), reserved=compute)
        for part, requested, size in sizes
    )
    if grant.kind != "sliced":
        allocated = grant.allocated
    return msgspec.structs.replace(grant, current=to, allocated=allocated)


class Resizer:
    """Brings grants to the settings in their pods' annotations."""

    def __init__(
        self, saved: SavedAllocations, pods: NodePods, arbiter: ArbiterGrants, events: NodeEvents
    ) -> None:
        self._saved = saved
        self._pods = pods
        self._arbiter = arbiter
        self._events = events
        self._lock = asyncio.Lock()
        self._followed: dict[str, tuple[ContainerRef, dict[str, str]]] = {}  # annotations by grant
        self._refused: dict[str, dict[str, str]] = {}  # annotations by grant

    async def follow_all(self) -> None:
        """Follow the annotations of all pods that have changed."""
        allocations = self._saved.allocations
        for grant in allocations.saved():
            pod = self._pods.get(grant.owner.uid)
            here = grant.confirmed and grant.name in allocations.grants
            if pod is None or not pod.live or not here:
                continue
            if grant.claim is not None and len(grant.claim.pods) != 1:
                continue  # no pod may change what others have
            if self._followed.get(grant.name) != (grant.owner, pod.annotations):
                await self.follow(pod, grant.name)
                self._followed[grant.name] = (grant.owner, pod.annotations)
        self._followed = {
            name: one for name, one in self._followed.items() if name in allocations.grants
        }

    async def follow(self, pod: GpuPod, name: str) -> None:
        """Bring one grant to what its pod says; an init container's grant stays as it is.

        So do those of an abridged pod, of whose annotations nothing is known.
        """
        if pod.abridged:
            return
        async with self._lock:
            allocations = self._saved.allocations
            grant = allocations.grants.get(name)
            if grant is not None and not allocations.is_reused(grant):
                await self._follow(pod, grant)

    async def _follow(self, pod: GpuPod, grant: ContainerGrant) -> None:
        try:
            to = wanted_settings(pod, grant, self._saved.allocations.gpus)
            if to == grant.current or self._refused.get(grant.name) == pod.annotations:
                return
            if _is_allowed(pod, grant, to):
                await self._change(grant, to)
                self._events.pod_event(pod, "Resized", _changes(grant, to), warning=False)
        except InvalidRequestError as error:
            text = f"{error} Until then no annotation changes {_name(grant)}."
            self._refuse(pod, grant, error.reason, text)
        except (DoesNotFitError, AliquotError) as error:
            text = f"{_name(grant)} stays as it is: {_sentence(grant, error)}"
            self._refuse(pod, grant, "ResizeRefused", text)

    async def _change(self, grant: ContainerGrant, to: SliceSettings) -> None:
        after = resized(grant, to)
        planned = with_planned_pods(self._saved.allocations, self._pods.live())
        with self._saved.changing() as allocations:
            allocations.change(after)
            _check_planned(planned, after)
        try:
            await self._arbiter.change(after, to)
        except NoSuchGrantError:
            pass  # its container has not started: the grant will be made like this
        except AliquotError:
            with self._saved.changing() as allocations:
                allocations.change(grant)
            raise

    def _refuse(self, pod: GpuPod, grant: ContainerGrant, reason: str, text: str) -> None:
        if self._refused.get(grant.name) != pod.annotations:
            self._refused[grant.name] = dict(pod.annotations)
            self._events.pod_event(pod, reason, text)


def _is_allowed(pod: GpuPod, grant: ContainerGrant, to: SliceSettings) -> bool:
    """Whether the pod's queue allows this: a change without growth, or one with a permission.

    A resource claim counts in no queue, and kube-scheduler has counted all that it got, also while
    its slices are in the background.
    """
    if grant.claim is not None:
        return True
    both = zip(grant.allocated, resized(grant, to).allocated, strict=True)
    if all(new.memory <= old.memory and new.reserved <= old.reserved for old, new in both):
        return True
    size = admitted_size(pod.object)
    return size is not None and size.allows(pod.object, time.time())


def _check_planned(planned: NodeAllocations, after: ContainerGrant) -> None:
    """DoesNotFitError if growth takes what is planned for pods that have not started."""
    try:
        planned.change(after)
    except DoesNotFitError as error:
        raise DoesNotFitError(f"{error}; other pods are about to start here") from error


def _changes(grant: ContainerGrant, to: SliceSettings) -> str:
    """What changed, for the event."""
    was = grant.current
    changes = []
    if was.memory != to.memory:
        changes.append(f"memory {_sizes(was)} to {_sizes(to)}")
    if was.compute != to.compute:
        changes.append(f"compute {format_share(was.compute)} to {format_share(to.compute)}")
    if was.policy != to.policy:
        changes.append(f"policy {was.policy} to {to.policy}")
    if was.priority != to.priority:
        changes.append(f"priority {was.priority} to {to.priority}")
    return f"{_name(grant)}: {', '.join(changes)}"


def _sizes(settings: SliceSettings) -> str:
    return " and ".join(format_bytes(size) for size in dict.fromkeys(settings.memory))


def _name(grant: ContainerGrant) -> str:
    return grant.owner.within


def _sentence(grant: ContainerGrant, error: Exception) -> str:
    text = error.message if isinstance(error, AliquotError) else str(error)
    return text.replace(f"grant {grant.name}", "it").replace("\n", " ").rstrip(".")
