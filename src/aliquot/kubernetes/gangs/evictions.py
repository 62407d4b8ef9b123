"""Requests about pods: opening their gates, waking them, and evicting them.

A gate is removed; a pod without one is woken by an annotation. Both are repeated if nothing comes
of it. Pods are evicted through the Eviction API, again and again until they are gone: a disruption
budget may refuse for a while. Before each request this replica checks that it still leads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.evict import evict
from aliquot.kubernetes.api.names import GATE, RETRY
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.times import stamp
from aliquot.kubernetes.cluster.membership import is_gated
from aliquot.kubernetes.gangs.lifecycle import RefusedEviction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.evict import Refusal
    from aliquot.kubernetes.api.objects import Pod

AT_ONCE = 32  # requests
OPEN_AGAIN = 10.0
EVICT_AGAIN = 2.0

_log = structlog.get_logger(__name__)


class Evictor:
    """Opens gates and evicts pods.

    `refusals` are those of the last evictions, by UID; `refused_at` is when each began.
    """

    def __init__(self, client: Client, now: Callable[[], float], leads: Callable[[], bool]) -> None:
        self._client = client
        self._now = now
        self._leads = leads
        self._opened_at: dict[str, float] = {}
        self._evicted_at: dict[str, float] = {}
        self._free = asyncio.Semaphore(AT_ONCE)
        self.refusals: dict[str, Refusal] = {}
        self.refused_at: dict[str, float] = {}

    async def open(self, pods: Iterable[Pod]) -> None:
        """Let these pods go to kube-scheduler."""
        due = [one for one in pods if self._is_due(self._opened_at, one, OPEN_AGAIN)]
        await asyncio.gather(*(self._patch(one, self._open_patch(one)) for one in due))

    async def evict(self, pods: Iterable[Pod]) -> None:
        """Evict these pods."""
        due = [
            one
            for one in pods
            if not one.metadata.deletion_timestamp
            and self._is_due(self._evicted_at, one, EVICT_AGAIN)
        ]
        await asyncio.gather(*(self._evict(one) for one in due))

    def open_again(self, uids: Iterable[str]) -> None:
        """These pods have new places: open their gates at once, though that was just tried."""
        for uid in uids:
            self._opened_at.pop(uid, None)

    def refused(self, work_of: Callable[[str], str]) -> dict[str, RefusedEviction]:
        """All refusals, by UID; `work_of` names the work that a pod belongs to."""
        return {
            uid: RefusedEviction(str(one), self.refused_at[uid], work_of(uid))
            for uid, one in self.refusals.items()
        }

    def forget(self, uids: Iterable[str]) -> None:
        """Forget that evictions of these pods were refused."""
        for uid in uids:
            self.refusals.pop(uid, None)
            self.refused_at.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        for times in (self._opened_at, self._evicted_at, self.refused_at):
            for gone in [uid for uid in times if uid not in uids]:
                del times[gone]
        self.refusals = {uid: one for uid, one in self.refusals.items() if uid in uids}

    def _is_due(self, times: dict[str, float], pod: Pod, seconds: float) -> bool:
        now, uid = self._now(), pod.metadata.uid
        if now - times.get(uid, 0.0) < seconds:
            return False
        times[uid] = now
        return True

    def _open_patch(self, pod: Pod) -> dict[str, Any]:
        if not is_gated(pod):
            return {"metadata": {"annotations": {RETRY: stamp(self._now())}}}
        left = [one for one in pod.spec.scheduling_gates if one.name != GATE]
        return {"spec": {"schedulingGates": msgspec.to_builtins(left) or None}}

    async def _patch(self, pod: Pod, patch: dict[str, Any]) -> None:
        meta = pod.metadata
        patch = {**patch, "metadata": {**patch.get("metadata", {}), "uid": meta.uid}}
        async with self._free:
            if not self._leads():
                return
            try:
                await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
            except ApiError as error:
                self._opened_at.pop(meta.uid, None)
                if not (error.not_found or error.conflict):
                    _log.info("cannot open the gate of a pod", pod=pod.key, why=error.message)

    async def _evict(self, pod: Pod) -> None:
        async with self._free:
            if not self._leads():
                return
            try:
                refusal = await evict(self._client, pod)
            except ApiError as error:
                _log.info("cannot evict a pod", pod=pod.key, why=error.message)
                return
        uid = pod.metadata.uid
        if refusal is None:
            self.forget([uid])
        else:
            self.refusals[uid] = refusal
            self.refused_at.setdefault(uid, self._now())
