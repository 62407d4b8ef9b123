"""Grants in the node's arbiter, kept: made, changed and ended by the agent, joined by containers.

The arbiter may be starting again at any moment; it is asked until it answers, within a bound that
the kubelet waits for. Making a grant that is there makes it what it should be, so a container may
be started as often as the kubelet likes.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from aliquot.model import Life, Slice
from aliquot.model.errors import NameInUseError, NoCapacityError
from aliquot.slices import control
from aliquot.slices.control import SliceChange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aliquot.kubernetes.node.held import Held, Settings
    from aliquot.slices.control import Status

ANSWER_SECONDS = 15.0
AGAIN_SECONDS = 0.05

T = TypeVar("T")


class Grants:
    """The arbiter of one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def folder(self, held: Held) -> Path:
        """Where a grant's files are: what its container gets to see."""
        return self.directory / "grants" / held.name

    async def status(self) -> Status:
        """All that the arbiter knows; NoArbiterError where none answers."""
        return await asyncio.to_thread(control.status, self.directory)

    async def make(self, held: Held) -> None:
        """See to it that the grant is there, as it should be now."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                await self._ask(
                    lambda: control.make(self.directory, held.name, slices_of(held), kept=True)
                )
            except NameInUseError:
                if await self._is_kept(held.name):
                    await self.change(held, held.now)
                    return
                if time.monotonic() > deadline:  # an ended one that its processes do not leave
                    raise
            except NoCapacityError:
                if time.monotonic() > deadline:  # what is ending has not ended
                    raise
            else:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def change(self, held: Held, to: Settings) -> None:
        """Change a grant that is there: all of it, or nothing."""
        changes = [
            SliceChange(part.gpu, size, to.compute, to.policy, to.priority)
            for part, size in zip(held.parts, to.memory, strict=True)
        ]
        await self._ask(lambda: control.resize(self.directory, held.name, changes))

    async def end(self, name: str) -> bool:
        """Let no more processes join; whether it is gone, since none is left."""
        return await self._ask(lambda: control.end(self.directory, name))

    async def _is_kept(self, name: str) -> bool:
        seen = await self._ask(lambda: control.status(self.directory))
        return any(one.name == name and one.life is Life.KEPT for one in seen.grants)

    async def _ask(self, question: Callable[[], T]) -> T:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return await asyncio.to_thread(question)
            except control.NoArbiterError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)


def slices_of(held: Held) -> list[Slice]:
    """What a container's grant is made of."""
    now = held.now
    return [
        Slice(part.gpu, size, now.compute, now.policy, now.priority)
        for part, size in zip(held.parts, now.memory, strict=True)
    ]
