"""Names, options and help of the commands for jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from aliquot.model.grant import Policy, Priority
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


def up(
    queues: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A TOML file of queues: [queues.NAME] with weight, quota and limit (in GPUs).",
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
            help="How long GPUs must have been free before a running job grows. Default: as "
            "--resize-every.",
        ),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Run the pool of this machine in the foreground: it queues jobs and runs their workers.

    Ctrl-C or SIGTERM ends it. Jobs keep running, and the next `aliquot up` continues them.
    """
    from aliquot.cli.up import up as bring_up  # noqa: PLC0415 - imported when needed

    bring_up(simulate, queues, resize_every, settle)


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
        typer.Option(metavar="AMOUNT", help="Memory of each GPU, as in aliquot run. Default: all."),
    ] = None,
    compute: Annotated[
        str, typer.Option(metavar="PERCENT", help="Share of compute time, as in aliquot run.")
    ] = EQUAL,
    policy: Annotated[Policy, typer.Option(help="As in aliquot run.")] = Policy.ELASTIC,
    priority: Annotated[
        Priority, typer.Option(help="Priority of its slices, as in aliquot run.")
    ] = Priority.NORMAL,
    queue: Annotated[str, typer.Option(help="The queue of the job.")] = "default",
    urgency: Annotated[
        int, typer.Option(help="The job's priority within its queue: larger numbers start first.")
    ] = 0,
    name: Annotated[
        str, typer.Option(help="A name for the job. Default: made from the command.")
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
    simulate: Simulate = None,
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="The program adapts to a new size while it runs, so a resize stops only workers "
            "above the new size.",
        ),
    ] = False,
) -> None:
    """Submit a command to the pool as a job, and print the job's name.

    Each worker runs the command in its own grant, in the current directory, with the current
    environment plus RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    """
    from aliquot.cli.submit import submit as submit_job  # noqa: PLC0415 - imported when needed
    from aliquot.model import Request, parse_amount, parse_share  # noqa: PLC0415
    from aliquot.model.job import Job, parse_sizes  # noqa: PLC0415

    request = Request(
        gpus=gpus,
        memory=None if memory is None else parse_amount(memory),
        compute_percent=parse_share(compute),
        policy=policy,
        priority=priority,
        together=together,
    )
    job = Job(
        number=0,
        name=name,
        command=tuple(command),
        request=request,
        sizes=parse_sizes(workers),
        queue=queue,
        priority=urgency,
        live=live,
        retries=retries,
        notice_seconds=notice,
        grace_seconds=grace,
    )
    submit_job(job, simulate=simulate)


def jobs(
    simulate: Simulate = None,
    *,
    with_finished: Annotated[
        bool, typer.Option("--all", "-a", help="Include finished jobs.")
    ] = False,
    json: Json = False,
) -> None:
    """List the pool's jobs: phase, workers, progress and reason."""
    from aliquot.cli.jobs import show_jobs  # noqa: PLC0415 - imported when needed

    show_jobs(simulate, with_finished=with_finished, json=json)


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
            "--namespace", "-n", help="The namespace of a gang. Default: the kubeconfig's."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="The kubeconfig for a gang. Default: KUBECONFIG."),
    ] = None,
    simulate: Simulate = None,
    *,
    json: Json = False,
) -> None:
    """Show a job, or a gang on Kubernetes: its phase, why it waits, and its history."""
    from aliquot.cli.gang import PREFIX, describe_gang  # noqa: PLC0415 - imported when needed
    from aliquot.cli.jobs import describe as describe_job  # noqa: PLC0415

    if name.startswith(PREFIX):
        describe_gang(name, namespace, kubeconfig, json=json)
    else:
        describe_job(name, simulate, json=json)


def logs(
    name: Name,
    rank: Annotated[int, typer.Option(min=0, help="The rank of the worker.")] = 0,
    simulate: Simulate = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the job is finished.")
    ] = False,
) -> None:
    """Print the output of a worker: the last 64 MiB, across restarts."""
    from aliquot.cli.jobs import show_log  # noqa: PLC0415 - imported when needed

    show_log(name, simulate, rank, follow=follow)


def suspend(names: Names = None, simulate: Simulate = None, *, every: All = False) -> None:
    """Suspend jobs: they give their GPUs back until they are resumed.

    If the driver supports it, the workers are frozen: their GPU memory moves to the host, and they
    continue where they were. Otherwise the workers are asked to save and are stopped; a program
    that does not save loses its work. `aliquot doctor` (line suspend) says whether this machine can
    freeze programs; `aliquot describe` says what happened to a job.

    The command does not wait: `aliquot jobs` shows Suspending, then Suspended.
    """
    from aliquot.cli.jobs import request  # noqa: PLC0415 - imported when needed

    request(names or [], "suspend", simulate, every=every)


def resume(names: Names = None, simulate: Simulate = None, *, every: AllSuspended = False) -> None:
    """Resume suspended jobs: they run again when GPUs are free.

    A job with frozen workers needs free capacity on the GPUs it had, for as many workers as it had.
    """
    from aliquot.cli.jobs import request  # noqa: PLC0415 - imported when needed

    request(names or [], "resume", simulate, every=every)


def cancel(names: Names = None, simulate: Simulate = None, *, every: All = False) -> None:
    """Cancel jobs: their workers are stopped and never started again."""
    from aliquot.cli.jobs import request  # noqa: PLC0415 - imported when needed

    request(names or [], "cancel", simulate, every=every)


EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    up: (
        "aliquot up",
        "aliquot up --queues queues.toml --resize-every 60",
        "aliquot up --simulate h100:8",
    ),
    submit: (
        "aliquot submit -- python train.py",
        "aliquot submit --workers 1..4 --name train -- python train.py",
        "aliquot submit --memory 8GiB --compute 25 --retries 3 -- ./serve",
    ),
    jobs: ("aliquot jobs", "aliquot jobs --all --json"),
    describe: ("aliquot describe train", "aliquot describe gang/train --namespace team-a"),
    logs: ("aliquot logs train", "aliquot logs train --rank 1 --follow"),
    suspend: ("aliquot suspend train", "aliquot suspend --all"),
    resume: ("aliquot resume train", "aliquot resume --all"),
    cancel: ("aliquot cancel train", "aliquot cancel 12 13"),
}


def add_to(app: typer.Typer, examples: Callable[..., str]) -> None:
    """Add these commands to the application; `examples` formats the end of their help."""
    for command, lines in EXAMPLES.items():
        settings = {"allow_interspersed_args": False} if command is submit else None
        app.command(epilog=examples(*lines), context_settings=settings)(command)
