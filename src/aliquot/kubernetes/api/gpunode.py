"""The `GPUNode` object: the GPUs of a node and their grants, one object for each node.

Only the node's agent writes it, on change and at most once a second. It has a `status` and no
`spec`. A pod in the `grants` of a GPU uses a part of it, even if its Pod object is gone. The
scheduler counts a bound pod that no GPUNode reports by its plan.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.names import GROUP, VERSION
from aliquot.kubernetes.api.plan import Kind  # noqa: TC001 - msgspec reads it at run time

API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "gpunodes"


class NodeGrant(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container's grant on a GPU: `memory` in bytes, `compute` in percent (0: an equal part)."""

    pod_uid: str = msgspec.field(name="podUID")
    namespace: str
    pod: str
    container: str
    memory: int
    compute: int = 0
    policy: str = "elastic"
    priority: str = "normal"


class NodeLink(msgspec.Struct, frozen=True, rename="camel"):
    """The link to another GPU: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`."""

    gpu: int
    kind: str


class NodeGpu(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One GPU. `kind` is how it is used while it has grants."""

    index: int
    uuid: str
    model: str
    memory: int  # bytes
    healthy: bool = True
    why: str = ""  # it is unhealthy
    numa: int | None = None
    links: tuple[NodeLink, ...] = ()
    kind: Kind | None = None
    grants: tuple[NodeGrant, ...] = ()


class GpuNodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The GPUs of a node. `shares`: how many containers share a shared GPU."""

    driver_version: str = ""
    shares: int = 2
    gpus: tuple[NodeGpu, ...] = ()
