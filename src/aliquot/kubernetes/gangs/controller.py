"""Gangs, again and again: look, decide, write, open the doors. Works in the replica that leads.

A pass goes so:
1. What became of places that were given (`reservations`).
2. Who starts, who is promised what, who makes room (`planning`). New places count in the books.
3. Gang objects are written. A reservation that is not written opens no door.
4. Gates of members that have their places are taken away; those without one are woken.
5. Who is to end is evicted.

A crash between any two of these loses nothing: what was not written did not happen, and what was is
read by the next leader, which goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.gangs.doors import Doors
from aliquot.kubernetes.gangs.loads import loads_of
from aliquot.kubernetes.gangs.members import Key, claim_of
from aliquot.kubernetes.gangs.objects import GangSpec, GangStatus, Phase
from aliquot.kubernetes.gangs.picture import Labels
from aliquot.kubernetes.gangs.planning import Outcome, Planning
from aliquot.kubernetes.gangs.reservations import Reservations, Times
from aliquot.kubernetes.gangs.roster import Roster
from aliquot.kubernetes.gangs.singles import Singles
from aliquot.kubernetes.gangs.sources import Sources
from aliquot.kubernetes.gangs.state import owners_of
from aliquot.kubernetes.gangs.store import Store
from aliquot.kubernetes.gangs.teller import Teller
from aliquot.kubernetes.gangs.words import stamp
from aliquot.kubernetes.pods import asks
from aliquot.kubernetes.scheduler.bind import NotBoundError
from aliquot.kubernetes.scheduler.planner import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Node, Pod
    from aliquot.kubernetes.gangs.objects import GangObject
    from aliquot.kubernetes.gangs.state import Known
    from aliquot.kubernetes.presets import Preset
    from aliquot.kubernetes.queues.known import Queues
    from aliquot.kubernetes.queues.status import Load
    from aliquot.kubernetes.scheduler.changes import Changes
    from aliquot.kubernetes.scheduler.cluster import Reserved
    from aliquot.kubernetes.scheduler.planner import Planner

PASS_SECONDS = 2.0  # at least every so often: time alone changes something
LONGEST_PAUSE = 5.0  # between passes, of which a long one is followed by as long a pause
SETTLE = 0.05  # changes come in bursts
PERMIT_SECONDS = 50.0  # kube-scheduler waits 60 s for a bind
AT_ONCE = 16  # gangs that are written
SINGLES_SECONDS = 0.5  # between single pods that try again beside promises
NOT_INSTALLED = "the CustomResourceDefinition gangs.aliquot.io is not installed"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GangOptions:
    """`assumed` is how long work runs that does not say it, in seconds."""

    times: Times = field(default_factory=Times)
    assumed: float = 3600.0
    labels: Labels = field(default_factory=Labels)


def gang_options(grace: float, assumed: float, rack: str = "", block: str = "") -> GangOptions:
    """Options, with labels that come before the usual ones."""
    usual = Labels()
    racks = (rack, *usual.racks) if rack else usual.racks
    blocks = (block, *usual.blocks) if block else usual.blocks
    return GangOptions(Times(grace=grace, room=2 * grace), assumed, Labels(racks, blocks))


class Gangs:
    """All gangs of a cluster; `looked` is called after each pass."""

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        client: Client,
        planner: Planner,
        *,
        recorder: Recorder,
        changes: Changes,
        queues: Queues,
        nodes: Callable[[], Mapping[str, Node]],
        presets: Sequence[Preset],
        options: GangOptions,
        looked: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._looked = looked
        self._changes = changes
        self._queues = queues
        self._cluster = planner.cluster
        self._options = options
        self._roster = Roster(queues.queue_of, lambda pod: asks(pod, presets), options.assumed)
        self._reservations = Reservations(planner.cluster, presets, options.times)
        self._planning = Planning(
            self._roster,
            planner,
            self._reservations,
            queues,
            nodes,
            labels=options.labels,
            assumed=options.assumed,
        )
        self._singles = Singles(planner, self._planning, self._roster, queues)
        self._sources = Sources(client, now)
        self._store = Store(client, now)
        self._teller = Teller(recorder, self._store)
        self._doors = Doors(client, now)
        self._gone: set[Key] = set()
        self._waits_since: dict[str, tuple[Pod, float]] = {}
        self._active = False
        self._turn = 0
        self._next_single = 0.0
        self._missing = False
        self.loads: Mapping[str, Load] = {}

    # --- what the API server tells ----------------------------------------------------------------

    def pod_changed(self, uid: str, pod: Pod | None) -> None:
        """A pod is now so; None: it is gone."""
        before = self._roster.pods.get(uid)
        gangs = [self._roster.gang_of(before)] if before is not None else []
        gangs.append(self._roster.change(uid, pod, self._now()))
        for gang in gangs:
            if gang is None:
                continue
            if gang.pods or gang.others:
                self._gone.discard(gang.key)
            elif self._roster.gangs.pop(gang.key, None) is not None:
                self._reservations.give_up(gang, "all its pods are gone", self._now())
                self._gone.add(gang.key)
        if pod is None or pod.spec.node_name:
            self._waits_since.pop(uid, None)

    async def load(self) -> bool:
        """This replica leads, and knows all pods: read what the one before has reserved.

        Whether it was read, or there can be nothing.
        """
        objects: list[GangObject] = []
        try:
            objects = await self._store.read()
        except ApiError as error:
            if not error.not_found:
                _log.warning("gangs are not read", why=error.message)
                return False
            if not self._missing:
                _log.warning("gangs are not started", why=NOT_INSTALLED)
            self._missing = True
        else:
            self._missing = False
        now = self._now()
        for one in objects:
            self._found(one, now)
        for gang in self._roster.gangs.values():
            self._planning.end_whole(gang.making_room, f"ended for {gang.key}")
        self._active = True
        return True

    def stop(self) -> None:
        """This replica leads no more, or anew."""
        self._active = False
        self._turn += 1
        self._reservations.forget_all("another replica leads now")
        self._singles.promises = ()
        self._gone.clear()
        for gang in self._roster.gangs.values():
            gang.reserved.clear()
            gang.persisted, gang.making_room, gang.promise = {}, frozenset(), None
            gang.had_nodes.clear()
            gang.whole_once, gang.leaving, gang.phase = False, "", Phase.GATHERING

    def _found(self, one: GangObject, now: float) -> None:
        key = Key(one.metadata.namespace, one.metadata.name)
        self._store.found(key, one)
        gang = self._roster.gangs.get(key)
        if gang is None:
            self._gone.add(key)
        else:
            self._reservations.restore(gang, one.status, now)

    # --- what kube-scheduler asks -----------------------------------------------------------------

    def answer(self, pod: Pod, names: Sequence[str]) -> Answer | None:
        """Where a pod may go, for all that gangs and queues say; None: anywhere."""
        claim = claim_of(pod)
        if claim is None:
            answer = self._singles.answer(pod, names, self._now())
            self._note_single(pod, answer)
            return answer
        gang = self._roster.gangs.get(claim.key)
        uid = pod.metadata.uid
        if gang is None or uid not in gang.pods:
            if gang is not None and uid in gang.others:
                return None
            return _told(names, f"gang {claim.key}: this pod was not seen yet")
        if not gang.is_open(uid):
            why = NOT_INSTALLED if self._missing else gang.reason
            return _told(names, f"gang {gang.key} is {gang.phase.lower()}: {why}")
        place = gang.reserved[uid]
        if place.node in names:
            return Answer((place.node,))
        why = f"kube-scheduler did not let pod {pod.key} go to node {place.node}"
        self._reservations.give_up(gang, why, self._now(), node=place.node)
        self._changes.ring()
        return _told(names, f"gang {gang.key}: {why}")

    async def permit(self, pod: Pod, node: str) -> Reserved | None:
        """A member's place, when all members are there; None for a single pod."""
        gang = self._roster.gang_of(pod)
        if gang is None or pod.metadata.uid in gang.others:
            return None
        uid = pod.metadata.uid
        if uid not in gang.pods or not gang.is_open(uid) or gang.reserved[uid].node != node:
            raise NotBoundError(f"gang {gang.key} has no place for pod {pod.key} on node {node}")
        gang.moved = self._now()
        place = gang.reserved[uid]
        reserved = self._reservations.reserved(gang, uid)
        await self._reservations.permit(gang).arrive(uid, PERMIT_SECONDS)
        if gang.reserved.get(uid) is not place:
            raise NotBoundError(f"gang {gang.key} has no place for pod {pod.key} any more")
        return reserved

    def tried(self, pod: Pod, *, bound: bool) -> None:
        """A member was bound, or not: then its place is still its own, if it was not given up."""
        gang = self._roster.gang_of(pod)
        uid = pod.metadata.uid
        if gang is None:
            return
        if bound:
            gang.moved = self._now()
        elif uid in gang.reserved and uid in gang.pods:
            self._cluster.reserve(uid, self._reservations.reserved(gang, uid))

    def holds(self, pod: Pod, place: Reserved) -> bool:
        """Whether a member's place is still its own, and this replica's to give."""
        gang = self._roster.gang_of(pod)
        mine = gang.reserved.get(pod.metadata.uid) if gang is not None else None
        return (
            self._active
            and mine is not None
            and (mine.node, mine.parts)
            == (
                place.node,
                place.parts,
            )
        )

    def may_end_others(self, pod: Pod, victims: Collection[str]) -> bool:
        """Whether kube-scheduler may end these pods, by UID, for a pod that finds no CPU.

        Not for a member of a gang, nor for one that may not start whatever ends; and no gang is
        ended by halves.
        """
        if claim_of(pod) is not None or pod.metadata.uid in self._waits_since:
            return False
        pods = (self._roster.pods.get(uid) for uid in victims)
        return all(one is None or claim_of(one) is None for one in pods)

    def count(self, phase: Phase) -> int:
        """How many gangs are so."""
        return sum(one.phase is phase for one in self._roster.gangs.values())

    def lets(self, pod: Pod) -> bool:
        """Whether a single pod that waits may try again now.

        Where gangs have promises only some do: it takes a look at all of them to answer each.
        """
        if claim_of(pod) is not None:
            return False
        now = self._now()
        if self._singles.promises and now < self._next_single:
            return False
        self._next_single = now + SINGLES_SECONDS
        return True

    def _note_single(self, pod: Pod, answer: Answer | None) -> None:
        if answer is not None and not answer.names:
            self._waits_since.setdefault(pod.metadata.uid, (pod, self._now()))

    # --- again and again --------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        seen = 0
        while True:
            if self._changes.count == seen or not self._active:
                await self._changes.wait(PASS_SECONDS)
            await asyncio.sleep(SETTLE)
            seen = self._changes.count
            if not self._active:
                continue
            began = time.perf_counter()
            try:
                await self._pass()
            except Exception:  # noqa: BLE001 - one gang must not stop all others
                _log.exception("a pass over the gangs failed; the next one comes soon")
            await asyncio.sleep(min(time.perf_counter() - began, LONGEST_PAUSE))

    async def _pass(self) -> None:
        if self._missing:
            await self.load()
        if not self._missing:
            await self.look()

    async def look(self) -> None:
        """One pass."""
        await self._read_sources()
        if not self._active:
            return
        outcome = await self._decide()
        if not self._active:
            return
        self._teller.tell_of_claims(outcome.claims, self._roster.pods)
        await self._write()
        if not self._active:
            return
        await self._open()
        await self._end()
        await self._clear()
        self._looked()

    async def _read_sources(self) -> None:
        wanted = {
            (gang.key.namespace, source)
            for gang in self._roster.gangs.values()
            if not gang.whole_once and (source := gang.source) is not None
        }
        self._sources.keep(wanted)
        await asyncio.gather(*(self._sources.read(*one) for one in wanted))

    async def _decide(self) -> Outcome:
        now = self._now()
        hardware = self._cluster.chooser.books.hardware
        self._queues.set_largest_gpu(int(hardware.gpu_bytes.max(initial=0)))
        gangs = self._roster.gangs
        found = {
            key: self._sources.known(key.namespace, source) if (source := gang.source) else None
            for key, gang in gangs.items()
        }
        before = {key: dict(gang.reserved) for key, gang in gangs.items()}
        for key, gang in gangs.items():
            self._give_up_on_budgets(gang, now)
            self._reservations.settle(gang, gang.size(found[key])[0], now)
        turn = self._turn
        outcome = await self._planning.decide(found, now, lambda: self._turn == turn)
        if self._turn != turn:
            return outcome
        self._singles.promises = outcome.promises
        for key, gang in gangs.items():
            self._doors.again(gang.reserved.keys() - before.get(key, {}).keys())
        if outcome.picture is not None:
            waiting = self._waits_since.values()
            self.loads = loads_of(outcome, gangs.values(), waiting, self._queues)
        return outcome

    def _give_up_on_budgets(self, gang: Known, now: float) -> None:
        """Others that are kept from ending are not waited for: another way is sought."""
        late = now - gang.moved > self._options.times.room
        refused = [uid for uid in gang.making_room if uid in self._doors.refusals]
        if late and refused:
            for uid in refused:
                pod = self._roster.pods.get(uid)
                if pod is not None:
                    other = self._roster.gang_of(pod)
                    name = str(other.key) if other else f"pod {pod.key}"
                    if other is not None:
                        other.leaving = ""
                    gang.spared[name] = now + 5 * self._options.times.room
            self._reservations.give_up(gang, str(self._doors.refusals[refused[0]]), now)
            gang.not_before = now

    # --- what is written --------------------------------------------------------------------------

    async def _write(self) -> None:
        free, turn = asyncio.Semaphore(AT_ONCE), self._turn

        async def write(gang: Known) -> None:
            async with free:
                if self._turn == turn and self._roster.gangs.get(gang.key) is gang:
                    await self._write_one(gang)

        await asyncio.gather(*(write(one) for one in list(self._roster.gangs.values())))

    async def _write_one(self, gang: Known) -> None:
        found = None
        if (source := gang.source) is not None:
            found = self._sources.known(gang.key.namespace, source)
        pods = (*gang.pods.values(), *gang.others.values())
        spec = GangSpec(
            size=gang.size(found)[0] or 0,
            queue=self._queues.queue_of(pods[0]),
            priority=gang.priority,
            seconds=gang.seconds(self._options.assumed),
        )
        places = dict(gang.reserved)
        status = GangStatus(
            phase=gang.phase,
            reason=gang.reason,
            planned_start=None if gang.planned is None else stamp(gang.planned),
            since=stamp(gang.since) if gang.since else None,
            topology=gang.topology,
            making_room=tuple(sorted(gang.making_room)),
            whole_once=gang.whole_once,
            members=gang.told_members() if gang.reserved or gang.had_nodes else (),
        )
        self._teller.tell(gang)
        if not self._store.differs(gang.key, spec, status):
            return
        if await self._store.write(gang.key, spec, status, owners_of(gang, found)):
            gang.persisted = places

    async def _clear(self) -> None:
        turn = self._turn
        for key in list(self._gone):
            if self._turn != turn:
                return
            if key in self._roster.gangs or await self._store.delete(key):
                self._gone.discard(key)
                self._teller.forget(key)
        self._doors.keep(self._roster.pods.keys())

    # --- what is done -----------------------------------------------------------------------------

    async def _open(self) -> None:
        let_go: list[Pod] = []
        for gang in self._roster.gangs.values():
            members = [
                gang.pods[uid] for uid in gang.reserved.keys() & gang.pods if gang.is_open(uid)
            ]
            if members or gang.whole_once:
                let_go += [one for one in gang.others.values() if not one.spec.node_name]
            let_go += members
        await self._doors.open(let_go)

    async def _end(self) -> None:
        gangs = self._roster.gangs.values()
        uids = {uid for gang in gangs for uid in gang.making_room}
        ending = [self._roster.pods[uid] for uid in uids if uid in self._roster.pods]
        ending += [pod for gang in gangs if gang.leaving for pod in gang.staying]
        await self._doors.evict(ending)


def _told(names: Sequence[str], text: str) -> Answer:
    """A refusal of which people are told otherwise."""
    return Answer((), dict.fromkeys(names, text), message=text, told=True)
