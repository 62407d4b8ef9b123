"""Names, options and help of `aliquot simulate`, `aliquot simulate compare`, `aliquot explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aliquot.model import parse_amount
from aliquot.model.errors import BadValueError

Nodes = Annotated[
    Path | None, typer.Option(metavar="NODES.csv", help="The nodes: openb's list, or our format.")
]
Pods = Annotated[
    Path | None,
    typer.Option(metavar="PODS.csv", help="What comes: openb's list of pods, or our gangs."),
]
Day = Annotated[
    int | None,
    typer.Option(metavar="NODES", min=1, help="No files: a made-up day on so many nodes."),
]
Queues = Annotated[
    Path | None,
    typer.Option(
        metavar="QUEUES.csv",
        help="Weights, quotas and limits of the queues that the gangs name (our format, or --day).",
    ),
]
Arrive = Annotated[
    float,
    typer.Option(
        min=0.01,
        help="openb: after the list, draw from it until so many times the GPUs were asked for.",
    ),
]
Seed = Annotated[int, typer.Option(help="For the order of arrivals and for ties.")]
StrategyName = Annotated[
    str,
    typer.Option("--strategy", help="fragmentation, pack, spread, best-fit, random or fgd."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw it, too.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

simulate_app = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay a trace through the placement of Aliquot: a cluster on paper, not a simulated GPU"
    " (--simulate).",
)


@simulate_app.callback()
def simulate(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    nodes: Nodes = None,
    pods: Pods = None,
    day: Day = None,
    queues: Queues = None,
    by: StrategyName = "fragmentation",
    arrive: Arrive = 1.3,
    seed: Seed = 42,
    plot: Plot = None,
    *,
    json: Json = False,
) -> None:
    """Replay a trace through the placement of Aliquot.

    This is a cluster on paper, not a simulated GPU (--simulate). With openb's lists, requests come
    one by one and stay: it shows how much of the GPUs is allocated in the end. With a trace that
    has durations, it shows use and waiting over time, for each queue.
    """
    if context.invoked_subcommand is not None:
        return
    from aliquot.cli.simulate import Source, run_simulation  # noqa: PLC0415 - when needed

    source = Source(nodes, pods, day, queues)
    run_simulation(source, by=by, arrive=arrive, seed=seed, json=json, plot=plot)


@simulate_app.command()
def compare(  # noqa: PLR0913, PLR0917 - one for each option
    nodes: Nodes = None,
    pods: Pods = None,
    day: Day = None,
    queues: Queues = None,
    strategies: Annotated[
        str, typer.Option(help="Names with commas between them.")
    ] = "fragmentation,fgd,best-fit,random",
    seeds: Annotated[str, typer.Option(help="Numbers and ranges: 42-51, or 1,2,3.")] = "42-44",
    arrive: Arrive = 1.3,
    plot: Plot = None,
    *,
    json: Json = False,
) -> None:
    """Run several strategies and seeds side by side."""
    from aliquot.cli.simulate import Source, run_comparison  # noqa: PLC0415 - when needed

    run_comparison(
        Source(nodes, pods, day, queues),
        strategies=[name.strip() for name in strategies.split(",")],
        seeds=_numbers(seeds),
        arrive=arrive,
        json=json,
        plot=plot,
    )


def explain(  # noqa: PLR0913, PLR0917 - one for each option
    nodes: Nodes = None,
    pods: Annotated[
        Path | None,
        typer.Option(metavar="PODS.csv", help="What comes before: openb's list of pods only."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many different GPUs of one node.")] = 1,
    compute: Annotated[
        float, typer.Option(min=0.1, max=100, help="Percent of each GPU; 100 is whole GPUs.")
    ] = 100,
    memory: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Memory of each GPU, for example 8GiB.")
    ] = None,
    cpu: Annotated[float, typer.Option(min=0, help="CPUs of the node.")] = 0,
    model: Annotated[str, typer.Option(help="GPU models with | between them.")] = "",
    by: StrategyName = "fragmentation",
    arrive: Arrive = 0.5,
    seed: Seed = 42,
    *,
    json: Json = False,
) -> None:
    """Say where a request would go, and why not elsewhere.

    With --pods, after so much of that list has come as --arrive says. Ends with exit code 1 if it
    fits nowhere.
    """
    from aliquot.cli.explain import explain_request  # noqa: PLC0415 - when needed
    from aliquot.cli.simulate import Source  # noqa: PLC0415
    from aliquot.placement.demand import Demand, Kind  # noqa: PLC0415

    whole = compute == 100 and memory is None
    demand = Demand(
        gpus=gpus,
        kind=Kind.WHOLE if whole else Kind.SLICED,
        milli=round(compute * 10),
        gpu_bytes=0 if memory is None else _bytes(memory),
        cpu_milli=round(cpu * 1000),
        models=frozenset(filter(None, model.split("|"))),
    )
    source = Source(nodes, pods)
    fits = explain_request(source, demand, by=by, arrive=arrive, seed=seed, json=json)
    raise typer.Exit(0 if fits else 1)


def _bytes(memory: str) -> int:
    amount = parse_amount(memory)
    if amount.bytes is None:
        raise BadValueError(
            f"{memory} is of no one GPU: the nodes' GPUs differ", "Write for example 8GiB."
        )
    return amount.bytes


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if not numbers:
                raise BadValueError(f"{part!r} are no seeds", "Write the lower one first: 1-5.")
            found.extend(numbers)
    except ValueError as error:
        raise BadValueError(f"{text!r} are no seeds", "Write 42-51, or 1,2,3.") from error
    return found
