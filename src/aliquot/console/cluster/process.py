"""Serving the console of a cluster until it is stopped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aliquot.console.cluster.application import make_application
from aliquot.console.listening import bind, serve_on, site_of
from aliquot.kubernetes.api.client import connect, server_without_user
from aliquot.kubernetes.extender.serve import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.console.listening import Listen


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which cluster, where to listen, and the certificate of HTTPS if it is served here."""

    listen: Listen
    kubeconfig: Path | None = None
    presets: tuple[str, ...] = ("aliquot",)
    certificate: Path | None = None
    key: Path | None = None


def serve_cluster(options: ClusterOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` gets the address when the console listens."""
    server, client = server_without_user(options.kubeconfig), connect(options.kubeconfig)
    tls = context = None
    if options.certificate is not None and options.key is not None:
        tls = TlsFiles(options.certificate, options.key)
        context = asyncio.run(tls.context())
    with bind(options.listen) as listening:
        site, address = site_of(options.listen, listening, "http" if tls is None else "https")
        renewing = None if tls is None or context is None else partial(tls.keep, context)
        app = make_application(client, server, options.presets, site, renewing)
        ready(address)
        serve_on(app, listening, context)
