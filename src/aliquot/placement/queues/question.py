"""What a decision is made from: `DecisionInput`, elastic jobs that could shrink, and budgets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Gang, Running
    from aliquot.placement.queues.quota import Path, Queue, Resources


@dataclass(frozen=True, slots=True)
class ElasticSurplus:
    """What an elastic job has above its smallest size, and how long it takes to shrink.

    `parts` are what each of these workers has, in the order in which they end.
    """

    job: str
    seconds: float
    parts: tuple[Running, ...]


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """How many pods may be evicted now, of those that `pods` counts for each running gang."""

    allowed: int
    pods: Mapping[str, int]

    def after(self, victims: Iterable[Running]) -> DisruptionBudget:
        """What is left of it when these have been evicted."""
        gone = sum(self.pods.get(one.gang.name, 0) for one in victims)
        return replace(self, allowed=self.allowed - gone)


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """A snapshot of everything that a decision depends on.

    `running` is what runs or is reserved, without victims that are ending. `planned` are the
    planned starts of the last decision. `incomplete` are the missing members of gangs, each with
    the nodes (rows) of the members that run. `protected` are the names of running work that may not
    be preempted now. `searched_at` is when victims were last searched for a gang, as a number of a
    decision. `surpluses` are the elastic jobs that could shrink, and `waited` the gangs that have
    waited for that long enough. `ending` is what counts for limits until victims are gone, and
    `releasing` what victims still have and no gang was given. `budgets` bound how many pods are
    evicted.
    """

    allocations: Allocations
    running: Sequence[Running]
    planned: Sequence[Running]
    waiting: Sequence[Gang]
    incomplete: Sequence[tuple[Gang, Collection[int]]]
    queues: Mapping[str, Queue]
    now: float
    by: Strategy | None = None
    seed: int = 0
    protected: Collection[str] = ()
    searched_at: Mapping[str, int] = field(default_factory=dict)
    surpluses: Sequence[ElasticSurplus] = ()
    waited: Collection[str] = ()
    ending: Mapping[Path, Resources] = field(default_factory=dict)
    releasing: Sequence[Running] = ()
    budgets: Sequence[DisruptionBudget] = ()
