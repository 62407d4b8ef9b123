"""Placing the containers of one pod on the GPUs of one node.

Containers that run at the same time are placed together, by a search with a bounded number of
steps. An init container has ended when those after it start, so it shares their GPUs as far as it
fits there: the pod has these anyway. A GPU is used as one kind by all containers of a pod. If the
pod does not fit in this order, the init containers are placed first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.demands import demand_of
from aliquot.kubernetes.cluster.parts import part_of
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
    """What each container gets on one node; None if the containers do not fit together."""
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
    """Demands on one node in the order of their containers, and which of them are init ones."""

    allocations: Allocations
    demands: Sequence[Demand]
    init: Sequence[bool]

    def main_first(self) -> dict[int, Placement] | None:
        found = self._main(self._gpus())
        return None if found is None else self._with_init(found)

    def init_first(self) -> dict[int, Placement] | None:
        if (
            False in self.init[: sum(self.init)]
        ):  # some sidecars run at the same time as init containers
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
        """Place all containers that run at the same time."""
        main = [number for number, init in enumerate(self.init) if not init]
        members = [self.demands[number] for number in main]
        found = ways.search(self.allocations, members, ways.Steps(STEPS), ways.GpuSet(0, gpus))
        return None if found is None else dict(zip(main, found, strict=True))

    def _with_init(self, found: dict[int, Placement]) -> dict[int, Placement] | None:
        """Add the init containers, each together with the sidecars that run at that time."""
        found = dict(found)
        sidecars: list[tuple[Placement, Demand]] = []
        try:
            for number, demand in enumerate(self.demands):
                if not self.init[number]:
                    if number in found and True in self.init[number:]:
                        sidecars.append((found[number], demand))
                        self.allocations.take(found[number], demand, known_to_fit=True)
                    continue
                placement = self._one_more(demand, found)
                if placement is None:
                    return None
                found[number] = placement
        finally:
            for one in sidecars:
                self.allocations.give(*one)
        return found

    def _one_more(self, demand: Demand, found: dict[int, Placement]) -> Placement | None:
        """Prefer GPUs that the pod already uses as this kind; never use those of another kind."""
        mine = {gpu: self.demands[n].kind for n, one in found.items() for gpu in one.gpus}
        alone = replace(demand, gpus=1)
        fitting = [
            gpu
            for gpu in self._gpus()
            if mine.get(gpu, demand.kind) is demand.kind
            and self.allocations.fits(Placement(0, (gpu,)), alone)
        ]
        if len(fitting) < demand.gpus:
            return None
        order = sorted(
            fitting, key=lambda gpu: (gpu not in mine, self.allocations.bytes_free[0, gpu], gpu)
        )
        return Placement(0, tuple(sorted(order[: demand.gpus])))
