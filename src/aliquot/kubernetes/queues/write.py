"""Writes the status of queues: on change, and each at most once a second.

The writer compares each status with the one that the API server has, so a new leader writes only
the differences. Nothing waits for it: a status that cannot be written is tried again later.
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
    from aliquot.kubernetes.queues.status import QueueUsage

SECONDS = 1.0

_log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes statuses from `usage` after each call of `change`, while this replica leads."""

    def __init__(
        self,
        client: Client,
        queues: Queues,
        usage: Callable[[], Mapping[str, QueueUsage]],
        leading: Callable[[], bool] = lambda: True,
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._client = client
        self._queues = queues
        self._usage = usage
        self._leading = leading
        self._seconds = seconds
        self._changed = asyncio.Event()

    def change(self) -> None:
        """Queues, what they use, or the leader may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write, until cancelled."""
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
        """Write all statuses that differ from the API server's; False if some failed."""
        done = True
        for name, status in statuses(self._queues, self._usage(), time.time()).items():
            one = self._queues.objects.get(name)
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
            _log.warning("a queue's status was not written", queue=name, why=error.message)
            return False
        before = self._queues.objects.get(name)
        if before is not None and before.metadata.uid == now.metadata.uid:
            self._queues.set_queue(name, now)
        return True
