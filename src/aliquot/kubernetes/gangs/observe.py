"""What is asked of the brain: all gangs that can be planned, beside all that runs and is promised.

Who cannot be planned is told why. No input or output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.requests import InvalidRequestError
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.elastic import surpluses
from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot, bare
from aliquot.placement.core.demand import Gang, Running
from aliquot.placement.decide import DecisionInput, ElasticSurplus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.allocations import WorkloadAllocations
    from aliquot.kubernetes.cluster.membership import Key
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.topology import Topology
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.evictions import GatesAndEvictions
    from aliquot.kubernetes.gangs.sources import Found
    from aliquot.kubernetes.gangs.state import GangState, PlannedStart

MORE = 100


@dataclass(frozen=True, slots=True)
class Ready:
    """A gang, or the rest of one, that can be planned: its pods, and what each asks for.

    `version` is the gang's, as it was then.
    """

    gang: GangState
    pods: list[Pod]
    requests: list[tuple[ContainerRequest, ...]]
    limits: list[NodeConstraints]
    version: int


@dataclass(frozen=True, slots=True)
class Observed:
    """A question, with what it is about: `parties` are the UIDs of all that runs, by name."""

    question: DecisionInput
    picture: ClusterSnapshot
    ready: Mapping[str, Ready]
    parties: Mapping[str, frozenset[str]]

    def sign(self) -> object:
        """What a decision depends on, but for the time."""
        question = self.question
        return (
            question.allocations.fingerprint,
            frozenset(one.gang.name for one in question.running),
            tuple(question.waiting),
            tuple(gang for gang, _ in question.incomplete),
            question.queues,
        )


class Observer:
    """Makes them, from all gangs of a roster."""

    def __init__(  # noqa: PLR0913 - all that they are about
        self,
        roster: Workloads,
        planner: Planner,
        queues: Queues,
        ground: Topology,
        holdings: WorkloadAllocations,
        *,
        doors: GatesAndEvictions,
    ) -> None:
        self._roster = roster
        self._planner = planner
        self._queues = queues
        self._ground = ground
        self._holdings = holdings
        self._doors = doors
        self._looked: dict[str, int] = {}
        self._decisions = 0
        self._asked: dict[str, tuple[Pod, tuple[ContainerRequest, ...]]] = {}

    def ready(self, found: Mapping[Key, Found | None], now: float) -> dict[str, Ready]:
        """All that can be planned, by name; the others are told why they cannot."""
        return {
            str(gang.key): one
            for gang in self._roster.gangs.values()
            if (one := self._ready(gang, found.get(gang.key), now)) is not None
        }

    def ask(self, ready: Mapping[str, Ready], now: float) -> Observed | None:
        """The question about these; None where nobody of them can be planned after all."""
        limits = [each for one in ready.values() for each in one.limits]
        picture = ClusterSnapshot(self._ground, limits)
        gangs = {name: self._gang(one, picture, now) for name, one in ready.items()}
        asked = {name: gang for name, gang in gangs.items() if gang is not None}
        if not asked:
            return None
        question = self._question(picture, ready, asked, now)
        return Observed(question, picture, ready, self._holdings.parties(now))

    def looked_at(self, names: tuple[str, ...]) -> None:
        """These were looked at for others' places in the last decision."""
        self._decisions += 1
        there = {str(key) for key in self._roster.gangs}
        self._looked = {name: at for name, at in self._looked.items() if name in there}
        self._looked |= dict.fromkeys(names, self._decisions)

    # --- who can be planned -----------------------------------------------------------------------

    def _ready(self, gang: GangState, found: Found | None, now: float) -> Ready | None:
        gang.forget_bars(now)
        pods = gang.unbound
        if gang.reserved or gang.leaving or (gang.had_nodes and not pods):
            return None
        if not gang.had_nodes:
            why = gang.not_ready(found)
            if why is not None:
                gang.tell(*why)
                return None
        gang.since = gang.since or now
        problem = self._queues.problem_of(self._queues.queue_of(pods[0]))
        if problem:
            gang.tell(Phase.REFUSED, problem)
            return None
        if now < gang.not_before:
            return None
        try:
            requests = [self._requests(one) for one in pods]
        except InvalidRequestError as error:
            gang.tell(Phase.REFUSED, str(error))
            return None
        limits = [NodeConstraints.of(one, gang.barred) for one in pods]
        return Ready(gang, pods, requests, limits, gang.version)

    def _requests(self, pod: Pod) -> tuple[ContainerRequest, ...]:
        meta = pod.metadata
        if len(self._asked) > 2 * len(self._roster.pods) + MORE:
            self._asked.clear()
        found = self._asked.get(meta.uid)
        if found is None or found[0] is not pod:
            found = self._asked[meta.uid] = pod, self._planner.requests(pod)
        return found[1]

    # --- the question -----------------------------------------------------------------------------

    def _gang(self, one: Ready, picture: ClusterSnapshot, now: float) -> Gang | None:
        gang = one.gang
        pairs = zip(one.requests, one.limits, strict=True)
        try:
            demands = tuple(picture.demand(asked, limits) for asked, limits in pairs)
        except InvalidRequestError as error:
            gang.tell(Phase.REFUSED, str(error))
            return None
        work = self._roster.work_of(gang, now)
        return Gang(
            name=work.name,
            members=demands,
            seconds=work.seconds,
            queue=work.queue,
            priority=work.priority,
            submitted=gang.since,
        )

    def _question(
        self,
        picture: ClusterSnapshot,
        ready: Mapping[str, Ready],
        asked: Mapping[str, Gang],
        now: float,
    ) -> DecisionInput:
        rests, waiting, promised = [], [], []
        for name, gang in asked.items():
            known = ready[name].gang
            if known.had_nodes:
                rows = (picture.row(one.spec.node_name) for one in known.bound)
                rests.append((gang, sorted({row for row in rows if row is not None})))
                continue
            waiting.append(gang)
            promise = _promised(gang, known.promise, picture)
            if promise is not None:
                promised.append(promise)
        ending = self._roster.ending
        gangs = self._roster.gangs.values()
        spared = {str(one.key) for one in gangs if one.making_room}
        spared |= {name for one in gangs for name in one.spared}  # a budget keeps them from all
        asking = {name for name, one in ready.items() if one.gang.asked}
        return DecisionInput(
            allocations=picture.allocations,
            running=self._holdings.running(now, ending),
            releasing=self._leftovers(ending, now),
            ending=self._holdings.ending(now),
            planned=promised,
            waiting=waiting,
            incomplete=rests,
            queues=self._queues.queues(),
            now=now,
            by=picture.by,
            protected=spared,
            searched_at={name: at for name, at in self._looked.items() if name not in asking},
            surpluses=self._givers(ending, now),
            waited={name for name, one in ready.items() if one.gang.has_waited(now)},
        )

    def _leftovers(self, ending: set[str], now: float) -> list[Running]:
        """What those that make room have, and nobody was given; not who is kept by a budget."""
        gangs = self._roster.gangs.values()
        ends = dict.fromkeys(ending - self._doors.refusals.keys(), now)
        ends |= {uid: max(now, gang.ends_at) for gang in gangs for uid in gang.pods if uid in ends}
        heirs = [uid for gang in gangs for uid in gang.reserved]
        return self._holdings.leftovers(ends, heirs, now)

    def _givers(self, ending: Collection[str], now: float) -> list[ElasticSurplus]:
        """Elastic jobs that could give back, of those that do not make room already."""
        pods = (
            pod
            for gang in self._roster.gangs.values()
            if not gang.leaving
            for pod in gang.staying
            if pod.metadata.uid not in ending
        )
        return [
            ElasticSurplus(one.job, one.seconds, parts)
            for one in surpluses(pods)
            if (parts := tuple(self._holdings.each_of(one.uids, now)))
        ]


def _promised(gang: Gang, promise: PlannedStart | None, picture: ClusterSnapshot) -> Running | None:
    """A promise, in the rows of this picture; None where it is for something else by now."""
    if promise is None or promise.shape != tuple(map(bare, gang.members)):
        return None
    places = [picture.placement(node, gpus) for node, gpus in promise.places]
    found = tuple(one for one in places if one is not None)
    if len(found) < len(places):
        return None
    return Running(gang, found, promise.start, promise.start + gang.seconds)
