"""Writes the status of queues: on change, and each at most once a second.

What is written is compared with what the API server had last, so a new leader writes only what
differs. Nobody waits for it: a queue whose status cannot be written is tried again later.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import QUEUES
from aliquot.kubernetes.queues.status import statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.queue import QueueStatus
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.queues.status import Load

SECONDS = 1.0

_log = structlog.get_logger(__name__)


class Writer:
    """Writes what `loads` tells, whenever `change` was called, while this replica leads."""

    def __init__(
        self,
        client: Client,
        known: Queues,
        loads: Callable[[], Mapping[str, Load]],
        leading: Callable[[], bool] = lambda: True,
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._client = client
        self._known = known
        self._loads = loads
        self._leading = leading
        self._seconds = seconds
        self._changed = asyncio.Event()

    def change(self) -> None:
        """There may be something new: of queues, of what they have, or of who leads."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(first=self._seconds)
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._leading() and not await self._write_all():
                self._changed.set()
                await asyncio.sleep(backoff.wait())
            else:
                backoff.reset()
                await asyncio.sleep(self._seconds)

    async def _write_all(self) -> bool:
        """Whether all is written that differs from what the API server has."""
        done = True
        for name, status in statuses(self._known, self._loads(), time.time()).items():
            one = self._known.objects.get(name)
            if not self._leading():
                return True
            if one is not None and one.status != status:
                done &= await self._write(name, status)
        return done

    async def _write(self, name: str, status: QueueStatus) -> bool:
        patch = {"status": msgspec.to_builtins(status)}
        try:
            now = await self._client.patch(QUEUES, name, patch, sub="status")
        except ApiError as error:
            if error.not_found:
                return True
            _log.warning("a queue's status is not written", queue=name, why=error.message)
            return False
        known = self._known.objects.get(name)
        if known is not None and known.metadata.uid == now.metadata.uid:
            self._known.set_queue(name, now)
        return True
