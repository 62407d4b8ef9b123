"""What pods use of one node's GPUs, and what is free; updated pod by pod. Pure.

What a GPUNode reports is used, even if the pod is gone. What a container has by its plan counts
until its GPUNode reports that container. Of the containers of one pod, those that run at the same
time are added up: an init container has ended when the containers after it start, so the larger of
both counts. A GPU with a pod that is alone is used as a whole one.

Adding or removing a pod costs the same, however many pods there are. The result always equals a
full recount.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.plan import MOST_OVERCOMMIT, possible_overcommit
from aliquot.kubernetes.cluster.hardware import KINDS, milli_of
from aliquot.kubernetes.cluster.parts import Part
from aliquot.model import Priority
from aliquot.model.compute import BUSY_STEPS
from aliquot.placement.core.allocations import NodeFree
from aliquot.placement.core.demand import WHOLE_MILLI, Kind
from aliquot.placement.core.overcommit import COPIES, FIXED_BYTES, TurnSlice
from aliquot.placement.core.turns import NodeTurns, Swap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from aliquot.kubernetes.api import plan
    from aliquot.kubernetes.api.gpunode import GpuNodeStatus, NodeGpu
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.placement.core.wishes import Mark


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
    """What a pod uses of one GPU, as which kind, and what it leaves there for others to see.

    `swap`: its slice takes turns with memory.
    """

    kind: Kind
    use: Use
    mark: Mark | None = None
    swap: Swap | None = None


_PodUses = tuple[tuple[str, "plan.Kind", Use], ...]  # of one pod: GPU, its kind, and use
_Swaps = dict[str, Swap]  # of one pod, by GPU
_Uses = dict[str, dict["plan.Kind", Use]]  # of each GPU


class NodeUsage:
    """What a GPUNode reports, and what pods have there by their plans, by UID."""

    def __init__(self, status: GpuNodeStatus, planned: Mapping[str, Parts]) -> None:
        self._status = status
        self._reported = _reported_parts(status)
        self._planned: dict[str, Parts] = dict(planned)
        self._by_pod: dict[str, _PodUses] = {}
        self._uses: _Uses = {}
        self._marks: dict[str, Mark] = {}
        self._swaps: dict[str, _Swaps] = {}
        self._turns = _turns_of(status)
        for uid in {*self._reported, *planned}:
            self._count(uid)

    def add(self, uid: str, parts: Parts) -> None:
        """Count a pod by its plan."""
        self._planned[uid] = parts
        self._count(uid)

    def remove(self, uid: str) -> None:
        """Count a pod no longer by a plan."""
        self._planned.pop(uid, None)
        self._count(uid)

    def free(self, *, most_holders: int | None = None, without: Collection[str] = ()) -> NodeFree:
        """What is free on each GPU.

        A GPU that `most_holders` containers use is full. What the pods `without` have is free.
        """
        uses = self._uses
        if without:
            uses = {gpu: dict(kinds) for gpu, kinds in uses.items()}
            for uid in without:
                _subtract(uses, self._by_pod.get(uid, ()))
        least = 0 if self._turns is None else None  # with turns, less than nothing is free
        free = [
            _free(gpu, uses.get(gpu.uuid, {}), most_holders, least) for gpu in self._status.gpus
        ]
        milli, sizes, kinds, holders = zip(*free, strict=True) if free else ((), (), (), ())
        busy = tuple(_busy(gpu, without) for gpu in self._status.gpus)
        return NodeFree(
            milli,
            sizes,
            kinds,
            holders,
            self._on_gpus(without),
            busy,
            self._turns_on(without, uses, most_holders),
        )

    def _turns_on(
        self, without: Collection[str], uses: _Uses, most_holders: int | None
    ) -> NodeTurns | None:
        """The slices that take turns with memory; None if none can."""
        turns = self._turns
        if turns is None:
            return None
        found: dict[str, list[TurnSlice]] = {gpu.uuid: [] for gpu in self._status.gpus}
        for uid, swaps in self._swaps.items():
            for uuid, _, use in () if uid in without else self._by_pod[uid]:
                part = turns.slice_of(use.bytes, swaps.get(uuid))
                if part is not None and uuid in found:
                    found[uuid].append(part)
        host = turns.host or 0
        for gpu in self._status.gpus:
            kinds = uses.get(gpu.uuid, {})
            if _is_full(kinds, most_holders):
                found[gpu.uuid] = [TurnSlice(0, most=1.0)]
            if not gpu.healthy:  # nobody else can have it, and what left it is still on the host
                used = sum(kinds.values(), NOTHING).bytes
                host -= COPIES * max(0, used - gpu.memory)
        return replace(turns, host=max(0, host), gpus=tuple(map(tuple, found.values())))

    def labels(self, without: Collection[str] = ()) -> set[str]:
        """The labels of pods that use a GPU here, but for the pods of these UIDs."""
        return {mark.label for uid, mark in self._marks.items() if uid not in without} - {""}

    def _on_gpus(self, without: Collection[str]) -> tuple[tuple[Mark, ...], ...]:
        """What pods leave on each GPU for others to see; empty if that is nothing."""
        if not self._marks:
            return ()
        found: dict[str, list[Mark]] = {gpu.uuid: [] for gpu in self._status.gpus}
        for uid, mark in self._marks.items():
            for uuid, _, _ in () if uid in without else self._by_pod[uid]:
                if uuid in found:
                    found[uuid].append(mark)
        return tuple(map(tuple, found.values()))

    def by_pod(self) -> dict[str, dict[int, GpuUsage]]:
        """What each pod uses of each GPU, by UID and column."""
        columns = {gpu.uuid: column for column, gpu in enumerate(self._status.gpus)}
        return {
            uid: {
                columns[uuid]: GpuUsage(
                    KINDS[kind], use, self._marks.get(uid), self._swaps.get(uid, {}).get(uuid)
                )
                for uuid, kind, use in uses
                if uuid in columns
            }
            for uid, uses in self._by_pod.items()
        }

    def unreported(self) -> Iterator[tuple[str, Parts]]:
        """Pods with plans and the containers of each that the node has not reported yet."""
        for uid, parts in self._planned.items():
            reported = self._reported.get(uid)
            missing = parts if reported is None else _unreported(reported, parts)
            if missing:
                yield uid, missing

    def _count(self, uid: str) -> None:
        """Count again what a pod has."""
        _subtract(self._uses, self._by_pod.pop(uid, ()))
        self._marks.pop(uid, None)
        self._swaps.pop(uid, None)
        planned = self._planned.get(uid, ())
        reported = self._reported.get(uid)
        parts = planned if reported is None else tuple(_in_order(reported, planned))
        if not parts:
            return
        uses = self._by_pod[uid] = _counted(parts, self._status.shares)
        for gpu, kind, use in uses:
            kinds = self._uses.setdefault(gpu, {})
            kinds[kind] = kinds[kind] + use if kind in kinds else use
        swaps = {} if self._turns is None else _swaps(parts, self._turns.stays)
        if swaps:
            self._swaps[uid] = swaps
        wishes = next((one.wishes for one in planned if one.wishes is not None), None)
        if wishes is not None and wishes.mark is not None:
            self._marks[uid] = wishes.mark


def _subtract(uses: _Uses, of_pod: _PodUses) -> None:
    for gpu, kind, use in of_pod:
        kinds = uses[gpu]
        rest = kinds[kind] - use
        if rest.holders:
            kinds[kind] = rest
        else:
            del kinds[kind]


def _reported_parts(status: GpuNodeStatus) -> dict[str, dict[str, list[Part]]]:
    """What a node reports: by the pod's UID and the container, a part for each GPU."""
    found: dict[str, dict[str, list[Part]]] = {}
    for gpu in status.gpus:
        for grant in gpu.grants:
            background = grant.priority == Priority.BACKGROUND
            part = Part(
                container=grant.container,
                kind=gpu.kind or "sliced",
                gpus=(gpu.uuid,),
                memory=grant.memory,
                compute=grant.compute,
                reserved=0 if background else grant.compute,
                overcommit=possible_overcommit(grant.overcommit),
                fixed=grant.fixed,
            )
            of_pod = found.setdefault(grant.pod_uid, {})
            of_pod.setdefault(grant.container, []).append(part)
    return found


def _turns_of(status: GpuNodeStatus) -> NodeTurns | None:
    """What a node allows, without its slices; None if slices have no more than their GPU."""
    said = status.overcommit
    if said is None or not said.factor > 1:
        return None
    host = max(0, said.host_memory - said.set_aside)
    return NodeTurns(min(said.factor, MOST_OVERCOMMIT), host, max(FIXED_BYTES, said.stays))


def _swaps(parts: Parts, stays: int) -> _Swaps:
    """The GPUs on which all containers of a pod take turns: they count as one slice there.

    Beside an init container none does: the agent counts what reuses its units as what stays.
    """
    on: dict[str, list[Part]] = {}
    for one in parts:
        for gpu in one.gpus:
            on.setdefault(gpu, []).append(one)
    found: _Swaps = {}
    for gpu, here in on.items():
        most = [one.overcommit for one in here]
        movable = all(one.kind == "sliced" and not (one.alone or one.init) for one in here)
        if None not in most and movable:
            least = min((one for one in most if one), default=None)
            fixed = sum(max(stays, one.fixed) for one in here)
            found[gpu] = Swap(least, fixed)
    return found


def _counted(parts: Parts, shares: int) -> _PodUses:
    """What a pod has of each GPU."""
    kinds: dict[str, plan.Kind] = {
        gpu: "whole" if one.alone else one.kind for one in parts for gpu in one.gpus
    }
    return tuple((gpu, kinds[gpu], use) for gpu, use in _uses(parts, shares).items())


def _in_order(reported: Mapping[str, list[Part]], planned: Parts) -> Iterable[Part]:
    """The parts of a pod in the order in which its containers start, reported or else planned.

    A container that is not in the plan counts as running together with all others.
    """
    in_plan = {one.container for one in planned}
    for container, parts in reported.items():
        if container not in in_plan:
            yield from parts
    for one in planned:
        for part in reported.get(one.container, ()):
            differs = one.init or one.alone
            yield replace(part, init=one.init, alone=one.alone) if differs else part
    yield from _unreported(reported, planned)


def _unreported(reported: Mapping[str, list[Part]], planned: Parts) -> Parts:
    """The parts that the node has not reported yet.

    The kubelet allocates container by container. So those before the last reported one were
    allocated too: an init container is no longer reported once another has its devices.
    """
    done = max((n for n, one in enumerate(planned, 1) if one.container in reported), default=0)
    return planned[done:]


def _uses(parts: Iterable[Part], shares: int) -> dict[str, Use]:
    """The most that a pod uses of each GPU at any time."""
    running: dict[str, Use] = {}
    most: dict[str, Use] = {}
    for one in parts:
        use = Use(milli_of(one.kind, one.reserved, shares), one.memory, 1)
        for gpu in one.gpus:
            now = running.get(gpu, NOTHING) + use
            most[gpu] = most.get(gpu, NOTHING).most(now)
            if not one.init:
                running[gpu] = now
    return most


def _busy(gpu: NodeGpu, without: Collection[str]) -> int:
    """How much of the GPU's time is used, in eighths, but for the pods `without`."""
    return min(BUSY_STEPS, sum(one.busy for one in gpu.grants if one.pod_uid not in without))


def _is_full(kinds: Mapping[plan.Kind, Use], most_holders: int | None) -> bool:
    """Whether nobody else can have a GPU, whatever is left of it."""
    holders = sum(use.holders for use in kinds.values())
    return "whole" in kinds or (most_holders is not None and holders >= most_holders)


def _free(
    gpu: NodeGpu, kinds: Mapping[plan.Kind, Use], most_holders: int | None, least: int | None
) -> tuple[int, int, Kind, int]:
    if not kinds:
        return WHOLE_MILLI, gpu.memory, Kind.FREE, 0
    is_one = "whole" in kinds  # or a pod is alone on it, though its node reports slices
    name = "whole" if is_one and len(kinds) == 1 else gpu.kind or max(kinds)
    kind = KINDS[name]  # whole before the others, should kinds be mixed
    use = sum(kinds.values(), NOTHING)
    left = gpu.memory - use.bytes
    left = left if least is None else max(least, left)
    if kind is Kind.WHOLE or _is_full(kinds, most_holders):
        return 0, min(0, left), kind, use.holders
    return max(0, WHOLE_MILLI - use.milli), left, kind, use.holders
