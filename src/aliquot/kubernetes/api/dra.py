"""The objects of dynamic resource allocation (DRA), with the fields that Aliquot uses.

A driver publishes a node's devices in ResourceSlices. A ResourceClaim asks for some; what it got is
in its status, where the driver adds what it made of that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.kubernetes.api.names import GROUP
from aliquot.kubernetes.api.objects import Meta, Quantity, Resource

DRIVER = GROUP  # our driver's name, and the domain of its attributes and capacities
API_VERSION = "resource.k8s.io/v1"


class Consumer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object that may use a claim: a pod, if `resource` is `pods` and `api_group` is empty."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""


class DeviceResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device that a claim got for one of its requests, and how much of it.

    `share_id` and `consumed_capacity` belong to devices that several claims share.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    admin_access: bool = False
    consumed_capacity: dict[str, Quantity] = {}


class OpaqueConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters for one driver, as somebody wrote them."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class AllocationConfig(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Parameters for some requests, or all: of the class first, then of the claim."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfig | None = None


class AllocatedDevices(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The devices that a claim got, of all drivers."""

    results: tuple[DeviceResult, ...] = ()
    config: tuple[AllocationConfig, ...] = ()


class Allocation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a claim got."""

    devices: AllocatedDevices = AllocatedDevices()


class DeviceCondition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition of a device that a claim got."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str


class DeviceStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a driver says about a device that a claim got."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    conditions: tuple[DeviceCondition, ...] = ()
    data: dict[str, Any] | None = None


class ResourceClaimStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a claim got, who may use it, and what its drivers say."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ResourceClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A claim; only its status is read."""

    metadata: Meta = Meta()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceSlice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Some devices of a node, as the driver wrote them (`node.dra.devices`)."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = {}


RESOURCE_CLAIMS = Resource(ResourceClaim, API_VERSION, "ResourceClaim", "resourceclaims")
RESOURCE_SLICES = Resource(
    ResourceSlice, API_VERSION, "ResourceSlice", "resourceslices", namespaced=False
)
