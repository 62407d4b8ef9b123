"""The extender's HTTPS server, until SIGTERM or SIGINT.

With an authority for clients, only callers with a certificate of that authority get through: health
and metrics, for callers without one, have a port of their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from aliquot.kubernetes.api.http_server import GRACE, serve_http
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any

    from aliquot.kubernetes.api.http_server import Handler
    from aliquot.kubernetes.extender.certificates import KeyPair

CERTIFICATE_SECONDS = 60.0  # between two looks at the certificate file
LONGEST = 1 << 28  # bytes: kube-scheduler may send all nodes, to be told that it should not

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to serve; health and metrics also on `health_port` in plain HTTP, unless it is 0."""

    host: str = "0.0.0.0"  # noqa: S104 - kube-scheduler may be on another machine
    port: int = 8443
    health_port: int = 0


class Tls(Protocol):
    """Where the server's certificate comes from."""

    async def context(self) -> ssl.SSLContext:
        """How to serve, as soon as there is a certificate."""

    async def keep(self, context: ssl.SSLContext) -> None:
        """Renew the certificate, until cancelled."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificates in files that somebody else renews; `clients`: the authority of all callers."""

    certificate: Path
    key: Path
    clients: Path | None = None

    async def context(self) -> ssl.SSLContext:
        """How to serve with these files; AliquotError if that is impossible."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self._load(context)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = f"certificate {self.certificate}, key {self.key}"
            if self.clients is not None:
                files += f", authority {self.clients}"
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise AliquotError(
                f"HTTPS cannot be served with {files}: {why}",
                "Give files in PEM form, and a key that belongs to the certificate.",
            ) from error
        return context

    async def keep(self, context: ssl.SSLContext) -> None:
        """Load the files again whenever one changes."""
        loaded = self._modified()
        while True:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            now = self._modified()
            if now == loaded:
                continue
            try:
                self._load(context)
            except (OSError, ssl.SSLError) as error:
                _log.warning(
                    "the new certificate cannot be read", file=str(self.certificate), why=str(error)
                )
            else:
                loaded = now

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.certificate, self.key)
        if self.clients is not None:
            require_clients(context, self.clients.read_text("ascii"))

    def _modified(self) -> list[float]:
        return [_modified(file) for file in (self.certificate, self.key, self.clients) if file]


def server_context(own: KeyPair, clients: bytes) -> ssl.SSLContext:
    """How to serve with this certificate, for callers that have one of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_into(context)
    require_clients(context, clients.decode("ascii"))
    return context


def require_clients(context: ssl.SSLContext, authority: str) -> None:
    """Refuse callers without a client's certificate of this authority (or one given before)."""
    context.load_verify_locations(cadata=authority)
    context.verify_mode = ssl.CERT_REQUIRED


async def serve_while(
    handler: Handler,
    at: Address,
    work: Coroutine[Any, Any, None],
    *,
    pages: Handler,
    tls: Tls | None = None,
) -> None:
    """Serve and work, until a signal comes or the work ends; what the work raised is raised.

    The work goes on until the requests under way have been answered.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    serving = asyncio.create_task(_serve(handler, at, tls))
    loops: list[Coroutine[Any, Any, object]] = [ended.wait(), work]
    if at.health_port:
        loops.append(serve_http(pages, at.host, at.health_port))
    tasks = [serving, *(asyncio.create_task(one) for one in loops)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        serving.cancel()
        await asyncio.wait([serving], timeout=GRACE + 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(handler: Handler, at: Address, tls: Tls | None) -> None:
    if tls is None:
        await serve_http(handler, at.host, at.port, longest=LONGEST)
        return
    context = await tls.context()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tls.keep(context))
        tasks.create_task(serve_http(handler, at.host, at.port, longest=LONGEST, tls=context))


def _modified(file: str | os.PathLike[str]) -> float:
    try:
        return os.stat(file).st_mtime  # noqa: PTH116 - any path
    except OSError:
        return 0.0
