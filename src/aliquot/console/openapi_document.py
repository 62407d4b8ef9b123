"""Makes an OpenAPI document of a table of operations.

An operation is its name and a dictionary: `method`, `path`, `summary`, and where it has them
`query` (the schema of each parameter), `body`, `answer` or `media`, `status` of the answer, and
`problems` (the statuses of problem documents beside those that every request can get).
"""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from aliquot.console.problems import MEDIA_TYPE
from aliquot.console.shapes import NAME, PREFIX, PROBLEM, Schema

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Operation = dict[str, Any]


def make_document(  # noqa: PLR0913 - the parts of a document
    operations: Mapping[str, Operation],
    about: str,
    base_path: str,
    *,
    paths: Mapping[str, Schema],
    schemes: Mapping[str, Any],
    unsigned: Collection[str],
) -> dict[str, Any]:
    """The whole document.

    `paths` has the schemas of parameters in paths that are not just names, `schemes` the ways to
    sign in, and `unsigned` the operations that need none.
    """
    found: dict[str, Any] = {}
    for name, operation in operations.items():
        described = _operation(name, operation, paths, signed=name not in unsigned)
        found.setdefault(operation["path"], {})[operation["method"]] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Aliquot console", "version": version("aliquot"), "description": about},
        "servers": [{"url": f"{base_path}{PREFIX}"}],
        "security": [{name: []} for name in schemes],
        "paths": found,
        "components": {"securitySchemes": dict(schemes), "schemas": {"Problem": PROBLEM}},
    }


def _operation(
    name: str, operation: Operation, paths: Mapping[str, Schema], *, signed: bool
) -> dict[str, Any]:
    status = operation.get("status", 200)
    found: dict[str, Any] = {
        "operationId": name,
        "summary": operation["summary"],
        "parameters": [*_path_parameters(operation, paths), *_query_parameters(operation)],
        "responses": {str(status): _answer(operation, status)},
    }
    if "body" in operation:
        content = {"application/json": {"schema": operation["body"]}}
        found["requestBody"] = {"required": True, "content": content}
    if not signed:
        found["security"] = []
    default = (400,) if "query" in operation else ()
    own = {*operation.get("problems", default), *((408,) if "body" in operation else ())}
    for problem in sorted({*own, 403, 421, *(() if name == "openapi" else (401,))}):
        found["responses"][str(problem)] = {
            "description": HTTPStatus(problem).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


def _answer(operation: Operation, status: int) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if "answer" in operation:
        found["content"] = {"application/json": {"schema": operation["answer"]}}
    elif "media" in operation:
        found["content"] = {operation["media"]: {"schema": {"type": "string"}}}
    return found


def _path_parameters(operation: Operation, paths: Mapping[str, Schema]) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in operation["path"].split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": paths.get(name, NAME)}
        for name in names
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    query = operation.get("query", {})
    return [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
