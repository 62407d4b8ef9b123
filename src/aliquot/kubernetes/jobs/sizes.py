"""The picture for `placement.elastic`, and its answer: who starts, grows and gives back.

The picture has the elastic jobs, what waits (gangs of which the scheduler says so, and single
pods), and what else runs in each queue, as one that cannot change. The scheduler starts what waits;
here room is only made for it. So a job that has no room at all is started at its smallest size: its
gang then waits in its queue like every other, with a promise.

A job is asked to grow, or begins with more than its smallest size, only if the GPUs are free at
this moment, beside those that others are about to take, and nobody was promised a start: what is
free may be a part of that. Shrinking is always possible.

A decision takes longer with all that it weighs. So only the first of those that wait are looked at,
few jobs begin at a time, and of a job's many sizes some are weighed: each half as large again as
the one before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.gang import Phase
from aliquot.kubernetes.api.requests import InvalidRequestError, requests_of
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.constraints import NodeConstraints
from aliquot.kubernetes.cluster.membership import GangKey, membership_of
from aliquot.kubernetes.cluster.snapshot import Picture
from aliquot.kubernetes.cluster.workloads import single_name
from aliquot.kubernetes.jobs.room import ClusterRoom, Party
from aliquot.kubernetes.jobs.step import could_be_fewer
from aliquot.model.job import Sizes, State, Wish
from aliquot.placement.core.demand import Gang
from aliquot.placement.elastic.resize import Elastic, Rules, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.gang import GangObject, GangStatus
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.jobs.allocations import Ledger
    from aliquot.kubernetes.jobs.codec import Memory
    from aliquot.model.job import Job
    from aliquot.model.status import Record
    from aliquot.placement.core.demand import Demand, Running
    from aliquot.placement.elastic.resize import Decision

WAITS_SECONDS = 2.0  # a pod that is younger may just be on its way
WAITING, BEGINNING, WEIGHED = 32, 4, 16  # that are looked at in one decision
ONE = Sizes((1,))

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job about which something may be decided.

    `pod` is a worker's as the template has it, `asked` what it asks for; `workers` the names of its
    pods, by rank. `most`: for now it is given no more than so many.
    """

    name: str
    job: Job
    memory: Memory
    pod: Pod
    asked: tuple[ContainerRequest, ...]
    workers: tuple[str, ...] = ()
    gang: GangKey | None = None
    gang_status: GangStatus | None = None
    priority: int = 0
    most: int | None = None

    @property
    def record(self) -> Record:
        """How it stands."""
        return self.memory.record

    @property
    def sizes(self) -> Sizes:
        """The sizes that it can have now."""
        sizes = self.job.sizes
        few = [one for one in sizes.allowed if self.most is None or one <= self.most]
        return Sizes(tuple(_some(few or [sizes.least], self.record.size)))

    @property
    def waits(self) -> bool:
        """Whether its newest workers wait for places, as a gang."""
        return self.gang_status is not None and self.gang_status.phase in {
            Phase.WAITING,
            Phase.REFUSED,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """A job is to start, or to have another size; meant is its generation.

    `why` is empty where it starts because there is room.
    """

    name: str
    generation: int
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Rigid(Elastic):
    """What has one size: another gang, a pod, or all that else runs in a queue."""

    members: tuple[Demand, ...] = ()

    def gang(self, size: int) -> Gang:
        """All of it."""
        del size
        return Gang(
            self.name,
            self.members,
            queue=self.queue,
            priority=self.priority,
            submitted=self.submitted,
        )


@dataclass
class Sizer:
    """Decides again and again; between two times it knows only who could have grown since when."""

    ledger: Ledger
    rules: Rules = field(default_factory=Rules)
    _could: dict[str, tuple[float, int]] = field(default_factory=dict)
    _left_out: set[str] = field(default_factory=set)

    async def changes(
        self, candidates: Sequence[Candidate], gangs: Iterable[GangObject], now: float
    ) -> list[Change]:
        """What is to be done, in this order."""
        ledger, every = self.ledger, list(gangs)
        candidates = _first(candidates)
        ours = {one.gang for one in candidates if one.gang and could_be_fewer(one.job, one.record)}
        waiting = sorted([*self._gangs(every, ours), *self._singles(now)], key=_turn)[:WAITING]
        limits = [NodeConstraints.of(one.pod) for one in candidates]
        limits += [NodeConstraints.of(pod) for _, pods, _ in waiting for pod in pods]
        picture = Picture(ledger.ground, limits)
        running = {one.gang.name: one for one in ledger.holdings.running(now)}
        parties, jobs = self._parts(candidates, picture, running, now)
        candidates = [one for one in candidates if one.name in parties]
        rigid = [one for each in waiting if (one := self._rigid(*each, picture)) is not None]
        parties |= {one.name: Party(one.name, one.members) for one in rigid}
        coming = {one.name: one.size for one in jobs if one.size and not one.settled}
        room = ClusterRoom(picture.allocations, picture.by, parties).arrived(coming)
        mine = {worker for one in jobs for worker in _by_name(candidates, one.name).workers}
        others = _others(one for name, one in running.items() if name not in mine)
        decision = await asyncio.to_thread(
            decide,
            [*jobs, *rigid, *others],
            room,
            ledger.queues.queues(),
            picture.hardware,
            now,
            self.rules,
            self._could,
        )
        self._could = decision.could
        promised = any(
            one.status.phase == Phase.WAITING and one.status.planned_start for one in every
        )
        return list(_changes(decision, room, candidates, now, may_grow=not promised))

    # --- the picture ---

    def _parts(
        self,
        candidates: Sequence[Candidate],
        picture: Picture,
        running: Mapping[str, Running],
        now: float,
    ) -> tuple[dict[str, Party], list[Elastic]]:
        """Each job's part; one that makes no sense is left out, and does not stop the others."""
        parties: dict[str, Party] = {}
        jobs: list[Elastic] = []
        known, self._left_out = self._left_out, set()
        for one in candidates:
            try:
                party = _party(one, picture, running)
                job = self._elastic(one, party, now)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it
                self._left_out.add(one.name)
                if one.name not in known:
                    _log.warning("left out of decisions", job=one.name, why=str(error))
                continue
            parties[one.name] = party
            jobs += [job] if job is not None else []
        return parties, jobs

    def _gangs(
        self, gangs: Iterable[GangObject], ours: set[GangKey]
    ) -> Iterator[tuple[str, list[Pod], float]]:
        """Those that wait, but for the growth of jobs, which nobody makes room for."""
        for one in gangs:
            key = GangKey(one.metadata.namespace, one.metadata.name)
            known = self.ledger.roster.gangs.get(key)
            if one.status.phase == Phase.WAITING and known is not None and key not in ours:
                pods = known.unbound
                if pods:
                    yield str(key), pods, seconds_at(one.status.since) or 0.0

    def _singles(self, now: float) -> Iterator[tuple[str, list[Pod], float]]:
        for pod in self.ledger.roster.pods.values():
            if pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp:
                continue
            since = seconds_at(pod.metadata.creation_timestamp) or now
            if membership_of(pod) is None and now - since > WAITS_SECONDS:
                yield single_name(pod), [pod], since

    def _rigid(
        self, name: str, pods: Sequence[Pod], since: float, picture: Picture
    ) -> Rigid | None:
        presets = self.ledger.presets
        try:
            members = tuple(
                picture.demand(asked, NodeConstraints.of(pod))
                for pod in pods
                if (asked := requests_of(pod, presets))
            )
        except InvalidRequestError:
            return None
        if not members:
            return None
        return Rigid(
            name=name,
            sizes=ONE,
            queue=self.ledger.queues.queue_of(pods[0]),
            priority=max(pod.spec.priority or 0 for pod in pods),
            submitted=since,
            members=members,
        )

    def _elastic(self, one: Candidate, party: Party, now: float) -> Elastic | None:
        record = one.record
        if one.waits or not record.takes_decisions(now):
            return None
        return Elastic(
            name=one.name,
            sizes=one.sizes,
            member=party.member[0],
            queue=self.ledger.queues.queue_of(one.pod),
            priority=one.priority,
            submitted=one.job.submitted,
            size=record.size_to_be,
            resized_at=record.resized_at,
            settled=record.settled,
            speeds=one.memory.speeds,
        )


def _party(one: Candidate, picture: Picture, running: Mapping[str, Running]) -> Party:
    record = one.record
    return Party(
        name=one.name,
        member=(picture.demand(one.asked, NodeConstraints.of(one.pod)),),
        held=tuple(running[name] for name in one.workers if name in running),
        size=record.size if record.settled else None,
        live=one.job.live,
    )


def _others(running: Iterable[Running]) -> list[Rigid]:
    """All that else runs, queue by queue."""
    members: dict[str, list[Demand]] = defaultdict(list)
    for one in running:
        members[one.gang.queue] += one.gang.members
    return [
        Rigid(f"\0{queue}", ONE, queue=queue, size=1, members=tuple(every))
        for queue, every in members.items()
    ]


def _first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that run, and the first of those that are to begin."""
    new = [one for one in candidates if one.record.state is State.PENDING]
    new.sort(key=lambda one: (one.record.not_before, one.job.submitted, one.name))
    later = {one.name for one in new[BEGINNING:]}
    return [one for one in candidates if one.name not in later]


def _turn(waiting: tuple[str, list[Pod], float]) -> tuple[int, float, str]:
    name, pods, since = waiting
    return -max(pod.spec.priority or 0 for pod in pods), since, name


def _some(sizes: Sequence[int], now: int) -> list[int]:
    """The sizes that are weighed; the smallest, the largest and its own in any case."""
    if len(sizes) <= WEIGHED:
        return list(sizes)
    found = [sizes[0]]
    for one in sizes:
        if one in {now, sizes[-1]} or one >= 1.5 * found[-1]:
            found.append(one)
    return sorted(set(found))


# --- the answer -----------------------------------------------------------------------------------


def _changes(
    decision: Decision,
    room: ClusterRoom,
    candidates: Sequence[Candidate],
    now: float,
    *,
    may_grow: bool,
) -> Iterator[Change]:
    for name, (size, why) in decision.resizes.items():
        record = _by_name(candidates, name).record
        if size > record.size:
            larger = room.moved(name, size) if may_grow else None
            if larger is None:
                continue
            room = larger
        yield Change(name, record.generation, size, why)
    for one in candidates:
        record = one.record
        if record.state is not State.PENDING or record.wish is not Wish.RUN:
            continue
        if now < record.not_before:
            continue
        least = one.job.sizes.least
        size = decision.starts.get(one.name, least) if may_grow else least
        begun = room.moved(one.name, size)
        if begun is not None:
            room = begun
            yield Change(one.name, record.generation, size, "")
        else:
            yield Change(one.name, record.generation, least, _waits_at(least))


def _waits_at(least: int) -> str:
    workers = "1 worker" if least == 1 else f"{least} workers"
    return f"begins at its smallest size, {workers}, and waits for room"


def _by_name(candidates: Sequence[Candidate], name: str) -> Candidate:
    return next(one for one in candidates if one.name == name)
