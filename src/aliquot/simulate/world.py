"""The cluster of a simulation, and the record of its run.

How gangs start, stop and are resized is for the modules that build on it: `engine` and `elastic`.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aliquot.placement.choose.explain import never_fits
from aliquot.placement.choose.forecast import outlook
from aliquot.placement.choose.strategies import Fragmentation, strategy
from aliquot.placement.core.allocations import Allocations
from aliquot.placement.core.fit import all_rows
from aliquot.placement.core.snapshot import empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.placement.core.demand import Demand, Gang
    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.simulate.trace import Arrival

NEVER = "not all its members fit together, even where nothing runs"


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment.

    `held` is allocated to gangs that do not run yet; `lost` is the part of what is free that no
    likely request can use.
    """

    time: float
    allocated: float
    held: float
    lost: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a gang.

    `planned_start` is the first one that was planned, `reason` why it waits in the end. `messages`
    are about preemptions, its own and those for it, about a planned start that moved back, and
    about resizes, with their times. `lost` are the GPU seconds that resizes cost it.
    """

    gang: Gang
    start: float | None = None
    end: float | None = None
    planned_start: float | None = None
    evictions: int = 0
    reason: str = ""
    messages: tuple[tuple[float, str], ...] = ()
    resizes: int = 0
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """A whole simulation."""

    strategy: str
    seed: int
    capacity_milli: int
    seconds: float
    samples: tuple[Sample, ...] = field(repr=False)
    fates: tuple[Fate, ...] = field(repr=False)

    @property
    def allocated(self) -> float:
        """The part of all GPU time in which gangs ran, until the last one arrived or ended."""
        spans = zip(self.samples, self.samples[1:], strict=False)
        area = sum((one.allocated - one.held) * (then.time - one.time) for one, then in spans)
        length = self.samples[-1].time - self.samples[0].time if self.samples else 0.0
        return area / length if length else 0.0

    @property
    def placed(self) -> int:
        """How many gangs ran."""
        return sum(fate.start is not None for fate in self.fates)


class World:
    """The allocations, the strategy for what the trace brings, and the fate of each gang."""

    def __init__(
        self, nodes: Sequence[NodeHardware], arrivals: Sequence[Arrival], by: str, seed: int
    ) -> None:
        start = empty(nodes)
        mix: Counter[Demand] = Counter()
        for one in arrivals:
            mix.update(one.gang.members)
        likely = {demand: float(n) for demand, n in mix.items()}
        self.allocations, self.nothing_runs = Allocations(start), Allocations(start)
        self.by = strategy(by, start.hardware, likely)
        self.measure = Fragmentation(outlook(likely, start.hardware))
        self.named, self.seed = by, seed
        self.total_milli = start.hardware.total_milli
        self.fates = {one.gang.name: Fate(one.gang) for one in arrivals}

    def note(self, name: str, **new: object) -> None:
        """Record something about a gang."""
        self.fates[name] = replace(self.fates[name], **new)  # type: ignore[arg-type]

    def seen(self, now: float, held_milli: int, waiting: int) -> Sample:
        """The cluster at this moment; `held_milli` is allocated and idle."""
        free = int(self.allocations.milli_free[self.allocations.hardware.present].sum())
        total = max(1, self.total_milli)
        lost = self.measure.lost(all_rows(self.allocations))
        return Sample(now, (self.total_milli - free) / total, held_milli / total, lost, waiting)

    def summed_up(self, samples: Iterable[Sample], begun: float) -> Run:
        """The whole run; `begun` is by time.perf_counter."""
        return Run(
            strategy=self.named,
            seed=self.seed,
            capacity_milli=self.total_milli,
            seconds=time.perf_counter() - begun,
            samples=tuple(samples),
            fates=_with_reasons(self.fates.values(), self.nothing_runs),
        )


def _with_reasons(fates: Iterable[Fate], nothing_runs: Allocations) -> tuple[Fate, ...]:
    """The same, with what the nodes lack for gangs with a member that fits no node."""
    reasons: dict[tuple[Demand, ...], str | None] = {}
    found = []
    for fate in fates:
        members = fate.gang.members
        if fate.start is None and members not in reasons:
            reasons[members] = never_fits(nothing_runs, fate.gang)
        why = reasons.get(members) if fate.start is None else None
        found.append(fate if why is None else replace(fate, reason=why))
    return tuple(found)
