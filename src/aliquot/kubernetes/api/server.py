"""How to reach an API server, and who asks it.

Configuration and authentication (kubeconfig, the pod's service account with its rotating token,
client certificates, exec plug-ins) are lightkube's. Its ways to authenticate are made for another
HTTP client: `Credentials` asks them for the header alone, once, and again when the server no longer
takes it.
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
    """The headers that say who asks."""

    def __init__(self, auth: httpx2.Auth | None = None) -> None:
        self._auth = auth
        self._headers: Mapping[str, str] | None = None
        self._asking = asyncio.Lock()

    async def headers(self, *, instead_of: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """To be sent with a request; `instead_of` those that the server refused."""
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
            pass  # it knows no other
        finally:
            await flow.aclose()
        value = request.headers.get("Authorization")
        return {"Authorization": value} if value else {}


@dataclass(frozen=True, slots=True)
class Server:
    """An API server, as one user sees it. No `trust`: its address is a plain one."""

    url: str
    credentials: Credentials
    trust: ssl.SSLContext | None = None

    @property
    def proxy(self) -> str | None:
        """By which it is reached, as the environment says (HTTPS_PROXY, NO_PROXY)."""
        parts = urlsplit(self.url)
        return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)

    @classmethod
    def of(cls, config: SingleConfig) -> Self:
        """As a kubeconfig's context says. ConfigError where it asks for what cannot be done."""
        user = config.user or User()
        url = config.cluster.server.rstrip("/")
        trust = None
        if url.startswith("https:"):
            trust = verify_cluster(config.cluster, user, config.abs_file)
        return cls(url, Credentials(user_auth(user)), trust)
