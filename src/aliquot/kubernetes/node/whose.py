"""Whose an Allocate call is, as far as the agent can tell when it comes."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from aliquot.kubernetes import names
from aliquot.kubernetes.api.objects import Meta, Pod
from aliquot.kubernetes.node.match import Wanted, candidates, match, must_be_given_on
from aliquot.kubernetes.node.roster import Guest
from aliquot.kubernetes.pods import ContainerRequest, quantity
from aliquot.model.errors import AliquotError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aliquot.kubernetes.api.objects import Container
    from aliquot.kubernetes.node.held import Held
    from aliquot.kubernetes.node.identity import Identity
    from aliquot.kubernetes.node.match import Burst, Call
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.roster import Roster

WAIT_SECONDS = 1.0


class RefusedError(AliquotError):
    """The kubelet gets no units for a container."""

    def __init__(self, message: str, hint: str | None = None, *, reason: str = "NoRoom") -> None:
        super().__init__(message, hint)
        self.reason = reason
        self.guest: Guest | None = None


class Whose:
    """Finds the container that a call is for."""

    def __init__(self, record: Record, roster: Roster, identity: Identity) -> None:
        self._record = record
        self._roster = roster
        self._identity = identity
        self._roles = {name: offer.role for name, offer in record.books.offers.items()}

    async def find(self, call: Call, burst: Burst | None, given_on: Sequence[Held]) -> Wanted:
        """The container that a call is for; after a second, one of which only the size is known.

        `given_on` are the pod's init containers, where the call has ids of theirs.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            if found := self._likely(call, burst, given_on):
                return found
            if found := await self._once_more(call, burst, given_on):
                return found
            left = deadline - time.monotonic()
            if left <= 0 or not await self._roster.wait_news(left):
                break
        if refused := self._refused(call):
            raise refused
        return self._of_that_size(call) or self._nobody(call, burst)

    def _likely(self, call: Call, burst: Burst | None, given_on: Sequence[Held]) -> Wanted | None:
        if burst and burst.lacks(call.resource, call.count):
            return burst.wanted
        guests = self._roster.live()
        last = next(iter(given_on), None)
        waiting = list(candidates(guests, self._taken, last.owner.uid if last else None))
        if given_on:
            return match(waiting, burst, call) or self._of_that_size(call)
        able = [one for one in waiting if not must_be_given_on(call, self._inits(one.guest))]
        return match(able, burst, call) or self._late(call) or match(waiting, burst, call)

    def _late(self, call: Call) -> Wanted | None:
        """One that lacks just this, though others have come since: its name was put right."""
        for held in reversed(self._record.books.held.values()):
            guest = self._roster.get(held.owner.uid)
            request = guest.request(held.owner.container) if guest and guest.waits else None
            if guest and request and call.fits(request) and call.resource not in held.units:
                return Wanted(guest, request)
        return None

    def _taken(self, uid: str) -> frozenset[str]:
        return frozenset(held.owner.container for held in self._record.books.of_pod(uid))

    def _inits(self, guest: Guest) -> list[Held]:
        inits = {one.container for one in guest.requests if one.init}
        held = self._record.books.of_pod(guest.uid)
        return [one for one in held if one.owner.container in inits]

    def _of_that_size(self, call: Call) -> Wanted | None:
        """A container of which only the size is known: all of that size have been given theirs.

        One of them was given what is this one's, or what was of one that was turned down.
        """
        guests = (guest for guest in self._roster.live() if guest.waits)
        fits = (one for guest in guests for one in guest.requests if call.fits(one))
        size = next(fits, None)
        return Wanted(_stranger(), replace(size, container="", init=False)) if size else None

    async def _once_more(
        self, call: Call, burst: Burst | None, given_on: Sequence[Held]
    ) -> Wanted | None:
        """Whom it is for once the kubelet was asked whose is what those of that size have."""
        for held in list(self._record.books.held.values()):
            guest = self._roster.get(held.owner.uid)
            named = guest.request(held.owner.container) if guest and guest.waits else None
            if held.sure or named is None or not call.fits(named):
                continue
            await self._identity.confirm(held.name)
            if found := self._likely(call, burst, given_on):
                return found
        return None

    def _refused(self, call: Call) -> RefusedError | None:
        """Where a pod asks for this that makes no sense, and has not been given it before."""
        for guest in self._roster.live():
            if not (guest.bad and guest.waits):
                continue
            taken = self._taken(guest.uid)
            every = (*guest.pod.spec.init_containers, *guest.pod.spec.containers)
            if any(_asks(one, call) for one in every if one.name not in taken):
                error = RefusedError(str(guest.bad), reason=guest.bad.reason)
                error.guest = guest
                return error
        return None

    def _nobody(self, call: Call, burst: Burst | None) -> Wanted:
        """A container of which nothing is known but this call."""
        units, guest = {call.resource: call.count}, _stranger()
        if burst and not burst.wanted.is_known and call.resource not in burst.ids:
            units |= burst.wanted.units
            guest = burst.wanted.guest
        return Wanted(guest, self._by_units(units))

    def _by_units(self, units: Mapping[str, int]) -> ContainerRequest:
        """What a container asks for that has these units, of one card where they are parts."""
        by_role = {self._roles[name]: (name, count) for name, count in units.items()}
        told = tuple(sorted(units.items()))
        for role in ("whole", "slot"):
            if role in by_role:
                return ContainerRequest("", "whole", by_role[role][1], compute=100, units=told)
        if "shared" in by_role:
            return ContainerRequest("", "shared", by_role["shared"][1], units=told)
        memory, count = by_role.get("memory", ("", 0))
        unit = self._record.books.offers[memory].memory_unit if memory else 0
        core = min(by_role.get("core", ("", 0))[1], names.CORE_UNITS)
        return ContainerRequest("", "sliced", 1, memory=count * unit, compute=core, units=told)


def _stranger() -> Guest:
    return Guest(Pod(metadata=Meta(uid=f"unknown-{uuid.uuid4().hex[:12]}")))


def _asks(container: Container, call: Call) -> bool:
    with suppress(InvalidValueError):
        return quantity(container.resources.limits.get(call.resource, 0)) == call.count
    return False
