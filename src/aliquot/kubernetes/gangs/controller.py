"""Gangs, again and again: look, decide, write, open the doors. Works in the replica that leads.

A pass goes so:
1. What became of places that were given (`reservations`, `budgets`).
2. Who starts, who is promised what, who makes room (`planning`). New places count in the
allocations.
3. Gang objects are written. A reservation that is not written opens no door, and who is not
   written to be leaving is not evicted.
4. Gates of members that have their places are taken away; those without one are woken.
5. Who is to end is evicted.

A crash between any two of these loses nothing: what was not written did not happen, and what was is
read by the next leader (`restore`), which goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.gang import GangSpec, GangStatus, Phase
from aliquot.kubernetes.cluster.membership import Key
from aliquot.kubernetes.cluster.topology import Labels
from aliquot.kubernetes.gangs.answers import Answers
from aliquot.kubernetes.gangs.apply import Applier
from aliquot.kubernetes.gangs.budgets import Budgets
from aliquot.kubernetes.gangs.events import GangEvents
from aliquot.kubernetes.gangs.evictions import GatesAndEvictions
from aliquot.kubernetes.gangs.finished import Finished
from aliquot.kubernetes.gangs.messages import stamp
from aliquot.kubernetes.gangs.observe import Observer
from aliquot.kubernetes.gangs.planning import Planning
from aliquot.kubernetes.gangs.reservations import Reservations, Times
from aliquot.kubernetes.gangs.restore import Restorer
from aliquot.kubernetes.gangs.single_pods import SinglePods
from aliquot.kubernetes.gangs.sources import Sources, sources_of
from aliquot.kubernetes.gangs.state import let_stay, owners_of
from aliquot.kubernetes.gangs.store import Store
from aliquot.kubernetes.gangs.term import Term
from aliquot.kubernetes.queues.usage import loads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.gang import GangObject
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.view import ClusterView
    from aliquot.kubernetes.extender.planner import Planner
    from aliquot.kubernetes.gangs.planning import Outcome
    from aliquot.kubernetes.gangs.sources import Found
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.kubernetes.queues.status import QueueUsage

PASS_SECONDS = 2.0  # at least every so often: time alone changes something
LONGEST_PAUSE = 5.0  # between passes, of which a long one is followed by as long a pause
SETTLE = 0.05  # changes come in bursts
AT_ONCE = 16  # gangs that are written
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
    """All gangs of a cluster; `looked` is called after each pass.

    `leading` says whether this replica holds the lease at this moment. `waiting` are the single
    pods that wait, and since when. `answers` are what kube-scheduler is told.
    """

    def __init__(  # noqa: PLR0913 - all that it works with
        self,
        client: Client,
        planner: Planner,
        *,
        recorder: Recorder,
        changes: Changes,
        view: ClusterView,
        options: GangOptions,
        leading: Callable[[], bool] = lambda: True,
        looked: Callable[[], None] = lambda: None,
        waiting: Callable[[], Iterable[tuple[Pod, float]]] = tuple,
        now: Callable[[], float] = time.time,
    ) -> None:
        cluster, queues, times = view.cluster, view.queues, options.times
        term = self._term = Term(leading)
        self._now = now
        self._looked = looked
        self._waiting = waiting
        self._changes = changes
        self._queues = queues
        self._options = options
        self._roster, self._holdings = view.workloads, view.by_workload
        self._reservations = Reservations(cluster, self._holdings, times)
        self._doors = GatesAndEvictions(client, now, lambda: term.is_on)
        self._planning = Planning(
            cluster,
            Observer(
                self._roster, planner, queues, view.topology, self._holdings, doors=self._doors
            ),
            Applier(self._roster, cluster, self._reservations, queues, self._holdings),
        )
        self._restorer = Restorer(
            planner,
            view.presets,
            self._roster,
            queues,
            self._holdings,
            self._reservations,
            times.grace,
        )
        self._singles = SinglePods(planner, self._roster, queues, self._holdings)
        self.answers = Answers(
            self._roster, self._reservations, self._singles, cluster, changes, term, now
        )
        self._sources = Sources(client, view.asks, now)
        self._finished = Finished(client, view.asks, now)
        self._store = Store(client, now, lambda: term.is_on)
        self._teller = GangEvents(recorder, self._store)
        self._budgets = Budgets(self._roster, self._reservations, self._doors, self._teller, times)
        self._gone: set[Key] = set()
        self._missing = False
        self.loads: Mapping[str, QueueUsage] = {}

    # --- what the API server tells ----------------------------------------------------------------

    def pod_changed(self, before: Pod | None, pod: Pod | None) -> None:
        """A pod was created, changed or deleted, and the cluster view has it already."""
        for one in (before, pod):
            gang = None if one is None else self._roster.gang_of(one)
            if gang is None:
                continue
            if gang.pods or gang.others:
                self._gone.discard(gang.key)
            elif self._roster.gangs.pop(gang.key, None) is not None:
                self._reservations.give_up(gang, "all its pods are gone", self._now())
                self._gone.add(gang.key)
        if before is not None and (pod is None or pod.spec.node_name):
            self.answers.hold_no_more(before.metadata.uid)

    def count(self, phase: Phase) -> int:
        """How many gangs are so."""
        return sum(one.phase is phase for one in self._roster.gangs.values())

    # --- who leads --------------------------------------------------------------------------------

    async def load(self) -> bool:
        """This replica leads, and knows all pods: read what the one before has reserved.

        Whether it was read, or there can be nothing.
        """
        number = self._term.number
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
        if self._term.number != number:
            return False
        self.answers.trouble = NOT_INSTALLED if self._missing else ""
        self._restorer.restore([*self._found(objects)], self._now())
        self._term.begin()
        return True

    def stop(self) -> None:
        """This replica leads no more, or anew."""
        self._term.end()
        self._reservations.forget_all("another replica leads now")
        self._singles.beside, self._singles.stopped = None, {}
        self._gone.clear()
        for gang in self._roster.gangs.values():
            gang.reserved.clear()
            gang.persisted, gang.making_room, gang.promise = {}, frozenset(), None
            gang.leaving_known = ""
            gang.claimed.clear()
            gang.ask_anew()
            gang.phase = Phase.GATHERING
            gang.begin_anew()

    def _found(self, objects: Sequence[GangObject]) -> Iterator[tuple[GangState, GangStatus]]:
        for one in objects:
            key = Key(one.metadata.namespace, one.metadata.name)
            self._store.found(key, one)
            gang = self._roster.gangs.get(key)
            if gang is None:
                self._gone.add(key)
            else:
                yield gang, one.status

    # --- again and again --------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        seen = 0
        while True:
            if self._changes.count == seen or not self._term.is_on:
                await self._changes.wait(PASS_SECONDS)
            await asyncio.sleep(SETTLE)
            seen = self._changes.count
            if not self._term.is_on:
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
        number = self._term.number
        await self._read()
        if not self._term.lasts(number):
            return
        outcome = await self._decide(number)
        if not self._term.lasts(number):
            return
        self._teller.tell_of_claims(outcome.claims, self._roster.pods)
        await self._write(number)
        for step in (self._open, self._end, self._clear):
            if self._term.lasts(number):
                await step()
        self._looked()

    # --- what is decided --------------------------------------------------------------------------

    async def _read(self) -> None:
        """What is not watched: objects that know sizes, and members that have done their work."""
        gangs = self._roster.gangs.values()
        gathering = [one for one in gangs if not one.whole_once]
        every, wanted = sources_of(gangs), sources_of(gathering)
        self._sources.keep(every)
        wanted |= {one for one in every if self._sources.known(*one) is None}
        await asyncio.gather(*(self._sources.read(*one) for one in wanted))
        short = [one for one in gathering if self._is_short(one)]
        await self._finished.read({one.key.namespace for one in short})
        for gang in gathering:
            gang.finished = self._finished.of(gang) if self._is_short(gang) else frozenset()

    def _is_short(self, gang: GangState) -> bool:
        found = self._source_of(gang)
        if found is not None and found.only_gpus:
            return False
        size, _ = gang.size(found)
        return size is not None and len(gang.members) + len(gang.others) < size

    def _source_of(self, gang: GangState) -> Found | None:
        source = gang.source
        return None if source is None else self._sources.known(gang.key.namespace, source)

    async def _decide(self, number: int) -> Outcome:
        now = self._now()
        gangs = self._roster.gangs
        found = {  # of who was whole it is old: it is read again when another of that name gathers
            key: None if gang.whole_once else self._source_of(gang) for key, gang in gangs.items()
        }
        before = {key: dict(gang.reserved) for key, gang in gangs.items()}
        self._budgets.look(now)
        for key, gang in gangs.items():
            self._reservations.settle(gang, found[key], now)
        let_stay(gangs)
        outcome = await self._planning.decide(found, now, lambda: self._term.lasts(number))
        if not self._term.lasts(number):
            return outcome
        self._singles.beside, self._singles.stopped = outcome.beside, outcome.stopped
        if outcome.again:
            self._changes.notify()
        for key, gang in gangs.items():
            self._doors.again(gang.reserved.keys() - before.get(key, {}).keys())
        if self._queues.objects:
            waiting = self._waiting()
            self.loads = loads_of(self._holdings, gangs.values(), waiting, self._queues, now)
        return outcome

    # --- what is written --------------------------------------------------------------------------

    async def _write(self, number: int) -> None:
        free = asyncio.Semaphore(AT_ONCE)

        async def write(gang: GangState) -> None:
            async with free:
                if self._term.lasts(number) and self._roster.gangs.get(gang.key) is gang:
                    await self._write_one(gang)

        gangs = list(self._roster.gangs.values())
        # A claim is kept before anybody is told to go for it: a new leader goes on with it.
        await asyncio.gather(*(write(one) for one in gangs if one.making_room))
        others = [one for one in gangs if not one.making_room and self._may_be_told(one)]
        await asyncio.gather(*(write(one) for one in others))

    def _may_be_told(self, gang: GangState) -> bool:
        """Whether the claim that it goes for is written."""
        claimant = self._roster.gangs.get(gang.leaves_for) if gang.leaves_for else None
        return claimant is None or claimant.is_written

    async def _write_one(self, gang: GangState) -> None:
        found = self._source_of(gang)
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
            leaving=gang.leaving,
            leavers=gang.leavers if gang.leaving else 0,
            leaves_at=stamp(gang.leaves_at) if gang.is_told_ahead else None,
            members=gang.told_members() if gang.reserved or gang.had_nodes else (),
        )
        self._teller.tell(gang)
        if self._store.differs(gang.key, spec, status):
            if not await self._store.write(gang.key, spec, status, owners_of(gang, found)):
                return
            gang.persisted = places
        gang.leaving_known = status.leaving

    async def _clear(self) -> None:
        free = asyncio.Semaphore(AT_ONCE)

        async def clear(key: Key) -> None:
            async with free:
                if key in self._roster.gangs or await self._store.delete(key):
                    self._gone.discard(key)
                    self._teller.forget(key)

        await asyncio.gather(*(clear(key) for key in list(self._gone)))
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
        """Evict who is to end, when that is written: who makes room, and gangs that end whole."""
        gangs, now = self._roster.gangs.values(), self._now()
        not_yet = {uid for gang in gangs if not gang.is_written for uid in gang.making_room}
        for gang in gangs:
            if gang.leaving and not gang.may_end(now):
                not_yet |= gang.pods.keys()
        for gang in gangs:  # nobody loses its work for a gang whose other places are not free yet
            if not not_yet.isdisjoint(gang.making_room):
                not_yet |= gang.making_room
        uids = {uid for gang in gangs for uid in gang.making_room} - not_yet
        ending = [self._roster.pods[uid] for uid in uids if uid in self._roster.pods]
        for gang in gangs:
            if gang.leaving and not_yet.isdisjoint(gang.pods):
                ending += gang.staying
        await self._doors.evict({one.metadata.uid: one for one in ending}.values())
