"""A working copy of a snapshot: take for a placement, give back, and know which rows changed.

Every take is checked against what is free, the kind of the GPU and the node's CPU and memory, and
changes nothing if it fails. Giving back is the exact opposite of taking. A GPU becomes free for
another kind when the last holder gave it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.core.demand import WHOLE_MILLI, Demand, Kind, Placement
from aliquot.placement.core.snapshot import ABSENT, CHANGING, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from aliquot.placement.core.demand import Running
    from aliquot.placement.core.marks import Marks
    from aliquot.placement.core.snapshot import Hardware, Ints, NodeHardware
    from aliquot.placement.core.turns import NodeTurns, Turns
    from aliquot.placement.core.wishes import Mark

_64_BITS = (1 << 64) - 1
_FREE, _WHOLE = int(Kind.FREE), int(Kind.WHOLE)  # numpy is slow with an enum's members


class OverallocatedError(Exception):
    """A placement takes what is not there: a defect of the caller."""


@dataclass(frozen=True, slots=True)
class NodeFree:
    """For each GPU of a node: what is free, its kind of use, how many hold it, and their marks.

    No `marks` at all: there are none. `busy` are eighths of its time that are really used; none at
    all: nobody knows of any. `bytes` are negative where slices take `turns` and have more together
    than the GPU has; None: the node allows none.
    """

    milli: tuple[int, ...]
    bytes: tuple[int, ...]
    kind: tuple[Kind, ...]
    holders: tuple[int, ...]
    marks: tuple[tuple[Mark, ...], ...] = ()
    busy: tuple[int, ...] = ()
    turns: NodeTurns | None = None


class Allocations:
    """Nodes and what is free on them, changed in place."""

    milli_free: Ints
    bytes_free: Ints
    kind: NDArray[np.int8]
    holders: Ints
    cpu_free: Ints
    ram_free: Ints

    def __init__(self, source: Snapshot | Allocations, fingerprint: int | None = None) -> None:
        self.hardware: Hardware = source.hardware
        for name in CHANGING:
            setattr(self, name, getattr(source, name).copy())
        self.marks: Marks = source.marks.copy()
        self.turns: Turns = source.turns.copy()
        self.busy: NDArray[np.int8] = source.busy.copy()
        self.knows_use: bool = source.knows_use
        self._changes: list[int] = []
        self._first_change = 0
        self._fingerprint = fingerprint

    def snapshot(self) -> Snapshot:
        """A snapshot of it."""
        free = {name: getattr(self, name).copy() for name in CHANGING}
        return Snapshot(
            self.hardware,
            **free,
            busy=self.busy.copy(),
            marks=self.marks.copy(),
            turns=self.turns.copy(),
        )

    def copy(self) -> Allocations:
        """Another working copy, for what may be thrown away."""
        return Allocations(self, self._fingerprint)

    @property
    def fingerprint(self) -> int:
        """A hash: equal allocations have the same one, whatever takes and gives led to them."""
        if self._fingerprint is None:
            self._fingerprint = self._part_of_fingerprint(slice(None))
        return self._fingerprint

    def _part_of_fingerprint(self, nodes: Ints | slice) -> int:
        column = np.arange(1, self.holders.shape[1] + 1)
        rows = ((self.milli_free[nodes] + self.holders[nodes]) * column).sum(axis=1)
        rows = (rows + self.cpu_free[nodes] + self.ram_free[nodes]).astype(np.uint64)
        return int((rows * _weights(self.hardware.size)[nodes]).sum())

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
        if self.cpu_free[node] < demand.cpu_milli or self.ram_free[node] < demand.ram_bytes:
            return False
        if len(set(placement.gpus)) != demand.gpus:
            return False
        if not self.hardware.suits(node, demand):
            return False
        wishes = demand.wishes
        return all(
            self._gpu_fits(node, gpu, demand)
            and (wishes is None or self.marks.allows(wishes, self.hardware.uuids, node, gpu))
            for gpu in placement.gpus
        )

    def _gpu_fits(self, node: int, gpu: int, demand: Demand) -> bool:
        kind = int(self.kind[node, gpu])
        if not self.hardware.present[node, gpu]:
            return False
        if demand.kind is Kind.WHOLE:
            return bool(
                kind == Kind.FREE
                and self.milli_free[node, gpu] == WHOLE_MILLI
                and self.bytes_free[node, gpu] >= demand.gpu_bytes
            )
        return bool(
            kind in (Kind.FREE, demand.kind)
            and self.milli_free[node, gpu] >= demand.milli
            and (
                self.bytes_free[node, gpu] >= demand.gpu_bytes
                or self.fits_in_turns(node, gpu, demand)
            )
        )

    def fits_in_turns(self, node: int, gpu: int, demand: Demand) -> bool:
        """Whether a GPU has the memory for a demand if its slices take turns with it."""
        here = self.turns.on(node) if demand.swap is not None else None
        if here is None or demand.swap is None:
            return False
        memory, free = int(self.hardware.gpu_bytes[node]), self.bytes_free[node].tolist()
        return here.fits(memory, free, gpu, demand.gpu_bytes, demand.swap)

    def take(self, placement: Placement, demand: Demand, *, known_to_fit: bool = False) -> None:
        """Take what a placement needs. OverallocatedError, and no change, if it does not fit.

        A caller that has just called `fits` passes `known_to_fit` to skip the check.
        """
        if not known_to_fit and not self.fits(placement, demand):
            raise OverallocatedError(f"{demand} does not fit {placement}")
        self._add(placement, demand, 1)

    def give(self, placement: Placement, demand: Demand) -> None:
        """Give back what a placement took."""
        self._add(placement, demand, -1)

    def take_gang(self, one: Running, *, known_to_fit: bool = False) -> None:
        """Take what all members of a gang need."""
        for placement, member in one.in_turn():
            self.take(placement, member, known_to_fit=known_to_fit)

    def take_gang_if_it_fits(self, one: Running) -> bool:
        """Take for all members of a gang; False, and no change, if one does not fit."""
        taken: list[tuple[Placement, Demand]] = []
        for placement, member in one.in_turn():
            if not self.fits(placement, member):
                for pair in taken:
                    self.give(*pair)
                return False
            self.take(placement, member, known_to_fit=True)
            taken.append((placement, member))
        return True

    def give_gang(self, one: Running) -> None:
        """Give back what all members of a gang took."""
        for placement, member in zip(one.placements, one.gang.members, strict=True):
            self.give(placement, member)

    def exchange_gangs(self, ended: Sequence[Running], start: Running) -> bool:
        """Give back ended gangs and take another; False, and no change, if that does not fit."""
        for one in ended:
            self.give_gang(one)
        if self.take_gang_if_it_fits(start):
            return True
        for one in ended:
            self.take_gang(one, known_to_fit=True)
        return False

    def free_on(self, nodes: Ints) -> FreeOnNodes:
        """What is free on these nodes."""
        free = {name: getattr(self, name).take(nodes, axis=0) for name in CHANGING}
        return FreeOnNodes(
            nodes, **free, marks=self.marks.of(nodes.tolist()), turns=self.turns.of(nodes.tolist())
        )

    def put(self, free: FreeOnNodes) -> None:
        """Overwrite what is free on some nodes."""
        before = self._part_of_fingerprint(free.nodes) if self._fingerprint is not None else 0
        self._overwrite(free)
        if self._fingerprint is not None:
            more = self._part_of_fingerprint(free.nodes) - before
            self._fingerprint = (self._fingerprint + more) & _64_BITS

    def lower_to(self, other: FreeOnNodes) -> None:
        """Reduce what is free to what is free in `other` too, a later moment or the same.

        A GPU that has one kind of use now and another one then is taken as a whole.
        """
        self._overwrite(self.free_on(other.nodes).lowered_to(other))
        self._fingerprint = None

    def _overwrite(self, free: FreeOnNodes) -> None:
        for name in CHANGING:
            getattr(self, name)[free.nodes] = getattr(free, name)
        nodes = free.nodes.tolist()
        self.marks.put(nodes, free.marks)
        self.turns.put(nodes, free.turns)
        self._note(*nodes)

    def take_all(self, bundle: Bundle) -> None:
        """Take what many placements need, which must be known to fit."""
        self._add_all(bundle, 1)
        self.kind[bundle.gpus] = bundle.kind

    def give_all(self, bundle: Bundle) -> None:
        """Give back what many placements took."""
        self._add_all(bundle, -1)
        gpus = bundle.gpus
        self.kind[gpus] = np.where(self.holders[gpus] > 0, self.kind[gpus], _FREE)

    def set_node(self, node: int, free: NodeFree, spec: NodeHardware | None = None) -> None:
        """Overwrite what is free on a node's GPUs, for allocations that follow a cluster.

        With a `spec` the row becomes another node, with all its CPU and memory free. The hardware
        must have a place for it (`Hardware.has_place_for`).
        """
        before = self._row_number(node) if self._fingerprint is not None else 0
        if spec is not None:
            self.hardware = self.hardware.with_node(node, spec)
            self.cpu_free[node], self.ram_free[node] = spec.cpu_milli, spec.ram_bytes
        gone = ~self.hardware.present[node]
        for mine, now in (
            (self.milli_free, free.milli),
            (self.bytes_free, free.bytes),
            (self.kind, free.kind),
            (self.holders, free.holders),
            (self.busy, free.busy),
        ):
            mine[node] = 0
            mine[node, : len(now)] = now
        self.knows_use = self.knows_use or any(free.busy)
        self.marks.set_node(node, free.marks)
        self.turns.set_node(node, free.turns)
        self.milli_free[node, gone] = self.bytes_free[node, gone] = ABSENT
        if self._fingerprint is not None:
            more = self._row_number(node) - before
            weight = int(_weights(self.hardware.size)[node])
            self._fingerprint = (self._fingerprint + more * weight) & _64_BITS
        self._note(node)

    def _row_number(self, node: int) -> int:
        """What a row adds to the fingerprint, before its weight."""
        each = zip(self.milli_free[node].tolist(), self.holders[node].tolist(), strict=True)
        gpus: int = sum(n * (milli + holders) for n, (milli, holders) in enumerate(each, 1))
        return gpus + int(self.cpu_free[node]) + int(self.ram_free[node])

    def _add_all(self, bundle: Bundle, sign: int) -> None:
        self.cpu_free[bundle.nodes] -= sign * bundle.cpu
        self.ram_free[bundle.nodes] -= sign * bundle.ram
        self.milli_free[bundle.gpus] -= sign * bundle.milli
        self.bytes_free[bundle.gpus] -= sign * bundle.bytes
        self.holders[bundle.gpus] += sign * bundle.holders
        for placement, mark in bundle.marks:
            change = self.marks.add if sign > 0 else self.marks.remove
            change(placement.node, placement.gpus, mark)
        for placement, demand in bundle.turns:
            self._change_turns(placement, demand, sign)
        self._fingerprint = None
        self._note(*bundle.nodes.tolist())

    def _add(self, placement: Placement, demand: Demand, sign: int) -> None:
        node = placement.node
        self.cpu_free[node] -= sign * demand.cpu_milli
        self.ram_free[node] -= sign * demand.ram_bytes
        milli, size = self.hardware.taken_of_each(node, demand)
        kind, free = int(demand.kind), int(Kind.FREE)
        for gpu in placement.gpus:
            self.milli_free[node, gpu] -= sign * milli
            self.bytes_free[node, gpu] -= sign * size
            self.holders[node, gpu] += sign
            self.kind[node, gpu] = kind if self.holders[node, gpu] else free
        if demand.wishes is not None and demand.wishes.mark is not None:
            change = self.marks.add if sign > 0 else self.marks.remove
            change(node, placement.gpus, demand.wishes.mark)
        if demand.swap is not None:
            self._change_turns(placement, demand, sign)
        if self._fingerprint is not None:
            columns = sum(placement.gpus) + len(placement.gpus)
            less = demand.cpu_milli + demand.ram_bytes + columns * (milli - 1)
            weight = int(_weights(self.hardware.size)[node])
            self._fingerprint = (self._fingerprint - sign * less * weight) & _64_BITS
        self._note(node)

    def _change_turns(self, placement: Placement, demand: Demand, sign: int) -> None:
        for gpu in placement.gpus:
            self.turns.change(placement.node, gpu, demand.gpu_bytes, demand.swap, sign)

    def _note(self, *nodes: int) -> None:
        self._changes.extend(nodes)
        keep = max(4096, 4 * self.hardware.size)
        if len(self._changes) > 2 * keep:
            self._first_change += len(self._changes) - keep
            del self._changes[:-keep]


@dataclass(frozen=True, slots=True)
class FreeOnNodes:
    """What is free on some nodes, a row for each."""

    nodes: Ints
    milli_free: Ints
    bytes_free: Ints
    kind: NDArray[np.int8]
    holders: Ints
    cpu_free: Ints
    ram_free: Ints
    marks: Marks
    turns: Turns

    def part(self, index: Sequence[int]) -> FreeOnNodes:
        """The same for some of the nodes, by their index here."""
        nodes = self.nodes[index]
        free = {name: getattr(self, name)[index] for name in CHANGING}
        some = nodes.tolist()
        return FreeOnNodes(nodes, **free, marks=self.marks.of(some), turns=self.turns.of(some))

    def lowered_to(self, other: FreeOnNodes) -> FreeOnNodes:
        """What is free both here and in `other`, of the same nodes (`Allocations.lower_to`)."""
        neither = (self.kind != _FREE) & (other.kind != _FREE) & (self.kind != other.kind)
        milli, size = (
            np.where(neither, np.minimum(least, 0), least)
            for least in (
                np.minimum(self.milli_free, other.milli_free),
                np.minimum(self.bytes_free, other.bytes_free),
            )
        )
        marks = self.marks.copy()
        marks.add_later(other.marks)
        turns = self.turns.copy()
        if turns:
            turns.lower_to(other.turns, self._bytes_by_node(), other._bytes_by_node())
        return FreeOnNodes(
            nodes=self.nodes,
            milli_free=milli,
            bytes_free=size,
            kind=np.where(neither, _WHOLE, np.maximum(self.kind, other.kind)),
            holders=np.maximum(self.holders, other.holders),
            cpu_free=np.minimum(self.cpu_free, other.cpu_free),
            ram_free=np.minimum(self.ram_free, other.ram_free),
            marks=marks,
            turns=turns,
        )

    def _bytes_by_node(self) -> dict[int, list[int]]:
        return dict(zip(self.nodes.tolist(), self.bytes_free.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Bundle:
    """What many placements take, by node and by GPU; and the marks and turns that they leave."""

    nodes: Ints
    cpu: Ints
    ram: Ints
    gpus: tuple[Ints, Ints]
    milli: Ints
    bytes: Ints
    holders: Ints
    kind: Ints
    marks: tuple[tuple[Placement, Mark], ...]
    turns: tuple[tuple[Placement, Demand], ...]

    @classmethod
    def of(cls, hardware: Hardware, gangs: Iterable[Running]) -> Bundle:
        """Of gangs where they run, or will."""
        by_node: dict[int, list[int]] = {}
        by_gpu: dict[tuple[int, int], list[int]] = {}
        marks: list[tuple[Placement, Mark]] = []
        turns: list[tuple[Placement, Demand]] = []
        for one in gangs:
            for placement, demand in zip(one.placements, one.gang.members, strict=True):
                node = by_node.setdefault(placement.node, [0, 0])
                node[0] += demand.cpu_milli
                node[1] += demand.ram_bytes
                if demand.wishes is not None and demand.wishes.mark is not None:
                    marks.append((placement, demand.wishes.mark))
                if demand.swap is not None:
                    turns.append((placement, demand))
                milli, size = hardware.taken_of_each(placement.node, demand)
                for number in placement.gpus:
                    gpu = by_gpu.setdefault((placement.node, number), [0, 0, 0, int(demand.kind)])
                    gpu[0] += milli
                    gpu[1] += size
                    gpu[2] += 1
        nodes, gpus, where = (
            _table(by_node.values(), 2),
            _table(by_gpu.values(), 4),
            _table(by_gpu, 2),
        )
        return cls(
            nodes=np.array(list(by_node), dtype=np.int64),
            cpu=nodes[:, 0],
            ram=nodes[:, 1],
            gpus=(where[:, 0], where[:, 1]),
            milli=gpus[:, 0],
            bytes=gpus[:, 1],
            holders=gpus[:, 2],
            kind=gpus[:, 3],
            marks=tuple(marks),
            turns=tuple(turns),
        )


def _table(rows: Iterable[Iterable[int]], columns: int) -> Ints:
    return np.array([tuple(row) for row in rows], dtype=np.int64).reshape(-1, columns)


@lru_cache(maxsize=8)
def _weights(size: int) -> NDArray[np.uint64]:
    """A 64-bit factor for each node, such that different rows rarely add up to the same hash."""
    mixed = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(mixed ^ (mixed >> np.uint64(27)))
