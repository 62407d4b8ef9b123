"""Why pods with claims wait: nodes that did not work for them, and what they were told. Pure.

kube-scheduler checks what is not decided here, above all CPU and memory. If the pod does not fit
the node of its claim, kube-scheduler takes the allocation back. The pod then gets another node,
and that one again only after a while, which doubles each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BARRED_SECONDS = 15.0
LONGEST_BAR = 600.0
MOST_DOUBLINGS = 10  # enough for the longest; a week of them is more than a number can be
EVENT_AGAIN = 120.0  # seconds until the same reasons get another event


@dataclass(frozen=True, slots=True)
class Bar:
    """A node is not tried for a pod until this time; `times` is how often in a row it failed."""

    until: float
    times: int


@dataclass(frozen=True, slots=True)
class PodWait:
    """A pod that waits: nodes that failed, and what it was last told, for which reasons and when.

    `later` is when it is tried again after an error of the API server.
    """

    bars: tuple[tuple[str, Bar], ...] = ()
    reasons: frozenset[str] = frozenset()
    told: float = 0.0
    later: float = 0.0
    errors: int = 0

    @property
    def barred(self) -> Mapping[str, Bar]:
        """The bars, by node."""
        return dict(self.bars)

    def barred_at(self, now: float) -> set[str]:
        """The nodes that are not tried now."""
        return {node for node, one in self.bars if now < one.until}

    def bar(self, node: str, now: float) -> PodWait:
        """The pod did not fit a node."""
        before = self.barred.get(node, Bar(0.0, 0))
        seconds = min(BARRED_SECONDS * 2.0 ** min(before.times, MOST_DOUBLINGS), LONGEST_BAR)
        bars = {**self.barred, node: Bar(now + seconds, before.times + 1)}
        return replace(self, bars=tuple(bars.items()))

    def fail(self, now: float) -> PodWait:
        """The API server refused the allocation."""
        seconds = min(2.0 ** min(self.errors, MOST_DOUBLINGS), LONGEST_BAR)
        return replace(self, later=now + seconds, errors=self.errors + 1)

    def tell(self, reasons: frozenset[str], now: float) -> PodWait | None:
        """The pod is told why it waits; None if it was told the same a short time ago."""
        if reasons == self.reasons and now - self.told < EVENT_AGAIN:
            return None
        return replace(self, reasons=reasons, told=now)
