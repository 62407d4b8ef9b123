"""The REST API: one function for each operation of `openapi`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from aliquot import slices
from aliquot.console import changes, openapi, schema
from aliquot.console.guard import CREDENTIAL, HOW_TO_SIGN_IN
from aliquot.console.job_view import job_details, job_view, run_view
from aliquot.console.problems import ProblemError
from aliquot.console.recorder import history_csv, waste_csv, waste_view
from aliquot.console.request_reading import page, path_part, read_body, read_query
from aliquot.console.shapes import INDEX, LIMIT
from aliquot.console.sign_in import kind_of
from aliquot.model.errors import NoSuchGrantError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.requests import Request

    from aliquot.console.guard import Site
    from aliquot.console.sign_in import SignIn
    from aliquot.console.snapshots import LiveSnapshots

    Handler = Callable[[Request], Awaitable[Response]]

PING_SECONDS = 15.0

_LINES = 1000  # of CSV, in one piece


class ConsoleApi:
    """The operations on one machine. Names of methods are those of `openapi.OPERATIONS`."""

    def __init__(self, snapshots: LiveSnapshots, sign_in: SignIn, site: Site) -> None:
        self._snapshots, self._sign_in, self._site = snapshots, sign_in, site
        self._machine = snapshots.machine

    async def proof(self, request: Request) -> Response:
        """Prove to a page that this is its console, before it sends anything else."""
        body = await read_body(request, openapi.OPERATIONS["proof"])
        host = request.headers["host"].lower()
        proof = self._sign_in.prove(body["name"], body["challenge"], host)
        if proof is None:
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED,
                "the link was used, or is too old"
                if kind_of(body["name"]) == "code"
                else "the session has ended",
                HOW_TO_SIGN_IN,
            )
        return JSONResponse({"run": self._sign_in.run, "proof": proof})

    async def sign_in(self, request: Request) -> Response:
        """Begin a session for the token, or for a link, which is used up."""
        name = request.scope[CREDENTIAL]
        if kind_of(name) == "code" and not self._sign_in.use_code(name):
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED, "the link was used, or is too old", HOW_TO_SIGN_IN
            )
        return JSONResponse(asdict(self._sign_in.new_session()))

    async def session(self, request: Request) -> Response:
        """The kind of the credential that the guard has accepted."""
        return JSONResponse({"kind": kind_of(request.scope[CREDENTIAL])})

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self._sign_in.end_session(request.scope[CREDENTIAL])
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def openapi(self, request: Request) -> Response:  # noqa: ARG002 - a handler
        """The document."""
        return JSONResponse(openapi.document(self._site.base_path))

    async def machine(self, request: Request) -> Response:  # noqa: ARG002 - a handler
        """The machine without its GPUs and grants."""
        view = (await self._snapshots.fresh()).machine
        return JSONResponse({key: view[key] for key in openapi.MACHINE["properties"]})

    async def gpus(self, request: Request) -> Response:
        """The GPUs."""
        query = read_query(request, openapi.OPERATIONS["gpus"])
        view = (await self._snapshots.fresh()).machine
        return page(view["gpus"], [str(one["index"]) for one in view["gpus"]], query)

    async def grants(self, request: Request) -> Response:
        """The grants."""
        query = read_query(request, openapi.OPERATIONS["grants"])
        view = (await self._snapshots.fresh()).machine
        return page(view["grants"], [one["id"] for one in view["grants"]], query)

    async def grant(self, request: Request) -> Response:
        """One grant."""
        name = slices.check_address(path_part(request, "name"))
        view = (await self._snapshots.fresh()).machine
        for one in view["grants"]:
            if name == one["name"]:
                return JSONResponse(one)
        raise NoSuchGrantError(
            f"there is no grant named {slices.shown_name(name)}", "It may have ended."
        )

    async def history(self, request: Request) -> Response:
        """What a grant used: in the last minutes, in a day or in a month."""
        query, name = read_query(request, openapi.OPERATIONS["history"]), path_part(request, "name")
        span, found = query.get("span"), (await self._snapshots.fresh()).found
        return JSONResponse(await asyncio.to_thread(self._machine.history, found, name, span))

    async def gpu_history(self, request: Request) -> Response:
        """What a GPU used in a day or in a month."""
        span = read_query(request, openapi.OPERATIONS["gpu_history"]).get("span", "day")
        index = schema.parse(path_part(request, "index"), INDEX, "index")
        return JSONResponse(await asyncio.to_thread(self._machine.gpu_history, index, span))

    async def history_csv(self, request: Request) -> Response:
        """All points as CSV."""
        query, store = read_query(request, openapi.OPERATIONS["history_csv"]), self._machine.store
        kind, span = query.get("kind", "slice"), query.get("span", "day")
        lines = history_csv(store, kind, span, time.time())
        return _csv(lines, f"aliquot-{kind}s-{span}.csv")

    async def waste(self, request: Request) -> Response:
        """What was granted and idle."""
        read_query(request, openapi.OPERATIONS["waste"])
        return JSONResponse(await asyncio.to_thread(waste_view, self._machine.store))

    async def waste_csv(self, request: Request) -> Response:
        """The same as CSV."""
        read_query(request, openapi.OPERATIONS["waste_csv"])
        return _csv(waste_csv(self._machine.store), "aliquot-waste.csv")

    async def price(self, request: Request) -> Response:
        """Set or remove the price of a model."""
        body = await read_body(request, openapi.OPERATIONS["price"])
        set_price = self._machine.store.set_price
        if not await asyncio.to_thread(set_price, body["model"], body["per_hour"]):
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the price could not be stored", "Is the disk full?"
            )
        return JSONResponse({"prices": await asyncio.to_thread(self._machine.store.prices)})

    async def jobs(self, request: Request) -> Response:
        """Jobs, newest first."""
        query = read_query(request, openapi.OPERATIONS["jobs"])
        with_finished = query.get("which") == "all"
        listing = await asyncio.to_thread(self._machine.pool.listing, with_finished=with_finished)
        rows, first = listing.jobs[::-1], listing.runs
        if "after" in query:
            last = schema.parse(query.pop("after"), {"type": "integer"}, "after")
            rows, first = [row for row in rows if row["number"] < last], []
        views = [*map(run_view, first), *map(job_view, rows)]
        limit = query.get("limit", LIMIT["default"])
        query["limit"] = max(limit, len(first) + 1)  # all that wait, and a job
        return page(views, [str(one["number"]) for one in views], query)

    async def job(self, request: Request) -> Response:
        """One job."""
        row = await asyncio.to_thread(self._machine.pool.job, path_part(request, "job"))
        return JSONResponse(job_details(row))

    async def log(self, request: Request) -> Response:
        """A part of a log; a character that is cut at its end comes whole the next time."""
        query, name = read_query(request, openapi.OPERATIONS["log"]), path_part(request, "job")
        rank, start, tail = query.get("rank", 0), query.get("from", 0), query.get("tail")
        found = await asyncio.to_thread(self._machine.pool.log, name, rank, start, tail)
        content = _whole_characters(found.content)
        return JSONResponse(
            {
                "start": found.start,
                "end": found.start + len(content),
                "text": content.decode("utf-8", "replace"),
                "phase": None if found.phase is None else str(found.phase),
            }
        )

    async def resize(self, request: Request) -> Response:
        """Change a grant, or say the effect."""
        body = await read_body(request, openapi.OPERATIONS["resize"])
        name = path_part(request, "name")

        def change() -> dict[str, Any]:
            return changes.resize_grant(self._machine.find(), name, body)

        return JSONResponse(await asyncio.to_thread(change))

    async def request(self, request: Request) -> Response:
        """Suspend, resume or cancel a job."""
        verb = path_part(request, "verb")
        if verb not in openapi.VERBS:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        row = await asyncio.to_thread(self._machine.pool.request, path_part(request, "job"), verb)
        return JSONResponse({"message": row["message"], "phase": job_view(row)["phase"]})

    async def explain(self, request: Request) -> Response:
        """Where a job would go."""
        body = await read_body(request, openapi.OPERATIONS["explain"])
        return JSONResponse(await asyncio.to_thread(changes.explain, self._machine.state, body))

    async def what_if(self, request: Request) -> Response:
        """What the pool would decide."""
        body = await read_body(request, openapi.OPERATIONS["what_if"])
        return JSONResponse(await asyncio.to_thread(changes.what_if, self._machine, body))

    async def submit(self, request: Request) -> Response:
        """Submit a job."""
        body = await read_body(request, openapi.OPERATIONS["submit"])
        made = await asyncio.to_thread(changes.submit, self._machine.state, body)
        return JSONResponse(made, HTTPStatus.CREATED)

    async def events(self, request: Request) -> Response:
        """Live updates until the page goes, or the console ends."""
        read_query(request, openapi.OPERATIONS["events"])
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        """All first, then what changes; all again for a page that missed something."""
        snapshots, last = self._snapshots, -1
        snapshots.watch()
        try:
            yield b"retry: 1000\n\n"
            while not snapshots.ended:
                if last != snapshots.number and snapshots.number > 0:
                    number, events = snapshots.number, snapshots.event_bytes(last)
                    for name, content in events:
                        yield b"event: %s\ndata: %s\n\n" % (name, content)
                    last = number
                    continue
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await snapshots.next()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            snapshots.unwatch()


def _csv(lines: Iterator[str], name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    parts = iter(lambda: "".join(islice(lines, _LINES)), "")
    return StreamingResponse(parts, media_type="text/csv", headers=headers)


def _whole_characters(content: bytes) -> bytes:
    """Without the beginning of a character at the end, unless that is all there is."""
    for cut in range(1, min(4, len(content))):
        byte = content[-cut]
        if byte < 0x80:
            return content
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return content if cut >= size else content[:-cut]
    return content
