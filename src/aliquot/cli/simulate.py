"""`aliquot simulate`, `aliquot simulate compare` and `aliquot explain`: what they print."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.tables import console, new_table, percent, print_json, print_text
from aliquot.model.errors import BadValueError, InstallationError, OutputError

try:
    from aliquot.placement.books import Books
    from aliquot.placement.chooser import Chooser
    from aliquot.placement.explain import count_nodes, explain
    from aliquot.placement.snapshot import empty
    from aliquot.placement.strategies import STRATEGIES, strategy
    from aliquot.simulate import generate, openb, trace
    from aliquot.simulate.compare import compare
    from aliquot.simulate.engine import simulate
    from aliquot.simulate.plot import Line, draw
except ImportError as error:
    if error.name != "numpy":
        raise
    raise InstallationError(
        "numpy is not installed", "Install it with: pip install numpy"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.placement.demand import Demand
    from aliquot.placement.snapshot import Hardware, NodeSpec
    from aliquot.simulate.engine import Run
    from aliquot.simulate.openb import Pod, Replay

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where nodes and requests come from: files, or a made-up day on so many nodes."""

    nodes: Path | None = None
    pods: Path | None = None
    day: int | None = None

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
        return self.day is None and "num_gpu" in _first_line(self.files()[1])


def run_simulation(  # noqa: PLR0913 - one for each option
    source: Source, *, by: str, arrive: float, seed: int, json: bool, plot: Path | None
) -> None:
    """Replay a list of the openb trace, or run a trace over time, and print what came of it."""
    _check_strategies([by])
    if source.is_openb:
        nodes, pods = _openb(source)
        with _progress(f"{by}, seed {seed}", shown=not json) as tell:
            replay = openb.replay(nodes, pods, by=by, arrive=arrive, seed=seed, progress=tell)
        _write(plot, lambda: _course([replay]))
        _show_replay(replay, json=json)
        return
    specs, arrivals = _timed(source, seed)
    with _progress(f"{by}, seed {seed}", shown=not json) as tell:
        run = simulate(specs, arrivals, by=by, seed=seed, progress=tell)
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
    _check_strategies(strategies)
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


def explain_request(  # noqa: PLR0913 - one for each option
    source: Source, demand: Demand, *, by: str, arrive: float, seed: int, json: bool
) -> bool:
    """Say where a request would go on these nodes, after a list has come; whether it fits."""
    _check_strategies([by])
    if source.nodes is None:
        raise BadValueError("there are no nodes", "Give --nodes NODES.csv.")
    reader = openb.read_nodes if "sn" in _first_line(source.nodes) else trace.read_nodes
    start = empty(reader(source.nodes))
    _check_nodes(source.nodes, start.hardware, demand)
    pods = [] if source.pods is None else openb.read_pods(source.pods)
    chooser = Chooser(Books(start), strategy(by, start.hardware, openb.mix_of(pods)), seed=seed)
    if pods:
        come = 0
        for pod in openb.stream(pods, 0, arrive, seed):
            come += pod.demand.total_milli
            if come > arrive * start.hardware.total_milli:
                break
            chooser.place(pod.demand)
    said = explain(chooser, demand)
    names = start.hardware.names
    place = said.placement
    if json:
        print_json(
            {
                "node": None if place is None else names[place.node],
                "gpus": [] if place is None else list(place.gpus),
                "others": [{"node": names[n], "costs_more": more} for n, more in said.runners_up],
                "refused": {str(lack): count for lack, count in said.lacks},
            }
        )
        return place is not None
    where = "nowhere" if place is None else f"{names[place.node]}, GPU {_list(place.gpus)}"
    lines = [f"{demand}: {where}"]
    for node, more in said.runners_up:
        also = "is as good" if more <= 1e-6 else f"fits, and costs {more:.4g} more"
        lines.append(f"  {names[node]} {also}")
    example = dict(said.examples)
    for lack, count in said.lacks:
        lines.append(f"  {count_nodes(count)}: {lack} (such as {names[example[lack]]})")
    print_text("\n".join(lines) + "\n")
    return place is not None


def _check_nodes(path: Path, hardware: Hardware, demand: Demand) -> None:
    """Refuse what no node of the list can say anything about."""
    if demand.models and not demand.models & set(hardware.models):
        there = ", ".join(sorted(filter(None, hardware.models))) or "none: no node names its model"
        raise BadValueError(
            f"{path} has no GPU model {' or '.join(sorted(demand.models))}", f"There are: {there}."
        )
    if demand.gpu_bytes and not hardware.gpu_bytes.any():
        raise BadValueError(
            f"no node of {path} says how much memory its GPUs have",
            "Leave out --memory, or add the column gpu_memory_mib to a list in our format.",
        )


def _list(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus)) or "none"


def _check_strategies(names: Sequence[str]) -> None:
    for name in names:
        if name not in STRATEGIES:
            raise BadValueError(
                f"there is no strategy {name!r}", f"There are: {', '.join(STRATEGIES)}."
            )


def _openb(source: Source) -> tuple[list[NodeSpec], list[Pod]]:
    nodes, pods = source.files()
    return openb.read_nodes(nodes), openb.read_pods(pods)


def _timed(source: Source, seed: int) -> tuple[list[NodeSpec], list[trace.Arrival]]:
    if source.day is not None:
        return generate.cluster(source.day), generate.day(source.day, seed)
    nodes, gangs = source.files()
    return trace.read_nodes(nodes), trace.read_gangs(gangs)


def _compare_over_time(
    source: Source, strategies: Sequence[str], seeds: Sequence[int], *, json: bool
) -> None:
    runs = []
    with _progress("comparing", shown=not json) as tell:
        for name in strategies:
            for seed in seeds:
                runs.append(simulate(*_timed(source, seed), by=name, seed=seed))
                tell(len(runs) / (len(strategies) * len(seeds)))
    if json:
        print_json([_run_words(run) for run in runs])
        return
    table = new_table("Strategy", "Seed", "GPU time used", "Ran", "Mean wait", "95% wait")
    for run in runs:
        words = _run_words(run)
        table.add_row(
            run.strategy,
            str(run.seed),
            percent(run.allocated),
            str(run.placed),
            f"{words['wait_mean_seconds'] / 60:.1f} min",
            f"{words['wait_p95_seconds'] / 60:.1f} min",
        )
    console().print(table)


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
    words = _run_words(run)
    if json:
        print_json(words)
        return
    table = new_table(
        "Strategy", "Seed", "GPU time used", "Ran", "Waiting", "Mean wait", "95% wait"
    )
    table.add_row(
        run.strategy,
        str(run.seed),
        percent(run.allocated),
        str(run.placed),
        str(words["refused"]),
        f"{words['wait_mean_seconds'] / 60:.1f} min",
        f"{words['wait_p95_seconds'] / 60:.1f} min",
    )
    console().print(table)
    for fate in run.fates:
        if fate.start is None:
            console().print(f"{fate.gang.name} never ran: {fate.reason}")


def _run_words(run: Run) -> dict[str, Any]:
    waits = run.waits
    ends = [fate.end - fate.gang.submitted for fate in run.fates if fate.end is not None]
    return {
        "strategy": run.strategy,
        "seed": run.seed,
        "allocated": run.allocated,
        "placed": run.placed,
        "refused": len(run.fates) - run.placed,
        "lost_mean": sum(one.lost for one in run.samples) / max(1, len(run.samples)),
        "evictions": sum(fate.evictions for fate in run.fates),
        "wait_mean_seconds": sum(waits) / len(waits) if waits else 0.0,
        "wait_p95_seconds": waits[int(0.95 * (len(waits) - 1))] if waits else 0.0,
        "completion_mean_seconds": sum(ends) / len(ends) if ends else 0.0,
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


def _first_line(path: Path) -> list[str]:
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
