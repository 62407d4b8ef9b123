"""What users have used of the GPUs, counted while the pool runs and kept in its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.placement.queues.users import PastUse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aliquot.pool.store import JobStore

SAVE_SECONDS = 30.0

_NEGLIGIBLE = 1.0  # GPU-seconds


class PastUses:
    """The use of all users. While no pool runs nothing is counted."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._past = store.past_use()
        self._counted = self._saved = 0.0

    def of(self, uid: int) -> PastUse:
        """What a user has used."""
        return self._past.get(uid, PastUse())

    def count(self, held: Mapping[int, float], now: float, half_life: float) -> None:
        """Count what each user has had since the last call: the number of GPUs, by uid."""
        first, self._counted = not self._counted, now
        past = {
            uid: self._past.get(uid, PastUse(at=now)).after(
                now, 0.0 if first else held.get(uid, 0.0), half_life
            )
            for uid in {*self._past, *held}
        }
        self._past = {
            uid: one for uid, one in past.items() if uid in held or one.gpu_seconds > _NEGLIGIBLE
        }
        if now - self._saved >= SAVE_SECONDS or now < self._saved:
            self._saved = now
            self._store.save_past_use(self._past)
