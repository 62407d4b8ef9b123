"""The health of the node's GPUs: from the driver into the allocations, and events about it.

An unhealthy GPU gets no new containers. Containers that have it keep it.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot.devices.health import HealthWatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.devices import Driver
    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.pods import NodeEvents, NodePods


class HealthMonitor:
    """Follows the health of all GPUs in a thread of its own."""

    def __init__(
        self, driver: Driver, saved: SavedAllocations, pods: NodePods, events: NodeEvents
    ) -> None:
        self._driver = driver
        self._saved = saved
        self._pods = pods
        self._events = events
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the thread, which reports to the running event loop."""
        loop = asyncio.get_running_loop()

        def report(problems: Mapping[str, str]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.apply, problems)

        gpus = list(self._saved.allocations.gpus)
        watch = HealthWatch(self._driver, gpus, report, self._stop)
        threading.Thread(target=watch.run, name="health", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def apply(self, problems: Mapping[str, str]) -> None:
        """Take in the problem of each GPU by UUID; an empty one is a healthy GPU's."""
        allocations = self._saved.allocations
        changed = [gpu for gpu, problem in problems.items() if allocations.set_health(gpu, problem)]
        for gpu in changed:
            self._report(gpu, problems[gpu])
        if changed:
            self._saved.announce()

    def _report(self, uuid: str, problem: str) -> None:
        gpu = self._saved.allocations.gpus[uuid]
        message = (
            f"{gpu} ({uuid}) is unhealthy: {problem}" if problem else f"{gpu} ({uuid}) recovered"
        )
        reason = "GPUUnhealthy" if problem else "GPUHealthy"
        self._events.node_event(reason, message, warning=bool(problem))
        for grant in self._saved.allocations.grants.values():
            pod = self._pods.get(grant.owner.uid)
            if pod and any(part.gpu == uuid for part in grant.allocated):
                self._events.pod_event(pod, reason, message, warning=bool(problem))
