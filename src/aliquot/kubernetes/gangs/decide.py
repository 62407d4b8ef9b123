"""Who starts now, who is promised a start, who makes room for whom: the brain's word. Pure.

First comes what completes a gang of which a part has its nodes already, as near to that as there is
room. Then all that wait, in their queues' turns, by reservations with backfill. Who does not start
and has a right to what others hold is given their places, and they are to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.backfill import plan_starts
from aliquot.placement.demand import Running
from aliquot.placement.gangs import plan_gang
from aliquot.placement.preempt import entitled, preempt
from aliquot.placement.queues import in_turn, usage, within_quota

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Gang, Placement
    from aliquot.placement.preempt import Preemption
    from aliquot.placement.queues import Queue
    from aliquot.placement.snapshot import Hardware
    from aliquot.placement.strategies import Strategy

CLAIMS, TRIES = 4, 16  # made and looked into in one decision: each may weigh many ways


@dataclass(frozen=True, slots=True)
class Question:
    """All that a decision is made from.

    `rests` are the missing members of gangs, each with the nodes (rows) of the members that have
    theirs. `spared` are the names of what runs and is not to make room now, for each gang.
    """

    books: Books
    running: Sequence[Running]
    promised: Sequence[Running]
    waiting: Sequence[Gang]
    rests: Sequence[tuple[Gang, Collection[int]]]
    queues: Mapping[str, Queue]
    now: float
    by: Strategy | None = None
    spared: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: `never` are those that cannot start on this cluster, and why."""

    starts: tuple[Running, ...] = ()
    promises: tuple[Running, ...] = ()
    claims: tuple[tuple[Gang, Preemption], ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)


def decide(question: Question) -> Decision:
    """Decide for all that wait."""
    now, by, hardware = question.now, question.by, question.books.hardware
    never = {one.name: why for one in question.waiting if (why := _too_large(one, hardware))}
    waiting = [one for one in question.waiting if one.name not in never]
    books = question.books.copy()
    first, left = _complete(books, question)
    running = [*question.running, *first]
    promised = {one.gang.name for one in question.promised}
    used = usage(running, hardware)
    order, over = in_turn(waiting, question.queues, used, hardware, promised)
    own = within_quota(order, question.queues, used, hardware) | {one.name for one in left}
    plan = plan_starts(books, running, question.promised, [*left, *order], now, by=by, own=own)
    for one in plan.starts:
        books.take_gang(one, known_to_fit=True)
    asking = _Asking(books, [*running, *plan.starts], list(plan.reservations), question)
    started = {one.gang.name for one in plan.starts}
    refused = [one for one in waiting if one.name in over]
    behind = [one for one in order if one.name not in started]
    claims = asking.claims([*behind, *refused])
    return Decision(
        starts=tuple(one for one in (*first, *plan.starts) if one not in asking.ended),
        promises=tuple(asking.promised),
        claims=tuple((gang, _of_those_that_run(claim, question)) for gang, claim in claims),
        waits={**over, **plan.reasons, **_told(claims, question)},
        never=never,
    )


def _too_large(gang: Gang, hardware: Hardware) -> str:
    """Why a gang is larger than the cluster; nothing where it is not."""
    models = frozenset[str]().union(*(one.models for one in gang.members))
    every = all(one.models for one in gang.members)
    rows = hardware.models_allowed(models) if every else np.ones(hardware.size, dtype=bool)
    total = 1000 * int(hardware.present[rows].sum())
    if gang.milli <= total:
        return ""
    where = "on the nodes that it may go to" if every else "in the cluster"
    return f"it asks for {gang.milli / 1000:g} GPUs, and there are {total / 1000:g} {where}"


def _complete(books: Books, question: Question) -> tuple[list[Running], list[Gang]]:
    """The missing members that find room, which is taken; and those that do not."""
    found, left = [], []
    for gang, nodes in question.rests:
        placements = _near(books, gang, nodes, question.by)
        if placements is None:
            left.append(gang)
            continue
        one = Running(gang, placements, question.now, question.now + gang.seconds)
        books.take_gang(one, known_to_fit=True)
        found.append(one)
    return found, left


def _near(
    books: Books, gang: Gang, nodes: Collection[int], by: Strategy | None
) -> tuple[Placement, ...] | None:
    """Places near these nodes: on them, in their racks, in their blocks, anywhere."""
    hardware = books.hardware
    here = np.zeros(hardware.size, dtype=bool)
    here[list(nodes)] = True
    racks, blocks = np.unique(hardware.rack[here]), np.unique(hardware.block[here])
    rings = (here, np.isin(hardware.rack, racks), np.isin(hardware.block, blocks))
    for ring in rings:
        part = books.copy()
        part.hardware = replace(hardware, present=hardware.present & ring[:, None])
        found = plan_gang(part, gang, by)
        if found is not None:
            return found
    return plan_gang(books, gang, by)


def _told(claims: Iterable[tuple[Gang, Preemption]], question: Question) -> dict[str, str]:
    """What those are told that start later than they would have."""
    told = {name: why for _, claim in claims for name, why in claim.to_victims.items()}
    run = {one.gang.name for one in question.running}
    return {name: why for name, why in told.items() if name not in run}


def _of_those_that_run(claim: Preemption, question: Question) -> Preemption:
    """Who was to start now and does not has nothing to end."""
    return replace(claim, victims=tuple(one for one in claim.victims if one in question.running))


class _Asking:
    """Who is given the places of others; nobody makes room twice.

    `ended` are all who make room. Who was to start now and makes room loses nothing: it does not
    start. `promised` is what is still promised.
    """

    def __init__(
        self,
        books: Books,
        running: Sequence[Running],
        promised: list[Running],
        question: Question,
    ) -> None:
        self._books = books
        self._running = list(running)
        self._question = question
        self.promised = promised
        self.ended: list[Running] = []

    def claims(self, behind: Sequence[Gang]) -> tuple[tuple[Gang, Preemption], ...]:
        """Of those that do not start, who has a right and a way."""
        queues, hardware = self._question.queues, self._books.hardware
        asking = entitled(behind, self._running, queues, hardware, self.promised)
        found: list[tuple[Gang, Preemption]] = []
        for gang in asking[:TRIES]:
            claim = self._claim(gang) if len(found) < CLAIMS else None
            if claim is not None:
                found.append((gang, claim))
        return tuple(found)

    def _claim(self, gang: Gang) -> Preemption | None:
        question, books = self._question, self._books
        spared = question.spared.get(gang.name, ())
        others = [one for one in self._running if one.gang.name not in spared]
        promised = self.promised
        now, by = question.now, question.by
        claim = preempt(books, gang, others, question.queues, now, promised=promised, by=by)
        if claim is None:
            return None
        gone = {gang.name, *(one.gang.name for one in claim.withdrawn)}
        self.promised = [one for one in promised if one.gang.name not in gone]
        self.ended += claim.victims
        for one in claim.victims:
            self._running.remove(one)
            books.give_gang(one)
        books.take_gang(Running(gang, claim.placements, now, now + gang.seconds))
        return claim
