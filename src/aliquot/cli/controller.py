"""`aliquot controller`."""

from __future__ import annotations

from typing import Annotated

import typer

from aliquot.cli.on_cluster import (
    BlockLabel,
    Host,
    Kubeconfig,
    LeaseNamespace,
    Names,
    Port,
    RackLabel,
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
        str, typer.Option(help="The schedulerName of workers whose template names none.")
    ] = "aliquot",
    resize_every: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="The minimum time between two resizes of one job."
        ),
    ] = 300.0,
    settle: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            show_default="as --resize-every",
            help="How long GPUs must have been free before a running job grows.",
        ),
    ] = None,
    rack_label: RackLabel = "",
    block_label: BlockLabel = "",
    lease: Annotated[
        str, typer.Option(help="The name of the Lease for leader election.")
    ] = "aliquot-controller",
    namespace: LeaseNamespace = "",
) -> None:
    """Run the controller of elastic jobs on Kubernetes.

    It turns ElasticJob objects into pods. It needs `aliquot scheduler`, which places the pods.
    /readyz answers 200 when the replica has read the cluster, and says whether it is the leader.
    /metrics is for Prometheus.
    """
    import asyncio  # noqa: PLC0415 - imported when needed

    with needs_extra():
        from aliquot.kubernetes.api.log import set_up_log  # noqa: PLC0415
        from aliquot.kubernetes.cluster.topology import Labels  # noqa: PLC0415
        from aliquot.kubernetes.jobs.run import ControllerOptions, serve  # noqa: PLC0415 - needs the extra
        from aliquot.placement.elastic.resize import Rules  # noqa: PLC0415
    options = ControllerOptions(
        kubeconfig=kubeconfig,
        host=host,
        port=port,
        presets=split_names(names),
        scheduler=scheduler_name,
        labels=Labels.preferring(rack_label, block_label),
        lease=lease,
        namespace=namespace,
        rules=Rules(
            resize_seconds=resize_every,
            settle_seconds=resize_every if settle is None else settle,
        ),
    )
    set_up_log()
    asyncio.run(serve(options))
