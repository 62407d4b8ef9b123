"""Problem documents (RFC 9457): what is wrong, and a way out in `hint`."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from aliquot.model.errors import (
    AliquotError,
    InvalidValueError,
    NoSuchGpuError,
    NoSuchGrantError,
    NoSuchJobError,
    UserLimitError,
)
from aliquot.pool.access import RefusedError
from aliquot.pool.client import NoPoolError
from aliquot.slices.control import NoArbiterError

MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[AliquotError], HTTPStatus], ...] = (
    (InvalidValueError, HTTPStatus.BAD_REQUEST),
    (NoSuchGrantError, HTTPStatus.NOT_FOUND),
    (NoSuchJobError, HTTPStatus.NOT_FOUND),
    (NoSuchGpuError, HTTPStatus.NOT_FOUND),
    (RefusedError, HTTPStatus.FORBIDDEN),
    (UserLimitError, HTTPStatus.CONFLICT),
    (NoPoolError, HTTPStatus.SERVICE_UNAVAILABLE),
    (NoArbiterError, HTTPStatus.SERVICE_UNAVAILABLE),
    (AliquotError, HTTPStatus.CONFLICT),
)


class ProblemError(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self, status: HTTPStatus, detail: str, hint: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.hint, self.kind = status, detail, hint, kind

    @property
    def answer(self) -> Response:
        """The document."""
        found = problem(self.status, self.detail, self.hint, self.kind)
        if self.status is HTTPStatus.UNAUTHORIZED:
            found.headers["www-authenticate"] = "Bearer"
        if self.status is HTTPStatus.REQUEST_TIMEOUT:
            found.headers["connection"] = "close"  # the rest of the request may still come
        return found


def problem(
    status: HTTPStatus, detail: str, hint: str | None = None, kind: str | None = None
) -> Response:
    """A problem document; `kind` names the sort of problem, by default the status does."""
    return Response(json.dumps(document(status, detail, hint, kind)), status, media_type=MEDIA_TYPE)


def document(
    status: HTTPStatus, detail: str, hint: str | None, kind: str | None = None
) -> dict[str, Any]:
    """The content of a problem document."""
    return {
        "type": f"urn:aliquot:problem:{kind or _dashed(status.phrase)}",
        "title": status.phrase,
        "status": int(status),
        "detail": detail,
        "hint": hint,
    }


def document_of(error: AliquotError) -> dict[str, Any]:
    """The problem document of an error of Aliquot's."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    kind = _dashed(re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__.removesuffix("Error")))
    return document(status, error.message, error.hint, kind)


def problem_of(error: AliquotError) -> Response:
    """An error of Aliquot's as an answer."""
    found = document_of(error)
    return Response(json.dumps(found), found["status"], media_type=MEDIA_TYPE)


def _dashed(words: str) -> str:
    return words.lower().replace(" ", "-")
