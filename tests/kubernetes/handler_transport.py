"""An HTTP client's way to a handler of requests, without a server in between."""

from __future__ import annotations

import httpx2

from aliquot.kubernetes.api.http_server import Handler, HttpRequest


class HandlerTransport(httpx2.AsyncBaseTransport):
    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        answer = await self._handler(HttpRequest(request.method, request.url.path, body))
        headers = {"content-type": answer.content_type}
        return httpx2.Response(answer.status, headers=headers, content=answer.body)
