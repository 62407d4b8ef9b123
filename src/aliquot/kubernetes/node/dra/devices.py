"""The node's GPUs as devices of ResourceSlices. Pure.

Each GPU is one whole device, one shared device for each share, and one sliceable device that many
claims can have a part of. A counter of the GPU makes the three kinds exclude each other: it has as
many parts as the GPU has shares. A shared device takes one, the others take all, and the sliceable
device takes them once, however many claims have a part of it.

Names have the GPU's UUID, because a claim outlives a reboot, and the driver may number its GPUs
anew. All devices of a node are one pool of the node's name. Its counters are in slices of their
own, as Kubernetes asks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aliquot.kubernetes.api.dra import DRIVER
from aliquot.kubernetes.api.dra_devices import (
    COMPUTE,
    MEMORY,
    Version,
    attributes_of,
    device_memory,
    device_name,
    link_groups,
)
from aliquot.kubernetes.api.names import CORE_UNITS, GROUP, MEMORY_UNIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aliquot.devices.device_location import DeviceLocation
    from aliquot.kubernetes.api.plan import Kind
    from aliquot.kubernetes.node.grants.allocations import HostGpu
    from aliquot.model import Gpu

Json = dict[str, Any]

# Taints: no new claim gets a device that has one. Claims that have it keep it.
UNHEALTHY = f"{GROUP}/unhealthy"
UNAVAILABLE = f"{GROUP}/unavailable"  # the agent can make no grants now
OCCUPIED = f"{GROUP}/occupied"  # by containers that got the GPU without a claim
SCHEDULED = f"{GROUP}/scheduled"  # by Aliquot's scheduler, and by no other

MOST_DEVICES = 64  # of a slice whose devices take counters
MOST_COUNTER_SETS = 8  # of a slice
_PARTS = "parts"


@dataclass(frozen=True, slots=True)
class DeviceGpu:
    """A GPU, what the driver said of it if it is there, and the keys of its taints."""

    host: HostGpu
    gpu: Gpu | None = None
    location: DeviceLocation | None = None
    taints: tuple[str, ...] = ()


def specs_of(
    node: str, gpus: Sequence[DeviceGpu], shares: int, driver_version: str = ""
) -> list[Json]:
    """The specs of the node's ResourceSlices, without the generation of their pool."""
    groups = _link_groups(gpus)
    devices = [
        device
        for one in gpus
        for device in _devices(one, shares, groups.get(one.host.index), driver_version)
    ]
    sets = [_counter_set(one.host.uuid, shares) for one in gpus]
    parts: list[Json] = [
        *({"sharedCounters": some} for some in _chunks(sets, MOST_COUNTER_SETS)),
        *({"devices": some} for some in _chunks(devices, MOST_DEVICES)),
    ]
    pool = {"name": node, "resourceSliceCount": len(parts)}
    return [{"driver": DRIVER, "nodeName": node, "pool": pool, **part} for part in parts]


def digest_of(spec: Json) -> str:
    """A text that differs for slices that differ, by which a written one is recognized."""
    text = json.dumps(spec, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:32]


def _chunks(every: list[Json], most: int) -> Iterator[list[Json]]:
    for at in range(0, len(every), most):
        yield every[at : at + most]


def _counter_set(uuid: str, shares: int) -> Json:
    return {"name": uuid.lower(), "counters": {_PARTS: {"value": str(shares)}}}


def _devices(one: DeviceGpu, shares: int, group: int | None, driver_version: str) -> Iterator[Json]:
    memory = one.host.memory
    common = _attributes(one, group, driver_version)
    yield _device(one, "whole", 0, common, {MEMORY: _amount(memory)}, shares)
    for number in range(shares):
        capacity = {MEMORY: _amount(device_memory("shared", memory, shares))}
        yield _device(one, "shared", number, common, capacity, 1)
    size = device_memory("sliced", memory, shares)
    if size < 2 * MEMORY_UNIT:  # a step and a least amount must fit
        return
    whole = str(size)
    step = str(MEMORY_UNIT)
    capacity = {
        MEMORY: {
            "value": whole,
            "requestPolicy": {"default": whole, "validRange": {"min": step, "step": step}},
        },
        COMPUTE: {
            "value": str(CORE_UNITS),
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}},
        },
    }
    sliced = _device(one, "sliced", 0, common, capacity, shares)
    yield {**sliced, "allowMultipleAllocations": True}


def _device(  # noqa: PLR0913, PLR0917 - what a device has
    one: DeviceGpu, kind: Kind, number: int, common: Json, capacity: Json, parts: int
) -> Json:
    uuid = one.host.uuid
    device: Json = {
        "name": device_name(uuid, kind, number),
        "attributes": {"kind": {"string": kind}, **common},
        "capacity": capacity,
        "consumesCounters": [
            {"counterSet": uuid.lower(), "counters": {_PARTS: {"value": str(parts)}}}
        ],
    }
    if one.taints:
        device["taints"] = [{"key": key, "effect": "NoSchedule"} for key in one.taints]
    return device


def _amount(value: int) -> Json:
    return {"value": str(value)}


def _attributes(one: DeviceGpu, group: int | None, driver_version: str) -> Json:
    """What claims can select by, in the API's form."""
    gpu, location = one.gpu, one.location
    found = attributes_of(
        one.host.uuid,
        one.host.index,
        model=gpu.model if gpu else "",
        strength=gpu.strength or 0.0 if gpu else 0.0,
        neighbours=group,
        numa=location.numa if location else None,
        driver_version=driver_version,
    )
    return {name: _typed(value) for name, value in found.items()}


def _typed(value: str | int | Version) -> Json:
    if isinstance(value, Version):
        return {"version": str(value)}
    return {"string": value} if isinstance(value, str) else {"int": value}


def _link_groups(gpus: Sequence[DeviceGpu]) -> Mapping[int, int]:
    return link_groups(
        {
            one.host.index: [(link.index, link.kind) for link in (one.gpu.links if one.gpu else ())]
            for one in gpus
        }
    )
