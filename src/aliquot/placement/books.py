"""A working copy of a snapshot: take for a placement, give back, and know which rows changed.

Every take is checked against what is left, the kind of the GPU and the node's CPU and memory, and
changes nothing where it fails. Giving back is the exact opposite of taking. A GPU becomes free for
another kind when the last that holds it gave back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.demand import WHOLE_MILLI, Demand, Kind, Placement
from aliquot.placement.snapshot import Snapshot

if TYPE_CHECKING:
    from aliquot.placement.snapshot import Hardware, Ints


class OverTakenError(Exception):
    """A placement takes what is not there: a defect of the caller."""


class Books:
    """Nodes and what is left of them, changed in place."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.hardware: Hardware = snapshot.hardware
        self.milli_left = snapshot.milli_left.copy()
        self.bytes_left = snapshot.bytes_left.copy()
        self.kind = snapshot.kind.copy()
        self.holders = snapshot.holders.copy()
        self.cpu_left = snapshot.cpu_left.copy()
        self.ram_left = snapshot.ram_left.copy()
        self._changes: list[int] = []
        self._first_change = 0

    def snapshot(self) -> Snapshot:
        """The picture as it is now."""
        return Snapshot(
            hardware=self.hardware,
            milli_left=self.milli_left.copy(),
            bytes_left=self.bytes_left.copy(),
            kind=self.kind.copy(),
            holders=self.holders.copy(),
            cpu_left=self.cpu_left.copy(),
            ram_left=self.ram_left.copy(),
        )

    def copy(self) -> Books:
        """Another working copy, for what may be thrown away."""
        return Books(self.snapshot())

    @property
    def version(self) -> int:
        """How many changes there were."""
        return self._first_change + len(self._changes)

    def changed_since(self, version: int) -> Ints | None:
        """The rows that changed since then; None where that was too long ago to know."""
        start = version - self._first_change
        if start < 0:
            return None
        return np.array(sorted(set(self._changes[start:])), dtype=np.int64)

    def fits(self, placement: Placement, demand: Demand) -> bool:
        """Whether this placement can be taken."""
        node = placement.node
        if self.cpu_left[node] < demand.cpu_milli or self.ram_left[node] < demand.ram_bytes:
            return False
        if len(set(placement.gpus)) != demand.gpus:
            return False
        hardware = self.hardware
        if demand.models and hardware.models[int(hardware.model[node])] not in demand.models:
            return False
        return all(self._gpu_fits(node, gpu, demand) for gpu in placement.gpus)

    def _gpu_fits(self, node: int, gpu: int, demand: Demand) -> bool:
        kind = int(self.kind[node, gpu])
        if not self.hardware.present[node, gpu]:
            return False
        if demand.kind is Kind.WHOLE:
            return bool(
                kind == Kind.FREE
                and self.milli_left[node, gpu] == WHOLE_MILLI
                and self.bytes_left[node, gpu] >= demand.gpu_bytes
            )
        return bool(
            kind in (Kind.FREE, demand.kind)
            and self.milli_left[node, gpu] >= demand.milli
            and self.bytes_left[node, gpu] >= demand.gpu_bytes
        )

    def take(self, placement: Placement, demand: Demand, *, known_to_fit: bool = False) -> None:
        """Write a placement in; who has just asked whether it fits need not ask again."""
        if not known_to_fit and not self.fits(placement, demand):
            raise OverTakenError(f"{demand} does not fit {placement}")
        self._add(placement, demand, 1)

    def give(self, placement: Placement, demand: Demand) -> None:
        """Take a placement out again."""
        self._add(placement, demand, -1)

    def _add(self, placement: Placement, demand: Demand, sign: int) -> None:
        node = placement.node
        self.cpu_left[node] -= sign * demand.cpu_milli
        self.ram_left[node] -= sign * demand.ram_bytes
        is_whole = demand.kind is Kind.WHOLE
        milli = WHOLE_MILLI if is_whole else demand.milli
        size = int(self.hardware.gpu_bytes[node]) if is_whole else demand.gpu_bytes
        kind, free = int(demand.kind), int(Kind.FREE)
        for gpu in placement.gpus:
            self.milli_left[node, gpu] -= sign * milli
            self.bytes_left[node, gpu] -= sign * size
            self.holders[node, gpu] += sign
            self.kind[node, gpu] = kind if self.holders[node, gpu] else free
        self._note(node)

    def _note(self, node: int) -> None:
        self._changes.append(node)
        keep = max(4096, 4 * self.hardware.size)
        if len(self._changes) > 2 * keep:
            self._first_change += len(self._changes) - keep
            del self._changes[:-keep]
