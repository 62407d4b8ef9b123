"""Members that ask for no GPU and have done their work: they go on to count as being there.

A pod that has succeeded is not watched any more. Where a gang lacks members, those of its namespace
that have succeeded are read, again from time to time. Of an earlier run under the same name they do
not count: a pod does that has the owner of one that lives, or came about when the first of those
did.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import PODS
from aliquot.kubernetes.api.times import seconds_at
from aliquot.kubernetes.cluster.membership import membership_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.membership import GangKey
    from aliquot.kubernetes.gangs.state import GangState

AGAIN = 5.0
TOGETHER = 10.0  # seconds between pods that are made together
SUCCEEDED = "status.phase=Succeeded"

_log = structlog.get_logger(__name__)


class Finished:
    """What was read of each namespace, and when."""

    def __init__(
        self, client: Client, asks: Callable[[Pod], bool], now: Callable[[], float]
    ) -> None:
        self._client = client
        self._asks = asks
        self._now = now
        self._read: dict[str, float] = {}
        self._found: dict[str, dict[GangKey, list[Pod]]] = {}

    async def read(self, namespaces: Collection[str]) -> None:
        """Read these, if they were not just read; forget all others."""
        for gone in self._read.keys() - set(namespaces):
            del self._read[gone]
            self._found.pop(gone, None)
        now = self._now()
        due = [one for one in namespaces if now - self._read.get(one, -AGAIN) >= AGAIN]
        await asyncio.gather(*(self._read_one(one) for one in due))

    def of(self, gang: GangState) -> frozenset[str]:
        """The UIDs of a gang's members that have done their work."""
        found = self._found.get(gang.key.namespace, {}).get(gang.key, ())
        live = (*gang.pods.values(), *gang.others.values())
        owners = {uid for one in live for uid in _owners(one)}
        first = min(filter(None, map(_made, live)), default=None)
        return frozenset(
            one.metadata.uid
            for one in found
            if owners.intersection(_owners(one)) or _is_about(_made(one), first)
        )

    async def _read_one(self, namespace: str) -> None:
        self._read[namespace] = self._now()
        try:
            found = await self._client.list(PODS, namespace, fields=SUCCEEDED)
        except ApiError as error:
            _log.info("pods are not read", namespace=namespace, why=error.message)
            return
        gangs: dict[GangKey, list[Pod]] = {}
        for one in found.items:
            claim = membership_of(one)
            if claim is not None and one.status.phase == "Succeeded" and not self._asks(one):
                gangs.setdefault(claim.key, []).append(one)
        self._found[namespace] = gangs


def _owners(pod: Pod) -> Iterable[str]:
    return (one.uid for one in pod.metadata.owner_references if one.controller)


def _made(pod: Pod) -> float | None:
    return seconds_at(pod.metadata.creation_timestamp)


def _is_about(time: float | None, first: float | None) -> bool:
    return time is not None and first is not None and time > first - TOGETHER
