"""What a page gets live: all that its user may see, then what changes of it."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aliquot.console.cluster.gpu_view import cluster_view
from aliquot.console.cluster.job_view import jobs_view
from aliquot.console.deltas import difference
from aliquot.console.problems import ProblemError
from aliquot.kubernetes.api.client import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aliquot.console.cluster.entrance import TokenEntrance
    from aliquot.console.cluster.rights import AccessReviews
    from aliquot.console.cluster.watched import Watched

SECONDS = 1.0  # between two updates at least
CALM_SECONDS = 5.0  # and at most: so a page knows that the console lives
AGE_SECONDS = 15.0  # after which agents and the API server may have become late, without a change

View = dict[str, Any]


class LiveStreams:
    """The streams of all open pages."""

    def __init__(self, watched: Watched, rights: AccessReviews, entrance: TokenEntrance) -> None:
        self._watched, self._rights, self._entrance = watched, rights, entrance
        self._ended = False

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        self._watched.changes.notify()

    async def follow(self, token: str) -> AsyncIterator[bytes]:
        """The events for the holder of a token, until it is refused or the API server is away.

        Whose the token is and what its holder may see is asked again and again.
        """
        with suppress(ApiError, ProblemError):  # the page asks again, and is told why
            async for event in self._events(token):
                yield event

    async def _events(self, token: str) -> AsyncIterator[bytes]:
        watched, before, last = self._watched, dict[str, View](), None
        yield b"retry: 1000\n\n"
        while not self._ended:
            caller = await self._entrance.caller_of(token)
            count = watched.changes.count
            sees = await self._rights.sees(caller.user, watched)
            now = time.time()
            if last != (count, sees, now // AGE_SECONDS):
                views = {
                    "machine": cluster_view(watched, sees, caller.user.username, now),
                    "jobs": jobs_view(watched, sees),
                }
                last = (count, sees, now // AGE_SECONDS)
            else:
                views = {**before, "machine": {**before["machine"], "time": now}}
            for name, view in views.items():
                yield _event(name, before.get(name), view)
            before = views
            await asyncio.sleep(SECONDS)
            if watched.changes.count == count and not self._ended:
                await watched.changes.wait(CALM_SECONDS)


def _event(name: str, before: View | None, now: View) -> bytes:
    """A difference, or all of it; nothing where nothing changed."""
    delta = None if before is None else difference(before, now)
    if delta is not None and not any(delta.values()):
        return b""
    kind = name if delta is None else f"{name}-delta"
    content = json.dumps(now if delta is None else delta, separators=(",", ":"))
    return f"event: {kind}\ndata: {content}\n\n".encode()
