"""`aliquot simulate` and `aliquot simulate compare`: what they print."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import fields
from statistics import median
from typing import TYPE_CHECKING, Any

from aliquot.cli.simulate_source import (
    ARRIVE,
    check_plot,
    check_strategies,
    of_openb,
    timed,
    warn_of_quotas,
)
from aliquot.cli.tables import NOTHING, FigureTable, percent, print_json, print_sentence, print_text
from aliquot.model.errors import OutputError
from aliquot.simulate import openb
from aliquot.simulate.compare import compare
from aliquot.simulate.engine import simulate
from aliquot.simulate.plot import Line, draw
from aliquot.simulate.report import by_queue, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from aliquot.cli.simulate_source import TraceSource
    from aliquot.simulate.openb import Replay
    from aliquot.simulate.report import Outcome
    from aliquot.simulate.world import Run

HOUR = 3600.0
ALLOCATED = ("Allocated (median)", "Least", "Most")
USED = ("GPU time used (median)", "Least", "Most")
OUTCOME = ("Ran", "Never ran", "Evictions", "Mean wait", "95% wait")


def run_simulation(
    source: TraceSource, *, by: str, seed: int, json: bool, plot: Path | None
) -> None:
    """Replay a list of the openb trace, or run a trace over time, and print what came of it."""
    check_strategies([by])
    check_plot(plot)
    if source.is_openb:
        nodes, pods = of_openb(source)
        arrive = source.arrive or ARRIVE
        with progress_bar(f"{by}, seed {seed}", shown=not json) as tell:
            replay = openb.replay(nodes, pods, by=by, arrive=arrive, seed=seed, progress=tell)
        write_plot(plot, lambda: _course([replay]))
        _show_replay(replay, json=json)
        return
    specs, arrivals, queues = timed(source, seed)
    warn_of_quotas(source, specs, queues)
    with progress_bar(f"{by}, seed {seed}", shown=not json) as tell:
        run = simulate(specs, arrivals, by=by, seed=seed, queues=queues, progress=tell)
    write_plot(plot, lambda: _over_time(run))
    _show_run(run, json=json)


def run_comparison(
    source: TraceSource,
    *,
    strategies: Sequence[str],
    seeds: Sequence[int],
    json: bool,
    plot: Path | None,
) -> None:
    """Several strategies and seeds side by side."""
    check_strategies(strategies)
    check_plot(plot)
    if not source.is_openb:
        _compare_over_time(source, strategies, seeds, json=json, plot=plot)
        return
    nodes, pods = of_openb(source)
    arrive = source.arrive or ARRIVE
    with progress_bar("comparing", shown=not json) as tell:
        rows = compare(
            nodes, pods, strategies=strategies, seeds=seeds, arrive=arrive, progress=tell
        )
    write_plot(plot, lambda: _course([row.runs[0] for row in rows]))
    if json:
        print_json(
            [_row_words(row.strategy, row.runs, map(_replay_words, row.runs)) for row in rows]
        )
        return
    table = FigureTable("Strategy", *ALLOCATED, "Refused", "Seconds a run, at most")
    for row in sorted(rows, key=lambda one: -one.median):
        table.add_row(
            row.strategy,
            percent(row.median),
            percent(row.spread[0]),
            percent(row.spread[1]),
            str(round(sum(run.refused for run in row.runs) / len(row.runs))),
            f"{max(run.seconds for run in row.runs):.1f}",
        )
    table.print()


def _compare_over_time(
    source: TraceSource,
    strategies: Sequence[str],
    seeds: Sequence[int],
    *,
    json: bool,
    plot: Path | None,
) -> None:
    specs, _, queues = timed(source, seeds[0])
    warn_of_quotas(source, specs, queues)
    rows: dict[str, list[Run]] = {name: [] for name in strategies}
    total = len(rows) * len(seeds)
    with progress_bar("comparing", shown=not json) as tell:
        for name, runs in rows.items():
            for seed in seeds:
                specs, arrivals, queues = timed(source, seed)
                runs.append(simulate(specs, arrivals, by=name, seed=seed, queues=queues))
                tell(sum(map(len, rows.values())) / total)
    write_plot(plot, lambda: _side_by_side([runs[0] for runs in rows.values()]))
    if json:
        print_json([_row_words(name, runs, map(_run_words, runs)) for name, runs in rows.items()])
        return
    table = FigureTable("Strategy", *USED, *OUTCOME)
    for name, runs in sorted(rows.items(), key=lambda row: -_spread(row[1])[0]):
        cells = _cells([outcome_of(run.fates) for run in runs])
        table.add_row(name, *map(percent, _spread(runs)), *cells)
    table.print()
    _print_queues(rows)
    if len(seeds) > 1:
        print_sentence(f"Each figure is the median of {len(seeds)} seeds, but for least and most.")


def _spread(runs: Sequence[Run | Replay]) -> tuple[float, float, float]:
    found = [run.allocated for run in runs]
    return median(found), min(found), max(found)


def _row_words(
    name: str, runs: Sequence[Run | Replay], words: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    middle, least, most = _spread(runs)
    return {"strategy": name, "median": middle, "least": least, "most": most, "runs": list(words)}


def _show_replay(replay: Replay, *, json: bool) -> None:
    if json:
        print_json(_replay_words(replay))
        return
    table = FigureTable("Strategy", "Seed", "Allocated", "Placed", "Refused", "Seconds")
    table.add_row(
        replay.strategy,
        str(replay.seed),
        percent(replay.allocated),
        str(replay.placed),
        str(replay.refused),
        f"{replay.seconds:.1f}",
    )
    table.print()


def _replay_words(replay: Replay) -> dict[str, Any]:
    return {
        "strategy": replay.strategy,
        "seed": replay.seed,
        "allocated": replay.allocated,
        "placed": replay.placed,
        "refused": replay.refused,
        "placed_milli": replay.placed_milli,
        "refused_milli": replay.refused_milli,
        "lost": replay.lost,
        "capacity_milli": replay.capacity_milli,
        "seconds": replay.seconds,
    }


def _show_run(run: Run, *, json: bool) -> None:
    if json:
        messages = [
            {"gang": fate.gang.name, "time": time, "message": message}
            for fate in run.fates
            for time, message in fate.messages
        ]
        answer = _run_words(run)
        answer["preemptions"] = sorted(messages, key=lambda one: (one["time"], one["gang"]))
        print_json(answer)
        return
    table = FigureTable("Strategy", "Seed", "GPU time used", *OUTCOME)
    cells = _cells([outcome_of(run.fates)])
    table.add_row(run.strategy, str(run.seed), percent(run.allocated), *cells)
    table.print()
    _print_queues({run.strategy: [run]})
    for fate in run.fates:
        for time, message in fate.messages:
            print_sentence(f"{fate.gang.name}, at {round(time, 2):.15g} s: {message}")
        if fate.start is None:
            print_sentence(f"{fate.gang.name} never ran: {fate.reason}")


def _print_queues(rows: Mapping[str, Sequence[Run]]) -> None:
    """What became of each queue, where there are several; by each strategy."""
    found = {name: [by_queue(run.fates) for run in runs] for name, runs in rows.items()}
    queues = sorted({queue for runs in found.values() for run in runs for queue in run})
    if len(queues) < 2:
        return
    first = ("Strategy", "Queue") if len(rows) > 1 else ("Queue",)
    print_text("\n")
    table = FigureTable(*first, *OUTCOME)
    for name, runs in found.items():
        for queue in queues:
            cells = _cells([run[queue] for run in runs if queue in run])
            table.add_row(*(name, queue or NOTHING)[-len(first) :], *cells)
    table.print()


def _cells(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """The medians of these."""
    middle = {
        one.name: median(getattr(outcome, one.name) for outcome in outcomes)
        for one in fields(outcomes[0])
    }
    counts = (middle[name] for name in ("ran", "never_ran", "evictions"))
    waits = (middle[name] for name in ("wait_mean", "wait_p95"))
    return (
        *(f"{count:.1f}".removesuffix(".0") for count in counts),
        *(f"{wait / 60:.1f} min" for wait in waits),
    )


def _outcome_words(outcome: Outcome) -> dict[str, Any]:
    return {
        "placed": outcome.ran,
        "refused": outcome.never_ran,
        "evictions": outcome.evictions,
        "wait_mean_seconds": outcome.wait_mean,
        "wait_p95_seconds": outcome.wait_p95,
        "completion_mean_seconds": outcome.completion_mean,
    }


def _run_words(run: Run) -> dict[str, Any]:
    return {
        "strategy": run.strategy,
        "seed": run.seed,
        "allocated": run.allocated,
        **_outcome_words(outcome_of(run.fates)),
        "lost_mean": sum(one.lost for one in run.samples) / max(1, len(run.samples)),
        "capacity_milli": run.capacity_milli,
        "seconds": run.seconds,
        "queues": {name: _outcome_words(one) for name, one in by_queue(run.fates).items()},
        "refused_gangs": [
            {"gang": fate.gang.name, "reason": fate.reason}
            for fate in run.fates
            if fate.start is None
        ],
    }


def _course(replays: Sequence[Replay]) -> str:
    lines = [Line(f"{one.strategy} {one.allocated:.1%}", one.course) for one in replays]
    return draw("Allocated as requests arrive", "GPUs asked for / GPUs", "% of GPUs", lines)


def _over_time(run: Run) -> str:
    allocated = [(one.time / HOUR, one.allocated) for one in run.samples]
    lost = [(one.time / HOUR, one.lost) for one in run.samples]
    most = max((one.waiting for one in run.samples), default=0) or 1
    waiting = [(one.time / HOUR, one.waiting / most) for one in run.samples]
    lines = [
        Line(f"{run.strategy}: allocated, {run.allocated:.1%} of the time", allocated, steps=True),
        Line("of what is left, lost to fragmentation", lost, steps=True),
        Line(f"gangs that wait, of at most {most}", waiting, steps=True),
    ]
    return draw("Allocated over time", "hours", "%", lines, clock=True)


def _side_by_side(runs: Sequence[Run]) -> str:
    lines = [
        Line(
            f"{run.strategy}: {run.allocated:.1%} of the time",
            [(one.time / HOUR, one.allocated) for one in run.samples],
            steps=True,
        )
        for run in runs
    ]
    title = f"Allocated over time, seed {runs[0].seed}"
    return draw(title, "hours", "% of GPUs", lines, clock=True)


def write_plot(path: Path | None, plot: Callable[[], str]) -> None:
    """Draw it into a file, where one is named."""
    if path is None:
        return
    try:
        path.write_text(plot(), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "Give another file with --plot."
        ) from error


@contextmanager
def progress_bar(title: str, *, shown: bool) -> Iterator[Callable[[float], None]]:
    """A bar on standard error, where a person sees it."""
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - imported when needed
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done: bar.update(task, completed=done)
