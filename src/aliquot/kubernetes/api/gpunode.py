"""What a node tells the cluster of its GPUs: the `GPUNode` object, one for each node.

The agent alone writes it, on change and at most once a second. `status` is all there is: nobody
asks anything of a node by it. A pod that is in `grants` of a GPU holds a part of it, whatever
became of its object; the scheduler counts a bound pod that no `GPUNode` names from its plan.
"""

from __future__ import annotations

import msgspec

from aliquot.kubernetes.api.names import GROUP, VERSION
from aliquot.kubernetes.api.plan import Kind  # noqa: TC001 - msgspec reads it at run time

API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "gpunodes"


class HeldPart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container's part of a GPU. `memory` in bytes, `compute` in percent (0: an equal part)."""

    pod_uid: str = msgspec.field(name="podUID")
    namespace: str
    pod: str
    container: str
    memory: int
    compute: int = 0
    policy: str = "elastic"
    priority: str = "normal"


class NodeLink(msgspec.Struct, frozen=True, rename="camel"):
    """How a GPU reaches another: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`."""

    gpu: int
    kind: str


class NodeGpu(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One GPU. `kind` is what it is locked to while somebody holds it."""

    index: int
    uuid: str
    model: str
    memory: int  # bytes
    healthy: bool = True
    why: str = ""  # not healthy
    numa: int | None = None
    links: tuple[NodeLink, ...] = ()
    kind: Kind | None = None
    grants: tuple[HeldPart, ...] = ()


class GpuNodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """All of it. `shares`: how many containers share a shared GPU (k)."""

    driver_version: str = ""
    shares: int = 2
    gpus: tuple[NodeGpu, ...] = ()
