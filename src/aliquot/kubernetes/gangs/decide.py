"""Who starts now, who is promised a start, who makes room for whom: the brain's word. Pure.

First comes what completes a gang of which a part has its nodes already, as near to that as there is
room. Then all that wait, in their queues' turns, by reservations with backfill. Who does not start
and has a right to what others hold is given their places, and they are to end. Where it would be
enough that elastic jobs give back what they have above their smallest size, they are asked for that
first, and nobody ends until their time for it is over. To look for a way to others' places takes
long, so only some are looked at in one decision; where there are more, those whose turn to be
looked at was longest ago, so that some without a way do not keep others from theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.placement.backfill import plan_starts
from aliquot.placement.demand import Running
from aliquot.placement.gangs import may_hold, plan_gang
from aliquot.placement.preempt import entitled, preempt, rights
from aliquot.placement.queues import (
    WITH_THIS,
    Resources,
    Tree,
    borrows,
    in_turn,
    needs,
    takes,
    upto,
    usage,
    within_quota,
)
from aliquot.placement.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aliquot.placement.books import Books
    from aliquot.placement.demand import Gang, Placement
    from aliquot.placement.preempt import Preemption
    from aliquot.placement.queues import Path, Queue, Sums
    from aliquot.placement.snapshot import Hardware
    from aliquot.placement.strategies import Strategy

CLAIMS, TRIES = 4, 16  # made and looked into in one decision: each may weigh many ways


@dataclass(frozen=True, slots=True)
class Question:
    """All that a decision is made from.

    `rests` are the missing members of gangs, each with the nodes (rows) of the members that have
    theirs. `spared` are the names of what runs and is not to make room now, for each gang. `looked`
    is when a gang was last looked at for others' places, in decisions. `givers` are the elastic
    jobs that could give back, and `waited` the gangs that have waited for such for long enough.
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
    looked: Mapping[str, int] = field(default_factory=dict)
    givers: Sequence[Giver] = ()
    waited: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Giver:
    """An elastic job: what it has above its smallest size, and how long it takes to give it.

    `parts` are what each of those workers has, in the order in which they go.
    """

    job: str
    seconds: float
    parts: tuple[Running, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: `never` are those that cannot start on this cluster, and why.

    `looked_at` are those that were looked at for others' places, and `overlooked` how many were
    not. `line` is what is left for others once all is done, where something is promised. `stopped`
    are the first gangs that wait for a limit, by the queue whose limit it is. `asked` are the
    elastic jobs that are to give back for a gang, with how long that takes.
    """

    starts: tuple[Running, ...] = ()
    promises: tuple[Running, ...] = ()
    claims: tuple[tuple[Gang, Preemption], ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)
    looked_at: tuple[str, ...] = ()
    overlooked: int = 0
    line: Timeline | None = None
    stopped: Mapping[Path, Gang] = field(default_factory=dict)
    asked: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def decide(question: Question) -> Decision:
    """Decide for all that wait."""
    now, by, hardware = question.now, question.by, question.books.hardware
    never = {one.name: why for one in question.waiting if (why := _too_large(one, hardware))}
    waiting = [one for one in question.waiting if one.name not in never]
    books = question.books.copy()
    first, left, too_much = _complete(books, question)
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
    claimed = {gang.name for gang, _ in claims}
    return Decision(
        starts=tuple(one for one in (*first, *plan.starts) if one not in asking.ended),
        promises=tuple(asking.promised),
        claims=tuple((gang, _of_those_that_run(claim, question)) for gang, claim in claims),
        waits={**over, **too_much, **plan.reasons, **_told(claims, question)},
        never=never,
        looked_at=asking.looked_at,
        overlooked=asking.overlooked,
        line=asking.line(),
        stopped=_stopped(
            [one for one in refused if one.name not in claimed], order, used, question
        ),
        asked=asking.asked,
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


def _stopped(
    refused: Iterable[Gang],
    order: Iterable[Gang],
    used: Mapping[str, Resources],
    question: Question,
) -> dict[Path, Gang]:
    """The first that waits for each limit, and would not pass it alone."""
    tree, hardware = Tree(question.queues), question.books.hardware
    charged = tree.summed(used)
    for gang in order:
        tree.add(charged, gang.queue, needs(gang, hardware))
    found: dict[Path, Gang] = {}
    for gang in sorted(refused, key=lambda one: (-one.priority, one.submitted, one.name)):
        more = needs(gang, hardware)
        full = tree.over(gang.queue, more, charged)
        if full is not None and tree.over(gang.queue, more, tree.summed({})) is None:
            found.setdefault(full, gang)
    return found


def _complete(books: Books, question: Question) -> tuple[list[Running], list[Gang], dict[str, str]]:
    """The missing members that find room, which is taken; those that do not; those over a limit."""
    found, left, too_much = [], [], {}
    tree = Tree(question.queues)
    used = tree.summed(usage(question.running, books.hardware))
    for gang, nodes in question.rests:
        more = needs(gang, books.hardware)
        full = tree.over(gang.queue, more, used)
        if full is not None:
            too_much[gang.name] = tree.limit_told(full, gang, used[full] + more, WITH_THIS)
            continue
        placements = _near(books, gang, nodes, question.by)
        if placements is None:
            left.append(gang)
            continue
        one = Running(gang, placements, question.now, question.now + gang.seconds)
        books.take_gang(one, known_to_fit=True)
        tree.add(used, gang.queue, more)
        found.append(one)
    return found, left, too_much


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
    start. `promised` is what is still promised. `asked` are elastic jobs that are to give back, for
    whom, and how long that takes; nobody behind those ends what they were asked for.
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
        self._claimants: list[Running] = []
        self._question = question
        self.promised = promised
        self.ended: list[Running] = []
        self.looked_at: tuple[str, ...] = ()
        self.overlooked = 0
        self.asked: dict[str, dict[str, float]] = {}
        self._given: set[Running] = set()
        self._askers: list[Running] = []

    def claims(self, behind: Sequence[Gang]) -> tuple[tuple[Gang, Preemption], ...]:
        """Of those that do not start, who has a right and a way."""
        queues, hardware = self._question.queues, self._books.hardware
        asking = entitled(behind, self._running, queues, hardware, self.promised)
        found: list[tuple[Gang, Preemption]] = []
        for gang in self._some_of(asking):
            if len(found) == CLAIMS:
                break
            self.looked_at += (gang.name,)
            claim = self._claim(gang)
            if claim is not None:
                found.append((gang, claim))
        self.overlooked = len(asking) - len(self.looked_at)
        return tuple(found)

    def line(self) -> Timeline | None:
        """What is left for others from now on, where something is promised."""
        if not self.promised:
            return None
        question = self._question
        return Timeline(self._books, self._running, self.promised, question.now, by=question.by)

    def _some_of(self, asking: list[Gang]) -> list[Gang]:
        """As many as can be looked at, those first that were not for longest; in their turns."""
        looked = self._question.looked
        chosen = sorted(asking, key=lambda one: looked.get(one.name, -1))[:TRIES]
        names = {one.name for one in chosen}
        return [one for one in asking if one.name in names]

    def _claim(self, gang: Gang) -> Preemption | None:
        question, books = self._question, self._books
        spared = question.spared.get(gang.name, ())
        others = [one for one in self._running if one.gang.name not in spared]
        promised = self.promised
        now, by = question.now, question.by
        claim = preempt(books, gang, others, question.queues, now, promised=promised, by=by)
        if claim is None or any(one in self._claimants for one in claim.victims):
            return None
        ends = any(one in question.running for one in claim.victims)
        givers = self._givers(gang, others) if ends else {}
        if givers:
            self.asked[gang.name] = givers
            return None
        giving = {part.gang.name for part in self._given}
        if any(one.gang.name in giving for one in claim.victims):
            return None
        gone = {gang.name, *(one.gang.name for one in claim.withdrawn)}
        self.promised = [one for one in promised if one.gang.name not in gone]
        self.ended += claim.victims
        for one in claim.victims:
            self._running.remove(one)
            books.give_gang(one)
        start = Running(gang, claim.placements, now, now + gang.seconds)
        books.take_gang(start)
        self._running.append(start)
        self._claimants.append(start)
        return claim

    def _givers(self, gang: Gang, others: Sequence[Running]) -> dict[str, float]:
        """The elastic jobs that it has a right over, where what they have to give is enough.

        Another queue gives worker by worker, as long as it borrows. What was asked for by who has
        its turn before is given to that one.
        """
        question, hardware = self._question, self._books.hardware
        if not question.givers or gang.name in question.waited or not self._lacks_room(gang):
            return {}
        over = rights(self._books, gang, others, question.queues, question.now)
        tree = Tree(question.queues)
        used = tree.summed(usage(self._running, hardware))
        books = self._books.copy()
        for part in self._given:
            books.give_gang(part)
            tree.add(used, part.gang.queue, Resources() - takes(part, hardware))
        for start in self._askers:
            books.take_gang_if_it_fits(start)
        found: dict[str, float] = {}
        given: list[Running] = []
        places = self._places(books, gang)
        for one in question.givers:
            for part in one.parts:
                mine = part.gang
                if mine.name not in over or not _has_to_give(tree, used, mine.queue, gang.queue):
                    continue
                found[one.job] = one.seconds
                if places is None and part not in self._given:
                    books.give_gang(part)
                    tree.add(used, mine.queue, Resources() - takes(part, hardware))
                    given.append(part)
            if places is None and given:
                places = self._places(books, gang)
        if places is None or not found:
            return {}
        self._given.update(given)
        self._askers.append(Running(gang, places, question.now, question.now + gang.seconds))
        return found

    def _lacks_room(self, gang: Gang) -> bool:
        """Whether it is for want of room that it waits, and not for a limit or a promise."""
        tree, hardware = Tree(self._question.queues), self._books.hardware
        used = tree.summed(usage(self._running, hardware))
        full = tree.over(gang.queue, needs(gang, hardware), used)
        return full is None and self._places(self._books, gang) is None

    def _places(self, books: Books, gang: Gang) -> tuple[Placement, ...] | None:
        return plan_gang(books, gang, self._question.by) if may_hold(books, gang) else None


def _has_to_give(tree: Tree, used: Sums, queue: str, other: str) -> bool:
    """Whether a queue has more than its own, where its path and another's part; or is the other."""
    theirs = {*upto(tree.path(other))}
    apart = (path for path in upto(tree.path(queue)) if path not in theirs)
    first = next(apart, None)
    return first is None or borrows(tree.queue(first), used[first])
