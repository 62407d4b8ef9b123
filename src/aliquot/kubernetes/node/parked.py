"""Reports containers whose memory leaves their GPU because they are idle, and when it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import format_bytes, format_duration

if TYPE_CHECKING:
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.pods import NodeEvents, NodePods
    from aliquot.model import Grant
    from aliquot.slices.arbiter_status import Status


class ParkingMonitor:
    """Writes an event on the pod each time; a new agent says once more what is so."""

    def __init__(self, saved: SavedAllocations, pods: NodePods, events: NodeEvents) -> None:
        self._saved = saved
        self._pods = pods
        self._events = events
        self._times: dict[str, int] = {}  # of the grants that are parked

    def check(self, status: Status) -> None:
        """Report what has changed by this status of the arbiter."""
        before, self._times = self._times, {}
        for grant in status.grants:
            parking = grant.parking if grant.is_idle_parked else None
            times = 0 if parking is None else parking.times
            if parking is not None:
                self._times[grant.name] = times
            if before.get(grant.name, times) != times:  # it may be parked again already
                self._report(
                    grant, "Returned", "has had work again: its memory returned to its GPU"
                )
            if parking is not None and before.get(grant.name) != times:
                idle = format_duration(parking.after_seconds)
                away = format_bytes(grant.away_bytes)
                text = f"has had no GPU work for {idle}: {away} of its memory are on the host"
                self._report(grant, "Parked", text)

    def _report(self, grant: Grant, reason: str, text: str) -> None:
        held = self._saved.allocations.grants.get(grant.name)
        pod = self._pods.get(held.owner.uid) if held and held.confirmed else None
        if held is not None and pod is not None:
            message = f"{held.owner.within} {text}"
            self._events.pod_event(pod, reason, message, warning=False)
