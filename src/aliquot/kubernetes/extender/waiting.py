"""Pods that found no room: what they are told, and when they are woken.

A pod gets an event when the reasons change, and otherwise once in a while: not at every try.

kube-scheduler tries a pod that an extender refused again when something happens that it knows of.
It does not know of `GPUNode`: a slice that ends beside others changes nothing that it sees, and a
pod's end comes to it before the GPU is free. So when a pod that waits would find room, its
annotation `aliquot.io/room` is written, and kube-scheduler tries it again at once. A few are looked
at in one pass, in turns: those for which there is no room do not keep others from being seen.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import ROOM
from aliquot.kubernetes.api.objects import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.extender.planner import Answer, Planner

TELL_AGAIN = 120.0  # seconds until the same reasons are told again
WAKE_AGAIN = 5.0
WOKEN_AT_ONCE = 10
LOOKED_AT = 50  # pods in one pass
FORGOTTEN = 900.0  # kube-scheduler tries a pod at least every 5 minutes: this one is none any more
SETTLE = 0.1  # changes come in bursts

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Waits:
    pod: Pod
    reasons: frozenset[str] = frozenset()
    refused: float = 0.0
    told: float = 0.0
    woken: float = 0.0
    since: float = field(default_factory=time.time)


class Waiting:
    """The pods that wait for room, those that are looked at next first.

    `lets` says whether anything but room keeps a pod away.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all that it works with
        self,
        client: Client,
        planner: Planner,
        recorder: Recorder,
        changes: Changes,
        leading: Callable[[], bool],
        lets: Callable[[Pod], bool] = lambda _: True,
    ) -> None:
        self._client = client
        self._planner = planner
        self._recorder = recorder
        self._changes = changes
        self._leading = leading
        self._lets = lets
        self._waits: dict[str, _Waits] = {}

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def pods(self) -> Iterator[tuple[Pod, float]]:
        """All that wait, and since when, as `time.time()` tells it."""
        return ((one.pod, one.since) for one in self._waits.values())

    def refused(self, pod: Pod, answer: Answer) -> None:
        """A pod found no room."""
        one = self._waits.setdefault(pod.metadata.uid, _Waits(pod))
        one.pod = pod
        now, reasons = self._planner.cluster.now(), frozenset(answer.refused.values())
        one.refused = now
        if reasons != one.reasons or now - one.told >= TELL_AGAIN:
            one.reasons, one.told = reasons, now
            self._recorder.record(PODS, pod, "Warning", answer.reason, answer.message)

    def done(self, uid: str) -> None:
        """A pod waits no more: it found room, has a node, or is gone."""
        self._waits.pop(uid, None)

    async def run(self) -> None:
        """Wake pods when there is room for them, until cancelled."""
        while True:
            await self._changes.wait(WAKE_AGAIN)
            await asyncio.sleep(SETTLE)
            if self._waits and self._leading():
                await self._wake()

    async def _wake(self) -> None:
        now = self._planner.cluster.now()
        woken = 0
        for uid, one in list(self._waits.items())[:LOOKED_AT]:
            if self._waits.get(uid) is not one:
                continue  # it was done while others were woken
            if now - one.refused > FORGOTTEN:
                del self._waits[uid]
                continue
            self._waits[uid] = self._waits.pop(uid)  # others come before it is looked at again
            if now - one.woken < WAKE_AGAIN or not self._planner.fits(one.pod):
                continue
            if not self._lets(one.pod):
                continue
            one.woken = now
            await self._write(one.pod)
            woken += 1
            if woken == WOKEN_AT_ONCE:
                return

    async def _write(self, pod: Pod) -> None:
        meta = pod.metadata
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        patch = {"metadata": {"uid": meta.uid, "annotations": {ROOM: stamp}}}
        try:
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if error.not_found or error.conflict:
                self.done(meta.uid)
            else:
                _log.info("a pod was not woken", pod=pod.key, why=error.message)
