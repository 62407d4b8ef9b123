"""The node's arbiter: the agent starts it and starts it again.

The arbiter outlives the agent, because containers have grants of it. When a container's first
process ends, its runtime kills every process in the container's cgroups: the arbiter, its parent
and its guard at the same moment, and gates that are shut then stay shut until the next agent starts
an arbiter. So the agent moves an arbiter that it started in a pod to a cgroup next to the parent of
all pods, where nobody ends it; the node's /sys/fs/cgroup must be writable for that. The next agent
finds the arbiter that answers, and replaces it if it is of another version. Programs keep running.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.node.processes import PROC, pod_of
from aliquot.model import Unjoined
from aliquot.model.errors import AliquotError
from aliquot.slices import arbiter_process, control

if TYPE_CHECKING:
    from aliquot.devices import Driver

CHECK_SECONDS = 1.0
CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "aliquot"

_log = structlog.get_logger(__name__)


class ArbiterSupervisor:
    """Makes sure that an arbiter answers."""

    def __init__(
        self, directory: Path, driver: Driver, unjoined: Unjoined = Unjoined.REPORT
    ) -> None:
        self._directory = directory
        self._driver = driver
        self._unjoined = unjoined
        self.starts = 0
        self.answers = False

    async def run(self) -> None:
        """Supervise until cancelled."""
        backoff = Backoff(first=0.05, most=5.0)
        while True:
            try:
                await self._ensure()
                backoff.reset()
                await self._until_dead()
                _log.warning("the arbiter has ended")
            except AliquotError as error:
                _log.error("the arbiter does not run", why=error.message)
                await asyncio.sleep(backoff.wait())
            finally:
                self.answers = False

    async def end(self) -> None:
        """End the arbiter, if there is no grant."""
        with suppress(AliquotError):
            await asyncio.to_thread(control.stop, self._directory)

    async def _ensure(self) -> None:
        if not await asyncio.to_thread(control.answers, self._directory):
            await asyncio.to_thread(
                arbiter_process.start,
                self._directory,
                self._driver,
                linger=0,
                unjoined=self._unjoined,
            )
            self.starts += 1
            _log.info("started the arbiter", directory=str(self._directory))
        elif not await asyncio.to_thread(self._is_current):
            await asyncio.to_thread(arbiter_process.restart, self._directory, self._driver)
            self.starts += 1
            _log.info("replaced an arbiter of another version", directory=str(self._directory))
        self.answers = True

    def _is_current(self) -> bool:
        return arbiter_process.is_current(control.status(self._directory))

    async def _until_dead(self) -> None:
        status = await asyncio.to_thread(control.status, self._directory)
        processes = [int(status.answer.get(key, 0)) for key in ("guard_pid", "pid", "serving_pid")]
        await asyncio.to_thread(leave_pod_cgroups, processes)
        try:
            process = os.pidfd_open(status.pid)
        except OSError:  # of another pid namespace, or gone already
            while await asyncio.to_thread(control.answers, self._directory):
                await asyncio.sleep(CHECK_SECONDS)
            return
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(process, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)


def leave_pod_cgroups(processes: list[int]) -> None:
    """Move the arbiter's processes out of this process's pod, if it runs in one."""
    if pod_of(os.getpid()) is None:
        return
    lines = (PROC / "self" / "cgroup").read_text("ascii").splitlines()
    for group in filter(None, (cgroup_next_to_pods(line) for line in lines)):
        try:
            _join(CGROUPS / group, processes)
        except OSError as error:
            _log.error(
                "the arbiter stays in the agent's container and will end with it",
                group=str(group),
                why=error.strerror,
            )


def cgroup_next_to_pods(line: str) -> PurePosixPath | None:
    """The arbiter's cgroup in the hierarchy of one line of /proc/PID/cgroup; None: no pod's."""
    _, controllers, path = line.split(":", 2)
    above: list[str] = []
    for name in PurePosixPath(path).parts[1:]:
        if "kubepods" in name:
            hierarchy = controllers.removeprefix("name=") or _unified()
            return PurePosixPath(hierarchy, *above, CGROUP)
        above.append(name)
    return None


def _unified() -> str:
    """Where the hierarchy of cgroup version 2 is: next to those of version 1, or at the root."""
    return "unified" if (CGROUPS / "unified").is_dir() else ""


def _join(group: Path, processes: list[int]) -> None:
    group.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / "cpuset.cpu_exclusive").exists():  # version 1: a new group has none
            (group / name).write_text((group.parent / name).read_text("ascii"), "ascii")
    for pid in processes:
        if pid > 1:
            (group / "cgroup.procs").write_text(str(pid), "ascii")
