"""An elastic job as decisions see it, its speed at each size, and what checks whether sizes fit.

Nothing here imports another module of this package: all of them build on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from aliquot.model.job import MAX_WORKERS
from aliquot.placement.core.demand import Demand, Gang

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from aliquot.model.job import Sizes

EFFICIENCY = 0.9
WorkerKind = tuple[Demand, "Hashable"]
SLOWEST, FASTEST = 1e-6, 1e12  # a reported speed, in any unit


@dataclass(frozen=True, slots=True)
class Elastic:
    """A job whose number of workers can change.

    `size` is the number that it has or is about to have, 0 while it waits. `settled`: no resize is
    under way. `speeds` are measured, by size, in any one unit. `bound`: the job can only return to
    the GPUs it was suspended on, so nobody shrinks for it and it holds up nobody. `terms` is what
    else decides where its workers can be, such as the GPUs and the neighbours that it names. `gpus`
    are those that it may use by these terms now, free or not; None: all.
    """

    name: str
    sizes: Sizes
    member: Demand = field(default_factory=Demand)
    queue: str = ""
    priority: int = 0
    submitted: float = 0.0
    size: int = 0
    resized_at: float = -math.inf
    settled: bool = True
    speeds: Mapping[int, float] = field(default_factory=dict)
    rest_seconds: float = 0.0
    bound: bool = False
    terms: Hashable = None
    gpus: frozenset[str] | None = None

    @property
    def kind(self) -> WorkerKind:
        """All that decides where its workers can be: what holds for one job holds for its kind."""
        return self.member, self.terms

    def holds_up(self, other: Elastic) -> bool:
        """Whether another job may use only GPUs that this one may use too."""
        if self.gpus is None:
            return True
        return bool(self.gpus) and other.gpus is not None and other.gpus <= self.gpus

    def gang(self, size: int) -> Gang:
        """The job with that many workers."""
        return Gang(
            self.name,
            (self.member,) * size,
            queue=self.queue,
            priority=self.priority,
            submitted=self.submitted,
        )

    def speed(self, size: int) -> float:
        """Its speed with `size` workers, measured or assumed."""
        known = _believed(self.speeds)
        if not known:
            return float(size**EFFICIENCY)
        below = max((at for at in known if at <= size), default=None)
        above = min((at for at in known if at >= size), default=None)
        if below is None or above is None:
            near = min(known) if below is None else max(known)
            return float(known[near] * (size / near) ** EFFICIENCY)
        if below == above:
            return known[below]
        part = math.log(size / below) / math.log(above / below)
        return float(known[below] ** (1 - part) * known[above] ** part)


def plausible(size: int, speed: float) -> bool:
    """Whether a reported speed with `size` workers is possible."""
    return 1 <= size <= MAX_WORKERS and SLOWEST <= speed <= FASTEST


def _believed(speeds: Mapping[int, float]) -> dict[int, float]:
    """The reports that count: no job speeds up more than linearly with its workers."""
    found: dict[int, float] = {}
    each = math.inf
    for at in sorted(at for at, speed in speeds.items() if plausible(at, speed)):
        found[at] = min(speeds[at], each * at)
        each = min(each, speeds[at] / at)
    return found


class Fits(Protocol):
    """Whether jobs of some sizes fit on the GPUs together."""

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether all workers fit; a job that keeps its size stays where it is."""


@runtime_checkable
class CountsFree(Protocol):
    """A check that also knows how much is free: sizes that take more are not asked about."""

    def free_milli(self, sizes: Mapping[str, int]) -> int:
        """Thousandths of GPUs that are free besides these jobs; never too few."""
