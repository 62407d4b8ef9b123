"""What a claim got on this node, checked: from the claim's status to a grant.

The scheduler chose the devices, and people wrote the parameters. All devices of a claim are one
grant, whichever of its requests a container names: devices of one GPU are one slice with the sum of
their memory and compute. So a claim has GPUs of one kind, and one setting for all of them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_devices import COMPUTE, MEMORY, amount_of, parse_device
from aliquot.kubernetes.api.dra_parameters import InvalidClaimError, Parameters, parameters_of
from aliquot.kubernetes.api.names import CORE_UNITS
from aliquot.kubernetes.node.grants.grant import (
    ContainerGrant,
    GpuAllocation,
    ResourceClaimDevice,
    ResourceClaimRef,
    SliceSettings,
)
from aliquot.kubernetes.node.pods import ContainerRef
from aliquot.model import Policy, Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.dra import DeviceResult, ResourceClaim
    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.node.grants.allocations import HostGpu


def grant_of(
    claim: ResourceClaim, node: str, gpus: Mapping[str, HostGpu], shares: int, now: float = 0.0
) -> ContainerGrant:
    """The grant that a claim's pods get on this node, made `now` and still without a name.

    InvalidClaimError if there is none.
    """
    results = _results(claim, node)
    found = [_device(one, gpus) for one in results]
    kinds = {kind for _, kind in found}
    if len(kinds) > 1:
        raise InvalidClaimError(
            f"it has {' and '.join(sorted(kinds))} GPUs, and a claim has GPUs of one kind",
            "Write a claim for each kind.",
        )
    (kind,) = kinds
    memory, compute = _sizes(results, found, gpus, shares)
    settings = _settings(claim, results, kind, tuple(memory.values()), compute)
    reserved = 0 if settings.priority is Priority.BACKGROUND else settings.compute
    meta = claim.metadata
    return ContainerGrant(
        name="",
        owner=owner_of(claim),
        kind=kind,
        allocated=tuple(GpuAllocation(gpu, size, reserved) for gpu, size in memory.items()),
        requested=settings,
        current=settings,
        device_ids={},
        carrier="",
        confirmed=True,
        cdi=True,
        claim=ResourceClaimRef(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            made=now,
            pods=pods_of(claim),
            devices=tuple(
                ResourceClaimDevice(
                    one.request.partition("/")[0], one.pool, one.device, gpu, one.share_id
                )
                for one, (gpu, _) in zip(results, found, strict=True)
            ),
        ),
    )


def devices_of(claim: ResourceClaim) -> set[tuple[str, str, str | None]]:
    """Pool, name and share of each device of this driver that a claim has."""
    allocation = claim.status.allocation
    return {
        (one.pool, one.device, one.share_id)
        for one in (allocation.devices.results if allocation else ())
        if one.driver == DRIVER
    }


def pods_of(claim: ResourceClaim) -> tuple[str, ...]:
    """The UIDs of the pods that may use a claim."""
    return tuple(one.uid for one in claim.status.reserved_for if _is_pod(one.resource))


def owner_of(claim: ResourceClaim) -> ContainerRef:
    """Whose grant it is, for people: of the first pod that may use it."""
    meta = claim.metadata
    pod = next((one for one in claim.status.reserved_for if _is_pod(one.resource)), None)
    if pod is None:
        return ContainerRef(namespace=meta.namespace, claim=meta.name)
    return ContainerRef(pod.uid, meta.namespace, pod.name, claim=meta.name)


def _is_pod(resource: str) -> bool:
    return resource == "pods"


def _results(claim: ResourceClaim, node: str) -> list[DeviceResult]:
    allocation = claim.status.allocation
    ours = [one for one in allocation.devices.results if one.driver == DRIVER] if allocation else []
    if not ours:
        raise InvalidClaimError("it has no devices of this driver", reason="NotAllocated")
    for one in ours:
        if one.pool != node:
            raise InvalidClaimError(f"its device {one.device} is on node {one.pool}, not {node}")
        if one.admin_access:
            raise InvalidClaimError(
                f"request {one.request!r} has admin access, which grants do not have",
                "Remove adminAccess from the request.",
            )
    return ours


def _device(result: DeviceResult, gpus: Mapping[str, HostGpu]) -> tuple[str, Kind]:
    found = parse_device(result.device, gpus)
    if found is None:
        raise InvalidClaimError(
            f"this node has no device {result.device}",
            "Delete the pod: its next one gets another device.",
            reason="DeviceMissing",
        )
    return found


def _sizes(
    results: list[DeviceResult],
    found: list[tuple[str, Kind]],
    gpus: Mapping[str, HostGpu],
    shares: int,
) -> tuple[dict[str, int], int]:
    """Bytes of each GPU, and the percent of compute that the claim has of each."""
    memory: dict[str, int] = {}
    compute: dict[str, int] = {}
    for one, (uuid, kind) in zip(results, found, strict=True):
        host = gpus[uuid]
        size, percent = {
            "whole": (host.memory, CORE_UNITS),
            "shared": (host.memory // shares, 0),
        }.get(kind) or (
            amount_of(MEMORY, one.consumed_capacity) or 0,
            amount_of(COMPUTE, one.consumed_capacity) or 0,
        )
        memory[uuid] = memory.get(uuid, 0) + size
        compute[uuid] = compute.get(uuid, 0) + percent
    if len(set(compute.values())) > 1:
        raise InvalidClaimError(
            "it has different shares of compute on its GPUs",
            "Write a claim for each share, or ask for different GPUs: a constraint with"
            f" distinctAttribute: {DRIVER}/uuid.",
        )
    if any(size <= 0 or size > gpus[uuid].memory for uuid, size in memory.items()):
        raise InvalidClaimError("it has no memory, or more than its GPU has")
    return memory, min(CORE_UNITS, max(compute.values()))


def _settings(
    claim: ResourceClaim,
    results: list[DeviceResult],
    kind: Kind,
    memory: tuple[int, ...],
    compute: int,
) -> SliceSettings:
    allocation = claim.status.allocation
    assert allocation is not None  # noqa: S101 - it has results
    config = allocation.devices.config
    given = {parameters_of(one.request, config) for one in results}
    if len(given) > 1:
        raise InvalidClaimError(
            "its requests have different parameters, and a claim has one grant",
            "Write a claim for each.",
        )
    (parameters,) = given or {Parameters()}
    policy = parameters.policy or Policy.ELASTIC
    if policy is Policy.HARD and not compute:
        raise InvalidClaimError(
            f"it has the policy hard and no share of compute to enforce (its GPUs are {kind})",
            "Ask for an amount of compute, or leave the policy out.",
        )
    return SliceSettings(memory, compute, policy, parameters.priority or Priority.NORMAL)
