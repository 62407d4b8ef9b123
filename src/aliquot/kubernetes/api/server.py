"""The address of an API server, and the credentials of its user.

lightkube reads the configuration and authenticates (kubeconfig, the pod's service account with its
rotating token, client certificates, exec plug-ins). It is made for another HTTP client:
`Credentials` takes only the header from it, once, and again when the server no longer accepts it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2  # lightkube's
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.models import User

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from lightkube.config.kubeconfig import SingleConfig

UNAUTHORIZED = 401


class Credentials:
    """The headers that authenticate requests."""

    def __init__(self, auth: httpx2.Auth | None = None) -> None:
        self._auth = auth
        self._headers: Mapping[str, str] | None = None
        self._asking = asyncio.Lock()

    async def headers(self, *, instead_of: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """The headers for a request; `instead_of`: those that the server refused."""
        if self._headers is not None and self._headers is not instead_of:
            return self._headers
        async with self._asking:
            if self._headers is None or self._headers is instead_of:
                self._headers = await self._ask(refused=instead_of is not None)
            return self._headers

    async def _ask(self, *, refused: bool) -> Mapping[str, str]:
        if self._auth is None:
            return {}
        request = httpx2.Request("GET", "https://server")
        flow = self._auth.async_auth_flow(request)
        try:
            await anext(flow)
            if refused:
                await flow.asend(httpx2.Response(UNAUTHORIZED, request=request))
        except StopAsyncIteration:
            pass  # there is no other
        finally:
            await flow.aclose()
        value = request.headers.get("Authorization")
        return {"Authorization": value} if value else {}


@dataclass(frozen=True, slots=True)
class Server:
    """An API server and a user. Without `trust` the connection is plain HTTP."""

    url: str
    credentials: Credentials
    trust: ssl.SSLContext | None = None

    @property
    def proxy(self) -> str | None:
        """The proxy to it, by the environment (HTTPS_PROXY, NO_PROXY)."""
        parts = urlsplit(self.url)
        return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)

    @classmethod
    def of(cls, config: SingleConfig) -> Self:
        """The server of a kubeconfig's context. ConfigError if it asks for what is unsupported."""
        user = config.user or User()
        url = config.cluster.server.rstrip("/")
        trust = None
        if url.startswith("https:"):
            trust = verify_cluster(config.cluster, user, config.abs_file)
        return cls(url, Credentials(user_auth(user)), trust)

    @classmethod
    def without_user(cls, config: SingleConfig) -> Self:
        """The same server, and nobody: not even the certificate that connections identify with."""
        return cls.of(config._replace(user=None))

    def with_token(self, token: str) -> Server:
        """The same server, and the user of this token."""
        return Server(self.url, Credentials(user_auth(User(token=token))), self.trust)
