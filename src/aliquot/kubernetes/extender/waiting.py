"""Pods that fit no node: the events they get, and when kube-scheduler must try them again.

A waiting pod gets an event when the reasons change, and otherwise once in a while: not at every
try.

kube-scheduler tries a refused pod again after a change of an object that it watches. It does not
watch GPUNodes: when a slice ends on a GPU that others use, nothing that it sees changes, and it
sees the end of a pod before the GPU is free. So when a waiting pod fits again, the extender writes
its annotation `aliquot.io/retry`, and kube-scheduler tries it at once. Each pass looks at a few
pods in turn, so that pods which do not fit do not keep others waiting.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.names import RETRY
from aliquot.kubernetes.api.objects import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.extender.planner import Answer, Planner

EVENT_AGAIN = 120.0  # seconds until the same reasons get another event
WAKE_AGAIN = 5.0
WOKEN_AT_ONCE = 10
LOOKED_AT = 50  # pods in one pass
FORGOTTEN = 900.0  # seconds: kube-scheduler tries every pending pod at least every 5 minutes
BURST_SECONDS = 0.1  # changes come in bursts

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _WaitingPod:
    pod: Pod
    reasons: frozenset[str] = frozenset()
    refused: float = 0.0
    reported: float = 0.0
    woken: float = 0.0
    since: float = field(default_factory=time.time)


class WaitingPods:
    """The pods that fit no node, in the order in which they are looked at.

    `may_start` says whether gangs and queues let a pod start.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: Client,
        planner: Planner,
        recorder: Recorder,
        changes: Changes,
        leading: Callable[[], bool],
        may_start: Callable[[Pod], bool] = lambda _: True,
    ) -> None:
        self._client = client
        self._planner = planner
        self._recorder = recorder
        self._changes = changes
        self._leading = leading
        self._may_start = may_start
        self._waits: dict[str, _WaitingPod] = {}

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def pods(self) -> Iterator[tuple[Pod, float]]:
        """All waiting pods, each with the time since when, as of `time.time()`."""
        return ((one.pod, one.since) for one in self._waits.values())

    def refused(self, pod: Pod, answer: Answer) -> None:
        """A pod fits no node."""
        one = self._waits.setdefault(pod.metadata.uid, _WaitingPod(pod))
        one.pod = pod
        now, reasons = self._planner.cluster.now(), frozenset(answer.refused.values())
        one.refused = now
        if reasons != one.reasons or now - one.reported >= EVENT_AGAIN:
            one.reasons, one.reported = reasons, now
            self._recorder.record(PODS, pod, "Warning", answer.reason, answer.message)

    def done(self, uid: str) -> None:
        """A pod waits no longer: it fits a node, is bound, or is gone."""
        self._waits.pop(uid, None)

    async def run(self) -> None:
        """Make kube-scheduler try pods again when they fit, until cancelled."""
        while True:
            await self._changes.wait(WAKE_AGAIN)
            await asyncio.sleep(BURST_SECONDS)
            if self._waits and self._leading():
                await self._wake()

    async def _wake(self) -> None:
        now = self._planner.cluster.now()
        woken = 0
        for uid, one in list(self._waits.items())[:LOOKED_AT]:
            if self._waits.get(uid) is not one:
                continue  # it was removed while others were woken
            if now - one.refused > FORGOTTEN:
                del self._waits[uid]
                continue
            self._waits[uid] = self._waits.pop(uid)  # the others come first next time
            if now - one.woken < WAKE_AGAIN or not self._planner.fits(one.pod):
                continue
            if not self._may_start(one.pod):
                continue
            one.woken = now
            await self._write(one.pod)
            woken += 1
            if woken == WOKEN_AT_ONCE:
                return

    async def _write(self, pod: Pod) -> None:
        meta = pod.metadata
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        patch = {"metadata": {"uid": meta.uid, "annotations": {RETRY: stamp}}}
        try:
            await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
        except ApiError as error:
            if error.not_found or error.conflict:
                self.done(meta.uid)
            else:
                _log.info("a pod was not woken", pod=pod.key, why=error.message)
