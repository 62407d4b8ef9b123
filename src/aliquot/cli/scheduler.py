"""`aliquot scheduler`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from aliquot.kubernetes.extender.authority import TlsSecrets
    from aliquot.kubernetes.extender.endpoint import OwnEndpoint
    from aliquot.kubernetes.extender.serve import TlsFiles

EXAMPLES = (
    "aliquot scheduler --kubeconfig ~/.kube/config --port 8080",
    "aliquot scheduler --tls-cert tls.crt --tls-key tls.key \\",
    "    --names aliquot,aliyun",
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
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Refuse callers without a certificate of this authority."
        ),
    ] = None,
    tls_secret: Annotated[
        str,
        typer.Option(
            metavar="SECRET",
            help="Instead of files: sign certificates by an authority in this Secret, which is"
            " made if the Secret is empty.",
        ),
    ] = "",
    tls_client_secret: Annotated[
        str,
        typer.Option(
            metavar="SECRET",
            help="With --tls-secret: where the leader keeps the callers' certificate.",
        ),
    ] = "",
    tls_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --tls-secret: a DNS name or address of this server; may be repeated.",
        ),
    ] = None,
    health_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve /healthz, /readyz and /metrics on this port too, over plain HTTP.",
        ),
    ] = 0,
    service: Annotated[
        str,
        typer.Option(
            help="A Service without a selector, which the leader points at itself. Needs POD_NAME,"
            " POD_UID and POD_IP."
        ),
    ] = "",
    pod_name: Annotated[str, typer.Option(envvar="POD_NAME", hidden=True)] = "",
    pod_uid: Annotated[str, typer.Option(envvar="POD_UID", hidden=True)] = "",
    pod_ip: Annotated[str, typer.Option(envvar="POD_IP", hidden=True)] = "",
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
    scheduler_names: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="The schedulerNames of pods that ask this extender. Pods of others get an event.",
        ),
    ] = "",
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
    autoscaler: Annotated[
        str,
        typer.Option(
            help="Ask this autoscaler for the GPUs that waiting work lacks: karpenter or"
            " cluster-autoscaler."
        ),
    ] = "",
    scale_up_resource: Annotated[
        str, typer.Option(help="The resource by which new nodes offer whole GPUs.")
    ] = "aliquot.io/gpu",
    scale_up_class: Annotated[
        str, typer.Option(help="The class of ProvisioningRequests, for cluster-autoscaler.")
    ] = "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    scale_up_patience: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Ask for no node for a gang that starts within this."
        ),
    ] = 60.0,
    profile: Annotated[
        str, typer.Option(help="The schedulerName of placeholder pods.")
    ] = "aliquot",
    namespace: LeaseNamespace = "",
    *,
    resource_claims: Annotated[
        bool,
        typer.Option(
            "--resource-claims",
            help="Allocate resource claims on the nodes of agents with --dra --scheduled.",
        ),
    ] = False,
    pods_by_gpunode: Annotated[
        bool,
        typer.Option(
            "--pods-by-gpunode",
            help="Write the pods of each node into its GPUNode, for agents with --pods-by-gpunode.",
        ),
    ] = False,
) -> None:
    """Run the extender that plans GPUs for kube-scheduler.

    It needs the GPUNode objects that `aliquot node` writes. /readyz is 200 if this replica leads or
    could take over, /metrics is for Prometheus.
    """
    if autoscaler not in {"", "karpenter", "cluster-autoscaler"}:
        raise InvalidValueError(
            f"--autoscaler is {autoscaler!r}", "Write karpenter or cluster-autoscaler."
        )
    with needs_extra():
        import uvloop  # noqa: PLC0415 - needs the extra

        from aliquot.kubernetes.api.log import set_up_log  # noqa: PLC0415
        from aliquot.kubernetes.cluster.topology import Labels  # noqa: PLC0415
        from aliquot.kubernetes.extender.serve import Address  # noqa: PLC0415
        from aliquot.kubernetes.gangs.controller import gang_options  # noqa: PLC0415
        from aliquot.kubernetes.scaleup.controller import ScaleUpOptions  # noqa: PLC0415
        from aliquot.kubernetes.scheduler import SchedulerOptions, serve  # noqa: PLC0415
    scale_up = ScaleUpOptions(
        request_class=scale_up_class if autoscaler == "cluster-autoscaler" else "",
        resource=scale_up_resource,
        profile=profile,
        patience=scale_up_patience,
    )
    options = SchedulerOptions(
        kubeconfig=kubeconfig,
        address=Address(host, port, health_port),
        tls=(
            _secrets(tls_secret, tls_client_secret, tls_name or [], files=tls_cert is not None)
            or _files(tls_cert, tls_key, tls_client_ca)
        ),
        endpoint=_endpoint(service, pod_name, pod_uid, pod_ip, port),
        presets=split_names(names),
        strategy=strategy,
        offer=offer,
        scheduler_names=tuple(filter(None, scheduler_names.split(","))),
        lease=lease,
        namespace=namespace,
        gangs=gang_options(
            gang_grace, assumed_duration, Labels.preferring(rack_label, block_label)
        ),
        scale_up=scale_up if autoscaler else None,
        resource_claims=resource_claims,
        pods_by_gpunode=pods_by_gpunode,
    )
    set_up_log()
    uvloop.run(serve(options))


def _files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    from aliquot.kubernetes.extender.serve import TlsFiles  # noqa: PLC0415 - needs the extra

    if (cert is None) != (key is None):
        raise InvalidValueError(
            "--tls-cert and --tls-key go together", "Give both, or none for plain HTTP."
        )
    if cert is None or key is None:
        if client_ca is not None:
            raise InvalidValueError(
                "--tls-client-ca needs a certificate", "Give --tls-cert and --tls-key too."
            )
        return None
    return TlsFiles(cert, key, client_ca)


def _secrets(secret: str, client: str, names: list[str], *, files: bool) -> TlsSecrets | None:
    from aliquot.kubernetes.extender.authority import TlsSecrets  # noqa: PLC0415 - needs the extra

    if not (secret or client or names):
        return None
    if files:
        raise InvalidValueError(
            "--tls-secret and --tls-cert exclude each other", "Give files, or the Secrets."
        )
    if not (secret and client and names):
        raise InvalidValueError(
            "--tls-secret, --tls-client-secret and --tls-name go together", "Give all, or none."
        )
    return TlsSecrets(secret, client, tuple(names))


def _endpoint(service: str, pod: str, uid: str, address: str, port: int) -> OwnEndpoint | None:
    from aliquot.kubernetes.extender.endpoint import OwnEndpoint  # noqa: PLC0415 - needs the extra

    if not service:
        return None
    if not (pod and uid and address):
        raise InvalidValueError(
            "--service needs the pod of this replica",
            "Set POD_NAME, POD_UID and POD_IP from the pod's own fields, as the chart does.",
        )
    return OwnEndpoint(service, pod, uid, address, port)
