"""`aliquot simulate` and `aliquot simulate compare`: what they print."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.tables import NOTHING, console, new_table, percent, print_json
from aliquot.model.errors import BadValueError, InstallationError, OutputError

try:
    from aliquot.placement.strategies import STRATEGIES
    from aliquot.simulate import generate, openb, trace
    from aliquot.simulate.compare import compare
    from aliquot.simulate.engine import simulate
    from aliquot.simulate.plot import Line, draw
    from aliquot.simulate.report import by_queue, outcome_of
except ImportError as error:
    if error.name != "numpy":
        raise
    raise InstallationError(
        "numpy is not installed", "Install it with: pip install numpy"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.placement.queues import Queue
    from aliquot.placement.snapshot import NodeSpec
    from aliquot.simulate.engine import Run
    from aliquot.simulate.openb import Pod, Replay
    from aliquot.simulate.report import Outcome

HOUR = 3600.0
OUTCOME = ("Ran", "Never ran", "Evictions", "Mean wait", "95% wait")


@dataclass(frozen=True, slots=True)
class Source:
    """Where nodes, requests and queues come from: files, or a made-up day on so many nodes."""

    nodes: Path | None = None
    pods: Path | None = None
    day: int | None = None
    queues: Path | None = None

    def __post_init__(self) -> None:
        if self.day is not None and (self.nodes or self.pods):
            raise BadValueError(
                "--day makes its own nodes and requests",
                "Leave it out, or leave out --nodes and --pods.",
            )

    def files(self) -> tuple[Path, Path]:
        """Both files, or BadValueError."""
        if self.nodes is None or self.pods is None:
            raise BadValueError(
                "there is nothing to simulate",
                "Give --nodes NODES.csv and --pods PODS.csv, or --day 16 for a made-up day on 16"
                " nodes.",
            )
        return self.nodes, self.pods

    @property
    def is_openb(self) -> bool:
        """Whether the files are lists of the openb trace."""
        is_openb = self.day is None and "num_gpu" in first_line(self.files()[1])
        if is_openb and self.queues is not None:
            raise BadValueError(
                f"the pods of {self.pods} have no queues: they come one by one, and stay",
                "Leave out --queues, or give --pods in our format.",
            )
        return is_openb


def run_simulation(  # noqa: PLR0913 - one for each option
    source: Source, *, by: str, arrive: float, seed: int, json: bool, plot: Path | None
) -> None:
    """Replay a list of the openb trace, or run a trace over time, and print what came of it."""
    check_strategies([by])
    if source.is_openb:
        nodes, pods = _openb(source)
        with _progress(f"{by}, seed {seed}", shown=not json) as tell:
            replay = openb.replay(nodes, pods, by=by, arrive=arrive, seed=seed, progress=tell)
        _write(plot, lambda: _course([replay]))
        _show_replay(replay, json=json)
        return
    specs, arrivals, queues = _timed(source, seed)
    with _progress(f"{by}, seed {seed}", shown=not json) as tell:
        run = simulate(specs, arrivals, by=by, seed=seed, queues=queues, progress=tell)
    _write(plot, lambda: _over_time(run))
    _show_run(run, json=json)


def run_comparison(  # noqa: PLR0913 - one for each option
    source: Source,
    *,
    strategies: Sequence[str],
    seeds: Sequence[int],
    arrive: float,
    json: bool,
    plot: Path | None,
) -> None:
    """Several strategies and seeds side by side."""
    check_strategies(strategies)
    if not source.is_openb:
        _compare_over_time(source, strategies, seeds, json=json)
        return
    nodes, pods = _openb(source)
    with _progress("comparing", shown=not json) as tell:
        rows = compare(
            nodes, pods, strategies=strategies, seeds=seeds, arrive=arrive, progress=tell
        )
    _write(plot, lambda: _course([row.runs[0] for row in rows]))
    if json:
        answer = [
            {
                "strategy": row.strategy,
                "median": row.median,
                "least": row.spread[0],
                "most": row.spread[1],
                "runs": [_replay_words(run) for run in row.runs],
            }
            for row in rows
        ]
        print_json(answer)
        return
    table = new_table("Strategy", "Allocated (median)", "Least", "Most", "Refused", "Seconds")
    for row in sorted(rows, key=lambda one: -one.median):
        table.add_row(
            row.strategy,
            percent(row.median),
            percent(row.spread[0]),
            percent(row.spread[1]),
            str(round(sum(run.refused for run in row.runs) / len(row.runs))),
            f"{max(run.seconds for run in row.runs):.1f}",
        )
    console().print(table)


def check_strategies(names: Sequence[str]) -> None:
    """Refuse a name that is no strategy's."""
    for name in names:
        if name not in STRATEGIES:
            raise BadValueError(
                f"there is no strategy {name!r}", f"There are: {', '.join(STRATEGIES)}."
            )


def _openb(source: Source) -> tuple[list[NodeSpec], list[Pod]]:
    nodes, pods = source.files()
    return openb.read_nodes(nodes), openb.read_pods(pods)


def _timed(
    source: Source, seed: int
) -> tuple[list[NodeSpec], list[trace.Arrival], dict[str, Queue]]:
    if source.day is not None:
        specs, arrivals = generate.cluster(source.day), generate.day(source.day, seed)
    else:
        nodes, gangs = source.files()
        specs, arrivals = trace.read_nodes(nodes), trace.read_gangs(gangs)
    queues = {} if source.queues is None else trace.read_queues(source.queues)
    for gang in (one.gang for one in arrivals if queues):
        if gang.queue not in queues:
            raise BadValueError(
                f"{source.queues} has no queue {gang.queue!r}, which gang {gang.name!r} is in",
                f"There are: {', '.join(queues)}. Add a line for it.",
            )
    return specs, arrivals, queues


def _compare_over_time(
    source: Source, strategies: Sequence[str], seeds: Sequence[int], *, json: bool
) -> None:
    runs = []
    with _progress("comparing", shown=not json) as tell:
        for name in strategies:
            for seed in seeds:
                specs, arrivals, queues = _timed(source, seed)
                runs.append(simulate(specs, arrivals, by=name, seed=seed, queues=queues))
                tell(len(runs) / (len(strategies) * len(seeds)))
    if json:
        print_json([_run_words(run) for run in runs])
        return
    _print_runs(runs)


def _show_replay(replay: Replay, *, json: bool) -> None:
    if json:
        print_json(_replay_words(replay))
        return
    table = new_table("Strategy", "Seed", "Allocated", "Placed", "Refused", "Seconds")
    table.add_row(
        replay.strategy,
        str(replay.seed),
        percent(replay.allocated),
        str(replay.placed),
        str(replay.refused),
        f"{replay.seconds:.1f}",
    )
    console().print(table)


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
    queues = by_queue(run.fates)
    if json:
        told = [
            {"gang": fate.gang.name, "time": time, "told": words}
            for fate in run.fates
            for time, words in fate.told
        ]
        answer = _run_words(run)
        answer["queues"] = {name: _outcome_words(one) for name, one in queues.items()}
        answer["preemptions"] = sorted(told, key=lambda one: (one["time"], one["gang"]))
        print_json(answer)
        return
    _print_runs([run])
    if len(queues) > 1:
        table = new_table("Queue", *OUTCOME)
        for name, one in queues.items():
            table.add_row(name or NOTHING, *_cells(one))
        console().print(table)
    for fate in run.fates:
        for time, words in fate.told:
            console().print(f"{fate.gang.name}, at {time:g} s: {words}")
        if fate.start is None:
            console().print(f"{fate.gang.name} never ran: {fate.reason}")


def _print_runs(runs: Sequence[Run]) -> None:
    table = new_table("Strategy", "Seed", "GPU time used", *OUTCOME)
    for run in runs:
        cells = _cells(outcome_of(run.fates))
        table.add_row(run.strategy, str(run.seed), percent(run.allocated), *cells)
    console().print(table)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        str(outcome.ran),
        str(outcome.never_ran),
        str(outcome.evictions),
        f"{outcome.wait_mean / 60:.1f} min",
        f"{outcome.wait_p95 / 60:.1f} min",
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
    return draw("Allocated over time", "hours", "%", lines)


def _write(path: Path | None, picture: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        path.write_text(picture(), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


def first_line(path: Path) -> list[str]:
    """The columns of a CSV file."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().strip().split(",")
    except OSError as error:
        raise BadValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadValueError(f"{path} cannot be read: it is no text") from error


@contextmanager
def _progress(title: str, *, shown: bool) -> Iterator[Callable[[float], None]]:
    """A bar on standard error, where a person sees it."""
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - imported when needed
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done: bar.update(task, completed=done)
