"""The processes of this node's containers: GPU use outside every grant, images without a driver.

A process belongs to the pod of its cgroup. This also confirms owners that the kubelet never reports
(of pods whose init containers alone have GPUs): a process that has joined a grant belongs to the
grant's pod.

An image is looked at through a tenant's file system, which may answer late or never: once for each
pod, within bounds (`tenant_files`). If there is no answer, nothing is reported.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aliquot.containers.container_edits import GRANT
from aliquot.kubernetes.node.tenant_files import BoundedCalls, exists_below, is_musl
from aliquot.model import format_bytes
from aliquot.slices.state_directory import KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aliquot.kubernetes.node.grants.checkpoint import SavedAllocations
    from aliquot.kubernetes.node.grants.lifecycle import ArbiterGrants
    from aliquot.kubernetes.node.pods import ContainerRef, GpuPod, NodeEvents, NodePods
    from aliquot.model import GpuProcess
    from aliquot.slices.arbiter_status import SharedGpu, Status

PROC = Path("/proc")

# kubepods/burstable/podUID/ID, or kubepods-burstable-podUID_WITH_UNDERSCORES.slice/NAME-ID.scope
_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
    r"(?:\.slice)?(?:/(?P<container>[^/\n]*))?"
)

# A line of mountinfo begins: id, parent, device, the mounted folder.
_MOUNT = re.compile(
    rf"^\d+ \d+ \S+ \S*/{KEPT}/((?:whole|shared|sliced)-[0-9a-f]{{12}}) ", re.MULTILINE
)


def pod_of(pid: int) -> str | None:
    """The UID of the pod that a process belongs to; None if it belongs to none, or is gone."""
    cgroup = _cgroup_of(pid)
    return cgroup[0] if cgroup else None


def first_processes() -> dict[str, list[int]]:
    """By the UID of each pod: the process with the lowest id of each of its containers."""
    pids = sorted(int(folder.name) for folder in PROC.iterdir() if folder.name.isdecimal())
    first: dict[tuple[str, str], int] = {}
    for pid in pids:
        if cgroup := _cgroup_of(pid):
            first.setdefault(cgroup, pid)
    found: dict[str, list[int]] = {}
    for (uid, _), pid in first.items():
        found.setdefault(uid, []).append(pid)
    return found


def container_cgroups() -> dict[str, str]:
    """The cgroups of all containers in pods: their paths by their last names, ID or NAME-ID.scope.

    The names that Kubernetes gives are followed only where they come first in a path: a container
    may make cgroups of any name below its own.
    """
    found: dict[str, str] = {}
    pids = (int(folder.name) for folder in PROC.iterdir() if folder.name.isdecimal())
    for cgroup in filter(None, map(_search_cgroup, pids)):
        line = cgroup.string[: cgroup.end()].rpartition("\n")[2]
        if container := cgroup["container"]:
            found[container] = line.split(":", 2)[2]
    return found


def mounted_grants() -> frozenset[str]:
    """The names of the grants that running containers of pods have, whatever is known of the pods.

    The kernel's tables of mounts say it: no tenant's file system is asked.
    """
    found: set[str] = set()
    for pids in first_processes().values():
        for pid in pids:
            try:
                text = (PROC / str(pid) / "mountinfo").read_text("utf-8", "replace")
            except OSError:
                continue  # it has ended
            found.update(_MOUNT.findall(text))
    return frozenset(found)


def sees_same_cgroups(pid: int) -> bool:
    """Whether a process has this one's cgroup namespace, so that paths mean the same to both."""
    try:
        own, other = ((PROC / one / "ns" / "cgroup").readlink() for one in ("self", str(pid)))
    except OSError:
        return False
    return own == other


def have_no_driver(pids: Iterable[int]) -> bool:
    """Whether one of these processes has a grant, and a C library for which there is no driver.

    It reads tenants' file systems, and may never return.
    """
    roots = (PROC / str(pid) / "root" for pid in pids)
    return any(exists_below(root, str(GRANT)) and is_musl(root) for root in roots)


def _cgroup_of(pid: int) -> tuple[str, str] | None:
    """The UID of a process's pod, and the name of its container's cgroup."""
    found = _search_cgroup(pid)
    return (found["uid"].replace("_", "-"), found["container"] or "") if found else None


def _search_cgroup(pid: int) -> re.Match[str] | None:
    try:
        return _POD.search((PROC / str(pid) / "cgroup").read_text("ascii", "replace"))
    except OSError:
        return None


class ProcessMonitor:
    """Reports each thing that it finds once."""

    def __init__(
        self,
        saved: SavedAllocations,
        pods: NodePods,
        events: NodeEvents,
        set_owner: Callable[[str, ContainerRef], None],
    ) -> None:
        self._saved = saved
        self._pods = pods
        self._events = events
        self._set_owner = set_owner
        self._reported: set[tuple[str, int]] = set()
        self._inspected: set[str] = set()
        self._calls = BoundedCalls()

    def check(self, status: Status) -> None:
        """Check the processes that the arbiter sees on the GPUs."""
        self._confirm_owners(status)
        now = {
            (one.gpu.uuid, process.pid): (one, process)
            for one in status.gpus
            for process in one.strangers
        }
        for key in now.keys() - self._reported:
            self._report_without_grant(*now[key])
        self._reported = set(now)

    async def tell_cgroups(self, status: Status, arbiter: ArbiterGrants) -> None:
        """Tell the arbiter the cgroups of the containers whose grants have none yet."""
        untold = {}
        for one in status.grants:
            grant = self._saved.allocations.grants.get(one.name)
            if one.cgroup_is_told or grant is None or not grant.confirmed:
                continue
            pod = self._pods.get(grant.owner.uid)
            if container := pod.container_id(grant.owner.container) if pod else "":
                untold[one.name] = container
        if not untold or not sees_same_cgroups(status.pid):
            return
        cgroups = await asyncio.to_thread(container_cgroups)
        for name, container in untold.items():
            for last, path in cgroups.items():
                if container in last:
                    await arbiter.set_cgroup(name, path)

    async def check_images(self) -> None:
        """Check the images of pods that have started since the last time."""
        running = {
            pod.uid: pod
            for pod in self._pods.live()
            if not pod.pending and self._saved.allocations.of_pod(pod.uid)
        }
        new = running.keys() - self._inspected
        self._inspected &= running.keys()
        if not new:
            return
        found = await asyncio.to_thread(first_processes)
        for uid in new & found.keys():
            self._inspected.add(uid)
            pod, inspect = running[uid], partial(have_no_driver, found[uid])
            if await self._calls.call(pod.owner.namespace, inspect):
                self._report_musl(pod)

    def _report_without_grant(self, one: SharedGpu, process: GpuProcess) -> None:
        size = "some memory" if process.bytes is None else format_bytes(process.bytes)
        what = f"process {process.pid} ({process.name}) uses {size} of {one.gpu}"
        uid = pod_of(process.pid)
        pod = self._pods.get(uid) if uid else None
        if pod is None:
            where = f" in the pod with UID {uid}" if uid else ""
            self._events.node_event("ProcessWithoutGrant", f"{what}{where} and has no grant")
            return
        self._events.pod_event(
            pod,
            "LimitsBypassed",
            f"{what} without limits: the program did not load the libraries that enforce them."
            " A static binary, or one that brings its own driver, cannot be limited.",
        )

    def _report_musl(self, pod: GpuPod) -> None:
        self._events.pod_event(
            pod,
            "MuslImage",
            "the image's C library is musl, and NVIDIA's driver needs glibc: no program in it can"
            " use a GPU. Use an image with glibc, for example debian or ubuntu.",
        )

    def _confirm_owners(self, status: Status) -> None:
        for one in status.grants:
            grant = self._saved.allocations.grants.get(one.name)
            if grant is None or grant.confirmed:
                continue
            uids = {pod_of(process.pid) for process in one.processes if process.state == "live"}
            for pod in filter(None, (self._pods.get(uid) for uid in uids if uid)):
                self._set_owner(one.name, pod.owner)
                break
