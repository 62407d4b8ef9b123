"""`aliquot console`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aliquot.cli.on_cluster import Kubeconfig, Names, needs_extra, split_names
from aliquot.cli.options import Simulate  # noqa: TC001 - typer reads it
from aliquot.model.errors import InstallationError, InvalidValueError

if TYPE_CHECKING:
    from aliquot.console.listening import Listen
    from aliquot.slices import StateDirectory

EXAMPLES = (
    "aliquot console",
    "aliquot console --listen 127.0.0.1:9000 --base-path /aliquot",
    "aliquot console --server-name gpu.example.org   (behind a proxy)",
    "aliquot console --cluster --kubeconfig ~/.kube/config",
)


def console(  # noqa: PLR0913 - one for each option
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default="127.0.0.1:8470, or a free port",
            help="The address to listen on, HOST:PORT.",
        ),
    ] = None,
    base_path: Annotated[
        str, typer.Option(metavar="PATH", help="The path that all addresses begin with.")
    ] = "/",
    server_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Accept requests to this name too, for example a proxy's. Give it several times "
            "for several names.",
        ),
    ] = None,
    frame_ancestor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            show_default=False,
            help="Let pages of this origin show the console in a frame.",
        ),
    ] = None,
    simulate: Simulate = None,
    *,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Serve the page of a Kubernetes cluster instead of this machine."
        ),
    ] = False,
    kubeconfig: Kubeconfig = None,
    names: Names = "aliquot",
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="With --cluster: serve HTTPS with this certificate.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="With --cluster: the key of that certificate."
        ),
    ] = None,
) -> None:
    """Print a link to this machine's web page, or serve a cluster's.

    The link signs you in once, within 10 minutes. `aliquot up` serves the page. If nobody does,
    this command serves it until Ctrl-C, with your rights: you see and change what your commands
    do.

    With --cluster it serves the page of a Kubernetes cluster to everybody who has a token that the
    cluster accepts: each sees and changes what that token may. The account of the kubeconfig only
    reads.
    """
    try:
        from aliquot.console import console_process, listening  # noqa: PLC0415 - imported when needed
    except ModuleNotFoundError as error:
        raise InstallationError(
            f"{error.name} is not installed",
            "Install aliquot[console]. In the checkout: make setup",
        ) from error
    from aliquot.cli.tables import print_text  # noqa: PLC0415

    host, port = listening.parse_address(listen or "")
    wanted = listening.Listen(
        host,
        port,
        listening.check_base_path(base_path),
        tuple(server_name or ()),
        tuple(frame_ancestor or ()),
    )
    if cluster:
        _serve_cluster(wanted, kubeconfig, names, tls_cert, tls_key)
        return
    if any((kubeconfig, tls_cert, tls_key)):
        raise InvalidValueError(
            "--kubeconfig, --tls-cert and --tls-key are for the console of a cluster",
            "Add --cluster, or leave them out: the console of a machine serves no TLS.",
        )
    state = _state(simulate)
    found = console_process.find_console(state)
    if found is not None and not any((listen, base_path != "/", server_name, frame_ancestor)):
        print_text(f"{console_process.link_to(state, found)}\n")
        return

    def tell(address: str) -> None:
        print_text(f"{console_process.link_to(state, address)}\n")
        sys.stderr.write("aliquot: serving the console; Ctrl-C ends it\n")

    console_process.serve(state, wanted, tell)


def _serve_cluster(
    where: Listen, kubeconfig: Path | None, names: str, certificate: Path | None, key: Path | None
) -> None:
    if (certificate is None) != (key is None):
        raise InvalidValueError(
            "--tls-cert and --tls-key go together", "Give both, or neither behind a proxy with TLS."
        )
    from aliquot.cli.tables import print_text  # noqa: PLC0415

    with needs_extra():
        from aliquot.console.cluster.process import (  # noqa: PLC0415 - needs the extra
            ClusterOptions,
            serve_cluster,
        )
        from aliquot.kubernetes.api.log import set_up_log  # noqa: PLC0415
    set_up_log()
    options = ClusterOptions(where, kubeconfig, split_names(names), certificate, key)
    serve_cluster(options, lambda address: print_text(f"{address}\n"))


def _state(simulate: str | None) -> StateDirectory:
    """The machine of the pool that commands talk to; without a pool, this one."""
    from aliquot import slices  # noqa: PLC0415 - imported when needed
    from aliquot.devices import parse_shape  # noqa: PLC0415
    from aliquot.pool.client import NoPoolError, SeveralPoolsError, connect  # noqa: PLC0415

    shape = parse_shape(simulate) if simulate else None
    try:
        return connect(shape).directory.state
    except SeveralPoolsError:
        raise
    except NoPoolError:
        return slices.locate(shape)
