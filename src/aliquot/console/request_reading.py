"""Reads requests: where what comes from the network becomes values that a document describes."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from aliquot.console import schema
from aliquot.console.problems import ProblemError
from aliquot.console.shapes import LIMIT, NAME
from aliquot.model.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from aliquot.console.openapi_document import Operation
    from aliquot.console.shapes import Schema

LARGEST_BODY = 1 << 18
BODY_SECONDS = 10.0  # anybody can begin a request for a proof, and then be silent


async def read_body(request: Request, operation: Operation) -> dict[str, Any]:
    """The body of a request, as the document has it."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            content = await _read_all(request)
    except TimeoutError as error:
        raise ProblemError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body did not come within {BODY_SECONDS:.0f} s",
            "Send it again.",
        ) from error
    except ClientDisconnect as error:  # nobody reads this, and it is no defect for the log
        raise InvalidValueError("the body has no end") from error
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidValueError(
            "the body is not JSON", "Send it with the header Content-Type: application/json."
        )
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"the body is not JSON: {error}") from error
    schema.check(body, operation["body"])
    assert isinstance(body, dict)  # noqa: S101 - checked above
    return body


async def _read_all(request: Request) -> bytearray:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > LARGEST_BODY:
            raise ProblemError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body is longer than {LARGEST_BODY} bytes",
                "Send less.",
            )
    return content


def read_query(request: Request, operation: Operation) -> dict[str, Any]:
    """The parameters of a URL, as the document has them."""
    known, found = operation.get("query", {}), dict[str, Any]()
    for name, text in request.query_params.multi_items():
        if name not in known:
            raise InvalidValueError(
                f"unknown parameter {name[:40]!r}",
                f"Known are {', '.join(known)}." if known else None,
            )
        if name in found:
            raise InvalidValueError(f"the parameter {name} is given twice")
        found[name] = schema.parse(text, known[name], name)
    return found


def page(items: Sequence[Any], keys: Sequence[str], query: dict[str, Any]) -> Response:
    """The items after the key `after`; of one that is gone, nothing."""
    limit, after = query.get("limit", LIMIT["default"]), 0
    if "after" in query:
        if query["after"] not in keys:
            raise InvalidValueError(
                "the item of `after` is no longer there", "Begin with the first page."
            )
        after = len(keys) - keys[::-1].index(query["after"])
    end = after + limit
    more = keys[end - 1] if end < len(items) else None
    return JSONResponse({"items": items[after:end], "next": more})


def path_part(request: Request, name: str, shape: Schema = NAME) -> str:
    """A parameter of the path."""
    text = str(request.path_params[name])
    schema.check(text, shape, name)
    return text
