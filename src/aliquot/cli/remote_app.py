"""`aliquot remote`: its commands, options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aliquot.cli.help_text import examples
from aliquot.cli.options import Simulate  # noqa: TC001 - typer reads it

remote_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Experimental: GPUs of another process, for PyTorch programs.",
    epilog=examples(
        "aliquot remote serve --socket /run/me/gpu    beside the GPUs",
        "aliquot run --remote /run/me/gpu --memory 20GiB -- python train.py",
    ),
)


@remote_app.callback()
def _group() -> None:
    """Experimental: GPUs of another process, for PyTorch programs."""


@remote_app.command(
    epilog=examples(
        "aliquot remote serve --socket /run/me/gpu",
        "aliquot remote serve --socket ./gpu --python .venv/bin/python",
        "aliquot remote serve --socket ./gpu --device cpu --simulate h100:1",
    )
)
def serve(
    socket: Annotated[
        Path,
        typer.Option(
            show_default=False,
            help="Where `aliquot run --remote` finds the server: a path of at most 107 bytes. Only "
            "you can connect to it.",
        ),
    ],
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="python3",
            help="The Python that runs the executors: it has the same PyTorch as the programs.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="cuda|cpu", help="Where executors compute; cpu stands for a GPU, in tests."
        ),
    ] = "cuda",
    simulate: Simulate = None,
) -> None:
    """Lend slices of this machine's GPUs to your programs that have none.

    Each `aliquot run --remote` gets a grant here, and executors in it run the program's operators.
    The slice is given back when the program or this server ends, whatever ends it. Until Ctrl-C.
    """
    from aliquot.cli.remote import serve_command  # noqa: PLC0415 - imported when needed

    serve_command(socket, str(python or "python3"), device, simulate)
