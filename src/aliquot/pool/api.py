"""The pool's HTTP API on a Unix socket, with JSON. The kernel says which user asks (`peers`).

    POST /v1/jobs                       submit a job (`encoding.encode_submission`); returns it.
                                        With "indices" and "at_once" an array: {"jobs"}; with
                                        "joins" they join an array of that name that is not finished
    GET  /v1/jobs                       the unfinished jobs; ?all=1 for finished ones too, which
                                        only their users and admins see, or ?recent=SECONDS for
                                        those that finished in that time. "runs" are the commands
                                        of `aliquot run --wait` that wait. Fields that the caller
                                        may not see (`access`) are null
    POST /v1/what-if                    what the pool would decide if something were different
    GET  /v1/jobs/JOB                   one job with its history, workers and logs: train, 12 or
                                        alice:train
    GET  /v1/jobs/JOB/members           {"jobs"}: the job, or the jobs of the array JOB; with
                                        ?runs=1 {"jobs", "runs"}: also the waiting commands JOB
    POST /v1/jobs/JOB/{suspend,resume,cancel}   returns the job, and what that does in "message"
    POST /v1/jobs/JOB/update            change it (`encoding.encode_change`)
    GET  /v1/jobs/JOB/log?rank=0&from=0 a worker's output from that byte on, or the last `tail`
                                        lines, or those since the time `since`. X-Aliquot-From is
                                        the number of the first byte, larger if some were dropped;
                                        X-Aliquot-Phase is the job's phase
    GET  /v1/jobs/JOB/times?rank=0      when the bytes of that output were written (`logs`)
    GET  /v1/jobs/JOB/ranks             {"ranks"}: the ranks that have a log
    POST /v1/runs/NAME/cancel           end the wait of commands; returns them: {"runs"}
    POST /v1/prune                      forget jobs that finished "seconds" ago: {"forgotten"}

An error is {"error", "hint"}. The status is 400 for an invalid request, 403 for a caller that may
not ask, 404 for an unknown job, 409 for a refused request, and 507 if the database cannot be
written.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from aliquot.model.errors import AliquotError, InvalidValueError, NoSuchGpuError, NoSuchJobError
from aliquot.model.job import Desired, JobPhase
from aliquot.pool import logs
from aliquot.pool.access import RefusedError, shown
from aliquot.pool.details import log_details, worker_details
from aliquot.pool.encoding import (
    FROM_HEADER,
    PHASE_HEADER,
    decode_change,
    decode_indices,
    decode_submission,
    encode_request,
    encode_state,
    encode_submission,
)
from aliquot.pool.server import HttpAnswer, SocketServer
from aliquot.pool.store import StoreError
from aliquot.pool.what_if import decode_question

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aliquot.pool.access import Caller
    from aliquot.pool.controller import PoolController
    from aliquot.pool.peers import Peer
    from aliquot.pool.runs import RunRequest, Waiting
    from aliquot.pool.store import StoredJob

REQUESTS = {"suspend": Desired.SUSPEND, "resume": Desired.RUN, "cancel": Desired.CANCEL}

_LOG_BYTES = 1 << 20
_LARGEST_NUMBER = 1e15
_STATUS: list[tuple[type[AliquotError], HTTPStatus]] = [
    (InvalidValueError, HTTPStatus.BAD_REQUEST),
    (NoSuchJobError, HTTPStatus.NOT_FOUND),
    (NoSuchGpuError, HTTPStatus.NOT_FOUND),
    (RefusedError, HTTPStatus.FORBIDDEN),
    (StoreError, HTTPStatus.INSUFFICIENT_STORAGE),
    (AliquotError, HTTPStatus.CONFLICT),
]


def serve(pool: PoolController) -> SocketServer:
    """Serve the API on the pool's socket, in a thread."""

    def answer_peer(peer: Peer, method: str, target: str, body: bytes) -> HttpAnswer:
        try:
            caller = pool.admit(peer)
        except AliquotError as error:
            return _refusal(error)
        return answer(pool, caller, method, target, body)

    mode = 0o666 if pool.directory.shared else 0o600
    server = SocketServer(pool.directory.socket, mode, answer_peer)
    server.serve()
    return server


def answer(
    pool: PoolController, caller: Caller, method: str, target: str, body: bytes
) -> HttpAnswer:
    """The answer to one request of a caller."""
    try:
        return _Request(pool, caller).answer(method, target, _read_body(body))
    except AliquotError as error:
        return _refusal(error)
    except OSError as error:  # a file of the user's own, which is not what it should be
        return _refusal(AliquotError(f"a file of the job cannot be read: {error}"))


@dataclass(frozen=True, slots=True)
class _Request:
    pool: PoolController
    caller: Caller

    def answer(self, method: str, target: str, body: dict[str, Any]) -> HttpAnswer:
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        path = [unquote(part) for part in url.path.strip("/").split("/")]
        found = self._get(path, query) if method == "GET" else self._post(path, body)
        if found is not None:
            return found
        error = f"unknown request: {method} {url.path}"
        return HttpAnswer.of(HTTPStatus.NOT_FOUND, {"error": error})

    def _get(  # noqa: PLR0911 - one for each request
        self, path: list[str], query: dict[str, str]
    ) -> HttpAnswer | None:
        """The answer to a GET request; None if it is unknown."""
        match path:
            case ["v1", "jobs"]:
                return self._list(query)
            case ["v1", "jobs", name, "members"]:
                return self._members(name, with_runs="runs" in query)
            case ["v1", "jobs", name]:
                return _ok(self._details(self.pool.find(self.caller, name)))
            case ["v1", "jobs", name, "log"]:
                return self._log(self.pool.find(self.caller, name), query)
            case ["v1", "jobs", name, "times"]:
                file = self._log_file(self.pool.find(self.caller, name), query)
                return _text(str(logs.LogTimes.read(file)).encode(), {})
            case ["v1", "jobs", name, "ranks"]:
                number = self.pool.find(self.caller, name).job.number
                return _ok({"ranks": logs.ranks_of(self.pool.directory.job(number))})
        return None

    def _post(  # noqa: PLR0911 - one for each request
        self, path: list[str], body: dict[str, Any]
    ) -> HttpAnswer | None:
        """The answer to a POST request; None if it is unknown."""
        match path:
            case ["v1", "jobs"]:
                return self._submit(body)
            case ["v1", "jobs", name, "update"]:
                return _ok(self._job(self.pool.update(self.caller, name, decode_change(body))))
            case ["v1", "jobs", name, request] if request in REQUESTS:
                stored, message = self.pool.request(self.caller, name, REQUESTS[request])
                return _ok({**self._job(stored), "message": message})
            case ["v1", "runs", name, "cancel"]:
                ended = self.pool.cancel_runs(self.caller, name)
                return _ok({"runs": list(map(self._run, ended))})
            case ["v1", "what-if"]:
                return _ok(self.pool.what_if(self.caller, decode_question(body)))
            case ["v1", "prune"]:
                return _ok({"forgotten": self.pool.prune(self.caller, _number(body, "seconds"))})
        return None

    def _submit(self, body: dict[str, Any]) -> HttpAnswer:
        indices, at_once = body.pop("indices", None), body.pop("at_once", None)
        joins = bool(body.pop("joins", False))
        submission = decode_submission(body, self.caller.owner)
        if indices is None:
            (added,) = self.pool.submit(self.caller, submission)
            return HttpAnswer.of(HTTPStatus.CREATED, self._job(added))
        found, most = decode_indices(indices, at_once)
        array = self.pool.submit(self.caller, submission, found, most, joins=joins)
        return HttpAnswer.of(HTTPStatus.CREATED, {"jobs": [self._job(one) for one in array]})

    def _list(self, query: dict[str, str]) -> HttpAnswer:
        if "recent" in query:
            since = time.time() - _number(query, "recent")
            jobs = self.pool.jobs(self.caller, finished_since=since)
        else:
            jobs = self.pool.jobs(self.caller, unfinished="all" not in query)
        own = "all" in query and "recent" not in query
        runs = self.pool.waiting_runs(self.caller, own=own)
        return _ok({"jobs": list(map(self._job, jobs)), "runs": list(map(self._run, runs))})

    def _members(self, name: str, *, with_runs: bool) -> HttpAnswer:
        """All of that name; an earlier client does not expect commands without jobs."""
        runs = self.pool.runs_named(self.caller, name) if with_runs else []
        try:
            jobs = self.pool.members(self.caller, name)
        except NoSuchJobError:
            if not runs:
                raise
            jobs = []
        found: dict[str, Any] = {"jobs": list(map(self._job, jobs))}
        return _ok({**found, "runs": list(map(self._run, runs))} if with_runs else found)

    def _run(self, run: RunRequest) -> dict[str, Any]:
        place = self.pool.place_of(run)
        row = {
            "user": run.owner.name,
            "uid": run.owner.uid,
            "pid": run.pid,
            "name": run.shown_name,
            "program": run.command,
            "queue": run.queue,
            "request": encode_request(run.request),
            "submitted": run.submitted,
            "state": {"phase": JobPhase.PENDING, "since": run.submitted},
            "waiting": None if place is None else place.why,
            "turn": _turn(place),
        }
        return shown(self.caller, run.owner, row)

    def _job(self, stored: StoredJob) -> dict[str, Any]:
        content = encode_submission(stored.submission)
        del content["environment"]  # it may contain secrets
        row = {
            **content,
            "user": stored.owner.name,
            "uid": stored.owner.uid,
            "state": encode_state(stored.state),
            "progress": stored.progress,
            "speeds": stored.speeds,
            "waiting": self.pool.why_waiting(stored),
            "turn": _turn(self.pool.place_of(stored)),
            "exit_code": stored.state.result,
        }
        return shown(self.caller, stored.owner, row)

    def _details(self, stored: StoredJob) -> dict[str, Any]:
        number, directory = stored.job.number, self.pool.directory
        return {
            **self._job(stored),
            "events": [asdict(event) for event in self.pool.store.events(number)],
            "workers": worker_details(directory, stored, self.pool.status),
            "logs": log_details(directory, number),
        }

    def _log_file(self, stored: StoredJob, query: dict[str, str]) -> Path:
        return self.pool.directory.log(stored.job.number, int(_number(query, "rank", 0)))

    def _log(self, stored: StoredJob, query: dict[str, str]) -> HttpAnswer:
        file, start = self._log_file(stored, query), int(_number(query, "from", 0))
        if "tail" in query or "since" in query:
            tail = int(_number(query, "tail")) if "tail" in query else None
            since = _number(query, "since") if "since" in query else None
            start = max(start, logs.start_of(file, tail, since))
        # The phase is read before the last bytes are.
        phase = self.pool.find(self.caller, str(stored.job.number)).state.phase
        found = logs.read(file, start, _LOG_BYTES)
        return _text(found.content, {PHASE_HEADER: str(phase), FROM_HEADER: str(found.start)})


def _turn(place: Waiting | None) -> dict[str, Any] | None:
    """A place among all that wait, and when it starts at the latest."""
    if place is None:
        return None
    return {"place": place.place, "of": place.of, "expected_start": place.expected}


def _ok(content: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer.of(HTTPStatus.OK, content)


def _text(content: bytes, headers: dict[str, str]) -> HttpAnswer:
    return HttpAnswer(HTTPStatus.OK, content, headers, "text/plain; charset=utf-8")


def _number(fields: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A number that is not negative; InvalidValueError if there is none."""
    try:
        value = float(fields.get(key, default))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidValueError(f"{key} must be a number") from error
    if not 0 <= value <= _LARGEST_NUMBER:
        raise InvalidValueError(f"{key} must be a number from 0 on")
    return value


def _read_body(content: bytes) -> dict[str, Any]:
    if not content:
        return {}
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidValueError("the body is not a JSON object")
    return body


def _refusal(error: AliquotError) -> HttpAnswer:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return HttpAnswer.of(status, {"error": error.message, "hint": error.hint})
