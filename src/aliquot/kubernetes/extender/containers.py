"""The containers of one pod on the GPUs of one node.

Containers that run beside each other are placed together, by a search that tries every way within
its steps. An init container has ended when those after it begin, so it goes to GPUs that they have
too, as far as there is room for it: the pod holds those anyway. A GPU is of one kind for all that a
pod does there. Where that leaves no way, the init containers are placed first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.demands import demand_of
from aliquot.kubernetes.cluster.parts import Part
from aliquot.placement.core.demand import Placement
from aliquot.placement.gangs import search as ways

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aliquot.kubernetes.api.gpunode import GpuNodeStatus
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.placement.choose.chooser import Chooser
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand

STEPS = 2000


def place(
    chooser: Chooser, requests: Sequence[ContainerRequest], status: GpuNodeStatus
) -> Parts | None:
    """What each container gets on this one node; None if the containers do not fit together."""
    hardware = chooser.allocations.hardware
    demands = [
        demand_of(one, int(hardware.gpu_bytes[0]), status.shares, hardware.models)
        for one in requests
    ]
    if len(requests) == 1:
        placement = chooser.choose(demands[0])
        found = None if placement is None else {0: placement}
    else:
        pod = _Pod(chooser.allocations, demands, [one.init for one in requests])
        found = pod.main_first() or pod.init_first()
    if found is None:
        return None
    return tuple(part_of(one, found[number].gpus, status) for number, one in enumerate(requests))


@dataclass(frozen=True, slots=True)
class _Pod:
    """Demands on one node, in the order of their containers, and which are of init containers."""

    allocations: Allocations
    demands: Sequence[Demand]
    init: Sequence[bool]

    def main_first(self) -> dict[int, Placement] | None:
        found = self._main(self._gpus())
        return None if found is None else self._with_init(found)

    def init_first(self) -> dict[int, Placement] | None:
        if False in self.init[: sum(self.init)]:  # some run beside init containers
            return None
        first = self._with_init({})
        if first is None:
            return None
        kinds = {self.demands[number].kind for number, init in enumerate(self.init) if not init}
        barred = {
            gpu
            for number, one in first.items()
            for gpu in one.gpus
            if kinds != {self.demands[number].kind}
        }
        found = self._main([gpu for gpu in self._gpus() if gpu not in barred])
        return None if found is None else {**first, **found}

    def _gpus(self) -> Collection[int]:
        return range(self.allocations.hardware.present.shape[1])

    def _main(self, gpus: Collection[int]) -> dict[int, Placement] | None:
        """All that run beside each other."""
        main = [number for number, init in enumerate(self.init) if not init]
        members = [self.demands[number] for number in main]
        found = ways.search(self.allocations, members, ways.Steps(STEPS), ways.GpuSet(0, gpus))
        return None if found is None else dict(zip(main, found, strict=True))

    def _with_init(self, found: dict[int, Placement]) -> dict[int, Placement] | None:
        """Add the init containers, each beside those that run already when it does."""
        found = dict(found)
        beside: list[tuple[Placement, Demand]] = []
        try:
            for number, demand in enumerate(self.demands):
                if not self.init[number]:
                    if number in found and True in self.init[number:]:
                        beside.append((found[number], demand))
                        self.allocations.take(found[number], demand, known_to_fit=True)
                    continue
                placement = self._one_more(demand, found)
                if placement is None:
                    return None
                found[number] = placement
        finally:
            for one in beside:
                self.allocations.give(*one)
        return found

    def _one_more(self, demand: Demand, found: dict[int, Placement]) -> Placement | None:
        """On GPUs that the pod has as the same kind first, never on those of another."""
        mine = {gpu: self.demands[n].kind for n, one in found.items() for gpu in one.gpus}
        alone = replace(demand, gpus=1)
        room = [
            gpu
            for gpu in self._gpus()
            if mine.get(gpu, demand.kind) is demand.kind
            and self.allocations.fits(Placement(0, (gpu,)), alone)
        ]
        if len(room) < demand.gpus:
            return None
        order = sorted(
            room, key=lambda gpu: (gpu not in mine, self.allocations.bytes_free[0, gpu], gpu)
        )
        return Placement(0, tuple(sorted(order[: demand.gpus])))


def part_of(request: ContainerRequest, gpus: Sequence[int], status: GpuNodeStatus) -> Part:
    """What a container gets on these GPUs of a node, by column."""
    cards = [status.gpus[column] for column in gpus]
    return Part(
        container=request.container,
        kind=request.kind,
        gpus=tuple(card.uuid for card in cards),
        memory=min(request.memory_of(card.memory, status.shares) for card in cards),
        compute=request.compute,
        reserved=request.reserved,
        init=request.init,
        units=request.units,
    )
