"""Who does not start and is given the places of others, and who is asked to give back. Pure.

A right is weighed with all that counts by then: what runs, whether it may be ended or not; those
that were given places before, without those that end for them; those that elastic jobs were asked
for, with what these give back gone; and of those that have their turn before and that their quotas
cover, who was promised a start before this one would have ended. So nobody asks back what is
another's already, and no queue gives more than it borrowed.

A limit holds at every moment: of a gang and those that end for it, whichever has more counts until
they are gone. Who fits when those have ended that end already waits for that, and ends nobody.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from aliquot.placement.core.demand import Running
from aliquot.placement.gangs.plan import may_hold, plan_gang
from aliquot.placement.gangs.timeline import Timeline
from aliquot.placement.queues.preempt import entitled, preempt, rights
from aliquot.placement.queues.quota import (
    Resources,
    Tree,
    borrows,
    needs,
    takes,
    upto,
    usage,
    with_all,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand, Gang, Placement
    from aliquot.placement.decide import DecisionInput
    from aliquot.placement.queues.preempt import Preemption
    from aliquot.placement.queues.quota import Sums

CLAIMS, TRIES = 4, 16  # made and looked into in one decision: each may weigh many ways


@dataclass(slots=True)
class _Scene:
    """Who has what, and what that leaves."""

    allocations: Allocations
    running: list[Running]

    def change(self, ended: Sequence[Running], start: Running) -> bool:
        """These have ended, and this one has its places; whether it found them free."""
        if not self.allocations.exchange_gangs(ended, start):
            return False
        self.running = [*(one for one in self.running if one not in ended), start]
        return True

    def lend(self, parts: Sequence[Running], start: Running) -> list[Running]:
        """This one has its places among these parts of others; the parts that it takes."""
        for part in parts:
            self.allocations.give_gang(part)
        self.allocations.take_gang(start)
        taken = [part for part in parts if not self.allocations.take_gang_if_it_fits(part)]
        for part in taken:
            number = next(n for n, one in enumerate(self.running) if _has(one, part))
            self.running[number : number + 1] = _without(self.running[number], part)
        self.running.append(start)
        return taken


class Preemptions:
    """Who is given the places of others; nobody makes room twice.

    `ended` are all who make room. Who was to start now and makes room loses nothing: it does not
    start. `promised` is what is still promised. `asked` are elastic jobs that are to give back, for
    whom, and how long that takes; nobody behind those ends what they were asked for. `own` are the
    names of those that wait and that their queues' quotas cover, in their turns.
    """

    def __init__(
        self,
        allocations: Allocations,
        running: Sequence[Running],
        promised: list[Running],
        own: Collection[str],
        question: DecisionInput,
    ) -> None:
        self._question = question
        self._hardware = allocations.hardware
        self._tree = Tree(question.queues)
        self._own = own
        self._now = _Scene(allocations, list(running))
        self._then = _Scene(
            allocations.copy(), list(running)
        )  # when what was asked for is given back
        self._ending: Sums = with_all(defaultdict(Resources), question.ending)
        self._runs = {one.gang.name for one in question.running}
        self._spared = {one.gang.name for one in question.leftovers}
        self._given: set[Running] = set()
        self._giving: set[str] = set()
        self.promised = promised
        self.ended: list[Running] = []
        self.looked_at: tuple[str, ...] = ()
        self.overlooked = 0
        self.asked: dict[str, dict[str, float]] = {}

    def made(self, behind: Sequence[Gang]) -> tuple[tuple[Gang, Preemption], ...]:
        """Of those that do not start, in their turns: who has a right and a way."""
        queues, running = self._question.queues, self._now.running
        asking = entitled(behind, running, queues, self._hardware, self.promised)
        found: list[tuple[Gang, Preemption]] = []
        for gang in self._some_of(asking):
            if len(found) == CLAIMS:
                break
            self.looked_at += (gang.name,)
            claim = self._claim(gang, self._ahead(gang, behind))
            if claim is not None:
                found.append((gang, claim))
        self.overlooked = len(asking) - len(self.looked_at)
        return tuple(found)

    def line(self) -> Timeline | None:
        """What is left for others from now on, where something is promised."""
        if not self.promised:
            return None
        scene, question = self._now, self._question
        return Timeline(
            scene.allocations,
            scene.running,
            self.promised,
            question.now,
            by=question.by,
            seed=question.seed,
        )

    def _some_of(self, asking: list[Gang]) -> list[Gang]:
        """As many as can be looked at, those first that were not for longest; in their turns."""
        looked = self._question.looked
        chosen = sorted(asking, key=lambda one: looked.get(one.name, -1))[:TRIES]
        names = {one.name for one in chosen}
        return [one for one in asking if one.name in names]

    def _ahead(self, gang: Gang, behind: Sequence[Gang]) -> list[Gang]:
        """Those whose part of a quota is not this one's to ask back: they start before it ends."""
        begins = {one.gang.name: one.start for one in self.promised if not self._is_in(one.gang)}
        end = self._question.now + gang.seconds
        return [
            one
            for one in takewhile(lambda each: each.name != gang.name, behind)
            if one.name in self._own and begins.get(one.name, math.inf) < end
            if one.queue != gang.queue or one.priority >= gang.priority
        ]

    def _is_in(self, gang: Gang) -> bool:
        """Whether it counts as running: it was given places, or elastic jobs give back for it."""
        return gang.name in self._spared

    # --- a claim ----------------------------------------------------------------------------------

    def _claim(self, gang: Gang, ahead: Sequence[Gang]) -> Preemption | None:
        question, then = self._question, self._then
        if self._fits_soon(gang):
            return None
        spared = {*self._spared, *question.spared}
        claim = self._way(gang, ahead, spared)
        if claim is not None and self._ending_for(claim) and self._asks(gang, ahead, spared):
            return None
        if claim is not None and any(one.gang.name in self._giving for one in claim.victims):
            claim = self._way(gang, ahead, spared | self._giving)
        if claim is None or self._is_taken(claim.placements):
            return None
        if not self._is_within_limits(gang, claim.victims):
            return None
        start = Running(gang, claim.placements, question.now, question.now + gang.seconds)
        if not (self._now.change(claim.victims, start) and then.change(claim.victims, start)):
            return None
        before = usage(self._ending_for(claim), self._hardware)
        with_all(self._ending, self._tree.excess(before, usage([start], self._hardware)))
        gone = {gang.name, *(one.gang.name for one in claim.withdrawn)}
        self.promised = [one for one in self.promised if one.gang.name not in gone]
        self.ended += claim.victims
        self._spared.add(gang.name)
        return claim

    def _way(self, gang: Gang, ahead: Sequence[Gang], spared: Collection[str]) -> Preemption | None:
        question, then = self._question, self._then
        return preempt(
            then.allocations,
            gang,
            then.running,
            question.queues,
            question.now,
            promised=[one for one in self.promised if not self._is_in(one.gang)],
            spared=spared,
            ahead=ahead,
            by=question.by,
            seed=question.seed,
        )

    def _ending_for(self, claim: Preemption) -> list[Running]:
        """Who runs, and ends for it; not who was to start now."""
        return [one for one in claim.victims if one.gang.name in self._runs]

    def _fits_soon(self, gang: Gang) -> bool:
        """Whether it was promised a start for when all have ended that end already."""
        ends = max((one.end for one in self._question.leftovers), default=-math.inf)
        return any(one.gang.name == gang.name and one.start <= ends for one in self.promised)

    def _is_taken(self, places: Sequence[Placement]) -> bool:
        """Whether who ends for another still has some of it: this gang would not wait for that.

        The next decision knows it as left over.
        """
        ending = [one for one in self.ended if one.gang.name in self._runs]
        held = {(at.node, gpu) for one in ending for at in one.placements for gpu in at.gpus}
        return any((place.node, gpu) in held for place in places for gpu in place.gpus)

    def _is_within_limits(self, gang: Gang, ended: Sequence[Running]) -> bool:
        """Whether no limit is passed when these have ended, and others perhaps not yet."""
        left = [one for one in self._now.running if one not in ended]
        has = with_all(self._tree.summed(usage(left, self._hardware)), self._ending)
        return self._tree.over(gang.queue, needs(gang, self._hardware), has) is None

    # --- elastic jobs -----------------------------------------------------------------------------

    def _asks(self, gang: Gang, ahead: Sequence[Gang], spared: Collection[str]) -> bool:
        """Ask the elastic jobs that it has a right over, where what they have to give is enough.

        Another queue gives worker by worker, as long as it borrows. What was asked for by who has
        its turn before is given to that one.
        """
        question, then, hardware = self._question, self._then, self._hardware
        if not question.givers or gang.name in question.waited or not self._lacks_room(gang):
            return False
        queues, now = question.queues, question.now
        over = rights(then.allocations, gang, then.running, queues, now, spared=spared, ahead=ahead)
        used = self._tree.summed(usage(then.running, hardware))
        allocations = then.allocations.copy()
        found: dict[str, float] = {}
        given: list[Running] = []
        places: tuple[Placement, ...] | None = None
        for one in question.givers:
            for part in one.parts:
                queue = part.gang.queue
                if part in self._given or part.gang.name not in over:
                    continue
                if not _has_to_give(self._tree, used, queue, gang.queue):
                    continue
                found[one.job] = one.seconds
                if places is None:
                    allocations.give_gang(part)
                    self._tree.add(used, queue, Resources() - takes(part, hardware))
                    given.append(part)
            if places is None and given:
                places = self._places(allocations, gang)
        if places is None:
            return False
        self.asked[gang.name] = found
        self._given.update(then.lend(given, Running(gang, places, now, now + gang.seconds)))
        self._giving |= {part.gang.name for part in given}
        self._spared.add(gang.name)
        return True

    def _lacks_room(self, gang: Gang) -> bool:
        """Whether it is for want of room that it waits, and not for a limit or a promise."""
        used = self._tree.summed(usage(self._then.running, self._hardware))
        full = self._tree.over(gang.queue, needs(gang, self._hardware), used)
        return full is None and self._places(self._then.allocations, gang) is None

    def _places(self, allocations: Allocations, gang: Gang) -> tuple[Placement, ...] | None:
        if not may_hold(allocations, gang):
            return None
        return plan_gang(allocations, gang, self._question.by, seed=self._question.seed)


def _has_to_give(tree: Tree, used: Sums, queue: str, other: str) -> bool:
    """Whether a queue has more than its own, where its path and another's part; or is the other."""
    theirs = {*upto(tree.path(other))}
    apart = (path for path in upto(tree.path(queue)) if path not in theirs)
    first = next(apart, None)
    return first is None or borrows(tree.queue(first), used[first])


def _has(one: Running, part: Running) -> bool:
    """Whether this is a part of what one has."""
    return one.gang.name == part.gang.name and not _pairs(part) - _pairs(one)


def _without(one: Running, part: Running) -> list[Running]:
    """What one has without this part of it; nothing where that is all."""
    left = list((_pairs(one) - _pairs(part)).elements())
    if not left:
        return []
    places, members = zip(*left, strict=True)
    return [replace(one, gang=replace(one.gang, members=members), placements=places)]


def _pairs(one: Running) -> Counter[tuple[Placement, Demand]]:
    return Counter(zip(one.placements, one.gang.members, strict=True))
