"""Who uses a GPU outside every grant, images that no driver can run in, and whose a grant is.

What the kubelet could not tell (of pods whose init containers alone have GPUs) is told by the
processes: the pod of one that has joined a grant is the grant's owner.

An image is looked at through a tenant's file system, which may answer late, or never: once for each
pod, aside, and where there is no answer nothing is said.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from aliquot.kubernetes.node import processes
from aliquot.kubernetes.node.aside import Aside
from aliquot.kubernetes.node.settle import rename
from aliquot.model import format_bytes

if TYPE_CHECKING:
    from aliquot.kubernetes.node.events import Events
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.roster import Guest, Roster
    from aliquot.model import GpuProcess
    from aliquot.slices.control import SharedGpu, Status


class Lookout:
    """Says once what it finds."""

    def __init__(self, record: Record, roster: Roster, events: Events) -> None:
        self._record = record
        self._roster = roster
        self._events = events
        self._strangers: set[tuple[str, int]] = set()
        self._looked_at: set[str] = set()
        self._aside = Aside()

    def look(self, seen: Status) -> None:
        """At what the arbiter knows."""
        self._owners(seen)
        now = {
            (one.gpu.uuid, stranger.pid): (one, stranger)
            for one in seen.gpus
            for stranger in one.strangers
        }
        for key in now.keys() - self._strangers:
            self._slipped_past(*now[key])
        self._strangers = set(now)

    async def look_at_images(self) -> None:
        """At pods that have begun to run since the last time."""
        running = {
            guest.uid: guest
            for guest in self._roster.live()
            if not guest.waits and self._record.books.of_pod(guest.uid)
        }
        new = running.keys() - self._looked_at
        self._looked_at &= running.keys()
        if not new:
            return
        found = await asyncio.to_thread(processes.by_pod)
        for uid in new & found.keys():
            self._looked_at.add(uid)
            guest, look = running[uid], partial(processes.cannot_be_held, found[uid])
            if await self._aside.call(guest.owner.namespace, look):
                self._say_musl(guest)

    def _slipped_past(self, one: SharedGpu, stranger: GpuProcess) -> None:
        size = "some memory" if stranger.bytes is None else format_bytes(stranger.bytes)
        what = f"process {stranger.pid} ({stranger.name}) uses {size} of {one.gpu}"
        uid = processes.pod_of(stranger.pid)
        guest = self._roster.get(uid) if uid else None
        if guest is None:
            where = f" in the pod with UID {uid}" if uid else ""
            self._events.say_of_node("Stranger", f"{what}{where}, and has no grant")
            return
        self._events.say(
            guest,
            "SlippedPast",
            f"{what} past its limits: the program did not meet the libraries that hold it to them."
            " A static binary, or one that brings a driver of its own, cannot be limited.",
        )

    def _say_musl(self, guest: Guest) -> None:
        self._events.say(
            guest,
            "MuslImage",
            "the image's C library is musl: NVIDIA's driver needs glibc, so no program in it can"
            " use a GPU. Use an image with glibc, for example debian or ubuntu.",
        )

    def _owners(self, seen: Status) -> None:
        for grant in seen.grants:
            held = self._record.books.held.get(grant.name)
            if held is None or held.sure:
                continue
            pods = {processes.pod_of(one.pid) for one in grant.processes if one.state == "live"}
            for guest in filter(None, (self._roster.get(pod) for pod in pods if pod)):
                with self._record.changing() as books:
                    rename(books, guest.owner, grant.name)
                break
