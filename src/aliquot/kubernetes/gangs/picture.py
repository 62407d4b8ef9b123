"""The cluster and its gangs in the numbers of the brain. Pure; made anew for each decision.

The brain knows models of GPUs, and no selectors or taints. So here the nodes of one model that are
not open to the same pods are given models of their own, and a pod's demand names those that it may
go to. Racks and blocks come from the nodes' labels.

A pod is one demand on one node. One whose containers ask for parts of different kinds cannot be put
into one, and is refused as a member of a gang; several containers that ask for whole GPUs can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.gangs.nodes import BLOCKS, RACKS, label_of
from aliquot.kubernetes.pods import BadRequestError
from aliquot.kubernetes.scheduler.demands import ANY_SIZE, NO_MODEL, demand_of
from aliquot.kubernetes.scheduler.together import part_of
from aliquot.placement.demand import Demand, Gang, Kind, Placement, Running
from aliquot.placement.strategies import strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aliquot.kubernetes.api.objects import Node
    from aliquot.kubernetes.gangs.nodes import Limits
    from aliquot.kubernetes.pods import ContainerRequest
    from aliquot.kubernetes.scheduler.cluster import Cluster
    from aliquot.kubernetes.scheduler.parts import Parts
    from aliquot.kubernetes.scheduler.tally import Holding
    from aliquot.placement.books import Books
    from aliquot.placement.snapshot import Hardware
    from aliquot.placement.strategies import Strategy

CLASS = "\0"  # between the name of a model and the number of its nodes' class


@dataclass(frozen=True, slots=True)
class Labels:
    """Which labels of nodes name their rack and their block; the first that one has counts."""

    racks: tuple[str, ...] = RACKS
    blocks: tuple[str, ...] = BLOCKS


@dataclass(frozen=True, slots=True)
class Work:
    """Whose GPUs a pod's are: a gang's, or its own; since when and for how long."""

    name: str
    start: float
    seconds: float
    queue: str = ""
    priority: int = 0


class Picture:
    """The books with what pods of these limits may use of them."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Mapping[str, Node],
        limits: Collection[Limits] = (),
        labels: Labels = Labels(),  # noqa: B008 - frozen
    ) -> None:
        books = cluster.chooser.books.copy()
        self._cluster = cluster
        self._rows = cluster.rows
        self.names: dict[int, str] = {row: name for name, row in self._rows.items()}
        self._models = books.hardware.models
        self._open_to: dict[Limits, frozenset[str]] = {}
        hardware = self._with_classes(books.hardware, nodes, list(dict.fromkeys(limits)))
        self.hardware = books.hardware = self._with_racks(hardware, nodes, labels)
        self.books: Books = books

    @property
    def by(self) -> Strategy:
        """The strategy, for these models."""
        return strategy(self._cluster.by, self.hardware)

    # --- what pods ask for ------------------------------------------------------------------------

    def demand(self, requests: Sequence[ContainerRequest], limits: Limits) -> Demand:
        """What a pod asks for; BadRequestError where that cannot be said as one demand."""
        request = as_one(requests)
        models = self.hardware.models
        sizes = list(self._cluster.sizes) or [ANY_SIZE]
        every = [demand_of(request, one.gpu_bytes, one.shares, models) for one in sizes]
        largest = replace(
            every[0],
            milli=max(one.milli for one in every),
            gpu_bytes=max(one.gpu_bytes for one in every),
        )
        allowed = self._open_to[limits]
        if len(allowed) == len(models):
            return largest
        both = allowed & largest.models if largest.models else allowed
        return replace(largest, models=both or NO_MODEL)

    def placement(self, node: str, gpus: tuple[int, ...]) -> Placement | None:
        """GPUs of a node, where it has a row."""
        row = self._rows.get(node)
        return None if row is None else Placement(row, gpus)

    def parts(self, requests: Sequence[ContainerRequest], placement: Placement) -> Parts:
        """What the containers of a pod get there: those that run together, GPUs of their own."""
        status = self._cluster.nodes[self.names[placement.node]].status
        found, at = [], 0
        for one in requests:
            begin = 0 if one.init or len(requests) == 1 else at
            gpus = placement.gpus[begin : begin + one.gpus]
            at += 0 if one.init else one.gpus
            found.append(part_of(one, gpus, status))
        return tuple(found)

    # --- what runs --------------------------------------------------------------------------------

    def running(
        self, whose: Callable[[str], Work | None], without: Collection[str] = ()
    ) -> list[Running]:
        """All that is held or reserved, by gangs and by single pods, but for those of these UIDs.

        What belongs to nobody (`whose` knows it not) is left out: it is taken, and never ends.
        """
        members: dict[str, list[tuple[Placement, Demand]]] = {}
        works: dict[str, Work] = {}
        for name, row in self._rows.items():
            for uid, held in self._cluster.held(name).items():
                work = None if uid in without else whose(uid)
                if work is None:
                    continue
                works.setdefault(work.name, work)
                members.setdefault(work.name, []).extend(_held(row, held))
        return [_running(works[name], pairs) for name, pairs in members.items() if pairs]

    # --- inside -----------------------------------------------------------------------------------

    def _with_classes(
        self, hardware: Hardware, nodes: Mapping[str, Node], limits: Sequence[Limits]
    ) -> Hardware:
        """Models by which limits can be told from each other."""
        open_to = {
            row: tuple(one.allow(name, nodes.get(name)) for one in limits)
            for row, name in self.names.items()
        }
        every = tuple(True for _ in limits)
        if all(one == every for one in open_to.values()):
            self._open_to = dict.fromkeys(limits, frozenset(hardware.models))
            return hardware
        numbers: dict[tuple[int, tuple[bool, ...]], int] = {}
        model = hardware.model.copy()
        for row in range(hardware.size):
            key = int(hardware.model[row]), open_to.get(row, every)
            model[row] = numbers.setdefault(key, len(numbers))
        names = [f"{hardware.models[old]}{CLASS}{number}" for (old, _), number in numbers.items()]
        for place, one in enumerate(limits):
            allowed = (names[number] for (_, sign), number in numbers.items() if sign[place])
            self._open_to[one] = frozenset(allowed)
        return replace(
            hardware,
            models=tuple(names),
            model_bytes=tuple(hardware.model_bytes[old] for old, _ in numbers),
            model=model,
        )

    def _with_racks(
        self, hardware: Hardware, nodes: Mapping[str, Node], labels: Labels
    ) -> Hardware:
        racks: dict[tuple[str, str], int] = {}
        blocks: dict[str, int] = {}
        rack, block = np.zeros_like(hardware.rack), np.zeros_like(hardware.block)
        for row, known in enumerate(hardware.names):
            node = nodes.get(self.names.get(row, ""))
            there = label_of(node, labels.blocks)
            block[row] = blocks.setdefault(there, len(blocks))
            here = there, label_of(node, labels.racks) or known
            rack[row] = racks.setdefault(here, len(racks))
        return replace(hardware, rack=rack, block=block)


def as_one(requests: Sequence[ContainerRequest]) -> ContainerRequest:
    """The containers of a pod as if they were one."""
    if len(requests) == 1:
        return requests[0]
    if any(one.kind != "whole" for one in requests):
        names = ", ".join(repr(one.container) for one in requests)
        raise BadRequestError(
            "SeveralContainers",
            f"containers {names} of one pod ask for GPUs, and not all for whole ones",
            "In a gang, let one container of a pod ask for them, or all for whole GPUs.",
        )
    beside = sum(one.gpus for one in requests if not one.init)
    return replace(requests[-1], gpus=max(beside, *(one.gpus for one in requests)))


def bare(demand: Demand) -> Demand:
    """A demand without its models, whose names change from picture to picture."""
    return replace(demand, models=frozenset())


def _held(row: int, held: Mapping[int, Holding]) -> list[tuple[Placement, Demand]]:
    """What a pod holds, GPU by GPU, so that giving it back makes the books what they were."""
    pairs = []
    for column, one in held.items():
        place = Placement(row, (column,))
        use = one.use
        first = Demand(kind=one.kind, milli=min(use.milli, 1000), gpu_bytes=use.bytes)
        if one.kind is Kind.WHOLE:
            first = Demand()
        pairs.append((place, first))
        more = Demand(kind=one.kind, milli=0) if one.kind is not Kind.WHOLE else None
        pairs += [(place, more)] * (use.holders - 1) if more else []
    return pairs


def _running(work: Work, pairs: Sequence[tuple[Placement, Demand]]) -> Running:
    gang = Gang(
        name=work.name,
        members=tuple(demand for _, demand in pairs),
        seconds=work.seconds,
        queue=work.queue,
        priority=work.priority,
        submitted=work.start,
    )
    placements = tuple(place for place, _ in pairs)
    return Running(gang, placements, work.start, work.start + work.seconds)
