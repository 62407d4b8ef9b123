"""The health of the node's GPUs: from the driver into the allocations, and events about it.

An unhealthy GPU gets no new containers. Containers that have it keep it.

The agent has loaded NVML once, and has read the node's GPUs with it. If the driver was replaced, or
a GPU is there that was not there then, the agent must start anew (`renewal`). Until it can, because
a process that starts now could use the driver, all GPUs are unhealthy.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from aliquot.devices.health import HealthReport, HealthWatch
from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.node.machine import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.machine import NodeMachine
    from aliquot.kubernetes.node.pods import NodeEvents, NodePods

CHECK_SECONDS = 1.0
PROBE_SECONDS = 2.0  # between the first probes; each starts a process
LONGEST_PROBE_SECONDS = 30.0
# The thread looks every second; while NVML fails, less often (`LONGEST_PAUSE_SECONDS`), but well
# within this. Looks of our own are counted, not time: a process that was stopped, or a node that
# was suspended, is no reason to believe that NVML hangs.
SILENT_CHECKS = 10
SILENT = f"NVML has not answered for {SILENT_CHECKS * CHECK_SECONDS:.0f} s"


class HealthMonitor:
    """Follows the health of all GPUs in a thread of its own.

    `probe` says why a process that starts now could not use the driver, if so.
    """

    def __init__(
        self,
        machine: NodeMachine,
        saved: SavedAllocations,
        pods: NodePods,
        events: NodeEvents,
        probe: Callable[[], Awaitable[str]],
    ) -> None:
        self._machine = machine
        self._here = {gpu.uuid for gpu in machine.inventory.gpus}
        self._saved = saved
        self._pods = pods
        self._events = events
        self._probe = probe
        self._stop = threading.Event()
        self._watch: HealthWatch | None = None
        self._report = HealthReport({})
        self._looked_at = 0.0
        self._silent_checks = 0
        self._unusable = machine.problem  # why a new process could not use the driver

    def start(self) -> None:
        """Start the thread, which reports to the running event loop."""
        if (usable := self._machine.usable) is None:
            return
        loop = asyncio.get_running_loop()

        def report(said: HealthReport) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take, said)

        gpus = list(self._saved.allocations.gpus)
        self._watch = HealthWatch(usable.driver, usable.installed, gpus, report, self._stop)
        threading.Thread(target=self._watch.run, name="health", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    async def run(self) -> None:
        """Run until the agent must start anew, and can use the driver when it does."""
        if self._unusable:
            self._events.node_event("DriverUnusable", self._unusable)
        backoff = Backoff(PROBE_SECONDS, LONGEST_PROBE_SECONDS)
        while True:
            why = self.renewal
            unusable = await self._probe() if why else ""
            if why and not unusable:
                self._tell("AgentRenewed", f"{why}: the agent restarts in place", warning=False)
                return
            if unusable and unusable != self._unusable:
                self._events.node_event("DriverUnusable", unusable)
            self._unusable = unusable
            self._count_silence()
            self._apply()
            if not why:
                backoff.reset()
            await asyncio.sleep(backoff.wait() if why else CHECK_SECONDS)

    @property
    def renewal(self) -> str:
        """Why the agent must start anew to use the driver; empty: it need not."""
        if self._machine.problem:
            return f"the driver could not be used: {self._machine.problem}"
        if self._report.replaced:
            return f"the driver was replaced by {self._report.replaced}"
        if new := self._report.found - self._here:
            return f"there are GPUs that were not there before: {', '.join(sorted(new))}"
        return ""

    @property
    def driver_problem(self) -> str:
        """Why the driver cannot be used; empty: it can."""
        return self._unusable or (SILENT if self._is_silent else self._report.nvml)

    def _count_silence(self) -> None:
        if self._watch is not None:
            before, self._looked_at = self._looked_at, self._watch.looked_at
            self._silent_checks = self._silent_checks + 1 if self._looked_at == before else 0

    @property
    def _is_silent(self) -> bool:
        return self._silent_checks >= SILENT_CHECKS

    def _take(self, report: HealthReport) -> None:
        self._report = report
        self._apply()

    def _problem(self, uuid: str) -> str:
        if self._unusable or self._is_silent:
            return self._unusable or SILENT
        return self._report.problems.get(uuid, "") or ("" if uuid in self._here else NOT_FOUND)

    def _apply(self) -> None:
        """Take over the problem of each GPU; an empty one is a healthy GPU's."""
        if not self._report.problems and not self.driver_problem:
            return  # the driver has not said anything yet
        allocations = self._saved.allocations
        problems = {
            gpu.uuid: (gpu.problem, self._problem(gpu.uuid)) for gpu in allocations.gpus.values()
        }
        changed = {uuid: now for uuid, (before, now) in problems.items() if now != before}
        for uuid, problem in changed.items():
            allocations.set_health(uuid, problem)
            self._tell_of_gpu(uuid, problem)
        if changed:
            self._saved.announce()

    def _tell_of_gpu(self, uuid: str, problem: str) -> None:
        gpu = self._saved.allocations.gpus[uuid]
        message = (
            f"{gpu} ({uuid}) is unhealthy: {problem}" if problem else f"{gpu} ({uuid}) recovered"
        )
        reason = "GPUUnhealthy" if problem else "GPUHealthy"
        self._tell(reason, message, warning=bool(problem), uuid=uuid)

    def _tell(self, reason: str, message: str, *, warning: bool, uuid: str = "") -> None:
        """Record an event on the node and on the pods that have that GPU, or any."""
        self._events.node_event(reason, message, warning=warning)
        for grant in self._saved.allocations.grants.values():
            pod = self._pods.get(grant.owner.uid)
            if pod and (not uuid or any(part.gpu == uuid for part in grant.allocated)):
                self._events.pod_event(pod, reason, message, warning=warning)
