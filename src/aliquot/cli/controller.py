"""`aliquot controller`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from aliquot.model.errors import InstallationError

EXAMPLES = (
    "aliquot controller --kubeconfig ~/.kube/config --port 8081",
    "aliquot controller --resize-every 60 --settle 30",
)


def controller(  # noqa: PLR0913, PLR0917 - one for each option
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="How to reach the API server. Without it: as a pod, or KUBECONFIG."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8080,
    names: Annotated[
        str,
        typer.Option(
            metavar="PRESETS",
            help="By which names pods ask for GPUs: aliquot, tencent, tuya, nvidia, aliyun; "
            "several with commas.",
        ),
    ] = "aliquot",
    scheduler_name: Annotated[
        str, typer.Option(help="The schedulerName of workers whose template has none.")
    ] = "aliquot",
    resize_every: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="A job is resized at most so often."),
    ] = 300.0,
    settle: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="A job grows into what was free for so long. Without it: as --resize-every.",
        ),
    ] = None,
    lease: Annotated[
        str, typer.Option(help="The Lease by which replicas agree who acts.")
    ] = "aliquot-controller",
    namespace: Annotated[
        str, typer.Option(help="Where the Lease is. Without it: the namespace it runs in.")
    ] = "",
) -> None:
    """Run elastic jobs on Kubernetes: ElasticJob objects become pods.

    It needs `aliquot scheduler`, which places them. /readyz says whether this replica acts,
    /metrics is for Prometheus.
    """
    try:
        from aliquot.kubernetes.jobs.run import Options, serve  # noqa: PLC0415 - needs the extra
        from aliquot.kubernetes.log import set_up_log  # noqa: PLC0415
        from aliquot.placement.elastic import Rules  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InstallationError(
            f"{error.name} is not installed",
            "What runs on a cluster needs more: pip install 'aliquot[kubernetes]'",
        ) from error
    options = Options(
        kubeconfig=kubeconfig,
        host=host,
        port=port,
        presets=tuple(name.strip() for name in names.split(",")),
        scheduler=scheduler_name,
        lease=lease,
        namespace=namespace,
        rules=Rules(
            resize_seconds=resize_every,
            settle_seconds=resize_every if settle is None else settle,
        ),
    )
    set_up_log()
    asyncio.run(serve(options))
