"""The client of the pool's API, for the commands.

A command talks only to a pool of root's or of its own user: the kernel says whose it is.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aliquot.model.errors import AliquotError, InvalidValueError, NoSuchJobError
from aliquot.model.job import JobPhase
from aliquot.pool.access import RefusedError
from aliquot.pool.directory import PoolDirectory, folder_of, with_socket
from aliquot.pool.encoding import FROM_HEADER, PHASE_HEADER, encode_change, encode_submission
from aliquot.pool.logs import LogTimes
from aliquot.pool.peers import peer_of
from aliquot.slices import silence

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.message import Message

    from aliquot.devices import Shape
    from aliquot.model.job import JobChange
    from aliquot.pool.encoding import Submission

START_ONE = "Start one with: aliquot up"

_ERRORS: dict[int, type[AliquotError]] = {
    400: InvalidValueError,
    403: RefusedError,
    404: NoSuchJobError,
}
_TIMEOUT = 60.0
_BUSY_SECONDS = 20.0  # how long to ask again a pool that answers that this user asks too much
_RETRY_SECONDS = 0.2


class NoPoolError(AliquotError):
    """No pool is up, or the pool does not answer."""


class SeveralPoolsError(NoPoolError):
    """Several pools are up, and none was chosen."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A part of a log from the byte `start` on; `phase` is the job's before that was read.

    `phase` is None if the pool is down.
    """

    start: int
    content: bytes
    phase: JobPhase | None


@dataclass(frozen=True, slots=True)
class JobListing:
    """Jobs, in the order they were submitted, and commands that wait, in the order they came."""

    jobs: list[dict[str, Any]]
    runs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PoolClient:
    """A pool that is up, and how many seconds it has to answer."""

    directory: PoolDirectory
    timeout: float = _TIMEOUT

    def pid(self) -> int | None:
        """The process that serves it; None: nobody does."""
        connection = _Connection(self.directory, self.timeout)
        try:
            connection.connect()
            return peer_of(connection.sock).pid
        except OSError:
            return None
        finally:
            connection.close()

    def submit(self, submission: Submission) -> dict[str, Any]:
        """Submit a job."""
        return self._json("POST", "/v1/jobs", encode_submission(submission))

    def submit_array(
        self,
        submission: Submission,
        indices: Sequence[int],
        at_once: int | None,
        *,
        joins: bool = False,
    ) -> list[dict[str, Any]]:
        """Submit the jobs of an array; `joins`: of that array again, if it is not finished."""
        body = {**encode_submission(submission), "indices": list(indices), "at_once": at_once}
        body |= {"joins": True} if joins else {}  # which earlier pools do not know
        return list(self._json("POST", "/v1/jobs", body)["jobs"])

    def jobs(self, *, with_finished: bool = False) -> list[dict[str, Any]]:
        """The unfinished jobs or all jobs, in the order they were submitted."""
        return self.listing(with_finished=with_finished).jobs

    def listing(self, *, with_finished: bool = False, recent: float | None = None) -> JobListing:
        """The unfinished jobs or all jobs, and the commands that wait.

        `recent`: the unfinished ones, and those that finished in the last so many seconds.
        """
        query = "?all=1" if with_finished else "" if recent is None else f"?recent={recent}"
        found = self._json("GET", f"/v1/jobs{query}")
        return JobListing(found["jobs"], found.get("runs", []))  # an earlier pool has no `runs`

    def job(self, name: str) -> dict[str, Any]:
        """One job with its history, workers and logs."""
        return self._json("GET", f"/v1/jobs/{quote(name, safe='')}")

    def members(self, name: str) -> list[dict[str, Any]]:
        """The job of that name or number, or the jobs of that array."""
        return list(self._json("GET", f"/v1/jobs/{quote(name, safe='')}/members")["jobs"])

    def all_named(self, name: str) -> JobListing:
        """The job or the jobs of that array, and the waiting commands of that name."""
        found = self._json("GET", f"/v1/jobs/{quote(name, safe='')}/members?runs=1")
        return JobListing(found["jobs"], found.get("runs", []))  # an earlier pool finds only jobs

    def cancel_runs(self, name: str) -> list[dict[str, Any]]:
        """End the wait of the commands of that name; those that were ended."""
        return list(self._json("POST", f"/v1/runs/{quote(name, safe='')}/cancel")["runs"])

    def request(self, name: str, verb: str) -> dict[str, Any]:
        """Suspend, resume or cancel a job; `message` says what that does."""
        return self._json("POST", f"/v1/jobs/{quote(name, safe='')}/{verb}")

    def update(self, name: str, change: JobChange) -> dict[str, Any]:
        """Change a job."""
        return self._json("POST", f"/v1/jobs/{quote(name, safe='')}/update", encode_change(change))

    def what_if(self, question: dict[str, Any]) -> dict[str, Any]:
        """What the pool would decide; `what_if.Question` has the fields."""
        return self._json("POST", "/v1/what-if", question)

    def prune(self, seconds: float) -> list[int]:
        """Forget this user's jobs that finished longer ago than that; their numbers."""
        return list(self._json("POST", "/v1/prune", {"seconds": seconds})["forgotten"])

    def log(
        self,
        name: str,
        rank: int,
        start: int,
        tail: int | None = None,
        since: float | None = None,
    ) -> LogChunk:
        """A worker's output from that byte on, or from the first that is kept.

        `tail`: the last so many lines of it; `since`: what was written after that time.
        """
        asked = {"rank": rank, "from": start, "tail": tail, "since": since}
        query = urlencode({key: value for key, value in asked.items() if value is not None})
        content, headers = self._ask("GET", f"/v1/jobs/{quote(name, safe='')}/log?{query}", b"")
        return LogChunk(int(headers[FROM_HEADER]), content, JobPhase(headers[PHASE_HEADER]))

    def log_times(self, name: str, rank: int) -> LogTimes:
        """When the bytes of a worker's output were written."""
        path = f"/v1/jobs/{quote(name, safe='')}/times?rank={rank}"
        return LogTimes.parse(self._ask("GET", path, b"")[0].decode("ascii", "replace"))

    def ranks(self, name: str) -> list[int]:
        """The ranks of a job that have a log."""
        return list(self._json("GET", f"/v1/jobs/{quote(name, safe='')}/ranks")["ranks"])

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        answer = json.loads(self._ask(method, path, content)[0])
        assert isinstance(answer, dict)  # noqa: S101 - our own API returns objects
        return answer

    def _ask(self, method: str, path: str, body: bytes) -> tuple[bytes, Message]:
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            connection = _Connection(self.directory, self.timeout)
            try:
                answer, content = connection.ask(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                message = f"the pool of {self.directory} does not answer: {error}"
                raise NoPoolError(message, f"If it is down: {START_ONE}") from error
            finally:
                connection.close()
            if answer.status != HTTPStatus.TOO_MANY_REQUESTS or time.monotonic() > deadline:
                break
            time.sleep(_RETRY_SECONDS)
        if answer.status >= 400:
            raise _error(answer.status, content)
        return content, answer.headers


class _Connection(http.client.HTTPConnection):
    """A connection to a pool's socket."""

    def __init__(self, directory: PoolDirectory, timeout: float = _TIMEOUT) -> None:
        super().__init__("localhost", timeout=timeout)
        self._directory, self._path = directory, directory.socket

    def connect(self) -> None:
        """Connect, and check whose pool it is."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # connect() waits so long if many others connect; after settimeout() it would fail.
        patience = struct.pack("ll", max(1, int(self.timeout or 0)), 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        with folder_of(self._path) as folder:
            self.sock.connect(f"{folder}/{self._path.name}")
        self.sock.settimeout(self.timeout)
        if (uid := peer_of(self.sock).owner.uid) not in {0, os.geteuid()}:
            raise PermissionError(f"it belongs to user {uid}")

    def ask(self, method: str, path: str, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer to a request. A pool that is busy answers before it has read the request."""
        with suppress(BrokenPipeError):
            self.request(method, path, body)
        left = silence.await_reply(self.sock, f"the pool of {self._directory}", self.timeout)
        self.sock.settimeout(left)
        answer = self.getresponse()
        return answer, answer.read()


def connect(shape: Shape | None) -> PoolClient:
    """The pool of that simulated machine. Without one: this machine's, or the only one.

    Root's pool of this machine comes before this user's own.
    """
    up = [one for one in with_socket() if _serves(one)]
    if shape is not None:
        found = [one for one in up if one.state.shape == shape]
        if not found:
            raise NoPoolError(
                f"no pool of simulated {shape} is up", f"{START_ONE} --simulate {shape}"
            )
        return PoolClient(found[-1])  # this user's own, if both have one
    real = [one for one in up if one.state.shape is None]
    match [PoolClient(one) for one in real[:1] or up]:
        case [only]:
            return only
        case []:
            raise NoPoolError("no pool is up", START_ONE)
        case several:
            shapes = ", ".join(str(client.directory.state.shape) for client in several)
            raise SeveralPoolsError(
                f"several pools are up: {shapes}", "Choose one with --simulate."
            )


def _serves(directory: PoolDirectory) -> bool:
    """Whether a pool listens there."""
    connection = _Connection(directory)
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def _error(status: int, content: bytes) -> AliquotError:
    try:
        answer = json.loads(content)
        return _ERRORS.get(status, AliquotError)(answer["error"], answer.get("hint"))
    except (KeyError, TypeError, ValueError):
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return AliquotError("you have sent the pool too many requests", "Try again later.")
        return AliquotError(f"the pool answers with status {status}")
