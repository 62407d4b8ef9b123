"""Typed requests to the API server.

An `ApiError` has the server's status, reason and message; status 0 means that the server was not
reached or did not answer.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import aiohttp
import msgspec
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError
from yaml import YAMLError  # type: ignore[import-untyped] # lightkube brings it, without types

from aliquot.kubernetes.api.decode import decode_json
from aliquot.kubernetes.api.objects import (
    BINDINGS,
    EVICTIONS,
    PODS,
    ApiObject,
    Binding,
    DeleteOptions,
    Eviction,
    Resource,
)
from aliquot.kubernetes.api.server import UNAUTHORIZED, Server
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from lightkube.config.kubeconfig import SingleConfig

T = TypeVar("T", bound=ApiObject)

SECONDS = 10.0  # the time limit of a request
PATIENCE = aiohttp.ClientTimeout(total=SECONDS)
UNREACHED = (aiohttp.ClientError, TimeoutError, ConfigError)
CONNECTIONS = 100
PAGE = 500
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON = "application/json"
_CONNECT = "Give --kubeconfig FILE, set KUBECONFIG, or run in a pod with a service account."
_INVALID = (AttributeError, LookupError, OSError, TypeError, ValueError, YAMLError)


class Cause(msgspec.Struct, frozen=True):
    """One cause of a refused request."""

    reason: str = ""
    message: str = ""


class ApiError(AliquotError):
    """The API server refused a request, failed, or was not reached (status 0)."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        hint: str | None = None,
        *,
        causes: tuple[Cause, ...] = (),
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.reason = reason
        self.causes = causes

    @property
    def not_found(self) -> bool:
        """Whether there is no such object."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether the object exists already, or has changed since it was read."""
        return self.status == 409

    @property
    def expired(self) -> bool:
        """Whether the server no longer has the requested version."""
        return self.status == 410

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: the server is away, busy, or failing."""
        return self.status in {0, 429} or self.status >= 500


class _Details(msgspec.Struct):
    causes: tuple[Cause, ...] = ()


class _Status(msgspec.Struct):
    code: int | None = None
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All requested objects, as of one version."""

    items: list[T]
    version: str


class Client:
    """One API server, as one user. Close it at the end (`async with`)."""

    def __init__(self, server: Server, namespace: str = "default") -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None
        self.namespace = namespace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, of: Resource[T], name: str, namespace: str = "") -> T:
        """Read one object."""
        return _decode(await self._request("GET", of.path(namespace, name)), of.type)

    async def list(
        self, of: Resource[T], namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """Read all objects, of a namespace or of all, that match the selectors; in pages."""
        page_type = _Page[of.type]  # type: ignore[name-defined] # a type known at run time
        query: dict[str, str | int] = {"limit": PAGE, **_selectors(labels, fields)}
        items: list[T] = []
        while True:
            body = await self._request("GET", of.path(namespace), query=query)
            page = _decode(body, cast("type[_Page[T]]", page_type))
            items += page.items or []
            if not page.metadata.next:
                return Listing(items, page.metadata.resource_version)
            query["continue"] = page.metadata.next

    async def log(self, pod: str, namespace: str, *, container: str, lines: int, most: int) -> str:
        """The last lines of a container's output, and at most so many bytes of them."""
        query: dict[str, str | int] = {"tailLines": lines, "limitBytes": most}
        query |= {"container": container} if container else {}
        said = await self._request("GET", PODS.path(namespace, pod, "log"), query=query)
        return said.decode("utf-8", "replace")

    async def create(self, of: Resource[T], one: T) -> T:
        """Create an object in its namespace."""
        path = of.path(one.metadata.namespace)
        return _decode(await self._request("POST", path, _encode(of, one)), of.type)

    async def bind(self, binding: Binding) -> None:
        """Bind a pod to its node, and add the binding's annotations to it."""
        meta = binding.metadata
        path = BINDINGS.path(meta.namespace, meta.name, "binding")
        await self._request("POST", path, _encode(BINDINGS, binding))

    async def evict(self, eviction: Eviction) -> None:
        """Evict a pod; `evict.evict` distinguishes the errors."""
        meta = eviction.metadata
        path = PODS.path(meta.namespace, meta.name, "eviction")
        await self._request("POST", path, _encode(EVICTIONS, eviction))

    async def replace(self, of: Resource[T], one: T) -> T:
        """Write a whole object; a conflict if it has changed since it was read."""
        path = of.path(one.metadata.namespace, one.metadata.name)
        return _decode(await self._request("PUT", path, _encode(of, one)), of.type)

    async def patch(
        self,
        of: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str = "",
        sub: str = "",
    ) -> T:
        """Merge this into an object (`sub`: into its `status`); None removes a field."""
        body = msgspec.json.encode(patch)
        path = of.path(namespace, name, sub)
        return _decode(await self._request("PATCH", path, body, content=MERGE), of.type)

    async def apply(self, of: Resource[T], one: T, *, manager: str, sub: str = "") -> T:
        """Create an object, or set its fields as in `one`, also other managers'."""
        meta = one.metadata
        query: dict[str, str | int] = {"fieldManager": manager, "force": "true"}
        path = of.path(meta.namespace, meta.name, sub)
        body = await self._request("PATCH", path, _encode(of, one), content=APPLY, query=query)
        return _decode(body, of.type)

    async def delete(
        self,
        of: Resource[T],
        name: str,
        namespace: str = "",
        options: DeleteOptions | None = None,
    ) -> None:
        """Delete an object; no error if it is gone already."""
        body = None if options is None else msgspec.json.encode(options)
        try:
            await self._request("DELETE", of.path(namespace, name), body)
        except ApiError as error:
            if not error.not_found:
                raise

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str | int], silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a response as they come; an error if none comes for `silence` seconds."""
        patience = aiohttp.ClientTimeout(sock_connect=SECONDS, sock_read=silence)
        try:
            async with self._asked("GET", path, query=query, patience=patience) as answer:
                if answer.status >= 400:
                    raise _refused("GET", path, answer.status, await answer.read())
                yield _lines(answer)
        except UNREACHED as error:
            raise _unreached("GET", path, error) from error

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content: str = JSON,
        query: Mapping[str, str | int] | None = None,
    ) -> bytes:
        headers = {"Accept": JSON}
        if body is not None:
            headers["Content-Type"] = content
        try:
            async with self._asked(method, path, body, headers=headers, query=query) as answer:
                said = await answer.read()
        except UNREACHED as error:
            raise _unreached(method, path, error) from error
        if answer.status >= 400:
            raise _refused(method, path, answer.status, said)
        return said

    @asynccontextmanager
    async def _asked(  # noqa: PLR0913 - a request
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
        patience: aiohttp.ClientTimeout = PATIENCE,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The server's response; with new credentials, once, if the server refuses the old ones."""
        if self._session is None:
            trust = self._server.trust or True
            connector = aiohttp.TCPConnector(ssl=trust, limit=CONNECTIONS)
            self._session = aiohttp.ClientSession(connector=connector, proxy=self._server.proxy)
        who = await self._server.credentials.headers()
        for last in (False, True):
            async with self._session.request(
                method,
                self._server.url + path,
                params=query,
                data=body,
                headers={**(headers or {}), **who},
                timeout=patience,
                allow_redirects=False,
            ) as answer:
                if answer.status != UNAUTHORIZED or last:
                    yield answer
                    return
            who = await self._server.credentials.headers(instead_of=who)


def connect(kubeconfig: Path | None = None) -> Client:
    """A client by a kubeconfig file; without one, by KUBECONFIG or the pod's service account."""
    one, server = _configured(kubeconfig, Server.of)
    return Client(server, one.namespace)


def server_without_user(kubeconfig: Path | None = None) -> Server:
    """The server that `connect` finds, for users with tokens of their own."""
    return _configured(kubeconfig, Server.without_user)[1]


def _configured(
    kubeconfig: Path | None, make: Callable[[SingleConfig], Server]
) -> tuple[SingleConfig, Server]:
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        one = found.get()
        assert one is not None  # noqa: S101 - `get` without a default raises
        return one, make(one)
    except ConfigError as error:
        raise AliquotError(f"cannot connect to the API server: {error}", _CONNECT) from error
    except (*_INVALID, msgspec.MsgspecError) as error:
        which, why = kubeconfig or "the configuration", " ".join(str(error).split())
        raise AliquotError(
            f"cannot connect to the API server: {which} is not a valid kubeconfig: {why}", _CONNECT
        ) from error


def _selectors(labels: str, fields: str) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in given.items() if value}


def _encode(of: Resource[T], one: T) -> bytes:
    head = {"apiVersion": of.api_version, "kind": of.kind}
    return msgspec.json.encode({**head, **msgspec.to_builtins(one)})


_Decoded = TypeVar("_Decoded")


def _decode(body: bytes, into: type[_Decoded]) -> _Decoded:
    try:
        return decode_json(body, into)
    except msgspec.DecodeError as error:
        raise ApiError(
            0, "Unreadable", f"the API server's answer cannot be decoded: {error}"
        ) from error


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _refused(method: str, path: str, status: int, body: bytes) -> ApiError:
    try:
        said = decode_json(body, _Status)
    except msgspec.DecodeError:
        said = _Status(message=body[:200].decode(errors="replace"))
    text = said.message or "no reason given"
    return ApiError(
        status,
        said.reason or str(status),
        f"{method} {path}: {status}: {text}",
        causes=said.details.causes if said.details else (),
    )


def _unreached(method: str, path: str, error: Exception) -> ApiError:
    why = str(error) or type(error).__name__
    return ApiError(0, "Unreachable", f"{method} {path}: the API server does not answer: {why}")
