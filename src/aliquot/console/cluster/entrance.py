"""Who asks: the holder of a bearer token, as the API server knows it.

The API server's answer (TokenReview) counts for `SECONDS`, so a token that was taken back is
refused at most that much later. A refusal counts too, but not as long. Nothing is kept of a token
but its hash; the token itself lives as long as its request, which may act with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from aliquot.console.guard import bearer_token
from aliquot.console.problems import ProblemError
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.reviews import TOKEN_REVIEWS, ReviewedUser, Token, TokenReview

if TYPE_CHECKING:
    from aliquot.console.guard import Asked
    from aliquot.kubernetes.api.client import Client

SECONDS = 60.0
REFUSED_SECONDS = 10.0
AT_ONCE = 8  # reviews: anybody who reaches the port can cause them
MOST_TOKENS = 10_000
HOW_TO_SIGN_IN = "Sign in with a token of yours, for example: kubectl create token ACCOUNT"

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}={0,2}", re.ASCII)
_OPEN = {("GET", "api/v1/openapi.json")}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """A user, and the token that this user sent."""

    user: ReviewedUser
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Reviewed:
    user: ReviewedUser | None  # None: refused
    until: float


class TokenEntrance:
    """The entrance of the console of a cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[bytes, _Reviewed] = {}
        self._few = asyncio.Semaphore(AT_ONCE)

    async def admit(self, asked: Asked) -> object:
        """The caller; None for the OpenAPI document."""
        if (asked.method, asked.path) in _OPEN:
            return None
        return await self.caller_of(bearer_token(asked.headers) or "")

    async def caller_of(self, token: str) -> TokenHolder:
        """Whose a token is; ProblemError if it is nobody's, or if the API server does not say."""
        user = await self._user_of(token) if _TOKEN.fullmatch(token) else None
        if user is None:
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "you are not signed in, or the API server does not accept the token",
                HOW_TO_SIGN_IN,
                "sign-in",
            )
        return TokenHolder(user, token)

    async def _user_of(self, token: str) -> ReviewedUser | None:
        key = hashlib.sha256(token.encode("ascii")).digest()
        known = self._known.get(key)
        if known is None or known.until < time.monotonic():
            async with self._few:
                known = await self._ask(token)
            self._known.pop(key, None)
            self._known[key] = known
            if len(self._known) > MOST_TOKENS:
                del self._known[next(iter(self._known))]
        return known.user

    async def _ask(self, token: str) -> _Reviewed:
        try:
            review = await self._client.create(TOKEN_REVIEWS, TokenReview(Token(token)))
        except ApiError as error:
            _log.warning("a token cannot be reviewed", why=error.message)
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the API server does not say whose the token is",
                "Try again. The console's log says more.",
            ) from error
        status = review.status
        if status.authenticated and status.user.username:
            return _Reviewed(status.user, time.monotonic() + SECONDS)
        return _Reviewed(None, time.monotonic() + REFUSED_SECONDS)
