"""The REST API of a cluster: one function for each operation of `openapi`."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, StreamingResponse

from aliquot.console.cluster import changes, openapi
from aliquot.console.cluster.details import LOG_BYTES, details
from aliquot.console.cluster.entrance import TokenHolder
from aliquot.console.cluster.gpu_view import cluster_view
from aliquot.console.cluster.job_view import job_rows, queue_rows
from aliquot.console.guard import CREDENTIAL
from aliquot.console.problems import ProblemError
from aliquot.console.request_reading import page, path_part, read_body, read_query
from aliquot.kubernetes.api.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from aliquot.console.cluster.rights import AccessReviews, Sees
    from aliquot.console.cluster.stream import LiveStreams
    from aliquot.console.cluster.watched import Watched
    from aliquot.console.guard import Site
    from aliquot.kubernetes.api.server import Server

_OPERATIONS = openapi.OPERATIONS


class ClusterApi:
    """The operations on a cluster. `server` is the API server, for users with their own tokens."""

    def __init__(
        self,
        watched: Watched,
        rights: AccessReviews,
        streams: LiveStreams,
        server: Server,
        site: Site,
    ) -> None:
        self._watched, self._rights, self._streams = watched, rights, streams
        self._server, self._site = server, site

    async def openapi(self, request: Request) -> Response:  # noqa: ARG002 - a handler
        """The document."""
        return JSONResponse(openapi.document(self._site.base_path))

    async def session(self, request: Request) -> Response:
        """The user."""
        user = _caller(request).user
        return JSONResponse({"user": user.username, "groups": list(user.groups)})

    async def cluster(self, request: Request) -> Response:
        """What needs attention."""
        view = await self._view(request)
        found = {**view, "user": _caller(request).user.username}
        return JSONResponse({key: found[key] for key in openapi.CLUSTER["properties"]})

    async def nodes(self, request: Request) -> Response:
        """The nodes."""
        query = read_query(request, _OPERATIONS["nodes"])
        found = (await self._view(request))["nodes"]
        return page(found, [one["name"] for one in found], query)

    async def gpus(self, request: Request) -> Response:
        """The GPUs."""
        query = read_query(request, _OPERATIONS["gpus"])
        found = (await self._view(request))["gpus"]
        return page(found, [one["uuid"] for one in found], query)

    async def grants(self, request: Request) -> Response:
        """The grants."""
        query = read_query(request, _OPERATIONS["grants"])
        found = (await self._view(request))["grants"]
        return page(found, [one["id"] for one in found], query)

    async def queues(self, request: Request) -> Response:
        """The queues."""
        query = read_query(request, _OPERATIONS["queues"])
        found = queue_rows(self._watched, await self._sees(request))
        return page(found, [one["name"] for one in found], query)

    async def jobs(self, request: Request) -> Response:
        """The jobs."""
        query = read_query(request, _OPERATIONS["jobs"])
        found = job_rows(self._watched, await self._sees(request))
        return page(found, [one["id"] for one in found], query)

    async def job(self, request: Request) -> Response:
        """One job."""
        kind = path_part(request, "kind", openapi.KIND)
        queue_of = self._watched.view.queues.queue_of
        async with self._client(request) as client:
            return JSONResponse(
                await details(client, queue_of, kind, _name(request, "namespace"), _name(request))
            )

    async def log(self, request: Request) -> Response:
        """The last lines of a container."""
        operation = _OPERATIONS["log"]
        query = read_query(request, operation)
        async with self._client(request) as client:
            found = await client.log(
                _name(request, "pod"),
                _name(request, "namespace"),
                container=query.get("container", ""),
                lines=query.get("lines", operation["query"]["lines"]["default"]),
                most=LOG_BYTES,
            )
        return JSONResponse({"text": found})

    async def request(self, request: Request) -> Response:
        """Suspend, resume or cancel."""
        kind = path_part(request, "kind", openapi.KIND)
        verb = path_part(request, "verb", openapi.VERB)
        namespace, name = _name(request, "namespace"), _name(request)
        async with self._client(request) as client:
            message = await changes.request(client, kind, namespace, name, verb)
        return JSONResponse({"message": message})

    async def scale(self, request: Request) -> Response:
        """Scale an elastic job."""
        body = await read_body(request, _OPERATIONS["scale"])
        namespace, name = _name(request, "namespace"), _name(request)
        async with self._client(request) as client:
            message = await changes.scale(client, namespace, name, body["workers"])
        return JSONResponse({"message": message})

    async def resize(self, request: Request) -> Response:
        """Resize the slices of a pod."""
        body = await read_body(request, _OPERATIONS["resize"])
        namespace, pod = _name(request, "namespace"), _name(request, "pod")
        async with self._client(request) as client:
            message = await changes.resize(client, namespace, pod, body)
        return JSONResponse({"message": message})

    async def events(self, request: Request) -> Response:
        """Live updates until the page goes, or the console ends."""
        read_query(request, _OPERATIONS["events"])
        await self._sees(request)  # so that a page hears why there are none
        events = self._streams.follow(_caller(request).token)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _sees(self, request: Request) -> Sees:
        if not self._watched.synced:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the console has not read the cluster yet",
                "Try again. If this lasts, the console's log says what it cannot list.",
            )
        return await self._rights.sees(_caller(request).user, self._watched)

    async def _view(self, request: Request) -> dict[str, Any]:
        sees = await self._sees(request)
        return cluster_view(self._watched, sees, time.time())

    @asynccontextmanager
    async def _client(self, request: Request) -> AsyncIterator[Client]:
        """A client with the token of the user who asks."""
        async with Client(self._server.with_token(_caller(request).token)) as client:
            yield client


def _caller(request: Request) -> TokenHolder:
    caller = request.scope[CREDENTIAL]
    assert isinstance(caller, TokenHolder)  # noqa: S101 - the guard lets nobody else in
    return caller


def _name(request: Request, part: str = "name") -> str:
    """A name in a path: it becomes part of an address of the API server."""
    return path_part(request, part, openapi.OBJECT_NAME)
