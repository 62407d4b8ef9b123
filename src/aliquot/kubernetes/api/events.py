"""Events on objects, for people: why a pod waits, what became of a resize.

Recording never blocks and never fails: an event is put into a queue, and `run` writes it. The same
reason and message on the same object again only increases a count, which is written at most every
`AGAIN` seconds. An object gets `BURST` different events at once and one more every `REFILL`
seconds. Of the events that must wait for that, only the newest of each object and reason is kept:
so the last event is always written, with the time at which it was recorded. Events that a newer one
replaced before they were written, and those that do not fit into the queue, are dropped and
counted.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import EVENTS, ApiObject, Event, EventSource, Meta, Reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Resource

T = TypeVar("T", bound=ApiObject)
Type = Literal["Normal", "Warning"]

QUEUE = 1000
KEPT = 4096  # events whose counts are remembered
AGAIN = 10.0
FORGET = 600.0  # seconds after which a repetition is a new event
BURST = 10
REFILL = 30.0
DELAYED_SECONDS = 1.0  # between two looks at delayed events
FLUSH_SECONDS = 2.0
TRIES = 8
LONGEST = 1024  # characters that the API server accepts

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Recorded:
    """An event, how often it was recorded, and whether the API server has it (`created`).

    `counted`: it was counted against its object's rate; `due`: when it may be written next.
    """

    about: str
    event: Event
    count: int = 0
    counted: bool = False
    created: bool = False
    last: float = 0.0
    stamp: str = ""
    due: float = 0.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Recorder:
    """Writes the events of one component, in the background."""

    def __init__(
        self, client: Client, component: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._source = EventSource(component, socket.gethostname())
        self._now = now
        self._recorded: OrderedDict[tuple[str, str, str, str], _Recorded] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._queue: asyncio.Queue[_Recorded] = asyncio.Queue(QUEUE)
        self._delayed: OrderedDict[tuple[str, str], _Recorded] = OrderedDict()  # object and reason
        self._next_look = 0.0
        self.dropped = 0

    def record(self, of: Resource[T], one: T, type_: Type, reason: str, message: str) -> None:
        """Record an event on an object."""
        self.record_on(of.reference(one), type_, reason, message)

    def record_on(self, about: Reference, type_: Type, reason: str, message: str) -> None:
        """Record an event on the referenced object."""
        message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
        key = (about.uid or about.name, type_, reason, message)
        now = self._now()
        recorded = self._recorded.get(key)
        if recorded is None or now - recorded.last >= FORGET:
            recorded = _Recorded(key[0], self._event(about, type_, reason, message), due=now)
            _keep(self._recorded, key, recorded)
        recorded.count += 1
        recorded.last = now
        recorded.stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._replace(recorded)
        if self._may_write(recorded, now):
            self._put(recorded)
        else:
            self.dropped += _keep(self._delayed, (recorded.about, reason), recorded)

    async def run(self) -> None:
        """Write recorded events, until cancelled; then write the rest within 2 s."""
        try:
            while True:
                recorded = await self._next()
                try:
                    await self._write(recorded)
                except asyncio.CancelledError:
                    self._put(recorded)
                    raise
        finally:
            self._queue_delayed(all_of_them=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    while not self._queue.empty():
                        await self._write(self._queue.get_nowait())

    async def _next(self) -> _Recorded:
        while True:
            if self._now() >= self._next_look:
                self._next_look = self._now() + DELAYED_SECONDS
                self._queue_delayed()
            with suppress(TimeoutError):
                async with asyncio.timeout(DELAYED_SECONDS):
                    return await self._queue.get()

    def _queue_delayed(self, *, all_of_them: bool = False) -> None:
        """Queue delayed events that may be written now, the newest first."""
        now = self._now()
        for place, recorded in reversed(list(self._delayed.items())):
            if self._queue.full():
                break
            if all_of_them or self._may_write(recorded, now):
                del self._delayed[place]
                self._put(recorded)

    def _replace(self, recorded: _Recorded) -> None:
        """Drop the delayed event of the same object and reason: this one is newer."""
        before = self._delayed.pop((recorded.about, recorded.event.reason), None)
        if before is not None and before is not recorded and not before.counted:
            self.dropped += 1

    def _may_write(self, recorded: _Recorded, now: float) -> bool:
        """Whether an event may be written now; if so, count it against its object's rate."""
        if now < recorded.due or not (recorded.counted or self._may(recorded.about, now)):
            return False
        recorded.counted = True
        recorded.due = now + AGAIN
        return True

    def _event(self, about: Reference, type_: Type, reason: str, message: str) -> Event:
        return Event(
            metadata=Meta(
                name=f"{about.name[:200]}.{uuid.uuid4().hex[:16]}",
                namespace=about.namespace or "default",
            ),
            involved_object=about,
            reason=reason,
            message=message,
            source=self._source,
            type=type_,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )

    def _may(self, about: str, now: float) -> bool:
        bucket = self._buckets.get(about) or _Bucket(BURST, now)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at) / REFILL)
        bucket.at = now
        _keep(self._buckets, about, bucket)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _put(self, recorded: _Recorded) -> None:
        try:
            self._queue.put_nowait(recorded)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _write(self, recorded: _Recorded) -> None:
        backoff = Backoff(most=REFILL)
        for _ in range(TRIES):
            try:
                return await self._send(recorded)
            except ApiError as error:
                why = error
                if not error.passing:
                    break
            await asyncio.sleep(backoff.wait())
        self.dropped += 1
        _log.info("an event was not written", reason=recorded.event.reason, why=why.message)
        return None

    async def _send(self, recorded: _Recorded) -> None:
        event, stamp = recorded.event, recorded.stamp
        meta = event.metadata
        if recorded.created:
            changes = {"count": recorded.count, "lastTimestamp": stamp}
            try:
                await self._client.patch(EVENTS, meta.name, changes, namespace=meta.namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
                recorded.created = False  # the API server deletes events after an hour
            else:
                return
        fresh = msgspec.structs.replace(
            event, count=recorded.count, first_timestamp=stamp, last_timestamp=stamp
        )
        try:
            await self._client.create(EVENTS, fresh)
        except ApiError as error:
            if not error.conflict:  # else an earlier try was cut off after it was written
                raise
        recorded.created = True


_Value = TypeVar("_Value")
_Key = TypeVar("_Key")


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> int:
    """Add an entry and drop the oldest above `KEPT`; returns how many were dropped."""
    kept[key] = value
    kept.move_to_end(key)
    over = max(0, len(kept) - KEPT)
    for _ in range(over):
        kept.popitem(last=False)
    return over
