"""Preempt for gangs that do not start: whom to evict, and which elastic jobs to shrink. Pure.

Whether a gang may preempt is judged with everything that counts by then: running work, protected or
not; gangs that were given GPUs before it, without their victims; gangs that elastic jobs shrink
for, with those jobs shrunk; and gangs earlier in fair-share order that their quotas cover and that
are planned to start before this one would end. So no gang reclaims what is already another's, and
no queue gives more than it borrowed.

A limit holds at every moment: of a gang and its victims, whichever has more counts until the
victims are gone. A gang that is planned to start when ending victims are gone waits for that and
preempts nobody else.
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
from aliquot.placement.queues.preempt import may_preempt, preempt, preemptible
from aliquot.placement.queues.quota import (
    Resources,
    Tree,
    add_all,
    borrows,
    needs,
    prefixes,
    takes,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand, Gang, Placement
    from aliquot.placement.queues.preempt import Preemption
    from aliquot.placement.queues.question import DecisionInput, DisruptionBudget
    from aliquot.placement.queues.quota import Sums

PREEMPTIONS, SEARCHES = 4, 16  # in one decision: each search may weigh many ways


@dataclass(slots=True)
class _State:
    """Running work and the allocations that go with it."""

    allocations: Allocations
    running: list[Running]

    def change(self, ended: Sequence[Running], start: Running) -> bool:
        """Put a gang in the place of ended ones; return whether what it needs was free."""
        if not self.allocations.exchange_gangs(ended, start):
            return False
        names = {one.gang.name for one in ended}  # to compare all of many members takes long
        stay = (one for one in self.running if one.gang.name not in names or one not in ended)
        self.running = [*stay, start]
        return True

    def lend(self, parts: Sequence[Running], start: Running) -> list[Running]:
        """Start a gang on what elastic jobs give; return the parts that it takes."""
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
    """The preemptions of one decision; nobody is a victim twice.

    `victims` are all of them; one that was only about to start now loses nothing and does not
    start. `planned` are the planned starts that remain. `shrink_requests` are the elastic jobs that
    are to shrink, for which gang, and how long that takes; later gangs do not evict what those
    give. `disruption_protected` are the victims that disruption budgets keep from a gang. `own` are
    the names of the waiting gangs that their queues' quotas cover.
    """

    def __init__(
        self,
        allocations: Allocations,
        running: Sequence[Running],
        planned: list[Running],
        own: Collection[str],
        question: DecisionInput,
    ) -> None:
        self._question = question
        self._hardware = allocations.hardware
        self._tree = Tree(question.queues)
        self._own = own
        self._now = _State(allocations, list(running))
        self._then = _State(
            allocations.copy(), list(running)
        )  # when what was asked for is given back
        self._ending: Sums = add_all(defaultdict(Resources), question.ending)
        self._runs = {one.gang.name for one in question.running}
        self._protected = {one.gang.name for one in question.releasing}
        self._budgets = list(question.budgets)
        self._given: set[Running] = set()
        self._shrinking: set[str] = set()
        self.planned = planned
        self.victims: list[Running] = []
        self.searched: tuple[str, ...] = ()
        self.skipped = 0
        self.shrink_requests: dict[str, dict[str, float]] = {}
        self.disruption_protected: dict[str, tuple[str, ...]] = {}

    def find(self, delayed: Sequence[Gang]) -> tuple[tuple[Gang, Preemption], ...]:
        """The preemptions for gangs that do not start, given in fair-share order."""
        queues, running = self._question.queues, self._now.running
        asking = may_preempt(delayed, running, queues, self._hardware, self.planned)
        found: list[tuple[Gang, Preemption]] = []
        for gang in self._some_of(asking):
            if len(found) == PREEMPTIONS:
                break
            self.searched += (gang.name,)
            preemption = self._preempt(gang, self._ahead(gang, delayed))
            if preemption is not None:
                found.append((gang, preemption))
        self.skipped = len(asking) - len(self.searched)
        return tuple(found)

    def timeline(self) -> Timeline | None:
        """What stays free for other work from now on; None if no start is planned."""
        if not self.planned:
            return None
        state, question = self._now, self._question
        return Timeline(
            state.allocations,
            state.running,
            self.planned,
            question.now,
            by=question.by,
            seed=question.seed,
        )

    def _some_of(self, asking: list[Gang]) -> list[Gang]:
        """As many as one decision searches for: those whose last search is longest ago."""
        searched_at = self._question.searched_at
        chosen = sorted(asking, key=lambda one: searched_at.get(one.name, -1))[:SEARCHES]
        names = {one.name for one in chosen}
        return [one for one in asking if one.name in names]

    def _ahead(self, gang: Gang, delayed: Sequence[Gang]) -> list[Gang]:
        """Earlier gangs that start before this one ends: their part of a quota is theirs."""
        begins = {one.gang.name: one.start for one in self.planned if not self._is_in(one.gang)}
        end = self._question.now + gang.seconds
        return [
            one
            for one in takewhile(lambda each: each.name != gang.name, delayed)
            if one.name in self._own and begins.get(one.name, math.inf) < end
            if one.queue != gang.queue or one.priority >= gang.priority
        ]

    def _is_in(self, gang: Gang) -> bool:
        """Whether it counts as running: it was given GPUs, or elastic jobs shrink for it."""
        return gang.name in self._protected

    # --- a preemption -----------------------------------------------------------------------------

    def _preempt(self, gang: Gang, ahead: Sequence[Gang]) -> Preemption | None:
        question, then = self._question, self._then
        if self._fits_soon(gang):
            return None
        protected = {*self._protected, *question.protected}
        preemption = self._way(gang, ahead, protected)
        if preemption is None and self._budgets:
            self._note_budgets(gang, self._way(gang, ahead, protected, budgets=()))
        if (
            preemption is not None
            and self._ending_for(preemption)
            and self._asks(gang, ahead, protected)
        ):
            return None
        if preemption is not None and any(
            one.gang.name in self._shrinking for one in preemption.victims
        ):
            preemption = self._way(gang, ahead, protected | self._shrinking)
        if preemption is None or self._is_taken(preemption.placements):
            return None
        if not self._is_within_limits(gang, preemption.victims):
            return None
        start = Running(gang, preemption.placements, question.now, question.now + gang.seconds)
        if not (
            self._now.change(preemption.victims, start) and then.change(preemption.victims, start)
        ):
            return None
        before = usage(self._ending_for(preemption), self._hardware)
        add_all(self._ending, self._tree.excess(before, usage([start], self._hardware)))
        gone = {gang.name, *(one.gang.name for one in preemption.withdrawn)}
        self.planned = [one for one in self.planned if one.gang.name not in gone]
        self.victims += preemption.victims
        self._budgets = [one.after(preemption.victims) for one in self._budgets]
        self._protected.add(gang.name)
        return preemption

    def _note_budgets(self, gang: Gang, otherwise: Preemption | None) -> None:
        """Remember which victims a gang would have without disruption budgets."""
        victims = () if otherwise is None else otherwise.victims
        names = {one.gang.name for one in victims}
        kept = {name for one in self._budgets for name in one.pods if name in names}
        if kept:
            self.disruption_protected[gang.name] = tuple(sorted(kept))

    def _way(
        self,
        gang: Gang,
        ahead: Sequence[Gang],
        protected: Collection[str],
        budgets: Sequence[DisruptionBudget] | None = None,
    ) -> Preemption | None:
        question, then = self._question, self._then
        return preempt(
            then.allocations,
            gang,
            then.running,
            question.queues,
            question.now,
            planned=[one for one in self.planned if not self._is_in(one.gang)],
            protected=protected,
            ahead=ahead,
            budgets=self._budgets if budgets is None else budgets,
            by=question.by,
            seed=question.seed,
        )

    def _ending_for(self, preemption: Preemption) -> list[Running]:
        """The victims of a preemption that run; victims that were about to start are left out."""
        return [one for one in preemption.victims if one.gang.name in self._runs]

    def _fits_soon(self, gang: Gang) -> bool:
        """Whether it is planned to start when all ending victims are gone."""
        ends = max((one.end for one in self._question.releasing), default=-math.inf)
        return any(one.gang.name == gang.name and one.start <= ends for one in self.planned)

    def _is_taken(self, places: Sequence[Placement]) -> bool:
        """Whether another gang's victim still has some of these GPUs.

        This gang would not wait for that victim; the next decision knows the GPUs as `releasing`.
        """
        ending = [one for one in self.victims if one.gang.name in self._runs]
        held = {(at.node, gpu) for one in ending for at in one.placements for gpu in at.gpus}
        return any((place.node, gpu) in held for place in places for gpu in place.gpus)

    def _is_within_limits(self, gang: Gang, ended: Sequence[Running]) -> bool:
        """Whether no limit is passed when these have ended, and other victims perhaps not yet."""
        if not self._tree.is_limited(gang.queue):
            return True
        staying = [one for one in self._now.running if one not in ended]
        has = add_all(self._tree.summed(usage(staying, self._hardware)), self._ending)
        return self._tree.over(gang.queue, needs(gang, self._hardware), has) is None

    # --- elastic jobs -----------------------------------------------------------------------------

    def _asks(self, gang: Gang, ahead: Sequence[Gang], protected: Collection[str]) -> bool:
        """Ask the elastic jobs that it may preempt to shrink, if that is enough.

        Another queue gives worker by worker, as long as it borrows. What an earlier gang asked for
        goes to that gang.
        """
        question, then, hardware = self._question, self._then, self._hardware
        if not question.surpluses or gang.name in question.waited or not self._lacks_gpus(gang):
            return False
        queues, now = question.queues, question.now
        over = preemptible(
            then.allocations, gang, then.running, queues, now, protected=protected, ahead=ahead
        )
        used = self._tree.summed(usage(then.running, hardware))
        allocations = then.allocations.copy()
        found: dict[str, float] = {}
        given: list[Running] = []
        places: tuple[Placement, ...] | None = None
        for one in question.surpluses:
            for part in one.parts:
                queue = part.gang.queue
                if part in self._given or part.gang.name not in over:
                    continue
                if not _must_give(self._tree, used, queue, gang.queue):
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
        self.shrink_requests[gang.name] = found
        self._given.update(then.lend(given, Running(gang, places, now, now + gang.seconds)))
        self._shrinking |= {part.gang.name for part in given}
        self._protected.add(gang.name)
        return True

    def _lacks_gpus(self, gang: Gang) -> bool:
        """Whether it waits because it does not fit, and not for a limit or a planned start."""
        used = self._tree.summed(usage(self._then.running, self._hardware))
        full = self._tree.over(gang.queue, needs(gang, self._hardware), used)
        return full is None and self._places(self._then.allocations, gang) is None

    def _places(self, allocations: Allocations, gang: Gang) -> tuple[Placement, ...] | None:
        if not may_hold(allocations, gang):
            return None
        return plan_gang(allocations, gang, self._question.by, seed=self._question.seed)


def _must_give(tree: Tree, used: Sums, queue: str, other: str) -> bool:
    """Whether a queue borrows at the level where its path leaves another's, or is that queue."""
    theirs = {*prefixes(tree.path(other))}
    apart = (path for path in prefixes(tree.path(queue)) if path not in theirs)
    first = next(apart, None)
    return first is None or borrows(tree.queue(first), used[first])


def _has(one: Running, part: Running) -> bool:
    """Whether `part` is a part of what `one` has."""
    return one.gang.name == part.gang.name and not _pairs(part) - _pairs(one)


def _without(one: Running, part: Running) -> list[Running]:
    """What `one` has without this part of it; nothing if that was all."""
    rest = list((_pairs(one) - _pairs(part)).elements())
    if not rest:
        return []
    places, members = zip(*rest, strict=True)
    return [replace(one, gang=replace(one.gang, members=members), placements=places)]


def _pairs(one: Running) -> Counter[tuple[Placement, Demand]]:
    return Counter(zip(one.placements, one.gang.members, strict=True))
