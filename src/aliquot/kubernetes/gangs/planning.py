"""One decision over all gangs: the question, the brain's answer, and what is done of it.

The brain thinks in a thread, on a copy of the allocations. Nothing else waits for it: what it
decided is done as far as it still can be (`deeds`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aliquot.kubernetes.gangs.backfill import BackfillWindow
from aliquot.placement.decide import decide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.kubernetes.cluster.cluster import Cluster
    from aliquot.kubernetes.cluster.membership import Key
    from aliquot.kubernetes.gangs.apply import Applier, Done
    from aliquot.kubernetes.gangs.observe import Observed, Observer
    from aliquot.kubernetes.gangs.sources import Found
    from aliquot.kubernetes.gangs.state import GangState
    from aliquot.placement.core.demand import Gang
    from aliquot.placement.decide import Decision
    from aliquot.placement.queues.quota import Path

LONGEST = 60.0  # a decision is made again after so many seconds, whatever has changed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a decision leaves behind: what is promised, and who makes room for whom.

    `stopped` are the gangs that wait for a limit, by the queue whose limit it is. `again`:
    something was not possible any more, or not looked at, and is to be decided soon.
    """

    beside: BackfillWindow | None = None
    stopped: Mapping[Path, Gang] = field(default_factory=dict)
    claims: list[tuple[GangState, str, Mapping[str, str]]] = field(default_factory=list)
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Last:
    """The last decision: what it was made from, and when it is no longer good for that."""

    sign: object
    beside: BackfillWindow | None
    stopped: Mapping[Path, Gang]
    until: float


class Planning:
    """Decides, and does it."""

    def __init__(self, cluster: Cluster, questions: Observer, deeds: Applier) -> None:
        self._cluster = cluster
        self._questions = questions
        self._deeds = deeds
        self._last: _Last | None = None
        self._looked_at: tuple[object, frozenset[str]] = None, frozenset()

    async def decide(
        self, found: Mapping[Key, Found | None], now: float, is_wanted: Callable[[], bool]
    ) -> Outcome:
        """Decide for all that can be planned; the others are told why they cannot.

        Nothing is done where the answer is not wanted any more.
        """
        last, self._last = self._last, None
        ready = self._questions.ready(found, now)
        asked = self._questions.ask(ready, now) if ready else None
        if asked is None:
            return Outcome()
        sign = asked.sign()
        if last is not None and sign == last.sign and now < last.until:
            self._last = last
            return Outcome(last.beside, last.stopped)
        decision = await asyncio.to_thread(decide, asked.question)
        if not is_wanted():
            return Outcome()
        self._questions.looked_at(decision.searched)
        done = self._deeds.do(decision, asked, now)
        beside = None
        if decision.timeline is not None:
            beside = BackfillWindow(self._cluster, asked.picture, decision.timeline, done.promises)
        again = bool(done.undone) or self._overlooks(sign, decision)
        if not (again or decision.starts or decision.preemptions):  # else the next is another
            self._last = _Last(sign, beside, decision.at_limit, _until(asked, done, now))
        return Outcome(beside, decision.at_limit, done.claims, again)

    def _overlooks(self, sign: object, decision: Decision) -> bool:
        """Whether somebody was not looked at for others' places since this was the question."""
        before, names = self._looked_at
        names = frozenset(decision.searched) | (names if before == sign else frozenset())
        self._looked_at = sign, names
        return len(names) < len(decision.searched) + decision.skipped


def _until(asked: Observed, done: Done, now: float) -> float:
    """Until when the same question has the same answer."""
    gangs = [one.gang for one in asked.ready.values()]
    waits = [until for one in gangs for until in (*one.barred.values(), *one.spared.values())]
    waits += [one.asked_until for one in gangs if one.asked_until > now]
    starts = [one.start for one in done.promises]
    return min([*waits, *starts, now + LONGEST])
