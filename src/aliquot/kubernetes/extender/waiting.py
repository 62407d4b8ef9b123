"""Pods that fit no node: the events they get, and when kube-scheduler must try them again.

A waiting pod gets an event when the reasons change, and otherwise once in a while: not at every
try.

kube-scheduler tries a refused pod again after a change of an object that it watches. It does not
watch GPUNodes: when a slice ends on a GPU that others use, nothing that it sees changes, and it
sees the end of a pod before the GPU is free. So when a waiting pod fits again, the extender writes
its annotation `aliquot.io/retry`, and kube-scheduler tries it at once. Each pass looks at a few
pods in turn, so that pods which do not fit do not keep others waiting.

A pod is woken once for each time that it begins to fit, on a node that kube-scheduler offered at
its last try. A free GPU on another node does not wake it: a cordon, a taint or too little CPU keeps
the pod from there, and kube-scheduler tries the pod by itself when one of these changes. So nothing
is written while nothing changes.
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
from aliquot.kubernetes.cluster.offered import OfferedNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aliquot.kubernetes.api.changes import Changes
    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.events import Recorder
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.extender.planner import Answer, Planner

EVENT_AGAIN = 120.0  # seconds until the same reasons get another event
WAKE_AGAIN = 5.0  # doubles with each time in a row that a pod was woken and refused again
WOKEN_AT_ONCE = 10
LOOKED_AT = 50  # pods in one pass
FORGOTTEN = 900.0  # seconds: kube-scheduler tries every pending pod at least every 5 minutes
BURST_SECONDS = 0.1  # changes come in bursts

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _WaitingPod:
    """`fits`: it was woken, and fits since. `in_vain`: how often in a row it was refused then."""

    pod: Pod
    offered: OfferedNodes
    reasons: frozenset[str] = frozenset()
    refused: float = 0.0
    reported: float = 0.0
    fits: bool = False
    woken: float = 0.0
    in_vain: int = 0
    since: float = field(default_factory=time.time)

    @property
    def pause(self) -> float:
        """Seconds from one time that it is woken to the next."""
        return min(WAKE_AGAIN * 2.0**self.in_vain, FORGOTTEN)


class WaitingPods:
    """The pods that fit no node, in the order in which they are looked at.

    `may_start` says whether gangs and queues let a pod start on one of these nodes.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: Client,
        planner: Planner,
        recorder: Recorder,
        changes: Changes,
        leading: Callable[[], bool],
        may_start: Callable[[Pod, OfferedNodes], bool] = lambda _pod, _offered: True,
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

    def offered(self, uid: str) -> Sequence[str]:
        """The nodes with GPUs that kube-scheduler offered a waiting pod at its last try."""
        one, cluster = self._waits.get(uid), self._planner.cluster
        rows = None if one is None else one.offered.rows(cluster)
        return [] if rows is None else [name for name, row in cluster.rows.items() if rows[row]]

    def refused(self, pod: Pod, answer: Answer) -> None:
        """A pod fits none of the nodes that kube-scheduler offered."""
        offered = OfferedNodes.of(self._planner.cluster, answer.refused)
        if pod.metadata.uid not in self._waits:
            self._changes.notify()  # it may preempt
        one = self._waits.setdefault(pod.metadata.uid, _WaitingPod(pod, offered))
        one.pod, one.offered = pod, offered
        one.in_vain += one.fits
        one.fits = False
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
            if not self._could_start(one):
                one.fits, one.in_vain = False, 0
                continue
            if one.fits or now - one.woken < one.pause:
                continue
            one.woken, one.fits = now, True
            if not await self._write(one.pod):
                one.fits = False
            woken += 1
            if woken == WOKEN_AT_ONCE:
                return

    def _could_start(self, one: _WaitingPod) -> bool:
        """Whether kube-scheduler would get a node for it, if it tried the same nodes again."""
        reserved = self._planner.cluster.reserved(one.pod.metadata.uid)
        if reserved is not None and reserved.binding:
            return False
        return self._planner.fits(one.pod, one.offered) and self._may_start(one.pod, one.offered)

    async def _write(self, pod: Pod) -> bool:
        """Make kube-scheduler try a pod again; whether the API server has that."""
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
            return False
        return True
