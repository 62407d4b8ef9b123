"""The common options of the commands that run on a cluster, and their imports."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aliquot.model.errors import InstallationError

if TYPE_CHECKING:
    from collections.abc import Iterator

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        show_default="KUBECONFIG, or the pod's service account", help="The kubeconfig file."
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
Names = Annotated[
    str,
    typer.Option(
        metavar="PRESETS",
        help="The names by which pods ask for GPUs: aliquot, tencent, tuya, nvidia, aliyun; "
        "several separated by commas.",
    ),
]
RackLabel = Annotated[
    str, typer.Option(help="A node label that names the rack, tried before the usual ones.")
]
BlockLabel = Annotated[
    str, typer.Option(help="A node label that names the block, tried before the usual ones.")
]
LeaseNamespace = Annotated[
    str,
    typer.Option(show_default="the namespace it runs in", help="The namespace of the Lease."),
]


def split_names(names: str) -> tuple[str, ...]:
    """The presets in a list with commas."""
    return tuple(name.strip() for name in names.split(","))


@contextmanager
def needs_extra() -> Iterator[None]:
    """For imports from `aliquot[kubernetes]`: InstallationError if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InstallationError(
            f"{error.name} is not installed",
            "The commands for a cluster need more packages. In the checkout: make setup",
        ) from error
