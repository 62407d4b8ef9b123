"""A node's GPUs and who has what of them, as a row of the books. Pure.

What a `GPUNode` names is held, whatever became of the pod. What a container has by its plan counts
until its node's `GPUNode` names it. Of the containers of one pod those count that run together: an
init container has ended when the ones after it begin, so of both the larger counts.

CPU and memory of nodes are kube-scheduler's business: here every node has more than enough.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from aliquot.kubernetes.scheduler.parts import Part
from aliquot.model import Priority
from aliquot.placement.books import NodeLeft
from aliquot.placement.demand import WHOLE_MILLI, Kind
from aliquot.placement.links import rank
from aliquot.placement.snapshot import NodeSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes import plan
    from aliquot.kubernetes.api.objects import GpuNode
    from aliquot.kubernetes.gpunode import GpuNodeStatus, NodeGpu
    from aliquot.kubernetes.scheduler.parts import Parts
    from aliquot.placement.links import Links

ENOUGH = 1 << 40

KINDS: dict[plan.Kind, Kind] = {
    "whole": Kind.WHOLE,
    "shared": Kind.SHARED,
    "sliced": Kind.SLICED,
}
PLANS = 1 << 14  # whose use is kept
MIXED = " + "  # between the models of a node that has several


@dataclass(frozen=True, slots=True)
class Use:
    """What is used of one GPU."""

    milli: int = 0
    bytes: int = 0
    holders: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(self.milli + other.milli, self.bytes + other.bytes, self.holders + other.holders)

    def most(self, other: Use) -> Use:
        """The larger of both, each figure for itself."""
        return Use(
            max(self.milli, other.milli),
            max(self.bytes, other.bytes),
            max(self.holders, other.holders),
        )


NOTHING = Use()


@dataclass(frozen=True, slots=True)
class Holding:
    """What a pod uses of one GPU, and what as."""

    kind: Kind
    use: Use


def spec_of(node: GpuNode, strength: float = 0.0) -> NodeSpec:
    """The node before anything runs on it. Where its GPUs differ, the smallest counts for all."""
    gpus = node.status.gpus
    return NodeSpec(
        name=node.metadata.name,
        gpus=len(gpus),
        model=MIXED.join(sorted({one.model for one in gpus})),
        cpu_milli=ENOUGH,
        ram_bytes=ENOUGH,
        gpu_bytes=min((one.memory for one in gpus), default=0),
        links=_links(gpus),
        strength=strength,
        unhealthy=frozenset(column for column, one in enumerate(gpus) if not one.healthy),
    )


def left_of(
    status: GpuNodeStatus,
    planned: Mapping[str, Parts],
    *,
    most_holders: int | None = None,
    without: Collection[str] = (),
) -> NodeLeft:
    """What is left of each GPU, given what pods have by their plans, by UID.

    A GPU that so many hold as `most_holders` says has no room for another. What the pods `without`
    have does not count.
    """
    named = named_parts(status)
    uses: dict[str, Use] = defaultdict(Use)
    kinds: dict[str, plan.Kind] = {}
    for uid in sorted({*named, *planned}.difference(without)):
        for uuid, kind, use in _held(named.get(uid), planned.get(uid, ()), status.shares):
            kinds[uuid] = kind
            uses[uuid] += use
    for gpu in status.gpus:
        if gpu.kind is not None and uses[gpu.uuid].holders:
            kinds[gpu.uuid] = gpu.kind
    left = [_left(gpu, uses[gpu.uuid], kinds, most_holders) for gpu in status.gpus]
    return NodeLeft(
        milli=tuple(one[0] for one in left),
        bytes=tuple(one[1] for one in left),
        kind=tuple(one[2] for one in left),
        holders=tuple(one[3] for one in left),
    )


def held_of(status: GpuNodeStatus, planned: Mapping[str, Parts]) -> dict[str, dict[int, Holding]]:
    """What each pod uses of each GPU, as `left_of` counts it; by UID and column."""
    named = named_parts(status)
    columns = {gpu.uuid: column for column, gpu in enumerate(status.gpus)}
    found: dict[str, dict[int, Holding]] = {}
    for uid in {*named, *planned}:
        found[uid] = {
            columns[uuid]: Holding(KINDS[kind], use)
            for uuid, kind, use in _held(named.get(uid), planned.get(uid, ()), status.shares)
            if uuid in columns
        }
    return found


def named_parts(status: GpuNodeStatus) -> dict[str, dict[str, list[Part]]]:
    """What the node says is held: by the pod's UID and the container, a part for each GPU."""
    found: dict[str, dict[str, list[Part]]] = {}
    for gpu in status.gpus:
        for held in gpu.grants:
            background = held.priority == Priority.BACKGROUND
            part = Part(
                container=held.container,
                kind=gpu.kind or "sliced",
                gpus=(gpu.uuid,),
                memory=held.memory,
                compute=held.compute,
                reserved=0 if background else held.compute,
            )
            of_pod = found.setdefault(held.pod_uid, {})
            of_pod.setdefault(held.container, []).append(part)
    return found


def _held(
    named: Mapping[str, list[Part]] | None, planned: Parts, shares: int
) -> tuple[tuple[str, plan.Kind, Use], ...]:
    """What a pod has of each GPU: what it is locked to, and what is used of it."""
    if named is None:
        return _planned(planned, shares)
    return _counted(tuple(_in_order(named, planned)), shares)


@lru_cache(maxsize=PLANS)
def _planned(parts: Parts, shares: int) -> tuple[tuple[str, plan.Kind, Use], ...]:
    """The same of a pod that its node does not name yet: asked for again and again until then."""
    return _counted(parts, shares)


def _counted(parts: Parts, shares: int) -> tuple[tuple[str, plan.Kind, Use], ...]:
    kinds = {gpu: one.kind for one in parts for gpu in one.gpus}
    return tuple((gpu, kinds[gpu], use) for gpu, use in _uses(parts, shares).items())


def _in_order(named: Mapping[str, list[Part]], planned: Parts) -> Iterable[Part]:
    """All parts of a pod as its containers start: those named as the node says, else as planned.

    A container that the plan does not know runs beside all others.
    """
    known = {one.container for one in planned}
    for container, parts in named.items():
        if container not in known:
            yield from parts
    for one in planned:
        if one.container not in named:
            yield one
            continue
        for part in named[one.container]:
            yield replace(part, init=True) if one.init else part


def _uses(parts: Iterable[Part], shares: int) -> dict[str, Use]:
    """What a pod uses of each GPU at most."""
    beside: dict[str, Use] = {}
    most: dict[str, Use] = {}
    for one in parts:
        use = Use(milli_of(one.kind, one.reserved, shares), one.memory, 1)
        for gpu in one.gpus:
            now = beside.get(gpu, NOTHING) + use
            most[gpu] = most.get(gpu, NOTHING).most(now)
            if not one.init:
                beside[gpu] = now
    return most


def milli_of(kind: plan.Kind, reserved: int, shares: int) -> int:
    """Thousandths of a GPU that a part of this kind takes."""
    if kind == "whole":
        return WHOLE_MILLI
    return WHOLE_MILLI // shares if kind == "shared" else 10 * reserved


def _left(
    gpu: NodeGpu, use: Use, kinds: Mapping[str, plan.Kind], most_holders: int | None
) -> tuple[int, int, Kind, int]:
    kind = KINDS[kinds[gpu.uuid]] if gpu.uuid in kinds else Kind.FREE
    if kind is Kind.WHOLE or (most_holders is not None and use.holders >= most_holders):
        return 0, 0, kind, use.holders
    return max(0, WHOLE_MILLI - use.milli), max(0, gpu.memory - use.bytes), kind, use.holders


def _links(gpus: Iterable[NodeGpu]) -> Links:
    """The ranks of the ways between all pairs; nothing where no GPU says any."""
    every = tuple(gpus)
    if not any(one.links for one in every):
        return ()
    columns = {one.index: column for column, one in enumerate(every)}
    table = [[0] * len(every) for _ in every]
    for column, one in enumerate(every):
        for link in one.links:
            if link.gpu in columns:
                table[column][columns[link.gpu]] = rank(link.kind)
    return tuple(tuple(row) for row in table)
