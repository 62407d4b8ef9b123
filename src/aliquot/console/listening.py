"""Where a console listens, and serving there until it is stopped."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aliquot.console.guard import Site
from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    import asyncio
    import ssl

    from starlette.types import ASGIApp

HOST, PORT = "127.0.0.1", 8470

_MOST_CONNECTIONS = 256
_SECONDS_TO_END = 2
_SECONDS_TO_ASK = 5.0


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a console listens, and how it is reached. `port` None: the usual one, or any."""

    host: str = HOST
    port: int | None = None
    base_path: str = ""
    names: tuple[str, ...] = ()
    frame_ancestors: tuple[str, ...] = ()


def parse_address(text: str) -> tuple[str, int | None]:
    """The host and the port of `HOST:PORT`, `HOST` or `:PORT`."""
    try:
        found = urlsplit(f"//{text}")
        host, port = found.hostname or HOST, found.port
    except ValueError:
        host, port = "", None
    if not host or found.path or found.query or "@" in text:
        raise InvalidValueError(
            f"{text!r} is not an address to listen on", f"Write for example {HOST}:{PORT}."
        )
    return host, port


def check_base_path(text: str) -> str:
    """A base path without a slash at its end."""
    path = "/" + text.strip("/") if text.strip("/") else ""
    if not all(one.isalnum() or one in "/-_." for one in path) or not path.isascii():
        raise InvalidValueError(
            f"{text!r} is not a base path", "Write letters, digits and dashes: /aliquot."
        )
    return path


def site_of(listen: Listen, server: socket.socket, scheme: str = "http") -> tuple[Site, str]:
    """How a console that listens there is reached, and its address."""
    host, port = server.getsockname()[:2]
    site = Site(_names(listen, host, port), listen.base_path, listen.frame_ancestors)
    return site, f"{scheme}://{_bracketed(host)}:{port}{listen.base_path}/"


def bind(listen: Listen, last: str = "") -> socket.socket:
    """A socket that listens: at the port that is given, or that of `last`, the usual one, any."""
    ports = [listen.port]
    if listen.port is None:
        with suppress(ValueError):
            ports = [urlsplit(last).port, PORT, 0]
    refused: OSError | None = None
    for port in (one for one in ports if one is not None):
        try:
            return _listening(listen.host, port)
        except OSError as error:
            refused = error
    raise AliquotError(
        f"the console cannot listen on {listen.host}:{listen.port or PORT}: {refused}",
        "Choose another address with --listen HOST:PORT.",
    )


class _Server(uvicorn.Server):
    """Ends the streams of pages before it waits for its connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        app.app.state.end()  # type: ignore[union-attr]
        await super().shutdown(sockets)


class _Connection(H11Protocol):
    """Ends if it asks nothing, or is one too many: any user of the machine can connect.

    So open pages are answered, and descriptors are left, however many connect.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) >= _MOST_CONNECTIONS:
            self.connections.discard(self)  # before it is closed: many may come at a time
            transport.abort()
        else:
            self.loop.call_later(_SECONDS_TO_ASK, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()


def serve_on(app: ASGIApp, server: socket.socket, tls: ssl.SSLContext | None = None) -> None:
    """Serve until SIGINT or SIGTERM; the application's `state.end` ends its streams first."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS + 1,
        timeout_graceful_shutdown=_SECONDS_TO_END,
        lifespan="on",
    )
    config.load()
    config.ssl = tls
    _Server(config).run([server])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen(128)
    except OSError:
        server.close()
        raise
    return server


def _names(listen: Listen, host: str, port: int) -> frozenset[str]:
    """The Host headers that mean this console; a name that is given may stand without a port."""
    local = {"localhost"} if host in {"127.0.0.1", "::1"} else set()
    names = {_bracketed(host), *local, *listen.names}
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(name.lower() for name in {*with_port, *listen.names})


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
