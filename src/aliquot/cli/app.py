"""The commands' names, options and help; what they do is in the modules they import.

Exit codes: 2 for a wrong use, 1 for what was refused or failed, 127 and 126 where the command to
run does not exist or cannot be executed, and otherwise the command's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

import aliquot
from aliquot.cli import controller as controller_command
from aliquot.cli import jobs_app
from aliquot.cli import node as node_command
from aliquot.cli import scheduler as scheduler_command
from aliquot.cli.simulate_app import explain, simulate_app
from aliquot.model.errors import (
    AliquotError,
    CommandNotExecutableError,
    CommandNotFoundError,
    InvalidValueError,
    OutputError,
)
from aliquot.model.grant import Policy, Priority
from aliquot.model.units import EQUAL

EXIT_CODES: dict[type[AliquotError], int] = {
    InvalidValueError: 2,
    CommandNotExecutableError: 126,
    CommandNotFoundError: 127,
}

app = typer.Typer(
    name="aliquot",
    help="Give programs exact parts of GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Without a GPU, try gpus, run, resize, metrics, doctor, arbiter, node, up and the "
    "commands for jobs on a simulated machine: --simulate h100:8. What runs there is shown by ps "
    "and top too.",
)

Simulate = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL:COUNT",
        envvar="ALIQUOT_SIMULATE",
        help="Use simulated GPUs instead of this machine's, for example h100:8.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _block(title: str, *lines: str) -> str:
    """Lines that stay as they are."""
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def _examples(*lines: str) -> str:
    return _block("Examples:", *lines)


STATES = _block(
    "State:",
    "idle       it has no work",
    "alone      nobody else has work",
    "out        it has no credit now",
    "holds      it has the GPU",
    "drains     it gets no more credit, and has not come to its end",
    "overdue    the same for too long: the others go on beside it",
    "exempt     it was overdue too often: it takes no turns for a while",
    "no gates   its share does not hold here: aliquot doctor",
    "open       it is being suspended or resumed, and takes no turns",
    "suspended  it is frozen and has nothing on the GPU: aliquot resume",
)


def run_app() -> None:
    """Run what the command line says."""
    try:
        with _output_checked():
            app()
    except AliquotError as error:
        sys.stderr.write(f"aliquot: {error}\n")
        sys.exit(EXIT_CODES.get(type(error), 1))


@contextmanager
def _output_checked() -> Iterator[None]:
    """Write out all that was printed; where that fails, forget it, so that it fails only once."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or sys.stdout is None:  # then it is not the output's
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has seen enough
            sys.exit(1)
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's form
    if wanted:
        typer.echo(f"aliquot {aliquot.__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Give programs exact parts of GPUs."""


@app.command(
    epilog=_examples("aliquot gpus", "aliquot gpus --simulate h100:8", "aliquot gpus --json")
)
def gpus(simulate: Simulate = None, *, json: Json = False) -> None:
    """Show this machine's GPUs: memory, what is granted of it, links."""
    from aliquot.cli.gpus import show_gpus  # noqa: PLC0415 - imported when needed

    show_gpus(simulate, json=json)


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=_examples(
        "aliquot run --memory 8GiB -- python train.py",
        "aliquot run --gpus 2 --memory 50% --name two-halves -- python train.py",
        "aliquot run -- python train.py    (a whole GPU)",
        "aliquot run --memory 20GiB --compute 30 -- python train.py",
        "aliquot run --memory 20GiB --compute 30 --policy hard -- python benchmark.py",
        "aliquot run --memory 8GiB --priority latency --compute 40 -- python serve.py",
        "aliquot run --memory 40GiB --priority background -- python train.py",
        "aliquot run --simulate h100:1 --memory 8G -- ./program",
    ),
)
def run(  # noqa: PLR0913, PLR0917 - one for each option
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", show_default=False, help="The command and its arguments, after --."
        ),
    ],
    gpus: Annotated[
        int, typer.Option(min=1, max=16, help="How many different GPUs to take a slice of.")
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="Memory of each GPU, a hard limit: 8GiB, 8192MiB, 50%. G and M mean GiB and MiB; "
            "GB and MB are decimal. Without it: whole GPUs.",
        ),
    ] = None,
    compute: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="Share of each GPU's compute time in whole percent, 1 to 100, while others have "
            "work too; or equal: an equal part of what the others leave.",
        ),
    ] = EQUAL,
    policy: Annotated[
        Policy,
        typer.Option(
            help="elastic: may also use the time that others leave idle; hard: never more than "
            "its share, also on an idle GPU."
        ),
    ] = Policy.ELASTIC,
    priority: Annotated[
        Priority,
        typer.Option(
            help="latency: takes the GPU as soon as it has work, within its share; background: "
            "runs only while no other slice has work."
        ),
    ] = Priority.NORMAL,
    name: Annotated[
        str | None,
        typer.Option(help="A name for the grant. Without it: one made from the command's."),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Run a command in a slice of a GPU.

    The command sees a GPU of that size, and is stopped at the limit by its own out-of-memory error.
    It becomes this process: its exit code and signals are its own.

    All processes that it starts share its slices. The grant ends when the command and every process
    that has used the GPU are gone; one that makes its first CUDA call after that is refused.

    Where CUDA_VISIBLE_DEVICES is set, the GPUs are chosen among those it names, by index as in
    `aliquot gpus` or by UUID. The command does not get it: inside, its slices are the GPUs.
    """
    from aliquot.cli.run import run_command  # noqa: PLC0415 - imported when needed
    from aliquot.model import Request, parse_amount, parse_share  # noqa: PLC0415

    request = Request(
        gpus=gpus,
        memory=None if memory is None else parse_amount(memory),
        compute_percent=parse_share(compute),
        policy=policy,
        priority=priority,
    )
    run_command(request, command, name=name, simulate=simulate)


@app.command(epilog=_examples("aliquot ps", "aliquot ps --watch", "aliquot ps --json"))
def ps(
    *,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, once a second.")] = False,
) -> None:
    """Show the grants: their slices, limits, use and processes.

    Compute is the share that was asked for, Got the part of the GPU's time that the slice had in
    about the last second. Who does not keep to its turns is named below.
    """
    from aliquot.cli.ps import show_grants  # noqa: PLC0415 - imported when needed

    if json and watch:
        raise InvalidValueError("--json and --watch do not go together", "Leave one of them out.")
    show_grants(json=json, watch=watch)


@app.command(
    epilog=STATES
    + "\n\n"
    + _examples(
        "aliquot top", "aliquot top --interval 0.2", "aliquot top --once", "aliquot top -n 60 >log"
    )
)
def top(
    *,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", min=0.1, max=3600, help="Seconds between two looks."),
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many looks.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="The same as -n 1.")] = False,
) -> None:
    """Show live what every slice gets of its GPU. q or Ctrl-C ends it.

    Asked is the share of compute time that was asked for, with the policy and the priority where
    they are not elastic and normal; Got is what the slice had since the last look. Backlog counts
    the quanta of work it waits for; a wait is from having work to having credit; a fall-back is a
    time that it did not come to its end and others ran beside it.

    Where the output is no terminal, each slice is a line of words with a value each. There a
    suspended one has the state idle, and hold says parked.
    """
    from aliquot.cli.top import show_top  # noqa: PLC0415 - imported when needed

    if once and count is not None:
        raise InvalidValueError("--once and -n do not go together", "Leave one of them out.")
    show_top(interval, 1 if once else count)


@app.command(
    epilog=_examples(
        "aliquot resize mine --compute 50",
        "aliquot resize mine --compute equal --policy elastic",
        "aliquot resize mine --memory 16GiB",
        "aliquot resize mine --memory 4GiB --wait    (as the program frees)",
        "aliquot resize mine --priority background",
    )
)
def resize(  # noqa: PLR0913, PLR0917 - one for each option
    name: Annotated[str, typer.Argument(metavar="NAME", help="The grant, as in aliquot ps.")],
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT", help="New memory limit of each slice: 8GiB, 50% (of its GPU)."
        ),
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="New share of compute time in whole percent, 1 to 100; or equal: an equal part of "
            "what the others leave, as without --compute in aliquot run.",
        ),
    ] = None,
    policy: Annotated[
        Policy | None, typer.Option(help="New policy, as in aliquot run.", show_default=False)
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option(help="New priority, as in aliquot run.", show_default=False)
    ] = None,
    simulate: Simulate = None,
    *,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Where the programs use more than the new memory limit: lower it as they free, "
            "and wait until it is reached. Ctrl-C leaves it where it is.",
        ),
    ] = False,
) -> None:
    """Change a grant while its program runs: all its slices.

    Compute, policy and priority count from the next window, memory at once. What is not given stays
    as it is. A memory limit below what is in use is refused, or reached with --wait.
    """
    from aliquot.cli.resize import resize_grant  # noqa: PLC0415 - imported when needed
    from aliquot.model import Change, parse_amount, parse_share  # noqa: PLC0415

    change = Change(
        memory=None if memory is None else parse_amount(memory),
        compute_percent=None if compute is None else parse_share(compute),
        policy=policy,
        priority=priority,
    )
    raise typer.Exit(resize_grant(name, change, wait=wait, simulate=simulate))


@app.command(
    epilog=_examples(
        "aliquot metrics",
        "aliquot metrics --simulate h100:8",
        "cd /var/lib/node_exporter && aliquot metrics >aliquot.tmp && mv aliquot.tmp aliquot.prom",
        "    (from cron, for node_exporter --collector.textfile.directory=/var/lib/node_exporter)",
    )
)
def metrics(simulate: Simulate = None) -> None:
    """Print what the arbiter knows as Prometheus text.

    Times are in seconds, memory is in bytes, shares are ratios. A slice is told by its grant and
    its GPU's UUID; aliquot_slice_info has its policy, its priority and its hold: taken, open (it
    is being suspended or resumed) or parked (it is suspended).
    """
    from aliquot.cli.metrics import show_metrics  # noqa: PLC0415 - imported when needed

    show_metrics(simulate)


@app.command(epilog=_examples("aliquot doctor", "aliquot doctor --simulate h100:8"))
def doctor(simulate: Simulate = None, *, json: Json = False) -> None:
    """Say what works on this machine, what does not, and how to mend it.

    Ends with exit code 1 if something is broken.
    """
    from aliquot.cli.doctor import examine  # noqa: PLC0415 - imported when needed

    raise typer.Exit(0 if examine(simulate, json=json) else 1)


@app.command(epilog=_examples("sudo aliquot arbiter", "aliquot arbiter --simulate h100:8"))
def arbiter(simulate: Simulate = None) -> None:
    """Run the arbiter of this machine in the foreground, until it is stopped.

    As root it serves all users. Without it, each user's `aliquot run` starts one that does not know
    of the others.
    """
    from aliquot.cli.arbiter import serve  # noqa: PLC0415 - imported when needed

    serve(simulate)


jobs_app.add_to(app)
app.add_typer(simulate_app, name="simulate")
app.command(
    epilog=_examples(
        "aliquot explain --nodes NODES.csv --gpus 8",
        "aliquot explain --nodes NODES.csv --pods PODS.csv --compute 50 --cpu 4",
    )
)(explain)
app.command(name="scheduler", epilog=_examples(*scheduler_command.EXAMPLES))(
    scheduler_command.scheduler
)
app.command(name="node", epilog=_examples(*node_command.EXAMPLES))(node_command.node)
app.command(name="controller", epilog=_examples(*controller_command.EXAMPLES))(
    controller_command.controller
)
