"""The console of a cluster as an ASGI application."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from aliquot.console.assembly import assemble
from aliquot.console.cluster import openapi
from aliquot.console.cluster.endpoints import ClusterApi
from aliquot.console.cluster.entrance import TokenEntrance
from aliquot.console.cluster.rights import AccessReviews
from aliquot.console.cluster.stream import LiveStreams
from aliquot.console.cluster.watched import Watched
from aliquot.console.guard import Guard, Site
from aliquot.console.problems import problem
from aliquot.kubernetes.api.client import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
    from typing import Any

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.server import Server

_log = structlog.get_logger(__name__)

_STATUSES = {
    400: HTTPStatus.BAD_REQUEST,
    401: HTTPStatus.UNAUTHORIZED,
    403: HTTPStatus.FORBIDDEN,
    404: HTTPStatus.NOT_FOUND,
    409: HTTPStatus.CONFLICT,
    422: HTTPStatus.BAD_REQUEST,
}
_HINTS = {
    HTTPStatus.FORBIDDEN: "Ask an administrator of the cluster for this right.",
    HTTPStatus.CONFLICT: "It has changed meanwhile. Look again.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Try again.",
}


def make_application(
    client: Client,
    server: Server,
    presets: Iterable[str],
    site: Site,
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> ASGIApp:
    """The console of a cluster.

    `client` has the console's account, `server` is for the tokens of users. `meanwhile` runs as
    long as the console.
    """
    watched, rights, entrance = (
        Watched(client, presets),
        AccessReviews(client),
        TokenEntrance(client),
    )
    streams = LiveStreams(watched, rights, entrance)
    endpoints = ClusterApi(watched, rights, streams, server, site)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(watched.run())]
        if meanwhile is not None:
            tasks.append(asyncio.create_task(meanwhile()))
        for task in tasks:
            task.add_done_callback(_end_with)
        async with client:
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    app = assemble(endpoints, openapi.OPERATIONS, site, lifespan, "cluster")
    app.add_exception_handler(ApiError, _answer_api)
    app.state.end = streams.end
    return Guard(app, site, entrance)


def _end_with(task: asyncio.Task[None]) -> None:
    """End this process if what must go on has failed: else pages would show what was."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the console cannot go on", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


def _answer_api(_: Request, error: Exception) -> Response:
    """What the API server said to the user's token."""
    assert isinstance(error, ApiError)  # noqa: S101 - as it was registered
    status = _STATUSES.get(error.status, HTTPStatus.SERVICE_UNAVAILABLE)
    return problem(status, error.message, _HINTS.get(status))
