"""A replica's term as the leader.

It begins when the replica has read what the leader before left, and lasts while it holds the lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Term:
    """One after the other; `number` tells them apart.

    `leading` asks the lease's own clock: a replica that stood still for longer than its lease holds
    does not act on what it knew.
    """

    def __init__(self, leading: Callable[[], bool]) -> None:
        self._leading = leading
        self._begun = False
        self.number = 0

    @property
    def is_on(self) -> bool:
        """Whether this replica may act, at this moment."""
        return self._begun and self._leading()

    def begin(self) -> None:
        """It leads, and knows what the one before has left."""
        self._begun = True

    def end(self) -> None:
        """It leads no more, or anew."""
        self._begun = False
        self.number += 1

    def lasts(self, number: int) -> bool:
        """Whether it is still that term."""
        return self.is_on and self.number == number
