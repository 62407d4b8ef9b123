"""`aliquot controller`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from aliquot.cli.on_cluster import (
    Host,
    Kubeconfig,
    LeaseNamespace,
    Names,
    Port,
    needs_extra,
    split_names,
)

EXAMPLES = (
    "aliquot controller --kubeconfig ~/.kube/config --port 8081",
    "aliquot controller --resize-every 60 --settle 30",
)


def controller(  # noqa: PLR0913, PLR0917 - one for each option
    kubeconfig: Kubeconfig = None,
    host: Host = "0.0.0.0",  # noqa: S104
    port: Port = 8080,
    names: Names = "aliquot",
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
    namespace: LeaseNamespace = "",
) -> None:
    """Run elastic jobs on Kubernetes: ElasticJob objects become pods.

    It needs `aliquot scheduler`, which places them. /readyz says whether this replica acts,
    /metrics is for Prometheus.
    """
    with needs_extra():
        from aliquot.kubernetes.api.log import set_up_log  # noqa: PLC0415
        from aliquot.kubernetes.jobs.run import Options, serve  # noqa: PLC0415 - needs the extra
        from aliquot.placement.elastic.resize import Rules  # noqa: PLC0415
    options = Options(
        kubeconfig=kubeconfig,
        host=host,
        port=port,
        presets=split_names(names),
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
