"""What every request passes first: the Host header and sign-in; and the headers of answers.

- The Host header must name this console, so that a page of another site cannot reach it by a name
  that resolves to this machine.
- An `Entrance` decides who asks for what is below `api/`. On one machine (`MachineEntrance`) all
  but the console's proof and the OpenAPI document needs the token, or a credential's signature in
  the header `X-Aliquot-Key`. There is no cookie: browsers send those to every port of a host, also
  to the program of another user that listens on this one after the console has ended.
- A request that a browser sends for a page of another origin is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from starlette.datastructures import Headers, MutableHeaders

from aliquot.console.problems import ProblemError
from aliquot.console.sign_in import kind_of

if TYPE_CHECKING:
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
class Asked:
    """A request below `api/` of this console's own origin, before anybody knows whose it is."""

    method: str
    path: str
    host: str
    headers: Headers


class Entrance(Protocol):
    """Decides who asks."""

    async def admit(self, asked: Asked) -> object:
        """The credential that endpoints find in the scope; ProblemError if it is refused."""


@dataclass(frozen=True, slots=True)
class MachineEntrance:
    """The entrance of the console of one machine: its token, or a credential's signature."""

    sign_in: SignIn

    async def admit(self, asked: Asked) -> object:
        """The name of the credential."""
        if (asked.method, asked.path) in _OPEN:
            return None
        name = self._caller(asked)
        is_code = name is not None and kind_of(name) == "code"
        if name is None or (is_code and (asked.method, asked.path) != _WITH_CODE):
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "you are not signed in, or the token is wrong",
                HOW_TO_SIGN_IN,
                "sign-in",
            )
        return name

    def _caller(self, asked: Asked) -> str | None:
        """The name of the credential of a request; None if it has none that is right."""
        token = bearer_token(asked.headers)
        if token is not None:
            return "token" if self.sign_in.accepts_token(token) else None
        return self.sign_in.accepts(asked.headers.get(KEY_HEADER, ""), asked.host)


def bearer_token(headers: Headers) -> str | None:
    """The token of a request; None if it has no header of that kind."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


@dataclass(frozen=True, slots=True)
class Guard:
    """An application behind these checks."""

    app: ASGIApp
    site: Site
    entrance: Entrance

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

        try:
            await self._admit(scope)
        except ProblemError as refusal:
            await refusal.answer(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    async def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self.site.hosts:
            raise ProblemError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "the Host header names another server",
                "Use the address that `aliquot console` prints, or start it with --server-name.",
                "wrong-host",
            )
        path = scope["path"].removeprefix(self.site.base_path).lstrip("/")
        if not path.startswith("api/"):
            return
        if _is_foreign(headers, host):
            raise ProblemError(
                HTTPStatus.FORBIDDEN,
                "the request comes from a page of another origin",
                "Open the console itself.",
                "foreign-origin",
            )
        asked = Asked(scope["method"], path, host, headers)
        scope[CREDENTIAL] = await self.entrance.admit(asked)


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether a browser says that a page of another origin asks."""
    origin = headers.get("origin")
    return headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or (
        origin is not None and origin.lower().partition("://")[2] != host
    )
