"""The node's arbiter: the agent starts it and starts it again.

The arbiter outlives the agent, because containers have grants of it. When a container's first
process ends, its runtime kills every process in the container's cgroups: the arbiter, its parent
and its guard at the same moment, and gates that are shut then stay shut until the next agent starts
an arbiter. So the agent moves an arbiter that it started in a pod to a cgroup next to the parent of
all pods, where nobody ends it; the node's /sys/fs/cgroup must be writable for that. The next agent
finds the arbiter that answers, and replaces it if it is of another version. Programs keep running.

The arbiter has loaded NVML, and knows the GPUs that were there then. The agent replaces it also if
it uses another driver than the agent, has another policy for unjoined processes, another limit of
the host's memory or another over-commit, or does not know one of the node's healthy GPUs. An agent
that cannot use the driver itself replaces nothing: the next arbiter could not start. An arbiter
that holds memory of suspended programs is replaced when they have it back: `postponed` says what it
waits for.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.node.processes import PROC, pod_of
from aliquot.model import Unjoined
from aliquot.model.errors import AliquotError, ArbiterError, HeldMemoryError
from aliquot.slices import arbiter_process, control

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aliquot.devices import Driver
    from aliquot.slices.arbiter_status import Status

CHECK_SECONDS = 1.0
REPLACE_SECONDS = 60.0  # an arbiter is not replaced more often
CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "aliquot"

_log = structlog.get_logger(__name__)


class ArbiterSupervisor:
    """Makes sure that an arbiter answers, with the agent's driver and policy, and all of `gpus`.

    `driver` is None if no driver can be used; `version` is its version. `host_bytes`: what it takes
    of the host's memory at most, for memory that leaves GPUs; None: as it chooses. Slices that take
    turns may have `overcommit` times a GPU's memory; it may change.
    """

    def __init__(  # noqa: PLR0913 - what it makes sure of
        self,
        directory: Path,
        driver: Driver | None,
        *,
        version: str = "",
        gpus: Callable[[], frozenset[str]] = frozenset,
        unjoined: Unjoined = Unjoined.REPORT,
        host_bytes: int | None = None,
        overcommit: float = 1.0,
    ) -> None:
        self._directory = directory
        self._driver = driver
        self._version = version
        self._gpus = gpus
        self._unjoined = unjoined
        self._host_bytes = host_bytes
        self.overcommit = overcommit
        self._outdated = asyncio.Event()
        self._replaced_at = -REPLACE_SECONDS
        self._tried: frozenset[str] = frozenset()  # GPUs that the last one did not know either
        self.starts = 0
        self.answers = False
        self.postponed = ""  # why the arbiter is not replaced yet, though it must be

    async def run(self) -> None:
        """Supervise until cancelled."""
        backoff = Backoff(first=0.05, most=5.0)
        while True:
            try:
                await self._ensure()
                backoff.reset()
                await self._until_dead_or_outdated()
            except AliquotError as error:
                _log.error("the arbiter does not run", why=error.message)
                await asyncio.sleep(backoff.wait())
            finally:
                self.answers = False

    async def end(self) -> None:
        """End the arbiter, if there is no grant."""
        with suppress(AliquotError):
            await asyncio.to_thread(control.stop, self._directory)

    def check(self, status: Status) -> None:
        """Have the arbiter replaced if its status says that it must be."""
        self._tried &= self._unknown_gpus(status)
        why = self._why_outdated(status)
        if not why:
            self.postponed = ""
        recently = time.monotonic() - self._replaced_at < REPLACE_SECONDS
        if not recently and self._driver and why:
            self._outdated.set()

    async def _ensure(self) -> None:
        self._outdated.clear()
        if not await asyncio.to_thread(control.answers, self._directory):
            if self._driver is None:
                raise ArbiterError("there is no driver that it could use")
            await asyncio.to_thread(
                arbiter_process.start,
                self._directory,
                self._driver,
                linger=0,
                unjoined=self._unjoined,
                host_bytes=self._host_bytes,
                overcommit=self.overcommit,
            )
            self.starts += 1
            _log.info("started the arbiter", directory=str(self._directory))
        elif self._driver and (why := await asyncio.to_thread(self._ask_why_outdated)):
            await self._replace(self._driver, why)
        self.answers = True

    async def _replace(self, driver: Driver, why: str) -> None:
        tried, self._tried = self._tried, self._gpus()
        self._replaced_at = time.monotonic()
        try:
            await asyncio.to_thread(
                arbiter_process.restart,
                self._directory,
                driver,
                unjoined=self._unjoined,
                host_bytes=self._host_bytes,
                overcommit=self.overcommit,
            )
        except HeldMemoryError as error:
            self._tried = tried
            self.postponed = f"not replaced yet, though {why}: {error.message}"
            _log.warning("the arbiter is not replaced yet", why=why, waits_for=error.message)
            return
        self.postponed = ""
        self.starts += 1
        _log.info("replaced the arbiter", why=why, directory=str(self._directory))

    def _ask_why_outdated(self) -> str:
        return self._why_outdated(control.status(self._directory))

    def _why_outdated(self, status: Status) -> str:
        """Why the arbiter must be replaced; empty: it need not be."""
        if not arbiter_process.is_current(status):
            return "it is of another version"
        if status.driver_version != self._version:
            return f"it uses driver {status.driver_version}, and the node has {self._version}"
        if why := self._why_settings_differ(status.answer):
            return why
        if unknown := self._unknown_gpus(status) - self._tried:
            return f"it does not know {', '.join(sorted(unknown))}"
        return ""

    def _why_settings_differ(self, answer: Mapping[str, Any]) -> str:
        if (policy := answer.get("unjoined")) != self._unjoined:
            return f"its policy for unjoined processes is {policy}, not {self._unjoined}"
        limit = answer.get("host_memory_bytes")
        if self._host_bytes is not None and limit != self._host_bytes:
            return f"it may take {limit} bytes of the host's memory, not {self._host_bytes}"
        percent = answer.get("overcommit_percent", 100)
        if percent != round(100 * self.overcommit):
            now, wanted = percent / 100, self.overcommit
            return f"it lets slices have {now:g} times the memory of a GPU, not {wanted:g} times"
        return ""

    def _unknown_gpus(self, status: Status) -> frozenset[str]:
        return self._gpus() - {one.gpu.uuid for one in status.gpus}

    async def _until_dead_or_outdated(self) -> None:
        status = await asyncio.to_thread(control.status, self._directory)
        processes = [int(status.answer.get(key, 0)) for key in ("guard_pid", "pid", "serving_pid")]
        await asyncio.to_thread(leave_pod_cgroups, processes)
        try:
            process = os.pidfd_open(status.pid)
        except OSError:  # of another pid namespace, or gone already
            while not self._outdated.is_set():
                if not await asyncio.to_thread(control.answers, self._directory):
                    return
                await asyncio.sleep(CHECK_SECONDS)
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(process, self._outdated.set)  # the next look finds that it is dead
        try:
            await self._outdated.wait()
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
