"""The window that planned starts leave for single pods. Each decision makes a new one.

A place in it stays free for as long as the pod runs, whatever is planned to start meanwhile. Single
pods that were placed since the decision are counted, and so is what others took, as the allocations
show it. What was freed since then counts from the next decision, a moment later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aliquot.kubernetes.cluster.snapshot import as_one, largest_demand
from aliquot.placement.choose.chooser import Chooser
from aliquot.placement.core.snapshot import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.offered import OfferedNodes
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand, Placement, Running
    from aliquot.placement.core.snapshot import Bools
    from aliquot.placement.gangs.timeline import Timeline


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
        self._taken: dict[str, Spot] = {}
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
        names: Iterable[str],
        seconds: float,
        now: float,
    ) -> Spot | None:
        """The best place for a pod that runs for `seconds`, on one of these nodes.

        InvalidRequestError if its requests are more than one demand.
        """
        rows = (self._cluster.rows.get(name) for name in names)
        closed = np.ones(self._snapshot.hardware.size, dtype=bool)
        closed[[row for row in rows if row is not None]] = False
        return self._find(uid, requests, closed, seconds, now)

    def _find(
        self,
        uid: str,
        requests: Sequence[ContainerRequest],
        closed: Bools,
        seconds: float,
        now: float,
    ) -> Spot | None:
        """The best place, on a row that is not closed."""
        snapshot = self._snapshot
        demand = largest_demand(self._cluster, as_one(requests), snapshot.hardware)
        free = self._free_for(uid, seconds, now)
        free.milli_free[closed] = free.bytes_free[closed] = ABSENT
        place = Chooser(free, snapshot.by).choose(demand)
        if place is None:
            return None
        node = snapshot.node(place.node)
        if not snapshot.is_current({place.node}):
            return None
        return Spot(node, snapshot.parts(requests, place), place, demand)

    def take(self, uid: str, found: Spot) -> None:
        """Count a pod there."""
        self._taken[uid] = found

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
        if self._find("", requests, ~offered.rows(self._cluster), seconds, now) is None:
            self._nowhere.add(like)
            return False
        return True

    def _free_for(self, uid: str, seconds: float, now: float) -> Allocations:
        """What is free for so long, without what was placed since, but for this pod."""
        free = self._line.free_for(seconds + max(0.0, now - self._line.now))
        for other, one in self._taken.items():
            if other != uid and other in self._cluster.usage_by_pod(one.node):
                free.take(one.placement, one.demand, known_to_fit=True)
        free.lower_to(
            self._cluster.chooser.allocations.free_on(np.arange(self._snapshot.hardware.size))
        )
        return free
