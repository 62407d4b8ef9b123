"""`aliquot scheduler`."""

from __future__ import annotations

from pathlib import Path
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
from aliquot.model.errors import InvalidValueError

EXAMPLES = (
    "aliquot scheduler --kubeconfig ~/.kube/config --port 8080",
    "aliquot scheduler --tls-cert tls.crt --tls-key tls.key --names aliquot,aliyun",
)


def scheduler(  # noqa: PLR0913, PLR0917 - one for each option
    kubeconfig: Kubeconfig = None,
    host: Host = "0.0.0.0",  # noqa: S104
    port: Port = 8443,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key to it.")] = None,
    names: Names = "aliquot",
    strategy: Annotated[
        str, typer.Option(help="fragmentation, pack, spread, best-fit, random or fgd.")
    ] = "fragmentation",
    offer: Annotated[
        int,
        typer.Option(
            min=1,
            max=100,
            help="Of how many nodes, the best first, kube-scheduler may choose one.",
        ),
    ] = 1,
    lease: Annotated[
        str, typer.Option(help="The Lease by which replicas agree who decides.")
    ] = "aliquot-scheduler",
    gang_grace: Annotated[
        float,
        typer.Option(min=1, max=50, metavar="SECONDS", help="For a gang's members to arrive."),
    ] = 30.0,
    assumed_duration: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="How long work runs that does not say it."),
    ] = 3600.0,
    rack_label: Annotated[
        str, typer.Option(help="The label of nodes that names their rack, before the usual ones.")
    ] = "",
    block_label: Annotated[
        str, typer.Option(help="The label of nodes that names their block, before the usual ones.")
    ] = "",
    namespace: LeaseNamespace = "",
) -> None:
    """Run the scheduler extender: which GPUs pods get, for kube-scheduler.

    It needs the GPUNode objects that `aliquot node` writes. /readyz says whether this replica
    decides, /metrics is for Prometheus.
    """
    if (tls_cert is None) != (tls_key is None):
        raise InvalidValueError(
            "--tls-cert and --tls-key go together", "Give both, or none for plain HTTP."
        )
    with needs_extra():
        import uvloop  # noqa: PLC0415 - needs the extra

        from aliquot.kubernetes.gangs.controller import gang_options  # noqa: PLC0415
        from aliquot.kubernetes.log import set_up_log  # noqa: PLC0415
        from aliquot.kubernetes.scheduler.run import Options, serve  # noqa: PLC0415
    options = Options(
        kubeconfig=kubeconfig,
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        presets=split_names(names),
        strategy=strategy,
        offer=offer,
        lease=lease,
        namespace=namespace,
        gangs=gang_options(gang_grace, assumed_duration, rack_label, block_label),
    )
    set_up_log()
    uvloop.run(serve(options))
