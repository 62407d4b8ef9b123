"""Plain calls of the Kubernetes API, for what kubectl is too slow or too clever for."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.registry import ClusterError


class ApiError(ClusterError):
    """The API server said no; `code` is HTTP's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """The API server as one user; several threads may use it, and connections are kept."""

    def __init__(self, address: str, port: int, authority: Path, token: str) -> None:
        self._address, self._port = address, port
        self._context = ssl.create_default_context(cafile=str(authority))
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._idle: list[http.client.HTTPSConnection] = []

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def create(self, path: str, body: object) -> Any:
        return self.call("POST", path, body)

    def patch(self, path: str, body: object) -> Any:
        """Merge `body` into the object."""
        return self.call("PATCH", path, body, content="application/merge-patch+json")

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def watch(self, path: str) -> Iterator[bytes]:
        """The events of a watch as lines, with the objects' metadata alone."""
        form = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
        connection = self._take()
        try:
            connection.request("GET", path, None, {**self._headers, **form})
            yield from connection.getresponse()
        finally:
            connection.close()

    def flow_schema(self, path: str, user: str) -> str | None:
        """The UID of the FlowSchema that a GET of this user matches."""
        connection = self._take()
        try:
            connection.request("GET", path, None, {**self._headers, "Impersonate-User": user})
            return connection.getresponse().getheader("X-Kubernetes-PF-FlowSchema-UID")
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            return self._send("GET", "/readyz", None, {})[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def call(
        self, method: str, path: str, body: object = None, *, content: str = "application/json"
    ) -> Any:
        """The decoded answer; an ApiError for every status but 2xx."""
        data = None if body is None else json.dumps(body).encode()
        code, answer = self._send(method, path, data, {"Content-Type": content})
        if not 200 <= code < 300:
            raise ApiError(code, f"{method} {path}: {code} {answer.decode(errors='replace')}")
        return json.loads(answer)

    def close(self) -> None:
        """Close the connections that are kept."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        try:
            return self._exchange(method, path, data, headers)
        except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):
            self.close()  # the server has closed those that were kept
            return self._exchange(method, path, data, headers)

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = self._take()
        try:
            connection.request(method, path, data, {**self._headers, **headers})
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def _take(self) -> http.client.HTTPSConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return http.client.HTTPSConnection(
                self._address, self._port, context=self._context, timeout=60
            )
