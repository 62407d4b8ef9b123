"""The other side of the door: commands ask the pool that is up."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from aliquot.model.errors import AliquotError, InvalidValueError
from aliquot.model.job import State
from aliquot.pool import processes
from aliquot.pool.api import FROM_HEADER, STATE_HEADER
from aliquot.pool.forms import submission_words
from aliquot.pool.place import Place, known, place_of
from aliquot.pool.slots import read
from aliquot.slices import locate

if TYPE_CHECKING:
    from email.message import Message

    from aliquot.devices import Shape
    from aliquot.pool.forms import Submission

START_ONE = "Start one with: aliquot up"

_ERRORS: dict[int, type[AliquotError]] = {400: InvalidValueError, 404: AliquotError}
_TIMEOUT = 60.0


class NoPoolError(AliquotError):
    """No pool is up, or it does not answer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a log, from the byte `start` on; `state` is the job's before that was read."""

    start: int
    words: bytes
    state: State


@dataclass(frozen=True, slots=True)
class Client:
    """A pool that is up."""

    place: Place
    port: int
    token: str

    def submit(self, submission: Submission) -> dict[str, Any]:
        """Give it a job."""
        return self._json("POST", "/v1/jobs", submission_words(submission))

    def jobs(self, *, with_old: bool) -> list[dict[str, Any]]:
        """All jobs, in the order they came."""
        answer = self._json("GET", f"/v1/jobs{'?all=1' if with_old else ''}")
        return list(answer["jobs"])

    def job(self, name: str) -> dict[str, Any]:
        """One job with its history."""
        return self._json("GET", f"/v1/jobs/{quote(name, safe='')}")

    def ask(self, name: str, wish: str) -> dict[str, Any]:
        """Suspend, resume or cancel a job."""
        return self._json("POST", f"/v1/jobs/{quote(name, safe='')}/{wish}")

    def log(self, name: str, rank: int, start: int) -> Piece:
        """What a worker wrote from that byte on, or from the first that is kept."""
        asked = urlencode({"rank": rank, "from": start})
        words, headers = self._ask("GET", f"/v1/jobs/{quote(name, safe='')}/log?{asked}", b"")
        return Piece(int(headers[FROM_HEADER]), words, State(headers[STATE_HEADER]))

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        words = b"" if body is None else json.dumps(body).encode()
        answer = json.loads(self._ask(method, path, words)[0])
        assert isinstance(answer, dict)  # noqa: S101 - by our own door
        return answer

    def _ask(self, method: str, path: str, body: bytes) -> tuple[bytes, Message]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT)
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            words = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoPoolError(f"the pool of {self.place} does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise _error(answer.status, words)
        return words, answer.headers


def connect(shape: Shape | None) -> Client:
    """The pool of that simulated machine; without one, this machine's, or the only one there is."""
    if shape is not None:
        if (client := _open(place_of(locate(shape)))) is None:
            raise NoPoolError(
                f"no pool of simulated {shape} is up", f"{START_ONE} --simulate {shape}"
            )
        return client
    clients = [client for place in known() if (client := _open(place)) is not None]
    own = [client for client in clients if client.place.state.shape is None]
    match own or clients:
        case [only]:
            return only
        case []:
            raise NoPoolError("no pool is up", START_ONE)
        case several:
            shapes = ", ".join(str(client.place.state.shape) for client in several)
            raise NoPoolError(f"several pools are up: {shapes}", "Choose with --simulate.")


def _open(place: Place) -> Client | None:
    words = read(place.door)
    if words is None or processes.started_at(words["pid"]) != words["start"]:
        return None
    return Client(place, words["port"], words["token"])


def _error(status: int, words: bytes) -> AliquotError:
    try:
        answer = json.loads(words)
        return _ERRORS.get(status, AliquotError)(answer["error"], answer.get("hint"))
    except (KeyError, TypeError, ValueError):
        return AliquotError(f"the pool answers with status {status}")
