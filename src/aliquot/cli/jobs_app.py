"""The names, options and help of the commands that are about jobs."""

from __future__ import annotations

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
        help="The pool of simulated GPUs, for example h100:8.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="JOB", help="Its name or number: aliquot jobs")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="JOB...", help="Their names or numbers: aliquot jobs")
]
All = Annotated[bool, typer.Option("--all", help="All jobs that are not over.")]
AllSuspended = Annotated[bool, typer.Option("--all", help="All jobs that are suspended.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def up(
    queues: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Queues, in TOML: [queues.NAME] weight, quota, limit (in GPUs)."
        ),
    ] = None,
    resize_every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="The least time between two resizes of one job."
        ),
    ] = 300.0,
    settle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long GPUs must have been free before a running job grows. Without it: as "
            "--resize-every.",
        ),
    ] = None,
    simulate: Simulate = None,
) -> None:
    """Bring up the pool of this machine: a queue of jobs, in the foreground.

    Ctrl-C or SIGTERM takes it down; jobs run on, and the next `aliquot up` takes them up again.
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
            help="How many workers: 4, 1..4, 1..8:pow2 or 2,3,6. With a choice, the job grows "
            "while GPUs are free and gives them back when others wait.",
        ),
    ] = "1",
    gpus: Annotated[
        int, typer.Option(min=1, max=16, help="How many different GPUs each worker gets.")
    ] = 1,
    memory: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Memory of each GPU, as in aliquot run. Without: all."),
    ] = None,
    compute: Annotated[
        str, typer.Option(metavar="PERCENT", help="Share of compute time, as in aliquot run.")
    ] = EQUAL,
    policy: Annotated[Policy, typer.Option(help="As in aliquot run.")] = Policy.ELASTIC,
    priority: Annotated[
        Priority, typer.Option(help="Of its slices, as in aliquot run.")
    ] = Priority.NORMAL,
    queue: Annotated[str, typer.Option(help="The queue it waits in.")] = "default",
    urgency: Annotated[
        int, typer.Option(help="Who goes first within a queue: the larger number.")
    ] = 0,
    name: Annotated[
        str, typer.Option(help="A name for the job. Without it: one made from the command's.")
    ] = "",
    retries: Annotated[
        int, typer.Option(min=0, help="How often to start again after it failed by itself.")
    ] = 0,
    notice: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Time to save before workers are stopped for a resize."
        ),
    ] = 30.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time between SIGTERM and SIGKILL.")
    ] = 10.0,
    simulate: Simulate = None,
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="The program takes up another size while it runs: only workers that are too many "
            "are stopped.",
        ),
    ] = False,
) -> None:
    """Give a command to the pool as a job, and print the job's name.

    Each worker is the command in a grant of its own, with RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT in its environment, this folder and this environment.
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
    with_old: Annotated[
        bool, typer.Option("--all", "-a", help="Those that are over, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the pool's jobs: state, workers, progress, and why."""
    from aliquot.cli.jobs import show_jobs  # noqa: PLC0415 - imported when needed

    show_jobs(simulate, with_old=with_old, json=json)


def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="Its name or number: aliquot jobs. On Kubernetes gang/NAME: kubectl get gangs",
        ),
    ],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of a gang. Without it: the kubeconfig's."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="How to reach the API server, for a gang. Without it: KUBECONFIG."),
    ] = None,
    simulate: Simulate = None,
    *,
    json: Json = False,
) -> None:
    """Show one job, or a gang on Kubernetes: where it stands, why it waits, what happened to it."""
    from aliquot.cli.gang import PREFIX, describe_gang  # noqa: PLC0415 - imported when needed
    from aliquot.cli.jobs import describe as describe_job  # noqa: PLC0415

    if name.startswith(PREFIX):
        describe_gang(name, namespace, kubeconfig, json=json)
    else:
        describe_job(name, simulate, json=json)


def logs(
    name: Name,
    rank: Annotated[int, typer.Option(min=0, help="Of which worker.")] = 0,
    simulate: Simulate = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job is over.")
    ] = False,
) -> None:
    """Show what a worker of a job wrote: the last 64 MiB, across restarts."""
    from aliquot.cli.jobs import show_log  # noqa: PLC0415 - imported when needed

    show_log(name, simulate, rank, follow=follow)


def suspend(names: Names = None, simulate: Simulate = None, *, every: All = False) -> None:
    """Take jobs off their GPUs, for a while.

    Where the driver can, a job is frozen: its memory moves to the host, and it goes on where it
    was. Elsewhere it is asked to save, stopped, and started again: a program that does not save
    loses its work. `aliquot doctor` (line suspend) says whether this machine can, `describe` what
    became of a job, and why.

    The command does not wait: `aliquot jobs` shows Suspending, then Suspended.
    """
    from aliquot.cli.jobs import ask  # noqa: PLC0415 - imported when needed

    ask(names or [], "suspend", simulate, every=every)


def resume(names: Names = None, simulate: Simulate = None, *, every: AllSuspended = False) -> None:
    """Let suspended jobs run again, when there is room.

    A frozen one needs room on the GPUs it had, at the size it had.
    """
    from aliquot.cli.jobs import ask  # noqa: PLC0415 - imported when needed

    ask(names or [], "resume", simulate, every=every)


def cancel(names: Names = None, simulate: Simulate = None, *, every: All = False) -> None:
    """End jobs for good."""
    from aliquot.cli.jobs import ask  # noqa: PLC0415 - imported when needed

    ask(names or [], "cancel", simulate, every=every)


def add_to(app: typer.Typer) -> None:
    """Put these commands beside the others."""
    app.command()(up)
    app.command(context_settings={"allow_interspersed_args": False})(submit)
    for command in (jobs, describe, logs, suspend, resume, cancel):
        app.command()(command)
