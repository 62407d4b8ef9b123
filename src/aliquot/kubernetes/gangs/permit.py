"""Members that arrive at their bind, and wait for each other.

A permit opens when all that are wanted have arrived, and stays open: a member whose binding failed,
or whose call ended while it waited for many others, comes again and goes through at once. Where the
gang's places are taken back it is refused, and all who wait are told why.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aliquot.kubernetes.extender.bind import NotBoundError

if TYPE_CHECKING:
    from collections.abc import Collection


class Permit:
    """The permit of one reservation."""

    def __init__(self, wanted: Collection[str], *, is_open: bool = False) -> None:
        self._wanted = frozenset(wanted)
        self._arrived: set[str] = set()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if is_open:
            self._answer.set_result("")

    @property
    def is_open(self) -> bool:
        """All have arrived."""
        return self._answer.done() and not self._answer.result()

    def __str__(self) -> str:
        return f"{len(self._arrived)} of {len(self._wanted)} have arrived"

    def refuse(self, why: str) -> None:
        """Nobody goes through any more."""
        if not self._answer.done():
            self._answer.set_result(why)

    async def arrive(self, uid: str, seconds: float) -> None:
        """Return when all have arrived; NotBoundError where they do not come, or must not go."""
        self._arrived.add(uid)
        if self._arrived >= self._wanted and not self._answer.done():
            self._answer.set_result("")
        try:
            async with asyncio.timeout(seconds):
                why = await asyncio.shield(self._answer)
        except TimeoutError:
            raise NotBoundError(f"the other members are still on their way: {self}") from None
        if why:
            raise NotBoundError(why)
