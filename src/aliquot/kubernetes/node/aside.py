"""Calls that may never come back: each in a thread that nobody waits for.

A system call on a dead file system cannot be ended, so neither can the thread that made it. Such a
thread is left behind: the caller goes on after some seconds, and the process ends without it. It
keeps its place until it comes back. There is one place for each owner and a bound for all together,
so who has one stuck gets no other, and takes nobody else's.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 1.0
PLACES = 16

T = TypeVar("T")


class Aside:
    """Places for such calls."""

    def __init__(self, *, seconds: float = SECONDS, places: int = PLACES) -> None:
        self._seconds = seconds
        self._places = places
        self._taken: set[str] = set()  # by owner

    async def call(self, owner: str, what: Callable[[], T]) -> T | None:
        """What it returns; None where there is no place for it, or it takes too long."""
        if owner in self._taken or len(self._taken) >= self._places:
            return None
        self._taken.add(owner)
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()  # it cannot be cancelled

        def run() -> None:
            try:
                try:
                    got = what()
                finally:
                    self._taken.discard(owner)
                answer.set_result(got)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                answer.set_exception(error)

        threading.Thread(target=run, name=f"aside-{owner}", daemon=True).start()
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            return None
