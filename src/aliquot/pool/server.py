"""A server of HTTP requests on a Unix socket, which no user can flood.

Each connection has one request and one thread. The kernel says whose it is, before a byte is read.
Of each user but root, and of all programs in other namespaces together:

- at most `CONNECTIONS` are open at a time, and at most `ALL_CONNECTIONS` of all users together;
- requests, and the time that their answers take, are bounded (`user_load`);
- a body has at most `LARGEST_BODY` bytes.

Beyond that the answer is 429, and Aliquot's commands ask again. A connection whose request does not
come, or whose answer is not read, within `SECONDS` is closed.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseRequestHandler, BaseServer, ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING, Any

from aliquot.pool.directory import bind_socket
from aliquot.pool.peers import peer_of
from aliquot.pool.user_load import PAUSE_SECONDS, UserLoad

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.pool.peers import Peer

CONNECTIONS = 16
ALL_CONNECTIONS = 512
LARGEST_BODY = 1 << 20
SECONDS = 10.0
ANSWER_SECONDS = 120.0  # an arbiter may have to start first

_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request."""

    status: HTTPStatus
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"

    @classmethod
    def of(cls, status: HTTPStatus, content: dict[str, Any]) -> HttpAnswer:
        """An answer in JSON."""
        return cls(status, json.dumps(content).encode())


class _Connections:
    """The open connections, whose they are, and what each user has used. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[int, float]] = {}
        self._loads: dict[int, UserLoad] = {}

    def admit(self, connection: socket.socket, uid: int) -> bool:
        """Count a new connection, unless its user has too many already."""
        now = time.monotonic()
        with self._lock:
            load = self._loads.get(uid, UserLoad(now)).after(now).plus(requests=1)
            mine = sum(1 for one, _ in self._open.values() if one == uid)
            full = mine >= CONNECTIONS or len(self._open) >= ALL_CONNECTIONS
            if uid != 0 and (full or load.too_much):
                return False
            self._loads[uid] = load
            self._open[connection] = uid, now + SECONDS
            if len(self._loads) > ALL_CONNECTIONS:
                self._loads = {
                    key: one for key, one in self._loads.items() if one.after(now).requests
                }
        return True

    def extend(self, connection: socket.socket, seconds: float) -> None:
        """Let a connection be open for so long from now."""
        with self._lock:
            if (known := self._open.get(connection)) is not None:
                self._open[connection] = known[0], time.monotonic() + seconds

    def end(self, connection: socket.socket, cpu_seconds: float) -> None:
        now = time.monotonic()
        with self._lock:
            uid, _ = self._open.pop(connection)
            self._loads[uid] = self._loads.get(uid, UserLoad(now)).plus(cpu_seconds=cpu_seconds)

    def cut_off_slow(self) -> None:
        """Close the connections that are late; the threads that wait for them end."""
        now = time.monotonic()
        with self._lock:
            late = [one for one, (_, deadline) in self._open.items() if now > deadline]
            for connection in late:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class SocketServer(ThreadingMixIn, UnixStreamServer):
    """Serves requests on a socket; `answer` gets the peer, the method, the target and the body."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, path: Path, mode: int, answer: Callable[[Peer, str, str, bytes], HttpAnswer]
    ) -> None:
        self._path, self._mode = path, mode
        self._connections = _Connections()
        self._peers: dict[socket.socket, Peer] = {}
        self.answer = answer
        super().__init__(str(path), BaseRequestHandler)

    def serve(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, name="pool-api", daemon=True).start()

    def server_bind(self) -> None:
        """Bind to a name of this process, and rename it when its mode is right."""
        bind_socket(self.socket, self._path, self._mode)

    def service_actions(self) -> None:
        """Called between connections, and twice a second."""
        self._connections.cut_off_slow()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. Without descriptors for it, it stays in the queue a moment."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(PAUSE_SECONDS)  # or the loop would ask again at once, for ever
            raise

    def verify_request(self, request: Any, client_address: object) -> bool:  # noqa: ARG002
        """Whether to serve this connection."""
        try:
            request.settimeout(SECONDS)
            self._peers[request] = peer = peer_of(request)
        except OSError:
            return False
        if self._connections.admit(request, peer.counted_uid):
            return True
        del self._peers[request]
        with suppress(OSError):
            request.send(_BUSY, socket.MSG_DONTWAIT)
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; one that cannot start does not count as open."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._peers.pop(request, None)
            self._connections.end(request, 0.0)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, in its own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.end(request, time.thread_time())

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve the request of a connection."""
        peer = self._peers.pop(request)

        def answer(*asked: Any) -> HttpAnswer:
            self._connections.extend(request, ANSWER_SECONDS)  # the peer is not late while it waits
            try:
                return self.answer(*asked)
            finally:
                self._connections.extend(request, SECONDS)

        _Handler(request, client_address, self, peer, answer)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a peer that has gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(
        self,
        request: socket.socket,
        client_address: Any,
        server: BaseServer,
        peer: Peer,
        answer: Callable[[Peer, str, str, bytes], HttpAnswer],
    ) -> None:
        self._peer, self._answer = peer, answer
        super().__init__(request, client_address, server)

    def do_GET(self) -> None:
        """HttpAnswer a GET request."""
        self._send(self._answer(self._peer, "GET", self.path, b""))

    def do_POST(self) -> None:
        """HttpAnswer a POST request."""
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= LARGEST_BODY:
            sentence = f"the body is longer than {LARGEST_BODY} bytes or its length is invalid"
            self._send(HttpAnswer.of(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": sentence}))
            return
        body = self.rfile.read(length)
        if len(body) == length:
            self._send(self._answer(self._peer, "POST", self.path, body))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log nothing."""

    def _send(self, answer: HttpAnswer) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("Connection", "close")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)
