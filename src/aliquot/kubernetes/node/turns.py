"""The slices that take turns with memory: what the arbiter says of them, and events on their pods.

The agent publishes what placement needs to decide (`gpunode.OverCommit`), and gives containers no
more itself. How much of a grant is on the host changes with every turn: it is read again only after
`AWAY_SECONDS`, so that a busy node is not written all the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.node.grants.swap import fixed_bytes, node_turns
from aliquot.model import format_bytes
from aliquot.placement.core.turns import NodeTurns
from aliquot.slices.turn_room import describe_turns, load_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.kubernetes.api.gpunode import OverCommit
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.pods import NodeEvents, NodePods
    from aliquot.model import Grant
    from aliquot.slices.arbiter_status import Status

AWAY_SECONDS = 15.0
STEP = 1 << 26  # of what is on the host


@dataclass(frozen=True, slots=True)
class TurnsReport:
    """What the arbiter allows, and of each grant what cannot leave and what is on the host."""

    overcommit: OverCommit | None = None
    fixed: Mapping[str, int] = field(default_factory=dict)
    away: Mapping[str, int] = field(default_factory=dict)


NO_TURNS = TurnsReport()


class TurnsMonitor:
    """Keeps the allocations and the report as the arbiter says, and writes events."""

    def __init__(self, saved: SavedAllocations, pods: NodePods, events: NodeEvents) -> None:
        self._saved = saved
        self._pods = pods
        self._events = events
        self._next_away = 0.0
        self._told: frozenset[str] = frozenset()
        self.report = NO_TURNS

    def check(self, status: Status, most: float) -> bool:
        """Follow this status of the arbiter; whether the report has changed.

        `most` is the factor that the node shall have: an arbiter with a larger one stays as long as
        memory is on the host, and new slices have no more already.
        """
        held = self._saved.allocations.grants
        ours = [one for one in status.grants if one.name in held]
        fixed = {
            one.name: fixed_bytes(one) + held[one.name].copier
            for one in ours
            if held[one.name].overcommit is not None
        }
        said = node_turns(status, most)
        turns = None
        if said is not None:
            turns = NodeTurns(said.factor, said.host_memory - said.set_aside, said.stays)
        self._saved.allocations.set_turns(turns, fixed)
        before = self.report
        self.report = TurnsReport(said, fixed, self._away(ours))
        self._report_turns(status, ours)
        return self.report != before

    def _away(self, grants: list[Grant]) -> Mapping[str, int]:
        now = time.monotonic()
        if now < self._next_away:
            names = {one.name for one in grants}
            return {name: size for name, size in self.report.away.items() if name in names}
        self._next_away = now + AWAY_SECONDS
        return {one.name: -(-one.away_bytes // STEP) * STEP for one in grants if one.away_bytes}

    def _report_turns(self, status: Status, grants: list[Grant]) -> None:
        """Write an event on each pod whose container begins to take turns with others."""
        crowded = {
            one.gpu.uuid: load
            for one in status.gpus
            if (load := load_of(one, status.grants)).excess and load.turns
        }
        turning = [
            one for one in grants if one.turns is not None and one.slices[0].gpu_uuid in crowded
        ]
        for one in turning:
            held = self._saved.allocations.grants[one.name]
            pod = self._pods.get(held.owner.uid) if held.confirmed else None
            if one.name in self._told or pod is None:
                continue
            self._told |= {one.name}
            load = crowded[one.slices[0].gpu_uuid]
            away = f": {format_bytes(one.away_bytes)} of its memory are on the host"
            text = (
                f"{held.owner.within} takes turns with memory on GPU"
                f" {self._saved.allocations.gpus[one.slices[0].gpu_uuid].index}:"
                f" {describe_turns(load)}{away if one.away_bytes else ''}"
            )
            self._events.pod_event(pod, "TakesTurns", text, warning=False)
        self._told &= {one.name for one in turning}
