"""One decision over all gangs: what is asked of the brain, and what its answer means for them.

No input or output. What is decided is counted in the books as soon as it is known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.gangs import words
from aliquot.kubernetes.gangs.decide import Question, decide
from aliquot.kubernetes.gangs.nodes import Limits
from aliquot.kubernetes.gangs.objects import Phase
from aliquot.kubernetes.gangs.picture import Labels, Picture, bare
from aliquot.kubernetes.gangs.state import Place, Promise
from aliquot.kubernetes.pods import BadRequestError
from aliquot.placement.demand import Gang, Running

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from aliquot.kubernetes.api.objects import Node, Pod
    from aliquot.kubernetes.gangs.decide import Decision
    from aliquot.kubernetes.gangs.members import Key
    from aliquot.kubernetes.gangs.reservations import Reservations
    from aliquot.kubernetes.gangs.roster import Roster
    from aliquot.kubernetes.gangs.sources import Found
    from aliquot.kubernetes.gangs.state import Known
    from aliquot.kubernetes.pods import ContainerRequest
    from aliquot.kubernetes.queues.known import Queues
    from aliquot.kubernetes.scheduler.planner import Planner
    from aliquot.placement.demand import Demand
    from aliquot.placement.preempt import Preemption

NAMED = 3  # nodes that a sentence names
MORE = 100
FIGURES_SECONDS = 5.0  # between looks at what queues have, where nobody waits
LONGEST = 60.0  # a decision is made again after so many seconds, whatever has changed


@dataclass(slots=True)
class _Ready:
    """A gang, or the rest of one, that can be planned: its pods, and what each asks for."""

    gang: Known
    pods: list[Pod]
    requests: list[tuple[ContainerRequest, ...]]
    limits: list[Limits]
    version: int
    demands: tuple[Demand, ...] = ()


@dataclass(slots=True)
class Outcome:
    """What a decision leaves behind: promises that others must keep to, and what runs.

    Without a picture nothing was looked at, since nobody waits.
    """

    picture: Picture | None = None
    running: list[Running] = field(default_factory=list)
    promises: tuple[Running, ...] = ()
    claims: list[tuple[Known, str, dict[str, str]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Last:
    """The last decision: what it was made from, and when it is no longer good for that."""

    sign: object
    promises: tuple[Running, ...]
    until: float

    @classmethod
    def of(
        cls,
        sign: object,
        outcome: Outcome,
        decision: Decision,
        ready: Mapping[str, _Ready],
        now: float,
    ) -> _Last | None:
        """None where something was done: then the next decision is another."""
        if decision.starts or decision.claims:
            return None
        waits = [until for one in ready.values() for until in one.gang.barred.values()]
        starts = [one.start for one in outcome.promises]
        return cls(sign, outcome.promises, min([*waits, *starts, now + LONGEST]))

    def holds(self, sign: object, now: float) -> bool:
        """Whether the same question at this time has the same answer."""
        return sign == self.sign and now < self.until


class Planning:
    """Decides for all gangs of a roster."""

    def __init__(  # noqa: PLR0913 - all that is looked at
        self,
        roster: Roster,
        planner: Planner,
        reservations: Reservations,
        queues: Queues,
        nodes: Callable[[], Mapping[str, Node]],
        *,
        labels: Labels,
        assumed: float,
    ) -> None:
        self._roster = roster
        self._planner = planner
        self._cluster = planner.cluster
        self._reservations = reservations
        self._queues = queues
        self._nodes = nodes
        self._labels = labels
        self._assumed = assumed
        self._last: _Last | None = None
        self._looked = 0.0
        self._asked: dict[str, tuple[Pod, tuple[ContainerRequest, ...]]] = {}

    async def decide(
        self, found: Mapping[Key, Found | None], now: float, is_wanted: Callable[[], bool]
    ) -> Outcome:
        """Decide for all that can be planned; the others are told why they cannot.

        The brain thinks in a thread, on a copy of the books. What it decided is done as far as it
        still can be done; nothing of it where it is not wanted any more.
        """
        ready = {
            str(gang.key): one
            for gang in self._roster.gangs.values()
            if (one := self._ready(gang, found.get(gang.key), now)) is not None
        }
        if not ready and not self._figures_are_due(now):  # it would be a look at all nodes
            self._last = None
            return Outcome()
        self._looked = now
        limits = [each for one in ready.values() for each in one.limits]
        picture = self.picture(limits)
        gangs = {name: self._gang(one, picture, now) for name, one in ready.items()}
        running = picture.running(self._roster.whose(now), self._ending())
        asked = {name: gang for name, gang in gangs.items() if gang is not None}
        if not asked:
            self._last = None
            return Outcome(picture, running)
        question = self._question(picture, ready, asked, running, now)
        sign = _sign(question)
        if self._last is not None and self._last.holds(sign, now):
            return Outcome(picture, running, self._last.promises)
        decision = await asyncio.to_thread(decide, question)
        if not is_wanted():
            return Outcome(picture, running)
        outcome = self._apply(decision, question, picture, ready, now)
        self._last = _Last.of(sign, outcome, decision, ready, now)
        return outcome

    def _figures_are_due(self, now: float) -> bool:
        """Whether somebody wants to know what queues have, though nobody waits."""
        return bool(self._queues.objects) and now >= self._looked + FIGURES_SECONDS

    def picture(self, limits: list[Limits]) -> Picture:
        """The cluster as it is, for pods of these limits."""
        return Picture(self._cluster, self._nodes(), limits, self._labels)

    def _as_they_were(self, ready: Mapping[str, _Ready], picture: Picture) -> set[str]:
        """The gangs that can be dealt with as it was decided."""
        rows = self._cluster.rows
        if any(rows.get(name) != row for row, name in picture.names.items()):
            return set()
        return {
            name
            for name, one in ready.items()
            if self._roster.gangs.get(one.gang.key) is one.gang
            and one.gang.version == one.version
            and not one.gang.reserved
        }

    # --- the question -----------------------------------------------------------------------------

    def _ready(self, gang: Known, found: Found | None, now: float) -> _Ready | None:
        gang.forget_bars(now)
        pods = gang.unbound
        if gang.reserved or gang.leaving or (gang.had_nodes and not pods):
            return None
        if not gang.had_nodes:
            why = gang.not_ready(found)
            if why is not None:
                _set(gang, *why)
                return None
        gang.since = gang.since or now
        problem = self._queues.problem_of(self._queues.queue_of(pods[0]))
        if problem:
            _set(gang, Phase.REFUSED, problem)
            return None
        if now < gang.not_before:
            return None
        try:
            requests = [self._requests(one) for one in pods]
        except BadRequestError as error:
            _set(gang, Phase.REFUSED, str(error))
            return None
        limits = [Limits.of(one, gang.barred) for one in pods]
        return _Ready(gang, pods, requests, limits, gang.version)

    def _requests(self, pod: Pod) -> tuple[ContainerRequest, ...]:
        meta = pod.metadata
        if len(self._asked) > 2 * len(self._roster.pods) + MORE:
            self._asked.clear()
        found = self._asked.get(meta.uid)
        if found is None or found[0] is not pod:
            found = self._asked[meta.uid] = pod, self._planner.requests(pod)
        return found[1]

    def _gang(self, one: _Ready, picture: Picture, now: float) -> Gang | None:
        gang = one.gang
        pairs = zip(one.requests, one.limits, strict=True)
        try:
            one.demands = tuple(picture.demand(asked, limits) for asked, limits in pairs)
        except BadRequestError as error:
            _set(gang, Phase.REFUSED, str(error))
            return None
        work = self._roster.work_of(gang, now)
        return Gang(
            name=work.name,
            members=one.demands,
            seconds=work.seconds,
            queue=work.queue,
            priority=work.priority,
            submitted=gang.since,
        )

    def _question(
        self,
        picture: Picture,
        ready: Mapping[str, _Ready],
        asked: Mapping[str, Gang],
        running: list[Running],
        now: float,
    ) -> Question:
        rows = self._cluster.rows
        rests, waiting, promised = [], [], []
        for name, gang in asked.items():
            known = ready[name].gang
            if known.had_nodes:
                nodes = {one.spec.node_name for one in known.bound}
                rests.append((gang, [rows[node] for node in nodes if node in rows]))
                continue
            waiting.append(gang)
            promise = _promised(gang, known.promise, picture)
            if promise is not None:
                promised.append(promise)
        return Question(
            books=picture.books,
            running=running,
            promised=promised,
            waiting=waiting,
            rests=rests,
            queues=self._queues.queues(),
            now=now,
            by=picture.by,
            spared={name: frozenset(one.gang.spared) for name, one in ready.items()},
        )

    def _ending(self) -> set[str]:
        """The UIDs of pods whose places others have already."""
        gangs = self._roster.gangs.values()
        return {uid for gang in gangs for uid in gang.making_room}

    # --- the answer -------------------------------------------------------------------------------

    def _apply(
        self,
        decision: Decision,
        question: Question,
        picture: Picture,
        ready: Mapping[str, _Ready],
        now: float,
    ) -> Outcome:
        outcome = Outcome(picture, [*question.running], decision.promises)
        promises = {one.gang.name: one for one in decision.promises}
        books = self._cluster.chooser.books.copy()
        still = self._as_they_were(ready, picture)
        books.hardware = picture.hardware
        for one in decision.starts:
            if one.gang.name in still and books.take_gang_if_it_fits(one):
                self._start(ready[one.gang.name], one, picture, now, frozenset())
                outcome.running.append(one)
        for gang, claim in decision.claims:
            if gang.name not in still:
                continue
            uids, told = self._make_room(claim, now)
            known = ready[gang.name].gang
            start = Running(gang, claim.placements, now, now + gang.seconds)
            self._start(ready[gang.name], start, picture, now, uids)
            known.reason = claim.to_gang
            outcome.claims.append((known, claim.to_gang, told))
            promises.pop(gang.name, None)
        outcome.promises = tuple(promises.values())
        for gang in (*question.waiting, *(one for one, _ in question.rests)):
            known = ready[gang.name].gang
            if known.reserved or gang.name not in still:
                continue
            promise = promises.get(gang.name)
            known.promise = None if promise is None else _promise(promise, picture)
            known.planned = promise.start if promise else None
            if gang.name in decision.never:
                _set(known, Phase.REFUSED, decision.never[gang.name])
            else:
                text = words.why_later(gang, question.books, promise, question.running, now)
                why = "" if promise else f"; {decision.waits.get(gang.name, '')}"
                known.phase, known.reason = Phase.WAITING, text + why + _bars(known)
        return outcome

    def _start(
        self, one: _Ready, start: Running, picture: Picture, now: float, ending: frozenset[str]
    ) -> None:
        rows = zip(one.pods, one.requests, start.placements, strict=True)
        places = {
            pod.metadata.uid: Place(picture.names[place.node], picture.parts(asked, place))
            for pod, asked, place in rows
        }
        rest = bool(one.gang.had_nodes)
        self._reservations.take(one.gang, places, now, ending)
        near = words.nearness(picture.hardware, start.placements)
        one.gang.topology = one.gang.topology if rest else near
        one.gang.reason = f"{len(places)} pods have their places: {near}"

    def _make_room(self, claim: Preemption, now: float) -> tuple[frozenset[str], dict[str, str]]:
        """The pods that are to end, and what each is told, by UID."""
        told: dict[str, str] = {}
        for victim in claim.victims:
            why = claim.to_victims[victim.gang.name]
            gang = self._roster.gang_named(victim.gang.name)
            if gang is not None:
                self._reservations.give_up(gang, why, now)
                told |= {one.metadata.uid: why for one in gang.staying}
                continue
            single = self._roster.single_named(victim.gang.name)
            if single is not None and single.spec.node_name:
                told[single.metadata.uid] = why
            elif single is not None:  # it waits, and is told so when it asks again
                self._cluster.release(single.metadata.uid)
        uids = frozenset(told)
        self.end_whole(uids, next(iter(told.values()), ""))
        return uids, told

    def end_whole(self, uids: Collection[str], why: str) -> None:
        """The gangs of these pods end as a whole, on whatever nodes their members are."""
        for gang in self._roster.gangs.values():
            if any(one.metadata.uid in uids for one in gang.staying):
                gang.leaving = gang.leaving or why


def _sign(question: Question) -> object:
    """What a decision depends on, but for the time."""
    return (
        question.books.fingerprint,
        frozenset(one.gang.name for one in question.running),
        tuple(question.waiting),
        tuple(gang for gang, _ in question.rests),
        question.queues,
    )


def _set(gang: Known, phase: Phase, reason: str) -> None:
    gang.phase, gang.reason, gang.planned, gang.promise = phase, reason, None, None


def _bars(gang: Known) -> str:
    text = ""
    if gang.barred:
        text += f"; kube-scheduler did not let it go to {_some(gang.barred)}"
    if gang.spared:
        text += f"; their disruption budgets kept {_some(gang.spared)} from ending for it"
    return text


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def _promised(gang: Gang, promise: Promise | None, picture: Picture) -> Running | None:
    """A promise, in the rows of this picture; None where it is for something else by now."""
    if promise is None or promise.shape != tuple(map(bare, gang.members)):
        return None
    places = [picture.placement(node, gpus) for node, gpus in promise.places]
    found = tuple(one for one in places if one is not None)
    if len(found) < len(places):
        return None
    return Running(gang, found, promise.start, promise.start + gang.seconds)


def _promise(one: Running, picture: Picture) -> Promise:
    return Promise(
        start=one.start,
        places=tuple((picture.names[place.node], place.gpus) for place in one.placements),
        shape=tuple(map(bare, one.gang.members)),
    )
