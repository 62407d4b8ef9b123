"""What both consoles are assembled from: routes, the files of the pages, and problem documents."""

from __future__ import annotations

import mimetypes
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Mount, Route

from aliquot.console.problems import ProblemError, problem, problem_of
from aliquot.console.shapes import PREFIX
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request

    from aliquot.console.guard import Site
    from aliquot.console.openapi_document import Operation

    Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]

STATIC = Path(__file__).with_name("static")
INDEX = "index.html"

_YEAR = "public, max-age=31536000, immutable"
_KINDS = {".js": "text/javascript", ".html": "text/html", ".css": "text/css"}
_KIND = b'name="aliquot-console" content="%s"'
_MACHINE = _KIND % b"machine"


def assemble(
    endpoints: object,
    operations: Mapping[str, Operation],
    site: Site,
    lifespan: Lifespan,
    kind: str = "machine",
) -> Starlette:
    """An application: `endpoints` has a method for each operation; `kind` is told to pages."""
    api = [
        Route(
            f"{PREFIX}{operation['path']}",
            getattr(endpoints, name),
            methods=[operation["method"].upper()],
        )
        for name, operation in operations.items()
    ]
    routes = [*api, Route("/{path:path}", _Files(kind).answer, methods=["GET"])]
    return Starlette(
        routes=[Mount(site.base_path, routes=routes)] if site.base_path else routes,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _answer_http,
            ProblemError: _answer_problem,
            AliquotError: _answer_error,
            Exception: _answer_defect,
        },
    )


class _Files:
    """The built pages, read once.

    The first one says which console serves it. Pages believe only that: they never ask it of what
    answers at their address later.
    """

    def __init__(self, kind: str) -> None:
        files = [one for one in STATIC.rglob("*") if one.is_file()]
        self._contents = {str(one.relative_to(STATIC)): one.read_bytes() for one in files}
        self._contents[INDEX] = self._contents[INDEX].replace(_MACHINE, _KIND % kind.encode())

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
            f"What it accepts is in {PREFIX}/openapi.json.",
        )
    else:
        found = problem(
            HTTPStatus(error.status_code),
            f"there is nothing at {path}",
            f"What there is: {PREFIX}/openapi.json.",
        )
    found.headers.update(error.headers or {})
    return found


def _answer_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - as it was registered
    return error.answer


def _answer_defect(_: Request, __: Exception) -> Response:
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the console met a defect",
        "The same command of aliquot may work, or say more.",
    )


def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AliquotError)  # noqa: S101 - as it was registered
    return problem_of(error)
