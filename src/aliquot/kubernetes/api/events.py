"""Events on objects, for people: why a pod waits, what became of a resize.

Recording never blocks and never fails: an event is put into a queue, and `run` writes it. The same
reason and message on the same object again only raises a count, which is written at most every
`AGAIN` seconds. An object gets `BURST` different events at once and one more every `REFILL`
seconds. What has to wait for that is held, the newest of each object and reason: so the last word
is always written, with the time at which it was said. What a newer one replaces before it was
written, and what does not fit the queue, is dropped and counted.
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
FORGET = 600.0  # after that it is a new event
BURST = 10
REFILL = 30.0
LOOK_SECONDS = 1.0  # how often what is held is looked at
FLUSH_SECONDS = 2.0
TRIES = 8
LONGEST = 1024  # the API server takes no longer message

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Known:
    """An event that was recorded, how often, and whether the API server has it.

    `taken`: it has taken its part of what its object may have; `due`: when it may be written next.
    """

    about: str
    event: Event
    count: int = 0
    taken: bool = False
    made: bool = False
    last: float = 0.0
    said: str = ""
    due: float = 0.0


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Recorder:
    """Writes events in the name of one component, in the background."""

    def __init__(
        self, client: Client, component: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._source = EventSource(component, socket.gethostname())
        self._now = now
        self._known: OrderedDict[tuple[str, str, str, str], _Known] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._queue: asyncio.Queue[_Known] = asyncio.Queue(QUEUE)
        self._held: OrderedDict[tuple[str, str], _Known] = OrderedDict()  # by object and reason
        self._look_at = 0.0
        self.dropped = 0

    def record(self, of: Resource[T], one: T, type_: Type, reason: str, message: str) -> None:
        """Say this of an object."""
        self.record_on(of.reference(one), type_, reason, message)

    def record_on(self, about: Reference, type_: Type, reason: str, message: str) -> None:
        """Say this of the object that is meant."""
        message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
        key = (about.uid or about.name, type_, reason, message)
        now = self._now()
        known = self._known.get(key)
        if known is None or now - known.last >= FORGET:
            known = _Known(key[0], self._event(about, type_, reason, message), due=now)
            _keep(self._known, key, known)
        known.count += 1
        known.last = now
        known.said = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._replace(known)
        if self._may_write(known, now):
            self._put(known)
        else:
            self.dropped += _keep(self._held, (known.about, reason), known)

    async def run(self) -> None:
        """Write what is recorded, until cancelled; what is left then is written within 2 s."""
        try:
            while True:
                known = await self._next()
                try:
                    await self._write(known)
                except asyncio.CancelledError:
                    self._put(known)
                    raise
        finally:
            self._let_go(all_of_them=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    while not self._queue.empty():
                        await self._write(self._queue.get_nowait())

    async def _next(self) -> _Known:
        while True:
            if self._now() >= self._look_at:
                self._look_at = self._now() + LOOK_SECONDS
                self._let_go()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self._queue.get()

    def _let_go(self, *, all_of_them: bool = False) -> None:
        """Queue what need not be held any longer, what was said last first."""
        now = self._now()
        for place, known in reversed(list(self._held.items())):
            if self._queue.full():
                break
            if all_of_them or self._may_write(known, now):
                del self._held[place]
                self._put(known)

    def _replace(self, known: _Known) -> None:
        """What is held of the same object and reason is not the last word any more."""
        before = self._held.pop((known.about, known.event.reason), None)
        if before is not None and before is not known and not before.taken:
            self.dropped += 1

    def _may_write(self, known: _Known, now: float) -> bool:
        """Whether it is its turn; it has taken it then."""
        if now < known.due or not (known.taken or self._may(known.about, now)):
            return False
        known.taken = True
        known.due = now + AGAIN
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
        bucket.left = min(BURST, bucket.left + (now - bucket.at) / REFILL)
        bucket.at = now
        _keep(self._buckets, about, bucket)
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True

    def _put(self, known: _Known) -> None:
        try:
            self._queue.put_nowait(known)
        except asyncio.QueueFull:
            self.dropped += 1

    async def _write(self, known: _Known) -> None:
        backoff = Backoff(most=REFILL)
        for _ in range(TRIES):
            try:
                return await self._send(known)
            except ApiError as error:
                why = error
                if not error.passing:
                    break
            await asyncio.sleep(backoff.wait())
        self.dropped += 1
        _log.info("an event was not written", reason=known.event.reason, why=why.message)
        return None

    async def _send(self, known: _Known) -> None:
        event, stamp = known.event, known.said
        meta = event.metadata
        if known.made:
            changes = {"count": known.count, "lastTimestamp": stamp}
            try:
                await self._client.patch(EVENTS, meta.name, changes, namespace=meta.namespace)
            except ApiError as error:
                if not error.not_found:
                    raise
                known.made = False  # the API server forgets events after an hour
            else:
                return
        fresh = msgspec.structs.replace(
            event, count=known.count, first_timestamp=stamp, last_timestamp=stamp
        )
        try:
            await self._client.create(EVENTS, fresh)
        except ApiError as error:
            if not error.conflict:  # else it was cut off when it was written already
                raise
        known.made = True


_Value = TypeVar("_Value")
_Key = TypeVar("_Key")


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> int:
    """Keep the last that were used; how many others went."""
    kept[key] = value
    kept.move_to_end(key)
    over = max(0, len(kept) - KEPT)
    for _ in range(over):
        kept.popitem(last=False)
    return over
