"""`aliquot slice`: its commands, options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aliquot.cli.help_text import examples
from aliquot.cli.options import (
    Format,
    Json,
    MinStrength,
    Model,
    NotGpu,
    NoTrunc,
    OnlyGpu,
    Simulate,
    read_min_strength,
    read_selection,
)
from aliquot.model.grant import Policy, Priority
from aliquot.model.units import EQUAL

slice_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Give plain containers slices by name.",
    epilog=examples(
        "sudo aliquot slice create --memory 8GiB --compute 30 --name demo",
        "docker run --device aliquot.io/slice=demo IMAGE COMMAND",
        "podman run --device aliquot.io/slice=demo IMAGE COMMAND",
        "sudo aliquot slice publish 8gib-30pct    (each container gets its own)",
        "aliquot slice list",
        "sudo aliquot slice delete demo",
    ),
)

CdiDir = Annotated[
    Path,
    typer.Option(
        help="The folder for the CDI spec; container runtimes read /etc/cdi and /var/run/cdi.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT",
        help="Memory limit on each GPU: 8GiB, 8192MiB, 50%. Without it: the same part of the "
        "memory as --compute of the compute time, and without both whole GPUs.",
    ),
]
Compute = Annotated[
    str,
    typer.Option(
        metavar="PERCENT",
        help="Share of each GPU's compute time while others have work too: 1 to 100, or equal.",
    ),
]
Gpus = Annotated[
    int, typer.Option(min=1, max=16, help="Number of different GPUs; a slice of each.")
]
PolicyOption = Annotated[
    Policy,
    typer.Option(
        "--policy",
        help="elastic: may also use time that others leave idle; hard: never more than its share.",
    ),
]
PriorityOption = Annotated[
    Priority,
    typer.Option(
        "--priority",
        help="latency: gets the GPU as soon as it has work, within its share; normal: takes "
        "turns; background: runs only while no other slice has work.",
    ),
]
_CDI_DIR = Path("/var/run/cdi")


@slice_app.command(
    epilog=examples(
        "sudo aliquot slice create --memory 8GiB --compute 30 --name demo",
        "sudo aliquot slice create --gpus 2 --memory 50% --name two-halves",
        "sudo aliquot slice create --memory 8GiB --name demo --cdi-dir /etc/cdi",
        "aliquot slice create --simulate h100:1 --memory 8GiB --name demo \\",
        "    --cdi-dir ./cdi",
    )
)
def create(  # noqa: PLR0913, PLR0917 - one for each option
    name: Annotated[
        str, typer.Option(show_default=False, help="The slice's name, also of its CDI device.")
    ],
    gpus: Gpus = 1,
    memory: Memory = None,
    compute: Compute = EQUAL,
    model: Model = None,
    gpu: OnlyGpu = None,
    not_gpu: NotGpu = None,
    min_strength: MinStrength = None,
    policy: PolicyOption = Policy.ELASTIC,
    priority: PriorityOption = Priority.NORMAL,
    cdi_dir: CdiDir = _CDI_DIR,
    simulate: Simulate = None,
) -> None:
    """Make a slice that containers use by its name.

    The slice is reserved at once, and stays until `aliquot slice delete`. All containers with
    `--device aliquot.io/slice=NAME` share it. The limits are mounted files: `docker exec`, a login
    shell or an emptied environment do not shed them.

    It needs root, since the GPUs' arbiter must be root's. After a reboot the service of `aliquot
    install` makes the slice again; without the service, run: aliquot slice restore
    """
    from aliquot.cli.containers import create_slice  # noqa: PLC0415 - imported when needed
    from aliquot.model import Request, parse_amount, parse_share  # noqa: PLC0415

    request = Request(
        gpus=gpus,
        memory=None if memory is None else parse_amount(memory),
        compute_percent=parse_share(compute),
        policy=policy,
        priority=priority,
        min_strength=read_min_strength(min_strength),
        which=read_selection(model, gpu, not_gpu),
    )
    create_slice(request, name, cdi_dir, simulate)


@slice_app.command(
    epilog=examples(
        "sudo aliquot slice publish 8gib-30pct",
        "docker run --device aliquot.io/slice=8gib-30pct IMAGE COMMAND",
        "sudo aliquot slice publish small --memory 4GiB --policy hard --compute 10",
        "sudo aliquot slice publish 50pct --gpu 0",
    )
)
def publish(  # noqa: PLR0913, PLR0917 - one for each option
    size: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="8gib-30pct, 8gib or 30pct; or any name, with --memory, --compute or both.",
        ),
    ],
    gpus: Gpus = 1,
    memory: Memory = None,
    compute: Compute = EQUAL,
    model: Model = None,
    gpu: OnlyGpu = None,
    not_gpu: NotGpu = None,
    min_strength: MinStrength = None,
    policy: PolicyOption = Policy.ELASTIC,
    priority: PriorityOption = Priority.NORMAL,
    cdi_dir: CdiDir = _CDI_DIR,
    simulate: Simulate = None,
) -> None:
    """Publish a size of which every container gets a slice of its own.

    Nothing is reserved. A container with `--device aliquot.io/slice=NAME` gets a new slice when it
    starts, and does not start if there is no room. The slice is free again when the kernel says
    that the container's first process is dead.
    """
    from aliquot.cli.containers import publish_size  # noqa: PLC0415 - imported when needed
    from aliquot.containers.size_names import parse_size  # noqa: PLC0415
    from aliquot.model import Request, parse_amount, parse_share  # noqa: PLC0415

    amount = None if memory is None else parse_amount(memory)
    percent = parse_share(compute)
    if amount is None and not percent:
        amount, percent = parse_size(size)
    request = Request(
        gpus=gpus,
        memory=amount,
        compute_percent=percent,
        policy=policy,
        priority=priority,
        min_strength=read_min_strength(min_strength),
        which=read_selection(model, gpu, not_gpu),
    )
    publish_size(request, size, cdi_dir, simulate)


@slice_app.command(name="list", epilog=examples("aliquot slice list", "aliquot slice list --json"))
def list_slices(
    simulate: Simulate = None,
    template: Format = None,
    *,
    no_trunc: NoTrunc = False,
    json: Json = False,
) -> None:
    """Show the slices and sizes that containers can use by name."""
    from aliquot.cli.containers import show_slices  # noqa: PLC0415 - imported when needed
    from aliquot.cli.tables import Output  # noqa: PLC0415

    show_slices(simulate, Output(json, template, no_trunc))


@slice_app.command(epilog=examples("sudo aliquot slice delete demo"))
def delete(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", show_default=False, help="The slices' names.")
    ],
    simulate: Simulate = None,
) -> None:
    """Remove slices or sizes and their CDI devices.

    Programs in containers that use a slice go on with it; it is free when the last has ended. No
    further program can join it. Containers of a size keep their slices. A container that names
    what is removed does not start.
    """
    from aliquot.cli.containers import delete_slices  # noqa: PLC0415 - imported when needed

    raise typer.Exit(delete_slices(names, simulate))


@slice_app.command(epilog=examples("sudo aliquot slice restore"))
def restore(
    simulate: Simulate = None,
    arbiter_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Wait so long for an arbiter that is being started."
        ),
    ] = 0.0,
) -> None:
    """Make all slices and their CDI devices again, as after a reboot.

    The service of `aliquot install` does so when the arbiter starts. Run it also after an update of
    the driver. What is there already stays. The exit code is 1 if a slice could not be made.
    """
    from aliquot.cli.containers import restore_slices  # noqa: PLC0415 - imported when needed

    raise typer.Exit(restore_slices(simulate, arbiter_within))
