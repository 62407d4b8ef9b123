"""An event loop whose clock jumps, and a client that reaches the fake API server without sockets.

A scheduler that runs on both waits for nothing: when no callback is ready, the clock jumps to the
next timer. So a test of hours of scheduling takes as long as its computation, and is repeatable.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import StreamingResponse

from aliquot.kubernetes.api.client import Client, _refused
from aliquot.kubernetes.api.server import Credentials, Server
from kubernetes.fake_api import FakeApi

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for a timer, moves the clock there."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits, and no timer is set")
        if not ready and timeout is not None:
            self.time += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time. Work for threads is done at once, in the loop's own thread."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.time

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting task gets it
            future.set_exception(error)
        return future


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class DirectClient(Client):
    """A client whose requests call the fake API server's handlers."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(Server("http://direct", Credentials()))
        self._api = api

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content: str = "",  # noqa: ARG002 - every body is JSON here
        query: Mapping[str, str | int] | None = None,
    ) -> bytes:
        answer = await self._api._answer(_request_of(method, path, query, body))
        said = bytes(answer.body)
        if answer.status_code >= 400:
            raise _refused(method, path, answer.status_code, said)
        return said

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        query: Mapping[str, str | int],
        silence: float,  # noqa: ARG002 - a stream without a socket does not die
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        answer = await self._api._answer(_request_of("GET", path, query))
        assert isinstance(answer, StreamingResponse), "the fake API server never compacts here"
        yield _lines(answer)


async def _lines(answer: StreamingResponse) -> AsyncIterator[bytes]:
    async for chunk in answer.body_iterator:
        line = bytes(chunk).strip()  # type: ignore[arg-type]
        if line:
            yield line


def _request_of(
    method: str, path: str, query: Mapping[str, str | int] | None, body: bytes | None = None
) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": urlencode(query or {}).encode(),
        "headers": [],
        "server": ("direct", 80),
        "scheme": "http",
    }
    return Request(scope, receive)
