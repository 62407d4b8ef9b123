"""The extender's HTTPS server, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import ASGIApp

CERTIFICATE_SECONDS = 60.0  # between two looks at the certificate file
KEEP_ALIVE = 120  # seconds: kube-scheduler closes idle connections before we do

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to serve, and with which certificate; plain HTTP without one."""

    host: str = "0.0.0.0"  # noqa: S104 - kube-scheduler may be on another machine
    port: int = 8443
    tls_cert: Path | None = None
    tls_key: Path | None = None


async def serve_while(app: ASGIApp, at: Address, work: Coroutine[None, None, None]) -> None:
    """Serve and work, until a signal comes or the work ends; what the work raised is raised."""
    config = uvicorn.Config(
        app,
        host=at.host,
        port=at.port,
        ssl_certfile=at.tls_cert,
        ssl_keyfile=at.tls_key,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE,
    )
    server = uvicorn.Server(config)
    _outlive_signals()
    working = asyncio.create_task(work)
    working.add_done_callback(lambda _: setattr(server, "should_exit", True))
    renewing = asyncio.create_task(_renew_certificate(config))
    await server.serve()
    renewing.cancel()
    if working.done():
        working.result()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


def _outlive_signals() -> None:
    """Uvicorn raises the signal that ended it again; the lease must still be released then."""
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, lambda: None)


async def _renew_certificate(config: uvicorn.Config) -> None:
    """Load the certificate again whenever its file changes."""
    file = config.ssl_certfile
    if file is None:
        return
    loaded = _modified(file)
    while True:
        await asyncio.sleep(CERTIFICATE_SECONDS)
        now = _modified(file)
        if now != loaded and config.ssl is not None:
            try:
                config.ssl.load_cert_chain(file, config.ssl_keyfile)
            except (OSError, ssl.SSLError) as error:
                _log.warning("the new certificate cannot be read", file=str(file), why=str(error))
            else:
                loaded = now


def _modified(file: str | os.PathLike[str]) -> float:
    try:
        return Path(file).stat().st_mtime
    except OSError:
        return 0.0
