"""`aliquot simulate ways`: the same jobs as gangs that come first, with backfill, and elastic."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

from aliquot.cli.simulate import progress_bar, write_plot
from aliquot.cli.simulate_source import (
    TraceSource,
    check_plot,
    check_strategies,
    timed,
    warn_of_quotas,
)
from aliquot.cli.tables import FigureTable, percent, print_json, print_sentence
from aliquot.model import format_count
from aliquot.model.errors import InvalidValueError
from aliquot.placement.core.snapshot import empty
from aliquot.simulate import generate, openb, openb_jobs
from aliquot.simulate.plot import Line, draw
from aliquot.simulate.ways import Figures, Way, completions, figures_of, run_way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aliquot.placement.core.snapshot import NodeHardware
    from aliquot.placement.elastic.resize import Rules
    from aliquot.placement.queues.quota import Queue
    from aliquot.simulate.elastic import Costs
    from aliquot.simulate.trace import Arrival
    from aliquot.simulate.ways import Stretch

HOUR = 3600.0
OPENB_LOAD, DIURNAL_LOAD = 0.9, 0.7
OPENB_NODES, OPENB_JOBS = 8, 1000
POINTS = 200
DRAWN = 0.97  # of the jobs: the last few would make the plot all tail


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _change(part: float) -> str:
    return f"{100 * part:+.0f} %"


FIGURES: tuple[tuple[str, Callable[[Figures], float], Callable[[float], str]], ...] = (
    ("Completion, mean (min)", lambda one: one.completion_mean, _minutes),
    ("Completion, 95% (min)", lambda one: one.completion_p95, _minutes),
    ("Wait, mean (min)", lambda one: one.wait_mean, _minutes),
    ("Wait, longest (min)", lambda one: one.wait_most, _minutes),
    ("GPU time used", lambda one: one.used, percent),
    ("GPU time lost to resizes", lambda one: one.lost, percent),
    ("Restarts a job", lambda one: one.restarts_per_job, _number),
    ("Resizes a job-hour", lambda one: one.resizes_per_job_hour, _number),
    ("Never ran", lambda one: one.never_ran, _count),
)


@dataclass(frozen=True)
class Workload:
    """Jobs and a cluster: openb's lists pressed together, generated days, or a trace as it is."""

    source: TraceSource
    stretch: Stretch
    diurnal: int | None = None
    nodes: int | None = None
    jobs: int | None = None
    load: float | None = None
    sizes_given: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.diurnal is not None and self.source != TraceSource():
            raise InvalidValueError(
                "--diurnal makes its own nodes and jobs",
                "Leave it out, or leave out --nodes, --pods, --day and --queues.",
            )
        chosen = {"--keep-nodes": self.nodes, "--keep-jobs": self.jobs}
        given = [name for name, value in chosen.items() if value is not None]
        if given and not self.is_openb:
            raise InvalidValueError(
                f"{' and '.join(given)} choose from openb's lists, and these are none",
                f"Leave out {' and '.join(given)}.",
            )

    @cached_property
    def is_openb(self) -> bool:
        """Whether it is made of openb's lists."""
        return self.diurnal is None and self.source.is_openb

    def of(self, seed: int) -> tuple[list[NodeHardware], list[Arrival], dict[str, Queue]]:
        """What comes with this seed, and where."""
        queues: dict[str, Queue] = {}
        if self.is_openb:
            specs = self._openb_nodes
            capacity = empty(specs).hardware.total_milli
            drawn = openb_jobs.some_of(self._openb_jobs, self.jobs or OPENB_JOBS, seed)
            arrivals = openb_jobs.pressed(drawn, capacity, self.load or OPENB_LOAD)
        elif self.diurnal is not None:
            specs = generate.plain(self.diurnal)
            arrivals = generate.diurnal(self.diurnal, seed, load=self.load or DIURNAL_LOAD)
        else:
            specs, arrivals, queues = timed(self.source, seed)
            if self.load is not None:
                capacity = empty(specs).hardware.total_milli
                arrivals = openb_jobs.pressed(arrivals, capacity, self.load)
        if self.sizes_given and any(one.sizes is not None for one in arrivals):
            given = " and ".join(self.sizes_given)
            raise InvalidValueError(
                f"{given} would have no effect: the gangs of {self.source.pods} name their sizes",
                f"Leave out {given}, or the columns least and most.",
            )
        return specs, self.stretch.apply(arrivals), queues

    @cached_property
    def _openb_nodes(self) -> list[NodeHardware]:
        every = openb.read_nodes(self.source.files()[0])
        return openb_jobs.some_nodes(every, self.nodes or OPENB_NODES)

    @cached_property
    def _openb_jobs(self) -> list[Arrival]:
        return openb_jobs.read_jobs(self.source.files()[1])


@dataclass(frozen=True, slots=True)
class WayRow:
    """One way over all seeds."""

    way: Way
    seeds: tuple[int, ...]
    runs: tuple[Figures, ...]
    times: tuple[float, ...]

    def of(self, figure: Callable[[Figures], float]) -> tuple[float, float, float]:
        """A figure's median over the seeds, the least and the most."""
        return _spread([figure(run) for run in self.runs])


def run_ways(  # noqa: PLR0913 - one for each option
    workload: Workload,
    *,
    ways: Sequence[str],
    seeds: Sequence[int],
    by: str,
    rules: Rules,
    costs: Costs,
    json: bool,
    plot: Path | None,
) -> None:
    """Run the same jobs in several ways, with several seeds, and print what came of it."""
    check_strategies([by])
    check_plot(plot)
    chosen = [parse_way(name) for name in ways]
    rows: list[WayRow] = []
    with progress_bar("comparing", shown=not json) as tell:
        total = len(chosen) * len(seeds)
        for way in chosen:
            figures, times = list[Figures](), list[float]()
            for seed in seeds:
                done = len(rows) * len(seeds) + len(figures)
                specs, arrivals, queues = workload.of(seed)
                if not done:
                    warn_of_quotas(workload.source, specs, queues)
                run = run_way(
                    way,
                    specs,
                    arrivals,
                    by=by,
                    seed=seed,
                    queues=queues,
                    rules=rules,
                    costs=costs,
                    progress=lambda part, done=done: tell((done + part) / total),  # type: ignore[misc]
                )
                figures.append(figures_of(run, arrivals))
                times.extend(completions(run))
            rows.append(WayRow(way, tuple(seeds), tuple(figures), tuple(sorted(times))))
    write_plot(plot, lambda: _plot(rows))
    if json:
        print_json(_words(rows, rules, costs, workload.stretch))
    else:
        _show(rows, rules, costs, workload.stretch)


def parse_way(name: str) -> Way:
    """The way of this name."""
    try:
        return Way(name)
    except ValueError as error:
        raise InvalidValueError(
            f"there is no way {name!r}", f"There are: {', '.join(Way)}."
        ) from error


def _show(rows: Sequence[WayRow], rules: Rules, costs: Costs, stretch: Stretch) -> None:
    table = FigureTable("", *(row.way for row in rows))
    for title, figure, write in FIGURES:
        table.add_row(title, *(_with_spread(row.of(figure), write) for row in rows))
    table.print()
    seeds = len(rows[0].seeds)
    jobs = sum(one.jobs + one.never_ran for one in rows[0].runs)
    medians = f"; medians of {seeds} seeds (least to most)" if seeds > 1 else ""
    print_sentence(f"{format_count(jobs, 'job')} in all{medians}.")
    for row in rows[1:]:
        mean, p95 = (
            _with_spread(_against(row, rows[0], figure), _change) for _, figure, _ in FIGURES[:2]
        )
        print_sentence(f"{row.way} against {rows[0].way}, seed by seed: mean {mean}, 95% {p95}.")
    if any(row.way is Way.ELASTIC for row in rows):
        print_sentence(_assumed(rules, costs, stretch))


def _assumed(rules: Rules, costs: Costs, stretch: Stretch) -> str:
    saves = (
        f"saves every {costs.checkpoint_seconds:.10g} s"
        if costs.checkpoint_seconds
        else "saves on notice"
    )
    return (
        f"Assumed: n workers are n^{costs.efficiency:g} as fast as one; a job of"
        f" {stretch.smallest_job} or more whole GPUs can have {stretch.least:g} to"
        f" {stretch.most:g} times as many; it gets notice {costs.notice_seconds:.10g} s ahead,"
        f" {saves}, and restarts in {costs.restart_seconds:.10g} s;"
        f" {rules.resize_seconds:.10g} s lie between two resizes of a job; a job that has"
        f" waited for {rules.patience_seconds:.10g} s is not overtaken."
    )


def _against(
    row: WayRow, other: WayRow, figure: Callable[[Figures], float]
) -> tuple[float, float, float]:
    pairs = zip(row.runs, other.runs, strict=True)
    return _spread([figure(one) / (figure(two) or 1.0) - 1 for one, two in pairs])


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def _with_spread(values: tuple[float, float, float], write: Callable[[float], str]) -> str:
    middle, least, most = map(write, values)
    return middle if least == most else f"{middle} ({least} to {most})"


def _words(rows: Sequence[WayRow], rules: Rules, costs: Costs, stretch: Stretch) -> dict[str, Any]:
    return {
        "assumed": {**asdict(costs), **asdict(rules), "sizes": asdict(stretch)},
        "ways": [
            {
                "way": row.way,
                **{
                    name: dict(
                        zip(
                            ("median", "least", "most"),
                            row.of(lambda one, name=name: getattr(one, name)),  # type: ignore[misc]
                            strict=True,
                        )
                    )
                    for name in Figures.__dataclass_fields__
                },
                "runs": [
                    {"seed": seed, **asdict(run)}
                    for seed, run in zip(row.seeds, row.runs, strict=True)
                ],
            }
            for row in rows
        ],
    }


def _plot(rows: Sequence[WayRow]) -> str:
    lines = []
    ends = (row.times[int(DRAWN * (len(row.times) - 1))] for row in rows if row.times)
    end = max(ends, default=0.0)
    for row in rows:
        shown = [one for one in row.times if one <= end]
        every = max(1, len(shown) // POINTS)
        points = [
            (one / HOUR, (number + 1) / len(row.times))
            for number, one in enumerate(shown)
            if number % every == 0 or number == len(shown) - 1
        ]
        mean = row.of(lambda one: one.completion_mean)[0] / 60
        lines.append(Line(f"{row.way}: mean {mean:.0f} min", [(0.0, 0.0), *points]))
    return draw(
        "Jobs that have ended", "hours since they came", "% of jobs", lines, low=True, clock=True
    )
