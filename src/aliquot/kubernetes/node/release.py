"""What a pod held comes back when the pod is gone, or has ended, and its processes too.

Until then its cards are held, whatever the kubelet does with its ids. Where it is not sure that the
books name the right pod, the kubelet is asked first: another may be the one that runs on.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import structlog

from aliquot.model import Life
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aliquot.kubernetes.node.grants import Grants
    from aliquot.kubernetes.node.held import Held
    from aliquot.kubernetes.node.identity import Identity
    from aliquot.kubernetes.node.record import Record
    from aliquot.kubernetes.node.roster import Roster
    from aliquot.slices.control import Status

OURS = re.compile("(whole|shared|sliced)-[0-9a-f]{12}")
UNKNOWN_SECONDS = 60.0  # what nobody has claimed by then is nobody's

_log = structlog.get_logger(__name__)


class Releaser:
    """Ends grants and gives back."""

    def __init__(
        self,
        record: Record,
        roster: Roster,
        identity: Identity,
        grants: Grants,
        is_fresh: Callable[[Held], bool],
    ) -> None:
        self._record = record
        self._roster = roster
        self._identity = identity
        self._grants = grants
        self._is_fresh = is_fresh
        self._unknown: dict[str, float] = {}

    async def look(self) -> bool:
        """Release whom it concerns; whether somebody still lingers."""
        lingers = False
        for name in list(self._record.books.held):
            held = self._record.books.held.get(name)
            if held is None or not self._is_over(held):
                continue
            held = await self._identity.confirm(name)
            if held is None or not self._is_over(held):
                continue
            if self._is_fresh(held) and not held.sure:
                lingers = True  # the kubelet will tell whose it is
            else:
                lingers |= not await self._release(held)
        return lingers

    async def end_strays(self, seen: Status) -> None:
        """End grants of ours that no container holds: their file was lost."""
        for grant in seen.grants:
            ours = grant.life is Life.KEPT and OURS.fullmatch(grant.name)
            if ours and grant.name not in self._record.books.held:
                _log.warning("a grant that nobody holds is ended", grant=grant.name)
                await self._grants.end(grant.name)

    def _is_over(self, held: Held) -> bool:
        if held.owner.pod:
            return self._roster.is_over(held.owner)
        since = self._unknown.setdefault(held.name, time.monotonic())
        return time.monotonic() - since > UNKNOWN_SECONDS and not self._may_be_init(held)

    def _may_be_init(self, held: Held) -> bool:
        """Whether it may be an init container's, of which the kubelet does not tell."""
        counts = {name: len(ids) for name, ids in held.units.items()}
        return any(
            one.init and dict(one.units) == counts
            for guest in self._roster.live()
            for one in guest.requests
        )

    async def _release(self, held: Held) -> bool:
        """Whether it is given back."""
        try:
            ended = await self._grants.end(held.name)
        except AliquotError as error:
            _log.warning("a grant cannot be ended yet", grant=held.name, why=error.message)
            return False
        if not ended or self._record.books.held.get(held.name) != held:
            return False
        with self._record.changing() as books:
            books.release(held.name)
        self._unknown.pop(held.name, None)
        _log.info("released", grant=held.name, owner=str(held.owner))
        return True
