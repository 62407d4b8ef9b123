"""Allocate: from device ids to a container, its cards, and what it gets.

Which cards a container has is decided and kept here; the grant itself is made when the container is
about to start (`start`). So an answer needs nobody but the books, and a container can be started
again after a reboot. Whatever of this dies between two steps:

- Before the books are kept, nothing has happened. The kubelet gets an error and turns the pod down.
- After that, before the answer: the kubelet turns the pod down too, and what the books say is
  released with the pod, which has failed.
- After the answer: both know the same.

Ids that somebody has come again in two cases. The kubelet gives those of an init container on to
what runs after it in the same pod, before any of that has started: then both are counted together.
Otherwise their pod has ended for the kubelet, and they are the new container's alone.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.node.books import OverTakenError
from aliquot.kubernetes.node.held import Held, Part, Settings
from aliquot.kubernetes.node.match import Burst, Call, carrier
from aliquot.kubernetes.node.place import chosen, parts_on, planned
from aliquot.kubernetes.node.whose import RefusedError
from aliquot.model.errors import NoCapacityError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.node.match import Wanted
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.roster import Guest, Roster
    from aliquot.kubernetes.node.whose import Whose
    from aliquot.model import Gpu

FRESH_SECONDS = 3.0
SEE = "See what holds the cards: kubectl get gpunodes -o yaml"


class Allocator:
    """Answers Allocate calls, one after the other."""

    def __init__(
        self,
        record: Record,
        roster: Roster,
        whose: Whose,
        gpus: Callable[[], Mapping[str, Gpu]],
        say: Callable[[Guest, str, str], None],
    ) -> None:
        self._record = record
        self._roster = roster
        self._whose = whose
        self._gpus = gpus
        self._say = say
        self._turn = asyncio.Lock()
        self._burst: Burst | None = None
        self._given: dict[str, float] = {}  # when, by grant, until it starts
        self._roles = {name: offer.role for name, offer in record.books.offers.items()}

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Held | None:
        """What the container holds; None: another resource's answer says it."""
        async with self._turn:
            call = Call(resource, tuple(sorted(ids)))
            given_on = self._given_on(call)
            burst = self._burst
            if burst and burst.wanted.is_known and self._roster.is_gone(burst.wanted.guest.uid):
                burst = None
            try:
                wanted = await self._whose.find(call, burst, given_on)
                return self._give(wanted, call, burst, given_on)
            except RefusedError as error:
                self._burst = None
                if error.guest is not None:
                    self._say(error.guest, error.reason, _sentence(error))
                raise

    def started(self, held: Held) -> None:
        """Its container starts: the kubelet gives its ids to nobody else while it lives."""
        self._given.pop(held.name, None)

    def is_fresh(self, held: Held) -> bool:
        """Whether it was given a moment ago, and the kubelet may not tell of it yet."""
        return time.monotonic() - self._given.get(held.name, 0.0) < FRESH_SECONDS

    def _given_on(self, call: Call) -> list[Held]:
        """Whose ids the kubelet gives on by this call."""
        held = (self._record.books.held.get(name) for name in self._given)
        return [
            one for one in held if one and call.touches(one) and not self._roster.is_over(one.owner)
        ]

    def _give(
        self, wanted: Wanted, call: Call, burst: Burst | None, given_on: Sequence[Held]
    ) -> Held | None:
        if burst is None or not burst.goes_on(wanted, call):
            burst = self._begun(wanted, call)
        ids = {call.resource: call.ids}
        brings = self._brings(wanted, call.resource)
        self._burst = None
        with self._record.changing() as books:
            books.strip(call.resource, call.ids, but=given_on)
            if brings:
                burst.held = self._take(wanted, {**burst.ids, **ids}, given_on)
            elif burst.held is not None:
                burst.held = self._add(burst, wanted, burst.held, ids)
        burst.wanted = wanted
        burst.ids |= ids
        self._given = {name: at for name, at in self._given.items() if name in books.held}
        if burst.held is not None:
            self._given[burst.held.name] = time.monotonic()
        if not burst.is_whole or not wanted.is_known:
            self._burst = burst
        return burst.held if brings else None

    def _begun(self, wanted: Wanted, call: Call) -> Burst:
        """The calls for a container, with those that came before others did."""
        for held in self._record.books.of_pod(wanted.guest.uid):
            if held.owner == wanted.owner and call.resource not in held.units:
                return Burst(wanted, dict(held.units), held)
        return Burst(wanted)

    def _brings(self, wanted: Wanted, resource: str) -> bool:
        """Whether the answer to this call carries what the container gets."""
        if not wanted.is_known and self._roles[resource] == "core":
            return False  # its memory comes too
        return resource == carrier(wanted.units, self._roles)

    def _take(
        self, wanted: Wanted, units: dict[str, tuple[str, ...]], given_on: Sequence[Held]
    ) -> Held:
        """Decide the cards and write them in."""
        books, why = self._record.books, ""
        brings = carrier({name: len(ids) for name, ids in units.items()}, self._roles)
        for before in given_on:
            if before.has(brings, units[brings]) and before.kind == wanted.request.kind:
                return self._join(wanted, before, units)
        for gpus in self._choices(wanted, units, given_on):
            held = self._held(wanted, gpus, units, given_on)
            if (why := books.why_not(held) or "") == "":
                books.take(held)
                return held
        raise self._no_room(wanted, f"no room for {wanted.request}: {why}")

    def _choices(
        self, wanted: Wanted, units: dict[str, tuple[str, ...]], given_on: Sequence[Held]
    ) -> Iterator[tuple[str, ...]]:
        """The plan's cards, then the brain's. What is given on stays on its cards, if it can."""
        books, request = self._record.books, wanted.request
        stranger = bool(given_on) and wanted.guest.uid != given_on[0].owner.uid
        plan = None if stranger else wanted.plan
        if gpus := planned(books, request, plan):
            yield gpus
        shape = self._held(wanted, (), units, given_on)
        try:
            yield chosen(books, self._gpus(), shape, request)
        except NoCapacityError as error:
            raise self._no_room(wanted, error.message) from error

    def _no_room(self, wanted: Wanted, why: str) -> RefusedError:
        error = RefusedError(why, SEE)
        error.guest = wanted.guest
        return error

    def _held(
        self,
        wanted: Wanted,
        gpus: tuple[str, ...],
        units: dict[str, tuple[str, ...]],
        given_on: Sequence[Held] = (),
    ) -> Held:
        request = wanted.request
        parts = parts_on(self._record.books, request, gpus)
        asked = Settings(
            memory=tuple(part.memory for part in parts),
            compute=request.compute,
            policy=request.policy,
            priority=request.priority,
        )
        return Held(
            name=f"{request.kind}-{uuid.uuid4().hex[:12]}",
            owner=wanted.owner,
            kind=request.kind,
            parts=parts,
            asked=asked,
            now=asked,
            units=units,
            by=carrier(wanted.units, self._roles),
            after=tuple(one.name for one in given_on),
        )

    def _join(self, wanted: Wanted, before: Held, units: dict[str, tuple[str, ...]]) -> Held:
        """One grant for an init container and one with the same ids, as large as the larger.

        When a container starts, the kubelet names its ids and not the container: which of the two
        it is could not be told.
        """
        new = self._held(wanted, tuple(part.gpu for part in before.parts), units)
        parts = tuple(
            Part(old.gpu, max(old.memory, one.memory), max(old.reserved, one.reserved))
            for old, one in zip(before.parts, new.parts, strict=True)
        )
        settings = msgspec.structs.replace(
            new.asked,
            memory=tuple(part.memory for part in parts),
            compute=max(before.asked.compute, new.asked.compute),
        )
        held = msgspec.structs.replace(
            new,
            name=before.name,
            after=before.after,
            parts=parts,
            asked=settings,
            now=settings,
            joined=True,
        )
        self._change(wanted, held)
        return held

    def _add(
        self, burst: Burst, wanted: Wanted, held: Held, ids: dict[str, tuple[str, ...]]
    ) -> Held:
        """More ids of a container that has its cards; it may be found to be another one."""
        now = msgspec.structs.replace(held, units={**held.units, **ids})
        if burst.wanted.owner != wanted.owner or not wanted.is_known:
            gpus = tuple(part.gpu for part in held.parts)
            other = self._held(wanted, gpus, now.units)
            now = msgspec.structs.replace(other, name=held.name, after=held.after)
        if held.name not in self._record.books.held:
            raise self._no_room(wanted, "what was given before has been released")
        self._change(wanted, now)
        return now

    def _change(self, wanted: Wanted, to: Held) -> None:
        try:
            self._record.books.change(to)
        except OverTakenError as error:
            raise self._no_room(wanted, str(error)) from error


def _sentence(error: RefusedError) -> str:
    return f"{error.message}. {error.hint}" if error.hint else error.message
