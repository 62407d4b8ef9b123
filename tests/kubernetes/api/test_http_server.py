"""The HTTP server, as clients see it: over sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aliquot.kubernetes.api import http_server
from aliquot.kubernetes.api.http_server import (
    Handler,
    HttpRequest,
    HttpResponse,
    pages,
    serve_http,
    text,
)
from aliquot.model.errors import AliquotError

GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, *, head: bool = False) -> tuple[int, bytes]:
        """The next answer: its status and body."""
        start = await self._reader.readuntil(b"\r\n\r\n")
        lines = start.decode().splitlines()
        length = next(int(one.split()[1]) for one in lines if one.startswith("content-length:"))
        body = b"" if head else await self._reader.readexactly(length)
        return int(lines[0].split()[1]), body

    async def is_closed(self) -> bool:
        """Wait until nothing more can come."""
        return await self._reader.read() == b""

    def leave(self) -> None:
        self._writer.close()


class Served:
    """A server that runs."""

    def __init__(self, port: int, task: asyncio.Task[None]) -> None:
        self._port = port
        self._clients: list[Client] = []
        self.task = task

    async def connect(self) -> Client:
        while True:
            try:
                client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
            except OSError:
                await asyncio.sleep(0.001)
                assert not self.task.done()
            else:
                self._clients.append(client)
                return client

    def leave_all(self) -> None:
        for client in self._clients:
            client.leave()


@asynccontextmanager
async def served(handler: Handler, **options: Any) -> AsyncIterator[Served]:
    port = free_port()
    task = asyncio.create_task(serve_http(handler, "127.0.0.1", port, **options))
    server = Served(port, task)
    try:
        yield server
    finally:
        server.leave_all()
        task.cancel()
        await asyncio.wait([task])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def echo(request: HttpRequest) -> HttpResponse:
    return text(f"{request.method} {request.path} {request.body.decode()}")


def played(
    play: Callable[[Served], Coroutine[Any, Any, None]], handler: Handler = echo, **options: Any
) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), served(handler, **options) as server:
            await play(server)

    asyncio.run(run())


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def play(server: Served) -> None:
        client = await server.connect()
        for _ in range(3):
            client.send(GET)
            assert await client.answer() == (200, b"GET /a ")
            client.send(POST)
            assert await client.answer() == (200, b"POST /a hello")

    played(play)


def test_a_request_may_come_in_pieces() -> None:
    async def play(server: Served) -> None:
        client = await server.connect()
        for byte in POST:
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.answer() == (200, b"POST /a hello")
        chunked = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.send(chunked + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")
        assert await client.answer() == (200, b"POST /a hello")

    played(play)


@pytest.mark.parametrize(
    "last",
    [b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"GET /a HTTP/1.0\r\n\r\n"],
)
def test_a_connection_is_closed_after_the_last_answer(last: bytes) -> None:
    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(last)
        assert await client.answer() == (200, b"GET /a ")
        assert await client.is_closed()

    played(play)


def test_pages_can_only_be_read() -> None:
    async def page() -> HttpResponse:
        return text("the page")

    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(GET)
        assert await client.answer() == (200, b"the page")
        client.send(GET.replace(b"GET", b"HEAD"))
        assert await client.answer(head=True) == (200, b"")
        client.send(POST)
        assert (await client.answer())[0] == 405
        client.send(GET.replace(b"/a", b"/other"))
        assert (await client.answer())[0] == 404

    played(play, pages({"/a": page}))


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_an_invalid_request_ends_the_connection(sent: bytes) -> None:
    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(sent)
        assert (await client.answer())[0] == 400
        assert await client.is_closed()

    played(play)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n" + b"a" * 2000,
        b"GET /a HTTP/1.1\r\nHost: " + b"a" * 2000,
    ],
)
def test_a_request_that_is_too_long_ends_the_connection(sent: bytes) -> None:
    asked: list[HttpRequest] = []

    async def handler(request: HttpRequest) -> HttpResponse:
        asked.append(request)
        return text("")

    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(sent)
        assert (await client.answer())[0] == 413
        assert await client.is_closed()
        assert not asked

    played(play, handler, longest=1000)


def test_a_client_that_does_not_wait_for_its_answer_is_disconnected() -> None:
    asked: list[HttpRequest] = []

    async def handler(request: HttpRequest) -> HttpResponse:
        asked.append(request)
        await asyncio.sleep(0)
        return text("")

    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(GET + POST)
        assert (await client.answer())[0] == 400
        assert await client.is_closed()
        assert [one.method for one in asked] == ["GET"]

    played(play, handler)


def test_a_failed_answer_does_not_end_the_server() -> None:
    async def handler(request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            raise ValueError(request.path)
        return text("")

    async def play(server: Served) -> None:
        client = await server.connect()
        for sent, status in ((POST, 500), (GET, 200)):
            client.send(sent)
            assert (await client.answer())[0] == status

    played(play, handler)


def test_what_is_under_way_goes_on_when_the_client_leaves() -> None:
    begun, ended, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(_: HttpRequest) -> HttpResponse:
        begun.set()
        await may_end.wait()
        ended.set()
        return text("")

    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(GET)
        await begun.wait()
        client.leave()
        other = await server.connect()
        other.send(b"nonsense\r\n\r\n")
        assert await other.answer() == (
            400,
            b"bad request\n",
        )  # by then it has seen the first leave
        may_end.set()
        await ended.wait()

    played(play, handler)


def test_at_the_end_what_is_under_way_is_answered() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handler(_: HttpRequest) -> HttpResponse:
        begun.set()
        await may_end.wait()
        return text("the last")

    async def play(server: Served) -> None:
        idle, busy = await server.connect(), await server.connect()
        busy.send(GET)
        await begun.wait()
        server.task.cancel()
        assert await idle.is_closed()
        may_end.set()
        assert await busy.answer() == (200, b"the last")
        assert await busy.is_closed()
        await asyncio.wait([server.task])

    played(play, handler)


def test_what_takes_too_long_is_cancelled_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "GRACE", 0.01)
    begun = asyncio.Event()

    async def handler(_: HttpRequest) -> HttpResponse:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def play(server: Served) -> None:
        client = await server.connect()
        client.send(GET)
        await begun.wait()
        server.task.cancel()
        await asyncio.wait([server.task])
        assert await client.is_closed()

    played(play, handler)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.05)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handler(_: HttpRequest) -> HttpResponse:
        begun.set()
        await may_end.wait()
        return text("late")

    async def play(server: Served) -> None:
        idle, busy = await server.connect(), await server.connect()
        busy.send(GET)
        await begun.wait()
        assert await idle.is_closed()
        may_end.set()
        assert await busy.answer() == (200, b"late")

    played(play, handler)


def test_a_port_that_is_taken_is_an_error() -> None:
    async def run() -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            one.listen()
            port = one.getsockname()[1]
            with pytest.raises(AliquotError, match=f"cannot listen on 127.0.0.1:{port}"):
                await serve_http(echo, "127.0.0.1", port)

    asyncio.run(run())
