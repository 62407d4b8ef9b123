"""The window that planned starts leave for single pods. Each decision makes a new one.

A place in it stays free for as long as the pod runs, whatever is planned to start meanwhile. Single
pods that were placed since the decision are counted, and so is what others took, as the allocations
show it. What was freed since then counts from the next decision, a moment later.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.cluster.offered import NO_ROW, OfferedNodes, rows_of
from aliquot.kubernetes.cluster.snapshot import as_one, largest_demand
from aliquot.placement.choose.chooser import Chooser

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
    from aliquot.placement.choose.strategies import Strategy
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand, Placement, Running
    from aliquot.placement.core.snapshot import Ints
    from aliquot.placement.gangs.timeline import Timeline

DURATIONS_KEPT, SHAPES_KEPT = 8, 64  # about 75 MB on 5,000 nodes, if all are used


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a pod: its node, and what its containers get there."""

    node: str
    parts: Parts
    placement: Placement
    demand: Demand


class BackfillWindow:
    """The planned starts of one decision, and the single pods that were placed since."""

    def __init__(
        self,
        cluster: Cluster,
        snapshot: ClusterSnapshot,
        line: Timeline,
        planned: Sequence[Running],
    ) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._line = line
        self._row_of: dict[str, int] = {}  # of pods placed since the decision, by UID
        self._taken: defaultdict[int, dict[str, Spot]] = defaultdict(dict)  # by row and UID
        self._touched: list[int] = []  # rows of pods that were placed, or placed elsewhere
        self._left: dict[int, _Left] = {}
        self._nowhere: set[object] = set()
        self._seen: tuple[Allocations, int] | None = None
        rows = {place.node for one in planned for place in one.placements}
        self.planned_nodes = frozenset(map(snapshot.node, rows))

    @property
    def holds(self) -> bool:
        """Whether the allocations still have the same nodes; if not, the window is useless."""
        allocations = self._cluster.chooser.allocations
        mine = self._snapshot.hardware
        return (
            allocations.hardware.names == mine.names
            and allocations.kind.shape == mine.present.shape
        )

    def find(
        self,
        uid: str,
        requests: Sequence[ContainerRequest],
        names: Collection[str],
        seconds: float,
        now: float,
    ) -> Spot | None:
        """The best place for a pod that runs for `seconds`, on one of these nodes.

        InvalidRequestError if its requests are more than one demand.
        """
        self._drop(uid)
        return self._find(requests, names, seconds, now)

    def _find(
        self,
        requests: Sequence[ContainerRequest],
        names: Collection[str] | OfferedNodes,
        seconds: float,
        now: float,
    ) -> Spot | None:
        """The best place, on one of these nodes."""
        snapshot = self._snapshot
        demand = largest_demand(self._cluster, as_one(requests), snapshot.hardware)
        chooser = self._chooser(seconds, now)
        place = self._choose(chooser, demand, names)
        if place is None:
            return None
        node = snapshot.node(place.node)
        if not snapshot.is_current({place.node}):
            return None
        return Spot(node, snapshot.parts(requests, place), place, demand)

    def take(self, uid: str, found: Spot) -> None:
        """Count a pod there."""
        self._drop(uid)
        row = self._row_of[uid] = found.placement.node
        self._taken[row][uid] = found
        self._touched.append(row)

    def _drop(self, uid: str) -> None:
        row = self._row_of.pop(uid, None)
        if row is not None:
            del self._taken[row][uid]
            self._touched.append(row)

    def has_place(
        self,
        requests: Sequence[ContainerRequest],
        offered: OfferedNodes,
        seconds: float,
        now: float,
    ) -> bool:
        """Whether one of these nodes has a place for such a pod; equal ones are checked once."""
        allocations = self._cluster.chooser.allocations
        if (
            self._seen is None
            or self._seen[0] is not allocations
            or self._seen[1] != allocations.version
        ):
            self._seen = allocations, allocations.version
            self._nowhere.clear()
        like = tuple(replace(one, container="") for one in requests), offered, seconds
        if like in self._nowhere:
            return False
        if self._find(requests, offered, seconds, now) is None:
            self._nowhere.add(like)
            return False
        return True

    def _choose(
        self, chooser: Chooser, demand: Demand, names: Collection[str] | OfferedNodes
    ) -> Placement | None:
        """The cheapest place on one of these nodes; the cheapest of all is tried first.

        To look up the rows of thousands of names takes longer than all the rest.
        """
        if isinstance(names, OfferedNodes):
            return chooser.choose(demand, among=names.rows(self._cluster))
        place = chooser.choose(demand)
        if place is None or self._snapshot.node(place.node) in names:
            return place
        among = np.zeros(self._snapshot.hardware.size, dtype=bool)
        rows = rows_of(self._cluster.rows, names)
        among[rows[rows != NO_ROW]] = True
        return chooser.choose(demand, among=among)

    def _chooser(self, seconds: float, now: float) -> Chooser:
        """Chooses by what is free for so long, without what was placed since."""
        lasts = seconds + max(0.0, now - self._line.now)
        starts = self._line.starts_within(lasts)
        left = self._left.pop(starts, None) or _Left(self._line.free_for(lasts), self._snapshot.by)
        self._left[starts] = left  # the last asked for is the last to be forgotten
        if len(self._left) > DURATIONS_KEPT:
            del self._left[next(iter(self._left))]
        allocations = self._cluster.chooser.allocations
        rows = left.changed_rows(allocations, self._touched)
        if len(rows):
            taken = [
                one
                for row in self._taken.keys() & set(rows.tolist())
                for uid, one in self._taken[row].items()
                if uid in self._cluster.usage_by_pod(one.node)
            ]
            left.renew(rows, taken, allocations)
        return left.chooser


class _Left:
    """What one duration leaves free, brought up to date row by row.

    A row is what the planned starts leave, less the pods placed since, and no more than what the
    allocations have free there now.
    """

    def __init__(self, free: Allocations, by: Strategy) -> None:
        self.chooser = Chooser(free.copy(), by, shapes=SHAPES_KEPT)
        self._free = free
        self._seen: tuple[Allocations, int, int] | None = None

    def changed_rows(self, allocations: Allocations, touched: Sequence[int]) -> Ints:
        """The rows to renew since the last call: all, or those that changed or were `touched`."""
        seen = self._seen
        self._seen = allocations, allocations.version, len(touched)
        changed = (
            allocations.changed_since(seen[1])
            if seen is not None and seen[0] is allocations
            else None
        )
        if seen is None or changed is None:
            return np.arange(allocations.hardware.size)
        return np.union1d(changed, np.array(touched[seen[2] :], dtype=np.int64))

    def renew(self, rows: Ints, taken: Iterable[Spot], now: Allocations) -> None:
        """Compute these rows again."""
        mine = self.chooser.allocations
        mine.put(self._free.free_on(rows))
        for one in taken:
            mine.take(one.placement, one.demand, known_to_fit=True)
        mine.put(mine.free_on(rows).lowered_to(now.free_on(rows)))
