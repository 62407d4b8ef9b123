"""Who has what of one node's GPUs, and what is left of them; kept up to date pod by pod. Pure.

What a `GPUNode` names is held, whatever became of the pod. What a container has by its plan counts
until its node's `GPUNode` names it. Of the containers of one pod those count that run together: an
init container has ended when the ones after it begin, so of both the larger counts.

A pod that comes or leaves costs the same, however many are there; what is left is at any time what
it would be if all were counted anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.hardware import KINDS, milli_of
from aliquot.kubernetes.cluster.parts import Part
from aliquot.model import Priority
from aliquot.placement.core.allocations import NodeFree
from aliquot.placement.core.demand import WHOLE_MILLI, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from aliquot.kubernetes.api import plan
    from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu
    from aliquot.kubernetes.cluster.parts import Parts


@dataclass(frozen=True, slots=True)
class Use:
    """What is used of one GPU."""

    milli: int = 0
    bytes: int = 0
    holders: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(self.milli + other.milli, self.bytes + other.bytes, self.holders + other.holders)

    def __sub__(self, other: Use) -> Use:
        return Use(self.milli - other.milli, self.bytes - other.bytes, self.holders - other.holders)

    def most(self, other: Use) -> Use:
        """The larger of both, each figure for itself."""
        return Use(
            max(self.milli, other.milli),
            max(self.bytes, other.bytes),
            max(self.holders, other.holders),
        )


NOTHING = Use()


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """What a pod uses of one GPU, and what as."""

    kind: Kind
    use: Use


_Held = tuple[tuple[str, "plan.Kind", Use], ...]  # of one pod: GPU, what it is locked to, and use
_Uses = dict[str, dict["plan.Kind", Use]]  # of each GPU


class NodeUsage:
    """What a node names, and what pods have there by their plans, by UID."""

    def __init__(self, status: GpuNodeStatus, planned: Mapping[str, Parts]) -> None:
        self._status = status
        self._named = _named_parts(status)
        self._planned: dict[str, Parts] = dict(planned)
        self._held: dict[str, _Held] = {}
        self._uses: _Uses = {}
        for uid in {*self._named, *planned}:
            self._count(uid)

    def come(self, uid: str, parts: Parts) -> None:
        """A pod has this by its plan."""
        self._planned[uid] = parts
        self._count(uid)

    def leave(self, uid: str) -> None:
        """A pod has nothing by a plan any more."""
        self._planned.pop(uid, None)
        self._count(uid)

    def left(self, *, most_holders: int | None = None, without: Collection[str] = ()) -> NodeFree:
        """What is left of each GPU.

        One that so many hold as `most_holders` says has no room for another. What the pods
        `without` have does not count.
        """
        uses = self._uses
        if without:
            uses = {gpu: dict(kinds) for gpu, kinds in uses.items()}
            for uid in without:
                _subtract(uses, self._held.get(uid, ()))
        left = [_left(gpu, uses.get(gpu.uuid, {}), most_holders) for gpu in self._status.gpus]
        milli, sizes, kinds, holders = zip(*left, strict=True) if left else ((), (), (), ())
        return NodeFree(milli, sizes, kinds, holders)

    def held(self) -> dict[str, dict[int, GpuUsage]]:
        """What each pod uses of each GPU, by UID and column."""
        columns = {gpu.uuid: column for column, gpu in enumerate(self._status.gpus)}
        return {
            uid: {
                columns[uuid]: GpuUsage(KINDS[kind], use)
                for uuid, kind, use in held
                if uuid in columns
            }
            for uid, held in self._held.items()
        }

    def unnamed(self) -> Iterator[tuple[str, Parts]]:
        """Pods with plans of which the node does not name all containers, with those."""
        for uid, parts in self._planned.items():
            named = self._named.get(uid)
            missing = parts if named is None else _to_come(named, parts)
            if missing:
                yield uid, missing

    def _count(self, uid: str) -> None:
        """Count anew what a pod has."""
        _subtract(self._uses, self._held.pop(uid, ()))
        planned = self._planned.get(uid, ())
        named = self._named.get(uid)
        parts = planned if named is None else tuple(_in_order(named, planned))
        if not parts:
            return
        held = self._held[uid] = _counted(parts, self._status.shares)
        for gpu, kind, use in held:
            kinds = self._uses.setdefault(gpu, {})
            kinds[kind] = kinds[kind] + use if kind in kinds else use


def _subtract(uses: _Uses, held: _Held) -> None:
    for gpu, kind, use in held:
        kinds = uses[gpu]
        rest = kinds[kind] - use
        if rest.holders:
            kinds[kind] = rest
        else:
            del kinds[kind]


def _named_parts(status: GpuNodeStatus) -> dict[str, dict[str, list[Part]]]:
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


def _counted(parts: Parts, shares: int) -> _Held:
    """What a pod has of each GPU."""
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
        for part in named.get(one.container, ()):
            yield replace(part, init=True) if one.init else part
    yield from _to_come(named, planned)


def _to_come(named: Mapping[str, list[Part]], planned: Parts) -> Parts:
    """The parts that the node has still to name.

    The kubelet asks for one container after the other. One before the last that is named was asked
    for too: an init container whose devices another has taken over is named by that one alone.
    """
    done = max((n for n, one in enumerate(planned, 1) if one.container in named), default=0)
    return planned[done:]


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


def _left(
    gpu: NodeGpu, kinds: Mapping[plan.Kind, Use], most_holders: int | None
) -> tuple[int, int, Kind, int]:
    if not kinds:
        return WHOLE_MILLI, gpu.memory, Kind.FREE, 0
    kind = KINDS[gpu.kind or max(kinds)]  # a whole one before others, were they mixed
    use = sum(kinds.values(), NOTHING)
    if kind is Kind.WHOLE or (most_holders is not None and use.holders >= most_holders):
        return 0, 0, kind, use.holders
    return max(0, WHOLE_MILLI - use.milli), max(0, gpu.memory - use.bytes), kind, use.holders
