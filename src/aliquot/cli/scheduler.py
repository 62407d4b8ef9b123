"""`aliquot scheduler`."""

from __future__ import annotations

from pathlib import Path
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
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")
    ] = None,
    names: Names = "aliquot",
    strategy: Annotated[
        str,
        typer.Option(
            help="How nodes are chosen: fragmentation, pack, spread, best-fit, random or fgd."
        ),
    ] = "fragmentation",
    offer: Annotated[
        int,
        typer.Option(
            min=1,
            max=100,
            help="The number of nodes, the best first, from which kube-scheduler may choose.",
        ),
    ] = 1,
    lease: Annotated[
        str, typer.Option(help="The Lease by which replicas elect their leader.")
    ] = "aliquot-scheduler",
    gang_grace: Annotated[
        float,
        typer.Option(
            min=1, max=50, metavar="SECONDS", help="Time for all members of a gang to arrive."
        ),
    ] = 30.0,
    assumed_duration: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", help="How long a pod without a duration is assumed to run."
        ),
    ] = 3600.0,
    rack_label: RackLabel = "",
    block_label: BlockLabel = "",
    namespace: LeaseNamespace = "",
) -> None:
    """Run the scheduler extender, which plans the GPUs of pods for kube-scheduler.

    It needs the GPUNode objects that `aliquot node` writes. /readyz is 200 if this replica leads,
    /metrics is for Prometheus.
    """
    if (tls_cert is None) != (tls_key is None):
        raise InvalidValueError(
            "--tls-cert and --tls-key go together", "Give both, or none for plain HTTP."
        )
    with needs_extra():
        import uvloop  # noqa: PLC0415 - needs the extra

        from aliquot.kubernetes.api.log import set_up_log  # noqa: PLC0415
        from aliquot.kubernetes.cluster.topology import Labels  # noqa: PLC0415
        from aliquot.kubernetes.extender.serve import Address  # noqa: PLC0415
        from aliquot.kubernetes.gangs.controller import gang_options  # noqa: PLC0415
        from aliquot.kubernetes.scheduler import SchedulerOptions, serve  # noqa: PLC0415
    options = SchedulerOptions(
        kubeconfig=kubeconfig,
        address=Address(host, port, tls_cert, tls_key),
        presets=split_names(names),
        strategy=strategy,
        offer=offer,
        lease=lease,
        namespace=namespace,
        gangs=gang_options(
            gang_grace, assumed_duration, Labels.preferring(rack_label, block_label)
        ),
    )
    set_up_log()
    uvloop.run(serve(options))
