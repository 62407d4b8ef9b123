"""Names, options and help of `aliquot simulate`, with its commands, and of `aliquot explain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from aliquot.cli.help_text import examples
from aliquot.cli.options import (
    Alone,
    ApartFrom,
    Label,
    MinStrength,
    NotGpu,
    OnlyGpu,
    Simulate,
    Swap,
    With,
    read_min_strength,
    read_neighbours,
    read_selection,
)
from aliquot.model import parse_amount
from aliquot.model.errors import InvalidValueError

Nodes = Annotated[
    Path | None, typer.Option(metavar="NODES.csv", help="The nodes: openb's list, or our format.")
]
Pods = Annotated[
    Path | None,
    typer.Option(
        metavar="PODS.csv", help="The workload: openb's list of pods, or gangs in our format."
    ),
]
Day = Annotated[
    int | None,
    typer.Option(
        metavar="NODES",
        min=1,
        help="Generate a day on this many nodes instead of reading files.",
    ),
]
Queues = Annotated[
    Path | None,
    typer.Option(
        metavar="QUEUES.csv",
        help="Weights, quotas and limits of the queues that the gangs name (our format, or --day).",
    ),
]


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


Arrive = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        callback=_finite,
        show_default="1.3",
        help="openb: after the list, draw more pods until this many times all GPUs were requested.",
    ),
]
Seed = Annotated[int, typer.Option(help="For the order of arrivals and for ties.")]
Seeds = Annotated[str, typer.Option(help="Numbers and ranges: 42-51, or 1,2,3.")]
StrategyName = Annotated[
    str,
    typer.Option("--strategy", help="fragmentation, pack, spread, best-fit, random or fgd."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Also write a plot.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

OF_ELASTIC = (
    "elastic",
    "elastic_from",
    "efficiency",
    "notice",
    "restart",
    "checkpoint",
    "resize_every",
    "settle",
    "patience",
)

simulate_app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a trace of jobs on a cluster that exists only on paper.",
    epilog=examples(
        "aliquot simulate --day 16",
        "aliquot simulate --day 16 --queues QUEUES.csv --plot day.svg",
        "aliquot simulate --nodes NODES.csv --pods PODS.csv --json",
    ),
)


@simulate_app.callback()
def simulate(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    nodes: Nodes = None,
    pods: Pods = None,
    day: Day = None,
    queues: Queues = None,
    by: StrategyName = "fragmentation",
    arrive: Arrive = None,
    seed: Seed = 42,
    plot: Plot = None,
    *,
    json: Json = False,
) -> None:
    """Replay a trace of jobs on a cluster that exists only on paper.

    It decides as the scheduler does, and needs no GPU, simulated or not. With openb's lists,
    requests come one by one and stay: it shows how much of the GPUs is allocated in the end. With a
    trace that has durations, it shows use and waiting over time, for each queue.
    """
    if context.invoked_subcommand is not None:
        _refuse_before(context, context.invoked_subcommand)
        return
    from aliquot.cli.simulate import run_simulation  # noqa: PLC0415 - when needed
    from aliquot.cli.simulate_source import TraceSource  # noqa: PLC0415

    source = TraceSource(nodes, pods, day, queues, arrive)
    run_simulation(source, by=by, seed=seed, json=json, plot=plot)


@simulate_app.command(
    epilog=examples(
        "aliquot simulate compare --day 16",
        "aliquot simulate compare --nodes NODES.csv --pods PODS.csv \\",
        "    --strategies fgd,pack",
    )
)
def compare(  # noqa: PLR0913, PLR0917 - one for each option
    nodes: Nodes = None,
    pods: Pods = None,
    day: Day = None,
    queues: Queues = None,
    strategies: Annotated[
        str, typer.Option(help="Names with commas between them.")
    ] = "fragmentation,fgd,best-fit,random",
    seeds: Seeds = "42-44",
    arrive: Arrive = None,
    plot: Plot = None,
    *,
    json: Json = False,
) -> None:
    """Run several strategies and seeds side by side."""
    from aliquot.cli.simulate import run_comparison  # noqa: PLC0415 - when needed
    from aliquot.cli.simulate_source import TraceSource  # noqa: PLC0415

    run_comparison(
        TraceSource(nodes, pods, day, queues, arrive),
        strategies=[name.strip() for name in strategies.split(",")],
        seeds=_numbers(seeds),
        json=json,
        plot=plot,
    )


@simulate_app.command(
    epilog=examples(
        "aliquot simulate ways --diurnal 4",
        "aliquot simulate ways --nodes NODES.csv --pods PODS.csv \\",
        "    --load 0.8 --elastic 0.5..4",
        "aliquot simulate ways --day 16 --ways backfill,elastic --notice 60",
    )
)
def ways(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    nodes: Nodes = None,
    pods: Pods = None,
    day: Day = None,
    queues: Queues = None,
    diurnal: Annotated[
        int | None,
        typer.Option(
            metavar="NODES",
            min=1,
            help="Generate three days, busy at noon and idle at night, on this many nodes of 8 "
            "GPUs.",
        ),
    ] = None,
    keep_nodes: Annotated[
        int | None,
        typer.Option(
            min=1, show_default="8", help="openb: use this many nodes, evenly spaced in the list."
        ),
    ] = None,
    keep_jobs: Annotated[
        int | None,
        typer.Option(
            min=1, show_default="1000", help="openb: use this many jobs, drawn with the seed."
        ),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            callback=_finite,
            show_default="0.9 for openb, 0.7 for --diurnal; other traces are not scaled",
            help="Load as a fraction of all GPU time; arrival times are scaled to reach it.",
        ),
    ] = None,
    names: Annotated[
        str,
        typer.Option(
            "--ways",
            help="first-come, backfill, elastic; the others are compared with the first.",
        ),
    ] = "first-come,backfill,elastic",
    seeds: Seeds = "42-44",
    elastic: Annotated[
        str,
        typer.Option(
            metavar="MIN..MAX",
            help="How many workers a job of whole GPUs can have, in parts of what it asks for.",
        ),
    ] = "0.5..2",
    elastic_from: Annotated[
        int, typer.Option(min=1, help="Jobs that ask for fewer workers are not resized.")
    ] = 2,
    efficiency: Annotated[
        float, typer.Option(callback=_finite, help="n workers are n ** EFFICIENCY as fast as one.")
    ] = 0.9,
    notice: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            callback=_finite,
            help="Notice that a job gets before a resize.",
        ),
    ] = 30.0,
    restart: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, callback=_finite, help="How long a resized job does not work."
        ),
    ] = 60.0,
    checkpoint: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            callback=_finite,
            help="Time between checkpoints; a restart repeats the work since the last one. 0: it "
            "saves at the notice.",
        ),
    ] = 600.0,
    resize_every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            callback=_finite,
            help="The minimum time between two resizes of one job.",
        ),
    ] = 300.0,
    settle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            callback=_finite,
            show_default="as --resize-every",
            help="How long GPUs must have been free before a running job grows.",
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            callback=_finite,
            help="A job that has waited this long is not overtaken any more.",
        ),
    ] = 600.0,
    by: StrategyName = "fragmentation",
    plot: Plot = None,
    *,
    json: Json = False,
) -> None:
    """Run the same jobs first come first, with backfill, elastic.

    Shows how long jobs take from their arrival to their end, how much GPU time is used, and how
    often jobs are resized. openb's lists are made into gangs and pressed together in time
    (docs/jobs.md has the rule); in our format the columns least and most say which jobs can be
    resized.
    """
    from aliquot.cli.simulate_source import TraceSource  # noqa: PLC0415 - when needed
    from aliquot.cli.simulate_ways import Workload, run_ways  # noqa: PLC0415
    from aliquot.placement.elastic.resize import Rules  # noqa: PLC0415
    from aliquot.simulate.elastic import Costs  # noqa: PLC0415
    from aliquot.simulate.ways import parse_stretch  # noqa: PLC0415

    chosen = [name.strip() for name in names.split(",")]
    if "elastic" not in chosen and (given := _given(context, OF_ELASTIC)):
        raise InvalidValueError(
            f"{' and '.join(given)} would have no effect without the way 'elastic'",
            f"Leave out {' and '.join(given)}, or add elastic to --ways.",
        )
    run_ways(
        Workload(
            TraceSource(nodes, pods, day, queues),
            parse_stretch(elastic, elastic_from),
            diurnal=diurnal,
            nodes=keep_nodes,
            jobs=keep_jobs,
            load=load,
            sizes_given=_given(context, ("elastic", "elastic_from")),
        ),
        ways=chosen,
        seeds=_numbers(seeds),
        by=by,
        rules=Rules(
            resize_seconds=resize_every,
            settle_seconds=resize_every if settle is None else settle,
            patience_seconds=patience,
        ),
        costs=Costs(notice, restart, checkpoint, efficiency),
        json=json,
        plot=plot,
    )


@simulate_app.command(
    epilog=examples(
        "aliquot simulate overcommit",
        "aliquot simulate overcommit --gpus 8 --factors 1.5 --host-memory 512GiB",
    )
)
def overcommit(  # noqa: PLR0913 - one for each option
    gpus: Annotated[int, typer.Option(min=1, max=64, help="GPUs of the machine.")] = 4,
    gpu_memory: Annotated[
        str, typer.Option(metavar="AMOUNT", help="Memory of each GPU.")
    ] = "80GiB",
    factors: Annotated[
        str, typer.Option(help="How many times a GPU's memory slices may have together.")
    ] = "1.25,1.5,2",
    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            show_default="enough",
            help="What memory that leaves GPUs may take of the host.",
        ),
    ] = None,
    seeds: Seeds = "42-44",
    *,
    json: Json = False,
) -> None:
    """Run the same programs with and without over-commit of memory.

    Shows the mean time from arrival to end. It admits programs and chooses GPUs as the pool does;
    programs that work at the same time share a GPU's time equally.
    """
    from aliquot.cli.simulate_overcommit import (  # noqa: PLC0415 - when needed
        parse_factors,
        run_overcommit,
    )
    from aliquot.simulate.turns import TurnMachine  # noqa: PLC0415

    host = None if host_memory is None else _bytes(host_memory)
    machine = TurnMachine(gpus, _bytes(gpu_memory), host_bytes=host)
    run_overcommit(machine, parse_factors(factors), _numbers(seeds), json=json)


def explain(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    nodes: Nodes = None,
    pods: Annotated[
        Path | None,
        typer.Option(metavar="PODS.csv", help="Pods that arrived before: openb's list only."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many different GPUs of one node.")] = 1,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Percent of each GPU: on this machine as in aliquot run; with --nodes also "
            "fractions, and whole GPUs without it.",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Memory of each GPU, for example 8GiB.")
    ] = None,
    cpu: Annotated[
        float, typer.Option(min=0, max=1_000_000, callback=_finite, help="CPUs of the node.")
    ] = 0,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Use only GPUs of this model: with --nodes by its name there, else as in aliquot "
            "run. Give it several times for several models, or write | between them.",
        ),
    ] = None,
    gpu: OnlyGpu = None,
    not_gpu: NotGpu = None,
    min_strength: MinStrength = None,
    label: Label = None,
    beside: With = None,
    apart_from: ApartFrom = None,
    by: StrategyName = "fragmentation",
    arrive: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            callback=_finite,
            show_default="0.5",
            help="openb: place pods of the list first, until this many times all GPUs were "
            "requested.",
        ),
    ] = None,
    seed: Seed = 42,
    simulate: Simulate = None,
    *,
    alone: Alone = False,
    swap: Swap = None,
    json: Json = False,
) -> None:
    """Say where a request would go, and why not elsewhere.

    Without --nodes it lists the GPUs of this machine, those that `aliquot run` prefers first, and
    says of each why it fits or not. With --nodes it says so of a simulated cluster; with --pods,
    pods of that list are placed first, and --arrive says how many.

    Ends with exit code 1 if the request fits nowhere.
    """
    from aliquot.cli.explain import explain_request  # noqa: PLC0415 - when needed
    from aliquot.cli.explain_machine import explain_machine  # noqa: PLC0415
    from aliquot.cli.simulate_source import TraceSource  # noqa: PLC0415
    from aliquot.model import Request, parse_share  # noqa: PLC0415
    from aliquot.placement.core.demand import Demand, Kind  # noqa: PLC0415

    least = read_min_strength(min_strength)
    models = [name for names in model or () for name in names.split("|") if name]
    if nodes is None:
        given = _given(context, ("pods", "cpu", "by", "arrive", "seed"))
        if given:
            raise InvalidValueError(
                f"{' and '.join(given)} needs --nodes",
                "Give --nodes NODES.csv, or leave it out to ask about this machine.",
            )
        request = Request(
            gpus=gpus,
            memory=None if memory is None else parse_amount(memory),
            compute_percent=0 if compute is None else parse_share(compute),
            min_strength=least,
            which=read_selection(models, gpu, not_gpu),
            neighbours=read_neighbours(label, beside, apart_from, alone=alone),
            swap=swap,
        )
        raise typer.Exit(0 if explain_machine(request, simulate, json=json) else 1)
    only_here = ("gpu", "not_gpu", "label", "beside", "apart_from", "alone", "swap")
    if named := _given(context, only_here):
        raise InvalidValueError(
            f"{' and '.join(named)} and --nodes cannot be combined",
            "They are about the GPUs and slices of this machine: leave one of them out.",
        )
    if simulate is not None and _is_written(context, "simulate"):
        raise InvalidValueError(
            "--simulate and --nodes cannot be combined", "Leave one of them out."
        )
    percent = 100.0 if compute is None else _percent(compute)
    whole = percent == 100 and memory is None
    demand = Demand(
        gpus=gpus,
        kind=Kind.WHOLE if whole else Kind.SLICED,
        milli=round(percent * 10),
        gpu_bytes=0 if memory is None else _bytes(memory),
        cpu_milli=round(cpu * 1000),
        models=frozenset(models),
        min_strength=least,
    )
    source = TraceSource(nodes, pods, arrive=arrive)
    fits = explain_request(source, demand, by=by, seed=seed, json=json)
    raise typer.Exit(0 if fits else 1)


def _percent(text: str) -> float:
    """A percentage of a GPU on a simulated cluster."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0
    if not 0.1 <= number <= 100:
        raise InvalidValueError(
            f"--compute {text!r} is not a percentage of a GPU", "Write 0.1 to 100."
        )
    return number


def _refuse_before(context: typer.Context, command: str) -> None:
    """Refuse options before a command: they would have no effect on it."""
    given = _given(context)
    if given:
        raise InvalidValueError(
            f"{' and '.join(given)} before {command} would have no effect",
            f"Write options after the command: aliquot simulate {command} --help.",
        )


def _given(context: typer.Context, names: Sequence[str] | None = None) -> list[str]:
    """The options that were written, of these or of all."""
    return [
        one.opts[0]
        for one in context.command.params
        if one.name and (names is None or one.name in names) and _is_written(context, one.name)
    ]


def _is_written(context: typer.Context, name: str) -> bool:
    found = context.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def _bytes(memory: str) -> int:
    amount = parse_amount(memory)
    if amount.bytes is None:
        raise InvalidValueError(
            f"{memory} is a percentage, and GPUs of different nodes differ in memory",
            "Write for example 8GiB.",
        )
    return amount.bytes


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if not numbers:
                raise InvalidValueError(
                    f"{part!r} is not a list of seeds", "Write the lower one first: 1-5."
                )
            found.extend(numbers)
    except ValueError as error:
        raise InvalidValueError(
            f"{text!r} is not a list of seeds", "Write 42-51, or 1,2,3."
        ) from error
    return found
