"""The way to kube-scheduler for members that have their places, and out of it for those that end.

A gate is taken away; a pod without one is woken by an annotation. Both are done again where nothing
came of it. Pods that are to end are evicted, again and again until they are gone: a disruption
budget may refuse for a while. Whether this replica may do so is asked before each.
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
from aliquot.kubernetes.cluster.membership import is_gated
from aliquot.kubernetes.gangs.messages import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.evict import Refusal
    from aliquot.kubernetes.api.objects import Pod

AT_ONCE = 32  # requests
AGAIN = 10.0
EVICT_AGAIN = 2.0

_log = structlog.get_logger(__name__)


class GatesAndEvictions:
    """Opens them.

    `refusals` are those of the last evictions, by UID, and `refused_at` is when each first was.
    """

    def __init__(self, client: Client, now: Callable[[], float], may: Callable[[], bool]) -> None:
        self._client = client
        self._now = now
        self._may = may
        self._tried: dict[str, float] = {}
        self._evicted: dict[str, float] = {}
        self._free = asyncio.Semaphore(AT_ONCE)
        self.refusals: dict[str, Refusal] = {}
        self.refused_at: dict[str, float] = {}

    async def open(self, pods: Iterable[Pod]) -> None:
        """Let these pods go to kube-scheduler."""
        due = [one for one in pods if self._is_due(self._tried, one, AGAIN)]
        await asyncio.gather(*(self._patch(one, self._opened(one)) for one in due))

    async def evict(self, pods: Iterable[Pod]) -> None:
        """Ask these pods to end."""
        due = [
            one
            for one in pods
            if not one.metadata.deletion_timestamp and self._is_due(self._evicted, one, EVICT_AGAIN)
        ]
        await asyncio.gather(*(self._evict(one) for one in due))

    def again(self, uids: Iterable[str]) -> None:
        """These have new places: they are to be woken at once."""
        for uid in uids:
            self._tried.pop(uid, None)

    def forget(self, uids: Iterable[str]) -> None:
        """Of these it is to be seen anew whether they may be evicted."""
        for uid in uids:
            self.refusals.pop(uid, None)
            self.refused_at.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all others."""
        for times in (self._tried, self._evicted, self.refused_at):
            for gone in [uid for uid in times if uid not in uids]:
                del times[gone]
        self.refusals = {uid: one for uid, one in self.refusals.items() if uid in uids}

    def _is_due(self, times: dict[str, float], pod: Pod, seconds: float) -> bool:
        now, uid = self._now(), pod.metadata.uid
        if now - times.get(uid, 0.0) < seconds:
            return False
        times[uid] = now
        return True

    def _opened(self, pod: Pod) -> dict[str, Any]:
        if not is_gated(pod):
            return {"metadata": {"annotations": {RETRY: stamp(self._now())}}}
        left = [one for one in pod.spec.scheduling_gates if one.name != GATE]
        return {"spec": {"schedulingGates": msgspec.to_builtins(left) or None}}

    async def _patch(self, pod: Pod, patch: dict[str, Any]) -> None:
        meta = pod.metadata
        patch = {**patch, "metadata": {**patch.get("metadata", {}), "uid": meta.uid}}
        async with self._free:
            if not self._may():
                return
            try:
                await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace)
            except ApiError as error:
                self._tried.pop(meta.uid, None)
                if not (error.not_found or error.conflict):
                    _log.info("a member was not let go", pod=pod.key, why=error.message)

    async def _evict(self, pod: Pod) -> None:
        async with self._free:
            if not self._may():
                return
            try:
                refusal = await evict(self._client, pod)
            except ApiError as error:
                _log.info("a pod was not evicted", pod=pod.key, why=error.message)
                return
        uid = pod.metadata.uid
        if refusal is None:
            self.forget([uid])
        else:
            self.refusals[uid] = refusal
            self.refused_at.setdefault(uid, self._now())
