"""Who has what of all GPUs, gang by gang, and what each queue has; by what has changed.

A pod has what it has until no node names it any more, also when it makes room for a gang, which
has its places from the first, and does not begin before those are gone (`in_the_way`). So of both
only one counts: for a right the gang; for a limit whichever has more (`charged`). What those that
make room have and nobody was given is free soon (`leftovers`).

It is at any time what it would be if all nodes were looked at anew. What it costs to ask is what
has changed since it was last asked: rows of the allocations, pods (`touch`), and queues, which are
few and make all anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from aliquot.kubernetes.cluster.workloads import ENDING, Work, is_single
from aliquot.placement.core.demand import Demand, Gang, Kind, Placement, Running
from aliquot.placement.queues.quota import Bound, Resources, Tree, add_all, prefixes, takes, usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.node_usage import GpuUsage
    from aliquot.kubernetes.cluster.queues import Queues
    from aliquot.kubernetes.cluster.workloads import Workloads
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.queues.quota import Sums

Pairs = list[tuple[Placement, Demand]]


class WorkloadAllocations:
    """What is held or reserved on the rows of a cluster's allocations."""

    def __init__(self, cluster: Cluster, roster: Workloads, queues: Queues) -> None:
        self._cluster = cluster
        self._roster = roster
        self._queues = queues
        self._books: Allocations | None = None
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
        self._renamed: set[str] = set()
        roster.listeners.append(self.touch)

    def touch(self, uid: str, name: str) -> None:
        """A pod has changed, which is or was a part of the work of this name."""
        if uid in self._pairs:
            self._renamed.add(uid)
        if name in self._uids:
            self._stale.add(name)

    # --- what is so -------------------------------------------------------------------------------

    def running(self, now: float, without: Collection[str] = ()) -> list[Running]:
        """All that is held or reserved, but for what the pods of these UIDs have."""
        self._refresh(now)
        apart = {name for uid in without if (name := self._name_of.get(uid)) is not None}
        found = [one for name, one in self._running.items() if name not in apart]
        for name in apart:
            left = self._uids[name].difference(without)
            if left:
                found.append(self._made(name, left, now))
        return found

    def used(self, now: float, without: Collection[str] = ()) -> dict[str, Resources]:
        """What each queue has, but for what the pods of these UIDs have."""
        self._refresh(now)
        used = dict(self._used)
        for one in self.parts_of(without, now):
            used[one.gang.queue] -= takes(one, self._cluster.chooser.allocations.hardware)
        return used

    def charged(self, now: float, without: Collection[str] = ()) -> Sums:
        """What counts for the limits of queues, each with all below it; but for these UIDs."""
        staying = self.used(now, {*self._roster.ending, *without})
        return add_all(Tree(self._queues.queues()).summed(staying), self.ending(now))

    def ending(self, now: float) -> Sums:
        """What counts for limits beside what stays: what those have that make room for gangs."""
        tree, hardware = Tree(self._queues.queues()), self._cluster.chooser.allocations.hardware
        sums: Sums = defaultdict(Resources)
        for gang in self._roster.gangs.values():
            if gang.making_room:
                before = usage(self.parts_of(gang.making_room, now), hardware)
                after = usage(self.parts_of(gang.reserved, now), hardware)
                add_all(sums, tree.excess(before, after))
        return sums

    def in_the_way(self, gang: GangState, now: float) -> frozenset[str]:
        """Those that make room for a gang, and that its start waits for.

        Where its queue has a limit, all that still have something; else those on its nodes. One
        that does not go elsewhere, on a node that is dead, does not keep it from places that are
        free.
        """
        self._refresh(now)
        having = frozenset(uid for uid in gang.making_room if uid in self._name_of)
        tree = Tree(self._queues.queues())
        queue = self._queues.queue_of(next(iter(gang.pods.values())))
        if any(tree.queue(path).limit != Bound() for path in prefixes(tree.path(queue))):
            return having
        rows = {self._cluster.rows.get(place.node) for place in gang.reserved.values()}
        return frozenset(uid for uid in having if not rows.isdisjoint(self._pairs[uid]))

    def leftovers(
        self, ends: Mapping[str, float], heirs: Iterable[str], now: float
    ) -> list[Running]:
        """What pods that end have of GPUs of which the heirs were given nothing, by work.

        `ends` is when each is to go, by UID. It is of no queue: it is as good as free.
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
        """How many single pods each queue has."""
        self._refresh(now)
        return self._singles

    def parts_of(self, uids: Collection[str], now: float) -> list[Running]:
        """What the pods of these UIDs have, each with others of its work."""
        self._refresh(now)
        names = {name for uid in uids if (name := self._name_of.get(uid)) is not None}
        return [self._made(name, self._uids[name].intersection(uids), now) for name in names]

    def each_of(self, uids: Iterable[str], now: float) -> list[Running]:
        """What each of these pods has by itself, in their order."""
        self._refresh(now)
        names = {uid: name for uid in uids if (name := self._name_of.get(uid)) is not None}
        firsts = {name: uid for uid, name in names.items()}
        works = {name: self._roster.work(uid, now) for name, uid in firsts.items()}
        return [_running(works[name], self._pairs_of(uid)) for uid, name in names.items()]

    def parties(self, now: float) -> Mapping[str, frozenset[str]]:
        """The UIDs of all that have something, by the name of their work; as it is now."""
        self._refresh(now)
        return dict(self._uids)

    # --- by what has changed ----------------------------------------------------------------------

    def _refresh(self, now: float) -> None:
        allocations = self._cluster.chooser.allocations
        changed = allocations.changed_since(self._version) if allocations is self._books else None
        rows: Iterable[int] = {*self._rows, *self._cluster.rows.values()}
        if changed is not None:
            rows = changed.tolist()
        self._books, self._version = allocations, allocations.version
        for row in rows:
            self._look_at(row, allocations)
        if self._queues_version != self._queues.version:
            self._queues_version = self._queues.version
            self._stale |= self._uids.keys()
        for uid in self._renamed:
            self._rename(uid)
        self._renamed.clear()
        for name in self._stale:
            self._count(name, now)
        self._stale.clear()

    def _look_at(self, row: int, allocations: Allocations) -> None:
        """Who has what of the node in a row."""
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
        """Whose a pod's part is; that is counted anew, and so is whose it was."""
        old = self._name_of.pop(uid, None)
        if old is not None:
            self._stale.add(old)
            self._uids[old] -= {uid}
        if not self._pairs.get(uid):
            self._pairs.pop(uid, None)
            self._roster.forget(uid)
            return
        name = self._name_of[uid] = self._roster.name_of(uid)
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
        work = self._roster.work(next(iter(self._uids[name])), now)
        return _running(work, [pair for uid in sorted(uids) for pair in self._pairs_of(uid)])

    def _pairs_of(self, uid: str) -> Pairs:
        return [pair for some in self._pairs.get(uid, {}).values() for pair in some]


def _pairs(row: int, held: Mapping[int, GpuUsage]) -> Pairs:
    """What a pod holds, GPU by GPU, so that giving it back makes the allocations what they were."""
    pairs = []
    for column, one in held.items():
        place = Placement(row, (column,))
        if one.kind is Kind.WHOLE:
            pairs.append((place, Demand()))
            continue
        use = one.use
        pairs.append((place, Demand(1, one.kind, min(use.milli, 1000), use.bytes)))
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
