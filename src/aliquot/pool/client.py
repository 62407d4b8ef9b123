"""The client of the pool's API, for the commands."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import JobPhase
from aliquot.pool import processes
from aliquot.pool.api import FROM_HEADER, PHASE_HEADER
from aliquot.pool.directory import PoolDirectory, directory_of, existing
from aliquot.pool.encoding import encode_submission
from aliquot.pool.json_files import read_json
from aliquot.slices import locate

if TYPE_CHECKING:
    from email.message import Message

    from aliquot.devices import Shape
    from aliquot.pool.encoding import Submission

START_ONE = "Start one with: aliquot up"

_ERRORS: dict[int, type[AliquotError]] = {400: InvalidValueError, 404: AliquotError}
_TIMEOUT = 60.0


class NoPoolError(AliquotError):
    """No pool is up, or the pool does not answer."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A part of a log from the byte `start` on; `phase` is the job's before that was read."""

    start: int
    content: bytes
    phase: JobPhase


@dataclass(frozen=True, slots=True)
class PoolClient:
    """A pool that is up."""

    directory: PoolDirectory
    port: int
    token: str

    def submit(self, submission: Submission) -> dict[str, Any]:
        """Submit a job."""
        return self._json("POST", "/v1/jobs", encode_submission(submission))

    def jobs(self, *, with_finished: bool) -> list[dict[str, Any]]:
        """The unfinished jobs or all jobs, in the order they were submitted."""
        answer = self._json("GET", f"/v1/jobs{'?all=1' if with_finished else ''}")
        return list(answer["jobs"])

    def job(self, name: str) -> dict[str, Any]:
        """One job with its history."""
        return self._json("GET", f"/v1/jobs/{quote(name, safe='')}")

    def request(self, name: str, verb: str) -> dict[str, Any]:
        """Suspend, resume or cancel a job."""
        return self._json("POST", f"/v1/jobs/{quote(name, safe='')}/{verb}")

    def log(self, name: str, rank: int, start: int) -> LogChunk:
        """A worker's output from that byte on, or from the first that is kept."""
        query = urlencode({"rank": rank, "from": start})
        content, headers = self._ask("GET", f"/v1/jobs/{quote(name, safe='')}/log?{query}", b"")
        return LogChunk(int(headers[FROM_HEADER]), content, JobPhase(headers[PHASE_HEADER]))

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = b"" if body is None else json.dumps(body).encode()
        answer = json.loads(self._ask(method, path, content)[0])
        assert isinstance(answer, dict)  # noqa: S101 - our own API returns objects
        return answer

    def _ask(self, method: str, path: str, body: bytes) -> tuple[bytes, Message]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT)
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoPoolError(f"the pool of {self.directory} does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise _error(answer.status, content)
        return content, answer.headers


def connect(shape: Shape | None) -> PoolClient:
    """The pool of that simulated machine. Without one: this machine's, or the only one."""
    if shape is not None:
        if (client := _open(directory_of(locate(shape)))) is None:
            raise NoPoolError(
                f"no pool of simulated {shape} is up", f"{START_ONE} --simulate {shape}"
            )
        return client
    clients = [client for directory in existing() if (client := _open(directory)) is not None]
    own = [client for client in clients if client.directory.state.shape is None]
    match own or clients:
        case [only]:
            return only
        case []:
            raise NoPoolError("no pool is up", START_ONE)
        case several:
            shapes = ", ".join(str(client.directory.state.shape) for client in several)
            raise NoPoolError(f"several pools are up: {shapes}", "Choose one with --simulate.")


def _open(directory: PoolDirectory) -> PoolClient | None:
    content = read_json(directory.endpoint)
    if content is None or processes.started_at(content["pid"]) != content["start"]:
        return None
    return PoolClient(directory, content["port"], content["token"])


def _error(status: int, content: bytes) -> AliquotError:
    try:
        answer = json.loads(content)
        return _ERRORS.get(status, AliquotError)(answer["error"], answer.get("hint"))
    except (KeyError, TypeError, ValueError):
        return AliquotError(f"the pool answers with status {status}")
