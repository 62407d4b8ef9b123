"""The console as an ASGI application: the API, and the files of the pages."""

from __future__ import annotations

import asyncio
import mimetypes
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Mount, Route

from aliquot.console import openapi
from aliquot.console.endpoints import ConsoleApi
from aliquot.console.guard import Guard, Site
from aliquot.console.problems import ProblemError, problem, problem_of
from aliquot.console.snapshots import LiveSnapshots
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from aliquot.console.sign_in import SignIn
    from aliquot.console.snapshots import Machine

STATIC = Path(__file__).with_name("static")
INDEX = "index.html"

_YEAR = "public, max-age=31536000, immutable"
_KINDS = {".js": "text/javascript", ".html": "text/html", ".css": "text/css"}


def make_application(machine: Machine, sign_in: SignIn, site: Site) -> ASGIApp:
    """The console of one machine."""
    snapshots = LiveSnapshots(machine)
    endpoints = ConsoleApi(snapshots, sign_in, site)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        reading = asyncio.create_task(snapshots.run())
        yield
        reading.cancel()
        await asyncio.to_thread(machine.store.close)

    api = [
        Route(
            f"{openapi.PREFIX}{operation['path']}",
            getattr(endpoints, name),
            methods=[operation["method"].upper()],
        )
        for name, operation in openapi.OPERATIONS.items()
    ]
    routes = [*api, Route("/{path:path}", _Files().answer, methods=["GET"])]
    app = Starlette(
        routes=[Mount(site.base_path, routes=routes)] if site.base_path else routes,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _answer_http,
            ProblemError: _answer_problem,
            AliquotError: _answer_error,
            Exception: _answer_defect,
        },
    )
    app.state.snapshots = snapshots
    return Guard(app, site, sign_in)


class _Files:
    """The built pages, read once."""

    def __init__(self) -> None:
        files = [one for one in STATIC.rglob("*") if one.is_file()]
        self._contents = {str(one.relative_to(STATIC)): one.read_bytes() for one in files}

    async def answer(self, request: Request) -> Response:
        """A file; names of assets change with their content, so browsers keep them."""
        path = str(request.path_params["path"]) or INDEX
        if path not in self._contents:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        kind = _KINDS.get(Path(path).suffix) or mimetypes.guess_type(path)[0]
        kept = _YEAR if path.startswith("assets/") else "no-cache"
        return Response(self._contents[path], media_type=kind, headers={"cache-control": kept})


def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as it was registered
    path = request.url.path[:200]
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        found = problem(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"{path} does not accept {request.method}",
            f"What it accepts is in {openapi.PREFIX}/openapi.json.",
        )
    else:
        found = problem(
            HTTPStatus(error.status_code),
            f"there is nothing at {path}",
            f"What there is: {openapi.PREFIX}/openapi.json.",
        )
    found.headers.update(error.headers or {})
    return found


def _answer_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - as it was registered
    found = problem(error.status, error.detail, error.hint)
    if error.status == HTTPStatus.REQUEST_TIMEOUT:
        found.headers["connection"] = "close"  # the rest of the request may still come
    return found


def _answer_defect(_: Request, __: Exception) -> Response:
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the console met a defect",
        "The same command of aliquot may work, or say more.",
    )


def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AliquotError)  # noqa: S101 - as it was registered
    return problem_of(error)
