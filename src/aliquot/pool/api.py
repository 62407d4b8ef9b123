"""The pool's door: HTTP on loopback, JSON in and out, for whoever has the token.

    POST /v1/jobs                       a job (`forms.submission_words`); answers with it
    GET  /v1/jobs                       all jobs; ?all=1 with those that are over
    GET  /v1/jobs/JOB                   one, by name or number, with its history
    POST /v1/jobs/JOB/{suspend,resume,cancel}
    GET  /v1/jobs/JOB/log?rank=0&from=0 what the worker wrote, from that byte on; X-Aliquot-From
                                        is the first byte's number, larger where some were cut;
                                        X-Aliquot-State says where the job stands

An error is {"error", "hint"}, with 400 for what is wrong in itself, 401 without the token, 404,
409 for what is refused, 507 where nothing can be written.
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
from aliquot.model.job import Wish
from aliquot.pool import logs
from aliquot.pool.forms import read_submission, record_words, submission_words
from aliquot.pool.service import NoSuchJobError
from aliquot.pool.store import StoreError

if TYPE_CHECKING:
    from aliquot.pool.service import Pool
    from aliquot.pool.store import Stored

WISHES = {"suspend": Wish.SUSPEND, "resume": Wish.RUN, "cancel": Wish.CANCEL}
STATE_HEADER, FROM_HEADER = "X-Aliquot-State", "X-Aliquot-From"

_LARGEST_BODY = 4 << 20
_LOG_BYTES = 1 << 20
_STATUS: list[tuple[type[AliquotError], HTTPStatus]] = [
    (InvalidValueError, HTTPStatus.BAD_REQUEST),
    (NoSuchJobError, HTTPStatus.NOT_FOUND),
    (StoreError, HTTPStatus.INSUFFICIENT_STORAGE),
    (AliquotError, HTTPStatus.CONFLICT),
]


def serve(pool: Pool, token: str) -> ThreadingHTTPServer:
    """Open the door on a free port of loopback."""

    class Door(_Door):
        pass

    Door.pool, Door.token = pool, token
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="door", daemon=True).start()
    return server


class _Door(BaseHTTPRequestHandler):
    pool: Pool
    token: str
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answer a question."""
        self._answer("GET")

    def do_POST(self) -> None:
        """Do something."""
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say nothing."""

    def _answer(self, method: str) -> None:
        given = self.headers.get("Authorization", "")
        try:
            body = self._body() if method == "POST" else {}
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                self._send(HTTPStatus.UNAUTHORIZED, {"error": "the token is missing or wrong"})
                return
            self._route(method, body)
        except AliquotError as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            self._send(status, {"error": error.message, "hint": error.hint})

    def _route(self, method: str, body: dict[str, Any]) -> None:
        url = urlsplit(self.path)
        asked = {key: values[-1] for key, values in parse_qs(url.query).items()}
        match method, [unquote(part) for part in url.path.strip("/").split("/")]:
            case "POST", ["v1", "jobs"]:
                stored = self.pool.submit(read_submission(body))
                self._send(HTTPStatus.CREATED, self._job(stored))
            case "GET", ["v1", "jobs"]:
                jobs = self.pool.store.all(unfinished="all" not in asked)
                self._send(HTTPStatus.OK, {"jobs": [self._job(stored) for stored in jobs]})
            case "GET", ["v1", "jobs", name]:
                stored = self.pool.find(name)
                events = map(asdict, self.pool.store.events(stored.job.number))
                self._send(HTTPStatus.OK, {**self._job(stored), "events": list(events)})
            case "GET", ["v1", "jobs", name, "log"]:
                self._send_log(self.pool.find(name), asked)
            case "POST", ["v1", "jobs", name, wish] if wish in WISHES:
                self._send(HTTPStatus.OK, self._job(self.pool.want(name, WISHES[wish])))
            case _:
                self._send(HTTPStatus.NOT_FOUND, {"error": f"there is no {method} {url.path}"})

    def _job(self, stored: Stored) -> dict[str, Any]:
        words = submission_words(stored.submission)
        del words["environment"]  # there may be secrets in it
        return {
            **words,
            "record": record_words(stored.record),
            "progress": stored.progress,
            "speeds": stored.speeds,
            "waits": self.pool.why_waiting(stored),
        }

    def _send_log(self, stored: Stored, asked: dict[str, str]) -> None:
        try:
            rank, start = int(asked.get("rank", "0")), int(asked.get("from", "0"))
        except ValueError as error:
            raise InvalidValueError(f"rank and from are numbers: {error}") from error
        state = self.pool.find(
            str(stored.job.number)
        ).record.state  # before the last bytes are read
        found = logs.read(self.pool.place.log(stored.job.number, rank), start, _LOG_BYTES)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(found.words)))
        self.send_header(STATE_HEADER, state)
        self.send_header(FROM_HEADER, str(found.start))
        self.end_headers()
        self.wfile.write(found.words)

    def _body(self) -> dict[str, Any]:
        try:
            length = int(self.headers.get("Content-Length", "0"))
        except ValueError:
            length = -1
        if not 0 <= length <= _LARGEST_BODY:
            self.close_connection = True
            raise InvalidValueError("the body is too long, or of no length")
        if not (words := self.rfile.read(length)):
            return {}
        try:
            body = json.loads(words)
        except ValueError as error:
            raise InvalidValueError(f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise InvalidValueError("the body is no JSON object")
        return body

    def _send(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        words = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)
