"""What fits, told a second time: slow, plain, and without anything of what it judges.

Only the numbers in the allocations are read. What they mean is written here again, from the words
of the demand: how much of each GPU, of which kind, and of the node's CPU and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.demand import Demand, Kind, Placement
from aliquot.placement.core.fit import Lack


@dataclass
class OracleGpu:
    milli: int
    bytes: int
    size: int
    kind: Kind
    holders: int
    is_healthy: bool
    uuid: str
    beside: list[tuple[str, frozenset[str]]]  # label and avoided labels of each that has some

    def has_room(self, demand: Demand) -> bool:
        """For a part of the demand, were it not for the kind."""
        if demand.kind is Kind.WHOLE:
            enough = self.holders == 0 and self.size >= demand.gpu_bytes
        else:
            enough = self.milli >= demand.milli and self.bytes >= demand.gpu_bytes
        return self.is_healthy and self.kind is not Kind.WHOLE and enough

    def is_named(self, demand: Demand) -> bool:
        if demand.wishes is None:
            return True
        wishes = demand.wishes
        if any(self.uuid.startswith(one) for one in wishes.excluded):
            return False
        return not wishes.named or any(self.uuid.startswith(one) for one in wishes.named)

    def fits_with_anybody(self, demand: Demand) -> bool:
        is_kind = self.kind in (Kind.FREE, demand.kind)
        return self.has_room(demand) and is_kind and self.is_named(demand)

    def accepts(self, demand: Demand, labels: Collection[str]) -> bool:
        """Whether the slices here and the demand accept each other; `labels` are all there are."""
        if demand.wishes is None:
            return True
        mine = demand.wishes
        for label, avoided in self.beside:
            if (label and label in mine.apart_from) or (mine.label and mine.label in avoided):
                return False
        here = [label for label, _ in self.beside]
        return not mine.beside or mine.beside not in labels or mine.beside in here

    def fits(self, demand: Demand, labels: Collection[str]) -> bool:
        return self.fits_with_anybody(demand) and self.accepts(demand, labels)

    def change(self, demand: Demand, sign: int) -> None:
        is_whole = demand.kind is Kind.WHOLE
        self.milli -= sign * (1000 if is_whole else demand.milli)
        self.bytes -= sign * (self.size if is_whole else demand.gpu_bytes)
        self.holders += sign
        self.kind = demand.kind if self.holders else Kind.FREE
        if demand.wishes and (demand.wishes.label or demand.wishes.apart_from):
            mark = demand.wishes.label, demand.wishes.apart_from
            self.beside.append(mark) if sign > 0 else self.beside.remove(mark)


@dataclass
class Machine:
    model: str
    strength: float
    cpu: int
    ram: int
    gpus: list[OracleGpu]

    def fits(self, gpus: Sequence[int], demand: Demand, labels: Collection[str]) -> bool:
        if demand.models and self.model not in demand.models:
            return False
        if gpus and self.strength < demand.min_strength:
            return False
        if demand.cpu_milli > self.cpu or demand.ram_bytes > self.ram:
            return False
        return all(self.gpus[gpu].fits(demand, labels) for gpu in gpus)

    def change(self, gpus: Sequence[int], demand: Demand, sign: int) -> None:
        self.cpu -= sign * demand.cpu_milli
        self.ram -= sign * demand.ram_bytes
        for gpu in gpus:
            self.gpus[gpu].change(demand, sign)

    def count(self, which: Callable[[OracleGpu], bool]) -> int:
        return sum(map(which, self.gpus))


def machines(allocations: Allocations) -> list[Machine]:
    hardware = allocations.hardware
    return [
        Machine(
            model=hardware.models[int(hardware.model[node])],
            strength=float(hardware.strength[node]),
            cpu=int(allocations.cpu_free[node]),
            ram=int(allocations.ram_free[node]),
            gpus=[
                OracleGpu(
                    milli=int(allocations.milli_free[node, gpu]),
                    bytes=int(allocations.bytes_free[node, gpu]),
                    size=int(hardware.gpu_bytes[node]),
                    kind=Kind(int(allocations.kind[node, gpu])),
                    holders=int(allocations.holders[node, gpu]),
                    is_healthy=bool(hardware.present[node, gpu]),
                    uuid=next(iter(hardware.uuids[node][gpu : gpu + 1]), ""),
                    beside=[(one.label, one.apart_from) for one in allocations.marks.on(node, gpu)],
                )
                for gpu in range(int(hardware.gpu_count[node]))
            ],
        )
        for node in range(hardware.size)
    ]


def placements(allocations: Allocations, demand: Demand) -> Iterator[Placement]:
    return _placements(machines(allocations), demand)


def can_place(allocations: Allocations, members: Sequence[Demand]) -> bool:
    """Whether all fit, one after the other: who joins others comes after those that do not."""
    return _can_place(machines(allocations), sorted(members, key=_turn))


def can_be_placed_so(
    allocations: Allocations, members: Sequence[Demand], placed: Sequence[Placement]
) -> bool:
    """Whether each member may go to its place, one after the other."""
    every = machines(allocations)
    for member, placement in sorted(
        zip(members, placed, strict=True), key=lambda pair: _turn(pair[0])
    ):
        if placement not in _placements(every, member):
            return False
        every[placement.node].change(placement.gpus, member, 1)
    return True


def all_labels(every: Sequence[Machine]) -> set[str]:
    return {label for machine in every for gpu in machine.gpus for label, _ in gpu.beside}


def _turn(demand: Demand) -> tuple[bool, int, int, int, int]:
    is_late = demand.wishes is not None and demand.wishes.beside != ""
    part = 1000 if demand.kind is Kind.WHOLE else demand.milli
    return is_late, -part * demand.gpus, -demand.gpus, -demand.gpu_bytes, -demand.cpu_milli


def _placements(every: list[Machine], demand: Demand) -> Iterator[Placement]:
    labels = all_labels(every)
    for node, machine in enumerate(every):
        for gpus in combinations(range(len(machine.gpus)), demand.gpus):
            if machine.fits(gpus, demand, labels):
                yield Placement(node, gpus)


def _can_place(every: list[Machine], members: Sequence[Demand]) -> bool:
    if not members:
        return True
    for placement in _placements(every, members[0]):
        every[placement.node].change(placement.gpus, members[0], 1)
        found = _can_place(every, members[1:])
        every[placement.node].change(placement.gpus, members[0], -1)
        if found:
            return True
    return False


def true_lacks(machine: Machine, demand: Demand, labels: Collection[str]) -> list[Lack]:
    """All that keeps a demand from a node, the most lasting first."""
    fitting = machine.count(lambda one: one.fits_with_anybody(demand))
    welcome = machine.count(lambda one: one.fits(demand, labels))
    named = machine.count(lambda one: one.is_healthy and one.is_named(demand))
    roomy = machine.count(lambda one: one.has_room(demand) and one.is_named(demand))
    other = {Kind.SLICED: Kind.SHARED, Kind.SHARED: Kind.SLICED}.get(demand.kind)
    in_the_way = machine.count(lambda one: one.has_room(demand) and one.kind is other) > 0
    by_kind = fitting < demand.gpus <= roomy and in_the_way
    facts = {
        Lack.MODEL: bool(demand.models) and machine.model not in demand.models,
        Lack.WEAK: demand.gpus > 0 and machine.strength < demand.min_strength,
        Lack.TOO_FEW: machine.count(lambda one: one.is_healthy) < demand.gpus,
        Lack.NAMED: named < demand.gpus,
        Lack.TOO_SMALL: any(one.size < demand.gpu_bytes for one in machine.gpus)
        and demand.gpus > 0,
        Lack.CPU: machine.cpu < demand.cpu_milli,
        Lack.RAM: machine.ram < demand.ram_bytes,
        Lack.SHARED: by_kind and other is Kind.SHARED,
        Lack.SLICED: by_kind and other is Kind.SLICED,
        Lack.GPU: fitting < demand.gpus,
        Lack.NEIGHBOURS: welcome < demand.gpus,
    }
    return [lack for lack, is_true in facts.items() if is_true]
