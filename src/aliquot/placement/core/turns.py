"""The slices that take turns with memory, on nodes whose GPUs may be over-committed.

`overcommit` decides how much a slice can have of one GPU; here that becomes a question about nodes.
A node that allows no more than its GPUs have is not listed, and demands without `swap` never look
here: for them a GPU has what all other limits leave.

What is free of a GPU (`free`) may be negative: then its slices have more together than it has.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.overcommit import FIXED_BYTES, GpuLoad, TurnSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aliquot.placement.core.overcommit import Room

    FreeBytes = Mapping[int, Sequence[int]]  # on each GPU of a node, by row

OnGpu = tuple[TurnSlice, ...]
NOBODY: OnGpu = ()
NO_GPU = -1  # what is free of a GPU that is missing or unhealthy (`snapshot.ABSENT`)


@dataclass(frozen=True, slots=True)
class Swap:
    """That a slice's memory can leave its GPU, but for `fixed` bytes.

    All slices of its GPU may have `most` times its memory together; None: as the node says.
    """

    most: float | None = None
    fixed: int = 0

    def __post_init__(self) -> None:
        if self.fixed < 0 or (self.most is not None and not self.most >= 1):
            raise InvalidValueError(f"slices of a GPU cannot have {self.most} times its memory")


@dataclass(frozen=True, slots=True)
class NodeTurns:
    """What slices that take turns may have on a node, and those that are there, GPU by GPU.

    All slices of a GPU may have `factor` times its memory, and the host has `host` bytes for what
    leaves all GPUs together; None: it is not bounded. Each slice leaves at least `stays` on its
    GPU, so a smaller one takes no turns.
    """

    factor: float
    host: int | None = None
    stays: int = FIXED_BYTES
    gpus: tuple[OnGpu, ...] = ()

    def slice_of(self, size: int, swap: Swap | None) -> TurnSlice | None:
        """What a slice is here; None if it takes no turns, nor bounds those of others.

        The arbiter holds what the queue of a small slice allows too.
        """
        if swap is None or (swap.most is None and not self._is_movable(size, swap)):
            return None
        return TurnSlice(size, max(swap.fixed, self.stays), swap.most)

    def _is_movable(self, size: int, swap: Swap) -> bool:
        return size > max(swap.fixed, self.stays)

    def on(self, gpu: int) -> OnGpu:
        """Those on one GPU."""
        return self.gpus[gpu] if gpu < len(self.gpus) else NOBODY

    def with_gpu(self, gpu: int, slices: Iterable[TurnSlice]) -> NodeTurns:
        """The same with others on one GPU."""
        gpus = [*self.gpus, *[NOBODY] * (gpu + 1 - len(self.gpus))]
        gpus[gpu] = tuple(sorted(slices, key=_order))
        return replace(self, gpus=_trimmed(gpus))

    def room(self, memory: int, free: Sequence[int], gpu: int, most: float | None) -> Room:
        """The largest slice that can take turns on a GPU; the GPUs have `memory` bytes each."""
        left = self.host
        if left is not None:
            others = (one for one in range(len(free)) if one != gpu and free[one] != NO_GPU)
            left -= sum(self._load(memory, free[one], one).host_bytes for one in others)
        return self._load(memory, free[gpu], gpu).room(left, most)

    def fits(self, memory: int, free: Sequence[int], gpu: int, size: int, swap: Swap) -> bool:
        """Whether a slice can take turns on a GPU."""
        if free[gpu] == NO_GPU or not self._is_movable(size, swap):
            return False
        return size <= self.room(memory, free, gpu, swap.most).bytes

    def count(
        self, memory: int, free: Sequence[int], each: Sequence[int], size: int, swap: Swap
    ) -> int:
        """The most slices of this size that fit, at most so many on `each` GPU.

        One after the other goes to the GPU where it makes the least more leave: the host has room
        for most of them then.
        """
        here, left, more, found = self, list(free), list(each), 0
        while True:
            fitting = [
                gpu
                for gpu, count in enumerate(more)
                if count > 0 and (left[gpu] >= size or here.fits(memory, left, gpu, size, swap))
            ]
            if not fitting:
                return found
            gpu = min(fitting, key=lambda gpu: (max(0, size - max(0, left[gpu])), gpu))
            part = here.slice_of(size, swap)
            if part is not None:
                here = here.with_gpu(gpu, (*here.on(gpu), part))
            left[gpu] -= size
            more[gpu] -= 1
            found += 1

    def _load(self, memory: int, free: int, gpu: int) -> GpuLoad:
        turns = self.on(gpu)
        rigid = memory - free - sum(one.limit for one in turns)
        return GpuLoad(memory, rigid, turns, self.factor)


class Turns:
    """The nodes that allow over-commit, by row; a node's entry is replaced, never changed."""

    def __init__(self, by_node: dict[int, NodeTurns] | None = None) -> None:
        self._by_node = {} if by_node is None else by_node

    def __bool__(self) -> bool:
        return bool(self._by_node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Turns) and self._by_node == other._by_node

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Turns:
        """Another that can be changed."""
        return Turns(dict(self._by_node))

    def of(self, nodes: Iterable[int]) -> Turns:
        """Those of some nodes."""
        if not self:
            return Turns()
        return Turns({node: self._by_node[node] for node in nodes if node in self._by_node})

    def on(self, node: int) -> NodeTurns | None:
        """A node's; None if it allows no over-commit."""
        return self._by_node.get(node)

    def set_node(self, node: int, turns: NodeTurns | None) -> None:
        """Overwrite a node's."""
        if turns is None:
            self._by_node.pop(node, None)
        else:
            gpus = [tuple(sorted(some, key=_order)) for some in turns.gpus]
            self._by_node[node] = replace(turns, gpus=_trimmed(gpus))

    def put(self, nodes: Iterable[int], other: Turns) -> None:
        """Overwrite some nodes by what they have in `other`."""
        for node in nodes if self or other else ():
            self.set_node(node, other._by_node.get(node))

    def change(self, node: int, gpu: int, size: int, swap: Swap | None, sign: int) -> None:
        """A slice came to a GPU (1), or left it (-1)."""
        here = self._by_node.get(node)
        part = None if here is None else here.slice_of(size, swap)
        if here is None or part is None:
            return
        slices = list(here.on(gpu))
        if sign > 0:
            slices.append(part)
        elif part in slices:
            slices.remove(part)
        self._by_node[node] = here.with_gpu(gpu, slices)

    def lower_to(self, other: Turns, free: FreeBytes, other_free: FreeBytes) -> None:
        """Keep what is possible both here and in `other`, by what is free of each GPU then.

        A GPU's slices are those of the moment with more of them. If neither moment has all slices
        of the other, the node is one without over-commit.
        """
        for node in list(self._by_node):
            here, there = self._by_node[node], other._by_node.get(node)
            if there is None:
                del self._by_node[node]
            elif here != there or free[node] != other_free[node]:
                self.set_node(node, _lower(here, there, free[node], other_free[node]))


def _lower(
    one: NodeTurns, other: NodeTurns, free: Sequence[int], other_free: Sequence[int]
) -> NodeTurns | None:
    gpus: list[OnGpu] = []
    for gpu in range(len(free)):
        mine, theirs = one.on(gpu), other.on(gpu)
        rigid = free[gpu] + sum(part.limit for part in mine)  # the less, the more others have
        other_rigid = other_free[gpu] + sum(part.limit for part in theirs)
        if not Counter(theirs) - Counter(mine) and rigid <= other_rigid:
            gpus.append(mine)
        elif not Counter(mine) - Counter(theirs) and other_rigid <= rigid:
            gpus.append(theirs)
        else:
            return None
    host = min((each.host for each in (one, other) if each.host is not None), default=None)
    return NodeTurns(min(one.factor, other.factor), host, max(one.stays, other.stays), tuple(gpus))


def _trimmed(gpus: Sequence[OnGpu]) -> tuple[OnGpu, ...]:
    """Without GPUs at the end that nobody takes turns on: equal states are equal values."""
    last = max((number for number, one in enumerate(gpus, 1) if one), default=0)
    return tuple(gpus[:last])


def _order(one: TurnSlice) -> tuple[int, int, float]:
    return one.limit, one.fixed, 0.0 if one.most is None else one.most
