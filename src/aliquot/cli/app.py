"""The commands of one machine: their names, options and help.

What a command does is in the module that it imports when it runs.

Exit codes: 2 for invalid use, 1 for a refusal or failure, 127 or 126 if the command to run does not
exist or cannot be executed, and otherwise the exit code of that command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import aliquot
from aliquot.cli import controller as controller_command
from aliquot.cli import jobs_app
from aliquot.cli import node as node_command
from aliquot.cli import scheduler as scheduler_command
from aliquot.cli.help_text import block, examples
from aliquot.cli.simulate_app import explain, simulate_app
from aliquot.model.errors import (
    AliquotError,
    CommandNotExecutableError,
    CommandNotFoundError,
    InvalidValueError,
    OutputError,
)
from aliquot.model.grant import Policy, Priority, Unjoined
from aliquot.model.units import EQUAL

EXIT_CODES: dict[type[AliquotError], int] = {
    InvalidValueError: 2,
    CommandNotExecutableError: 126,
    CommandNotFoundError: 127,
}


EXAMPLES = (
    examples(
        "aliquot doctor                            what works on this machine",
        "aliquot run --memory 8GiB --compute 30 -- python train.py",
        "aliquot ps                                grants and their use",
        "aliquot resize train-1234 --memory 16GiB  while the program runs",
        "aliquot run --simulate h100:1 -- ./prog   without a GPU",
    )
    + "\n\nWithout a GPU, add --simulate h100:8 to gpus, run, resize, metrics, doctor, arbiter, "
    "node, up or a command for jobs. ps and top show simulated machines too."
)

app = typer.Typer(
    name="aliquot",
    help="Give programs exact parts of GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)

Simulate = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL:COUNT",
        envvar="ALIQUOT_SIMULATE",
        help="Use COUNT simulated GPUs of a MODEL instead of this machine's, for example h100:8.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


STATES = block(
    "State:",
    "idle       the slice has no work",
    "alone      no other slice has work",
    "out        it has no credit: it waits for its turn",
    "holds      it is its turn",
    "drains     it gets no more credit, and its last work is not done yet",
    "overdue    it has drained for too long: the others run at the same time",
    "exempt     it was overdue too often: it takes no turns for a while",
    "no gates   compute shares do not work on this GPU: aliquot doctor",
    "switching  its processes are being frozen or thawed: it takes no turns",
    "parked     its processes are frozen and use no GPU: aliquot resume",
)


def run_app() -> None:
    """Run the command line."""
    try:
        with _output_checked():
            app()
    except AliquotError as error:
        sys.stderr.write(f"aliquot: {error}\n")
        sys.exit(EXIT_CODES.get(type(error), 1))


@contextmanager
def _output_checked() -> Iterator[None]:
    """Flush standard output; if that fails, discard it, so that it fails only once."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or sys.stdout is None:  # not about standard output
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
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
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Give programs exact parts of GPUs."""


@app.command(
    epilog=examples("aliquot gpus", "aliquot gpus --simulate h100:8", "aliquot gpus --json")
)
def gpus(simulate: Simulate = None, *, json: Json = False) -> None:
    """Show the GPUs of this machine: memory, use, grants, links.

    Inside a grant it shows the slices of the grant.
    """
    from aliquot.cli.gpus import show_gpus  # noqa: PLC0415 - imported when needed

    show_gpus(simulate, json=json)


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "aliquot run --memory 8GiB -- python train.py",
        "aliquot run --gpus 2 --memory 50% --name two-halves -- python train.py",
        "aliquot run -- python train.py    (a whole GPU)",
        "aliquot run --memory 20GiB --compute 30 -- python train.py",
        "aliquot run --memory 20GiB --compute 30 --policy hard -- python benchmark.py",
        "aliquot run --memory 8GiB --priority latency --compute 40 -- python serve.py",
        "aliquot run --memory 40GiB --priority background -- python train.py",
        "aliquot run --memory 20GiB --together job7 -- python rank.py",
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
        int,
        typer.Option(
            min=1, max=16, help="Number of different GPUs; the command gets a slice of each."
        ),
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="Memory limit on each GPU: 8GiB, 8192MiB, 50%. G and M mean GiB and MiB; GB and "
            "MB are decimal. Without it: whole GPUs.",
        ),
    ] = None,
    compute: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="Share of each GPU's compute time while others have work too: 1 to 100 (whole "
            "percent), or equal: an equal part of what the others leave.",
        ),
    ] = EQUAL,
    policy: Annotated[
        Policy,
        typer.Option(
            help="elastic: may also use time that others leave idle; hard: never more than its "
            "share, even on an idle GPU."
        ),
    ] = Policy.ELASTIC,
    priority: Annotated[
        Priority,
        typer.Option(
            help="latency: gets the GPU as soon as it has work, within its share; normal: takes "
            "turns; background: runs only while no other slice has work."
        ),
    ] = Priority.NORMAL,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the grant. Without it: made from the command's name."),
    ] = None,
    together: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Hold the GPUs together with your other grants of the same NAME: for programs "
            "whose kernels wait for each other, as those of NCCL do.",
        ),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Run a command in a slice of a GPU.

    The command sees a GPU of that size. An allocation above the limit fails with an ordinary
    out-of-memory error. The command replaces this process, so exit code and signals are its own.

    All processes that the command starts share its slices. The grant ends when the command and
    every process that has used the GPU are gone. After that a first CUDA call is refused.

    If CUDA_VISIBLE_DEVICES is set, only the GPUs that it names are used, by index as in
    `aliquot gpus` or by UUID. The command does not get the variable: its slices are its GPUs.
    """
    from aliquot.cli.run import run_command  # noqa: PLC0415 - imported when needed
    from aliquot.model import Request, parse_amount, parse_share  # noqa: PLC0415

    request = Request(
        gpus=gpus,
        memory=None if memory is None else parse_amount(memory),
        compute_percent=parse_share(compute),
        policy=policy,
        priority=priority,
        together=together,
    )
    run_command(request, command, name=name, simulate=simulate)


@app.command(epilog=examples("aliquot ps", "aliquot ps --watch", "aliquot ps --json"))
def ps(
    *,
    json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh once a second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the grants: their slices, limits, use and processes.

    Compute is the requested share. Got is the share of the GPU's time in about the last second.
    Below the table are slices whose share does not hold, and processes outside all grants.

    If root's arbiter serves several users, User says whose a grant is. Of other users' grants you
    see the slices, not the names and processes; root sees all.
    """
    from aliquot.cli.ps import show_grants  # noqa: PLC0415 - imported when needed

    if json and watch:
        raise InvalidValueError("--json and --watch cannot be combined", "Leave one of them out.")
    show_grants(json=json, watch=watch)


@app.command(
    epilog=STATES
    + "\n\n"
    + examples(
        "aliquot top", "aliquot top --interval 0.2", "aliquot top --once", "aliquot top -n 60 >log"
    )
)
def top(
    *,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", min=0.1, max=3600, help="Seconds between two refreshes."),
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many refreshes.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="The same as -n 1.")] = False,
) -> None:
    """Show live what every slice gets of its GPU. Press q or Ctrl-C to end it.

    Asked is the requested share of compute time, with the policy and priority if they are not
    elastic and normal. Got is the share since the last refresh. Backlog is the number of
    unfinished quanta of work. A wait is the time from having work to having credit. A fallback is
    counted when the slice did not drain in time and others ran at the same time.

    If the output is not a terminal, each slice is one line of NAME=VALUE pairs. There the state of
    the grant is a separate pair, grant_state.
    """
    from aliquot.cli.top import show_top  # noqa: PLC0415 - imported when needed

    if once and count is not None:
        raise InvalidValueError("--once and -n cannot be combined", "Leave one of them out.")
    show_top(interval, 1 if once else count)


@app.command(
    epilog=examples(
        "aliquot resize mine --compute 50",
        "aliquot resize mine --compute equal --policy elastic",
        "aliquot resize mine --memory 16GiB",
        "aliquot resize mine --memory 4GiB --wait    (as the program frees memory)",
        "aliquot resize mine --priority background",
        "sudo aliquot resize alice:mine --compute 20",
    )
)
def resize(  # noqa: PLR0913, PLR0917 - one for each option
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the grant, as in aliquot ps; root may give USER:NAME.",
        ),
    ],
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT", help="New memory limit of each slice: 8GiB, or 50% of its GPU."
        ),
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="New share of compute time: 1 to 100 (whole percent), or equal: an equal part of "
            "what the others leave.",
        ),
    ] = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="New policy: elastic may use idle time, hard never exceeds its share.",
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        Priority | None,
        typer.Option(
            help="New priority: latency goes first, background goes last.", show_default=False
        ),
    ] = None,
    simulate: Simulate = None,
    *,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="If programs use more than the new memory limit: lower it step by step as they "
            "free memory, and wait until it is reached. Ctrl-C keeps the present limit.",
        ),
    ] = False,
) -> None:
    """Change all slices of a grant while its program runs.

    Compute, policy and priority change at the next window, memory at once. Settings that are not
    given do not change. A memory limit below what is in use is refused, unless --wait is given.
    """
    from aliquot.cli.resize import resize_grant  # noqa: PLC0415 - imported when needed
    from aliquot.model import GrantChange, parse_amount, parse_share  # noqa: PLC0415

    change = GrantChange(
        memory=None if memory is None else parse_amount(memory),
        compute_percent=None if compute is None else parse_share(compute),
        policy=policy,
        priority=priority,
    )
    raise typer.Exit(resize_grant(name, change, wait=wait, simulate=simulate))


@app.command(
    epilog=examples(
        "aliquot metrics",
        "aliquot metrics --simulate h100:8",
        "cd /var/lib/node_exporter && \\",
        "    aliquot metrics >aliquot.tmp && mv aliquot.tmp aliquot.prom",
        "    (from cron, for node_exporter's --collector.textfile.directory)",
    )
)
def metrics(simulate: Simulate = None) -> None:
    """Print the status of the arbiter as Prometheus text.

    Times are in seconds, memory is in bytes, shares are ratios. The labels of a slice are its
    grant and the UUID of its GPU. aliquot_slice_info has its policy, its priority and the state of
    its grant: active, switching (being frozen or thawed) or parked (frozen).
    """
    from aliquot.cli.metrics import show_metrics  # noqa: PLC0415 - imported when needed

    show_metrics(simulate)


@app.command(epilog=examples("aliquot doctor", "aliquot doctor --simulate h100:8"))
def doctor(simulate: Simulate = None, *, json: Json = False) -> None:
    """Check this machine, and say how to fix problems.

    The exit code is 1 if something is broken.
    """
    from aliquot.cli.doctor import show_findings  # noqa: PLC0415 - imported when needed

    raise typer.Exit(0 if show_findings(simulate, json=json) else 1)


@app.command(
    epilog=examples(
        "aliquot limits",
        "sudo aliquot limits             (all users)",
        "sudo aliquot limits --reload    (after a change of /etc/aliquot/users)",
    )
)
def limits(
    simulate: Simulate = None,
    *,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Let the arbiter read the file of limits again: root only."),
    ] = False,
    json: Json = False,
) -> None:
    """Show what you may have of this machine's GPUs, and what you have.

    Root sets limits for users on memory, compute and grants, over all GPUs together: 100% of
    compute are one GPU. The file /etc/aliquot/users has one line for each user, and * for all
    others: user alice memory 40GiB compute 50 grants 4
    """
    from aliquot.cli.limits import show_limits  # noqa: PLC0415 - imported when needed

    show_limits(simulate, reload=reload, json=json)


@app.command(
    epilog=examples(
        "sudo aliquot arbiter",
        "sudo aliquot arbiter --users /root/limits",
        "aliquot arbiter --simulate h100:8",
    )
)
def arbiter(
    simulate: Simulate = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Limits of users (aliquot limits). Without it, as root: /etc/aliquot/users. The "
            "file must belong to root, and nobody else may be able to write to it.",
        ),
    ] = None,
    unjoined: Annotated[
        Unjoined,
        typer.Option(
            help="What to do with a process that uses a GPU in the cgroup of a grant and has not "
            "joined the grant: report it, or end it."
        ),
    ] = Unjoined.REPORT,
) -> None:
    """Run the arbiter of this machine in the foreground.

    It runs until you stop it. As root it serves all users. By default each user gets a separate
    arbiter, which `aliquot run` starts and which does not see the grants of other users.
    """
    from aliquot.cli.arbiter import serve  # noqa: PLC0415 - imported when needed

    serve(simulate, users, unjoined)


@app.command(epilog=examples("aliquot restart", "aliquot restart --simulate h100:8"))
def restart(simulate: Simulate = None) -> None:
    """Replace the running arbiter by one of this version.

    Use it after an upgrade. Programs keep running under their limits, and get their compute shares
    back from the new arbiter. The exit code is 1 if a program could not be adopted.
    """
    from aliquot.cli.arbiter import restart as replace  # noqa: PLC0415 - imported when needed

    raise typer.Exit(0 if replace(simulate) else 1)


jobs_app.add_to(app, examples)
app.add_typer(simulate_app, name="simulate")
app.command(
    epilog=examples(
        "aliquot explain --nodes NODES.csv --gpus 8",
        "aliquot explain --nodes NODES.csv --pods PODS.csv --compute 50 --cpu 4",
    )
)(explain)
app.command(name="scheduler", epilog=examples(*scheduler_command.EXAMPLES))(
    scheduler_command.scheduler
)
app.command(name="node", epilog=examples(*node_command.EXAMPLES))(node_command.node)
app.command(name="controller", epilog=examples(*controller_command.EXAMPLES))(
    controller_command.controller
)
