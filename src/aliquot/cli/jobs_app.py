"""Names, options and help of the commands for jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from aliquot.cli.options import (
    Alone,
    ApartFrom,
    Format,
    IsolationOption,
    Label,
    MinStrength,
    Model,
    NotGpu,
    NoTrunc,
    OnlyGpu,
    ParkAfter,
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
from aliquot.model.grant import Isolation, Policy, Priority
from aliquot.model.units import EQUAL

Simulate = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL:COUNT",
        envvar="ALIQUOT_SIMULATE",
        help="Use the pool of simulated GPUs, for example h100:8.",
    ),
]
Name = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's name or number, as in aliquot jobs.")
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB...", help="Names or numbers of jobs, as in aliquot jobs."),
]
All = Annotated[bool, typer.Option("--all", help="All unfinished jobs.")]
AllSuspended = Annotated[bool, typer.Option("--all", help="All suspended jobs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def up(  # noqa: PLR0913 - one for each option
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="of root: /etc/aliquot/pool.toml",
            help="A TOML file of queues and limits.",
        ),
    ] = None,
    resize_every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="The minimum time between two resizes of one job."
        ),
    ] = 300.0,
    settle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            show_default="as --resize-every",
            help="How long GPUs must have been free before a running job grows.",
        ),
    ] = None,
    console: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            envvar="ALIQUOT_CONSOLE",
            help="Where the web page listens, HOST:PORT; if the usual port is taken, at a free one."
            " off: no web page.",
        ),
    ] = "127.0.0.1",
    simulate: Simulate = None,
    *,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Run it in the background, and return when it answers. It writes to pool.log in "
            "its directory.",
        ),
    ] = False,
) -> None:
    """Run the pool: it queues jobs and runs their workers.

    It runs until Ctrl-C or SIGTERM, or with --detach until `aliquot down`. Jobs keep running, and
    the next `aliquot up` continues them. A web page shows it all: `aliquot console` prints a link.
    """
    from aliquot.cli.up import up as bring_up  # noqa: PLC0415 - imported when needed

    bring_up(simulate, config, resize_every, settle, detach=detach, console=console)


def down(simulate: Simulate = None) -> None:
    """Stop the pool, and say which jobs keep running.

    Running workers do not notice. Waiting jobs wait for the next `aliquot up`.
    """
    from aliquot.cli.up import down as bring_down  # noqa: PLC0415 - imported when needed

    bring_down(simulate)


def submit(  # noqa: PLR0913, PLR0917 - one for each option
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", show_default=False, help="The command and its arguments, after --."
        ),
    ],
    workers: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="How many workers: 4, 1..4, 1..8:pow2 or 2,3,6. A job with several sizes grows "
            "while GPUs are free and shrinks when other jobs wait.",
        ),
    ] = "1",
    gpus: Annotated[
        int, typer.Option(min=1, max=16, help="How many different GPUs each worker gets.")
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Memory of each GPU, as in aliquot run."),
    ] = None,
    compute: Annotated[
        str, typer.Option(metavar="PERCENT", help="Share of compute time, as in aliquot run.")
    ] = EQUAL,
    model: Model = None,
    gpu: OnlyGpu = None,
    not_gpu: NotGpu = None,
    min_strength: MinStrength = None,
    label: Label = None,
    beside: With = None,
    apart_from: ApartFrom = None,
    policy: Annotated[Policy, typer.Option(help="As in aliquot run.")] = Policy.ELASTIC,
    priority: Annotated[
        Priority, typer.Option(help="Priority of its slices, as in aliquot run.")
    ] = Priority.NORMAL,
    queue: Annotated[str, typer.Option(help="The queue of the job.")] = "default",
    urgency: Annotated[
        int, typer.Option(help="Your jobs of the same queue with a larger number start first.")
    ] = 0,
    name: Annotated[
        str, typer.Option(show_default="from the command", help="A name for the job.")
    ] = "",
    together: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Hold the GPUs together with other jobs and grants of the same NAME, as in "
            "aliquot run. The workers of one job always do.",
        ),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="How often to restart the job after a worker failed.")
    ] = 0,
    notice: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long before SIGTERM workers get a notice of a resize, to save.",
        ),
    ] = 30.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="The time between SIGTERM and SIGKILL.")
    ] = 10.0,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long the job may run: 90 (seconds), 10m, 2h, 1h30m or 1:30:00. Then its "
            "workers get a notice and are stopped. Suspended time does not count.",
            show_default="no limit",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB[:ok|:any]",
            show_default=False,
            help="Start when JOB (or each job of the array JOB) has succeeded, or with :any when "
            "it has ended. If it fails, this job is cancelled. Give it several times for several.",
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            metavar="INDICES",
            show_default=False,
            help="Submit a job for each index: 1-10, 1,4,7 or 0-99%4 (at most 4 at once). Their "
            "names are NAME-INDEX, and ALIQUOT_ARRAY_INDEX is the index.",
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
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Print its output until it is finished, and exit with its exit code. Ctrl-C "
            "stops following; the job keeps running.",
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="The program adapts to a new size while it runs, so a resize stops only workers "
            "above the new size.",
        ),
    ] = False,
) -> None:
    """Submit a command to the pool as a job, and print its name.

    Each worker runs the command in its own grant, in the current directory, with the current
    environment plus RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    """
    from aliquot.cli.submit import submit as submit_job  # noqa: PLC0415 - imported when needed
    from aliquot.model import Request, parse_amount, parse_duration, parse_share  # noqa: PLC0415
    from aliquot.model.job import Job, parse_dependency, parse_indices, parse_sizes  # noqa: PLC0415

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
    job = Job(
        number=0,
        name=name,
        command=tuple(command),
        request=request,
        sizes=parse_sizes(workers),
        queue=queue,
        urgency=urgency,
        live=live,
        retries=retries,
        notice_seconds=notice,
        grace_seconds=grace,
        time_seconds=None if time is None else parse_duration(time),
        after=tuple(map(parse_dependency, after or ())),
    )
    indices = None if array is None else parse_indices(array)
    raise typer.Exit(submit_job(job, indices, simulate=simulate, follow=follow))


def resubmit(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="Names or numbers of finished jobs, or names of arrays."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(show_default="as before", help="Another name, if it is one job."),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Submit finished jobs again, as they were.

    Each has a new number, and the command, folder, sizes and options of the old one, with what
    `aliquot update` changed. Its environment is the current one: the pool keeps none of finished
    jobs. A job that starts after another one of JOB... starts after the new one. Jobs of an array
    are an array again; if its other jobs are not finished, they take their places in it again.
    """
    from aliquot.cli.submit import resubmit as submit_again  # noqa: PLC0415 - imported when needed

    submit_again(names, name, simulate)


def jobs(  # noqa: PLR0913, PLR0917 - one for each option
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB...",
            help="Only these jobs, finished or not, and commands that wait: names, numbers, or "
            "names of arrays.",
        ),
    ] = None,
    simulate: Simulate = None,
    user: Annotated[
        str | None,
        typer.Option("--user", "-u", show_default=False, help="Only the jobs of this user."),
    ] = None,
    phases: Annotated[
        list[str] | None,
        typer.Option(
            "--phase",
            metavar="PHASE",
            show_default=False,
            help="Only jobs in this phase: pending, running, failed … Finished ones are those of "
            "the last day, or with --all of all time. Give it several times for several.",
        ),
    ] = None,
    template: Format = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="The time between two refreshes.")
    ] = 2.0,
    *,
    with_finished: Annotated[
        bool, typer.Option("--all", "-a", help="All jobs, finished ones included.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show them again and again, until q or Ctrl-C.")
    ] = False,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """List the pool's jobs, and say why they wait.

    Commands of `aliquot run --wait` that wait are listed with them. Jobs that finished in the last
    day are listed below.
    """
    from aliquot.cli.jobs import Selection, show_jobs  # noqa: PLC0415 - imported when needed
    from aliquot.cli.tables import Output  # noqa: PLC0415
    from aliquot.model.job import parse_phase  # noqa: PLC0415

    show_jobs(
        Selection(
            tuple(names or ()), user, frozenset(map(parse_phase, phases or ())), with_finished
        ),
        simulate,
        Output(json, template, no_trunc),
        watch=interval if watch else None,
    )


def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="The job's name or number, as in aliquot jobs; or gang/NAME on Kubernetes.",
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            show_default="the kubeconfig's",
            help="The namespace of a gang.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(show_default="KUBECONFIG", help="The kubeconfig for a gang."),
    ] = None,
    simulate: Simulate = None,
    *,
    json: Json = False,
) -> None:
    """Show all about a job: why it waits, its GPUs, its history.

    Also of a gang on Kubernetes: gang/NAME. Of an array it lists the jobs.
    """
    from aliquot.cli.gang import PREFIX, describe_gang  # noqa: PLC0415 - imported when needed
    from aliquot.cli.jobs import describe as describe_job  # noqa: PLC0415

    if name.startswith(PREFIX):
        describe_gang(name, namespace, kubeconfig, json=json)
    else:
        describe_job(name, simulate, json=json)


def logs(  # noqa: PLR0913 - one for each option
    name: Name,
    rank: Annotated[
        str, typer.Option(metavar="RANK", help="The rank of the worker, or all.")
    ] = "0",
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            "-n",
            metavar="LINES",
            min=0,
            show_default=False,
            help="Only the last lines of each worker.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            show_default=False,
            help="Only what was written in the last 90 (seconds), 10m, 2h …",
        ),
    ] = None,
    simulate: Simulate = None,
    *,
    timestamps: Annotated[
        bool,
        typer.Option("--timestamps", "-t", help="Print the time before each line, to a second."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job is finished.")
    ] = False,
) -> None:
    """Print the output of a job.

    It is that of one worker, or of all: the last 64 MiB, across restarts. With --rank all each line
    begins with the rank of its worker. The name of an array stands for all its jobs, and each line
    begins with the job's name. While no pool is up, the output of your own jobs is read from their
    files, and not followed.
    """
    from aliquot.cli.job_logs import LogOptions, parse_rank  # noqa: PLC0415 - imported when needed
    from aliquot.cli.submit import show_log  # noqa: PLC0415
    from aliquot.model import parse_duration  # noqa: PLC0415

    options = LogOptions(
        rank=parse_rank(rank),
        tail=tail,
        since=None if since is None else time.time() - parse_duration(since),
        timestamps=timestamps,
        follow=follow,
    )
    show_log(name, options, simulate)


def wait(
    names: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Names or numbers of jobs, or names of arrays."),
    ],
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            show_default="no limit",
            help="Give up after 90 (seconds), 10m, 2h …: the exit code is then 75.",
        ),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Wait until jobs are finished, and exit with their exit code.

    Of several jobs it is the first exit code that is not 0, in the order given. A job that a
    signal ended has 128 plus the signal's number, a cancelled job 143, and a job that reached its
    time limit or was idle for too long 124.
    """
    from aliquot.cli.jobs import client_of  # noqa: PLC0415 - imported when needed
    from aliquot.cli.wait import wait_for  # noqa: PLC0415
    from aliquot.model import parse_duration  # noqa: PLC0415

    seconds = None if timeout is None else parse_duration(timeout)
    raise typer.Exit(wait_for(lambda: client_of(simulate), names, seconds))


def update(  # noqa: PLR0913, PLR0917 - one for each option
    names: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="Names or numbers of jobs, or names of arrays."),
    ],
    workers: Annotated[
        str | None,
        typer.Option(metavar="SIZES", show_default=False, help="New numbers of workers."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", show_default=False, help="New memory of each GPU."),
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", show_default=False, help="New share of compute time."),
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option(show_default=False, help="New priority of its slices.")
    ] = None,
    queue: Annotated[str | None, typer.Option(show_default=False, help="Another queue.")] = None,
    urgency: Annotated[
        int | None,
        typer.Option(show_default=False, help="New urgency, also while it runs."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            show_default=False,
            help="New time limit, also while it runs; 0 for no limit.",
        ),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Change jobs that wait. What is not given stays as it is.

    While a job has workers only --time and --urgency can change.
    """
    from aliquot.cli.jobs import update as update_jobs  # noqa: PLC0415 - imported when needed
    from aliquot.model import parse_amount, parse_duration, parse_share  # noqa: PLC0415
    from aliquot.model.errors import InvalidValueError  # noqa: PLC0415
    from aliquot.model.job import JobChange, parse_sizes  # noqa: PLC0415

    change = JobChange(
        memory=None if memory is None else parse_amount(memory),
        compute_percent=None if compute is None else parse_share(compute),
        priority=priority,
        sizes=None if workers is None else parse_sizes(workers),
        queue=queue,
        urgency=urgency,
        time_seconds=None if time is None else parse_duration(time),
    )
    if change == JobChange():
        raise InvalidValueError("nothing to change", "See the options: aliquot update --help")
    update_jobs(names, change, simulate)


def prune(
    older: Annotated[
        str, typer.Option(metavar="DURATION", help="Jobs that finished longer ago: 12h, 30d.")
    ] = "30d",
    simulate: Simulate = None,
) -> None:
    """Forget finished jobs, their history and their output.

    The pool does this by itself for jobs that finished more than 30 days ago, and for those beyond
    10,000 finished jobs or 32 GiB of output of a user. Jobs that others wait for are kept.
    """
    from aliquot.cli.jobs import prune as prune_jobs  # noqa: PLC0415 - imported when needed
    from aliquot.model import parse_duration  # noqa: PLC0415

    prune_jobs(simulate, parse_duration(older))


def suspend(names: Names = None, simulate: Simulate = None, *, every: All = False) -> None:
    """Suspend jobs: others use their GPUs until they are resumed.

    If the driver supports it, the workers are frozen: their GPU memory moves to the host, and they
    continue where they were. Otherwise the workers are asked to save and are stopped; a program
    that does not save loses its work. `aliquot doctor` (line suspend) says whether this machine can
    freeze programs; `aliquot describe` says what happened to a job.

    A job that was submitted with --swap moves its memory itself, at the speed of the bus. If that
    fails it keeps running, and `aliquot describe` says why.

    The command does not wait: `aliquot jobs` shows Suspending, then Suspended.

    A command of `aliquot run --swap` can be suspended too, by its name in `aliquot ps`: by root, or
    by the user whose arbiter it runs under. That waits until its memory has left.
    """
    from aliquot.cli.jobs import request  # noqa: PLC0415 - imported when needed

    request(names or [], "suspend", simulate, every=every)


def resume(names: Names = None, simulate: Simulate = None, *, every: AllSuspended = False) -> None:
    """Resume suspended jobs: they run again when GPUs are free.

    A job with frozen workers needs free capacity on the GPUs it had, for as many workers as it had.
    A command of `aliquot run` is not resumed, and the exit code says so, while its GPU has no room.
    """
    from aliquot.cli.jobs import request  # noqa: PLC0415 - imported when needed

    request(names or [], "resume", simulate, every=every)


def cancel(names: Names = None, simulate: Simulate = None, *, every: All = False) -> None:
    """Cancel jobs: their workers are stopped for good.

    `aliquot jobs` shows Cancelling until the workers have ended, then Cancelled. To cancel a
    finished job changes nothing and is no error. A command of `aliquot run --wait` that waits under
    this name ends with exit code 143; --all is only about jobs.
    """
    from aliquot.cli.jobs import request  # noqa: PLC0415 - imported when needed

    request(names or [], "cancel", simulate, every=every)


EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    up: (
        "aliquot up",
        "aliquot up --config pool.toml --resize-every 60",
        "aliquot up --detach --simulate h100:8",
    ),
    down: ("aliquot down", "aliquot down --simulate h100:8"),
    submit: (
        "aliquot submit -- python train.py",
        "aliquot submit --workers 1..4 --name train -- python train.py",
        "aliquot submit --memory 8GiB --compute 25 --retries 3 -- ./serve",
        "aliquot submit --follow --time 2h -- python train.py",
        "aliquot submit --name sweep --array 1-10%2 -- ./sweep.sh",
        "aliquot submit --after sweep -- ./collect.sh",
    ),
    resubmit: (
        "aliquot resubmit train",
        "aliquot resubmit sweep-3 sweep-7",
        "aliquot resubmit 12 --name train-again",
    ),
    jobs: (
        "aliquot jobs",
        "aliquot jobs sweep",
        "aliquot jobs --user alice --phase pending",
        "aliquot jobs --watch",
        "aliquot jobs --all --json",
        "aliquot jobs --all --format '{number} {name} {phase} {exit} {start} {end}'",
    ),
    describe: ("aliquot describe train", "aliquot describe gang/train --namespace team-a"),
    logs: (
        "aliquot logs train",
        "aliquot logs train --rank 1 --follow",
        "aliquot logs train --rank all --timestamps --since 10m --tail 100",
    ),
    wait: ("aliquot wait train", "aliquot wait --timeout 2h sweep && ./collect.sh"),
    update: ("aliquot update train --time 4h", "aliquot update sweep --memory 16GiB --urgency 5"),
    prune: ("aliquot prune --older 7d",),
    suspend: ("aliquot suspend train", "aliquot suspend --all"),
    resume: ("aliquot resume train", "aliquot resume --all"),
    cancel: ("aliquot cancel train", "aliquot cancel 12 13"),
}


def add_to(app: typer.Typer, examples: Callable[..., str]) -> None:
    """Add these commands to the application; `examples` formats the end of their help."""
    for command, lines in EXAMPLES.items():
        settings = {"allow_interspersed_args": False} if command is submit else None
        app.command(epilog=examples(*lines), context_settings=settings)(command)
