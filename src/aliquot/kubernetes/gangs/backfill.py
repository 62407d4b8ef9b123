"""What promises leave for single pods: made with each decision over gangs, used until the next.

A place is one that stays free for all the time that a pod runs, whatever is promised to begin
meanwhile. What single pods took since the decision is counted, and what others took is seen in the
allocations as they are. What was given back since is seen with the next decision, a moment later.
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
    from aliquot.kubernetes.cluster.parts import Parts
    from aliquot.kubernetes.cluster.snapshot import ClusterSnapshot
    from aliquot.placement.core.allocations import Allocations
    from aliquot.placement.core.demand import Demand, Placement, Running
    from aliquot.placement.gangs.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a pod: its node, and what its containers get there."""

    node: str
    parts: Parts
    placement: Placement
    demand: Demand


class BackfillWindow:
    """The promises of one decision, and what was placed beside them since."""

    def __init__(
        self,
        cluster: Cluster,
        picture: ClusterSnapshot,
        line: Timeline,
        promises: Sequence[Running],
    ) -> None:
        self._cluster = cluster
        self._picture = picture
        self._line = line
        self._taken: dict[str, Spot] = {}
        self._nowhere: set[object] = set()
        self._seen: tuple[Allocations, int] | None = None
        rows = {place.node for one in promises for place in one.placements}
        self.promised_nodes = frozenset(map(picture.node, rows))

    @property
    def holds(self) -> bool:
        """Whether the allocations are still of the same nodes: else promises are made anew."""
        allocations = self._cluster.chooser.allocations
        mine = self._picture.hardware
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
        """The best place for a pod that runs for so long, on one of these nodes.

        InvalidRequestError where what it asks for cannot be said as one demand.
        """
        picture = self._picture
        demand = largest_demand(self._cluster, as_one(requests), picture.hardware)
        left = self._left(uid, seconds, now)
        rows = (self._cluster.rows.get(name) for name in names)
        closed = np.ones(picture.hardware.size, dtype=bool)
        closed[[row for row in rows if row is not None]] = False
        left.milli_free[closed] = left.bytes_free[closed] = ABSENT
        place = Chooser(left, picture.by).choose(demand)
        if place is None:
            return None
        node = picture.node(place.node)
        if not picture.is_current({place.node}):
            return None
        return Spot(node, picture.parts(requests, place), place, demand)

    def take(self, uid: str, found: Spot) -> None:
        """A pod goes there."""
        self._taken[uid] = found

    def has_room(self, requests: Sequence[ContainerRequest], seconds: float, now: float) -> bool:
        """Whether some node has room for a pod like this; equal ones are looked at once."""
        allocations = self._cluster.chooser.allocations
        if (
            self._seen is None
            or self._seen[0] is not allocations
            or self._seen[1] != allocations.version
        ):
            self._seen = allocations, allocations.version
            self._nowhere.clear()
        like = tuple(replace(one, container="") for one in requests), seconds
        if like in self._nowhere:
            return False
        if self.find("", requests, self._cluster.rows, seconds, now) is None:
            self._nowhere.add(like)
            return False
        return True

    def _left(self, uid: str, seconds: float, now: float) -> Allocations:
        """What is left for so long, with all that was taken since, but for what this pod has."""
        left = self._line.free_for(seconds + max(0.0, now - self._line.now))
        for other, one in self._taken.items():
            if other != uid and other in self._cluster.usage_by_pod(one.node):
                left.take(one.placement, one.demand, known_to_fit=True)
        left.lower_to(
            self._cluster.chooser.allocations.free_on(np.arange(self._picture.hardware.size))
        )
        return left
