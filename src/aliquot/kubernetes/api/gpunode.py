"""The `GPUNode` object: the GPUs of a node and their grants, one object for each node.

Only the node's agent writes its `status`, on change and at most once a second, and once a minute
without a change, so that `reported` says whether the agent lives. A pod in the `grants` of a GPU
uses a part of it, even if its Pod object is gone. The scheduler counts a bound pod that no GPUNode
reports by its plan.

Only the scheduler writes its `spec`, and only if agents read their pods there (`node_pods`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.api.names import GROUP, VERSION
from aliquot.kubernetes.api.plan import Kind  # noqa: TC001 - msgspec reads it at run time

if TYPE_CHECKING:
    from collections.abc import Sequence

API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "gpunodes"
GIB = 1 << 30
BY_KUBE_SCHEDULER, BY_ALIQUOT = "kube-scheduler", "aliquot"  # who allocates to resource claims
_KINDS = ("whole", "shared", "sliced", "unhealthy")


class NodeGrant(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A container's grant on a GPU: `memory` in bytes, `compute` in percent (0: an equal part).

    `busy` is the share of the GPU's time that it used in a recent minute, in eighths; 0 also if
    that is not known.
    `overcommit`: it takes turns with memory, and all slices of its GPU may have so many times the
    GPU's memory meanwhile (0: as its node says); None: it takes none. `fixed` bytes of its memory
    cannot leave the GPU, and `away` are on the host.
    The grant of a resource claim has its name and UID, no container, and one of its pods.
    """

    pod_uid: str = msgspec.field(name="podUID")
    namespace: str
    pod: str
    container: str
    memory: int
    compute: int = 0
    policy: str = "elastic"
    priority: str = "normal"
    claim: str = ""
    claim_uid: str = msgspec.field(name="claimUID", default="")
    busy: int = 0
    overcommit: float | None = None
    fixed: int = 0
    away: int = 0


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
    strength: float = 0.0  # see `model.strength`


class NodeSummary(msgspec.Struct, frozen=True, rename="camel"):
    """The GPUs of a node in numbers, for people: `free` are healthy GPUs that nobody uses.

    `swapped` is what has left the GPUs for the host; empty if that is nothing.
    """

    gpus: int
    free: int
    used: str
    kinds: str
    swapped: str = ""


class OverCommit(msgspec.Struct, frozen=True, rename="camel"):
    """How much more than a GPU has its slices may have that take turns with its memory.

    All slices of a GPU may have `factor` times its memory together. The host has `host_memory`
    bytes for what leaves, of which `set_aside` are for something else. Each slice leaves at least
    `stays` bytes on its GPU. All of it is what the node's arbiter says and holds.
    """

    factor: float
    host_memory: int = 0
    set_aside: int = 0
    stays: int = 0


class GpuNodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Which pods the scheduler has written for the node's agent; empty: none were ever written."""

    pods_digest: str = ""


class GpuNodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The GPUs of a node. `shares`: how many containers share a shared GPU.

    `injection` is how containers get them: `cdi` or `mounts`. `problem` is why the agent can give
    none of them now. `reported` is when the agent last wrote. `allocator` is who allocates the GPUs
    to resource claims: `kube-scheduler` or `aliquot`; empty: pods ask for them by resources.
    `overcommit` is None where slices have no more together than their GPU.
    """

    driver_version: str = ""
    injection: str = ""
    shares: int = 2
    allocator: str = ""
    problem: str = ""
    reported: str | None = None
    summary: NodeSummary | None = None
    gpus: tuple[NodeGpu, ...] = ()
    overcommit: OverCommit | None = None


def says_the_same(before: GpuNodeStatus, now: GpuNodeStatus) -> bool:
    """Whether two reports differ in nothing but their time."""
    return msgspec.structs.replace(before, reported=now.reported) == now


def says_the_same_but_for_use(before: GpuNodeStatus, now: GpuNodeStatus) -> bool:
    """Whether two reports also differ in nothing but how busy GPUs are, and what is on the host."""
    return says_the_same(_without_use(before), _without_use(now))


def _without_use(status: GpuNodeStatus) -> GpuNodeStatus:
    replace = msgspec.structs.replace
    gpus = (
        replace(gpu, grants=tuple(replace(one, busy=0, away=0) for one in gpu.grants))
        for gpu in status.gpus
    )
    summary = status.summary and replace(status.summary, swapped="")
    return replace(status, gpus=tuple(gpus), summary=summary)


def summary_of(gpus: Sequence[NodeGpu]) -> NodeSummary:
    """The summary of a node's GPUs."""
    counts = Counter("unhealthy" if not one.healthy else one.kind or "free" for one in gpus)
    used = sum(min(one.memory, sum(grant.memory for grant in one.grants)) for one in gpus)
    every = sum(one.memory for one in gpus)
    away = sum(grant.away for one in gpus for grant in one.grants)
    return NodeSummary(
        gpus=len(gpus),
        free=counts.pop("free", 0),
        used=f"{round(used / GIB)}/{round(every / GIB)} GiB",
        kinds=", ".join(f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind]),
        swapped=f"{away / GIB:.1f} GiB" if away else "",
    )
