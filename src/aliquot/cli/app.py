"""The commands of one machine: their names, options and help.

What a command does is in the module that it imports when it runs.

Exit codes: 2 for invalid use, 1 for a refusal or failure, 75 if `run --wait` waited too long,
127 or 126 if the command to run does not exist or cannot be executed, and otherwise the exit code
of that command.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

import aliquot
from aliquot.cli import console as console_command
from aliquot.cli import controller as controller_command
from aliquot.cli import jobs_app
from aliquot.cli import node as node_command
from aliquot.cli import scheduler as scheduler_command
from aliquot.cli.completion import Shell  # noqa: TC001 - typer reads it
from aliquot.cli.help_text import block, examples
from aliquot.cli.optional_wait import FOREVER, OptionalWait
from aliquot.cli.options import (
    Alone,
    ApartFrom,
    Format,
    IsolationOption,
    Json,
    Label,
    MinStrength,
    Model,
    NotGpu,
    NoTrunc,
    OnlyGpu,
    ParkAfter,
    Simulate,
    Spill,
    Swap,
    SwapWait,
    With,
    read_min_strength,
    read_neighbours,
    read_park_after,
    read_selection,
    read_spill,
    read_swap_wait,
)
from aliquot.cli.remote_app import remote_app
from aliquot.cli.simulate_app import explain, simulate_app
from aliquot.cli.slice_app import slice_app
from aliquot.cli.start import start_command
from aliquot.cli.usage import usage_text
from aliquot.model.errors import (
    AliquotError,
    CancelledError,
    CommandNotExecutableError,
    CommandNotFoundError,
    InvalidValueError,
    OutputError,
    WaitTimeoutError,
)
from aliquot.model.grant import OVERCOMMIT_MOST, Admission, Isolation, Policy, Priority, Unjoined
from aliquot.model.units import EQUAL
from aliquot.slices import silence

EXIT_CODES: dict[type[AliquotError], int] = {
    InvalidValueError: 2,
    CommandNotExecutableError: 126,
    CommandNotFoundError: 127,
    WaitTimeoutError: 75,
    CancelledError: 143,  # as a job that was cancelled
}


EXAMPLES = (
    examples(
        "aliquot doctor                            what works on this machine",
        "aliquot run --memory 8GiB --compute 30 -- python train.py",
        "aliquot ps                                grants and their use",
        "aliquot resize train-1234 --memory 16GiB  while the program runs",
        "aliquot run --simulate h100:1 -- ./prog   without a GPU",
    )
    + "\n\nWithout a GPU, add --simulate h100:8 to any command of one machine, or to node. "
    "ps and top show simulated machines too."
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
    "stopped    a signal has stopped its processes, as Ctrl-Z does",
)


def run_app() -> None:
    """Run the command line."""
    if sys.stderr.isatty():
        silence.notice.show = _say_that_it_waits
    try:
        with _output_checked():
            code = start_command(app, sys.argv[1:])(standalone_mode=False)
        sys.exit(code or 0)
    except TyperException as error:
        sys.stderr.write(usage_text(error))
        sys.exit(2)
    except AliquotError as error:
        sys.stderr.write(f"aliquot: {error}\n")
        sys.exit(EXIT_CODES.get(type(error), 1))


def _say_that_it_waits(service: str, seconds_left: float | None) -> None:
    until = ""
    if seconds_left is not None:
        end = time.localtime(time.time() + seconds_left)
        until = time.strftime("; at most until %T", end)
    with suppress(OSError):
        sys.stderr.write(f"aliquot: waiting for {service}, which does not answer{until}\n")
        sys.stderr.flush()


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
    epilog=examples(
        "aliquot gpus",
        "aliquot gpus --simulate h100:8",
        "aliquot gpus --json",
        "aliquot gpus --format '{gpu} {uuid}'",
    )
)
def gpus(
    simulate: Simulate = None,
    template: Format = None,
    *,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Show the GPUs of this machine: memory, use, grants, links.

    Inside a grant it shows the slices of the grant.
    """
    from aliquot.cli.gpus import show_gpus  # noqa: PLC0415 - imported when needed
    from aliquot.cli.tables import Output  # noqa: PLC0415

    show_gpus(simulate, Output(json, template, no_trunc))


@app.command(
    cls=OptionalWait,
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "aliquot run --memory 8GiB -- python train.py",
        "aliquot run --gpus 2 --memory 50% --name two-halves -- python train.py",
        "aliquot run -- python train.py    (a whole GPU)",
        "aliquot run --compute 30 -- python train.py    (and 30% of the memory)",
        "aliquot run --memory 20GiB --compute 30 -- python train.py",
        "aliquot run --memory 20GiB --compute 30 --policy hard -- python benchmark.py",
        "aliquot run --memory 8GiB --priority latency --compute 40 -- python serve.py",
        "aliquot run --memory 40GiB --priority background -- python train.py",
        "aliquot run --memory 20GiB --together job7 -- python rank.py",
        "aliquot run --memory 20GiB --model H100 --not-gpu 3 -- python train.py",
        "aliquot run --memory 20GiB --apart-from train -- python serve.py",
        "aliquot run --memory 20GiB --dry-run -- python train.py",
        "aliquot run --memory 20GiB --wait=10m -- python train.py",
        "aliquot run --simulate h100:1 --memory 8G -- ./program",
        "aliquot run --remote /run/me/gpu --memory 20GiB -- python train.py",
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
            "MB are decimal. Without it: the same part of the memory as --compute of the "
            "compute time, and without both whole GPUs.",
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
    model: Model = None,
    gpu: OnlyGpu = None,
    not_gpu: NotGpu = None,
    min_strength: MinStrength = None,
    label: Label = None,
    beside: With = None,
    apart_from: ApartFrom = None,
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
        typer.Option(show_default="from the command", help="A name for the grant."),
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
    *,
    alone: Alone = False,
    swap: Swap = None,
    park_after: ParkAfter = None,
    swap_wait: SwapWait = None,
    spill: Spill = None,
    isolation: IsolationOption = Isolation.SOFT,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="[=DURATION]",
            show_default=False,
            help="If no GPU is free, wait in the queue of the pool: without limit, or for at most "
            "10m, 2h, 1h30m (exit code 75 after that). Ctrl-C leaves the queue.",
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="The queue of the pool that it waits in and counts for. Default: default.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Make nothing: say which GPU the command would get and why, or why it would not "
            "run (exit code 1).",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    remote: Annotated[
        Path | None,
        typer.Option(
            metavar="SOCKET",
            show_default=False,
            help="Experimental: the GPU is that of the `aliquot remote serve` with this socket. "
            "For PyTorch programs, with --memory and --compute alone.",
        ),
    ] = None,
) -> None:
    """Run a command in a slice of a GPU.

    The command sees a GPU of that size. An allocation above the limit fails with an ordinary
    out-of-memory error. The command replaces this process, so exit code and signals are its own.

    All processes that the command starts share its slices. The grant ends when the command and
    every process that has used the GPU are gone. After that a first CUDA call is refused.

    If CUDA_VISIBLE_DEVICES is set, only the GPUs that it names are used, by index as in
    `aliquot gpus` or by UUID. The command does not get the variable: its slices are its GPUs.
    """
    from aliquot.cli.run import preview_run, run_command  # noqa: PLC0415 - imported when needed
    from aliquot.model import (  # noqa: PLC0415
        Request,
        parse_amount,
        parse_duration,
        parse_share,
    )
    from aliquot.pool.grant_seeker import Wait  # noqa: PLC0415

    request = Request(
        gpus=gpus,
        memory=None if memory is None else parse_amount(memory),
        compute_percent=parse_share(compute),
        policy=policy,
        priority=priority,
        together=together,
        min_strength=read_min_strength(min_strength),
        which=read_selection(model, gpu, not_gpu),
        neighbours=read_neighbours(label, beside, apart_from, alone=alone),
        swap=swap,
        park_after=read_park_after(park_after),
        swap_wait=read_swap_wait(swap_wait),
        spill=read_spill(spill),
        isolation=isolation,
    )
    if remote is not None:
        from aliquot.cli.remote import run_remote  # noqa: PLC0415

        others = name or simulate or wait or queue or dry_run or json
        run_remote(remote, request, memory, command, only_size=not others)
    if dry_run:
        preview_run(
            request,
            command,
            name=name,
            simulate=simulate,
            queue=queue,
            wait=wait is not None,
            json=json,
        )
        return
    if json:
        raise InvalidValueError("--json needs --dry-run", "Add --dry-run, or leave out --json.")
    limit = None if wait is None else Wait(None if wait == FOREVER else parse_duration(wait))
    run_command(request, command, name=name, simulate=simulate, wait=limit, queue=queue)


@app.command(
    epilog=examples(
        "aliquot ps",
        "aliquot ps --watch",
        "aliquot ps --json",
        "aliquot ps --format '{name} {user} {pid}'",
        "aliquot ps --no-trunc | grep train",
    )
)
def ps(
    simulate: Simulate = None,
    template: Format = None,
    *,
    no_trunc: NoTrunc = False,
    json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh once a second, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the grants: whose they are, what they use and run.

    Memory is used of limit. Compute is what the slice got of the GPU's time in about the last
    second, of its share. Each slice has a row. Below the table are slices whose share does not
    hold, and processes outside all grants.

    State: running; unused (nothing has used the GPU yet); stopped (by a signal); ending and ended
    (its command has ended); switching (being frozen or thawed); parked (frozen: it holds host
    memory and no GPU); broken. Idle: for how long the slice has had no GPU work, if that is a
    minute or more.

    If root's arbiter serves several users, you see of other users' grants the user, the slices,
    state and age, not the names, processes and commands; root sees all.

    The exit code is 1 if an arbiter does not answer: then its grants are missing.
    """
    from aliquot.cli.ps import show_grants  # noqa: PLC0415 - imported when needed
    from aliquot.cli.tables import Output  # noqa: PLC0415

    if (json or template is not None) and watch:
        other = "--json" if json else "--format"
        raise InvalidValueError(f"{other} and --watch cannot be combined", "Leave one of them out.")
    complete = show_grants(simulate, Output(json, template, no_trunc), watch=watch)
    raise typer.Exit(0 if complete else 1)


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
        typer.Option(
            "--interval",
            "-i",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="The time between two refreshes.",
        ),
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many refreshes.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="The same as -n 1.")] = False,
    simulate: Simulate = None,
) -> None:
    """Show live what every slice gets of its GPU. Press q or Ctrl-C to end it.

    Share is the requested share of compute time, with the policy and priority if they are not
    elastic and normal. Got is the share since the last refresh. Backlog is the number of
    unfinished quanta of work. A wait is the time from having work to having credit. A fallback is
    counted when the slice did not drain in time and others ran at the same time.

    Keys: g, c, m, u and a sort by GPU, compute, memory, user and age. / filters by name, user, PID,
    state or command. The arrows, j, k, Page Up, Page Down, Home and End scroll.

    If the output is not a terminal, each slice is one line of NAME=VALUE pairs. There the state of
    the grant is a separate pair, grant_state.
    """
    from aliquot.cli.top import show_top  # noqa: PLC0415 - imported when needed

    if once and count is not None:
        raise InvalidValueError("--once and -n cannot be combined", "Leave one of them out.")
    show_top(interval, 1 if once else count, simulate)


@app.command(
    epilog=examples(
        "aliquot resize mine --compute 50",
        "aliquot resize mine --compute equal --policy elastic",
        "aliquot resize mine --memory 16GiB",
        "aliquot resize mine --memory 4GiB --wait    (as the program frees memory)",
        "aliquot resize mine --priority background",
        "aliquot resize mine --compute 80 --dry-run",
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
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would change, or why not, and change nothing."),
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
    raise typer.Exit(resize_grant(name, change, wait=wait, dry_run=dry_run, simulate=simulate))


@app.command(
    epilog=examples(
        "aliquot kill train-1234",
        "aliquot kill train-1234 --grace 60    (to save a large checkpoint)",
        "aliquot kill train-1234 --grace 0     (at once)",
        "sudo aliquot kill alice:train --yes",
    )
)
def kill(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            show_default=False,
            help="Names of grants, as in aliquot ps; root may give USER:NAME.",
        ),
    ],
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="The time between SIGTERM and SIGKILL."),
    ] = 10.0,
    simulate: Simulate = None,
    *,
    sure: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Do not ask before ending another user's programs, as root."
        ),
    ] = False,
) -> None:
    """End the programs of grants.

    They get SIGTERM, and SIGKILL if they are still there after --grace seconds. You may end your
    own, root any. Root is asked before another user's programs are ended if standard input is a
    terminal. To end a job of the pool use aliquot cancel.
    """
    from aliquot.cli.kill import kill as kill_grants  # noqa: PLC0415 - imported when needed

    raise typer.Exit(kill_grants(names, grace, simulate, sure=sure))


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
        "sudo aliquot limits --reload    (after a change of its file)",
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
    template: Format = None,
    no_trunc: NoTrunc = False,
) -> None:
    """Show what you may have of this machine, and what you have.

    Root sets limits for users on memory, compute and grants, over all GPUs together: 100% of
    compute are one GPU. With root's pool they are in /etc/aliquot/pool.toml. Without a pool the
    file /etc/aliquot/users has one line for each user, and * for all others:
    user alice memory 40GiB compute 50 grants 4
    """
    from aliquot.cli.limits import show_limits  # noqa: PLC0415 - imported when needed
    from aliquot.cli.tables import Output  # noqa: PLC0415

    show_limits(simulate, Output(json, template, no_trunc), reload=reload)


@app.command(
    epilog=examples(
        "sudo aliquot arbiter",
        "sudo aliquot arbiter --users /root/limits",
        "sudo aliquot arbiter --admission pool",
        "sudo aliquot arbiter --host-memory 64GiB",
        "sudo aliquot arbiter --overcommit 1.5",
        "sudo aliquot arbiter --mps none",
        "aliquot arbiter --simulate h100:8",
    )
)
def arbiter(  # noqa: PLR0913, PLR0917 - its options
    simulate: Simulate = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="of root: /etc/aliquot/users",
            help="Limits of users (aliquot limits). The file must belong to root, and nobody else "
            "may be able to write to it.",
        ),
    ] = None,
    unjoined: Annotated[
        Unjoined,
        typer.Option(
            help="What to do with a process that uses a GPU in the cgroup of a grant and has not "
            "joined the grant: report it, or end it."
        ),
    ] = Unjoined.REPORT,
    admission: Annotated[
        Admission,
        typer.Option(
            help="Who may ask for grants: all users, or only root, which runs the pool of this "
            "machine and makes grants for users."
        ),
    ] = Admission.USERS,
    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            show_default="60% of the host's memory; with --admission pool as in pool.toml",
            help="How much of the host's memory to take at most, for memory that leaves GPUs "
            "(--swap).",
        ),
    ] = None,
    overcommit: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            min=1,
            max=OVERCOMMIT_MOST,
            show_default="1; with --admission pool as in pool.toml",
            help="How many times a GPU's memory slices may have together whose memory can leave "
            "(--swap). Above 1 they take turns with it.",
        ),
    ] = None,
    mps: Annotated[
        str | None,
        typer.Option(
            metavar="GPUS",
            show_default="all",
            help="The GPUs whose slices may be of --isolation mps: all, none, or UUIDs separated "
            "by commas.",
        ),
    ] = None,
) -> None:
    """Run the arbiter of this machine in the foreground.

    It runs until you stop it. As root it serves all users. By default each user gets a separate
    arbiter, which `aliquot run` starts and which does not see the grants of other users.
    """
    from aliquot.cli.arbiter import serve  # noqa: PLC0415 - imported when needed
    from aliquot.slices.arbiter_process import ArbiterSettings  # noqa: PLC0415

    asked = ArbiterSettings(users, unjoined, admission, overcommit=overcommit, mps=mps)
    serve(simulate, asked, host_memory)


Prefix = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where Aliquot is installed for all users.")
]
Root = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="Install below this folder, for a machine image: starts nothing."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print each step and change nothing.")]


@app.command(
    epilog=examples("sudo aliquot install", "aliquot install --dry-run --prefix /opt/aliquot")
)
def install(
    prefix: Prefix = Path("/opt/aliquot"),
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="this one, or that in /usr/bin",
            help="The Python to use, of this version.",
        ),
    ] = None,
    root: Root = Path("/"),
    *,
    dry_run: DryRun = False,
) -> None:
    """Install Aliquot for all users of this machine.

    They get one arbiter and one pool. It copies Aliquot to a folder of root's, makes the group
    aliquot-admin, and starts two services of systemd. Run it again after an upgrade: running
    programs and jobs go on.
    """
    from aliquot.cli.install import InstallTarget  # noqa: PLC0415 - imported when needed
    from aliquot.cli.install import install as carry_out  # noqa: PLC0415 - imported when needed

    carry_out(InstallTarget(prefix, root), python, dry_run=dry_run, say=typer.echo)


@app.command(epilog=examples("sudo aliquot uninstall", "aliquot uninstall --dry-run"))
def uninstall(
    prefix: Prefix = Path("/opt/aliquot"), root: Root = Path("/"), *, dry_run: DryRun = False
) -> None:
    """Remove what `aliquot install` made.

    Running programs and jobs go on. Settings, jobs and their logs stay; the output says where.
    """
    from aliquot.cli.install import InstallTarget  # noqa: PLC0415 - imported when needed
    from aliquot.cli.install import uninstall as carry_out  # noqa: PLC0415 - imported when needed

    carry_out(InstallTarget(prefix, root), dry_run=dry_run, say=typer.echo)


@app.command(epilog=examples("aliquot restart", "aliquot restart --simulate h100:8"))
def restart(simulate: Simulate = None) -> None:
    """Replace the running arbiter by one of this version.

    Use it after an upgrade. Programs keep running under their limits, and get their compute shares
    back from the new arbiter. The exit code is 1 if a program could not be adopted, or if the
    arbiter holds memory of programs (--swap): resume or cancel suspended jobs first, and let parked
    programs return or end.
    """
    from aliquot.cli.arbiter import restart as replace  # noqa: PLC0415 - imported when needed

    raise typer.Exit(0 if replace(simulate) else 1)


@app.command(
    epilog=examples(
        'eval "$(aliquot completion bash)"        in ~/.bashrc',
        "source <(aliquot completion zsh)         in ~/.zshrc, after compinit",
        "aliquot completion fish | source         in ~/.config/fish/config.fish",
    )
)
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, options and names.

    The script knows the commands and options of this version. It asks aliquot only for names of
    grants and jobs.
    """
    from aliquot.cli.completion import script  # noqa: PLC0415 - imported when needed
    from aliquot.cli.tables import print_text  # noqa: PLC0415

    print_text(script(shell, typer.main.get_command(app)))


jobs_app.add_to(app, examples)
app.add_typer(simulate_app, name="simulate")
app.add_typer(slice_app, name="slice")
app.add_typer(remote_app, name="remote")
app.command(
    epilog=examples(
        "aliquot explain --memory 20GiB --compute 30    (on this machine)",
        "aliquot explain --nodes NODES.csv --gpus 8",
        "aliquot explain --nodes NODES.csv --pods PODS.csv --compute 50 --cpu 4",
    )
)(explain)
app.command(name="scheduler", epilog=examples(*scheduler_command.EXAMPLES))(
    scheduler_command.scheduler
)
app.command(name="node", epilog=examples(*node_command.EXAMPLES))(node_command.node)
app.command(name="console", epilog=examples(*console_command.EXAMPLES))(console_command.console)
app.command(name="controller", epilog=examples(*controller_command.EXAMPLES))(
    controller_command.controller
)
