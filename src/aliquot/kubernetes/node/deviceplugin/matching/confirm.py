"""The right container of each grant, from the kubelet's PodResources interface.

The agent asks the kubelet about one pod at a time (`Get`). `List` would also make the kubelet count
its ids anew, and while it is in the middle of an Allocate of its own it would then give an id
twice; so the agent uses `List` only where there is no `Get` (before 1.34).

When the kubelet has reported the ids of a pod's containers, the grant of exactly these ids belongs
to that container. The grant that had this owner gets the other's owner, unconfirmed, until the
kubelet reports that pod too. Only owners are exchanged: a container keeps its GPUs and its
grant. Its share of compute becomes what it asked for itself.

The kubelet does not report init containers. It gives their ids to the pod's other containers, so a
grant whose ids are reused is an init container's of the same pod. Else the grant just before that
of the pod's first container is an init container's, if it has its size. A pod of which the kubelet
reports nothing has no ids yet, or only its init containers have some; that confirms nothing.

While the kubelet is in the middle of admitting a pod, it reports the ids of some of a container's
resources and not yet of the others. That confirms nothing either: the agent may have answered the
call for the others already, and would take these ids from the grant again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import grpc
import msgspec
import structlog

from aliquot.kubernetes.kubelet import podresources_pb2 as messages
from aliquot.kubernetes.kubelet import wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.deviceplugin.device_ids import DeviceIds
    from aliquot.kubernetes.node.grants.allocations import NodeAllocations
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.grant import ContainerGrant
    from aliquot.kubernetes.node.pods import ContainerRef, GpuPod, NodePods

SECONDS = 5.0

IdsByResource = Mapping[str, tuple[str, ...]]
PodReport = Mapping[str, IdsByResource]
"""What the kubelet reports of a pod: device ids by container and resource."""

_log = structlog.get_logger(__name__)


class PodResourcesClient:
    """The kubelet's PodResources socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = wire.dial(socket)
        self._get = wire.GET.on(self._channel)
        self._list = wire.LIST.on(self._channel)
        self._has_get = True

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def report(self, pod: ContainerRef) -> PodReport | None:
        """The device ids of a pod's containers; None if the kubelet does not answer.

        Containers without ids are left out.
        """
        try:
            reported = await self._ask(pod)
        except grpc.aio.AioRpcError as error:
            if "not found" in (error.details() or ""):
                return {}
            _log.debug("the kubelet does not report a pod", pod=pod.pod, why=error.details())
            return None
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for container in reported.containers if reported else ():
            for one in container.devices:  # one for each NUMA node
                by_resource = found.setdefault(container.name, {})
                before = by_resource.get(one.resource_name, ())
                by_resource[one.resource_name] = (*before, *one.device_ids)
        return found

    async def _ask(self, pod: ContainerRef) -> messages.PodResources | None:
        if self._has_get:
            request = messages.GetPodResourcesRequest(pod_name=pod.pod, pod_namespace=pod.namespace)
            try:
                answer = await self._get(request, timeout=SECONDS, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                if not _has_no_get(error):
                    raise
                self._has_get = False
            else:
                return answer.pod_resources  # type: ignore[no-any-return]
        listed = await self._list(messages.ListPodResourcesRequest(), timeout=SECONDS)
        for one in listed.pod_resources:
            if (one.namespace, one.name) == (pod.namespace, pod.pod):
                return one  # type: ignore[no-any-return]
        return None


def _has_no_get(error: grpc.aio.AioRpcError) -> bool:
    return error.code() == grpc.StatusCode.UNIMPLEMENTED or "disabled" in (error.details() or "")


class OwnerConfirmation:
    """Confirms and corrects the owners of grants. `corrections` counts wrong guesses."""

    def __init__(
        self, saved: SavedAllocations, ids: DeviceIds, pods: NodePods, kubelet: PodResourcesClient
    ) -> None:
        self._saved = saved
        self._ids = ids
        self._pods = pods
        self._kubelet = kubelet
        self.corrections = 0

    async def confirm(self, name: str) -> ContainerGrant | None:
        """The grant with its owner confirmed; None if there is no such grant any more.

        If the kubelet reports nothing, the owner stays as it is, unconfirmed.
        """
        for pod in self._likely_pods(name):
            self._apply(pod, await self._kubelet.report(pod) or {})
            now = self._saved.allocations.grants.get(name)
            if now is None or now.confirmed:
                break
        return self._saved.allocations.grants.get(name)

    def set_pod(self, name: str, pod: ContainerRef) -> None:
        """Confirm the pod of a grant, because a process of that pod has joined it."""
        with self._saved.changing() as allocations:
            set_pod(allocations, name, pod)

    def _apply(self, pod: ContainerRef, report: PodReport) -> None:
        known = self._pods.get(pod.uid)
        with self._saved.changing():
            wrong = apply_report(self._ids, pod, report, known.requests if known else ())
        if wrong:
            self.corrections += wrong
            _log.info("corrected the owners of grants", pod=f"{pod.namespace}/{pod.pod}")

    def _likely_pods(self, name: str) -> Iterator[ContainerRef]:
        """Which pods to ask about: the grant's own, then all with a grant to be confirmed."""
        grant = self._saved.allocations.grants.get(name)
        if grant is None or grant.confirmed:
            return
        asked = {grant.owner.uid}
        if grant.owner.pod:
            yield grant.owner
        for pod in self._pods.live():
            if pod.uid not in asked and not self._is_confirmed(pod):
                asked.add(pod.uid)
                yield pod.owner

    def _is_confirmed(self, pod: GpuPod) -> bool:
        """Whether all grants of a pod are confirmed, and each container has one."""
        grants = self._saved.allocations.of_pod(pod.uid)
        granted = {one.owner.container for one in grants if one.confirmed}
        needed = {one.container for one in pod.requests if one.units and not one.init}
        return bool(grants) and all(one.confirmed for one in grants) and needed <= granted


# --- pure -----------------------------------------------------------------------------------------


def apply_report(
    ids: DeviceIds, pod: ContainerRef, report: PodReport, requests: Sequence[ContainerRequest]
) -> int:
    """Set the owners of a pod's grants by the kubelet's report; how many were wrong."""
    asked = {one.container: one for one in requests}
    wrong = 0
    found: list[str] = []
    for container, every in report.items():
        units = {name: tuple(sorted(some)) for name, some in every.items() if name in ids.resources}
        if container in asked and not units.keys() >= dict(asked[container].units).keys():
            continue
        grant = ids.find(carrier := ids.carrier(units), units[carrier]) if units else None
        if grant is None:
            continue
        owner = msgspec.structs.replace(pod, container=container)
        wrong += grant.owner != owner
        _set_owner(ids.allocations, grant, owner)
        _set_ids(ids, grant.name, units)
        _set_compute(ids.allocations, grant.name, asked.get(container))
        found.append(grant.name)
    if found:
        _set_init_owners(ids.allocations, pod, found, [one for one in requests if one.init])
    return wrong


def set_pod(allocations: NodeAllocations, name: str, pod: ContainerRef) -> None:
    """Set the pod of a grant, because a process of the pod has joined it."""
    grant = allocations.grants[name]
    owner = msgspec.structs.replace(pod, container=grant.owner.container)
    _set_owner(allocations, grant, owner)


def _set_owner(allocations: NodeAllocations, grant: ContainerGrant, owner: ContainerRef) -> None:
    """Set a grant's owner; the grant that had this owner gets the other's."""
    others = [
        one for one in allocations.grants.values() if one.owner == owner and one.name != grant.name
    ]
    for other in others[:1]:
        allocations.change(msgspec.structs.replace(other, owner=grant.owner, confirmed=False))
    now = allocations.grants[grant.name]
    allocations.change(msgspec.structs.replace(now, owner=owner, confirmed=True))


def _set_ids(ids: DeviceIds, name: str, units: IdsByResource) -> None:
    """Set a grant's ids; only grants of the same chain may have them too.

    A merged grant is an init container's too, whose ids of other resources are not reported.
    """
    allocations = ids.allocations
    grant = allocations.grants[name]
    others = grant.device_ids if grant.merged else {}
    grant = msgspec.structs.replace(grant, device_ids={**others, **units})
    allocations.change(grant)
    ids.expect_no_more(name)
    for resource, some in units.items():
        ids.take_away(resource, some, keep=[grant, *allocations.never_together(grant)])


def _set_compute(allocations: NodeAllocations, name: str, request: ContainerRequest | None) -> None:
    grant = allocations.grants[name]
    if request is None or request.kind != grant.kind or grant.merged:
        return
    if grant.requested.compute == request.compute:
        return
    settings = msgspec.structs.replace(grant.requested, compute=request.compute)
    allocated = tuple(
        msgspec.structs.replace(one, reserved=request.reserved) for one in grant.allocated
    )
    now = msgspec.structs.replace(grant, requested=settings, current=settings, allocated=allocated)
    allocations.rewrite([now if one.name == name else one for one in allocations.saved()])


def _set_init_owners(
    allocations: NodeAllocations,
    pod: ContainerRef,
    found: Sequence[str],
    inits: Sequence[ContainerRequest],
) -> None:
    names = [one.container for one in inits]
    mine = [allocations.grants[name] for name in found]
    reused_names = dict.fromkeys(name for grant in mine for name in grant.reuses)
    reused = [allocations.grants[name] for name in reused_names if name in allocations.grants]
    for grant in reused:
        known = grant.owner.uid == pod.uid and grant.owner.container in names
        container = grant.owner.container if known else next(iter(names), "")
        _set_owner(allocations, grant, msgspec.structs.replace(pod, container=container))
    resources = {name for grant in mine for name in grant.device_ids}
    order = list(allocations.grants)
    at = min(order.index(name) for name in (*found, *(grant.name for grant in reused)))
    for request in reversed(inits):
        if resources.intersection(dict(request.units)):
            continue  # its ids were reused
        at -= 1
        grant = allocations.grants[order[at]]
        counts = {name: len(some) for name, some in grant.device_ids.items()}
        if at < 0 or grant.confirmed or counts != dict(request.units):
            return
        _set_owner(allocations, grant, msgspec.structs.replace(pod, container=request.container))
