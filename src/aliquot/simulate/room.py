"""The room of `placement.elastic` on a cluster: who keeps a worker keeps its place.

A job that shrinks gives back its last workers; one that grows gets places for the new ones beside
those that it has. What is asked is where all would be in the end, so what a job is about to give
back counts as given.

Workers that need one whole GPU and nothing else fit wherever one is free: these are counted. Others
are placed, before them and beside what is held now; only where that is impossible, after all that
shrink have given back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Demand, Gang, Kind
from aliquot.placement.gangs.plan import plan_gang

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Placement

ONE_GPU = Demand()

Changes = tuple[tuple[str, int], ...]


@dataclass
class ClusterRoom:
    """The allocations as they are, and what each job holds of them and needs for a worker."""

    allocations: Allocations
    held: Mapping[str, Sequence[Placement]]
    members: Mapping[str, Demand]
    by: Strategy
    seed: int = 0
    _beside: dict[Changes, int | None] = field(default_factory=dict)
    _after: dict[Changes, bool] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is a place for all workers of these jobs."""
        counted, placed = 0, []
        for name, size in sizes.items():
            more = size - len(self.held.get(name, ()))
            if more and self.members[name] == ONE_GPU:
                counted += more
            elif more:
                placed.append((name, more))
        free = self._free_beside(tuple(sorted(placed)))
        if free is not None:
            return counted <= free
        return self._holds_after(sizes)

    def free_milli(self, sizes: Mapping[str, int]) -> int:
        """How many thousandths of GPUs nobody has beside these."""
        free = int(self.allocations.milli_free[self.allocations.hardware.present].sum())
        for name, size in sizes.items():
            free += self.members[name].total_milli * (len(self.held.get(name, ())) - size)
        return free

    def _free_beside(self, placed: Changes) -> int | None:
        """How many GPUs stay free when these have got theirs; None where they do not fit."""
        if placed not in self._beside:
            trial = self.allocations.copy() if placed else self.allocations
            fits = self._put(trial, placed)
            self._beside[placed] = free_gpus(trial) if fits else None
        return self._beside[placed]

    def _holds_after(self, sizes: Mapping[str, int]) -> bool:
        changes = tuple(
            (name, more)
            for name, size in sorted(sizes.items())
            if (more := size - len(self.held.get(name, ())))
        )
        if changes not in self._after:
            self._after[changes] = self._put(self.allocations.copy(), changes)
        return self._after[changes]

    def _put(self, trial: Allocations, changes: Changes) -> bool:
        for name, more in changes:
            if more < 0:
                for placement in self.held[name][more:]:
                    trial.give(placement, self.members[name])
        grown = [(self.members[name] == ONE_GPU, name, more) for name, more in changes if more > 0]
        return all(self._place(trial, self.members[name], more) for _, name, more in sorted(grown))

    def _place(self, trial: Allocations, member: Demand, count: int) -> bool:
        found = plan_gang(trial, Gang("", (member,) * count), self.by, seed=self.seed)
        for placement in found or ():
            trial.take(placement, member, known_to_fit=True)
        return found is not None


def free_gpus(allocations: Allocations) -> int:
    """How many GPUs nobody holds a part of."""
    return int((allocations.hardware.present & (allocations.kind == int(Kind.FREE))).sum())
