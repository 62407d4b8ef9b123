"""The node's arbiter, run and started again.

It is nobody's child, and goes on when the agent ends: containers hold grants of it, and it leaves
the agent's container for that. An agent that starts takes up the one that answers. Its death is
told by the kernel.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.node.outside import move_out
from aliquot.model.errors import AliquotError
from aliquot.slices import arbiter_process, control

if TYPE_CHECKING:
    from pathlib import Path

    from aliquot.devices import Driver

LOOK_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class ArbiterKeeper:
    """Sees to it that an arbiter answers."""

    def __init__(self, directory: Path, driver: Driver) -> None:
        self._directory = directory
        self._driver = driver
        self.starts = 0
        self.answers = False

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(first=0.05, most=5.0)
        while True:
            try:
                await self._ensure()
                backoff.reset()
                await self._until_dead()
                _log.warning("the arbiter has ended")
            except AliquotError as error:
                _log.error("the arbiter does not run", why=error.message)
                await asyncio.sleep(backoff.wait())
            finally:
                self.answers = False

    async def end(self) -> None:
        """End it, if nobody holds a grant."""
        with suppress(AliquotError):
            await asyncio.to_thread(control.stop, self._directory)

    async def _ensure(self) -> None:
        if not await asyncio.to_thread(control.answers, self._directory):
            await asyncio.to_thread(arbiter_process.start, self._directory, self._driver, linger=0)
            self.starts += 1
            _log.info("the arbiter was started", directory=str(self._directory))
        self.answers = True

    async def _until_dead(self) -> None:
        seen = await asyncio.to_thread(control.status, self._directory)
        await asyncio.to_thread(move_out, seen.pid)
        try:
            process = os.pidfd_open(seen.pid)
        except OSError:  # of another pid namespace, or gone already
            while await asyncio.to_thread(control.answers, self._directory):
                await asyncio.sleep(LOOK_SECONDS)
            return
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(process, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)
