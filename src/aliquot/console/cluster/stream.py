"""What pages get live: all that their users may see, then what changes of it.

Users who may see the same share one view: it is made once for all their pages, at most once a
second, and so are its differences. Whose a page's token is, and what its user may see, is asked
before each update.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
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
    from aliquot.console.cluster.rights import AccessReviews, Sees
    from aliquot.console.cluster.watched import Watched

SECONDS = 1.0  # between two updates at least
CALM_SECONDS = 5.0  # and at most: so a page knows that the console lives
AGE_SECONDS = 15.0  # after which agents and the API server may have become late, without a change
KEPT = 16  # updates for pages that have missed some

View = dict[str, Any]


class SharedView:
    """What all users who may see the same are shown. `number` counts its versions."""

    def __init__(self, sees: Sees) -> None:
        self.number = 0
        self._sees = sees
        self._made = 0.0
        self._of: tuple[int, float] | None = None
        self._views: dict[str, View] = {}
        self._updates: deque[bytes | None] = deque(maxlen=KEPT)
        self._whole: bytes | None = None

    def refresh(self, watched: Watched, now: float) -> None:
        """Make the next version, if something may have changed and the last one is old enough."""
        of = watched.changes.count, now // AGE_SECONDS
        if of == self._of or 0 <= now - self._made < SECONDS:
            return
        before = self._views
        self._views = {
            "machine": cluster_view(watched, self._sees, now),
            "jobs": jobs_view(watched, self._sees),
        }
        self._of, self._made, self._whole = of, now, None
        self._updates.append(_update(before, self._views) if before else None)
        self.number += 1

    def is_current(self, watched: Watched) -> bool:
        """Whether nothing has changed since this version."""
        return self._of is not None and self._of[0] == watched.changes.count

    def since(self, number: int) -> bytes:
        """The events for a page that has that version, or none (0)."""
        missed = self.number - number
        updates = list(self._updates)[-missed:] if 0 < missed <= len(self._updates) else []
        if missed and (not number or not updates or None in updates):
            self._whole = self._whole or b"".join(
                _event(name, view) for name, view in self._views.items()
            )
            return self._whole
        return b"".join(one for one in updates if one is not None)


class LiveStreams:
    """The streams of all open pages."""

    def __init__(self, watched: Watched, rights: AccessReviews, entrance: TokenEntrance) -> None:
        self._watched, self._rights, self._entrance = watched, rights, entrance
        self._shared: dict[Sees, SharedView] = {}
        self._pages: Counter[Sees] = Counter()
        self._ended = False

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        self._watched.changes.notify()

    async def follow(self, token: str) -> AsyncIterator[bytes]:
        """The events for the holder of a token, until it is refused or the API server is away."""
        with suppress(ApiError, ProblemError):  # the page asks again, and is told why
            async for event in self._events(token):
                yield event

    async def _events(self, token: str) -> AsyncIterator[bytes]:
        """All again whenever the user may see something else."""
        yield b"retry: 1000\n\n"
        while not self._ended:
            sees = await self._sees(token)
            shared = self._shared.setdefault(sees, SharedView(sees))
            self._pages[sees] += 1
            try:
                async for event in self._while_seeing(sees, shared, token):
                    yield event
            finally:
                self._pages[sees] -= 1
                if not self._pages[sees]:
                    del self._pages[sees], self._shared[sees]

    async def _while_seeing(
        self, sees: Sees, shared: SharedView, token: str
    ) -> AsyncIterator[bytes]:
        number = 0
        while not self._ended:
            now = time.time()
            shared.refresh(self._watched, now)
            content = shared.since(number)
            if number:
                content += _event("machine-delta", _time(now))
            number = shared.number  # other pages may refresh it while this one is slow to read
            yield content
            await asyncio.sleep(SECONDS)
            if shared.is_current(self._watched) and not self._ended:
                await self._watched.changes.wait(CALM_SECONDS)
            if await self._sees(token) != sees:
                return

    async def _sees(self, token: str) -> Sees:
        caller = await self._entrance.caller_of(token)
        return await self._rights.sees(caller.user, self._watched)


def _update(before: dict[str, View], now: dict[str, View]) -> bytes:
    """What changed, as events."""
    found = []
    for name, view in now.items():
        delta = difference(before[name], view)
        if delta is None:
            found.append(_event(name, view))
        elif any(delta.values()):
            found.append(_event(f"{name}-delta", delta))
    return b"".join(found)


def _time(now: float) -> View:
    return {"view": {"time": now}, "lists": {}, "moved": {}}


def _event(name: str, content: View) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n".encode()
