"""The process of the console: its folder, its address, and serving until it is stopped.

    FOLDER/token      what signs in (`sign_in`)
    FOLDER/address    where the console is, for `aliquot console`; locked while one serves
    FOLDER/history.sqlite    what GPUs and slices used (`history_store`)

FOLDER is `console` in the state directory, or in this user's own if that is root's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aliquot.console.application import make_application
from aliquot.console.guard import Site
from aliquot.console.history_store import HistoryStore
from aliquot.console.sign_in import SignIn, make_code, read_token
from aliquot.console.snapshots import Machine
from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.slices import state_directory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from starlette.types import ASGIApp

    from aliquot.slices import StateDirectory

HOST, PORT = "127.0.0.1", 8470

_MOST_CONNECTIONS = 256
_SECONDS_TO_END = 2
_SECONDS_TO_ASK = 5.0


class ConsoleServesError(AliquotError):
    """A console of this machine serves already."""


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


def folder_of(state: StateDirectory) -> Path:
    """The folder of this user's console of that machine."""
    own = not state_directory.belongs_to_root(state.directory)
    return (state.directory if own else state_directory.own_directory()) / "console"


def find_console(state: StateDirectory) -> str | None:
    """The address of this user's console of that machine; None if none serves."""
    try:
        with (folder_of(state) / "address").open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or None
    except OSError:
        return None
    return None


def link_to(state: StateDirectory, address: str) -> str:
    """A link that signs in once."""
    return f"{address}#code={make_code(read_token(folder_of(state)))}"


def serve(state: StateDirectory, listen: Listen, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` gets the address when the console listens."""
    state_directory.prepare(state)
    folder = folder_of(state)
    token = read_token(folder)
    lock, last = _lock(folder / "address")
    with _bind(listen, last) as server:
        host, port = server.getsockname()[:2]
        address = f"http://{_bracketed(host)}:{port}{listen.base_path}/"
        site = Site(
            hosts=_names(listen, host, port),
            base_path=listen.base_path,
            frame_ancestors=listen.frame_ancestors,
        )
        machine = Machine(state, HistoryStore(folder / "history.sqlite"))
        app = make_application(machine, SignIn(token, time.time()), site)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{address}\n".encode(), 0)
        ready(address)
        try:
            _run(app, server)
        finally:
            os.close(lock)


def end_with_stdin() -> None:
    """End this process when its standard input ends: its parent is gone."""

    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class _Server(uvicorn.Server):
    """Ends the streams of pages before it waits for its connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        app.app.state.snapshots.end()  # type: ignore[union-attr]
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


def _run(app: ASGIApp, server: socket.socket) -> None:
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
    _Server(config).run([server])


def _lock(path: Path) -> tuple[int, str]:
    """The locked file, and what it says of the last console."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise ConsoleServesError(
            "a console of this machine serves already", "Get a link to it with: aliquot console"
        ) from error
    return handle, os.pread(handle, 4096, 0).decode("utf-8", "replace").strip()


def _bind(listen: Listen, last: str) -> socket.socket:
    """A socket that listens: at the port that is given, or the last one, the usual one, any."""
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
