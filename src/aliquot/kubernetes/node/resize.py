"""What a running pod's annotations make of its slices.

The kubelet fixes a pod's device ids for its life, so the books hold these rules. Growth first takes
that many free units of the card out of the counts, or is refused; what is promised to pods that are
about to start is not free. A shrink gives nothing back before the pod ends: the kubelet could not
give it to another. Every change, done or refused, is answered with an event on the pod; what was
refused is tried again when the pod says something else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import structlog

from aliquot.kubernetes.api import names
from aliquot.kubernetes.api.requests import InvalidRequestError, hard_without_compute, settings_of
from aliquot.kubernetes.node.books import OverTakenError
from aliquot.kubernetes.node.held import Settings
from aliquot.kubernetes.node.promised import with_promised
from aliquot.model import Policy, Priority, format_bytes, format_share
from aliquot.model.errors import AliquotError, NoSuchGrantError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.node.books import Books
    from aliquot.kubernetes.node.events import Events
    from aliquot.kubernetes.node.grants import Grants
    from aliquot.kubernetes.node.held import Held, Owner
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.roster import Guest, Roster
    from aliquot.kubernetes.node.units import Card

_log = structlog.get_logger(__name__)


def wanted_by(guest: Guest, held: Held, cards: Mapping[str, Card]) -> Settings:
    """The settings that the pod asks for now; InvalidRequestError if they are invalid."""
    said = settings_of(guest.pod)
    if held.kind != "sliced" and (said.memory or said.compute is not None):
        raise InvalidRequestError(
            "OnlySlices",
            f"{_name(held)} has {held.kind} GPUs: they have one size",
            f"Take the annotations {names.MEMORY} and {names.COMPUTE} away.",
        )
    asked = {one.container: one.compute for one in guest.requests}
    compute = asked.get(held.owner.container, held.asked.compute)
    if held.kind == "sliced" and said.compute is not None:
        compute = said.compute
    if said.policy is Policy.HARD and not compute:
        ask_with = f"the annotation {names.COMPUTE}"
        raise hard_without_compute(held.owner.container, held.kind, ask_with)
    memory = held.asked.memory
    if said.memory is not None:
        memory = tuple(said.memory.of(cards[part.gpu].memory) for part in held.parts)
    return Settings(memory, compute, said.policy, said.priority)


def resized(held: Held, to: Settings) -> Held:
    """What the books count then: what was asked for, or more."""
    idle = to.priority is Priority.BACKGROUND
    share = 0 if idle else max(held.asked.compute, to.compute)
    parts = tuple(
        msgspec.structs.replace(part, memory=max(asked, size), reserved=share)
        for part, asked, size in zip(held.parts, held.asked.memory, to.memory, strict=True)
    )
    if held.kind != "sliced":
        parts = held.parts
    return msgspec.structs.replace(held, now=to, parts=parts)


class Resizer:
    """Brings grants to what the pods say."""

    def __init__(self, record: Record, roster: Roster, grants: Grants, events: Events) -> None:
        self._record = record
        self._roster = roster
        self._grants = grants
        self._events = events
        self._turn = asyncio.Lock()
        self._seen: dict[str, tuple[Owner, dict[str, str]]] = {}  # by grant: what was followed
        self._answered: dict[str, dict[str, str]] = {}  # by grant: the annotations refused

    async def look(self) -> None:
        """Do what pods ask for that has not been done."""
        books = self._record.books
        for held in list(books.held.values()):
            guest = self._roster.get(held.owner.uid)
            if guest is None or not guest.live or not held.sure or held.name not in books.held:
                continue
            if self._seen.get(held.name) != (held.owner, guest.pod.metadata.annotations):
                await self.follow(guest, held.name)
                self._seen[held.name] = (held.owner, guest.pod.metadata.annotations)
        self._seen = {name: seen for name, seen in self._seen.items() if name in books.held}

    async def follow(self, guest: Guest, name: str) -> None:
        """Bring one container's grant to what its pod says; an init container's stays."""
        async with self._turn:
            books = self._record.books
            held = books.held.get(name)
            if held is not None and not books.ends_first(held):
                await self._follow(guest, held)

    async def _follow(self, guest: Guest, held: Held) -> None:
        notes = guest.pod.metadata.annotations
        try:
            to = wanted_by(guest, held, self._record.books.cards)
            if to != held.now and self._answered.get(held.name) != notes:
                await self._change(held, to)
                self._events.say(guest, "Resized", _told(held, to), warning=False)
        except InvalidRequestError as error:
            text = f"{error} Until then no annotation changes {_name(held)}."
            self._refuse(guest, held, error.reason, text)
        except (OverTakenError, AliquotError) as error:
            text = f"{_name(held)} stays as it is: {_sentence(held, error)}"
            self._refuse(guest, held, "ResizeRefused", text)

    async def _change(self, held: Held, to: Settings) -> None:
        done = resized(held, to)
        promised = with_promised(self._record.books, self._roster.live())
        with self._record.changing() as books:
            books.change(done)
            _change_beside(promised, done)
        try:
            await self._grants.change(done, to)
        except NoSuchGrantError:
            pass  # its container has not started: it will be made like this
        except AliquotError:
            with self._record.changing() as books:
                books.change(held)
            raise

    def _refuse(self, guest: Guest, held: Held, reason: str, text: str) -> None:
        notes = guest.pod.metadata.annotations
        if self._answered.get(held.name) != notes:
            self._answered[held.name] = dict(notes)
            self._events.say(guest, reason, text)


def _change_beside(promised: Books, done: Held) -> None:
    """See that growth leaves what is promised; OverTakenError where it does not."""
    try:
        promised.change(done)
    except OverTakenError as error:
        raise OverTakenError(f"{error}; other pods are about to start here") from error


def _told(held: Held, to: Settings) -> str:
    """What changed, in words."""
    was = held.now
    changes = []
    if was.memory != to.memory:
        changes.append(f"memory {_sizes(was)} to {_sizes(to)}")
    if was.compute != to.compute:
        changes.append(f"compute {format_share(was.compute)} to {format_share(to.compute)}")
    if was.policy != to.policy:
        changes.append(f"policy {was.policy} to {to.policy}")
    if was.priority != to.priority:
        changes.append(f"priority {was.priority} to {to.priority}")
    return f"{_name(held)}: {', '.join(changes)}"


def _sizes(settings: Settings) -> str:
    return " and ".join(format_bytes(size) for size in dict.fromkeys(settings.memory))


def _name(held: Held) -> str:
    return f"container {held.owner.container!r}"


def _sentence(held: Held, error: Exception) -> str:
    text = error.message if isinstance(error, AliquotError) else str(error)
    return text.replace(f"grant {held.name}", "it").replace("\n", " ").rstrip(".")
