"""The objects of dynamic resource allocation (DRA), with the fields that Aliquot uses.

A driver publishes a node's devices in ResourceSlices. A ResourceClaim asks for some, by the names
of DeviceClasses; what it got is in its status, where the driver adds what it made of that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aliquot.kubernetes.api.names import GROUP
from aliquot.kubernetes.api.objects import Meta, NodeTerms, Quantity, Resource, Toleration

DRIVER = GROUP  # our driver's name, and the domain of its attributes and capacities
API_VERSION = "resource.k8s.io/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"  # of claims that are allocated


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
    """What a claim got, the nodes that have it, and when."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeTerms | None = None
    allocation_timestamp: str | None = None


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


class CelSelector(msgspec.Struct, frozen=True, omit_defaults=True):
    """An expression about a device, in the Common Expression Language."""

    expression: str = ""


class DeviceSelector(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a device must fulfil."""

    cel: CelSelector | None = None


class CapacityRequests(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much of each capacity a request asks for."""

    requests: dict[str, Quantity] = {}


class ExactRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A number of devices of one class, which all fulfil the same."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequests | None = None


class DeviceRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A request of a claim: exactly this, or the first of several that is possible."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[msgspec.Raw, ...] = ()


class DeviceConstraint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An attribute that the devices of these requests, or of all, have in common or do not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class RequestedDevices(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[AllocationConfig, ...] = ()


class ResourceClaimSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The spec of a claim, which never changes."""

    devices: RequestedDevices = RequestedDevices()


class ResourceClaim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A claim."""

    metadata: Meta = Meta()
    status: ResourceClaimStatus = ResourceClaimStatus()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class DeviceClassSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all devices of a class fulfil, and parameters for them."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[AllocationConfig, ...] = ()


class DeviceClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class of devices, which requests name."""

    metadata: Meta = Meta()
    spec: DeviceClassSpec = DeviceClassSpec()


class ResourceSlice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Some devices of a node, as the driver wrote them (`node.dra.devices`)."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = {}


RESOURCE_CLAIMS = Resource(ResourceClaim, API_VERSION, "ResourceClaim", "resourceclaims")
DEVICE_CLASSES = Resource(
    DeviceClass, API_VERSION, "DeviceClass", "deviceclasses", namespaced=False
)
RESOURCE_SLICES = Resource(
    ResourceSlice, API_VERSION, "ResourceSlice", "resourceslices", namespaced=False
)
