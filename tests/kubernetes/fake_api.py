"""An API server on loopback that speaks lists, watches and writes, and can misbehave on purpose.

It keeps every change with its version, as etcd does: a watch is told all that came after the
version it names, or 410 where that was compacted. Objects are plain JSON.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from aliquot.kubernetes.api.client import Client
from aliquot.kubernetes.api.objects import ApiObject, Resource
from aliquot.kubernetes.api.server import Credentials, Server

Json = dict[str, Any]


@dataclass
class Change:
    """One entry of the log."""

    version: int
    type: str
    plural: str
    object: Json
    before: Json | None = None


@dataclass
class Faults:
    """What goes wrong next, each as often as it says."""

    list_fails: int = 0
    page: int = 0  # no more than so many objects in a page
    cut_line: bool = False  # the next line is sent by half, and the stream ends
    garbage: bool = False  # the next line is none
    repeat: int = 0  # how many of the last lines are sent again after the next one
    refuse: Callable[[str, str], int | None] = field(default=lambda _method, _path: None)
    forbid: Callable[[str, str], bool] = field(default=lambda _token, _path: False)
    budgets: dict[str, str] = field(default_factory=dict)  # of pods that may not be evicted
    grace: float = 0.0  # seconds that a pod with a node takes to end
    unanswered: set[str] = field(default_factory=set)  # paths whose requests get no answer
    # Requests that wait, by path, and watches that hear nothing, by "watch" and the plural.
    held: dict[str, asyncio.Event] = field(default_factory=dict)


class FakeApi:
    """The truth, its log, and the streams that follow it."""

    def __init__(self, port: int = 0, *, bookmarks: bool = True) -> None:
        self.url = ""
        self._port = port
        self._bookmarks = bookmarks  # after each change; a real one sends them once a minute
        self._more = asyncio.Event()
        self._cuts = 0
        self.reset()

    def reset(self) -> None:
        """As new, on the same port."""
        self.objects: dict[tuple[str, str, str], Json] = {}  # plural, namespace, name
        self.log: list[Change] = []
        self.version = 100
        self.compacted = 0
        self.faults = Faults()
        self.token = ""  # that everybody must show
        self.requests: list[tuple[str, str]] = []
        self.on_gone: Callable[[str, Json], None] = lambda _plural, _one: None
        self._uids = itertools.count(1)
        self.cut()

    # --- objects ------------------------------------------------------------------------------

    def put(self, plural: str, one: Json) -> Json:
        """Make an object, or change it."""
        meta = one["metadata"]
        key = (plural, meta.get("namespace", ""), meta["name"])
        before = self.objects.get(key)
        self.version += 1
        kept = copy.deepcopy(one)
        kept["metadata"]["resourceVersion"] = str(self.version)
        old = before["metadata"]["uid"] if before else f"uid-{next(self._uids)}"
        kept["metadata"].setdefault("uid", old)
        self.objects[key] = kept
        self._tell("MODIFIED" if before else "ADDED", plural, kept, before)
        return kept

    def put_if_absent(self, plural: str, one: Json) -> None:
        """Make an object, unless there is one of that name."""
        meta = one["metadata"]
        if (plural, meta.get("namespace", ""), meta["name"]) not in self.objects:
            self.put(plural, one)

    def delete(self, plural: str, name: str, namespace: str = "") -> Json | None:
        gone = self.objects.pop((plural, namespace, name), None)
        if gone is not None:
            self.version += 1
            gone = copy.deepcopy(gone)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self._tell("DELETED", plural, gone, gone)
            self.on_gone(plural, gone)
        return gone

    def end(self, plural: str, name: str, namespace: str) -> None:
        """Delete it: a pod that has a node is given its grace period first."""
        one = self.objects.get((plural, namespace, name))
        if one is None or one["metadata"].get("deletionTimestamp"):
            return
        if not (self.faults.grace and one.get("spec", {}).get("nodeName")):
            self.delete(plural, name, namespace)
            return
        meta = {**one["metadata"], "deletionTimestamp": "2026-11-15T12:00:00Z"}
        self.put(plural, {**one, "metadata": meta})
        uid = meta["uid"]

        def over() -> None:
            now = self.objects.get((plural, namespace, name))
            if now is not None and now["metadata"]["uid"] == uid:
                self.delete(plural, name, namespace)

        asyncio.get_running_loop().call_later(self.faults.grace, over)

    def all(self, plural: str) -> list[Json]:
        """The objects of a kind; also from another thread than the one that changes them."""
        return [one for (kind, _, _), one in self.objects.copy().items() if kind == plural]

    def _tell(self, type_: str, plural: str, one: Json, before: Json | None) -> None:
        self.log.append(Change(self.version, type_, plural, one, before))
        self._wake()

    # --- misbehaviour -------------------------------------------------------------------------

    def compact(self) -> None:
        """Forget all versions before this one."""
        self.compacted = self.version

    def cut(self) -> None:
        """End all streams."""
        self._cuts += 1
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    # --- the server ---------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeApi]:
        config = uvicorn.Config(
            Starlette(routes=[Route("/{path:path}", self._answer, methods=METHODS)]),
            host="127.0.0.1",
            port=self._port,
            log_level="critical",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=120,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            self.cut()
            server.should_exit = True
            await task

    def client(self) -> Client:
        return Client(Server(self.url, Credentials()))

    async def _answer(self, request: Request) -> Response:
        where = _Where.of(request.url.path)
        self.requests.append((request.method, request.url.path))
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if request.url.path in self.faults.unanswered:
            await asyncio.Event().wait()
        if (held := self.faults.held.get(request.url.path)) is not None:
            await held.wait()
        if self.faults.forbid(request.headers.get("authorization", ""), request.url.path):
            return _status(403, "Forbidden", "no right to this")
        refused = self.faults.refuse(request.method, request.url.path)
        if refused is not None:
            return _status(refused, "Refused", "as the test says")
        if request.method == "GET" and not where.name:
            if request.query_params.get("watch"):
                return self._watch(request, where)
            return self._list(request, where)
        body = json.loads(await request.body() or b"{}")
        return getattr(self, f"_{request.method.lower()}")(where, body)  # type: ignore[no-any-return]

    def _list(self, request: Request, where: _Where) -> Response:
        if self.faults.list_fails:
            self.faults.list_fails -= 1
            return _status(500, "InternalError", "the list failed")
        version, start = self.version, 0
        token = request.query_params.get("continue")
        if token:  # the pages of a list are all of the first one's version
            version, start = (int(part) for part in token.split("/"))
            if version < self.compacted:
                return _status(410, "Expired", "the continue token is too old")
        found = [one for key, one in sorted(self._at(version).items()) if where.holds(key)]
        found = [one for one in found if _selected(one, request)]
        size = self.faults.page or int(request.query_params.get("limit", "500"))
        meta = {"resourceVersion": str(version)}
        if start + size < len(found):
            meta["continue"] = f"{version}/{start + size}"
        return JSONResponse({"metadata": meta, "items": found[start : start + size]})

    def _at(self, version: int) -> dict[tuple[str, str, str], Json]:
        """The objects as they were at this version."""
        if version == self.version:
            return self.objects
        objects: dict[tuple[str, str, str], Json] = {}
        for change in self.log:
            if change.version > version:
                break
            meta = change.object["metadata"]
            key = (change.plural, meta.get("namespace", ""), meta["name"])
            if change.type == "DELETED":
                del objects[key]
            else:
                objects[key] = change.object
        return objects

    def _watch(self, request: Request, where: _Where) -> Response:
        since = int(request.query_params["resourceVersion"])
        if since < self.compacted:
            gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}
            return Response(json.dumps(gone) + "\n")
        return StreamingResponse(self._follow(since, where, request))

    async def _follow(self, since: int, where: _Where, request: Request) -> AsyncIterator[bytes]:
        cuts, sent = self._cuts, [b""]
        yield b"\n"
        while self._cuts == cuts:
            if (held := self.faults.held.get(f"watch {where.plural}")) is not None:
                await held.wait()
            more = self._more
            for change in self.log[bisect_right(self.log, since, key=attrgetter("version")) :]:
                since = change.version
                line = where.line(change, request)
                if line is None:
                    continue
                if self.faults.cut_line:
                    self.faults.cut_line = False
                    yield line[: len(line) // 2]
                    return
                if self.faults.garbage:
                    self.faults.garbage = False
                    yield b"{nonsense\n"
                    return
                sent.append(line)
                yield line
                for again in sent[-1 - self.faults.repeat : -1] if self.faults.repeat else ():
                    yield again
                self.faults.repeat = 0
            mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}}
            if self._bookmarks:
                yield json.dumps(mark).encode() + b"\n"
            if self._more is more:
                await more.wait()

    def _get(self, where: _Where, _: Json) -> Response:
        one = self.objects.get(where.key)
        return JSONResponse(one) if one else _missing(where)

    def _post(self, where: _Where, body: Json) -> Response:
        if where.sub == "binding":
            return self._bind(where, body)
        if where.sub == "eviction":
            return self._evict(where, body)
        key = (where.plural, where.namespace, body["metadata"]["name"])
        if key in self.objects:
            return _status(409, "AlreadyExists", f"{key[2]} exists")
        body["metadata"].setdefault("namespace", where.namespace)
        return JSONResponse(self.put(where.plural, body), 201)

    def _bind(self, where: _Where, body: Json) -> Response:
        pod = copy.deepcopy(self.objects.get(where.key))
        if pod is None:
            return _missing(where)
        if pod.get("spec", {}).get("nodeName"):
            return _status(409, "Conflict", "the pod has a node already")
        if body["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            return _status(409, "Conflict", "the pod is another one")
        pod.setdefault("spec", {})["nodeName"] = body["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(
            body["metadata"].get("annotations", {})
        )
        self.put(where.plural, pod)
        return _status(201, "", "bound")

    def _evict(self, where: _Where, body: Json) -> Response:
        """The pod ends, after its grace period if it has one."""
        pod = self.objects.get(where.key)
        if pod is None:
            return _missing(where)
        meant = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if meant not in {None, pod["metadata"]["uid"]}:
            return _status(409, "Conflict", "the UID in the precondition does not match")
        budget = self.faults.budgets.get(where.name)
        if budget is not None:
            text = f"The disruption budget {budget} needs 1 healthy pods and has 1 currently"
            cause = {"reason": "DisruptionBudget", "message": text}
            return _status(429, "TooManyRequests", "Cannot evict pod", causes=[cause])
        self.end(where.plural, where.name, where.namespace)
        return _status(201, "", "evicted")

    def _put(self, where: _Where, body: Json) -> Response:
        one = self.objects.get(where.key)
        if one is None:
            return _missing(where)
        version = body["metadata"].get("resourceVersion")
        if version and version != one["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", f"{where.name} has changed")
        return JSONResponse(self.put(where.plural, body))

    def _patch(self, where: _Where, body: Json) -> Response:
        one = self.objects.get(where.key)
        if one is None:
            return _missing(where)
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != one["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", f"{where.name} has changed")
        return JSONResponse(self.put(where.plural, _merged(one, body)))

    def _delete(self, where: _Where, _: Json) -> Response:
        one = self.objects.get(where.key)
        self.end(where.plural, where.name, where.namespace)
        return JSONResponse(one) if one else _missing(where)


METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True)
class _Where:
    plural: str
    namespace: str
    name: str
    sub: str

    @classmethod
    def of(cls, path: str) -> _Where:
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, sub = (*parts, "", "")[:3]
        return cls(plural, namespace, name, sub)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.plural, self.namespace, self.name

    def holds(self, key: tuple[str, str, str]) -> bool:
        return key[0] == self.plural and self.namespace in {"", key[1]}

    def line(self, change: Change, request: Request) -> bytes | None:
        meta = change.object["metadata"]
        if not self.holds((change.plural, meta.get("namespace", ""), meta["name"])):
            return None
        now = _selected(change.object, request)
        before = change.before is not None and _selected(change.before, request)
        if not (now or before):
            return None
        kind = change.type if now else "DELETED"  # what a selector leaves out any more is gone
        kind = "ADDED" if kind == "MODIFIED" and not before else kind
        return json.dumps({"type": kind, "object": change.object}).encode() + b"\n"


def _selected(one: Json, request: Request) -> bool:
    """These fields, with `=` and `!=`, and one label with `=` are all that is understood."""
    fields = {
        "metadata.name": one["metadata"]["name"],
        "spec.nodeName": one.get("spec", {}).get("nodeName", ""),
        "spec.driver": one.get("spec", {}).get("driver", ""),
        "status.phase": one.get("status", {}).get("phase", ""),
        "involvedObject.kind": one.get("involvedObject", {}).get("kind", ""),
        "involvedObject.name": one.get("involvedObject", {}).get("name", ""),
    }
    for part in filter(None, request.query_params.get("fieldSelector", "").split(",")):
        name, _, value = part.partition("=")
        if (fields[name.rstrip("!")] == value) is name.endswith("!"):
            return False
    labels = request.query_params.get("labelSelector", "")
    name, _, value = labels.partition("=")
    return not labels or one["metadata"].get("labels", {}).get(name) == value


def _merged(one: Json, patch: Json) -> Json:
    result = copy.deepcopy(one)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = _merged(result[name], value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _status(code: int, reason: str, message: str, **details: Any) -> Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return JSONResponse({**body, "details": details}, code)


def _missing(where: _Where) -> Response:
    return _status(404, "NotFound", f"{where.plural} {where.name!r} not found")


def as_json(of: Resource[Any], one: ApiObject) -> Json:
    return {"apiVersion": of.api_version, "kind": of.kind, **msgspec.to_builtins(one)}


async def until(predicate: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as it is so. The time only ends a test that hangs."""
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.002)
