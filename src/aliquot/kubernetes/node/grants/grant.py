"""A container's grant as the node's agent records it, in memory and in the checkpoint."""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.plan import Kind  # noqa: TC001 - msgspec reads it
from aliquot.kubernetes.node.pods import ContainerRef  # noqa: TC001 - msgspec reads it
from aliquot.model import Policy, Priority


class GpuAllocation(msgspec.Struct, frozen=True):
    """What a grant is allocated on one GPU: bytes of memory, percent of compute reserved for it."""

    gpu: str
    memory: int
    reserved: int = 0


class SliceSettings(msgspec.Struct, frozen=True):
    """What a grant's slices have. `memory`: bytes on each GPU, in the order of `allocated`."""

    memory: tuple[int, ...]
    compute: int = 0
    policy: Policy = Policy.ELASTIC
    priority: Priority = Priority.NORMAL


class ResourceClaimDevice(msgspec.Struct, frozen=True):
    """A device that a resource claim got: for which request, and on which GPU it is."""

    request: str
    pool: str
    device: str
    gpu: str
    share_id: str | None = None


class ResourceClaimRef(msgspec.Struct, frozen=True):
    """The resource claim that a grant was made for, and when; `pods`: UIDs of those that use it."""

    uid: str
    namespace: str
    name: str
    made: float = 0.0
    pods: tuple[str, ...] = ()
    devices: tuple[ResourceClaimDevice, ...] = ()


class ContainerGrant(msgspec.Struct, frozen=True):
    """What one container has been given.

    `name` is the grant's name in the arbiter. `requested` is what the container asked for, and
    `current` what it has since the last resize. `allocated` is what counts against the GPUs: the
    larger of both.

    `owner` is the likeliest container until the kubelet or a process of the pod tells which one it
    is; then the grant is `confirmed`.

    `device_ids` are the kubelet's device ids by resource, and `carrier` is the resource whose
    Allocate response carried the mounts; both are empty for a grant that came without a device
    plugin. `reuses` names the grants of init containers whose ids the kubelet reused for this
    container. `merged`: an init container with exactly the same ids has this grant too. `cdi`: the
    container was told CDI devices, and not mounts. `minors` are the numbers of its GPUs' device
    nodes when it was made, sorted; None: an older agent made it, which did not record them.
    `copier` are bytes of its memory that its slice lacks so that its memory can leave the GPU
    (`swap`); 0: it cannot. `overcommit`: it may take turns with memory, and all slices of its GPU
    have at most so many times the GPU's memory then (0: as the node says); None: it has what no
    other slice has. `capabilities` are those of the driver's files that its container gets,
    as its pod says; None: all.

    A grant with a `claim` is that of a resource claim, for all containers that name it. Its owner
    is one of their pods. It ends when the kubelet or the API server says so, and not with that pod.
    """

    name: str
    owner: ContainerRef
    kind: Kind
    allocated: tuple[GpuAllocation, ...]
    requested: SliceSettings
    current: SliceSettings
    device_ids: dict[str, tuple[str, ...]]
    carrier: str
    reuses: tuple[str, ...] = ()
    merged: bool = False
    confirmed: bool = False
    cdi: bool = False
    minors: tuple[int, ...] | None = None
    copier: int = 0
    overcommit: float | None = None
    claim: ResourceClaimRef | None = None
    capabilities: tuple[str, ...] | None = None

    def has(self, resource: str, ids: tuple[str, ...]) -> bool:
        """Whether it was given for exactly these ids, which are sorted."""
        return self.device_ids.get(resource) == ids
