"""A small HTTP server: whole requests in, whole answers out.

kube-scheduler schedules no other pod while it waits for the extender, so this does what its calls,
probes and Prometheus need, and no more. An answer is one write: a second one would wake the reader
twice. A client waits for an answer before it sends the next request on the same connection; one
that does not is disconnected, as is one whose request is too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import httptools
import structlog

from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    import ssl

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
LONGEST = 1 << 16  # bytes of a request for a page
BACKLOG = 1024
IDLE_SECONDS = 120.0  # kube-scheduler closes idle connections before we do
GRACE = 5.0  # seconds in which requests under way are answered at the end

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; `path` is without what follows a `?`."""

    method: str
    path: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = TEXT


def text(body: str, status: int = HTTPStatus.OK) -> HttpResponse:
    """An answer for people."""
    return HttpResponse(body.encode(), status)


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
Page = Callable[[], Awaitable[HttpResponse]]


def pages(of: Mapping[str, Page]) -> Handler:
    """The handler of pages, by their paths, that anybody may read and nobody write."""

    async def answer(request: HttpRequest) -> HttpResponse:
        page = of.get(request.path)
        if page is None:
            return text("there is no such page\n", HTTPStatus.NOT_FOUND)
        if request.method not in {"GET", "HEAD"}:
            return text("this page can only be read\n", HTTPStatus.METHOD_NOT_ALLOWED)
        return await page()

    return answer


async def serve_http(
    answer: Handler,
    host: str,
    port: int,
    *,
    longest: int = LONGEST,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve until cancelled; then requests under way are answered first, for `GRACE` seconds.

    `longest` is how many bytes a request may have.
    """
    loop, connections = asyncio.get_running_loop(), _Connections(answer, longest)
    try:
        listening = await loop.create_server(connections.new, host, port, ssl=tls, backlog=BACKLOG)
    except OSError as error:
        raise AliquotError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        while True:
            await asyncio.sleep(IDLE_SECONDS / 4)
            connections.close_idle()
    finally:
        listening.close()
        await connections.end()


class _Connections:
    """The open connections of one server, and the requests under way."""

    def __init__(self, answer: Handler, longest: int) -> None:
        self.answer = answer
        self.longest = longest
        self.open: set[_Connection] = set()
        self.under_way: set[asyncio.Task[None]] = set()
        self.ending = False

    def new(self) -> _Connection:
        return _Connection(self)

    def close_idle(self) -> None:
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS
        for one in list(self.open):
            if not one.answering and one.heard < oldest:
                one.close()

    async def end(self) -> None:
        self.ending = True
        for one in list(self.open):
            if not one.answering:
                one.close()
        if self.under_way:
            await asyncio.wait(self.under_way, timeout=GRACE)
        for task in self.under_way:
            task.cancel()
        for one in list(self.open):
            one.close()


class _Connection(asyncio.Protocol):
    """One connection; its public fields are for `_Connections`, its `on_` methods for the parser.

    `heard` is when it was last used. `answering`: a request is under way.
    """

    def __init__(self, among: _Connections) -> None:
        self._among = among
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._size = 0
        self.heard = self._loop.time()
        self.answering = False

    def close(self) -> None:
        """Close it, when what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    # --- the event loop ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._among.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - Protocol
        """What is under way goes on: a pod may be half bound."""
        self._among.open.discard(self)
        self._transport = None

    def pause_writing(self) -> None:
        """The client does not read its answers: it may not ask on."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(HTTPStatus.BAD_REQUEST)
        if self._size > self._among.longest:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    # --- the parser -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.answering:
            raise httptools.HttpParserError("a request came before the last one was answered")
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._size = 0
        method, path = self._parser.get_method(), self._url.partition(b"?")[0]
        request = HttpRequest(method.decode("ascii"), path.decode("latin-1"), b"".join(self._body))
        self._body = []
        keep = self._parser.should_keep_alive()
        self.answering = True
        task = self._loop.create_task(self._answer(request, keep=keep))
        self._among.under_way.add(task)
        task.add_done_callback(self._among.under_way.discard)

    async def _answer(self, request: HttpRequest, *, keep: bool) -> None:
        try:
            answer = await self._among.answer(request)
        except Exception:  # noqa: BLE001 - one failed answer must not end the server
            _log.exception("a request failed", path=request.path)
            answer = text("internal error\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            self.answering = False
        self.heard = self._loop.time()
        self._write(answer, keep=keep and not self._among.ending, head=request.method == "HEAD")

    def _refuse(self, status: HTTPStatus) -> None:
        self._write(text(f"{status.phrase.lower()}\n", status), keep=False)

    def _write(self, answer: HttpResponse, *, keep: bool, head: bool = False) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        start = _start(answer.status, answer.content_type, keep=keep)
        body = b"" if head else answer.body
        self._transport.write(b"%s%d\r\n\r\n%s" % (start, len(answer.body), body))
        if not keep:
            self._transport.close()


@cache
def _start(status: int, content_type: str, *, keep: bool) -> bytes:
    """An answer up to its length."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {content_type}"]
    if not keep:
        lines.append("connection: close")
    return "\r\n".join([*lines, "content-length: "]).encode("ascii")
