"""Waiting for something to change."""

from __future__ import annotations

import asyncio


class Changes:
    """A bell that is rung at every change; all who wait for it hear it. `count`: how often."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.count = 0

    def ring(self) -> None:
        """Something has changed."""
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seconds: float | None = None) -> bool:
        """Until the next change; False where that takes longer than so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._next.wait()
        except TimeoutError:
            return False
        return True
