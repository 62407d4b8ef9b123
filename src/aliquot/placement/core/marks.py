"""The marks of slices on GPUs, and which GPUs the wishes of a demand leave.

Only slices with a label, or that are apart from labels, leave marks. So most GPUs have none, and
demands without wishes never look at them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from aliquot.placement.core.wishes import Mark, Wishes

    OnGpu = tuple[Mark, ...]
    Uuids = Sequence[tuple[str, ...]]  # of each node

NOBODY: OnGpu = ()


class Marks:
    """The marks on each GPU, by node and column; those of one node are replaced, never changed.

    `elsewhere` are labels of slices on nodes that are not among these.
    """

    def __init__(
        self,
        by_node: dict[int, dict[int, OnGpu]] | None = None,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        self._by_node = {} if by_node is None else by_node
        self.elsewhere = elsewhere

    def __bool__(self) -> bool:
        return bool(self._by_node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Marks) and self._by_node == other._by_node

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Marks:
        """Another that can be changed."""
        return Marks(dict(self._by_node), self.elsewhere)

    def nodes(self) -> Iterable[int]:
        """The nodes that have some."""
        return self._by_node.keys()

    def of(self, nodes: Iterable[int]) -> Marks:
        """Those of some nodes."""
        if not self:
            return Marks()
        return Marks({node: self._by_node[node] for node in nodes if node in self._by_node})

    def on(self, node: int, gpu: int) -> OnGpu:
        """Those on one GPU."""
        return self._by_node.get(node, {}).get(gpu, NOBODY)

    def on_gpus(self) -> Iterator[tuple[int, int, OnGpu]]:
        """Node, GPU and marks, of each GPU that has some."""
        for node, gpus in self._by_node.items():
            for gpu, marks in gpus.items():
                yield node, gpu, marks

    def add(self, node: int, gpus: Iterable[int], mark: Mark) -> None:
        """A slice with this mark came to these GPUs."""
        here = dict(self._by_node.get(node, {}))
        for gpu in gpus:
            here[gpu] = _sorted((*here.get(gpu, NOBODY), mark))
        self._put(node, here)

    def remove(self, node: int, gpus: Iterable[int], mark: Mark) -> None:
        """A slice with this mark left these GPUs."""
        here = dict(self._by_node.get(node, {}))
        for gpu in gpus:
            left = list(here.pop(gpu, NOBODY))
            if mark in left:
                left.remove(mark)
            if left:
                here[gpu] = tuple(left)
        self._put(node, here)

    def set_node(self, node: int, marks: Sequence[OnGpu]) -> None:
        """Overwrite the marks of a node, GPU by GPU."""
        self._put(node, {gpu: _sorted(some) for gpu, some in enumerate(marks) if some})

    def put(self, nodes: Iterable[int], other: Marks) -> None:
        """Overwrite the marks of some nodes by those that others have there."""
        for node in nodes if self or other else ():
            self._put(node, other._by_node.get(node, {}))

    def add_later(self, other: Marks) -> None:
        """Add the marks of another moment: they keep slices away, and none can be beside them."""
        for node, gpu, theirs in other.on_gpus():
            more = [replace(one, later=True) for one in theirs if one not in self.on(node, gpu)]
            for one in more:
                if one not in self.on(node, gpu):
                    self.add(node, (gpu,), one)

    def allowed(
        self, wishes: Wishes, uuids: Uuids, index: NDArray[np.int64], width: int
    ) -> NDArray[np.bool_]:
        """Which GPUs of these nodes the wishes leave; a node's row has `width` GPUs."""
        allowed = np.ones((len(index), width), dtype=bool)
        if wishes.named or wishes.excluded:
            for row, node in enumerate(index.tolist()):
                here = uuids[node]
                allowed[row, : len(here)] = [wishes.selects(uuid) for uuid in here]
                allowed[row, len(here) :] = not wishes.named
        if not (self._by_node or self.elsewhere):
            return allowed
        if wishes.label or wishes.apart_from:
            for row, gpu, marks in self._rows(index):
                if not all(map(wishes.tolerates, marks)):
                    allowed[row, gpu] = False
        if wishes.beside and self._has(wishes.beside):
            there = np.zeros_like(allowed)
            for row, gpu, marks in self._rows(index):
                there[row, gpu] = _is_with(wishes.beside, marks)
            allowed &= there
        return allowed

    def allows(self, wishes: Wishes, uuids: Uuids, node: int, gpu: int) -> bool:
        """Whether the wishes leave one GPU."""
        here = uuids[node]
        if not (wishes.selects(here[gpu]) if gpu < len(here) else not wishes.named):
            return False
        marks = self.on(node, gpu)
        if not all(map(wishes.tolerates, marks)):
            return False
        if not wishes.beside or _is_with(wishes.beside, marks):
            return True
        return not self._has(wishes.beside)

    def _has(self, label: str) -> bool:
        if label in self.elsewhere:
            return True
        return any(_is_with(label, marks) for _, _, marks in self.on_gpus())

    def _rows(self, index: NDArray[np.int64]) -> Iterator[tuple[int, int, OnGpu]]:
        """Row, GPU and marks, of each GPU of these nodes that has some."""
        for row, node in enumerate(index.tolist()):
            for gpu, marks in self._by_node.get(node, {}).items():
                yield row, gpu, marks

    def _put(self, node: int, here: dict[int, OnGpu]) -> None:
        if here:
            self._by_node[node] = here
        else:
            self._by_node.pop(node, None)


def _is_with(label: str, marks: OnGpu) -> bool:
    return any(one.label == label and not one.later for one in marks)


def _sorted(marks: Iterable[Mark]) -> OnGpu:
    return tuple(sorted(marks, key=lambda one: (one.label, sorted(one.apart_from), one.later)))
