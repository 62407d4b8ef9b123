"""The same list of jobs run in three ways, and what each comes to.

`first-come`: gangs of the size they ask for, in order; one that does not fit blocks all behind it.
`backfill`: the same gangs with planned starts, and smaller work in the gaps before them.
`elastic`: gangs that can be resized are, by `placement.elastic`; the others stay as they are.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from aliquot.model.errors import InvalidValueError
from aliquot.model.job import MAX_WORKERS, Sizes
from aliquot.placement.core.demand import WHOLE_MILLI, Kind
from aliquot.simulate.elastic import Costs, simulate_elastic
from aliquot.simulate.engine import Discipline, simulate
from aliquot.simulate.report import percentile_95

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.placement.elastic.resize import Rules
    from aliquot.placement.queues.quota import Queue
    from aliquot.simulate.trace import Arrival
    from aliquot.simulate.world import Fate, Run

HOUR = 3600.0
RANGE_EXAMPLE = "Write for example 0.5..2: from half to twice the workers that a job asks for."

_RANGE = re.compile(r"([0-9.]+)\.\.([0-9.]+)", re.ASCII)


class Way(StrEnum):
    """How jobs are scheduled."""

    FIRST_COME = "first-come"
    BACKFILL = "backfill"
    ELASTIC = "elastic"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Which jobs can be resized, and how far: in parts of the workers that they ask for."""

    least: float = 0.5
    most: float = 2.0
    smallest_job: int = 2

    def apply(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The jobs, with sizes for jobs of whole GPUs that request at least `smallest_job` workers.

        If any job already has sizes, all jobs are returned unchanged.
        """
        if any(one.sizes is not None for one in arrivals):
            return list(arrivals)
        return [replace(one, sizes=self._sizes(one)) for one in arrivals]

    def _sizes(self, arrival: Arrival) -> Sizes | None:
        members = arrival.gang.members
        asked = len(members)
        is_equal = len(set(members)) == 1 and members[0].kind is Kind.WHOLE
        if not is_equal or asked < self.smallest_job:
            return None
        most = min(MAX_WORKERS, math.floor(asked * self.most))
        return Sizes(tuple(range(math.ceil(asked * self.least), most + 1)))


def parse_stretch(text: str, smallest_job: int) -> Stretch:
    """Read `0.5..2`."""
    match = _RANGE.fullmatch(text.strip())
    try:
        least, most = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    except ValueError:
        least = most = 0.0
    if not (least > 0 and most > 0):
        raise InvalidValueError(f"{text!r} is no range of sizes", RANGE_EXAMPLE)
    if most < least:
        raise InvalidValueError(
            f"{text!r}: the maximum {most:g} is below the minimum {least:g}", RANGE_EXAMPLE
        )
    if not least <= 1 <= most:
        raise InvalidValueError(
            f"{text!r}: a job could not have the workers that it asks for",
            f"1 must be in the range. {RANGE_EXAMPLE}",
        )
    return Stretch(least, most, smallest_job)


def run_way(  # noqa: PLR0913 - one for each option of the command
    way: Way,
    nodes: Sequence[NodeHardware],
    arrivals: Sequence[Arrival],
    *,
    by: str = "fragmentation",
    seed: int = 42,
    queues: Mapping[str, Queue] | None = None,
    rules: Rules | None = None,
    costs: Costs | None = None,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Run the jobs in this way."""
    if way is Way.ELASTIC:
        return simulate_elastic(
            nodes,
            arrivals,
            by=by,
            seed=seed,
            queues=queues,
            rules=rules,
            costs=costs,
            progress=progress,
        )
    discipline = Discipline.FIRST_COME if way is Way.FIRST_COME else Discipline.GANGS
    return simulate(
        nodes,
        arrivals,
        by=by,
        seed=seed,
        queues=queues,
        discipline=discipline,
        progress=progress,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run.

    Completion is from a job's arrival to its end, in seconds. Means leave out jobs that never ran.
    `used` is the part of all GPU time, until the last arrival, in which jobs worked. `lost` is the
    part of the jobs' own GPU time that resizes cost. Restarts are caused by resizes and evictions.
    `resizes_per_job_hour` counts only jobs that can be resized, from their start to their end.
    """

    jobs: int
    never_ran: int
    completion_mean: float
    completion_p95: float
    wait_mean: float
    wait_most: float
    used: float
    lost: float
    restarts: int
    restarts_per_job: float
    resizes_per_job_hour: float


def figures_of(run: Run, arrivals: Sequence[Arrival]) -> Figures:
    """The figures of a run of these jobs."""
    done = [fate for fate in run.fates if fate.start is not None and fate.end is not None]
    times = completions(run)
    elastic = {one.gang.name for one in arrivals if one.sizes is not None and one.sizes.elastic}
    hours = sum(_ran(fate) for fate in done if fate.gang.name in elastic) / HOUR
    resizes = sum(fate.resizes for fate in run.fates)
    restarts = resizes + sum(fate.evictions for fate in run.fates)
    last = max((one.gang.submitted for one in arrivals), default=0.0)
    held = _area(run, math.inf, with_idle=True)
    lost = sum(fate.lost for fate in run.fates) * WHOLE_MILLI / max(1, run.capacity_milli)
    waits = [(fate.start or 0.0) - fate.gang.submitted for fate in done]
    return Figures(
        jobs=len(done),
        never_ran=len(run.fates) - len(done),
        completion_mean=_mean(times),
        completion_p95=percentile_95(times),
        wait_mean=_mean(waits),
        wait_most=max(waits, default=0.0),
        used=_area(run, last, with_idle=False) / _length(run, last),
        lost=lost / held if held else 0.0,
        restarts=restarts,
        restarts_per_job=restarts / max(1, len(done)),
        resizes_per_job_hour=resizes / hours if hours else 0.0,
    )


def completions(run: Run) -> list[float]:
    """How long each job took from its arrival to its end, the shortest first."""
    return sorted(fate.end - fate.gang.submitted for fate in run.fates if fate.end is not None)


def _ran(fate: Fate) -> float:
    return (fate.end or 0.0) - (fate.start or 0.0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _length(run: Run, until: float) -> float:
    first = run.samples[0].time if run.samples else 0.0
    return max(until - first, 1e-9)


def _area(run: Run, until: float, *, with_idle: bool) -> float:
    """Parts of all GPUs times seconds, in which jobs had them or worked on them."""
    return sum(
        (one.allocated - (0.0 if with_idle else one.held)) * (min(then.time, until) - one.time)
        for one, then in zip(run.samples, run.samples[1:], strict=False)
        if one.time < until
    )
