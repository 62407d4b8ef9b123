"""The pool's HTTP API on loopback, with JSON and a bearer token.

    POST /v1/jobs                       submit a job (`encoding.encode_submission`); returns it
    GET  /v1/jobs                       the unfinished jobs; ?all=1 for all jobs
    GET  /v1/jobs/JOB                   one job by name or number, with its history
    POST /v1/jobs/JOB/{suspend,resume,cancel}
    GET  /v1/jobs/JOB/log?rank=0&from=0 a worker's output from that byte on. X-Aliquot-From is the
                                        number of the first byte, larger if some were dropped;
                                        X-Aliquot-Phase is the job's phase

An error is {"error", "hint"}. The status is 400 for an invalid request, 401 without the token,
404 for an unknown job, 409 for a refused request, and 507 if the database cannot be written.
"""

from __future__ import annotations

import hmac
import json
import threading
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import Desired
from aliquot.pool import logs
from aliquot.pool.controller import NoSuchJobError
from aliquot.pool.encoding import decode_submission, encode_state, encode_submission
from aliquot.pool.store import StoreError

if TYPE_CHECKING:
    from aliquot.pool.controller import PoolController
    from aliquot.pool.store import StoredJob

REQUESTS = {"suspend": Desired.SUSPEND, "resume": Desired.RUN, "cancel": Desired.CANCEL}
PHASE_HEADER, FROM_HEADER = "X-Aliquot-Phase", "X-Aliquot-From"

_LARGEST_BODY = 4 << 20
_LOG_BYTES = 1 << 20
_STATUS: list[tuple[type[AliquotError], HTTPStatus]] = [
    (InvalidValueError, HTTPStatus.BAD_REQUEST),
    (NoSuchJobError, HTTPStatus.NOT_FOUND),
    (StoreError, HTTPStatus.INSUFFICIENT_STORAGE),
    (AliquotError, HTTPStatus.CONFLICT),
]


def serve(pool: PoolController, token: str) -> ThreadingHTTPServer:
    """Serve the API on a free port of loopback, in a thread."""

    class Handler(_Handler):
        pass

    Handler.pool, Handler.token = pool, token
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pool-api", daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    pool: PoolController
    token: str
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Answer a POST request."""
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log nothing."""

    def _answer(self, method: str) -> None:
        given = self.headers.get("Authorization", "")
        try:
            body = self._body() if method == "POST" else {}
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                self._send(HTTPStatus.UNAUTHORIZED, {"error": "the token is missing or invalid"})
                return
            self._route(method, body)
        except AliquotError as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            self._send(status, {"error": error.message, "hint": error.hint})

    def _route(self, method: str, body: dict[str, Any]) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        match method, [unquote(part) for part in url.path.strip("/").split("/")]:
            case "POST", ["v1", "jobs"]:
                stored = self.pool.submit(decode_submission(body))
                self._send(HTTPStatus.CREATED, self._job(stored))
            case "GET", ["v1", "jobs"]:
                jobs = self.pool.store.all(unfinished="all" not in query)
                self._send(HTTPStatus.OK, {"jobs": [self._job(stored) for stored in jobs]})
            case "GET", ["v1", "jobs", name]:
                stored = self.pool.find(name)
                events = map(asdict, self.pool.store.events(stored.job.number))
                self._send(HTTPStatus.OK, {**self._job(stored), "events": list(events)})
            case "GET", ["v1", "jobs", name, "log"]:
                self._send_log(self.pool.find(name), query)
            case "POST", ["v1", "jobs", name, request] if request in REQUESTS:
                self._send(HTTPStatus.OK, self._job(self.pool.request(name, REQUESTS[request])))
            case _:
                self._send(HTTPStatus.NOT_FOUND, {"error": f"unknown request: {method} {url.path}"})

    def _job(self, stored: StoredJob) -> dict[str, Any]:
        content = encode_submission(stored.submission)
        del content["environment"]  # it may contain secrets
        return {
            **content,
            "state": encode_state(stored.state),
            "progress": stored.progress,
            "speeds": stored.speeds,
            "waiting": self.pool.why_waiting(stored),
        }

    def _send_log(self, stored: StoredJob, query: dict[str, str]) -> None:
        try:
            rank, start = int(query.get("rank", "0")), int(query.get("from", "0"))
        except ValueError as error:
            raise InvalidValueError(f"rank and from must be numbers: {error}") from error
        phase = self.pool.find(str(stored.job.number)).state.phase  # before the last bytes are read
        found = logs.read(self.pool.directory.log(stored.job.number, rank), start, _LOG_BYTES)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(found.content)))
        self.send_header(PHASE_HEADER, phase)
        self.send_header(FROM_HEADER, str(found.start))
        self.end_headers()
        self.wfile.write(found.content)

    def _body(self) -> dict[str, Any]:
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= _LARGEST_BODY:
            self.close_connection = True
            raise InvalidValueError("the body is too long or its length is invalid")
        if not (content := self.rfile.read(length)):
            return {}
        try:
            body = json.loads(content)
        except ValueError as error:
            raise InvalidValueError(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise InvalidValueError("the body is not a JSON object")
        return body

    def _send(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
