"""Reports containers that have GPUs and use none of them: an event on the pod, once each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.model import format_duration

if TYPE_CHECKING:
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.pods import NodeEvents, NodePods
    from aliquot.model import Grant
    from aliquot.slices.arbiter_status import Status


class IdleMonitor:
    """Reports each container once, until it has used a GPU again; 0 s: it reports none."""

    def __init__(
        self, saved: SavedAllocations, pods: NodePods, events: NodeEvents, after_seconds: float
    ) -> None:
        self._saved = saved
        self._pods = pods
        self._events = events
        self._after_seconds = after_seconds
        self._reported: set[str] = set()

    def check(self, status: Status) -> None:
        """Report the containers that have become idle by this status of the arbiter."""
        idle = {one.name for one in status.grants if self._is_idle(one)}
        self._reported &= idle
        for name in idle - self._reported:
            if self._report(name):
                self._reported.add(name)

    def _is_idle(self, grant: Grant) -> bool:
        seconds = grant.idle_seconds
        return seconds is not None and 0 < self._after_seconds <= seconds

    def _report(self, name: str) -> bool:
        """Whether the container is known and runs, so that its pod has the event."""
        grant = self._saved.allocations.grants.get(name)
        pod = self._pods.get(grant.owner.uid) if grant and grant.confirmed else None
        if grant is None or pod is None or pod.pending:
            return False
        idle = format_duration(self._after_seconds)
        text = f"{grant.owner.within} has used none of its GPUs for {idle}"
        self._events.pod_event(pod, "Idle", text, warning=False)
        return True
