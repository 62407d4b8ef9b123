"""Leader election: of several replicas, the holder of a Lease acts.

The holder renews its lease every `retry` seconds. Another replica takes the lease if it has not
seen it change for `duration` seconds by its own clock, so clocks need not agree. A holder that
cannot renew for `deadline` seconds, which is less, stops leading before another can start. Every
write names the version that was read: of two replicas that take a lease at once, one is refused. A
replica that ends gives its lease back, so that the next one need not wait.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import LEASES, Lease, LeaseSpec, Meta

if TYPE_CHECKING:
    from aliquot.kubernetes.api.client import Client

RELEASE_SECONDS = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a lease is valid, when its holder gives up, and how often it renews; in seconds."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


USUAL_TIMES = LeaseTimes()


class Elector:
    """One replica's part in the election. `on_change` gets True if it leads now, else False."""

    def __init__(  # noqa: PLR0913 - the lease and its holder
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str = "",
        on_change: Callable[[bool], None],
        times: LeaseTimes = USUAL_TIMES,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._on_change = on_change
        self._times = times
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0
        self._renewed = 0.0
        self._leading = False

    @property
    def leading(self) -> bool:
        """Whether this replica leads at this moment; not if it was stopped for too long."""
        return self._leading and self._patience() > 0

    @property
    def holder(self) -> str:
        """The holder of the lease, as last seen."""
        return (self._seen and self._seen.holder_identity) or ""

    async def sees_a_leader(self) -> bool:
        """Whether another replica holds the lease and renews it; without taking part."""
        lease = await self._read()
        return lease is not None and self._held_by_another(lease.spec)

    async def run(self) -> None:
        """Take part, until cancelled; then give the lease back."""
        try:
            while True:
                started = time.monotonic()
                try:
                    async with asyncio.timeout(self._patience()):
                        won = await self._try(started)
                except (ApiError, TimeoutError) as error:
                    _log.info("the lease was not renewed", lease=self._name, why=str(error))
                    won = self._leading and self._patience() > 0
                self._set(leading=won)
                await asyncio.sleep(self._pause())
        finally:
            await self._release()

    def _patience(self) -> float:
        """Seconds in which a renewal must succeed."""
        if not self._leading:
            return self._times.deadline
        return max(0.0, self._renewed + self._times.deadline - time.monotonic())

    def _pause(self) -> float:
        return self._times.retry * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret

    async def _try(self, started: float) -> bool:
        lease = await self._read()
        if lease is None:
            fresh = Lease(Meta(name=self._name, namespace=self._namespace), self._spec(None))
            return self._took(await self._client.create(LEASES, fresh), started)
        if self._held_by_another(lease.spec):
            return False
        if lease.spec.holder_identity != self.identity:  # another replica has led meanwhile
            self._set(leading=False)
        ours = msgspec.structs.replace(lease, spec=self._spec(lease.spec))
        return self._took(await self._client.replace(LEASES, ours), started)

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._name, self._namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _held_by_another(self, spec: LeaseSpec) -> bool:
        self._look(spec)
        return spec.holder_identity not in {self.identity, "", None} and not self._run_out()

    def _look(self, spec: LeaseSpec) -> None:
        if spec != self._seen:
            self._seen, self._seen_at = spec, time.monotonic()

    def _run_out(self) -> bool:
        return time.monotonic() - self._seen_at > self._times.duration

    def _took(self, lease: Lease, started: float) -> bool:
        self._look(lease.spec)
        self._renewed = started
        return True

    def _spec(self, before: LeaseSpec | None) -> LeaseSpec:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before is not None and before.holder_identity == self.identity
        changes = (before.lease_transitions or 0) if before else 0
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=max(1, round(self._times.duration)),
            acquire_time=before.acquire_time if before and mine else now,
            renew_time=now,
            lease_transitions=changes if mine or before is None else changes + 1,
        )

    def _set(self, *, leading: bool) -> None:
        if leading != self._leading:
            self._leading = leading
            _log.info("leads" if leading else "does not lead", lease=self._name, who=self.identity)
            self._on_change(leading)

    async def _release(self) -> None:
        if not self._leading:
            return
        self._set(leading=False)
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                lease = await self._read()
                if lease is not None and lease.spec.holder_identity == self.identity:
                    free = msgspec.structs.replace(
                        lease.spec, holder_identity="", lease_duration_seconds=1
                    )
                    await self._client.replace(LEASES, msgspec.structs.replace(lease, spec=free))
