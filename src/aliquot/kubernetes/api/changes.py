"""Waiting for the next change."""

from __future__ import annotations

import asyncio


class Changes:
    """Wakes all waiting tasks at every change. `count` is the number of changes so far."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.count = 0

    def notify(self) -> None:
        """There was a change."""
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next change; False if none comes within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._next.wait()
        except TimeoutError:
            return False
        return True
