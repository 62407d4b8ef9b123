"""Which workload holds which GPUs, and what each queue uses. Updated by what has changed.

A pod holds its GPUs until no node reports it any more, also while it is evicted for a gang. That
gang has its places reserved from the moment of the decision, and starts when the victims are gone
(`still_held`). Victims and gang are not counted twice: for reclaim only the gang counts, and for
limits the larger of both (`charged`). GPUs that victims hold and no gang got are free soon
(`leftovers`).

The answers are always those of a full recount. A call costs what has changed since the last one:
rows of the allocations, pods (`touch`), and queues, which are few and cause a full recount.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.workloads import ENDING, Work, is_single
from aliquot.placement.core.demand import Demand, Gang, Kind, Placement, Running
from aliquot.placement.core.wishes import Wishes
from aliquot.placement.queues.quota import Resources, Tree, add_all, takes, usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.node_usage import GpuUsage
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.queues.quota import Sums

Pairs = list[tuple[Placement, Demand]]


@dataclass(frozen=True, slots=True)
class PendingPreemption:
    """GPUs that change hands, by UIDs: the victims are evicted for the pods of a gang.

    `nodes` are those that the gang's pods go to, `queue` is the gang's.
    """

    victims: frozenset[str]
    heirs: frozenset[str]
    nodes: frozenset[str]
    queue: str


class WorkloadAllocations:
    """What is held or reserved on the rows of a cluster's allocations.

    `growing` is what running pods were allowed to grow by and nodes do not report yet, by queue. It
    counts for limits.
    """

    def __init__(self, cluster: Cluster, workloads: Workloads, queues: Queues) -> None:
        self._cluster = cluster
        self._workloads = workloads
        self._queues = queues
        self._seen: Allocations | None = None
        self._version = 0
        self._queues_version = -1
        self._rows: dict[int, tuple[int, dict[str, Pairs]]] = {}  # a GPU's bytes; by UID
        self._pairs: defaultdict[str, dict[int, Pairs]] = defaultdict(dict)  # by UID and row
        self._name_of: dict[str, str] = {}  # of the work that a UID is part of
        self._uids: dict[str, frozenset[str]] = {}
        self._running: dict[str, Running] = {}
        self._takes: dict[str, tuple[str, Resources]] = {}
        self._used: dict[str, Resources] = {}
        self._singles: Counter[str] = Counter()
        self._stale: set[str] = set()
        self.growing: Mapping[str, Resources] = {}
        self._renamed: set[str] = set()
        workloads.listeners.append(self.touch)

    def touch(self, uid: str, name: str) -> None:
        """A pod has changed that belongs, or belonged, to the work of this name."""
        if uid in self._pairs:
            self._renamed.add(uid)
        if name in self._uids:
            self._stale.add(name)

    # --- answers ----------------------------------------------------------------------------------

    def running(self, now: float, without: Collection[str] = ()) -> list[Running]:
        """All work that holds or has reserved something, but for the pods of these UIDs."""
        self._refresh(now)
        apart = {name for uid in without if (name := self._name_of.get(uid)) is not None}
        found = [one for name, one in self._running.items() if name not in apart]
        for name in apart:
            left = self._uids[name].difference(without)
            if left:
                found.append(self._made(name, left, now))
        return found

    def used(self, now: float, without: Collection[str] = ()) -> dict[str, Resources]:
        """What each queue uses, but for the pods of these UIDs."""
        self._refresh(now)
        used = dict(self._used)
        for one in self.parts_of(without, now):
            used[one.gang.queue] -= takes(one, self._cluster.chooser.allocations.hardware)
        return used

    def charged(
        self,
        now: float,
        preemptions: Collection[PendingPreemption],
        without: Collection[str] = (),
    ) -> Sums:
        """What counts for the limits of queues and their ancestors, but for these UIDs."""
        victims = {uid for one in preemptions for uid in one.victims}
        staying = self.used(now, {*victims, *without})
        tree = Tree(self._queues.queues())
        return add_all(tree.summed(staying), self.charged_besides(now, preemptions))

    def charged_besides(self, now: float, preemptions: Collection[PendingPreemption]) -> Sums:
        """What counts for limits beside what is used.

        That is what victims hold above the gangs that they are evicted for, and what pods grow by.
        """
        tree, hardware = Tree(self._queues.queues()), self._cluster.chooser.allocations.hardware
        sums = tree.summed(self.growing)
        for one in preemptions:
            before = usage(self.parts_of(one.victims, now), hardware)
            after = usage(self.parts_of(one.heirs, now), hardware)
            add_all(sums, tree.excess(before, after))
        return sums

    def still_held(self, preemption: PendingPreemption, now: float) -> frozenset[str]:
        """The victims that the start of a gang waits for.

        If the gang's queue has a limit, all that hold something; else those on the gang's nodes. So
        a victim on a dead node elsewhere does not keep the gang from places that are free.
        """
        self._refresh(now)
        having = frozenset(uid for uid in preemption.victims if uid in self._name_of)
        tree = Tree(self._queues.queues())
        if tree.is_limited(preemption.queue):
            return having
        rows = {self._cluster.rows.get(node) for node in preemption.nodes}
        return frozenset(uid for uid in having if not rows.isdisjoint(self._pairs[uid]))

    def leftovers(
        self, ends: Mapping[str, float], heirs: Iterable[str], now: float
    ) -> list[Running]:
        """What victims hold and no heir was given: one entry for each workload, without a queue.

        `ends` has the time at which each victim is evicted, by UID. `heirs` are the UIDs of pods
        that get GPUs of victims.
        """
        self._refresh(now)
        given = {(at.node, at.gpus) for uid in heirs for at, _ in self._pairs_of(uid)}
        found: dict[str, Pairs] = {}
        until: dict[str, float] = {}
        for uid in sorted(ends.keys() & self._name_of.keys()):
            name = f"{self._name_of[uid]} (ending)"
            pairs = [
                (at, what) for at, what in self._pairs_of(uid) if (at.node, at.gpus) not in given
            ]
            if pairs:
                found[name] = found.get(name, []) + pairs
                until[name] = max(until.get(name, now), ends[uid])
        return [
            _running(Work(name, now, until[name] - now + ENDING), pairs)
            for name, pairs in found.items()
        ]

    def singles(self, now: float) -> Mapping[str, int]:
        """How many single pods hold something in each queue."""
        self._refresh(now)
        return self._singles

    def parts_of(self, uids: Collection[str], now: float) -> list[Running]:
        """What the pods of these UIDs hold, by work."""
        self._refresh(now)
        names = {name for uid in uids if (name := self._name_of.get(uid)) is not None}
        return [self._made(name, self._uids[name].intersection(uids), now) for name in names]

    def each_of(self, uids: Iterable[str], now: float) -> list[Running]:
        """What each of these pods holds by itself, in their order."""
        self._refresh(now)
        names = {uid: name for uid in uids if (name := self._name_of.get(uid)) is not None}
        firsts = {name: uid for uid, name in names.items()}
        works = {name: self._workloads.work(uid, now) for name, uid in firsts.items()}
        return [_running(works[name], self._pairs_of(uid)) for uid, name in names.items()]

    def holders(self, now: float) -> Mapping[str, frozenset[str]]:
        """The UIDs of all pods that hold something, by the name of their work."""
        self._refresh(now)
        return dict(self._uids)

    # --- updates ----------------------------------------------------------------------------------

    def _refresh(self, now: float) -> None:
        allocations = self._cluster.chooser.allocations
        changed = allocations.changed_since(self._version) if allocations is self._seen else None
        rows: Iterable[int] = {*self._rows, *self._cluster.rows.values()}
        if changed is not None:
            rows = changed.tolist()
        self._seen, self._version = allocations, allocations.version
        for row in rows:
            self._recount(row, allocations)
        if self._queues_version != self._queues.version:
            self._queues_version = self._queues.version
            self._stale |= self._uids.keys()
        for uid in self._renamed:
            self._rename(uid)
        self._renamed.clear()
        for name in self._stale:
            self._count(name, now)
        self._stale.clear()

    def _recount(self, row: int, allocations: Allocations) -> None:
        """Recount the node of a row."""
        node = allocations.hardware.names[row] if row < allocations.hardware.size else ""
        size = int(allocations.hardware.gpu_bytes[row]) if node else 0
        held = self._cluster.usage_by_pod(node) if self._cluster.rows.get(node) == row else {}
        now = {uid: pairs for uid, one in held.items() if (pairs := _pairs(row, one))}
        old_size, before = self._rows.pop(row, (size, {}))
        if now:
            self._rows[row] = size, now
        for uid in before.keys() | now.keys():
            if before.get(uid) == now.get(uid) and size == old_size:
                continue
            if uid in now:
                self._pairs[uid][row] = now[uid]
            else:
                self._pairs[uid].pop(row, None)
            self._rename(uid)

    def _rename(self, uid: str) -> None:
        """Recount the work that a pod belongs to now, and the one that it belonged to."""
        old = self._name_of.pop(uid, None)
        if old is not None:
            self._stale.add(old)
            self._uids[old] -= {uid}
        if not self._pairs.get(uid):
            self._pairs.pop(uid, None)
            self._workloads.forget(uid)
            return
        name = self._name_of[uid] = self._workloads.name_of(uid)
        self._uids[name] = self._uids.get(name, frozenset()) | {uid}
        self._stale.add(name)

    def _count(self, name: str, now: float) -> None:
        if name in self._takes:
            queue, before = self._takes.pop(name)
            self._used[queue] -= before
            self._singles[queue] -= is_single(name)
        if not self._uids.get(name):
            self._uids.pop(name, None)
            self._running.pop(name, None)
            return
        one = self._running[name] = self._made(name, self._uids[name], now)
        more = takes(one, self._cluster.chooser.allocations.hardware)
        self._takes[name] = one.gang.queue, more
        self._used[one.gang.queue] = self._used.get(one.gang.queue, Resources()) + more
        self._singles[one.gang.queue] += is_single(name)

    def _made(self, name: str, uids: Collection[str], now: float) -> Running:
        work = self._workloads.work(next(iter(self._uids[name])), now)
        return _running(work, [pair for uid in sorted(uids) for pair in self._pairs_of(uid)])

    def _pairs_of(self, uid: str) -> Pairs:
        return [pair for some in self._pairs.get(uid, {}).values() for pair in some]


def _pairs(row: int, held: Mapping[int, GpuUsage]) -> Pairs:
    """What a pod holds, GPU by GPU: giving it back restores the allocations exactly."""
    pairs = []
    for column, one in held.items():
        place = Placement(row, (column,))
        mark = one.mark
        wishes = None if mark is None else Wishes(label=mark.label, apart_from=mark.apart_from)
        if one.kind is Kind.WHOLE:
            pairs.append((place, Demand(wishes=wishes)))
            continue
        use, milli = one.use, min(one.use.milli, 1000)
        pairs.append((place, Demand(1, one.kind, milli, use.bytes, wishes=wishes, swap=one.swap)))
        pairs += [(place, Demand(1, one.kind, 0))] * (use.holders - 1)
    return pairs


def _running(work: Work, pairs: Pairs) -> Running:
    gang = Gang(
        name=work.name,
        members=tuple(demand for _, demand in pairs),
        seconds=work.seconds,
        queue=work.queue,
        priority=work.priority,
        submitted=work.start,
    )
    placements = tuple(place for place, _ in pairs)
    return Running(gang, placements, work.start, work.start + work.seconds)
