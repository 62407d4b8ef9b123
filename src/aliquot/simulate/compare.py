"""Several strategies and seeds side by side."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from aliquot.simulate.openb import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.simulate.openb import OpenbPod, Replay


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One strategy over all seeds."""

    strategy: str
    runs: tuple[Replay, ...]

    @property
    def median(self) -> float:
        """The median of what was allocated."""
        return median(run.allocated for run in self.runs)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most."""
        found = [run.allocated for run in self.runs]
        return min(found), max(found)


def compare(  # noqa: PLR0913 - one for each option of the command
    nodes: Sequence[NodeHardware],
    pods: Sequence[OpenbPod],
    *,
    strategies: Sequence[str],
    seeds: Sequence[int],
    arrive: float = 1.3,
    progress: Callable[[float], None] | None = None,
) -> list[StrategyRow]:
    """Replay the list by each strategy with each seed."""
    total = len(strategies) * len(seeds)
    rows = []
    done = 0
    for name in strategies:
        runs = []
        for seed in seeds:
            runs.append(replay(nodes, pods, by=name, arrive=arrive, seed=seed))
            done += 1
            if progress is not None:
                progress(done / total)
        rows.append(StrategyRow(name, tuple(runs)))
    return rows
