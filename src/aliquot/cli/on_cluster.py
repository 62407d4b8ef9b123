"""What the commands that run on a cluster have in common: their options, and what they import."""

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
    typer.Option(help="How to reach the API server. Without it: as a pod, or KUBECONFIG."),
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
Names = Annotated[
    str,
    typer.Option(
        metavar="PRESETS",
        help="By which names pods ask for GPUs: aliquot, tencent, tuya, nvidia, aliyun; "
        "several with commas.",
    ),
]
LeaseNamespace = Annotated[
    str, typer.Option(help="Where the Lease is. Without it: the namespace it runs in.")
]


def split_names(names: str) -> tuple[str, ...]:
    """The presets that were named."""
    return tuple(name.strip() for name in names.split(","))


@contextmanager
def needs_extra() -> Iterator[None]:
    """Around imports of what `aliquot[kubernetes]` brings: says so where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InstallationError(
            f"{error.name} is not installed",
            "What has to do with a cluster needs more. In the checkout: make setup",
        ) from error
