"""Gang objects in the API server: written when something is new, read by who leads next.

A change of a gang's phase, of its members' places or of its size is written at once; words alone at
most every `WORDS` seconds, since they change with everything around a gang. Whether this replica
may write is asked before each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.gang import GANGS, GangObject, GangSpec, GangStatus
from aliquot.kubernetes.api.objects import Meta

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Owner
    from aliquot.kubernetes.cluster.membership import GangKey

WORDS = 10.0
_EMPTY: dict[str, Any] = {
    "reason": "",
    "plannedStart": None,
    "topology": "",
    "makingRoom": [],
    "wholeOnce": False,
    "leaving": "",
    "leavers": 0,
    "leavesAt": None,
    "members": [],
}

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Written:
    spec: GangSpec
    status: GangStatus
    at: float


class Store:
    """What was written of each gang."""

    def __init__(self, client: Client, now: Callable[[], float], may: Callable[[], bool]) -> None:
        self._client = client
        self._now = now
        self._may = may
        self._written: dict[GangKey, _Written] = {}
        self._uids: dict[GangKey, str] = {}

    async def read(self) -> list[GangObject]:
        """All that there are; nothing else is known of any afterwards."""
        self._written.clear()
        self._uids.clear()
        found = await self._client.list(GANGS)
        return found.items

    def found(self, key: GangKey, one: GangObject) -> None:
        """This is what the API server has."""
        self._written[key] = _Written(one.spec, one.status, self._now())
        self._uids[key] = one.metadata.uid

    def object(self, key: GangKey) -> GangObject:
        """The object as events name it."""
        uid = self._uids.get(key, "")
        return GangObject(Meta(name=key.name, namespace=key.namespace, uid=uid))

    def differs(self, key: GangKey, spec: GangSpec, status: GangStatus) -> bool:
        """Whether this is to be written now."""
        before = self._written.get(key)
        if before is None or before.spec != spec or _bare(before.status) != _bare(status):
            return True
        return before.status != status and self._now() - before.at >= WORDS

    async def write(
        self, key: GangKey, spec: GangSpec, status: GangStatus, owners: tuple[Owner, ...]
    ) -> bool:
        """Make the object so; whether the API server has it now."""
        if not self._may():
            return False
        try:
            await self._write(key, spec, status, owners)
        except ApiError as error:
            _log.warning("a gang was not written", gang=str(key), why=error.message)
            self._written.pop(key, None)
            return False
        self._written[key] = _Written(spec, status, self._now())
        return True

    async def delete(self, key: GangKey) -> bool:
        """Take it away; whether it is gone."""
        if not self._may():
            return False
        try:
            await self._client.delete(GANGS, key.name, key.namespace)
        except ApiError as error:
            _log.warning("a gang was not deleted", gang=str(key), why=error.message)
            return False
        self._written.pop(key, None)
        self._uids.pop(key, None)
        return True

    async def _write(
        self, key: GangKey, spec: GangSpec, status: GangStatus, owners: tuple[Owner, ...]
    ) -> None:
        before = self._written.get(key)
        if before is None:
            await self._make(key, spec, owners)
        elif before.spec != spec:
            await self._respecify(key, spec, owners)
        body = {"status": {**_EMPTY, **msgspec.to_builtins(status)}}
        await self._client.patch(GANGS, key.name, body, namespace=key.namespace, sub="status")

    async def _make(self, key: GangKey, spec: GangSpec, owners: tuple[Owner, ...]) -> None:
        meta = Meta(name=key.name, namespace=key.namespace, owner_references=owners)
        try:
            made = await self._client.create(GANGS, GangObject(meta, spec))
        except ApiError as error:
            if not error.conflict:
                raise
            made = await self._respecify(key, spec, owners)
        self._uids[key] = made.metadata.uid

    async def _respecify(
        self, key: GangKey, spec: GangSpec, owners: tuple[Owner, ...]
    ) -> GangObject:
        body = {
            "metadata": {"ownerReferences": msgspec.to_builtins(owners)},
            "spec": msgspec.to_builtins(spec),
        }
        return await self._client.patch(GANGS, key.name, body, namespace=key.namespace)


def _bare(status: GangStatus) -> GangStatus:
    """Without what changes all the time."""
    return msgspec.structs.replace(status, reason="", planned_start=None)
