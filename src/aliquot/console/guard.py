"""What every request passes first: the Host header and sign-in; and the headers of answers.

- The Host header must name this console, so that a page of another site cannot reach it by a name
  that resolves to this machine.
- Everything below `api/` but the console's proof and the OpenAPI document needs the token, or a
  credential's signature in the header `X-Aliquot-Key`. There is no cookie: browsers send those to
  every port of a host, and to whoever has taken this one.
- A request that a browser sends for a page of another origin is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from aliquot.console.problems import problem
from aliquot.console.sign_in import kind_of

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from aliquot.console.sign_in import SignIn

KEY_HEADER = "x-aliquot-key"
CREDENTIAL = "aliquot_credential"  # of the scope: the name of the one that was accepted
HOW_TO_SIGN_IN = "Get a link with: aliquot console"

_OPEN = {("POST", "api/v1/proof"), ("GET", "api/v1/openapi.json")}
_WITH_CODE = ("POST", "api/v1/session")  # all that a link's credential opens


@dataclass(frozen=True, slots=True)
class Site:
    """How the console is reached: its names, its path, and who may show it in a frame."""

    hosts: frozenset[str]
    base_path: str = ""  # "" or "/aliquot"
    frame_ancestors: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every answer. No script or style of a page itself is run."""
        frames = " ".join(self.frame_ancestors) or "'none'"
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
            " connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self';"
            f" frame-ancestors {frames}"
        )
        found = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }
        return found if self.frame_ancestors else {**found, "x-frame-options": "DENY"}


@dataclass(frozen=True, slots=True)
class Guard:
    """An application behind these checks."""

    app: ASGIApp
    site: Site
    sign_in: SignIn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self.site.headers)
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope)
        await (self.app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self.site.hosts:
            return problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "the Host header names another server",
                "Use the address that `aliquot console` prints, or start it with --server-name.",
                "wrong-host",
            )
        path = scope["path"].removeprefix(self.site.base_path).lstrip("/")
        method = scope["method"]
        if not path.startswith("api/"):
            return None
        if self._is_foreign(headers, host):
            return problem(
                HTTPStatus.FORBIDDEN,
                "the request comes from a page of another origin",
                "Open the console itself.",
                "foreign-origin",
            )
        if (method, path) in _OPEN:
            return None
        name = self._caller(headers, host)
        if name is None or (kind_of(name) == "code" and (method, path) != _WITH_CODE):
            return _unauthorized()
        scope[CREDENTIAL] = name
        return None

    def _caller(self, headers: Headers, host: str) -> str | None:
        """The name of the credential of a request; None if it has none that is right."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return "token" if self.sign_in.accepts_token(token.strip()) else None
        return self.sign_in.accepts(headers.get(KEY_HEADER, ""), host)

    @staticmethod
    def _is_foreign(headers: Headers, host: str) -> bool:
        """Whether a browser says that a page of another origin asks."""
        origin = headers.get("origin")
        return headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or (
            origin is not None and origin.lower().partition("://")[2] != host
        )


def _unauthorized() -> Response:
    found = problem(
        HTTPStatus.UNAUTHORIZED,
        "you are not signed in, or the token is wrong",
        HOW_TO_SIGN_IN,
        "sign-in",
    )
    found.headers["www-authenticate"] = "Bearer"
    return found
