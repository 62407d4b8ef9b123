"""When and how all gangs are decided again: observe, decide in a thread, apply.

The decision is made on a copy of the allocations while everything else goes on. So it is applied as
far as it is still possible (`apply`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.gangs.backfill import BackfillWindow
from aliquot.kubernetes.gangs.missing import NO_SHORTAGE, Shortage, shortage
from aliquot.placement.decide import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.gangs.apply import Applied, DecisionApplier
    from aliquot.kubernetes.gangs.events import PreemptionNotice
    from aliquot.kubernetes.gangs.observe import DecisionSnapshot, Observer
    from aliquot.placement.core.demand import Gang
    from aliquot.placement.decide import Decision
    from aliquot.placement.queues.quota import Path

LONGEST = 60.0  # a decision is made again after so many seconds, whatever has changed


@dataclass(frozen=True, slots=True)
class PlanningResult:
    """What a decision leaves behind: the backfill window, and the preemptions that it began.

    `stopped` are the gangs that wait for a limit, by the queue whose limit it is. `again`:
    something was not possible any more, or not considered, and is decided soon. `shortage` is what
    gangs lack, if anybody asks for new nodes.
    """

    backfill: BackfillWindow | None = None
    stopped: Mapping[Path, Gang] = field(default_factory=dict)
    preemptions: list[PreemptionNotice] = field(default_factory=list)
    again: bool = False
    shortage: Shortage = NO_SHORTAGE


@dataclass(frozen=True, slots=True)
class _Last:
    """The last decision: what it was made from, and until when it holds for that."""

    fingerprint: object
    backfill: BackfillWindow | None
    stopped: Mapping[Path, Gang]
    shortage: Shortage
    until: float


class Planning:
    """Decides, and applies the decision.

    `patience`: new nodes are asked for if a gang does not start within so many seconds; None if
    nobody asks for any.
    """

    def __init__(
        self,
        cluster: Cluster,
        observer: Observer,
        applier: DecisionApplier,
        patience: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._observer = observer
        self._applier = applier
        self._patience = patience
        self._last: _Last | None = None
        self._considered: tuple[object, frozenset[str]] = None, frozenset()

    async def decide(self, now: float, is_wanted: Callable[[], bool]) -> PlanningResult:
        """Decide for all gangs that can be planned; the others are told why they cannot.

        Nothing is applied if the decision is not wanted any more.
        """
        last, self._last = self._last, None
        ready = self._observer.ready()
        snapshot = self._observer.snapshot(ready) if ready else None
        if snapshot is None:
            return PlanningResult()
        fingerprint = snapshot.fingerprint()
        if last is not None and fingerprint == last.fingerprint and now < last.until:
            self._last = last
            return PlanningResult(last.backfill, last.stopped, shortage=last.shortage)
        decision, lack = await asyncio.to_thread(self._decide, snapshot)
        if not is_wanted():
            return PlanningResult()
        self._observer.considered(decision.searched)
        applied = self._applier.apply(decision, snapshot, now)
        backfill = None
        if decision.timeline is not None:
            backfill = BackfillWindow(
                self._cluster, snapshot.nodes, decision.timeline, applied.planned
            )
        again = bool(applied.impossible) or self._overlooks(fingerprint, decision)
        if not (again or decision.starts or decision.preemptions):  # else the next one differs
            until = self._until(snapshot, applied, now)
            self._last = _Last(fingerprint, backfill, decision.at_limit, lack, until)
        return PlanningResult(backfill, decision.at_limit, applied.preemptions, again, lack)

    def _decide(self, snapshot: DecisionSnapshot) -> tuple[Decision, Shortage]:
        decision = decide(snapshot.question)
        if self._patience is None:
            return decision, NO_SHORTAGE
        return decision, shortage(snapshot, decision, self._patience)

    def _overlooks(self, fingerprint: object, decision: Decision) -> bool:
        """Whether no decision on this input has looked for victims for some gang yet."""
        before, names = self._considered
        same = names if before == fingerprint else frozenset[str]()
        names = frozenset(decision.searched) | same
        self._considered = fingerprint, names
        return len(names) < len(decision.searched) + decision.skipped

    def _until(self, snapshot: DecisionSnapshot, applied: Applied, now: float) -> float:
        """Until when the same input gives the same decision."""
        found = (self._observer.gangs.get(one.gang.key) for one in snapshot.ready.values())
        gangs = [one for one in found if one is not None]
        waits = [
            until
            for one in gangs
            for until in (*one.retry.barred.values(), *one.retry.spared.values())
        ]
        waits += [one.elastic.until for one in gangs if one.elastic.until > now]
        starts = [one.start for one in applied.planned]
        return min([*waits, *starts, now + LONGEST])
